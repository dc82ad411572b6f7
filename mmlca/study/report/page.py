"""The report: one page of HTML that needs nothing but itself."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from font.pages import content_policy
from mmlca.sequences.checks import listed
from mmlca.study.numbers import Kind, Number, pick
from mmlca.study.report.content import Item, Report
from mmlca.study.report.tables import (
    SHOW,
    Cell,
    Table,
    label,
    lay_out,
    number,
    number_cell,
    percent,
)
from mmlca.study.templates import render
from mmlca.tables.suppress import few_text

_VIEWS = {
    "ensemble": ("Ensemble", "Clusters of the ensemble"),
    "local": ("Local", "Each site's own model"),
}
_IN_TABLES = (Kind.SIZE, Kind.DIFFERENCE, Kind.TRUTH)
_ON_SCREEN = 1.35  # figures are drawn for paper; a screen is read from further away


def render_report(
    report: Report, pictures: Mapping[str, bytes], provenance: Mapping[str, Any]
) -> str:
    """The page of a finished study.

    Parameters
    ----------
    report : Report
    pictures : {name of an item: PNG file}
    provenance : mapping
        The content of `provenance.json`.

    Returns
    -------
    str
        A page of HTML with its pictures, style and script inside. It asks no network for
        anything, and its policy forbids it to.
    """
    from markupsafe import Markup

    style, script = (_static(name) for name in ("report.css", "report.js"))
    dpi = provenance["settings"]["outputs"]["dpi"]
    return render(
        "report/report.html.j2",
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, script),
        report=report,
        where=listed(report.sites),
        glance=list(_glance(report.numbers)),
        key_tables=list(_key_tables(report)),
        sections=_sections(report, pictures, dpi),
        views=_VIEWS if len(report.views) > 1 else {},
        seed=provenance["seed"],
        started=provenance.get("started", ""),
        settings=settings_text(provenance["settings"]),
        provenance_tables=list(_provenance_tables(provenance)),
    )


def _static(name: str) -> str:
    return (files("mmlca.study.report") / name).read_text(encoding="utf-8")


# --- key numbers --------------------------------------------------------------------------


def _glance(numbers: list[Number]) -> Iterator[tuple[str, str]]:
    """Numbers that no table below holds: name and text."""
    for one in numbers:
        if one.kind not in _IN_TABLES and one.value == one.value:
            yield one.name, SHOW[one.unit](one.value)


def _key_tables(report: Report) -> Iterator[Table]:
    yield from _sizes(report)
    yield from _differences(report)
    truth = pick(report.numbers, Kind.TRUTH)
    if truth:
        names = [", ".join(filter(None, (one.sites, one.membership))) for one in truth]
        rows = [
            [Cell(name), number_cell(one.value, number)]
            for name, one in zip(names, truth, strict=True)
        ]
        columns = [("patients", False), ("index", True)]
        yield Table("Adjusted Rand index against the truth", columns, rows)


def _sizes(report: Report) -> Iterator[Table]:
    """Clusters down, sites across."""
    sizes = {(one.group, one.sites): one for one in pick(report.numbers, Kind.SIZE)}
    rows = []
    for group in sorted({group for group, _ in sizes}, key=lambda name: (len(name), name)):
        cells = [Cell(group)]
        for site in report.sites:
            one = sizes.get((group, site), Number(Kind.SIZE, 0.0, n=0))
            hidden = one.value != one.value
            few = Cell(few_text(report.min_count))
            cells.append(few if hidden else number_cell(one.n, SHOW["count"]))
            cells.append(number_cell(one.value, percent))
        rows.append(cells)
    across = [(f"{site}, {what}", True) for site in report.sites for what in ("patients", "share")]
    if rows:
        group = "cluster" if report.groups == "clusters" else "class"
        yield Table(f"Sizes of the {report.groups}", [(group, False), *across], rows)


def _differences(report: Report) -> Iterator[Table]:
    differences = pick(report.numbers, Kind.DIFFERENCE)
    if not differences:
        return
    pairs = list(dict.fromkeys(one.sites for one in differences))
    labels = list(dict.fromkeys(one.label for one in differences))
    keys = ["difference of", "clusters", *(["sites"] if len(pairs) > 1 else [])]
    fields = {
        "value": "norm",
        "debiased": "debiased",
        "low": "95\u00a0% low",
        "high": "95\u00a0% high",
        "p_value": "p",
        "chance": "by chance",
    }
    if report.published is not None:
        fields["published"] = report.published
    rows = [
        [
            *map(Cell, (one.label, one.membership, one.sites)[: len(keys)]),
            *(number_cell(getattr(one, name), number) for name in fields),
        ]
        for one in sorted(differences, key=lambda one: labels.index(one.label))
    ]
    columns = [(key, False) for key in keys] + [(name, True) for name in fields.values()]
    where = "" if len(pairs) > 1 else f", {pairs[0]}"
    yield Table(f"Differences between sites{where}: norms with intervals", columns, rows, len(keys))


# --- sections -----------------------------------------------------------------------------


def _sections(report: Report, pictures: Mapping[str, bytes], dpi: int) -> list[dict[str, Any]]:
    """Sections with their items in groups: those of no view, then one group per view.

    A figure of the second view has the number of its twin in the first, with an S before it.
    """
    from markupsafe import Markup

    first, *others = report.views
    numbers: dict[tuple[str, str, str], int] = {}
    counts = {"figure": 0, "table": 0}

    def numbered(item: Item) -> str:
        kind = "figure" if report.pictured(item) else "table"
        twin = (item.section, kind, item.title)
        if item.view in others and twin in numbers:
            return f"{kind.capitalize()} S{numbers[twin]}"
        counts[kind] += 1
        numbers[twin] = counts[kind]
        return f"{kind.capitalize()} {counts[kind]}"

    sections = []
    for name, title, items in report.sections():
        groups: dict[str | None, list[dict[str, Any]]] = {}
        for item in items:
            table = lay_out(item.table, item.layout, item.title, item.data_file, report.min_count)
            picture = _picture(pictures[item.name], dpi) if report.pictured(item) else None
            chart = Markup(item.chart()) if picture and item.chart is not None else None
            shown = {"item": item, "number": numbered(item), "table": table, "picture": picture}
            shown["chart"] = chart
            groups.setdefault(item.view, []).append(shown)
        order = [None, *(view for view in (first, *others) if view is not None)]
        ordered = [(view, groups[view]) for view in order if view in groups]
        switch = sum(view is not None for view, _ in ordered) > 1
        sections.append({"id": name, "title": title, "groups": ordered, "switch": switch})
    return sections


def _picture(content: bytes, dpi: int) -> dict[str, Any]:
    """A PNG file as a data URI, with its size on a screen."""
    width, height = struct.unpack(">II", content[16:24])
    return {
        "src": f"data:image/png;base64,{base64.b64encode(content).decode()}",
        "width": round(width * 96 * _ON_SCREEN / dpi),
        "height": round(height * 96 * _ON_SCREEN / dpi),
    }


# --- provenance ---------------------------------------------------------------------------


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings as a study file has them.

    >>> print(settings_text({"name": "RA", "rules": {"months": 3, "ties": "first"}}))
    name = "RA"
    <BLANKLINE>
    [rules]
    months = 3
    ties = "first"
    """
    return "\n".join(_lines(settings, ())).strip("\n")


