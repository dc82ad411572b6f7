"""The report: one page, safe, readable without scripts, better with them."""

from __future__ import annotations

import copy
import csv
import json
import re
import shutil
import warnings
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ehr_prep
from mmlca.study import steps as steps_module
from mmlca.study.report.content import Report
from mmlca.study.report.page import render_report
from mmlca.study.report.tables import (
    MOST_ROWS,
    SHOW,
    Grid,
    Plain,
    lay_out,
    number,
    percent,
)
from mmlca.study.results.models import shown_fits
from mmlca.study.run import run_study
from mmlca.study.study_file import read_study, settings_text

STUDY = """
name = "Small & <b>bold</b>"
seed = 1
synthetic = true
[sites.MGB]
{files[MGB]}
[sites.VA]
{files[VA]}
[rules]
first_on_or_after = 2008-01-01
impute = "carry_forward"
[classes]
candidates = [3, 4]
[pseudo_sites]
per_site = 2
[model]
n_init = 4
[inference]
simulations = 9
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
    return "\n".join(
        [*lines, 'drugs = "ra"', f'truth = "{(folder / "truth").as_posix()}/synthetic_{site}.csv"']
    )


@dataclass
class Made:
    """A finished study: its folder and what the page was rendered from."""

    folder: Path
    report: Report
    pictures: dict[str, bytes]

    def __post_init__(self) -> None:
        self.page = self.folder / "report.html"
        self.html = self.page.read_text(encoding="utf-8")
        self.content = json.loads((self.folder / "results.json").read_text(encoding="utf-8"))
        self.provenance = json.loads((self.folder / "provenance.json").read_text(encoding="utf-8"))

    def render(self, **changed: Any) -> str:
        """The page of the same report with some parts changed."""
        return render_report(replace(self.report, **changed), self.pictures, self.provenance)


def make(root: Path, name: str, text: str) -> Made:
    (root / f"{name}.toml").write_text(text, encoding="utf-8")
    seen: list[Any] = []

    def render(report: Report, pictures: dict[str, bytes], *others: Any) -> str:
        seen.extend([report, pictures])
        return render_report(report, pictures, *others)

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(steps_module, "render_report", render)
        run_study(read_study(root / f"{name}.toml"), root / name)
    return Made(root / name, *(seen or [None, {}]))  # an unchanged page is not rendered again


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


ONE_SITE = STUDY.split("[sites.VA]")[0] + "[rules]" + STUDY.split("[rules]")[1]


def one_site(cohort: Path, name: str, outputs: str) -> Made:
    files = {"MGB": files_of(cohort, "MGB", labs=False)}
    return make(cohort, name, ONE_SITE.format(files=files, outputs=outputs, more=""))


@pytest.fixture(scope="module")
def hostile(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same report, with names that are HTML."""
    attack = '"><img src=x onerror=alert(1)>' + EVIL
    items = [
        replace(
            item,
            title=item.title + EVIL,
            caption=item.caption + EVIL,
            alt=item.alt + '" onload="alert(1)',
            table=item.table.astype(object).replace("JAK", EVIL).infer_objects(),
        )
        for item in made.report.items
    ]
    provenance = copy.deepcopy(made.provenance)
    provenance["settings"]["name"] = EVIL
    provenance["inputs"][EVIL] = {"bytes": 1, "sha256": EVIL}
    texts: dict[str, Any] = {"study": attack, "methods": attack, "summary": [EVIL]}
    report = replace(made.report, **texts, careful=[EVIL], items=items)
    page = tmp_path_factory.mktemp("hostile") / "report.html"
    page.write_text(render_report(report, made.pictures, provenance), encoding="utf-8")
    return page


