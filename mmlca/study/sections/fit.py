"""The items of the report on how sure the results are: fit, covariates, outcomes, survival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
from scipy.special import ndtr, ndtri

from mmlca.figures.diagnostics import plot_residuals, plot_stays
from mmlca.figures.effects import plot_effects
from mmlca.figures.survival import plot_survival
from mmlca.figures.transitions import plot_estimates
from mmlca.study.groups import class_names, own_classes
from mmlca.study.inference import SHARED, uses_refits
from mmlca.study.release import count_note, is_public, rounding_of
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Grid, Plain
from mmlca.study.sections.patients import shown_indices
from mmlca.study.words import (
    group_name,
    group_word,
    groups_word,
    in_words,
    window_name,
    windows_name,
)
from mmlca.tables.diagnostics import N_TESTS
from mmlca.tables.suppress import hidden_note, hides

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.study.analysis import Findings
    from mmlca.study.settings import Study
    from mmlca.tables.diagnostics import Diagnostics
    from mmlca.tables.rounding import Rounding

_ALL_SITES = (
    ", and under “all sites” the model of the ensemble and its refinement: courses that all sites "
    "share, with proportions of their own, fitted from the ensemble's clusters to convergence"
)
_HALVES = (
    "Transition rates by class in either half of the time, and the model's, which is the same in "
    "both"
)
_HALVES_PUBLIC = (
    "Transition rates by class in either half of the time less the model's, which is the same in "
    "both, in standard errors"
)
_CORRECTED = {
    "BCH": "corrected for wrong assignments (BCH)",
    "ML": "corrected for wrong assignments (maximum likelihood)",
    None: "not corrected for wrong assignments",
}


def _beyond(states: pd.DataFrame) -> str:
    """How many residuals are large, against how many would be by chance."""
    residual = states["residual"].dropna().abs()
    if not len(residual):
        return ""
    chance, bound = 2 * ndtr(-2) * len(residual), -ndtri(0.025 / len(residual))
    return (
        f"Of {len(residual):,} residuals about {chance:.0f} would be beyond 2 by chance alone; "
        f"{(residual > 2).sum():,} are, and {(residual > bound).sum():,} beyond {bound:.1f}, where "
        "in 19 of 20 such tables there would be none (Bonferroni)."
    )


def _limits_from(study: Study, model: MixtureMarkov) -> str:
    if uses_refits(study, model):
        return (
            f"from {study.inference.bootstrap:,} refits to patients drawn with replacement "
            "(bootstrap), because the classes overlap"
        )
    return "from robust (sandwich) standard errors"


def fit_items(study: Study, findings: Findings) -> Iterator[Item]:
    """Standard errors, stability, and what each site's own model does not explain."""
    found, min_count = findings.inference, study.privacy.min_count
    note = hidden_note(min_count)
    several = len(findings.analysis.own) > 1
    whose = "Each site's own model" if several else "The model"
    own = "the site's own model" if several else "the model"
    shown = {site: part.shown(min_count) for site, part in found.diagnostics.items()}
    shared = {} if found.shared_fit is None else {SHARED: found.shared_fit.shown(min_count)}
    names = {site: class_names(findings.analysis, site) for site in findings.analysis.own}
    if shown:
        yield Item(
            "fit_tests",
            "fit",
            "Do the models fit?",
            f"{whose} against its patients{_ALL_SITES * bool(shared)}. Memory: does the next state "
            "depend on the one before the present? Stays: does leaving a state depend on how long "
            "a patient has been in it? States: are their shares over time as expected of those "
            "still observed, whose follow-up may end for reasons that depend on the time and the "
            "state then? Halves: are steps as likely in the second half of the time as in the "
            "first? Statistic, its typical value in "
            f"{next(iter(shown.values())).n_sim} sets of sequences drawn from the model and fitted "
            "again, the size of the effect (0.1 is called small, 0.3 medium, 0.5 large), the share "
            "of the sets with a larger statistic (p), and p adjusted for the "
            f"{N_TESTS * len(shown | shared)} tests of this table by Holm's method. A small p "
            "speaks against the model; with many patients it does so for small effects, too.",
            pd.concat(
                [part.tests.assign(site=site) for site, part in (shown | shared).items()],
                ignore_index=True,
            )[["site", "test", "statistic", "typical", "effect", "p_value", "p_holm"]],
            Plain(n_keys=2),
        )
        yield Item(
            "classification",
            "fit",
            "How sure the assignments are",
            f"For the patients assigned to a class of {own} (row): their number, and their mean "
            "probability of each class (columns), which holds if the model is right: see the tests "
            f"above. {count_note(study)}".rstrip(),
            _classification(
                {site: part.classification for site, part in shown.items()},
                names,
                rounding_of(study, own_classes(findings.analysis)),
                found.diagnostics,
            ),
            Plain(n_keys=2),
        )
    public = is_public(study)
    for site, part in shown.items():
        full, states, steps = found.diagnostics[site], part.states, _common_steps(part.steps)
        if public:  # exact shares beside rounded counts would tell more than these
            states, steps = (
                table.drop(columns=["observed", "expected"]) for table in (states, steps)
            )
        yield Item(
            f"residuals_{site}",
            "fit",
            f"States against what the model expects, {site}",
            f"By class of {own} and {window_name(study)}: observed less expected "
            "share of each state, in standard errors, among those still observed. Blue: more than "
            f"expected; red: fewer. {_beyond(part.states)} {note}".rstrip(),
            _with_names(states, names[site]),
            Grid(
                ("class", "state"),
                "time",
                "residual",
                ("n",) if "n" in part.states else (),
                _no_note if public else _residual_note,
                "difference",
                text=f"Residuals in standard errors; columns: {windows_name(study)}.",
            ),
            lambda full=full, site=site: plot_residuals(  # type: ignore[misc]
                full, names=names[site], min_count=min_count, xlabel=window_name(study).capitalize()
            ),
            f"Heat maps of residuals of the states by {window_name(study)} and class at {site}.",
        )
        yield Item(
            f"stays_{site}",
            "fit",
            f"Lengths of stays, {site}",
            "Share of patients who leave a state next, by how long they have been in it (dots), "
            "and the share that a Markov chain expects at all lengths (lines). Dots that rise or "
            f"fall along a line speak against the chain. {note}".rstrip(),
            _with_names(part.stays, names[site]),
            Plain(shares=("leaving", "expected"), n_keys=3, left_out="leaving"),
            lambda full=full, site=site: plot_stays(  # type: ignore[misc]
                full,
                names=names[site],
                min_count=min_count,
                xlabel=windows_name(study).capitalize(),
            ),
            f"Dots and lines of the share who leave each state by length of stay at {site}.",
        )
        yield Item(
            f"steps_{site}",
            "fit",
            f"Steps in the first and the second half, {site}",
            f"{_HALVES_PUBLIC if public else _HALVES}; the table of tests has that of the halves. "
            "Steps that are both rare and rarely expected (below 0.5 %) are left out. "
            f"{note}".rstrip(),
            _with_names(steps, names[site]),
            Plain(
                shares=() if public else ("observed", "expected"),
                columns=tuple(steps),
                n_keys=4,
                left_out="residual",
            ),
        )
    estimates = {} if found.parameters is None else dict(list(found.parameters.groupby("site")))
    for site, estimate in estimates.items():
        model, table = findings.analysis.own[site], estimate.drop(columns="site")
        yield Item(
            f"parameters_{site}",
            "fit",
            f"Estimated probabilities, {site}",
            f"First states and transition probabilities of each class of {own}, with "
            f"95 % limits {_limits_from(study, model)}. They hold if the model is right and the "
            f"maximum was found. The table has standard errors. {note}".rstrip(),
            _with_names(table, names[site]),
            Plain(n_keys=4, empty={"from": "", "to": ""}, left_out="estimate"),
            lambda site=site, model=model, table=table: plot_estimates(  # type: ignore[misc]
                model, table, names=list(names[site].values())
            ),
            f"Heat maps of the estimated transition probabilities of each class at {site}.",
        )
    if found.class_tests is not None:
        yield Item(
            "class_tests",
            "fit",
            "Are there more classes, or fewer?",
            "Bootstrap likelihood-ratio tests of a number of classes against one fewer"
            f"{', at each site' * several}: twice the difference of the log-likelihoods, the share "
            "of samples from the smaller model with a larger one (p), and how far p may be off "
            "because the samples are few. A small p speaks for the larger number.",
            found.class_tests,
            Plain(n_keys=3),
        )
    if found.stability is not None:
        yield Item(
            "stability",
            "fit",
            "Stability of the classes",
            f"From {study.inference.bootstrap:,} refits of {own} to resampled "
            "patients: how alike the patients of a class and of its counterpart are (Jaccard "
            "index), and the share of refits in which the class was found again.",
            found.stability.assign(
                **{
                    "class": [
                        names[site][k]
                        for site, k in found.stability[["site", "class"]].itertuples(index=False)
                    ]
                }
            ),
            Plain(shares=("found_again",), n_keys=2),
        )


