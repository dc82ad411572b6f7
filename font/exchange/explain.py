"""Exchange files in words: their specification, and one file for the person who signs it off."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from html import escape
from os import PathLike
from typing import Any

from font.exchange import envelope
from font.exchange.envelope import Envelope, read_file
from font.exchange.registry import KINDS, all_families, message_of, message_specifications
from font.files import content_policy


def explain(path: str | PathLike[str]) -> str:
    """What an exchange file contains and what it reveals, for the person who signs it off."""
    about = describe_file(path)
    lines = [
        _head(about),
        "",
        "It contains:",
        *(f"- {line}" for line in about["contains"]),
        "",
        "It reveals:",
        *(f"- {line}" for line in about["reveals"]),
        "",
        "It does not contain: " + about["lacks"],
        "",
        f"Checked against the specification; the checksum matches ({about['sha256'][:16]}…).",
        _signed(about),
    ]
    return "\n".join(lines)


def describe_file(path: str | PathLike[str]) -> dict[str, Any]:
    """The same as `explain`, for machines: texts, numbers and lists."""
    file = read_file(path)
    contains, reveals = message_of(file.kind).explain(file.payload)
    head = file.model_dump(exclude={"payload"})
    return head | {"contains": contains, "reveals": reveals, "lacks": _LACKS}


def explain_page(*paths: str | PathLike[str]) -> str:
    """An HTML page: for each file the explanation, then every value in it."""
    parts = "".join(map(_file_in_html, paths))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(content_policy(_STYLE))}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>What would leave the site</title>\n<style>{_STYLE}</style></head><body>\n"
        f"<h1>What would leave the site</h1>\n{parts}</body></html>\n"
    )


def _file_in_html(path: str | PathLike[str]) -> str:
    file, about = read_file(path), describe_file(path)
    fields = {name: value for name, value in file.model_dump().items() if value is not None}
    fields["payload"] = message_of(file.kind).shown(file.payload)
    lists = ""
    for part in ("contains", "reveals"):
        lines = "".join(f"<li>{escape(line)}</li>" for line in about[part])
        lists += f"<h2>It {part}</h2>\n<ul>{lines}</ul>\n"
    return (
        f"<p>{escape(_head(about))}</p>\n{lists}<h2>It does not contain</h2>\n"
        f"<p>{escape(about['lacks'])}</p>\n<p>Checked against the specification; the checksum "
        f"matches. {escape(_signed(about))}</p>\n<h2>Everything in the file</h2>\n"
        f"{_as_html(fields, ())}\n"
    )


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1a1a1a;background:#fff}"
    "h1,h2,h3{line-height:1.25}h3{font-size:1rem;margin:1.4rem 0 .3rem;overflow-wrap:anywhere;"
    "color:#234}li{margin:.25rem 0}p{overflow-wrap:anywhere}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:.875rem;"
    "font-variant-numeric:tabular-nums}"
    "td,th{border:1px solid #999;padding:.15rem .5rem;text-align:left;vertical-align:top}"
    "th{background:#f0f2f5;font-weight:600}.one td{overflow-wrap:anywhere}"
)


def _signed(about: Mapping[str, Any]) -> str:
    if about["signature"] is None:
        return "It is not signed: nothing in it shows who sent it."
    return (
        f"It is signed with the key {about['signature']['key']}; compare this with the key that "
        f"{about['site']!r} gave you separately, for example by telephone."
    )


def _head(about: Mapping[str, Any]) -> str:
    return (
        f"{about['kind'].capitalize()} file of the site {about['site']!r} in the study "
        f"{about['study']!r}, written on {about['created']} by {about['software']}."
    )


_LACKS = (
    "patient ids, dates of patients, single patients' sequences or labels; the one date is the "
    "day of writing."
)


def _as_html(value: Any, path: tuple[Any, ...]) -> str:
    """Any JSON value as headed tables; headings say where in the file it stands."""
    head = f"<h3>{escape(' › '.join(map(str, path)))}</h3>\n" if path else ""
    if isinstance(value, Mapping):
        plain = {k: v for k, v in value.items() if not isinstance(v, (list, Mapping))}
        rows = "".join(f"<tr><th>{_cell(k)}</th><td>{_cell(v)}</td></tr>" for k, v in plain.items())
        parts = [_as_html(v, (*path, k)) for k, v in value.items() if k not in plain]
        return (f'{head}<table class="one">{rows}</table>\n' if rows else "") + "\n".join(parts)
    if not any(isinstance(part, (list, Mapping)) for part in value):
        return f"{head}<p>{escape(', '.join(map(str, value))) or '–'}</p>"
    if all(isinstance(part, list) and not _nested(part) for part in value):
        return head + _table([[i, *part] for i, part in enumerate(value)], None)
    columns = list(value[0])
    if all(isinstance(v, Mapping) and list(v) == columns and not _nested(v) for v in value):
        return head + _table([[v[name] for name in columns] for v in value], columns)
    return "\n".join(_as_html(part, (*path, i)) for i, part in enumerate(value))


def _table(rows: list[list[Any]], columns: list[str] | None) -> str:
    top = "" if columns is None else f"<tr>{''.join(f'<th>{_cell(c)}</th>' for c in columns)}</tr>"
    mark = "th" if columns is None else "td"  # without names, rows are numbered
    body = "".join(
        f"<tr><{mark}>{_cell(row[0])}</{mark}>{''.join(f'<td>{_cell(v)}</td>' for v in row[1:])}"
        "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>{top}{body}</table></div>'


def _cell(value: Any) -> str:
    return "–" if value is None else escape(str(value))


def _nested(value: Any) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value
    return any(isinstance(part, (list, Mapping)) for part in parts)


# --- the specification ------------------------------------------------------------------------


def specification() -> str:
    """The whole specification: of every file, of each message and of each family of models."""
    modules = dict.fromkeys(inspect.getmodule(family.write) for family in all_families().values())
    texts = [
        envelope.__doc__,
        *message_specifications(),
        *map(inspect.getdoc, modules),
    ]
    return "\n\n".join((text or "").strip() for text in texts) + "\n"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of each message, {"model": …, "labels": …, "ensemble": …, …}.

    The content of each registered family of models is in "models".
    """
    schemas: dict[str, Any] = {}
    for kind in KINDS:
        schema = Envelope.model_json_schema()
        inner = message_of(kind).payload.model_json_schema(ref_template="#/$defs/{model}")
        schema["$defs"] = schema.get("$defs", {}) | inner.pop("$defs", {})
        schema["properties"] |= {"payload": inner, "kind": {"const": kind}}
        schemas[kind] = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
    schemas["models"] = {
        format: family.schema.model_json_schema() for format, family in all_families().items()
    }
    return schemas
