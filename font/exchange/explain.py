"""Exchange files in plain words, for whoever signs them off."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from os import PathLike
from typing import Any

from font.exchange.registry import kind_of
from font.exchange.rules import masked_values
from font.exchange.schema import read_file
from font.files import content_policy


def explain(path: str | PathLike[str]) -> str:
    """What an exchange file contains and what it reveals, for whoever signs it off."""
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
    contains, reveals = _WORDS[file.kind](file.payload)
    head = file.model_dump(exclude={"payload"})
    return head | {"contains": contains, "reveals": reveals, "lacks": _LACKS}


def explain_page(path: str | PathLike[str]) -> str:
    """An HTML page: the explanation, then every value in the file."""
    file, about = read_file(path), describe_file(path)
    fields = {name: value for name, value in file.model_dump().items() if value is not None}
    if file.kind == "labels":
        rows = [row.split() for row in file.payload["tables"]]
        fields["payload"] = file.payload | {"tables": rows}
    lists = ""
    for part in ("contains", "reveals"):
        lines = "".join(f"<li>{escape(line)}</li>" for line in about[part])
        lists += f"<h2>It {part}</h2>\n<ul>{lines}</ul>\n"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(content_policy(_STYLE))}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(file.kind)} file of {escape(file.site)}</title>\n"
        f"<style>{_STYLE}</style></head><body>\n<h1>What would leave the site</h1>\n"
        f"<p>{escape(_head(about))}</p>\n{lists}<h2>It does not contain</h2>\n"
        f"<p>{escape(about['lacks'])}</p>\n<p>Checked against the specification; the checksum "
        f"matches. {escape(_signed(about))}</p>\n<h2>Everything in the file</h2>\n"
        f"{_as_html(fields, ())}\n"
        "</body></html>\n"
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
        return "It is not signed: nothing in it tells who sent it."
    return (
        f"It is signed with the key {about['signature']['key']}; compare this with the key that "
        f"{about['site']!r} told you by another way."
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


def _model_words(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    content, unit = payload["model"], payload["min_count"]
    kind = kind_of(content["format"])
    contains, reveals = kind.words(content)
    contains = [f"the model {payload['name']!r}, a {kind.name}", *contains]
    if payload["bic"]:
        tried = ", ".join(str(row["n_classes"]) for row in payload["bic"])
        contains.append(
            f"for {tried} classes, how far the BIC lies above the lowest, in whole numbers"
        )
    return [*contains, _rule(unit)], [*reveals, *_limits(unit)]


def _labels_words(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    n, unit = len(payload["models"]), payload["min_count"]
    cells = sum(map(len, payload["classes"]))
    cells += sum(row.count(" ") + 1 for row in payload["tables"])
    contains = [
        f"the names and fingerprints of {n} models",
        f"for each model how many patients are in each class, and for each of {n * (n - 1) // 2:,} "
        f"pairs of models how many patients have which two labels: {cells:,} counts",
        _rule(unit),
    ]
    reveals = [
        "about how many patients of the site follow which kind of course, as the models see it; "
        "never how many have which combination of more than two labels",
        *_limits(unit),
        f"a patient stands in {n * (n + 1) // 2:,} of the counts; from all of them together such a "
        "person can tell little where there are two models, but much with twenty",
    ]
    return contains, reveals


def _rule(unit: int) -> str:
    return f"no other counts; every count is rounded at random, up or down, to a multiple of {unit}"


def _limits(unit: int) -> list[str]:
    return [
        f"never the size of a group of fewer than {unit}: a count of 0 may stand for up to "
        f"{unit - 1} patients, and a count of {unit} for a single one",
        "to someone who knows every other patient of the site: with each count a slight hint "
        "whether a certain patient is among them, since one patient more changes what is written "
        f"in 1 of {unit} cases",
    ]


def _ensemble_words(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    part = payload["ensemble"]
    shown = ", ".join(part["models"][:8]) + ", …" * (len(part["models"]) > 8)
    contains = [
        f"{len(payload['models'])} models as their sites sent them ({shown})",
        f"their weights and agreement, and how to find the cluster of a patient: "
        f"{len(part['centres'])} clusters",
        f"estimated numbers of patients by cluster and site ({', '.join(part['sites'])})",
    ]
    reveals = [
        "about how large each cluster is at each site, and how well the sites' models agree",
        "no more about patients than the models and labels files it was made of, whose counts were "
        "rounded at random before they left their sites",
    ]
    return contains, reveals


def _sums_words(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    rows, unit = payload["sums"], payload["min_count"]
    contains = [
        f"step {payload['step']} of a refinement: for each of {len(rows)} clusters {len(rows[0])} "
        "sums over the site's patients, from which all sites' clusters are estimated anew",
        f"the mean number of events per patient ({payload['per_patient']:g}) in sums that few "
        "patients stand behind",
        _rule(unit) if unit > 1 else "every sum as it is, not rounded, since min_count is 1",
    ]
    reveals = [
        "about how many patients of the site are in each cluster, and what they do",
        *(_limits(unit) if unit > 1 else ["the exact sums"]),
        "all steps of a refinement round with the same draws, so that several tell little more "
        "than one",
    ]
    return contains, reveals


def _shared_words(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    contains = [
        f"step {payload['step']} of a refinement{', the last' * payload['last']}: for each of "
        f"{len(payload['sums'])} clusters the sums of all sites ({', '.join(payload['sites'])}), "
        "from which the shared model is made",
        "one site's model as it was sent, for its states and prior",
    ]
    reveals = [
        "about how common each course of treatment is at all sites together",
        "no more about patients than the sums files that it was made of",
    ]
    return contains, reveals


def _key_words(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    return [f"the site's public key for the masks of secure sums, {payload['public']}"], [
        "nothing about patients; it lets other sites hide their tables under masks that cancel "
        "with this site's"
    ]


def _masked_words(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    sites, unit = [row["site"] for row in payload["sites"]], payload["min_count"]
    n = len(masked_values(payload["values"]))
    contains = [
        f"{n:,} numbers ({payload['what']}) under masks; every one looks like a number drawn at "
        "random",
        f"the names and public keys of the {len(sites)} sites whose masks cancel in the sum: "
        f"{', '.join(sites)}",
    ]
    reveals = [
        "by itself nothing about patients",
        "together with the files of all these sites: the exact sum of their tables, to the centre; "
        f"what the centre sends on is rounded at random to multiples of at least {unit}",
        "this site's own table, to whoever has the files and the private keys of all other sites",
    ]
    return contains, reveals


def _effects_words(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    shown = ", ".join(str(k + 1) for k in payload["clusters"])
    unit = payload["min_count"]
    contains = [
        f"effects of {', '.join(part['name'] for part in payload['variables'])} on membership in "
        f"the clusters {shown}, as log-odds against cluster 1 with standard errors, rounded at "
        f"random to whole standard errors: {len(payload['estimates'])} effects"
    ]
    reveals = [
        "how much more probable each cluster is for patients who differ in a covariate; roughly, "
        "through the standard errors, how many patients it rests on",
        f"nothing that rests on fewer than {unit} patients of a cluster, with or without a trait",
    ]
    return contains, reveals


_WORDS = {
    "model": _model_words,
    "labels": _labels_words,
    "ensemble": _ensemble_words,
    "sums": _sums_words,
    "shared": _shared_words,
    "key": _key_words,
    "masked": _masked_words,
    "effects": _effects_words,
}


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
