"""How well models fit the patients of a site: its own model, and one that begins at the clusters.

The numbers of the site's own model concern one site alone and are as the site shows them; the tests
of the clusters can be added up over sites, and so can the statistics of sequences drawn for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.model.outcomes import holm
from mmlca.sequences.forms import PLAIN
from mmlca.study.release import round_indices
from mmlca.study.results.site import ALL_SITES, ENSEMBLE, OWN, Column, Part, Results, stacked
from mmlca.tables.diagnostics import N_TESTS, Diagnostics, add_up_tests, diagnose, diagnose_clusters

if TYPE_CHECKING:
    from mmlca.study.results.site import SitePatients, SiteResults
    from mmlca.study.settings import Study


_RARE = 0.005


def make(study: Study, patients: SitePatients) -> dict[str, pd.DataFrame]:
    rules, site, data = study.inference, patients.site, patients.sequences
    if not rules.diagnostics or patients.own is None:
        return {}
    several = ENSEMBLE in patients.groups
    n_sim = rules.simulations
    own = diagnose(patients.own, data, n_sim=n_sim, seed=study.seed)
    parts = {OWN: own}
    if several:
        seed = np.random.default_rng([study.seed, *site.encode()])  # another one at each site
        clusters = {site: patients.groups[ENSEMBLE]}
        parts[ENSEMBLE] = diagnose_clusters(
            {site: data}, clusters, form=patients.own.form, n_sim=n_sim, seed=seed
        )
    shown = {view: part.shown(study.privacy.min_count) for view, part in parts.items()}
    tables = _tables_of(shown[OWN])
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
            "bic_gain": Column("number", "improvement of the BIC by richer chains"),
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


# --- all sites together -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fits:
    """The models of all sites; tables are None where the study or the sites have nothing of it.

    Parameters
    ----------
    models : DataFrame
        How models were fitted, those of resamples first.
    choice : DataFrame or None
        Numbers of classes compared; its column "site" also names resamples.
    parameters, class_tests, choices, stability : DataFrame or None
    diagnostics : {site: Diagnostics}
        Of each site's own model.
    tests : DataFrame or None
        Tests of fit, with those of the clusters of all sites together.
    """

    models: pd.DataFrame
    choice: pd.DataFrame | None
    parameters: pd.DataFrame | None
    class_tests: pd.DataFrame | None
    choices: pd.DataFrame | None
    stability: pd.DataFrame | None
    diagnostics: dict[str, Diagnostics]
    tests: pd.DataFrame | None

    @property
    def form(self) -> str:
        """The form of the chains of all models, in words."""
        return str(self.models["form"].iloc[0]) if len(self.models) else PLAIN.title

    @property
    def own(self) -> pd.DataFrame:
        """Of the models of whole sites, by site."""
        return self.models[self.models["model"] == self.models["site"]].set_index("site")


def fits_of(results: Results) -> Fits:
    """The models of all sites."""
    models = stacked(results, "models")
    whole_site = models["model"] == models["site"]
    diagnostics = {
        site: _diagnostics(result) for site, result in results.items() if _is_tested(result)
    }
    tests = _all_tests(results, diagnostics)
    for site, part in diagnostics.items():
        of_site = tests[tests["site"] == site].drop(columns="site").reset_index(drop=True)
        diagnostics[site] = replace(part, tests=of_site)
    return Fits(
        models=pd.concat([models[~whole_site], models[whole_site]], ignore_index=True),
        choice=_choice(results),
        parameters=_known(stacked(results, "parameters")),
        class_tests=_known(stacked(results, "class_tests")),
        choices=_known(stacked(results, "choices")),
        stability=_known(stacked(results, "stability")),
        diagnostics=diagnostics,
        tests=_known(tests),
    )


def _known(table: pd.DataFrame) -> pd.DataFrame | None:
    return table if len(table) else None


def _choice(results: Results) -> pd.DataFrame | None:
    table = stacked(results, "selection")
    if not len(table):
        return None
    by = ["model", "form", "classes"]
    shares = stacked(results, "class_sizes").groupby(by)["share"].agg(list)
    keys = pd.MultiIndex.from_frame(table[by])
    sites = table["model"] == table["site"]
    table = table.assign(site=table["model"], sizes=shares.reindex(keys).to_numpy())
    return pd.concat([table[sites], table[~sites]], ignore_index=True).drop(columns="model")


# --- diagnostics --------------------------------------------------------------------------


def _is_tested(result: SiteResults) -> bool:
    return len(result.tables["fit_tests"]) > 0


def _diagnostics(result: SiteResults) -> Diagnostics:
    """Those of the site's own model, as `Diagnostics.shown` gives them."""
    tables = result.tables
    classes = tables["fit_classes"].astype({"class": int}).set_index("class")
    probable = tables["classification"].astype({"class": int, "probable": int})
    classification = probable.pivot(index="class", columns="probable", values="probability")
    classification.insert(0, "patients", classes["patients"])
    tests, drawn = _tests_of(result, OWN)
    return Diagnostics(
        classification=classification.rename_axis("assigned"),
        states=_without_empty(tables["fit_states"]),
        steps=_without_empty(tables["fit_steps"]),
        stays=_without_empty(tables["fit_stays"]),
        tests=tests,
        alike=float(classes["alike"].iloc[0]),
        shares=classes["share"].to_numpy(),
        drawn=drawn,
    )


def _without_empty(table: pd.DataFrame) -> pd.DataFrame:
    """A table without numbers that the site does not show at all; classes are whole."""
    return table.dropna(axis=1, how="all").astype({"class": int})


def _tests_of(result: SiteResults, view: str) -> tuple[pd.DataFrame, np.ndarray]:
    """The tests of a model, and the statistics of sequences drawn from it, (n_sim, tests)."""
    tests, draws = (
        table[table["view"] == view].drop(columns="view").reset_index(drop=True)
        for table in (result.tables["fit_tests"], result.tables["fit_draws"])
    )
    return tests, draws["statistic"].to_numpy().reshape(-1, N_TESTS)


def _all_tests(results: Results, diagnostics: Mapping[str, Diagnostics]) -> pd.DataFrame:
    """The tests of all models, with p-values adjusted for the number of tests of a model."""
    parts = [part.tests.assign(site=site) for site, part in diagnostics.items()]
    of_clusters = [_tests_of(results[site], ENSEMBLE) for site in diagnostics]
    of_clusters = [pair for pair in of_clusters if len(pair[0])]
    if of_clusters:
        parts.append(add_up_tests(*zip(*of_clusters, strict=True)).assign(site=ALL_SITES))
    if not parts:
        return pd.DataFrame(columns=["site"])
    table = pd.concat(parts, ignore_index=True)
    by_site = table.groupby("site", sort=False)["p_value"]
    return table.assign(p_holm=by_site.transform(lambda values: holm(values.tolist())))
