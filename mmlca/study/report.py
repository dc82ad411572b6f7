"""The report: one page of HTML that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from mmlca.checks import listed
from mmlca.study.report_tables import Cell, Table, label, number, percent, read_table, sensible
from mmlca.study.templates import render

_VIEWS = {
    "ensemble": ("Ensemble", "Clusters of the ensemble"),
    "local": ("Local", "Each site's own model"),
}
_DIFFERENCE, _TRUTH = "site difference", "adjusted Rand index against the truth"
_SIZES = ("share of cluster ", "share of class ")
_ON_SCREEN = 1.35  # figures are drawn for paper; a screen is read from further away


def render_report(content: Mapping[str, Any], provenance: Mapping[str, Any], folder: Path) -> str:
    """The report of a finished study.

    Parameters
    ----------
    content : mapping
        What `results.json` holds.
    provenance : mapping
        What `provenance.json` holds.
    folder : path
        Where the figures and tables are that `content` names.

    Returns
    -------
    str
        A page of HTML with its pictures, style and script inside. It asks no network for
        anything, and its policy forbids it to.
    """
    style, script = (_static(name) for name in ("report.css", "report.js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; "
        f"script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    from markupsafe import Markup

    dpi = provenance["settings"]["outputs"]["dpi"]
    return render(
        "report.html.j2",
        style=Markup(style),
        script=Markup(script),
        policy=policy,
        study=content["study"],
        synthetic=content["synthetic"],
        where=listed(content["sites"]),
        summary=content["summary"],
        glance=list(_glance(content["numbers"])),
        key_tables=list(_key_tables(content)),
        sections=_sections(content, folder, dpi),
        views=_VIEWS if len(content["views"]) > 1 else {},
        methods=content["methods"],
        careful=content["careful"],
        seed=provenance["seed"],
        started=provenance.get("started", ""),
        settings=settings_text(provenance["settings"]),
        provenance_tables=list(_provenance_tables(provenance)),
    )


def _static(name: str) -> str:
    return (files("mmlca.study") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# --- key numbers --------------------------------------------------------------------------


def _glance(numbers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Numbers that no table below holds."""
    for row in numbers:
        name = row["name"]
        if not name.startswith((_DIFFERENCE, _TRUTH, *_SIZES)) and row["value"] is not None:
            yield name, sensible(name, row["value"])


def _key_tables(content: Mapping[str, Any]) -> Iterator[Table]:
    numbers = {row["name"]: row for row in content["numbers"]}
    yield from _sizes(numbers, content["sites"], content["min_count"])
    yield from _differences(numbers, content["published"])
    truth = {name: row for name, row in numbers.items() if name.startswith(f"{_TRUTH}, ")}
    if truth:
        rows = [
            [Cell(name.removeprefix(f"{_TRUTH}, ")), _cell("", row["value"])]
            for name, row in truth.items()
        ]
        yield Table(
            "Adjusted Rand index against the truth", [("patients", False), ("index", True)], rows
        )


def _sizes(
    numbers: Mapping[str, Mapping[str, Any]], sites: Sequence[str], min_count: int
) -> Iterator[Table]:
    """Clusters down, sites across."""
    shares = {
        site: {
            name.removeprefix("share of ").removesuffix(f", {site}"): row["value"]
            for name, row in numbers.items()
            if name.startswith(_SIZES) and name.endswith(f", {site}")
        }
        for site in sites
    }
    clusters = sorted(
        {cluster for part in shares.values() for cluster in part}, key=lambda c: (len(c), c)
    )
    rows = []
    for cluster in clusters:
        cells = [Cell(cluster)]
        for site in sites:
            share = shares[site].get(cluster, 0.0)
            n = 1 if share is None else round(share * numbers[f"patients, {site}"]["value"])
            if share is None or 0 < n < min_count:
                cells += [Cell(f"<{min_count}"), Cell("–")]
            else:
                cells += [Cell(f"{n:,}", n), _cell("share", share)]
        rows.append(cells)
    across = [(f"{site}, {what}", True) for site in sites for what in ("patients", "share")]
    if rows:
        groups, group = ("clusters", "cluster") if len(sites) > 1 else ("classes", "class")
        yield Table(f"Sizes of the {groups}", [(group, False), *across], rows)


def _differences(
    numbers: Mapping[str, Mapping[str, Any]], published: str | None
) -> Iterator[Table]:
    found = {name: row for name, row in numbers.items() if name.startswith(f"{_DIFFERENCE}, ")}
    if not found:
        return
    split = {name: name.split(", ", 3)[1:] for name in found}
    kinds = list(dict.fromkeys(kind for kind, *_ in split.values()))
    several = len({pair for *_, pair in split.values()}) > 1
    keys = ["difference of", "clusters", *(["sites"] if several else [])]
    names = ["value", "95\u00a0% low", "95\u00a0% high", "by chance", published or ""]
    fields = ["value", "low", "high", "chance", *(["published"] if published else [])]
    rows = [
        [
            *(Cell(part) for part in split[name][: len(keys)]),
            *(_cell("", row[field]) for field in fields),
        ]
        for name, row in sorted(found.items(), key=lambda item: kinds.index(split[item[0]][0]))
    ]
    columns = [(key, False) for key in keys] + [
        (n, True) for n, _ in zip(names, fields, strict=False)
    ]
    (pair, *_) = (pair for *_, pair in split.values())
    title = "Differences between sites" if several else f"Differences between sites, {pair}"
    yield Table(f"{title}: norms with intervals", columns, rows, len(keys))


def _cell(name: str, value: float | None) -> Cell:
    if value is None:
        return Cell("–")
    text = percent(value) if name == "share" else number(value)
    return Cell(text, value, f"{value:.6g}".replace("-", "−"))


# --- sections -----------------------------------------------------------------------------


def _sections(content: Mapping[str, Any], folder: Path, dpi: int) -> list[dict[str, Any]]:
    """Sections with their items in groups: those of no view, then a group for each view.

    A figure of the second view has the number of its twin in the first, with an S before it.
    """
    first, *others = content["views"]
    numbers: dict[tuple[str, str, str], int] = {}
    counts = {"figure": 0, "table": 0}

    def numbered(section: str, item: Mapping[str, Any]) -> str:
        kind, twin = item["kind"], (section, item["kind"], item["title"])
        if item.get("view") in others and twin in numbers:
            return f"{kind.capitalize()} S{numbers[twin]}"
        counts[kind] += 1
        numbers[twin] = counts[kind]
        return f"{kind.capitalize()} {counts[kind]}"

    sections = []
    for part in content["sections"]:
        groups: dict[str | None, list[dict[str, Any]]] = {}
        for item in part["items"]:
            file = item["file"] if item["kind"] == "table" else item["data"]
            table = read_table(folder / file, file, item["title"], content["min_count"])
            shown = {**item, "number": numbered(part["id"], item), "table": table}
            if item["kind"] == "figure":
                shown |= _picture(folder / item["file"], dpi)
            groups.setdefault(item.get("view"), []).append(shown)
        order = [None, *(view for view in (first, *others) if view is not None)]
        ordered = [(view, groups[view]) for view in order if view in groups]
        switch = sum(view is not None for view, _ in ordered) > 1
        sections.append({**part, "groups": ordered, "switch": switch})
    return sections


def _picture(path: Path, dpi: int) -> dict[str, Any]:
    """A PNG file as a data URI, with its size on a screen."""
    content = path.read_bytes()
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
    yield Table("Input files", [("file", False), ("bytes", True), ("SHA-256", False)], rows)
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
