"""How well models fit the patients of a site: its own model, and one that begins at the clusters.

The numbers of the site's own model concern one site alone and are as the site shows them; the tests
of the clusters can be added up over sites, and so can the statistics of sequences drawn for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.study.release import round_indices
from mmlca.study.results.part import Column, Part
from mmlca.study.results.patients import ENSEMBLE, OWN
from mmlca.tables.diagnostics import N_TESTS, Diagnostics, diagnose, diagnose_clusters

if TYPE_CHECKING:
    from mmlca.study.results.patients import SitePatients
    from mmlca.study.settings import Study

_RARE = 0.005


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    rules, site, data = study.inference, patients.site, patients.sequences
    tables = {name: pd.DataFrame(columns=list(columns)) for name, columns in PART.tables.items()}
    if not rules.diagnostics or patients.own is None:
        return tables
    several = ENSEMBLE in patients.groups
    n_sim = rules.simulations_for(N_TESTS * (len(study.sites) + several))
    own = diagnose(patients.own, data, n_sim=n_sim, seed=study.seed)
    parts = {OWN: own}
    if several:
        seed = np.random.default_rng([study.seed, *site.encode()])  # another one at each site
        clusters = {site: patients.groups[ENSEMBLE]}
        parts[ENSEMBLE] = diagnose_clusters({site: data}, clusters, n_sim=n_sim, seed=seed)
    shown = {view: part.shown(study.privacy.min_count) for view, part in parts.items()}
    tables |= _tables_of(shown[OWN])
    tables["fit_tests"] = pd.concat(
        [part.tests.assign(view=view) for view, part in shown.items()], ignore_index=True
    )
    tables["fit_draws"] = pd.concat([_draws(view, part) for view, part in shown.items()])
    return tables if patients.rounding is None else _rounded(tables, patients, own)


def _tables_of(own: Diagnostics) -> dict[str, pd.DataFrame]:
    table = own.classification.rename_axis("class").reset_index()
    alike = own.alike if np.isfinite(own.alike) else np.nan
    probable = table.drop(columns="patients")
    return {
        "fit_classes": table[["class", "patients"]].assign(share=own.shares, alike=alike),
        "classification": probable.melt("class", var_name="probable", value_name="probability"),
        "fit_states": own.states.reindex(columns=list(PART.tables["fit_states"])),
        "fit_steps": _common(own.steps).reindex(columns=list(PART.tables["fit_steps"])),
        "fit_stays": own.stays.reindex(columns=list(PART.tables["fit_stays"])),
    }


def _common(steps: pd.DataFrame) -> pd.DataFrame:
    """Transitions that are not both rare and rarely expected; hidden ones stay, blank."""
    rare = (steps["observed"] < _RARE) & (steps["expected"] < _RARE)
    nobody = steps["observed"].isna() & steps["expected"].notna()
    return steps[~rare & ~nobody]


def _draws(view: str, part: Diagnostics) -> pd.DataFrame:
    n_sim = part.n_sim
    columns = {
        "view": view,
        "test": np.tile(part.tests["test"], n_sim),
        "statistic": part.drawn.ravel(),
    }
    return pd.DataFrame(columns)


def _rounded(
    tables: dict[str, pd.DataFrame], patients: SitePatients, own: Diagnostics
) -> dict[str, pd.DataFrame]:
    """The same with rounded counts, and without exact shares, which would reveal more."""
    rounding = patients.rounding_of(patients.own_view)
    assert rounding is not None
    exact = own.classification["patients"]
    sizes = [rounding(n, patients.site, k) for k, n in exact.items()]
    events = [
        patients.count(round(n), "events", test)
        for test, n in zip(tables["fit_tests"]["test"], tables["fit_tests"]["events"], strict=True)
    ]
    blank = {"observed": np.nan, "expected": np.nan}
    rounded = tables | {
        "fit_classes": tables["fit_classes"].assign(patients=sizes),
        "fit_states": tables["fit_states"].assign(**blank),
        "fit_steps": tables["fit_steps"].assign(**blank),
        "fit_tests": tables["fit_tests"].assign(events=events),
    }
    return {name: round_indices(name, table) for name, table in rounded.items()}


_CLASS = Column("whole", "class of the site's own model, from 1")
_VIEW = Column("text", "own (the site's own model) or ensemble (a model that begins at clusters)")
_TEST = Column("text", "what is tested")
_N = Column("number", "sum of the probabilities of the class, where small numbers are shown")
_ASSIGNED = "patients assigned to the class, where small numbers are shown"
_RESIDUALS = {
    "observed": Column("number", "observed share; missing where counts are rounded"),
    "expected": Column("number", "expected share; missing where counts are rounded"),
    "n": _N,
    "residual": Column("number", "their difference in standard errors"),
    "patients": Column("count", _ASSIGNED),
}
_STATE = Column("text", "state")
PART = Part(
    {
        "fit_classes": {
            "class": _CLASS,
            "patients": Column("count", "patients assigned to the class"),
            "share": Column("number", "share of the class in the model"),
            "alike": Column("number", "smallest distance between two classes of the model"),
        },
        "classification": {
            "class": Column("whole", "class that patients are assigned to, from 1"),
            "probable": Column("whole", "another class, or the same"),
            "probability": Column("number", "their mean probability of it"),
        },
        "fit_states": {
            "class": _CLASS,
            "time": Column("text", "window"),
            "state": _STATE,
            **_RESIDUALS,
        },
        "fit_steps": {
            "class": _CLASS,
            "half": Column("text", "half of the time"),
            "from": Column("text", "state before"),
            "to": Column("text", "state after; transitions that are rare everywhere are left out"),
            **_RESIDUALS,
        },
        "fit_stays": {
            "class": _CLASS,
            "state": _STATE,
            "duration": Column("whole", "windows in the state so far"),
            "leaving": Column("number", "share who leave it next"),
            "expected": Column("number", "the same, as the model expects"),
            "n": _N,
            "patients": Column("count", _ASSIGNED),
            "leavers": Column("count", "those who leave"),
            "left_ever": Column("count", "those who leave after any duration"),
            "stayed_ever": Column("count", "those who stay after any duration"),
        },
        "fit_tests": {
            "view": _VIEW,
            "test": _TEST,
            "statistic": Column("number", "of the patients"),
            "typical": Column("number", "mean in sequences drawn from the model"),
            "effect": Column("number", "size of the effect"),
            "p_value": Column("number", "share of drawn sets with a larger statistic"),
            "events": Column("count", "how many events the statistic is about"),
        },
        "fit_draws": {
            "view": _VIEW,
            "test": _TEST,
            "statistic": Column("number", "of a set of sequences drawn from the model"),
        },
    },
    make,
)
