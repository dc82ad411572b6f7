"""The report: one page of HTML that needs nothing but itself."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from gzip import compress
from importlib.resources import files
from io import BytesIO
from typing import Any

from font.files import content_policy
from mmlca.sequences.checks import listed
from mmlca.study.cache import table_text
from mmlca.study.report.content import Item, Report
from mmlca.study.report.tables import Cell, Table, label, lay_out, number, unbroken
from mmlca.study.study_file import settings_text

_VIEWS = {
    "ensemble": ("Ensemble", "Clusters of the ensemble"),
    "local": ("Local", "Each site's own model"),
    "refined": ("Refined", "Clusters of the refined model"),
}
_TWINS = {"local": "S", "refined": "R"}
"""Before the number of a figure of another view than the first."""
_ON_SCREEN = 1.35  # figures are drawn for paper; a screen is read from further away


Sections = list[dict[str, Any]]


def render_report(
    report: Report,
    pictures: Mapping[str, bytes],
    provenance: Mapping[str, Any],
    sections: Sections | None = None,
) -> str:
    """The page of a finished study: HTML with its pictures, style and script inside.

    It asks no network for anything, and its policy forbids it to. `pictures` are WebP files by the
    name of the figure, `provenance` is the content of `provenance.json`, and `sections` come from
    `lay_out_sections`, if that was done before.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    style, script = (
        (files("mmlca.study.report") / name).read_text(encoding="utf-8")
        for name in ("report.css", "report.js")
    )
    sections = lay_out_sections(report) if sections is None else sections
    dpi = provenance["settings"]["outputs"]["dpi"]
    n_results = sum(section["id"] in report.results for section in sections)
    environment = Environment(
        loader=PackageLoader("mmlca.study.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["unbroken"] = unbroken
    return environment.get_template("report.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, script),
        report=report,
        pictures={name: _picture(content, dpi) for name, content in pictures.items()},
        where=listed(report.sites),
        sections=sections[:n_results],
        diagnostics=sections[n_results:],
        views=_VIEWS if len(report.views) > 1 else {},
        seed=provenance["seed"],
        started=_date(provenance.get("started", "")),
        settings=settings_text(provenance["settings"]),
        provenance_tables=list(_provenance_tables(provenance)),
    )


def _date(text: str) -> str:
    """A time of the record for people: "18 November 2026, 00:45 UTC"."""
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return text
    return f"{time.day} {time:%B %Y, %H:%M} UTC"


# --- sections -----------------------------------------------------------------------------


def lay_out_sections(report: Report) -> Sections:
    """Sections with their items in groups: those of no view, then one group per view.

    All but the pictures, so that it can be done while these are drawn.

    A figure of another view has the number of its twin in the first, with a letter before it.
    """
    first, *others = report.views
    numbers: dict[tuple[str, str, str], int] = {}
    counts = {"figure": 0, "table": 0}

    def numbered(item: Item) -> str:
        kind = "figure" if report.pictured(item) else "table"
        twin = (item.section, kind, item.title)
        if item.view in others and twin in numbers:
            return f"{kind.capitalize()} {_TWINS[str(item.view)]}{numbers[twin]}"
        counts[kind] += 1
        numbers[twin] = counts[kind]
        return f"{kind.capitalize()} {counts[kind]}"

    sections = []
    for name, title, items in report.sections():
        groups: dict[str | None, list[dict[str, Any]]] = {}
        for item in items:
            table = lay_out(item.table, item.layout, item.title, item.data_file, report.min_count)
            text = table_text(item.table)
            shown = {
                "item": item,
                "number": numbered(item),
                "table": table,
                "drawn": report.pictured(item),
                # for an attribute of the page, from which the script makes the file again
                "csv": base64.b64encode(compress(text.encode(), mtime=0)).decode(),
            }
            groups.setdefault(item.view, []).append(shown)
        order = [None, *(view for view in (first, *others) if view is not None)]
        ordered = [(view, groups[view]) for view in order if view in groups]
        choices = [view for view, _ in ordered if view is not None]
        switch = choices if len(choices) > 1 else []
        sections.append({"id": name, "title": title, "groups": ordered, "switch": switch})
    return sections


def _picture(content: bytes, dpi: int) -> dict[str, Any]:
    """A picture as a data URI, with its size on a screen."""
    from PIL import Image

    with Image.open(BytesIO(content)) as picture:
        width, height = picture.size
    return {
        "src": f"data:image/webp;base64,{base64.b64encode(content).decode()}",
        "width": round(width * 96 * _ON_SCREEN / dpi),
        "height": round(height * 96 * _ON_SCREEN / dpi),
    }


# --- provenance ---------------------------------------------------------------------------


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
