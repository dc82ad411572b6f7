"""The *effects* message, site → centre: how membership in the clusters depends on covariates.

It has the coefficients of a multinomial logit but for the intercepts, and their standard errors,
rounded at random; the centre pools the files of all sites by inverse variance. The payload is:

=================== =========================================================================
of                  SHA-256 of the payload of the ensemble or shared file whose clusters these are
min_count           in every cluster of the file at least so many patients contribute to each
                    column of the covariates
variables           list of {name, levels}: levels is null for numbers, otherwise the levels in
                    order, the first of them the reference
terms               names of the columns, without the intercept
clusters            clusters, from 0, that are compared with cluster 0; those that may not be
                    shown are absent
estimates           log-odds, for each cluster those of all terms, each rounded at random to a
                    multiple of its standard error
errors              standard errors, rounded at random to 1, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9,
                    4.7, 5.6, 6.8 or 8.2 times a power of ten; with what rounding adds
=================== =========================================================================

What may leave: a coefficient compares a cluster with the first one. It is withheld, with all others
of its cluster, where in either of the two fewer than `min_count` patients contribute to a column
of the covariates: fewer have another value than the most frequent one, fewer have that value in a
column of two values, or a few extreme values carry the column (its effective number of patients,
(Σ|x − mean|)² / Σ(x − mean)², is smaller). A standard error is rounded to one of twelve values per
power of ten, and a coefficient to a multiple of it, up or down at random so that the average is
right, with draws from the site's ledger. The standard error that is written includes what this
adds: it is larger than that of the estimate by 10 %.

Notes
-----
Someone who knows the clusters and covariates of all patients, and of one patient all but the sex,
finds that out from the file with the areas under the curve below (three clusters, age and sex, the
best test, means of 24 patients). Where numbers were rounded to the nearest (coefficients to a power
of ten of at most half a standard error, standard errors to two digits) and correlations left too,
to two decimals, the file was another one for the other sex in the shares of cases in the last row,
and the sex could be read off with certainty.

===================================== ===== ===== ===== =====
patients                              120   300   600   2,000
===================================== ===== ===== ===== =====
area under the curve                  0.66  0.58  0.58  0.54
rounded to the nearest: read exactly  1.00  0.97  0.90  0.90
===================================== ===== ===== ===== =====
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from font.checks import Floats, some, whole_number
from font.errors import InputError
from font.exchange.disclosure import MIN_COUNT, Draws, SecretDraws
from font.exchange.envelope import read_file, write_file
from font.exchange.fields import (
    MOST_CLASSES,
    Hash,
    Label,
    Least,
    Number,
    Strict,
    misfit,
    size,
)
from font.exchange.header import Header
from font.exchange.parse import Path_, Source, name_of
from font.exchange.registry import Message

# the standard errors that a file may have: twelve for each power of ten, in about equal ratios
ERRORS = np.array(
    [
        float(f"{digits}e{power}")
        for power in range(-6, 5)
        for digits in (1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2)
    ]
)
_ADDED = 6 / 5  # rounding at random to multiples of s adds s²/6: 6/5 of a variance has room for it
MOST_TERMS, MOST_EFFECTS = 50, 300  # of an effects file
Effect = Annotated[Number, Field(ge=-1e6, le=1e6)]
EffectError = Annotated[Number, Field(ge=1e-6, le=1e6)]


class VariablePart(Strict):
    """A covariate: a number, or levels of which the first is the reference."""

    name: Label
    levels: Annotated[list[Label], size(2, MOST_CLASSES)] | None


class EffectsPayload(Strict):
    """A site's effects of covariates on membership in the clusters."""

    of: Hash
    min_count: Least
    variables: Annotated[list[VariablePart], size(1, MOST_TERMS)]
    terms: Annotated[list[Label], size(1, MOST_TERMS)]
    clusters: Annotated[
        list[Annotated[int, Field(ge=1, lt=MOST_CLASSES)]],
        size(1, MOST_CLASSES),
    ]
    estimates: Annotated[list[Effect], size(1, MOST_EFFECTS)]
    errors: Annotated[list[EffectError], size(1, MOST_EFFECTS)]