class Outline(HTMLParser):
    """Tags with their attributes, the text, and that every tag closes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.glued: list[bool] = []  # words that no line may break are spans of their own
        self.glue = False
        self.stack: list[str] = []
        self.feed(html)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.glue = dict(attrs).get("class") == "together"
        if tag not in VOID:
            self.stack.append(tag)
            self.glued.append(self.glue)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag, self.getpos()
        self.glue = self.glued.pop()

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in ("style", "script"):
            if self.glue and self.text:
                self.text[-1] += data
            else:
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
    expected = [p["alt"] for p in sorted(pictures, key=shown_order(made))]
    assert [image["alt"] for image in outline.all("img")] == expected
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
    assert "adjusted Rand index against the truth" in words
    single = Outline(plain.html)
    assert "earlier study" not in single.words
    assert single.all("img") == single.all("fieldset") == []
    assert "site difference" not in single.words


def test_figures_of_the_other_view_have_their_twins_number(made: Made) -> None:
    words = Outline(made.html).words
    first = dict(re.findall(r"Figure (\d+)\. ([^.]+)\.", words))
    second = dict(re.findall(r"Figure S(\d+)\. ([^.]+)\.", words))
    assert len(second) == 6
    assert {n: first[n] for n in second} == second
    assert [*map(int, first)] == [*range(1, len(first) + 1)]
    third = dict(re.findall(r"Figure R(\d+)\. ([^.]+)\.", words))
    assert len(third) == 3  # those based on rounded counts
    assert {n: first[n] for n in third} == third


def test_no_patient_is_in_the_report(made: Made, plain: Made) -> None:
    for study in (made, plain):
        text = " ".join(Outline(study.html).text)
        ids = set()
        for path in (study.folder / "patients").glob("*_sequences.csv"):
            with path.open(encoding="utf-8", newline="") as file:
                ids |= {row[0] for row in [*csv.reader(file)][1:]}
        assert len(ids) > 200
        assert not ids & set(re.findall(r"[\w-]+", text))


def test_the_same_content_gives_the_same_page(made: Made) -> None:
    again = made.render()
    assert again == made.render()
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
    outline = Outline(made.render(figures=False))
    assert outline.all("img") == []
    views = [attrs["data-view"] for attrs in outline.all("div") if "data-view" in attrs]
    assert views == ["ensemble", "local", "refined"] * 2 + ["ensemble", "local"]
    assert re.search(r"Table S\d+\. Transition rates\.", outline.words)


def test_names_that_are_html_are_shown(hostile: Path) -> None:
    outline = Outline(hostile.read_text(encoding="utf-8"))
    assert len(outline.all("script")) == 1
    assert EVIL in outline.words
    assert not [tag for tag, attrs in outline.tags if {"onerror", "onload"} & set(attrs)]


def test_class_sizes_show_together_or_not_at_all() -> None:
    """All shares but one would tell the last."""
    fits = pd.DataFrame(
        {
            "model": "A",
            "patients": 100.0,
            "classes": [3, 2],
            "parameters": [50, 40],
            "loglik": [-900.4, -950.2],
            "bic": [2031.06, 2084.6],
            "entropy": 0.9,
            "smallest": [0.05, 0.2],
            "sizes": [[0.6, 0.35, 0.05], [0.8, 0.2]],
        }
    )
    shown = shown_fits(fits, "A", 11)
    assert shown["sizes"].tolist() == [None, [0.8, 0.2]]
    assert shown["smallest"].isna().tolist() == [True, False]
    assert shown["bic"].tolist() == [2030.0, 2084.0]
    pd.testing.assert_frame_equal(shown_fits(fits, "A", 1), fits)


def test_numbers_have_the_digits_of_their_column() -> None:
    frame = pd.DataFrame({"p": [0.48, 0.9], "share": [0.84, 1.0], "other": [0.481, 0.0]})
    table = lay_out(frame, Plain(shares=("share",), n_keys=0), "Digits", "x.csv", 11)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["0.48", "84\u00a0%", "0.481"],
        ["0.90", "100\u00a0%", "0.000"],
    ]
    assert [cell.digits for cell in table.rows[0]] == [None, "0.84", None]


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
    assert SHOW["count"](2164.0) == "2,164"
    assert SHOW["share"](0.25) == "25.0\u00a0%"
    assert SHOW["index"](1.0) == "1.000"


def test_long_tables_are_cut_and_say_so() -> None:
    frame = pd.DataFrame({"a": [f"x{i}" for i in range(1234)], "b": np.arange(1234) + 0.5})
    table = lay_out(frame, Plain(), "Long", "tables/long.csv", 11)
    assert len(table.rows) == MOST_ROWS
    assert table.notes == ("The first 50 of 1,234 rows; all are in tables/long.csv.",)
    assert (table.rows[3][1].text, table.rows[3][1].value) == ("3.5", 3.5)


RATES = Grid(
    ("site", "group", "from"), "to", "rate", ("n",), lambda row: f"{row['count']:.0f} steps"
)


def test_long_tables_of_shares_become_grids() -> None:
    frame = pd.DataFrame(
        {
            "site": "A",
            "group": "cluster 1",
            "from": ["x", "x", "y", "y"],
            "to": ["x", "y", "x", "y"],
            "count": [75, 25, np.nan, 0],
            "n": [100, 100, np.nan, 0],
            "rate": [0.75, 0.25, np.nan, np.nan],
        }
    )
    table = lay_out(frame, RATES, "Shares", "shares.csv", 11)
    assert table.columns == [("from", False), ("x", True), ("y", True)]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["x", "75.0", "25.0"],
        ["y", "–", "–"],
    ]
    assert table.rows[0][1].more == "0.75, 75 steps"
    assert [cell.more for cell in table.rows[1][1:]] == [
        "fewer than 11, or would reveal so few",
        "nobody",
    ]
    assert "based on fewer than 11 patients" in " ".join(table.notes)
    shown = lay_out(frame[:2], RATES, "Shares", "shares.csv", 1)
    assert "fewer" not in " ".join(shown.notes)


def test_rows_that_are_hidden_are_left_out_and_counted() -> None:
    frame = pd.DataFrame({"to": ["x", None], "count": [30, np.nan], "share": [1, np.nan]})
    layout = Plain(shares=("share",), empty={"to": "no other"}, left_out="count")
    table = lay_out(frame, layout, "Lines", "lines.csv", 11)
    assert [[cell.text for cell in row] for row in table.rows] == [["x", "30", "100\u00a0%"]]
    assert (
        table.notes[0] == "Left out: 1 row of fewer than 11 patients, or that would reveal so few."
    )
    table = lay_out(frame.fillna({"count": 12}), layout, "Lines", "lines.csv", 11)
    assert table.rows[1][0].text == "no other"


def test_an_empty_table_is_a_table() -> None:
    names = ["site", "group", "from", "to", "count", "n", "rate"]
    empty = pd.DataFrame({name: pd.Series(dtype=float) for name in names})
    assert lay_out(empty, Plain(), "None", "none.csv", 11).rows == []
    assert lay_out(empty, RATES, "None", "none.csv", 11).rows == []


def test_settings_can_be_read_again(made: Made) -> None:
    import tomllib

    settings = made.provenance["settings"] | {"odd": {'a "b" ü': {"x": [1, "y\\z"]}}}

    def given(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        return {k: g for k, v in part.items() if v is not None and (g := given(v)) != {}}

    assert tomllib.loads(settings_text(settings)) == given(settings)


def test_table_one_of_many_sites_has_them_below_each_other() -> None:
    from mmlca.study.sections.clusters import _sites_below_each_other

    columns = pd.MultiIndex.from_product([["X", "Y"], ["1: A", "all"]])
    rows = pd.MultiIndex.from_tuples([("patients, n (%)", ""), ("sex, n (%)", "F")])
    wide = pd.DataFrame([["1", "2", "3", "4"], ["5", "6", "7", "8"]], rows, columns)
    below = _sites_below_each_other(wide)
    assert below is not None
    assert below.columns.tolist() == ["site", "variable", "level", "1: A", "all"]
    assert below.to_numpy().tolist() == [
        ["X", "patients, n (%)", "", "1", "2"],
        ["X", "sex, n (%)", "F", "5", "6"],
        ["Y", "patients, n (%)", "", "3", "4"],
        ["Y", "sex, n (%)", "F", "7", "8"],
    ]
    assert _sites_below_each_other(wide["X"]) is None


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
        .map(cell => Number(cell.textContent.replace(",", "")))"""
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
    table = "#section-sites .table .scroll"
    rows = f"document.querySelector('{table}').querySelectorAll('tbody tr')"  # of the first one
    last = f"[...{rows}].map(r => r.lastChild.textContent)"
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
    page.click(radio.format("refined"))
    assert page.run(shown) == ["refined", "ensemble"]  # labs have no refined view
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.run(shown) == ["refined", "ensemble"]  # what was chosen is printed
    assert page.complaints() == []


