"""The effects file: how membership in the clusters depends on covariates at a site.

It has the coefficients of a multinomial logit, their standard errors and correlations, with a
stated precision; the centre pools them over sites. `font.exchange.spec` says what is in the file.

What may leave: a coefficient compares a cluster with the first one. It is withheld, with all others
of its cluster, where in either of the two fewer than `min_count` patients stand behind a column of
the covariates: fewer have another value than the most frequent one, fewer have that value in a
column of two values, or a few extreme values carry the column (its effective number of patients,
(Σ|x − mean|)² / Σ(x − mean)², is smaller). Coefficients are written to a power of ten of at most
half their standard error and standard errors with two digits, so that one patient more or less
rarely changes a written number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import some, whole_number
from font.exchange.parse import Path_, Source, name_of
from font.exchange.privacy import MIN_COUNT
from font.exchange.rules import POSSIBLE, correlation_matrix
from font.exchange.schema import read_file, write_file
from font.exchange.signatures import Keys
from font.types import Floats

_SHRINK = 0.98  # factor of correlations that rounding has pushed beyond what is possible


@dataclass(frozen=True, eq=False)
class EffectsFile:
    """A site's effects of covariates on membership in the clusters.

    Parameters
    ----------
    study, site : str
    of : str
        SHA-256 of the payload of the ensemble or shared file whose clusters these are.
    variables : {name: levels}
        The covariates; None for numbers, else the levels, the first of them the reference.
    table : DataFrame
        `cluster` (from 0, compared with cluster 0), `term`, `estimate` (log-odds), `se`.
    covariance : (p, p)
        Of the estimates, in the order of the rows.
    payload : dict
    data : bytes
        The file, if it was written here.
    """

    study: str
    site: str
    of: str
    variables: dict[str, tuple[str, ...] | None]
    table: pd.DataFrame
    covariance: Floats
    payload: dict[str, Any] = field(repr=False)
    data: bytes = field(repr=False, default=b"")


def support(columns: Floats) -> float:
    """The fewest patients that stand behind a column of covariates (n, q), in one cluster.

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
    *,
    of: str,
    study: str,
    site: str,
    round: int = 1,
    min_count: int = MIN_COUNT,
    software: str = "font",
    created: str | None = None,
    signing_key: Path_ | None = None,
) -> EffectsFile:
    """Write a site's effects, without those that rest on few patients.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    table : DataFrame
        `cluster` (from 0), `term`, `estimate`: log-odds against cluster 0, the same terms in the
        same order for each cluster.
    covariance : (p, p)
    columns : (n, q)
        The covariates as columns, one for each term but the intercept.
    clusters : (n,)
        The cluster of each of these patients.
    variables : {name: levels}
        None for numbers.
    of : SHA-256 of the payload of the ensemble or shared file
    study, site, round, min_count, software, created, signing_key
        As in `font.exchange.files.write_model`.
    """
    whole_number(min_count, 1, "min_count")
    label = np.asarray(clusters)
    behind = {int(k): support(columns[label == k]) for k in np.unique(label)}
    if behind.get(0, 0.0) < min_count:
        raise ValueError(
            f"no effect may leave: in cluster 1, with which the others are compared, fewer than "
            f"{min_count} patients stand behind a covariate; merge rare levels, cut extreme values "
            "or leave the covariate out."
        )
    kept = [k for k in dict.fromkeys(table["cluster"]) if behind.get(int(k), 0.0) >= min_count]
    if not kept:
        raise ValueError(
            f"no effect may leave: in each cluster but the first fewer than {min_count} patients "
            "stand behind a covariate; merge rare levels, cut extreme values or leave it out."
        )
    rows = table["cluster"].isin(kept).to_numpy()
    se = np.sqrt(np.diagonal(covariance))[rows]
    if not (np.isfinite(se) & (se > 0)).all():
        raise ValueError("some effects have no standard error; leave a covariate out.")
    errors = [_two_digits(float(error)) for error in se]
    correlation = covariance[np.ix_(rows, rows)] / np.outer(se, se)
    terms = list(dict.fromkeys(table["term"]))
    payload = {
        "of": of,
        "min_count": int(min_count),
        "variables": [
            {"name": name, "levels": None if levels is None else list(levels)}
            for name, levels in variables.items()
        ],
        "terms": terms,
        "clusters": [int(k) for k in kept],
        "estimates": [
            _to_unit(float(value), _unit(error))
            for value, error in zip(table["estimate"][rows], errors, strict=True)
        ],
        "errors": errors,
        "correlations": _rounded(correlation),
    }
    about: dict[str, Any] = {"study": study, "site": site, "round": round, "software": software}
    _, data = write_file(
        path, "effects", payload, created=created, signing_key=signing_key, **about
    )
    return _file(study, site, payload, data)


def read_effects(
    source: Source,
    *,
    study: str | None = None,
    min_count: int = 1,
    round: int | None = None,
    keys: Keys = None,
) -> EffectsFile:
    """Read a site's effects."""
    rules: dict[str, Any] = {"study": study, "min_count": min_count, "round": round, "keys": keys}
    file = read_file(source, kind="effects", **rules)
    return _file(file.study, file.site, file.payload)


def read_all_effects(sources: Iterable[Source], **rules: Any) -> dict[str, EffectsFile]:
    """The effects files of several sites, which must answer the same file with like covariates."""
    files: dict[str, EffectsFile] = {}
    for source in sources:
        file = read_effects(source, **rules)
        if file.site in files:
            raise ValueError(f"found two effects files of the site {file.site}; give one of each.")
        first = next(iter(files.values()), file)
        if file.of != first.of:
            raise ValueError(
                f"{name_of(source)} is about the clusters of another file than that of "
                f"{first.site}; have both sites use the same ensemble or shared file."
            )
        if file.variables != first.variables:
            raise ValueError(
                f"{name_of(source)} has the covariates {_coding(file)}, but {first.site} has "
                f"{_coding(first)}; have all sites use the same columns and levels."
            )
        files[file.site] = file
    if not files:
        raise ValueError("there are no effects files; give one of each site.")
    return files


def _file(study: str, site: str, payload: dict[str, Any], data: bytes = b"") -> EffectsFile:
    terms, errors = payload["terms"], np.array(payload["errors"])
    table = pd.DataFrame(
        {
            "cluster": np.repeat(payload["clusters"], len(terms)),
            "term": terms * len(payload["clusters"]),
            "estimate": payload["estimates"],
            "se": errors,
        }
    )
    variables = {
        part["name"]: None if part["levels"] is None else tuple(part["levels"])
        for part in payload["variables"]
    }
    covariance = correlation_matrix(len(errors), payload["correlations"]) * np.outer(errors, errors)
    return EffectsFile(study, site, payload["of"], variables, table, covariance, payload, data)


def _coding(file: EffectsFile) -> str:
    return some(
        name if levels is None else f"{name} ({', '.join(levels)})"
        for name, levels in file.variables.items()
    )


def _unit(error: float) -> float:
    """The power of ten of at most half a standard error, to write its estimate with."""
    return 10.0 ** math.floor(math.log10(error / 2))


def _to_unit(value: float, unit: float) -> float:
    return round(value, round(-math.log10(unit)))


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _rounded(correlation: Floats) -> list[float]:
    """Correlations below the diagonal to two decimals, row after row, as a possible matrix."""
    size = len(correlation)
    values = np.round(correlation[np.tril_indices(size, -1)], 2)
    while True:
        if np.linalg.eigvalsh(correlation_matrix(size, values))[0] > POSSIBLE:
            return [float(value) for value in values]
        values = np.trunc(values * _SHRINK * 100) / 100
