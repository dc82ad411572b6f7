"""What follows from the clusters: effects of covariates, outcomes and the time to an event."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.model.outcomes import ThreeStep, three_step
from mmlca.study import site_data
from mmlca.study.groups import cluster_names, with_cluster_names
from mmlca.study.log import report_warnings
from mmlca.study.release import rounding_of
from mmlca.study.words import group_name, groups_word
from mmlca.tables.cluster_chains import cluster_chains, cluster_memberships
from mmlca.tables.cluster_effects import hide_effects, hide_outcomes, one_step_effects
from mmlca.tables.disclosure import few_text, hides, is_small
from mmlca.tables.pooling import inverse_variance
from mmlca.tables.survival import Survival, survival_by_cluster

if TYPE_CHECKING:
    from mmlca.study.analysis import Analysis
    from mmlca.study.settings import Study

_UNESTIMABLE = (InputError, np.linalg.LinAlgError)  # too few patients, or no finite solution
_YEAR = 365.25
_MONTH = _YEAR / 12
_NO_ESTIMATE = (
    "left out: too few patients or events in a group, or no finite solution; the functions of the "
    "library give the reason inside the hospital."
)


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What `find_outcomes` found; parts that a study does not ask for are None.

    Small numbers are hidden in `effects`, `pooled`, `outcomes` and `tests`, and not yet in
    `survival`, which has `shown`. `left_out` are sentences on what could not be estimated.
    """

    effects: pd.DataFrame | None = None
    pooled: pd.DataFrame | None = None
    outcomes: pd.DataFrame | None = None
    tests: pd.DataFrame | None = None
    survival: Survival | None = None
    left_out: list[str] = field(default_factory=list)


def find_outcomes(study: Study, analysis: Analysis, hidden: Mapping[str, pd.DataFrame]) -> Outcomes:
    """Everything of `[covariates]` and `[outcomes]`.

    `hidden` is what `table_one` says of outcomes that it shows too: `hidden_together`.
    """
    sites, notes, parts = analysis.sequences, list[str](), dict[str, Any]()
    if study.covariates.columns or study.outcomes.columns:
        people = {site: site_data.patients_of(study, site, data) for site, data in sites.items()}
        third = _ThirdStep(study, analysis, people, hidden, notes)
        if study.covariates.columns:
            parts["effects"], parts["pooled"] = third.effects()
        if study.outcomes.columns:
            parts["outcomes"], parts["tests"] = third.outcomes()
        for name in {"effects", "pooled", "outcomes", "tests"} & parts.keys():
            parts[name] = with_cluster_names(study, cluster_names(analysis), parts[name])
    if study.outcomes.event is not None:
        parts["survival"] = _named_survival(study, analysis, _survival(study, analysis, notes))
    return Outcomes(**parts, left_out=notes)


def _named_survival(study: Study, analysis: Analysis, found: Survival | None) -> Survival | None:
    if found is None:
        return None
    names, tables = cluster_names(analysis), ("curves", "tests", "hazards", "excluded")
    named: dict[str, Any] = {
        name: with_cluster_names(study, names, getattr(found, name)) for name in tables
    }
    return replace(found, **named)


def _by_site(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    parts = [table.assign(site=site) for site, table in tables.items()]
    frame = pd.concat(parts, ignore_index=True)
    return frame[["site", *(name for name in frame if name != "site")]]


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
