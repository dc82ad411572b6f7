"""How certain results are, and what follows from clusters: errors, fit, covariates, outcomes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.model.criteria import OVERLAP
from mmlca.model.inference import OverlapWarning
from mmlca.model.likelihood_ratio import bootstrap_lrt
from mmlca.model.outcomes import ThreeStep, three_step
from mmlca.model.resampling import Bootstrap, bootstrap
from mmlca.study import site_data
from mmlca.study.groups import own_classes, with_cluster_names
from mmlca.study.log import report_warnings
from mmlca.study.processes import Processes
from mmlca.study.release import rounding_of
from mmlca.study.words import group_name, groups_word
from mmlca.tables.cluster_chains import cluster_chains, cluster_memberships
from mmlca.tables.cluster_effects import (
    hide_effects,
    hide_outcomes,
    one_step_effects,
)
from mmlca.tables.describe import state_distribution, transition_counts
from mmlca.tables.diagnostics import (
    N_TESTS,
    Diagnostics,
    adjust_together,
    diagnose,
    diagnose_clusters,
)
from mmlca.tables.disclosure import few_text, hide_parts, hides, is_small, show_counts
from mmlca.tables.pooling import inverse_variance
from mmlca.tables.survival import Survival, survival_by_cluster

if TYPE_CHECKING:
    from mmlca.study.analysis import Analysis
    from mmlca.study.settings import Study

SHARED = "all sites"
"""Whose fit it is, where it is that of the model that the sites share."""
_UNESTIMABLE = (InputError, np.linalg.LinAlgError)  # too few patients, or no finite solution
_YEAR = 365.25
_MONTH = _YEAR / 12
_NO_ESTIMATE = (
    "left out: too few patients or events in a group, or no finite solution; the functions of the "
    "library give the reason inside the hospital."
)


@dataclass(frozen=True, eq=False)
class Inference:
    """What `infer` found; parts that a study does not ask for are empty or None.

    `diagnostics` are those of each site's own model, `shared_fit` those of the model that the sites
    share. Small numbers are hidden in `parameters`, `effects`, `pooled`, `outcomes` and `tests`,
    and not yet in `diagnostics`, `shared_fit` and `survival`, which have `shown`. `left_out` are
    sentences on what could not be estimated.
    """

    parameters: pd.DataFrame | None = None
    class_tests: pd.DataFrame | None = None
    stability: pd.DataFrame | None = None
    diagnostics: dict[str, Diagnostics] = field(default_factory=dict)
    shared_fit: Diagnostics | None = None
    effects: pd.DataFrame | None = None
    pooled: pd.DataFrame | None = None
    outcomes: pd.DataFrame | None = None
    tests: pd.DataFrame | None = None
    survival: Survival | None = None
    left_out: list[str] = field(default_factory=list)


def diagnostics(
    study: Study, analysis: Analysis, processes: Processes
) -> Callable[[], dict[str, Diagnostics]]:
    """How well each site's own model fits, and under `SHARED` the one that they share.

    Once it is called for; empty if it is not wanted.
    """
    rules, sites = study.inference, analysis.sequences
    if not rules.diagnostics:
        return dict
    n_models = len(sites) + (analysis.ensemble is not None)
    n_sim = rules.simulations_for(N_TESTS * n_models)
    settings: dict[str, Any] = {"n_sim": n_sim, "seed": study.seed}
    own = partial(diagnose, **settings)
    tasks = {site: processes.submit(own, analysis.own[site], data) for site, data in sites.items()}
    if analysis.ensemble is not None:
        shared = partial(diagnose_clusters, **settings)
        tasks[SHARED] = processes.submit(shared, sites, analysis.clusters)
    return lambda: adjust_together({name: task() for name, task in tasks.items()})


def infer(
    study: Study,
    analysis: Analysis,
    hidden: Mapping[str, pd.DataFrame],
    diagnosed: Mapping[str, Diagnostics],
) -> Inference:
    """Everything of `[inference]`, `[covariates]` and `[outcomes]`.

    `hidden` is what `table_one` says of outcomes that it shows too: `hidden_together`;
    `diagnosed` comes from `diagnostics`.
    """
    rules, notes = study.inference, list[str]()
    sites, own = analysis.sequences, analysis.own
    parts: dict[str, Any] = {}
    refits: dict[str, Bootstrap] = {}
    if rules.bootstrap:
        refits = {s: bootstrap(own[s], sites[s], rules.bootstrap, study.seed) for s in sites}
    if rules.standard_errors:
        parts["parameters"] = _by_site(
            {s: _parameters(study, own[s], sites[s], refits.get(s)) for s in sites}
        )
    if rules.blrt:
        parts["class_tests"] = _by_site({s: _class_tests(study, own[s], sites[s]) for s in sites})
    if refits:
        found = _by_site({site: result.stability for site, result in refits.items()})
        parts["stability"] = show_counts(
            found.assign(group=found["class"]),
            {"patients": []},
            study.privacy.min_count,
            rounding_of(study, own_classes(analysis)),
            beside=["jaccard", "found_again", "dissolved"],
            adds_up=("patients", ["site"]),
        ).drop(columns="group")
    parts["diagnostics"] = {name: part for name, part in diagnosed.items() if name != SHARED}
    parts["shared_fit"] = diagnosed.get(SHARED)
    if study.covariates.columns or study.outcomes.columns:
        people = {site: site_data.patients_of(study, site, data) for site, data in sites.items()}
        third = _ThirdStep(study, analysis, people, hidden, notes)
        if study.covariates.columns:
            parts["effects"], parts["pooled"] = third.effects()
        if study.outcomes.columns:
            parts["outcomes"], parts["tests"] = third.outcomes()
        for name in {"effects", "pooled", "outcomes", "tests"} & parts.keys():
            parts[name] = with_cluster_names(study, analysis, parts[name])
    if study.outcomes.event is not None:
        parts["survival"] = _named_survival(study, analysis, _survival(study, analysis, notes))
    return Inference(**parts, left_out=notes)


def _named_survival(study: Study, analysis: Analysis, found: Survival | None) -> Survival | None:
    if found is None:
        return None
    tables = ("curves", "tests", "hazards", "excluded")
    named: dict[str, Any] = {
        name: with_cluster_names(study, analysis, getattr(found, name)) for name in tables
    }
    return replace(found, **named)


def _by_site(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    parts = [table.assign(site=site) for site, table in tables.items()]
    frame = pd.concat(parts, ignore_index=True)
    return frame[["site", *(name for name in frame if name != "site")]]


# --- the models' own parameters -------------------------------------------------------------


def uses_refits(study: Study, model: Any) -> bool:
    """Whether the intervals of a model are from the bootstrap: its classes overlap."""
    return study.inference.bootstrap > 0 and model.entropy() < OVERLAP


def _intervals(study: Study, model: Any, data: Any, refits: Bootstrap | None) -> pd.DataFrame:
    """Probabilities with standard errors and limits, on the boundary always the exact ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlapWarning)  # `inference_cautions` says so
        table: pd.DataFrame = model.standard_errors(data)
    if refits is not None and uses_refits(study, model):
        inside, numbers = ~table["boundary"].to_numpy(), ["se", "low", "high"]
        table.loc[inside, numbers] = refits.intervals[numbers].to_numpy()[: len(table)][inside]
    return table


