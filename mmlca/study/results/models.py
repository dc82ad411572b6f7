"""The models of a site: how each was fitted, and how numbers of classes compare.

These numbers concern one site alone and are as the site shows them. Where small numbers are hidden
they have few digits, since many digits of numbers based on all patients would reveal counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.model.inference import information_criteria
from mmlca.model.selection import compare_fits
from mmlca.model.settings import CRITERIA
from mmlca.study.release import DECIMALS, round_indices
from mmlca.study.results.part import Column, Part
from mmlca.tables.disclosure import EVERYONE, Rounding, hides, is_small

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.model.settings import Criterion, SampleSize
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study


def fit_table(models: Mapping[str, MixtureMarkov], labels: pd.DataFrame) -> pd.DataFrame:
    """How each model was fitted, exactly.

    Parameters
    ----------
    models : {name: MixtureMarkov}
    labels : DataFrame, patients × models
        To see which classes are the most likely one of any patient.
    """
    return pd.DataFrame(
        [
            {
                "model": name,
                "patients": model.n_sequences_,
                "classes": len(model.weights_),
                "parameters": model.n_parameters_,
                "loglik": model.loglik_,
                "bic": model.bic(),
                "entropy": model.entropy(),
                "smallest": float(model.params_.weights.min()),
                "replicated": model.n_replicated_,
                "searches": model.n_searches_,
                "converged": model.converged_,
                "all_used": labels[name].nunique() == len(model.weights_),
            }
            for name, model in models.items()
        ]
    )


def comparison(
    fits: Mapping[tuple[str, int], MixtureMarkov], criterion: Criterion, count: SampleSize
) -> pd.DataFrame:
    """Models of different numbers of classes compared, exactly.

    Parameters
    ----------
    fits : {(name, number of classes): MixtureMarkov}
    criterion : the one that chooses
    count : what the criteria count

    Returns
    -------
    DataFrame
        That of `select_n_classes`, with the names in `model` instead of `site`, the numbers of
        `patients`, and `sizes` as lists of shares.
    """
    table = compare_fits(fits, criterion, count).rename(columns={"site": "model"})
    models = [fits[row] for row in zip(table["model"], table["classes"], strict=True)]
    return table.assign(
        patients=[model.n_sequences_ for model in models],
        sizes=[model.params_.weights.tolist() for model in models],
    )


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    min_count, site, rounding = study.privacy.min_count, patients.site, patients.rounding
    tables = {name: pd.DataFrame(columns=list(columns)) for name, columns in PART.tables.items()}
    if patients.fits is not None:
        tables["models"] = shown_fits(patients.fits, site, min_count, rounding)
    if patients.choice is not None:
        choice = shown_fits(patients.choice, site, min_count, rounding)
        tables["selection"] = choice
        tables["class_sizes"] = _class_sizes(choice)
    return tables


def _class_sizes(choice: pd.DataFrame) -> pd.DataFrame:
    rows = [
        (row["model"], row["classes"], k, share)
        for row in choice.to_dict("records")
        for k, share in enumerate(row["sizes"] or (), start=1)
    ]
    return pd.DataFrame(rows, columns=list(PART.tables["class_sizes"]))


# --- few digits ---------------------------------------------------------------------------


def shown_fits(
    table: pd.DataFrame, site: str, min_count: int, rounding: Rounding | None = None
) -> pd.DataFrame:
    """Fits, with few digits and without the shares of classes where the smallest has few patients.

    The shares of all classes add up, so that they show together or not at all. Criteria are those
    of the log-likelihood and the entropy as they are shown, and with a `rounding` of the rounded
    numbers of patients: several criteria that are each rounded by themselves would reveal more
    digits together.

    Parameters
    ----------
    table : DataFrame
        Of `fit_table` or `comparison`.
    site : str
        Models of other names are of resamples of its patients.
    min_count, rounding
    """
    if not hides(min_count):
        return table
    n = table["patients"].astype(float)
    few = is_small((table["smallest"] * n).round(6), min_count)
    if "sizes" in table:
        shares = [[round(x, 2) for x in sizes] for sizes in table["sizes"]]
        table = table.assign(sizes=pd.Series(shares, table.index).where(~few, None))
    if rounding is None:
        table = _of_shown_likelihood(table, n, lambda count, name: count)
    else:
        pairs = zip(n, table["model"], strict=True)
        sizes = [_rounded_size(rounding, site, *pair) for pair in pairs]
        table = table.assign(patients=sizes)
        table = _of_shown_likelihood(table, n, partial(_rounded_times, rounding, site))
    return round_indices("", table.assign(smallest=table["smallest"].mask(few)))


def _rounded_size(rounding: Rounding, site: str, n: float, name: str) -> float:
    """The number of patients of a site, or of a resample of it, rounded."""
    return rounding(n, site) if name == site else rounding(n, site, EVERYONE, "resample")


def _rounded_times(rounding: Rounding, site: str, count: float, name: str) -> float:
    """The number of observed states of a site, or of a resample of it, rounded."""
    return rounding(count, site, EVERYONE, "time points", name)


def _of_shown_likelihood(
    table: pd.DataFrame, n: pd.Series, shown_times: Callable[[float, str], float]
) -> pd.DataFrame:
    """Criteria of numbers that are shown beside them: they give no further digit of any of these.

    These are the rounded log-likelihood and entropy, and the numbers of patients (n, as the table
    has them) or of observed states (as `shown_times` gives them) that the criteria count.
    """
    loglik, p = table["loglik"].round(DECIMALS["loglik"]), table["parameters"].astype(float)
    shown = table["patients"].astype(float)
    exact = np.exp((table["bic"] + 2 * table["loglik"]) / p.where(p > 0)).fillna(n)
    counted = pd.Series(
        [
            size if abs(count - patients) < 0.5 else shown_times(count, name)
            for count, patients, size, name in zip(exact, n, shown, table["model"], strict=True)
        ],
        table.index,
    ).clip(lower=1)
    entropy = (1 - table["entropy"].round(DECIMALS["entropy"])) * shown * np.log(table["classes"])
    criteria = information_criteria(loglik, p, counted, entropy)
    return table.assign(loglik=loglik, **{c: criteria[c] for c in CRITERIA if c in table})


_MODEL = Column("text", "the site, or a resample of its patients (SITE/1)")
_CLASSES = Column("whole", "number of classes")
_FIT = {
    "model": _MODEL,
    "patients": Column("count", "patients that the model was fitted to"),
    "classes": _CLASSES,
    "parameters": Column("whole", "number of free parameters"),
    "loglik": Column("number", "log-likelihood"),
    "bic": Column("number", "Bayesian information criterion"),
    "entropy": Column("number", "entropy R²"),
    "smallest": Column("number", "share of the smallest class"),
    "replicated": Column("whole", "independent searches that reached the maximum"),
    "searches": Column("whole", "independent searches"),
    "converged": Column("flag", "whether the best search converged"),
}
PART = Part(
    {
        "models": {
            **_FIT,
            "all_used": Column("flag", "whether each class is the most likely one of a patient"),
        },
        "selection": {
            **_FIT,
            **{name: Column("number", f"{name.upper()}") for name in CRITERIA if name != "bic"},
            "posterior": Column("number", "mean probability of a patient's own class"),
            "chosen": Column("flag", "whether the criterion chooses this number of classes"),
        },
        "class_sizes": {
            "model": _MODEL,
            "classes": _CLASSES,
            "class": Column("whole", "number of a class, from 1"),
            "share": Column("number", "its share of the patients"),
        },
    },
    make,
)
