"""What a third step is given, checked: memberships, assignments, outcomes and covariates."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from font.checks import one_of, some
from font.errors import InputError
from mmlca.model.covariates import complete, learn
from mmlca.model.third_step import Floats

_SUM_TOLERANCE = 1e-3
_FEWEST = 2


def checked_posterior(posterior: Any) -> tuple[Floats, list[Hashable], pd.Index | None]:
    """Probabilities (n, K) that add up to 1, the names of the classes, and ids if there are any."""
    index = labels = None
    if isinstance(posterior, pd.DataFrame):
        index, labels = posterior.index, list(posterior.columns)
        if not index.is_unique:
            twice = index[index.duplicated()].unique()
            raise InputError(
                f"posterior names {len(twice):,} patients more than once ({some(twice)}); give one "
                "row for each."
            )
    try:
        values = np.asarray(posterior, dtype=float)
    except (TypeError, ValueError):
        raise TypeError("posterior must be a table of numbers, patients × classes.") from None
    if values.ndim != 2 or values.shape[1] < 2 or not len(values):
        raise InputError(
            f"posterior must have one row per patient and at least two classes, found the shape "
            f"{values.shape}; give what predict_proba returns."
        )
    sums = values.sum(axis=1)
    bad = ~((values >= 0).all(axis=1) & (np.abs(sums - 1) <= _SUM_TOLERANCE))
    if bad.any():
        raise InputError(
            f"posterior must hold probabilities that add up to 1 for each patient; in {bad.sum():,}"
            f" of {len(values):,} rows they do not (sums {some(sums[bad].round(4))})."
        )
    names = list(range(1, values.shape[1] + 1)) if labels is None else labels
    return values / sums[:, None], names, index


def checked_names(names: Sequence[Hashable], n_classes: int) -> list[Hashable]:
    """One name per class, no two alike."""
    labels = list(names)
    if len(labels) != n_classes or len(set(labels)) != n_classes:
        raise InputError(
            f"names must be {n_classes} different names, one per class; found {some(labels)}."
        )
    return labels


def assignment_table(
    assignment: Any, posterior: Floats, labels: list[Hashable], index: pd.Index | None
) -> Floats:
    """How much each patient is assigned to each class, (n, K)."""
    if isinstance(assignment, str):
        one_of(assignment, ("modal", "proportional"), "assignment")
        if assignment == "proportional":
            return posterior
        code = posterior.argmax(axis=1)
    else:
        values = aligned(assignment, len(posterior), index, "assignment")
        code = pd.Index(labels).get_indexer(values.to_numpy())
        if (code < 0).any():
            raise InputError(
                f"assignment has labels that are not classes of posterior for {(code < 0).sum():,} "
                f"patients ({some(values[code < 0].unique())}); its classes are {some(labels)}."
            )
    table: Floats = np.eye(len(labels))[code]
    return table


def aligned(values: Any, n: int, index: pd.Index | None, what: str) -> pd.Series:
    """One value per patient, by id where both sides have ids, else in order."""
    series = values if isinstance(values, pd.Series) else pd.Series(np.asarray(values))
    if isinstance(values, pd.Series) and index is not None and not series.index.equals(index):
        if not series.index.is_unique:
            raise InputError(f"{what} names a patient more than once; give one value for each.")
        if not series.index.isin(index).any():
            raise InputError(
                f"{what} has no id in common with posterior ({some(series.index)} against "
                f"{some(index)}); index both by the patients' ids."
            )
        return series.reindex(index)
    if len(series) != n:
        raise InputError(
            f"found {len(series):,} values of {what} for {n:,} patients; give one for each, or a "
            "Series indexed by id with a posterior indexed by id."
        )
    return series


class Response(NamedTuple):
    """An outcome: one continuous column, or the indicators of all categories but the first.

    `columns` (n, m) is 0 where the outcome is not `known`; `levels` are the categories.
    """

    columns: Floats
    known: NDArray[np.bool_]
    continuous: bool
    levels: list[Any]


def response(outcome: Any, n: int, index: pd.Index | None) -> Response:
    """The outcome; its type follows from its values."""
    values = aligned(outcome, n, index, "outcome")
    known = values.notna().to_numpy()
    if not known.any():
        raise InputError("the outcome is missing for all patients; give one for some.")
    seen = values[known]
    numeric = is_numeric_dtype(values) and not is_bool_dtype(values)
    if numeric and not seen.isin([0, 1]).all():
        column = values.to_numpy(dtype=float, na_value=np.nan)
        if np.isinf(column).any():
            raise InputError(
                f"the outcome is infinite for {np.isinf(column).sum():,} patients; correct them."
            )
        if np.ptp(column[known]) > 0:
            return Response(np.where(known, column, 0.0)[:, None], known, True, [])
    levels = _levels(seen)
    if len(levels) < 2:
        raise InputError(
            f"the outcome has the single value {some(levels)}, so that there is nothing to compare."
        )
    columns = np.column_stack([(values == level).to_numpy(dtype=bool, na_value=False)
                               for level in levels[1:]])  # fmt: skip
    return Response(columns.astype(float), known, False, levels)


def design(covariates: Any, n: int, index: pd.Index | None) -> tuple[list[str], Floats]:
    """Names of the terms, and their values (n, q); NaN where a covariate is missing.

    Covariates become columns as in `MixtureMarkov.fit`.
    """
    if covariates is None:
        return [], np.zeros((n, 0))
    if isinstance(covariates, pd.Series):
        covariates = covariates.to_frame(covariates.name or "covariate")
    if not isinstance(covariates, pd.DataFrame):
        raise TypeError(
            f"covariates must be a DataFrame with one column each, found "
            f"{type(covariates).__name__}."
        )
    frame = pd.DataFrame(
        {
            str(name): aligned(covariates[name], n, index, f"covariate {name!r}").to_numpy()
            for name in covariates
        }
    )
    if not len(frame.columns):
        raise InputError("covariates is a table without columns; give at least one.")
    known = complete(frame, None)
    if not known.any():
        raise InputError("no patient has all covariates; leave out those that are mostly missing.")
    rules = learn(frame[known], None, np.ones(int(known.sum())))
    table = np.full((n, len(rules.columns) - 1), np.nan)
    table[known] = rules.matrix(frame[known])[:, 1:]
    return rules.columns[1:], table


def _levels(seen: pd.Series) -> list[Any]:
    """The values that occur, in the order of their categories or sorted."""
    if isinstance(seen.dtype, pd.CategoricalDtype):
        return [level for level in seen.cat.categories if (seen == level).any()]
    return sorted(seen.unique().tolist(), key=lambda level: (str(type(level)), level))


def check_sizes(groups: NDArray[np.intp], labels: list[Hashable]) -> None:
    """Every class needs patients with an outcome."""
    size = np.bincount(groups, minlength=len(labels))
    few = [label for label, n in zip(labels, size, strict=True) if n < _FEWEST]
    if few:
        raise InputError(
            f"class {some(few)} {'has' if len(few) == 1 else 'have'} fewer than {_FEWEST} "
            "patients in the third step; use fewer classes, or find the missing outcomes and "
            "covariates."
        )