def _parameters(study: Study, model: Any, data: Any, refits: Bootstrap | None) -> pd.DataFrame:
    """Probabilities with their intervals; those based on few patients are blank.

    They are based on the patients assigned to the class who begin in the state, or make the step.
    """
    table = _intervals(study, model, data, refits).drop(columns=["boundary", "note"])
    k, classes = model.params_.n_classes, pd.Series(model.predict(data) + 1, data.ids)
    labels = classes.astype(pd.CategoricalDtype(list(range(1, k + 1))))
    first = state_distribution(data, labels)
    first = first[first["time"] == data.times[0]]
    steps = transition_counts(data, labels)
    size = classes.value_counts().reindex(range(1, k + 1), fill_value=0)
    counts = pd.concat(
        [
            pd.Series(size.to_numpy(float)),
            pd.Series(first["count"].to_numpy(float)),
            pd.Series(steps["patients"].to_numpy(float)),
        ],
        ignore_index=True,
    )
    # nobody assigned is few as well: the number then comes from shares of uncertain patients
    table = table.assign(patients=np.maximum(counts.to_numpy(), 1.0))
    table["set"] = table["class"].where(table["parameter"] != "weight", 0)
    numbers = ["estimate", "se", "low", "high"]
    by = ["parameter", "set", "from"]
    shown = hide_parts(table, by, numbers, study.privacy.min_count, count="patients")
    return shown.drop(columns=["patients", "set"])


def _class_tests(study: Study, model: Any, data: Any) -> pd.DataFrame:
    """Bootstrap tests around the site's number of classes: against one fewer, and one more.

    Where log-likelihoods are shown as whole numbers, the statistic is that of the whole numbers:
    more digits of it would give more digits of them.
    """
    k, rules, rows = model.params_.n_classes, study.inference, []
    for larger in range(max(k, 2), min(k + 1, data.n_distinct) + 1):
        test = bootstrap_lrt(
            data,
            larger,
            rules.blrt,
            study.seed,
            n_jobs=study.n_jobs or -1,
            prior=study.model.reported_prior,
        )
        statistic = test.statistic
        if hides(study.privacy.min_count):
            statistic = 2 * (round(test.loglik + statistic / 2) - round(test.loglik))
        rows.append(
            {
                "classes": larger,
                "against": larger - 1,
                "statistic": float(statistic),
                "p_value": test.p_value,
                "mc_error": test.mc_error,
                "simulations": len(test.simulated),
            }
        )
    names = ["classes", "against", "statistic", "p_value", "mc_error", "simulations"]
    return pd.DataFrame(rows, columns=names)


