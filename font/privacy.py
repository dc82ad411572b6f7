"""What leaves a site: rare patterns, noise, and files in plain words.

A label pattern that few patients share is a small cell. Before counts leave a site, its rare
patterns are *merged* (counted as the nearest pattern that is common enough) or *withheld*
(left out). Either way the site places all its patients itself in the end.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from html import escape
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.checks import class_parameters, one_of, some, whole_number
from font.labels import LabelPatterns
from font.weights import class_distances

MIN_COUNT = 11
WAYS = ("merge", "withhold")
_BLOCK = 1 << 22


class Released(NamedTuple):
    """What a site may send, and what it kept back.

    Parameters
    ----------
    patterns : LabelPatterns
        Every count is `min_count` or more.
    n_rare : int
        Patients whose own pattern was too rare.
    n_merged : int
        Those of them that are counted as the nearest common pattern; the others are withheld.
    delta : float or None
        With noise: the δ of (ε, δ)-differential privacy.
    """

    patterns: LabelPatterns
    n_rare: int
    n_merged: int
    delta: float | None


def release(
    patterns: LabelPatterns,
    models: Mapping[Any, Any],
    *,
    min_count: int = MIN_COUNT,
    rare: str = "merge",
    epsilon: float | None = None,
    seed: int | None = None,
) -> Released:
    """One site's label patterns without small cells.

    Parameters
    ----------
    patterns : LabelPatterns
        Of one site, with nothing withheld yet.
    models : {name: model}
        Anything with `class_parameters_`, or that array: they say which patterns are near.
    min_count : int
        The smallest count that may leave.
    rare : "merge" or "withhold"
    epsilon : float, optional
        Adds two-sided geometric noise, P(x) ∝ exp(−ε|x|), to every count before the rare ones
        are taken out. A patient has one pattern, so that leaving a patient out changes one
        count by 1: the result is (ε, δ)-differentially private with
        δ = exp(−ε(min_count − 1))/(1 + exp(−ε)), the chance that a pattern of a single patient
        shows. Rare patterns are then withheld, as merging would use the exact counts.
    seed : int, optional
        For the noise. Keep it secret: who knows it can take the noise off.

    Notes
    -----
    Rare patterns are merged unless told otherwise.
    """
    whole_number(min_count, 1, "min_count")
    one_of(rare, WAYS, "rare")
    if len(patterns.sites) != 1:
        raise ValueError(
            f"a site releases its own counts only; found the sites {some(patterns.sites)}."
        )
    if epsilon is not None:
        noisy = add_noise(patterns, epsilon, seed)
        alpha = math.exp(-epsilon)
        delta = alpha ** (min_count - 1) / (1 + alpha)
        n_rare = int(patterns.counts[noisy.counts < min_count].sum())
        return Released(noisy.withhold(min_count), n_rare, 0, delta)
    kept = patterns.withhold(min_count)
    n_rare = patterns.n_patients - kept.n_patients
    if rare == "withhold" or not n_rare or not len(kept):
        return Released(kept, n_rare, 0, None)
    return Released(merge_rare(patterns, models, min_count), n_rare, n_rare, None)


def merge_rare(
    patterns: LabelPatterns, models: Mapping[Any, Any], min_count: int = MIN_COUNT
) -> LabelPatterns:
    """A site's rare patterns, counted as the nearest pattern with at least `min_count` patients.

    The distance between two patterns is the sum over models of the distance between the two
    classes, each model's largest class distance being 1; of equally near patterns the more
    common one is taken.
    """
    names = patterns.models
    absent = [name for name in names if name not in models]
    if absent:
        raise ValueError(f"merging needs the models {some(absent)}; give all that labelled.")
    counts = patterns.counts[:, 0]
    common = counts >= min_count
    order = np.flatnonzero(common)[np.argsort(-counts[common], kind="stable")]
    far = [_unit_distances(models[name], name) for name in names]
    rare = np.flatnonzero(~common)
    merged = np.where(common, counts, 0)
    step = max(1, _BLOCK // max(1, len(order)))
    for start in range(0, len(rare), step):
        rows = rare[start : start + step]
        total = np.zeros((len(rows), len(order)))
        for m, delta in enumerate(far):
            total += delta[np.ix_(patterns.patterns[rows, m], patterns.patterns[order, m])]
        nearest = order[np.argmin(total.round(12), axis=1)]  # the first is the most common
        np.add.at(merged, nearest, counts[rows])
    frame = LabelPatterns(
        names, patterns.sites, patterns.patterns, merged[:, None], patterns.withheld
    )
    return frame.withhold(min_count)


def add_noise(patterns: LabelPatterns, epsilon: float, seed: int | None = None) -> LabelPatterns:
    """Counts plus two-sided geometric noise, P(x) ∝ exp(−ε|x|); below 0 becomes 0."""
    if isinstance(epsilon, bool) or not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a finite number above 0; found {epsilon!r}.")
    rng = np.random.default_rng(seed)
    stop = -math.expm1(-epsilon)
    shape = patterns.counts.shape
    noise = rng.geometric(stop, shape) - rng.geometric(stop, shape)
    counts = np.maximum(patterns.counts + noise, 0)
    return LabelPatterns(
        patterns.models, patterns.sites, patterns.patterns, counts, patterns.withheld
    )


def _unit_distances(model: Any, name: Hashable) -> NDArray[np.float64]:
    delta = class_distances(class_parameters(model, name), "euclidean", name)
    return delta / (delta.max() or 1.0)


# --- files in plain words ----------------------------------------------------------------


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
    from font.exchange import read_file

    file = read_file(path)
    contains, reveals = _WORDS[file.kind](file.payload)
    head = file.model_dump(exclude={"payload"})
    return head | {"contains": contains, "reveals": reveals, "lacks": _LACKS}


def explain_page(path: str | PathLike[str]) -> str:
    """An HTML page: the explanation, then every value in the file."""
    from font.exchange import read_file

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
    model = payload["model"]
    weights, states = model["params"]["weights"], model["states"]
    n, digits = model["n_sequences"], payload["digits"]
    smallest = min(weights) * n
    precision = f"rounded to {digits} decimals" if digits else "not rounded"
    contains = [
        f"the model {payload['name']!r}: {len(weights)} classes over {len(states)} states "
        f"({', '.join(states)})",
        f"its probabilities ({precision}): shares of classes, first states, transitions",
        f"the number of patients ({n:,.0f}) and of observed states ({model['n_timepoints']:,.0f}), "
        "the log-likelihood and how the fit ended",
    ]
    if payload["bic"]:
        tried = ", ".join(str(row["n_classes"]) for row in payload["bic"])
        contains.append(f"the BIC for {tried} classes")
    reveals = [
        "which states occur at the site, how many patients were used, and how common each course "
        "of treatment is",
        f"the smallest class stands for about {smallest:,.0f} patients (at least "
        f"{payload['min_count']} were asked for)",
        "a transition out of a state that few patients of a class ever reach rests on those few: "
        "its probability may tell what they did, though not who they are",
        "who knows all but one of the patients could test whether a certain course was among "
        "them; rounding makes that harder, but proves nothing",
    ]
    return contains, reveals


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
