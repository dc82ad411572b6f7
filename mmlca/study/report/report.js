(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Tables sort by a click on a header: up, down, as they were.
  const words = new Intl.Collator("en", { numeric: true });
  const valueOf = (cell) => {
    if ("value" in cell.dataset) return Number(cell.dataset.value);
    const digits = cell.matches(".number") ? cell.textContent.replace(/[,<>%\s]/g, "") : "";
    const value = Number(digits.replace("−", "-"));
    return digits === "" || Number.isNaN(value) ? null : value;
  };
  const compare = (a, b) => {
    const [x, y] = [valueOf(a), valueOf(b)];
    return x !== null && y !== null ? x - y : words.compare(a.textContent, b.textContent);
  };
  const isMissing = (cell, numeric) =>
    numeric ? valueOf(cell) === null : cell.textContent.trim() === "–";

  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        const turn = { ascending: "descending", descending: null };
        const now = header.getAttribute("aria-sort");
        const next = now ? turn[now] : "ascending";
        headers.forEach((other) => other.removeAttribute("aria-sort"));
        let rows = original;
        if (next) {
          header.setAttribute("aria-sort", next);
          const sign = next === "ascending" ? 1 : -1;
          const numeric = original.some((row) => valueOf(row.cells[column]) !== null);
          const missing = (row) => isMissing(row.cells[column], numeric);
          rows = original.filter((row) => !missing(row));
          rows.sort((a, b) => sign * compare(a.cells[column], b.cells[column]));
          rows.push(...original.filter(missing));
        }
        body.append(...rows);
      });
    });
  }

  // Values: what a number rests on, for the pointer and for the arrow keys.
  const readout = document.getElementById("readout");
  const hide = () => {
    readout.hidden = true;
  };
  const wording = (cell) => {
    if (!cell.matches("td")) {
      return `${cell.closest(".panel").querySelector(".pick").textContent}, ${cell.dataset.more}`;
    }
    const header = cell.closest("table").tHead.rows[0].cells[cell.cellIndex];
    const names = [...all("th", cell.parentElement), header].map((part) => part.textContent.trim());
    return `${names.join(", ")}: ${cell.dataset.more ?? cell.dataset.value.replace("-", "−")}`;
  };
  const show = (cell) => {
    readout.textContent = wording(cell);
    readout.hidden = false;
    const [box, tip] = [cell.getBoundingClientRect(), readout.getBoundingClientRect()];
    const room = document.documentElement.clientWidth - tip.width - 8;
    readout.style.left = `${Math.max(8, Math.min(box.left, room))}px`;
    readout.style.top = `${box.top > tip.height + 8 ? box.top - tip.height - 4 : box.bottom + 4}px`;
  };
  const told = "td[data-more], td[data-value]";
  const explained = (event) => event.target.closest?.(`.mark, ${told}`);
  document.addEventListener("pointerover", (event) => {
    const cell = explained(event);
    if (cell) show(cell);
    else hide();
  });
  document.addEventListener("focusin", (event) => {
    const cell = explained(event);
    if (cell) show(cell);
    else hide();
  });
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  for (const table of all("table")) {
    const first = table.querySelector(told);
    if (first) first.tabIndex = 0;
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const cell = document.activeElement?.closest(told);
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!cell || !step) return;
    event.preventDefault();
    const rows = cell.closest("tbody").rows;
    let [r, c] = [cell.parentElement.sectionRowIndex + step[0], cell.cellIndex + step[1]];
    while (rows[r]?.cells[c] && !rows[r].cells[c].matches(told)) {
      r += step[0];
      c += step[1];
    }
    const next = rows[r]?.cells[c];
    if (!next) return;
    cell.removeAttribute("tabindex");
    cell.removeAttribute("aria-describedby");
    next.tabIndex = 0;
    next.setAttribute("aria-describedby", "readout");
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
    next.focus({ preventScroll: true });
    requestAnimationFrame(() => requestAnimationFrame(() => show(next)));
  });

  // A state or a group, chosen by a click, stands out in all charts and tables until it is
  // clicked again.
  const chosen = { state: null, group: null };
  const highlight = () => {
    for (const mark of all(".mark")) {
      const { state } = mark.dataset;
      mark.classList.toggle("dim", chosen.state !== null && state !== chosen.state);
    }
    for (const panel of all(".panel")) {
      panel.classList.toggle("dim", chosen.group !== null && panel.dataset.group !== chosen.group);
    }
    for (const row of all("tbody tr, thead th")) {
      const names = row.matches("th") ? [row] : all("th", row);
      const text = names.map((name) => name.textContent.trim()).join(": ");
      const group = chosen.group !== null && text.includes(chosen.group);
      const state = names.some((name) => name.textContent.trim() === chosen.state);
      row.classList.toggle("lit", group || state);
    }
    for (const [kind, value] of Object.entries(chosen)) {
      for (const button of all(`button[data-${kind}]`)) {
        button.setAttribute("aria-pressed", String(button.dataset[kind] === value));
      }
    }
  };
  document.addEventListener("click", (event) => {
    const part = event.target.closest?.("button[data-state], button[data-group], .mark[data-state]");
    if (!part) return;
    const kind = "state" in part.dataset ? "state" : "group";
    chosen[kind] = chosen[kind] === part.dataset[kind] ? null : part.dataset[kind];
    highlight();
  });

  // One choice of view for the whole page; a section that lacks it shows its first one.
  const choose = (view) => {
    for (const section of all("section")) {
      const views = all(".view", section);
      const shown = views.some((part) => part.dataset.view === view) ? view : views[0]?.dataset.view;
      for (const part of views) part.hidden = part.dataset.view !== shown;
      for (const input of all(".switch input", section)) input.checked = input.value === shown;
    }
  };
  for (const view of all(".other")) view.classList.remove("other");
  const switches = all(".switch");
  for (const part of switches) {
    part.hidden = false;
    part.addEventListener("change", (event) => {
      const before = part.getBoundingClientRect().top;
      choose(event.target.value);
      window.scrollBy(0, part.getBoundingClientRect().top - before);
    });
  }
  if (switches.length) choose(all("input", switches[0])[0].value);

  // Only what scrolls needs a stop of the Tab key.
  const stops = () => {
    for (const box of all(".scroll")) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  stops();
  window.addEventListener("resize", stops);
  window.addEventListener("load", stops);
  document.addEventListener("toggle", stops, true);
  document.addEventListener("change", stops);

  // On a phone a picture is as wide as the screen; a tap makes it larger.
  for (const picture of all(".picture")) {
    picture.classList.add("grows");
    picture.addEventListener("click", () => {
      picture.classList.toggle("large");
      stops();
    });
  }

  // Files: the table behind an item, unpacked; its picture; its charts as one drawing.
  const save = (name, address) => {
    const link = document.createElement("a");
    link.download = name;
    link.href = address;
    link.click();
  };
  const saveText = (name, type, content) => {
    const address = URL.createObjectURL(new Blob([content], { type }));
    save(name, address);
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  };
  const unpacked = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const drawing = (figure) => {
    const space = "http://www.w3.org/2000/svg";
    const make = (name, values, text = "") => {
      const element = document.createElementNS(space, name);
      for (const [key, value] of Object.entries(values)) element.setAttribute(key, value);
      element.textContent = text;
      return element;
    };
    const root = make("svg", { xmlns: space });
    const [wide, gap] = [220, 20];
    const grids = all(".panels", figure);
    const columns = Math.max(...grids.map((grid) => Number(grid.className.match(/columns-(\d+)/)[1])));
    const width = columns * (wide + gap) + gap;
    let [x, y] = [gap, gap];
    for (const key of all(".key", figure)) {
      const name = key.textContent.trim();
      const room = 30 + 6.5 * name.length;
      if (x + room > width && x > gap) [x, y] = [gap, y + 16];
      const fill = key.querySelector("rect").getAttribute("fill");
      root.append(make("rect", { x, y: y - 9, width: 10, height: 10, fill }));
      root.append(make("text", { x: x + 15, y }, name));
      x += room;
    }
    for (const grid of grids) {
      const panels = all(".panel", grid);
      for (let i = 0; i < panels.length; i += columns) {
        let highest = 0;
        panels.slice(i, i + columns).forEach((panel, k) => {
          const left = gap + k * (wide + gap);
          const title = panel.querySelector(".pick").textContent;
          const long = title.length > 34 ? { textLength: wide, lengthAdjust: "spacingAndGlyphs" } : {};
          root.append(make("text", { x: left, y: y + 24, class: "title", ...long }, title));
          root.append(make("text", { x: left, y: y + 38 }, panel.querySelector("p > span").textContent));
          const chart = panel.querySelector("svg").cloneNode(true);
          const { height } = panel.querySelector("svg").viewBox.baseVal;
          const place = { x: left, y: y + 44, width: wide, height };
          for (const [key, value] of Object.entries(place)) chart.setAttribute(key, value);
          root.append(chart);
          highest = Math.max(highest, height);
        });
        y += highest + 52;
      }
    }
    const height = y + gap;
    const look =
      "text{font:10px sans-serif;fill:#444}.title{font:bold 11px sans-serif;fill:#000}" +
      ".node{font-size:9px;fill:#000;stroke:#fff;stroke-width:2px;paint-order:stroke}" +
      ".slice{stroke:#fff;stroke-width:.7}";
    root.prepend(make("style", {}, look), make("rect", { width, height, fill: "#fff" }));
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    root.setAttribute("width", width);
    root.setAttribute("height", height);
    return new XMLSerializer().serializeToString(root);
  };
  for (const part of all(".get")) part.hidden = false;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button[data-csv], button[data-figure]");
    if (!button) return;
    if ("csv" in button.dataset) {
      saveText(button.dataset.file, "text/csv", await unpacked(button.dataset.csv));
      return;
    }
    const figure = button.closest("figure");
    const picture = figure.querySelector("img");
    if (picture) save(`${button.dataset.figure}.png`, asPng(picture));
    else saveText(`${button.dataset.figure}.svg`, "image/svg+xml", drawing(figure));
  });

  // The page holds pictures in the smaller format WebP; journals take PNG.
  function asPng(picture) {
    const canvas = document.createElement("canvas");
    canvas.width = picture.naturalWidth;
    canvas.height = picture.naturalHeight;
    canvas.getContext("2d").drawImage(picture, 0, 0);
    return canvas.toDataURL("image/png");
  }

  // Copy a text.
  for (const button of all("[data-copy]")) {
    button.parentElement.hidden = false;
    const status = button.parentElement.querySelector("[role=status]");
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.innerText);
        status.textContent = "Copied.";
      } catch {
        getSelection().selectAllChildren(source);
        const done = document.execCommand("copy");
        status.textContent = done ? "Copied." : "Selected; press Ctrl+C.";
      }
    });
  }
})();