def test_values_by_pointer_and_by_arrow_keys(browser: Any, made: Made) -> None:
    page = browser.open(made.page)
    details = ".view[data-view=ensemble] details"
    page.run(f"document.querySelector('{details}').open = true")
    page.move(*page.place(f"{details} td[data-more]"))
    readout = "document.getElementById('readout').hidden ? null : readout.textContent"
    assert re.search(r"MGB, 1: [^,]+, TNFi, 1: [\d.]+, [\d,]+ of [\d,]+", page.run(readout))
    page.press("Escape")
    assert page.run(readout) is None
    page.run(f"document.querySelector('{details} td[data-more]').focus()")
    page.press("ArrowRight")
    page.run("new Promise(done => setTimeout(done, 100))")
    assert page.run(readout).startswith("MGB, 1: TNFi persisters, TNFi, 2: ")
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
    refined = "Clusters of the refined model"
    assert set(headings) == {"Clusters of the ensemble", "Each site's own model", refined}


def test_no_table_is_cut_on_a_screen(browser: Any, made: Made) -> None:
    page = browser.open(made.page, width=1200)
    cut = """[...document.querySelectorAll('figure.table > .scroll')]
        .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.ariaLabel)"""
    assert page.run(cut) == []
    assert made.page.stat().st_size < 5e6