# --- covariates and outcomes ----------------------------------------------------------------


@dataclass
class _ThirdStep:
    """The third step at each site, or over all of them."""

    study: Study
    analysis: Analysis
    people: dict[str, pd.DataFrame]
    hidden: Mapping[str, pd.DataFrame]
    notes: list[str]

    def __post_init__(self) -> None:
        sites, clusters = self.analysis.sequences, self.analysis.clusters
        names = {c: group_name(self.study, c) for part in clusters.values() for c in part.unique()}
        self.clusters = {site: part.map(names) for site, part in clusters.items()}
        self.memberships = {}
        if self.analysis.ensemble is not None:
            # at convergence: after a few rounds memberships are too sure, and effects too small
            known = cluster_memberships(sites, clusters)
            self.memberships = {s: p.rename(columns=names) for s, p in known.items()}

    def _at_site(self, site: str, correction: Any, **data: Any) -> ThreeStep:
        if self.memberships:
            labels = self.clusters[site]
            return three_step(
                self.memberships[site], correction=correction, assignment=labels, **data
            )
        model, sequences = self.analysis.own[site], self.analysis.sequences[site]
        names = [group_name(self.study, c) for c in model.weights_.index]
        return three_step(model, correction=correction, sequences=sequences, names=names, **data)

    def _note_missing(self, what: str, missing: pd.Series) -> None:
        n, min_count = int(missing.sum()), self.study.privacy.min_count
        if n:
            shown = f"{n:,}"
            if hides(min_count):  # the exact number would reveal what Table 1 hides or rounds
                shown = few_text(min_count) if is_small(n, min_count) else f"at least {min_count}"
            self.notes.append(
                f"Patients who lack {what} are left out of what concerns it ({shown})."
            )

    def effects(self) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
        """Log-odds of each cluster against the first, by site and together."""
        rules, shown = self.study.covariates, {}
        min_count = self.study.privacy.min_count
        for site, people in self.people.items():
            covariates = people[list(rules.columns)]
            clusters = self.clusters[site]
            self._note_missing(f"a covariate at {site}", covariates.isna().any(axis=1))
            try:
                with _warnings_into(self.notes, f"Effects of the covariates at {site}"):
                    table, first = self._effects_at(site, covariates)
                hidden = hide_effects(table, covariates, clusters, first, min_count)
            except _UNESTIMABLE:
                self.notes.append(f"The effects of the covariates at {site} are {_NO_ESTIMATE}")
                continue
            shown[site] = hidden
        if not shown:
            return None, None
        pooled = inverse_variance(shown) if len(shown) > 1 else None
        return _by_site(shown), pooled

    def _effects_at(self, site: str, covariates: pd.DataFrame) -> tuple[pd.DataFrame, Any]:
        """Effects at a site, and the cluster that the others are compared with."""
        rules, sequences = self.study.covariates, self.analysis.sequences
        if rules.method == "one-step":
            order = sorted({c for part in self.analysis.clusters.values() for c in part.unique()})
            labels = [group_name(self.study, c) for c in order]
            result = one_step_effects(
                sequences[site],
                covariates,
                self.clusters[site],
                cluster_chains(sequences, self.analysis.clusters),
                labels,
                prior=self.study.model.reported_prior,
            )
            return result.table, labels[0]
        found = self._at_site(site, rules.correction, covariates=covariates)
        table = pd.DataFrame(found)[["class", "term", "estimate", "se", "low", "high"]]
        return table, found.errors.index[0]

    def outcomes(self) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
        """Every outcome by cluster, all sites together, and the tests."""
        tables, tests = [], []
        sizes = pd.concat(self.clusters.values()).value_counts().to_dict()
        for name in self.study.outcomes.columns:
            missing = pd.concat([people[name].isna() for people in self.people.values()])
            self._note_missing(f"the outcome {name}", missing)
            try:
                with _warnings_into(self.notes, f"Outcome {name}"):
                    found = self._over_sites(name)
                table, test = hide_outcomes(
                    found, sizes, self.study.privacy.min_count, self._hidden_levels(name)
                )
                table = self._rounded(found, table, name)
            except _UNESTIMABLE:
                self.notes.append(f"The outcome {name} is {_NO_ESTIMATE}")
                continue
            tables.append((name, table))
            tests.append((name, test))
        if not tables:
            return None, None
        return _named_first(tables), _named_first(tests)

    def _rounded(self, found: ThreeStep, table: pd.DataFrame, name: str) -> pd.DataFrame:
        """The table of an outcome with rounded numbers of patients and cases, if all are."""
        rounding = rounding_of(self.study, self.clusters)
        if rounding is None:
            return table
        exact = pd.DataFrame(found).rename(columns={"class": "group"})
        clusters, values = (
            pd.concat(list(part))
            for part in (self.clusters.values(), (p[name] for p in self.people.values()))
        )
        levels = {f"share of {level}": level for level in values.dropna().unique()}
        patients, cases = rounding.column(exact, "patients"), []
        for group, term, most in zip(exact["group"], exact["term"], patients, strict=True):
            if term not in levels:
                cases.append(np.nan)
                continue
            ill = (values == levels[term]).to_numpy()
            mine = ill & (clusters == group).to_numpy()
            whole = rounding.named(ill.sum(), rounding.key_of(values.index[ill]))
            key = rounding.key_of(values.index[mine])
            cases.append(rounding.part(mine.sum(), key, most, whole))
        return table.assign(patients=patients, cases=cases)

    def _hidden_levels(self, name: str) -> set[tuple[str, str]]:
        """The clusters and levels of an outcome whose numbers Table 1 hides, or must."""
        mask = self.hidden.get(name)
        if mask is None:
            return set()
        clusters = {c for part in self.analysis.clusters.values() for c in part.unique()}
        named = {group_name(self.study, c, self.analysis.names): c for c in clusters}
        return {
            (group_name(self.study, named[group]), str(level))
            for group in mask
            if group in named
            for level in mask.index[mask[group]]
        }

    def _over_sites(self, name: str) -> ThreeStep:
        correction = self.study.outcomes.correction
        if not self.memberships:
            (site,) = self.people
            return self._at_site(site, correction, outcome=self.people[site][name])
        posterior, labels, outcome = (
            pd.concat({site: part[site] for site in self.people})
            for part in (
                self.memberships,
                self.clusters,
                {site: people[name] for site, people in self.people.items()},
            )
        )
        return three_step(posterior, outcome, correction=correction, assignment=labels)


