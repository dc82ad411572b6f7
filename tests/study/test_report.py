"""The report: one page, safe, readable without scripts, better with them."""

from __future__ import annotations

import copy
import csv
import json
import re
import shutil
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import ehr_prep
from mmlca.study.config import read_study
from mmlca.study.report import render_report, settings_text
from mmlca.study.report_tables import MOST_ROWS, number, percent, read_table, sensible
from mmlca.study.run import run_study

STUDY = """
name = "Small & <b>bold</b>"
seed = 1
synthetic = true
[sites.MGB]
{files[MGB]}
[sites.VA]
{files[VA]}
[classes]
candidates = [3, 4]
starts = 2
[pseudo_sites]
per_site = 2
[model]
starts = 4
[outputs]
dpi = 60
bootstrap = 10
{outputs}
{more}
"""
PUBLISHED = '[published]\nsource = "earlier study"\ntransition_ensemble = 0.403'
EVIL = "<script>alert(1)</script>"
VOID = {"meta", "link", "img", "input", "br", "hr"}


def files_of(folder: Path, site: str, labs: bool = True) -> str:
    names = {"records": "medications", "patients": "patients"} | ({"labs": "labs"} if labs else {})
    lines = [f'{role} = "{(folder / site / name).as_posix()}.csv"' for role, name in names.items()]
    return "\n".join([*lines, f'truth = "{(folder / "truth").as_posix()}/synthetic_{site}.csv"'])


class Made:
    """A finished study: its folder and what the report was made of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.page = folder / "report.html"
        self.html = self.page.read_text(encoding="utf-8")
        self.content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        self.provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))


def make(root: Path, name: str, text: str) -> Made:
    (root / f"{name}.toml").write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_study(read_study(root / f"{name}.toml"), root / name)
    return Made(root / name)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cohort")
    ehr_prep.ra_cohort(seed=1, scale=0.1).write(root)
    return root


@pytest.fixture(scope="module")
def made(cohort: Path) -> Made:
    """Two sites, figures, numbers published before."""
    files = {site: files_of(cohort, site) for site in ("MGB", "VA")}
    return make(cohort, "two", STUDY.format(files=files, outputs="", more=PUBLISHED))


@pytest.fixture(scope="module")
def plain(cohort: Path) -> Made:
    """One site, no figures, nothing published."""
    return one_site(cohort, "one", "figures = false")


ONE_SITE = STUDY.split("[sites.VA]")[0] + "[classes]" + STUDY.split("[classes]")[1]


def one_site(cohort: Path, name: str, outputs: str) -> Made:
    files = {"MGB": files_of(cohort, "MGB", labs=False)}
    return make(cohort, name, ONE_SITE.format(files=files, outputs=outputs, more=""))


@pytest.fixture(scope="module")
def hostile(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same report, with names that are HTML."""
    folder = tmp_path_factory.mktemp("hostile") / "study"
    shutil.copytree(made.folder, folder)
    for path in folder.rglob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            rows = [[cell.replace("JAK", EVIL) for cell in row] for row in csv.reader(file)]
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
    content = copy.deepcopy(made.content)
    content["study"] = content["methods"] = '"><img src=x onerror=alert(1)>' + EVIL
    content["summary"][0] = content["careful"][0] = EVIL
    for section in content["sections"]:
        for item in section["items"]:
            item["title"] += EVIL
            item["caption"] += EVIL
            if "alt" in item:
                item["alt"] += '" onload="alert(1)'
    provenance = copy.deepcopy(made.provenance)
    provenance["settings"]["name"] = EVIL
    provenance["inputs"][EVIL] = {"bytes": 1, "sha256": EVIL}
    page = folder / "report.html"
    page.write_text(render_report(content, provenance, folder), encoding="utf-8")
    return page


