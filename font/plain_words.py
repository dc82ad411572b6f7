"""Exchange files in plain words, for whoever signs them off."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from os import PathLike
from typing import Any

from font.kinds import KINDS, patients_of, variables_of, weights_of
from font.schema import read_file


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
    lists = ""
    for part in ("contains", "reveals"):
        lines = "".join(f"<li>{escape(line)}</li>" for line in about[part])
        lists += f"<h2>It {part}</h2>\n<ul>{lines}</ul>\n"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(file.kind)} file of {escape(file.site)}</title>\n"
        f"<style>{_STYLE}</style></head><body>\n<h1>What would leave the site</h1>\n"
        f"<p>{escape(_head(about))}</p>\n{lists}<h2>It does not contain</h2>\n"
        f"<p>{escape(about['lacks'])}</p>\n<p>Checked against the specification; the checksum "
        f"matches.</p>\n<h2>Everything in the file</h2>\n{_as_html(file.model_dump(), ())}\n"
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
    model, least = payload["model"], payload["min_count"]
    weights, names, n = weights_of(model), variables_of(model), patients_of(model)
    markov = "states" in model
    what, parts = _PARTS[model["format"]]
    precision = f"rounded to {payload['digits']} digits" if payload["digits"] else "not rounded"
    totals = f"the number of patients ({n:,.0f})"
    if markov:
        totals += (
            f" and of observed states ({model['n_timepoints']:,.0f}), the log-likelihood and how "
            "the fit ended"
        )
    contains = [
        f"the model {payload['name']!r}, a {KINDS[model['format']].words}: {len(weights)} classes "
        f"over {len(names)} {what} ({', '.join(names)})",
        f"its parameters ({precision}): shares of classes, {parts}",
        totals,
    ]
    if payload["n_pooled_rows"]:
        contains.append(
            f"{payload['n_pooled_rows']} rows of transitions that rested on fewer than {least} "
            "patients, pooled with one another or replaced by another class's row"
        )
    if payload["bic"]:
        tried = ", ".join(str(row["n_classes"]) for row in payload["bic"])
        contains.append(f"the BIC for {tried} classes")
    reveals = [
        f"the smallest class stands for about {min(weights) * n:,.0f} patients (at least {least} "
        "were asked for)"
    ]
    if "centres" in model or "means" in model:
        reveals += [
            "the averages of each class and, of a mixture, how its patients spread around them",
            "who knows all but one of a class's patients can work that one's values out from the "
            "average; rounding makes that harder, but proves nothing",
        ]
    else:
        reveals += [
            f"which {what} occur at the site, how many patients were used, and how common each "
            + ("course of treatment is" if markov else "answer is in each class"),
            "a small probability times the number of patients may stand for one or two patients: "
            "it tells what they did, though not who they are",
            "who knows all but one of the patients could test whether a certain course was among "
            "them; rounding makes that harder, but proves nothing",
        ]
    if markov and payload["n_pooled_rows"] is None:
        reveals.append(
            "how many patients each row of transitions rests on was not checked: some rows may "
            "tell what a few patients did"
        )
    return contains, reveals


_PARTS = {
    "mmlca model": ("states", "first states, transitions"),
    "font k-means": ("columns", "centres"),
    "font gaussian mixture": ("columns", "means, covariances"),
    "font latent class": ("items", "probabilities of answers"),
}


def _labels_words(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    counts, least = payload["counts"], payload["min_count"]
    contains = [
        f"how many patients have which combination of labels from {len(payload['models'])} "
        f"models: {len(counts):,} combinations of {sum(counts):,} patients",
        f"the smallest count, {min(counts):,}; none may be below {least}",
        "the names and fingerprints of the models",
    ]
    if payload["epsilon"] is not None:
        contains.append(
            f"counts with two-sided geometric noise (ε = {payload['epsilon']:g}); the number left "
            "out is not stated"
        )
    elif payload["rare"] == "merge":
        contains.append("rarer combinations counted as the nearest that is common enough")
    if payload["n_withheld"]:
        contains.append(f"the number of patients left out, at most {payload['n_withheld']:,}")
    reveals = [
        "how many patients of the site follow which kind of course, as the models see it",
        "a count is of a group; it tells of one patient only to someone who knows the labels of "
        "all the others in the group",
        "two files of the same site made at different times differ by the patients who came or "
        "went: do not send a second one for a handful of new patients",
    ]
    return contains, reveals


def _ensemble_words(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    part = payload["ensemble"]
    cells = [c for row in part["cluster_sizes"] for c in row if c]
    contains = [
        f"{len(payload['models'])} models as their sites sent them "
        f"({', '.join(part['models'][:8])}{', …' if len(part['models']) > 8 else ''})",
        f"their weights and agreement, {len(part['centres'])} clusters and the cluster of "
        f"{len(part['patterns']):,} combinations of labels",
        f"the patients by cluster and site ({', '.join(part['sites'])}): {sum(cells):,} in all, "
        f"the smallest number {min(cells):,}",
    ]
    reveals = [
        "how large each cluster is at each site, and how well the sites' models agree",
        "which combinations of labels were common enough at some site, not at which one; sums over "
        "all sites of how often can be worked back from the axes, so that with two sites each may "
        "learn the other's counts",
        "no more about patients than the models and labels files it was made of",
    ]
    return contains, reveals


_WORDS = {"model": _model_words, "labels": _labels_words, "ensemble": _ensemble_words}


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
