"""What the report shows of models and their fit, put together from the results of sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mmlca.model.outcomes import holm
from mmlca.study.results.patients import ENSEMBLE, OWN
from mmlca.study.results.site import stacked
from mmlca.tables.diagnostics import N_TESTS, Diagnostics, add_up_tests

if TYPE_CHECKING:
    from mmlca.study.results.site import SiteResults

TOGETHER = "all sites"
"""Whose tests are those of the clusters of all sites."""


@dataclass(frozen=True, eq=False)
class Fits:
    """The models of all sites; tables are None where the study or the sites have nothing of it.

    Parameters
    ----------
    models : DataFrame
        How models were fitted, those of resamples first.
    choice : DataFrame or None
        Numbers of classes compared; its column "site" also names resamples.
    parameters, class_tests, stability : DataFrame or None
    diagnostics : {site: Diagnostics}
        Of each site's own model.
    tests : DataFrame or None
        Tests of fit, with those of the clusters of all sites together.
    """

    models: pd.DataFrame
    choice: pd.DataFrame | None
    parameters: pd.DataFrame | None
    class_tests: pd.DataFrame | None
    stability: pd.DataFrame | None
    diagnostics: dict[str, Diagnostics]
    tests: pd.DataFrame | None

    @property
    def own(self) -> pd.DataFrame:
        """Of the models of whole sites, by site."""
        return self.models[self.models["model"] == self.models["site"]].set_index("site")


def fits_of(results: Mapping[str, SiteResults]) -> Fits:
    """The models of all sites.

    Parameters
    ----------
    results : {site: SiteResults}
    """
    models = stacked(results, "models")
    whole_site = models["model"] == models["site"]
    diagnostics = {
        site: _diagnostics(result) for site, result in results.items() if _is_tested(result)
    }
    tests = _tests(results, diagnostics)
    for site, part in diagnostics.items():
        of_site = tests[tests["site"] == site].drop(columns="site").reset_index(drop=True)
        diagnostics[site] = replace(part, tests=of_site)
    return Fits(
        models=pd.concat([models[~whole_site], models[whole_site]], ignore_index=True),
        choice=_choice(results),
        parameters=_known(stacked(results, "parameters")),
        class_tests=_known(stacked(results, "class_tests")),
        stability=_known(stacked(results, "stability")),
        diagnostics=diagnostics,
        tests=_known(tests),
    )


def _known(table: pd.DataFrame) -> pd.DataFrame | None:
    return table if len(table) else None


def _choice(results: Mapping[str, SiteResults]) -> pd.DataFrame | None:
    table = stacked(results, "selection")
    if not len(table):
        return None
    shares = stacked(results, "class_sizes").groupby(["model", "classes"])["share"].agg(list)
    keys = pd.MultiIndex.from_frame(table[["model", "classes"]])
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


def _tests(
    results: Mapping[str, SiteResults], diagnostics: Mapping[str, Diagnostics]
) -> pd.DataFrame:
    """The tests of all models, with p-values adjusted for their number."""
    parts = [part.tests.assign(site=site) for site, part in diagnostics.items()]
    of_clusters = [_tests_of(results[site], ENSEMBLE) for site in diagnostics]
    of_clusters = [pair for pair in of_clusters if len(pair[0])]
    if of_clusters:
        parts.append(add_up_tests(*zip(*of_clusters, strict=True)).assign(site=TOGETHER))
    if not parts:
        return pd.DataFrame(columns=["site"])
    table = pd.concat(parts, ignore_index=True)
    return table.assign(p_holm=holm(table["p_value"].tolist()))