class Outline(HTMLParser):
    """Tags with their attributes, the text, and that every tag closes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.stack: list[str] = []
        self.feed(html)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in ("style", "script"):
            self.text.append(data)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.tags if tag == name]

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


@pytest.fixture(scope="module")
def outline(made: Made) -> Outline:
    return Outline(made.html)


# --- the page as a text ---------------------------------------------------------------------


def test_the_page_needs_nothing_but_itself(outline: Outline) -> None:
    for _, attrs in outline.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attrs.get(name) or ""
            assert value.startswith(("data:", "#")) or not value
        assert not [name for name in attrs if name.startswith("on") or name == "style"]
    policy = next(m["content"] for m in outline.all("meta") if "http-equiv" in m)
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http:" not in policy


@pytest.mark.parametrize("which", ["made", "plain"])
def test_everything_is_there_in_order(which: str, request: pytest.FixtureRequest) -> None:
    made: Made = request.getfixturevalue(which)
    outline = Outline(made.html)
    assert outline.all("html")[0]["lang"] == "en"
    for text in (*made.content["summary"], made.content["methods"], *made.content["careful"]):
        assert re.sub(r"\s+", " ", text) in outline.words
    ids = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [(a["href"] or "")[1:] for a in outline.all("a")]
    assert set(links) <= set(ids)
    assert {f"section-{s['id']}" for s in made.content["sections"]} <= set(links)
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))
    items = [item for section in made.content["sections"] for item in section["items"]]
    pictures = [item for item in items if item["kind"] == "figure"]
    images = outline.all("img")
    assert [i["alt"] for i in images] == [p["alt"] for p in sorted(pictures, key=shown_order(made))]
    assert len(outline.all("figure")) == len(items)
    assert len(outline.all("table")) == len(outline.all("caption"))
    assert {th.get("scope") for th in outline.all("th")} == {"col", "row"}
    regions = [attrs for _, attrs in outline.tags if attrs.get("role") == "region"]
    assert all(r["tabindex"] == "0" and r["aria-label"] for r in regions)
    assert "Synthetic data." in outline.words
    for entry in made.provenance["inputs"].values():
        assert entry["sha256"] in outline.words
    assert f"numpy {made.provenance['software']['numpy']}" in outline.words


def shown_order(made: Made) -> Any:
    """As in the content, but the items of no view first."""
    sections = [section["id"] for section in made.content["sections"]]
    views = [None, *made.content["views"]]
    return lambda item: (sections.index(item["section"]), views.index(item["view"]))


def test_numbers_stand_beside_published_ones(made: Made, plain: Made) -> None:
    words = Outline(made.html).words
    assert "earlier study" in words
    assert "0.403" in words
    assert "Adjusted Rand index against the truth" in words
    single = Outline(plain.html)
    assert "earlier study" not in single.words
    assert single.all("img") == single.all("fieldset") == []
    assert "site difference" not in single.words


def test_figures_of_the_other_view_have_their_twins_number(made: Made) -> None:
    words = Outline(made.html).words
    first = dict(re.findall(r"Figure (\d+)\. ([^.]+)\.", words))
    second = dict(re.findall(r"Figure S(\d+)\. ([^.]+)\.", words))
    assert len(second) == 5
    assert {n: first[n] for n in second} == second
    assert [*map(int, first)] == [*range(1, len(first) + 1)]


def test_no_patient_is_in_the_report(made: Made, plain: Made) -> None:
    for study in (made, plain):
        text = " ".join(Outline(study.html).text)
        ids = set()
        for path in (study.folder / "patients").glob("*_sequences.csv"):
            with path.open(encoding="utf-8", newline="") as file:
                ids |= {row[0] for row in [*csv.reader(file)][1:]}
        assert len(ids) > 200
        assert not ids & set(re.findall(r"[\w-]+", text))


@pytest.mark.parametrize("n", [3, None])
def test_sizes_below_the_threshold_do_not_show(made: Made, n: int | None) -> None:
    content = copy.deepcopy(made.content)
    site = content["sites"][0]
    total = next(r["value"] for r in content["numbers"] if r["name"] == f"patients, {site}")
    for row in content["numbers"]:
        if row["name"] == f"share of cluster 1, {site}":
            row["value"] = None if n is None else n / total
    html = render_report(content, made.provenance, made.folder)
    key = html.split('id="numbers"')[1].split("</table>")[0]
    assert re.search(r"cluster 1</th><td[^>]*>&lt;11</td><td[^>]*>–</td>", key)


def test_the_same_content_gives_the_same_page(made: Made) -> None:
    again = render_report(made.content, made.provenance, made.folder)
    assert again == render_report(made.content, made.provenance, made.folder)
    assert again.split("<h3>Time of each step")[0] == made.html.split("<h3>Time of each step")[0]


def test_a_changed_setting_gives_a_new_page(cohort: Path, plain: Made) -> None:
    """Even one that changes no number; and the same settings leave the page alone."""
    shutil.copytree(plain.folder, cohort / "again")
    outputs = 'figures = false\nlab_label = "CRP"'
    again = one_site(cohort, "again", outputs)
    assert again.content == plain.content
    assert "CRP" in again.html
    written = again.page.stat().st_mtime_ns
    assert one_site(cohort, "again", outputs).page.stat().st_mtime_ns == written


def test_tables_in_place_of_figures_have_views_too(made: Made) -> None:
    content = copy.deepcopy(made.content)
    for section in content["sections"]:
        for item in section["items"]:
            if item["kind"] == "figure":
                item |= {"kind": "table", "file": item["data"]}
    outline = Outline(render_report(content, made.provenance, made.folder))
    assert outline.all("img") == []
    views = [attrs["data-view"] for attrs in outline.all("div") if "data-view" in attrs]
    assert views == ["ensemble", "local"] * 2
    assert re.search(r"Table S\d+\. Transition rates\.", outline.words)


def test_names_that_are_html_are_shown(hostile: Path) -> None:
    outline = Outline(hostile.read_text(encoding="utf-8"))
    assert len(outline.all("script")) == 1
    assert EVIL in outline.words
    assert not [tag for tag, attrs in outline.tags if {"onerror", "onload"} & set(attrs)]


# --- colours --------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_all_text_has_contrast(made: Made) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    style = made.html.split("<style>")[1].split("</style>")[0]
    blocks = re.findall(r":root \{([^}]*)\}", style)
    assert len(blocks) == 3  # light, dark, paper
    light = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[0]))
    for block in blocks:
        colours = light | dict(re.findall(r"--([\w-]+): (#\w{6})", block))
        shades = [name for name in colours if re.fullmatch(r"(share|plus|minus)-\d", name)]
        assert len(shades) == 15
        pairs = [("text", ground) for ground in ("page", "head", "hover", *shades)]
        pairs += [("muted", "page"), ("muted", "head"), ("link", "page")]
        pairs += [("warn-text", "warn"), ("tip-text", "tip"), ("focus", "page")]
        low = {(a, b): contrast(colours[a], colours[b]) for a, b in pairs}
        assert min(low.values()) >= 4.5, low


# --- tables -----------------------------------------------------------------------------------


def test_numbers_read_well() -> None:
    assert [number(x) for x in (0.0, 1234.5678, -0.25, 0.0001, -0.0001)] == [
        "0.000",
        "1,234.568",
        "−0.250",
        "<0.001",
        ">−0.001",
    ]
    assert [percent(x) for x in (0.0, 0.5, 0.99996, 1.0)] == [
        "0\u00a0%",
        "50.0\u00a0%",
        ">99.9\u00a0%",
        "100\u00a0%",
    ]
    assert sensible("patients, MGB", 2164.0) == "2,164"
    assert sensible("share of cluster 1, MGB", 0.25) == "25.0\u00a0%"
    assert sensible("site difference, transition", 1.0) == "1.000"


def test_long_tables_are_cut_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("a,b\n" + "".join(f"x{i},{i}.5\n" for i in range(1234)))
    table = read_table(path, "tables/long.csv", "Long", 11)
    assert len(table.rows) == MOST_ROWS
    assert table.notes == ("The first 100 of 1,234 rows; all are in tables/long.csv.",)
    assert (table.rows[3][1].text, table.rows[3][1].value) == ("3.5", 3.5)


def test_long_tables_of_shares_become_grids(tmp_path: Path) -> None:
    path = tmp_path / "shares.csv"
    path.write_text(
        "site,group,from,to,count,n,rate\n"
        "A,cluster 1,x,x,75,100,0.75\nA,cluster 1,x,y,25,100,0.25\n"
        "A,cluster 1,y,x,,,\nA,cluster 1,y,y,0,0,\n"
    )
    table = read_table(path, "shares.csv", "Shares", 11)
    assert table.columns == [("from", False), ("x", True), ("y", True)]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["x", "75.0", "25.0"],
        ["y", "–", "–"],
    ]
    assert table.rows[0][1].more == "0.75, 75 of 100"
    assert [cell.more for cell in table.rows[1][1:]] == ["fewer than 11", "nobody"]


def test_an_empty_table_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("site,group,rank,sequence,count,share,cumulative\n")
    table = read_table(tmp_path / "none.csv", "none.csv", "None", 11)
    assert table.rows == []
    (tmp_path / "grid.csv").write_text("site,group,time,state,count,n,share\n")
    assert read_table(tmp_path / "grid.csv", "grid.csv", "None", 11).rows == []


def test_settings_can_be_read_again(made: Made) -> None:
    import tomllib

    settings = made.provenance["settings"] | {"odd": {'a "b" ü': {"x": [1, "y\\z"]}}}

    def given(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        return {k: g for k, v in part.items() if v is not None and (g := given(v)) != {}}

    assert tomllib.loads(settings_text(settings)) == given(settings)


# --- in a browser -------------------------------------------------------------------------------


def test_the_page_in_a_browser(browser: Any, made: Made) -> None:
    page = browser.open(made.page)
    sizes = page.run("[...document.images].map(i => i.complete && i.naturalWidth)")
    figures = [i for s in made.content["sections"] for i in s["items"] if i["kind"] == "figure"]
    assert len(sizes) == len(figures)
    assert min(sizes) > 100
    asked = {e["request"]["url"].split(":")[0] for e in page.events("Network.requestWillBeSent")}
    assert asked <= {"file", "data"}
    assert page.pdf().startswith(b"%PDF")
    assert page.complaints() == []


def test_tables_sort_by_mouse_and_by_keyboard(browser: Any, made: Made) -> None:
    page = browser.open(made.page)
    table = "#section-models table"
    column = page.run(f"[...document.querySelectorAll('{table} th')].map(t => t.textContent)")
    place = column.index("BIC") + 1
    read = f"""[...document.querySelectorAll('{table} tbody td:nth-child({place})')]
        .map(cell => Number(cell.dataset.value))"""
    state = f"document.querySelector('{table} th:nth-child({place})').getAttribute('aria-sort')"
    before = page.run(read)
    assert before != sorted(before)
    page.click(f"{table} th:nth-child({place}) button")
    assert (page.run(read), page.run(state)) == (sorted(before), "ascending")
    for key, order, name in (
        ("Enter", sorted(before)[::-1], "descending"),
        (" ", before, None),
        ("Enter", sorted(before), "ascending"),
    ):
        page.run(f"document.querySelector('{table} th:nth-child({place}) button').focus()")
        page.press(key)
        assert (page.run(read), page.run(state)) == (order, name)
    page.press("Tab")
    assert page.run("document.activeElement.tagName") == "BUTTON"
    assert page.complaints() == []


def test_missing_values_sort_last(browser: Any, made: Made) -> None:
    page = browser.open(made.page)
    captions = page.run("[...document.querySelectorAll('#numbers caption')].map(c => c.innerText)")
    place = 1 + next(i for i, text in enumerate(captions) if "norms" in text)
    table = f"#numbers .scroll:nth-of-type({place})"
    last = f"[...document.querySelectorAll('{table} tbody tr')].map(r => r.lastChild.textContent)"
    for _ in range(2):
        page.click(f"{table} thead th:last-child button")
        found = page.run(last)
        assert found[0] == "0.403"
        assert set(found[1:]) == {"–"}


def test_the_switch_between_ensemble_and_local(browser: Any, made: Made) -> None:
    page = browser.open(made.page)
    shown = """[...new Set([...document.querySelectorAll('.view')]
        .filter(v => v.offsetHeight > 0).map(v => v.dataset.view))]"""
    radio = ".switch input[value={}]"
    assert page.run(shown) == ["ensemble"]
    page.click(radio.format("local"))
    assert page.run(shown) == ["local"]
    chosen = "[...document.querySelectorAll('.switch input:checked')].map(i => i.value)"
    assert set(page.run(chosen)) == {"local"}
    page.press("ArrowLeft")
    assert page.run(shown) == ["ensemble"]
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.run(shown) == ["ensemble", "local"]
    assert page.complaints() == []


def test_values_by_pointer_and_by_arrow_keys(browser: Any, made: Made) -> None:
    page = browser.open(made.page)
    details = ".view[data-view=ensemble] details"
    page.run(f"document.querySelector('{details}').open = true")
    page.move(*page.place(f"{details} td[data-more]"))
    readout = "document.getElementById('readout').hidden ? null : readout.textContent"
    assert re.search(r"MGB, cluster 1, TNFi, 1: [\d.]+, [\d,]+ of [\d,]+", page.run(readout))
    page.press("Escape")
    assert page.run(readout) is None
    page.run(f"document.querySelector('{details} td[data-more]').focus()")
    page.press("ArrowRight")
    page.run("new Promise(done => setTimeout(done, 100))")
    assert page.run(readout).startswith("MGB, cluster 1, TNFi, 2: ")
    assert page.run(f"document.querySelectorAll('{details} table td[tabindex]').length") >= 1


def test_the_methods_can_be_copied(browser: Any, made: Made) -> None:
    page = browser.open(made.page)
    page.click(".copy button")
    page.run("new Promise(done => setTimeout(done, 200))")
    assert page.run("document.querySelector('.copy [role=status]').textContent")


@pytest.mark.parametrize("which", ["made", "plain"])
def test_nothing_sticks_out_on_a_phone(
    browser: Any, which: str, request: pytest.FixtureRequest
) -> None:
    page = browser.open(request.getfixturevalue(which).page, width=375)
    page.run("for (const d of document.querySelectorAll('details')) d.open = true")
    assert page.run("innerWidth") == 375
    assert page.run("document.documentElement.scrollWidth") <= 375
    outside = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll')
        && !e.matches('.skip') && e.getBoundingClientRect().right > 376).map(e => e.outerHTML)"""
    assert page.run(outside) == []
    assert page.complaints() == []


def test_all_is_there_without_scripts(browser: Any, made: Made) -> None:
    page = browser.open(made.page, scripts=False)
    page.send("Emulation.setScriptExecutionDisabled", value=False)
    assert page.run("document.querySelectorAll('th button').length") == 0
    assert page.run("[...document.querySelectorAll('.view')].every(v => v.offsetHeight > 0)")
    assert not page.run(
        "[...document.querySelectorAll('.switch, .copy')].some(v => v.offsetHeight)"
    )
    headings = page.run("[...document.querySelectorAll('.view h3')].map(h => h.innerText)")
    assert set(headings) == {"Clusters of the ensemble", "Each site's own model"}


def test_names_that_are_html_do_not_run(browser: Any, hostile: Path) -> None:
    page = browser.open(hostile)
    assert page.run("document.scripts.length") == 1
    assert page.run("document.title").startswith('"><img src=x')
    page.click("#section-models th button")
    page.run("document.querySelector('.view details').open = true")
    page.move(*page.place(".view details tbody tr:nth-child(4) td[data-more]"))
    assert EVIL in page.run("document.getElementById('readout').textContent")
    assert page.events("Page.javascriptDialogOpening") == []
    assert page.complaints() == []