@dataclass(frozen=True, eq=False)
class EffectsFile:
    """A site's effects of covariates on membership in the clusters.

    Parameters
    ----------
    study, site : str
    of : str
        SHA-256 of the payload of the ensemble or shared file whose clusters these are.
    variables : {name: levels}
        The covariates; None for numbers, otherwise the levels, the first of them the reference.
    table : DataFrame
        `cluster` (from 0, compared with cluster 0), `term`, `estimate` (log-odds), `se`.
    payload : dict
    data : bytes
        The file, if it was written here.
    """

    study: str
    site: str
    of: str
    variables: dict[str, tuple[str, ...] | None]
    table: pd.DataFrame
    payload: dict[str, Any] = field(repr=False)
    data: bytes = field(repr=False, default=b"")


def support(columns: Floats) -> float:
    """The fewest patients that contribute to a column of covariates (n, q), in one cluster.

    Examples
    --------
    >>> support(np.array([[0.0], [0.0], [0.0], [1.0]]))
    1.0
    >>> round(support(np.append(np.zeros(99) + np.arange(99) / 99, 1e6)[:, None]), 1)
    4.0
    """
    fewest = float(len(columns))
    for column in columns.T:
        values, counts = np.unique(column, return_counts=True)
        fewest = min(fewest, float(len(column) - counts.max()))
        if len(values) == 2:
            fewest = min(fewest, float(counts.min()))
        away = np.abs(column - column.mean())
        if away.any():
            fewest = min(fewest, float(away.sum() ** 2 / (away**2).sum()))
    return fewest


def write_effects(
    path: Path_ | None,
    table: pd.DataFrame,
    covariance: Floats,
    columns: Floats,
    clusters: NDArray[np.intp],
    variables: Mapping[str, Sequence[str] | None],
    header: Header,
    *,
    of: str,
    min_count: int = MIN_COUNT,
    draws: Draws | None = None,
) -> EffectsFile:
    """Write a site's effects, without those based on few patients.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    table : DataFrame
        `cluster` (from 0), `term`, `estimate`: log-odds against cluster 0, the same terms in the
        same order for each cluster, the intercept first.
    covariance : (p, p)
    columns : (n, q)
        The covariates as columns, one for each term but the intercept.
    clusters : (n,)
        The cluster of each of these patients.
    variables : {name: levels}
        None for numbers.
    of : SHA-256 of the payload of the ensemble or shared file
    header, min_count, draws
        As in `font.write_model`.
    """
    whole_number(min_count, 1, "min_count")
    label = np.asarray(clusters)
    fewest = {int(k): support(columns[label == k]) for k in np.unique(label)}
    if fewest.get(0, 0.0) < min_count:
        raise InputError(
            "no effect may leave: in cluster 1, with which the others are compared, fewer than "
            f"{min_count} patients contribute to a covariate; merge rare levels, cut extreme "
            "values or leave the covariate out."
        )
    kept = [k for k in dict.fromkeys(table["cluster"]) if fewest.get(int(k), 0.0) >= min_count]
    if not kept:
        raise InputError(
            f"no effect may leave: in each cluster but the first fewer than {min_count} patients "
            "contribute to a covariate; merge rare levels, cut extreme values or leave it out."
        )
    terms = list(dict.fromkeys(table["term"]))[1:]
    rows = (table["cluster"].isin(kept) & table["term"].isin(terms)).to_numpy()
    se = np.sqrt(np.diagonal(covariance))[rows]
    if not (np.isfinite(se) & (se > 0)).all():
        raise InputError("some effects have no standard error; leave a covariate out.")
    # a cluster and a term have the same draws whichever others leave
    uniform = (draws or SecretDraws()).random((2, MOST_CLASSES, MOST_TERMS))
    uniform = uniform[:, kept, : len(terms)].reshape(2, -1)
    errors = _round_errors(np.sqrt(_ADDED) * se, uniform[0])
    multiples = table["estimate"][rows].to_numpy() / errors
    multiples = np.floor(multiples) + (uniform[1] < multiples - np.floor(multiples))
    payload = {
        "of": of,
        "min_count": int(min_count),
        "variables": [
            {"name": name, "levels": None if levels is None else list(levels)}
            for name, levels in variables.items()
        ],
        "terms": terms,
        "clusters": [int(k) for k in kept],
        "estimates": [float(f"{value:.10g}") for value in multiples * errors],
        "errors": errors.tolist(),
    }
    file, data = write_file(path, "effects", payload, header)
    return _effects_file(file.study, file.site, file.payload, data)