def test_prose_needs_no_scrolling_on_a_phone_and_first_columns_stay(
    browser: Any, made: Made
) -> None:
    page = browser.open(made.page, width=390)
    cut = """[...document.querySelectorAll(".words")].map(
        table => table.parentElement.scrollWidth - table.parentElement.clientWidth)"""
    assert page.run(cut) == [0, 0]  # the clusters in words, and the checklist
    moved = """(() => {
        const box = document.querySelector(".wide").parentElement;
        box.scrollLeft = 200;
        const first = box.querySelector("tbody tr > :first-child").getBoundingClientRect();
        return [box.scrollLeft, first.left - box.getBoundingClientRect().left];
    })()"""
    assert page.run(moved) == [200, 0]


def test_without_scripts_the_first_view_is_printed(browser: Any, made: Made) -> None:
    page = browser.open(made.page, scripts=False)
    page.send("Emulation.setEmulatedMedia", media="print")
    page.send("Emulation.setScriptExecutionDisabled", value=False)
    views = """[...new Set([...document.querySelectorAll('.view')]
        .filter(v => v.offsetHeight > 0).map(v => v.dataset.view))]"""
    assert page.run(views) == ["ensemble"]
    note = "[...document.querySelectorAll('.paper')].filter(p => p.offsetHeight).length"
    assert page.run(note) > 0
    assert page.run("[...document.querySelectorAll('.get')].every(g => g.hidden)")


def test_a_picture_can_be_read_on_a_phone_and_a_tap_shows_all_of_it(
    browser: Any, made: Made
) -> None:
    page = browser.open(made.page, width=390)
    wide = "document.querySelector('.picture img').getBoundingClientRect().width"
    natural = int(page.run("document.querySelector('.picture img').getAttribute('width')"))
    assert page.run(wide) == natural > 390
    page.click(".picture")
    assert page.run(wide) < 390
    page.click(".picture")
    assert page.run(wide) == natural
    assert page.complaints() == []


def test_tables_and_figures_can_be_saved_from_the_page(browser: Any, made: Made) -> None:
    """What is saved is the file of the folder, or the picture."""
    page = browser.open(made.page)
    page.run(
        """(() => {
        globalThis.saved = {};
        const real = URL.createObjectURL;
        URL.createObjectURL = (blob) => { globalThis.last = blob; return real(blob); };
        HTMLAnchorElement.prototype.click = function () {
          const [name, blob] = [this.download, globalThis.last];
          globalThis.saved[name] = name.endsWith("png") ? this.href : blob.text();
        };
        })()"""
    )
    page.run("for (const b of document.querySelectorAll('[data-csv], [data-figure]')) b.click()")
    page.run("new Promise(done => setTimeout(done, 1000))")
    names = set(page.run("Object.keys(globalThis.saved)"))
    for item in made.report.items:
        folder = "tables" if item.draw is None else "figures"
        path = made.folder / folder / f"{item.name}.csv"
        text = page.run(f"globalThis.saved['{item.name}.csv']")
        assert text == path.read_text(encoding="utf-8"), item.name
        if item.draw is not None:
            assert page.run(f"globalThis.saved['{item.name}.png']").startswith("data:image/png")
    assert len(names) >= len(made.report.items)
    assert page.complaints() == []


def test_the_page_breaks_between_rows_and_no_heading_is_left_behind(
    browser: Any, made: Made, tmp_path: Path
) -> None:
    """Small tables and pictures stay whole; paper is used: fewer pages than with all views."""
    page = browser.open(made.page)
    pages = len(re.findall(rb"/Type\s*/Page\b", page.pdf()))
    assert 5 < pages < 22
    page.send("Emulation.setEmulatedMedia", media="print")
    kept = "getComputedStyle(document.querySelector('{}')).{}"
    assert page.run(kept.format("h2", "breakAfter")) == "avoid"
    assert page.run(kept.format("tr", "breakInside")) == "avoid"
    assert page.run(kept.format("thead", "display")) == "table-header-group"


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