def _lines(part: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    own = {k: v for k, v in part.items() if not isinstance(v, Mapping) and v is not None}
    if path and own:
        yield f"\n[{'.'.join(path)}]"
    for name, value in own.items():
        yield f"{_key(name)} = {json.dumps(value, ensure_ascii=False)}"
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from _lines(value, (*path, _key(name)))


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


def _provenance_tables(provenance: Mapping[str, Any]) -> Iterator[Table]:
    rows = [[Cell(name), Cell(version)] for name, version in provenance["software"].items()]
    yield Table("Software", [("package", False), ("version", False)], rows)
    rows = [
        [Cell(name), Cell(f"{file['bytes']:,}", file["bytes"]), Cell(file["sha256"])]
        for name, file in provenance["inputs"].items()
    ]
    hashed = "SHA-256 with a key" if "hashes" in provenance else "SHA-256"
    yield Table("Input files", [("file", False), ("bytes", True), (hashed, False)], rows)
    times: dict[str, tuple[int, float]] = {}
    for name, step in provenance["steps"].items():
        kind = "figures" if name.startswith("figure ") else name
        n, seconds = times.get(kind, (0, 0.0))
        times[kind] = n + len(step["files"]), seconds + step["seconds"]
    times.pop("report", None)
    rows = [
        [Cell(label(name)), Cell(f"{n:,}", n), Cell(number(seconds, 1), seconds)]
        for name, (n, seconds) in times.items()
    ]
    columns = [("step", False), ("files written", True), ("seconds", True)]
    yield Table("Time of each step", columns, rows)