def read_effects(
    source: Source, header: Header | None = None, *, min_count: int = 1
) -> EffectsFile:
    """Read a site's effects; the arguments are those of `read_file`."""
    file = read_file(source, header, kind="effects", min_count=min_count)
    return _effects_file(file.study, file.site, file.payload)


def read_all_effects(
    sources: Iterable[Source], header: Header | None = None, *, min_count: int = 1
) -> dict[str, EffectsFile]:
    """The effects files of several sites, which must answer the same file with like covariates."""
    files: dict[str, EffectsFile] = {}
    for source in sources:
        file = read_effects(source, header, min_count=min_count)
        if file.site in files:
            raise InputError(f"found two effects files of the site {file.site}; give one of each.")
        first = next(iter(files.values()), file)
        if file.of != first.of:
            raise InputError(
                f"{name_of(source)} is about the clusters of another file than that of "
                f"{first.site}; have both sites use the same ensemble or shared file."
            )
        if file.variables != first.variables:
            raise InputError(
                f"{name_of(source)} has the covariates {_coding(file)}, but {first.site} has "
                f"{_coding(first)}; have all sites use the same columns and levels."
            )
        files[file.site] = file
    if not files:
        raise InputError("there are no effects files; give one of each site.")
    return files


def _effects_file(study: str, site: str, payload: dict[str, Any], data: bytes = b"") -> EffectsFile:
    terms = payload["terms"]
    table = pd.DataFrame(
        {
            "cluster": np.repeat(payload["clusters"], len(terms)),
            "term": terms * len(payload["clusters"]),
            "estimate": payload["estimates"],
            "se": payload["errors"],
        }
    )
    variables = {
        part["name"]: None if part["levels"] is None else tuple(part["levels"])
        for part in payload["variables"]
    }
    return EffectsFile(study, site, payload["of"], variables, table, payload, data)


def _coding(file: EffectsFile) -> str:
    return some(
        name if levels is None else f"{name} ({', '.join(levels)})"
        for name, levels in file.variables.items()
    )


def _round_errors(values: Floats, uniform: Floats) -> Floats:
    """Each standard error as one of its two neighbours in `ERRORS`, right on average."""
    below = np.searchsorted(ERRORS, values, side="right") - 1
    if (below < 0).any() or (below >= len(ERRORS) - 1).any():
        raise InputError(
            "a standard error is too small or too large to be written; use other units for the "
            "covariates."
        )
    low, high = ERRORS[below], ERRORS[below + 1]
    return np.where(uniform < (values - low) / (high - low), high, low)


def _check(payload: Mapping[str, Any], site: str, origin: str) -> None:
    names = [part["name"] for part in payload["variables"]]
    for part in (names, payload["terms"], payload["clusters"]):
        if len(set(part)) != len(part):
            raise misfit(origin, f"it names {some(part)} with repeats")
    size = len(payload["terms"]) * len(payload["clusters"])
    for part in ("estimates", "errors"):
        if len(payload[part]) != size:
            raise misfit(origin, f"it has {len(payload[part]):,} {part} instead of {size:,}")
    for value, error in zip(payload["estimates"], payload["errors"], strict=True):
        if error not in ERRORS:
            raise misfit(origin, f"the standard error {error:g} may not be written")
        if abs(value / error) > 1e9 or abs(value / error - round(value / error)) > 1e-6:
            raise misfit(origin, f"the effect {value:g} is not a multiple of its error {error:g}")


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    shown = ", ".join(str(k + 1) for k in payload["clusters"])
    unit = payload["min_count"]
    contains = [
        f"effects of {', '.join(part['name'] for part in payload['variables'])} on membership in "
        f"the clusters {shown}, as log-odds against cluster 1 with standard errors, rounded at "
        f"random to whole standard errors: {len(payload['estimates'])} effects"
    ]
    reveals = [
        "how much more probable each cluster is for patients who differ in a covariate; roughly, "
        "through the standard errors, how many patients it is based on",
        f"nothing based on fewer than {unit} patients of a cluster, with or without a trait",
    ]
    return contains, reveals


MESSAGE = Message(payload=EffectsPayload, explain=_explain, check=_check)