def _named_first(tables: list[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """Tables below each other, behind the name of their outcome."""
    parts = [table.assign(outcome=name) for name, table in tables]
    frame = pd.concat(parts, ignore_index=True)
    return frame[["outcome", *(column for column in frame if column != "outcome")]]


@contextmanager
def _warnings_into(notes: list[str], what: str) -> Iterator[None]:
    """Warnings for the report become notes on a part of it.

    Other warnings of the libraries are of patients left out, whom the notes count where they may.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        with report_warnings() as texts:
            yield
    notes += [f"{what}: {text}" for text in texts]


# --- survival -------------------------------------------------------------------------------


def _survival(study: Study, analysis: Analysis, notes: list[str]) -> Survival | None:
    """Time from the landmark to the event, over all sites, stratified by site."""
    rules = study.outcomes
    assert rules.event is not None
    frames = {}
    for site, data in analysis.sequences.items():
        known = data.patients
        frame = site_data.event_times(known, rules.event, rules.competing)
        for name in study.covariates.columns:
            frame[f"covariate {name}"] = known[name]
        frames[site] = frame.assign(cluster=analysis.clusters[site], site=site)
    every = pd.concat(frames, ignore_index=True)
    every["cluster"] = every["cluster"].map(lambda cluster: group_name(study, cluster))
    columns = {f"covariate {name}": name for name in study.covariates.columns}
    window = study.rules.max_windows * (
        study.rules.months * _MONTH if study.rules.days is None else study.rules.days
    )
    if rules.landmark is not None and rules.landmark < window / _YEAR - 0.01:
        raise InputError(
            f"outcomes.landmark = {rules.landmark:g} years lies inside the windows that form the "
            f"{groups_word(study)} ({window / _YEAR:.2f} years), so that what happens in them "
            "would count twice; set it to their end or later, or leave it out."
        )
    try:
        with _warnings_into(notes, "Survival"):
            return survival_by_cluster(
                every["time"],
                every["event"],
                every["cluster"],
                window=window / _YEAR,
                landmark=max(rules.landmark or 0.0, window / _YEAR),
                competing=None if rules.competing is None else 2,
                covariates=every[list(columns)].rename(columns=columns) if columns else None,
                strata=every["site"] if len(frames) > 1 else None,
            )
    except _UNESTIMABLE:
        notes.append(f"Survival is {_NO_ESTIMATE}")
        return None
