"""Few digits: many digits of numbers based on all patients would reveal counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from font.ensemble import site_of
from mmlca.model.criteria import CRITERIA, information_criteria
from mmlca.tables.disclosure import EVERYONE, Rounding, few_digits, hides, is_small

if TYPE_CHECKING:
    from mmlca.study.settings import Study

_DECIMALS: dict[str, int] = {
    **dict.fromkeys(("loglik", "bic", "aic", "sabic", "caic", "icl"), 0),
    **dict.fromkeys(("entropy", "smallest", "jaccard", "distance"), 2),
    **dict.fromkeys(("norm", "debiased", "low", "high", "estimate", "difference"), 3),
}
_DIGITS = 3


def round_indices(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """A table whose indices have few digits, since many digits would reveal counts.

    Whole numbers stay as they are; other numbers have at most three digits, and some columns fewer.

    >>> table = pd.DataFrame({"bic": [2232.53434203], "n": [260], "se": [0.123456]})
    >>> round_indices("models", table)
          bic    n     se
    0  2233.0  260  0.123
    """
    if name.startswith(("agreement", "weights", "suggested")):
        return table.round(3)
    table = table.round({column: n for column, n in _DECIMALS.items() if column in table})
    columns = table.select_dtypes("floating")
    return table.assign(**{c: few_digits(columns[c].to_numpy(), _DIGITS) for c in columns})


def shown_indices(study: Study, name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The same where the study hides small numbers, for the table and for the figure of it."""
    return round_indices(name, table) if hides(study.privacy.min_count) else table


def shown_fits(
    table: pd.DataFrame,
    patients: Mapping[str, float],
    min_count: int,
    rounding: Rounding | None = None,
) -> pd.DataFrame:
    """Fits, with few digits and without the shares of classes where the smallest has few patients.

    The shares of all classes add up, so that they show together or not at all. Criteria are those
    of the log-likelihood and the entropy as they are shown, and with a `rounding` of the rounded
    numbers of patients: several criteria that are each rounded by themselves would reveal more
    digits together.
    """
    hidden = hides(min_count)
    if "sizes" in table:
        texts = [_percents(shares, 0 if hidden else 1) for shares in table["sizes"]]
        table = table.assign(sizes=texts)
    if not hidden:
        return table
    names = table["model" if "model" in table else "site"]
    n = names.map(patients).astype(float)
    few = is_small((table["smallest"] * n).round(6), min_count)
    if "sizes" in table:
        table = table.assign(sizes=table["sizes"].mask(few))
    if rounding is None:
        table = _of_shown_likelihood(table, n, n, lambda count, name: count)
    else:
        pairs = zip(n, names, strict=True)
        shown = pd.Series([_rounded_size(rounding, *pair) for pair in pairs], n.index)
        table = table.assign(patients=shown) if "patients" in table else table
        table = _of_shown_likelihood(table, n, shown, partial(_rounded_times, rounding))
    return round_indices("", table.assign(smallest=table["smallest"].mask(few)))


def _rounded_size(rounding: Rounding, n: float, name: str) -> float:
    """The number of patients of a site, or of a resample of it, rounded."""
    site = str(site_of(name))
    return rounding(n, site) if name == site else rounding(n, site, EVERYONE, "resample")


def _rounded_times(rounding: Rounding, count: float, name: str) -> float:
    """The number of observed states of a site, or of a resample of it, rounded."""
    return rounding(count, str(site_of(name)), EVERYONE, "time points", name)


def _of_shown_likelihood(
    table: pd.DataFrame,
    n: pd.Series,
    shown: pd.Series,
    shown_times: Callable[[float, str], float],
) -> pd.DataFrame:
    """Criteria of numbers that are shown beside them: they give no further digit of any of these.

    These are the rounded log-likelihood and entropy, and the numbers of patients (n, as `shown`) or
    of observed states (as `shown_times` gives them) that the criteria count.
    """
    if "loglik" not in table:
        return table
    loglik, p = table["loglik"].round(_DECIMALS["loglik"]), table["parameters"].astype(float)
    exact = np.exp((table["bic"] + 2 * table["loglik"]) / p.where(p > 0)).fillna(n)
    names = table["model" if "model" in table else "site"]
    counted = pd.Series(
        [
            size if abs(count - patients) < 0.5 else shown_times(count, name)
            for count, patients, size, name in zip(exact, n, shown, names, strict=True)
        ],
        table.index,
    ).clip(lower=1)
    entropy = (1 - table["entropy"].round(_DECIMALS["entropy"])) * shown * np.log(table["classes"])
    criteria = information_criteria(loglik, p, counted, entropy)
    return table.assign(loglik=loglik, **{c: criteria[c] for c in CRITERIA if c in table})


def _percents(shares: list[float], digits: int) -> str:
    return " / ".join(f"{100 * share:.{digits}f}" for share in shares)
