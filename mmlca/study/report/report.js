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
  const explained = "td[data-more], td[data-value]";
  const showOrHide = (event) => {
    const cell = event.target.closest?.(explained);
    if (cell) show(cell);
    else hide();
  };
  document.addEventListener("pointerover", showOrHide);
  document.addEventListener("focusin", showOrHide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  for (const table of all("table")) {
    const first = table.querySelector(explained);
    if (first) first.tabIndex = 0;
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const cell = document.activeElement?.closest(explained);
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!cell || !step) return;
    event.preventDefault();
    const rows = cell.closest("tbody").rows;
    let [r, c] = [cell.parentElement.sectionRowIndex + step[0], cell.cellIndex + step[1]];
    while (rows[r]?.cells[c] && !rows[r].cells[c].matches(explained)) {
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

  // On a phone a picture is larger than the screen; a tap makes it as wide as the screen.
  const isCut = (box) => Number(box.querySelector("img").getAttribute("width")) > innerWidth;
  for (const picture of all(".picture").filter(isCut)) {
    const hint = () => {
      const whole = picture.classList.contains("whole");
      picture.dataset.hint = whole ? "Tap to enlarge" : "Swipe to see the rest; tap to see it whole";
    };
    hint();
    picture.addEventListener("click", () => {
      picture.classList.toggle("whole");
      hint();
      stops();
    });
  }

  // Files: the table behind an item, unpacked, and its picture.
  const save = (name, address) => {
    const link = document.createElement("a");
    link.download = name;
    link.href = address;
    link.click();
  };
  const unpacked = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const asPng = (picture) => { // the page has the smaller format WebP; journals take PNG
    const canvas = document.createElement("canvas");
    canvas.width = picture.naturalWidth;
    canvas.height = picture.naturalHeight;
    canvas.getContext("2d").drawImage(picture, 0, 0);
    return canvas.toDataURL("image/png");
  };
  for (const part of all(".get")) part.hidden = false;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button[data-csv], button[data-figure]");
    if (!button) return;
    if ("figure" in button.dataset) {
      save(`${button.dataset.figure}.png`, asPng(button.closest("figure").querySelector("img")));
      return;
    }
    const table = new Blob([await unpacked(button.dataset.csv)], { type: "text/csv" });
    const address = URL.createObjectURL(table);
    save(button.dataset.file, address);
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  });

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