def _common_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Without those that hardly anybody makes or should make; hidden ones stay, blank."""
    rare = (steps["observed"] < 0.005) & (steps["expected"] < 0.005)
    nobody = steps["observed"].isna() & steps["expected"].notna()
    return steps[~rare & ~nobody]


def _with_names(table: pd.DataFrame, names: Mapping[int, str]) -> pd.DataFrame:
    """A table with the names of its classes."""
    return table.assign(**{"class": table["class"].map(names)})


def _classification(
    tables: Mapping[str, pd.DataFrame],
    names: Mapping[str, Mapping[int, str]],
    rounding: Rounding | None,
    exact: Mapping[str, Diagnostics],
) -> pd.DataFrame:
    parts = []
    for site, table in tables.items():
        if rounding is not None:
            n = exact[site].classification["patients"]
            table = table.assign(patients=[rounding(n[k], site, k) for k in table.index])
        classes = {name: f"class {name}" for name in table if name != "patients"}
        frame = table.rename(columns=classes).reset_index()
        frame.insert(0, "site", site)
        frame["assigned"] = frame["assigned"].map(names[site])
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


def _no_note(row: Mapping[Any, Any]) -> str:
    return "in standard errors"


def _residual_note(row: Mapping[Any, Any]) -> str:
    return f"observed {100 * row['observed']:.1f} %, expected {100 * row['expected']:.1f} %"


def covariate_items(study: Study, findings: Findings) -> Iterator[Item]:
    """Effects of covariates on membership, by site and over all sites."""
    found = findings.inference
    if found.effects is None:
        return
    how = _CORRECTED[study.covariates.correction]
    if study.covariates.method == "one-step":
        how = "estimated together with the chains of the site's own patients"
    group = group_word(study)
    caption = (
        f"Log-odds of each {group} against the first, {_first_name(study, findings)}, for one unit "
        f"of a number or against the first level; {how}, with 95 % intervals. "
        f"{hidden_note(study.privacy.min_count)}"
    ).rstrip()
    together = "" if found.pooled is None else " The diamonds are the sites together."
    effects = shown_indices(study, "effects", found.effects)
    pooled = found.pooled if found.pooled is None else shown_indices(study, "pooled", found.pooled)
    yield Item(
        "effects",
        "covariates",
        f"Effects on membership in a {group}",
        caption + together,
        effects,
        Plain(n_keys=3, empty={"estimate": "–"}, labels={"class": group}),
        lambda: plot_effects(effects, pooled),
        f"Dot plot of the effects of covariates on membership in each {group}, by site.",
    )
    if found.pooled is not None:
        yield Item(
            "effects_pooled",
            "covariates",
            "Effects over all sites",
            "The sites' effects, weighted by the inverse of their variances; Q, its p-value and I² "
            "tell how much the sites differ. Effects that are hidden at a site do not contribute.",
            found.pooled,
            Plain(shares=("i2",), n_keys=2, labels={"class": group}),
        )


def _first_name(study: Study, findings: Findings) -> str:
    """What the cluster is called that the others are compared with."""
    first = min(c for part in findings.analysis.clusters.values() for c in part.unique())
    return group_name(study, first, findings.analysis.names)


def outcome_items(study: Study, findings: Findings) -> Iterator[Item]:
    """Outcomes by cluster, and the tests between clusters."""
    found = findings.inference
    if found.outcomes is None or found.tests is None:
        return
    groups, how = groups_word(study), _CORRECTED[study.outcomes.correction]
    note = count_note(study)
    several = findings.analysis.ensemble is not None
    yield Item(
        "outcomes",
        "outcomes",
        f"Outcomes of the {groups}",
        f"Means and shares by {group_word(study)}{', all sites together' * several}; {how}, with "
        f"95 % intervals. {note}".rstrip(),
        found.outcomes,
        Plain(n_keys=3, labels={"class": group_word(study)}),
    )
    yield Item(
        "outcome_tests",
        "outcomes",
        f"Differences between the {groups} in outcomes",
        "Wald tests that all are equal and of each pair, with p-values as they are and adjusted "
        f"for the number of pairs (Holm). {hidden_note(study.privacy.min_count)}".rstrip(),
        found.tests,
        Plain(n_keys=2),
    )


def survival_items(study: Study, findings: Findings) -> Iterator[Item]:
    """Curves, tests, hazards, and who did not reach the landmark."""
    full, min_count = findings.inference.survival, study.privacy.min_count
    if full is None:
        return
    named = {
        site: part.map(lambda c: group_name(study, c, findings.analysis.names))
        for site, part in findings.analysis.clusters.items()
    }
    shown = full.shown(min_count, rounding_of(study, named))
    event, groups, note = in_words(study.outcomes.event), groups_word(study), count_note(study)
    what = (
        "one less the cumulative incidence (Aalen–Johansen)"
        if full.competing
        else "the Kaplan–Meier estimate"
    )
    if len(shown.curves):
        steps = (
            f" It is shown at times between which at least {min_count} patients had the event or "
            "left."
            if hides(min_count)
            else ""
        )
        yield Item(
            "survival",
            "outcomes",
            f"Time to {event}",
            f"Share of patients without the event by {group_word(study)}, in years since the "
            f"landmark {full.landmark:.3g} years after the first treatment: {what}, with 95 % "
            f"intervals.{steps} Only patients who reach the landmark count, and {groups} are as "
            f"assigned. {note}".rstrip(),
            shown.curves,
            Plain(shares=("survival", "low", "high"), n_keys=2),
            lambda: plot_survival(full, unit="years", min_count=min_count, shown=shown),
            f"Curves of the share without {event} by {group_word(study)}.",
        )
    yield Item(
        "survival_tests",
        "outcomes",
        f"Log-rank tests of the time to {event}",
        f"That all {groups} have the same hazard, and of each pair; p-values as they are and "
        f"adjusted for the number of pairs (Holm). {hidden_note(min_count)}".rstrip(),
        shown.tests.drop(columns="pair"),
    )
    yield Item(
        "survival_hazards",
        "outcomes",
        f"Hazard ratios of {event}",
        f"Cox regression{', stratified by site' * (len(study.sites) > 1)}: hazard ratios with 95 % "
        "intervals and p-values; a small last p-value says that the ratio changes with time. "
        "Events and others: the fewest patients with and without the event on either side of the "
        f"comparison. {note}".rstrip(),
        shown.hazards.drop(columns="group"),
    )
    yield Item(
        "survival_excluded",
        "outcomes",
        "Patients before the landmark",
        "Patients who had the event or a competing one, or whose follow-up ended, before the "
        f"landmark; and those who reached it. {note}".rstrip(),
        shown.excluded,
    )
