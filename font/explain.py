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
        f"{about['kind'].capitalize()} file of the site {about['site']!r} in the study "
        f"{about['study']!r}, written on {about['created']} by {about['software']}.",
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
    file = read_file(path)
    text = escape(explain(path))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(file.kind)} file of {escape(file.site)}</title>\n<style>"
        "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "pre{white-space:pre-wrap;font:inherit}table{border-collapse:collapse;margin:.2rem 0}"
        "td,th{border:1px solid #bbb;padding:.1rem .5rem;text-align:left;vertical-align:top;"
        "font-variant-numeric:tabular-nums}</style></head><body>\n"
        f"<h1>What would leave the site</h1>\n<pre>{text}</pre>\n<h2>Everything in the file</h2>\n"
        f"{_as_html(file.model_dump())}\n</body></html>\n"
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


def _as_html(value: Any) -> str:
    """Any JSON value as nested tables."""
    if isinstance(value, Mapping):
        rows = (
            f"<tr><th>{escape(str(k))}</th><td>{_as_html(v)}</td></tr>" for k, v in value.items()
        )
        return f"<table>{''.join(rows)}</table>"
    if isinstance(value, list) and any(isinstance(part, (list, Mapping)) for part in value):
        if all(isinstance(part, list) and not _nested(part) for part in value):
            rows = (
                "<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in part) + "</tr>"
                for part in value
            )
            return f"<table>{''.join(rows)}</table>"
        return "".join(f"<div>{_as_html(part)}</div>" for part in value)
    if isinstance(value, list):
        return escape(", ".join(map(str, value)))
    return "–" if value is None else escape(str(value))


def _nested(value: list[Any]) -> bool:
    return any(isinstance(part, (list, Mapping)) for part in value)
