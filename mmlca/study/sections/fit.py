"""How well the models fit: tests, certainty, residuals, estimates with errors, stability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
from scipy.special import ndtr, ndtri

from mmlca.figures.diagnostics import plot_residuals, plot_stays
from mmlca.figures.transitions import plot_estimates
from mmlca.model.criteria import OVERLAP
from mmlca.sequences.checks import listed
from mmlca.study.groups import class_names, own_classes
from mmlca.study.inference import SHARED, uses_refits
from mmlca.study.release import count_note, is_public, rounding_of
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Grid, Plain
from mmlca.study.sections.section import NOT_DONE, Section
from mmlca.study.words import by_sentence, sentences, window_name, windows_name
from mmlca.tables.diagnostics import N_TESTS
from mmlca.tables.disclosure import hidden_note

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study
    from mmlca.tables.diagnostics import Diagnostics
    from mmlca.tables.disclosure import Rounding

_TITLE = "How well the models fit"
_SHARED_FIT = (
    "“All sites” is the model of the ensemble and its refinement: courses that all sites share, "
    "with proportions of their own, fitted from the ensemble's clusters to convergence."
)


def _own_model(study: Study) -> str:
    return "the site's own model" if len(study.sites) > 1 else "the model"


# --- computed from patients ---------------------------------------------------------------


def _shown(study: Study, findings: Findings) -> dict[str, Diagnostics]:
    """The diagnostics of each site's own model as the release shows them."""
    min_count = study.privacy.min_count
    return {site: part.shown(min_count) for site, part in findings.inference.diagnostics.items()}


def _shared_fit(study: Study, findings: Findings) -> dict[str, Diagnostics]:
    """The diagnostics of the model that the sites share, if there is one."""
    shared = findings.inference.shared_fit
    return {} if shared is None else {SHARED: shared.shown(study.privacy.min_count)}


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


# --- tables and figures -------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """Tests, certainty, what each site's own model does not explain, errors and stability."""
    shown = _shown(study, findings)
    names = {site: class_names(findings.analysis, site) for site in findings.analysis.own}
    if shown:
        yield _tests(study, shown | _shared_fit(study, findings))
        yield _certainty(study, findings, shown, names)
    for site, part in shown.items():
        full = findings.inference.diagnostics[site]
        yield _residuals(study, site, full, part, names[site])
        yield _stays(study, site, full, part, names[site])
        yield _transitions_by_half(study, site, part, names[site])
    parameters = findings.inference.parameters
    for site, table in () if parameters is None else parameters.groupby("site"):
        model = findings.analysis.own[str(site)]
        yield _estimates(study, str(site), model, table.drop(columns="site"), names[str(site)])
    yield from _numbers_of_classes(study, findings, names)


def _tests(study: Study, shown: Mapping[str, Diagnostics]) -> Item:
    whose = "Each site's own model" if len(study.sites) > 1 else "The model"
    n_sim = next(iter(shown.values())).n_sim
    tests = pd.concat([part.tests.assign(site=site) for site, part in shown.items()])
    columns = ["site", "test", "statistic", "typical", "effect", "p_value", "p_holm"]
    return Item(
        "fit_tests",
        "Do the models fit?",
        sentences(
            f"{whose} is compared with its patients.",
            _SHARED_FIT if SHARED in shown else "",
            "Memory: does the next state depend on the one before the present state? Stays: does "
            "leaving a state depend on how long a patient has been in it? States: are their shares "
            "over time as expected among those still observed, whose follow-up may end for reasons "
            "that depend on the time and the state then? Halves: are transitions as likely in the "
            "second half of the time as in the first? The columns are the statistic; its typical "
            f"value in {n_sim} sets of sequences drawn from the model and fitted again; the size "
            "of the effect (0.1 is called small, 0.3 medium, 0.5 large); the share of the sets "
            f"with a larger statistic (p); and p adjusted for the {N_TESTS * len(shown)} tests of "
            "this table by Holm's method. A small p is evidence against the model; with many "
            "patients, small effects have a small p, too.",
        ),
        tests.reset_index(drop=True)[columns],
        Plain(n_keys=2),
    )


def _certainty(
    study: Study,
    findings: Findings,
    shown: Mapping[str, Diagnostics],
    names: Mapping[str, Mapping[int, str]],
) -> Item:
    return Item(
        "classification",
        "How certain the assignments are",
        f"For the patients assigned to a class of {_own_model(study)} (row): their number, and "
        "their mean probability of each class (columns), which is right if the model is: see the "
        "tests above.",
        _classification(
            {site: part.classification for site, part in shown.items()},
            names,
            rounding_of(study, own_classes(findings.analysis)),
            findings.inference.diagnostics,
        ),
        Plain(n_keys=2),
        note=count_note(study),
    )


def _residuals(
    study: Study, site: str, full: Diagnostics, part: Diagnostics, names: Mapping[int, str]
) -> Item:
    window, min_count = window_name(study), study.privacy.min_count
    return Item(
        f"residuals_{site}",
        f"Observed and expected states, {site}",
        sentences(
            f"By class of {_own_model(study)} and {window}: observed minus expected share of each "
            "state, in standard errors, among those still observed. Blue: more than expected; red: "
            "fewer.",
            _beyond(part.states),
        ),
        _with_names(_without_exact_shares(study, part.states), names),
        Grid(
            ("class", "state"),
            "time",
            "residual",
            ("n",) if "n" in part.states else (),
            _in_standard_errors if is_public(study) else _observed_and_expected,
            "difference",
            text=f"Residuals in standard errors; columns: {windows_name(study)}.",
        ),
        lambda: plot_residuals(full, names=names, min_count=min_count, xlabel=window.capitalize()),
        f"Heat maps of residuals of the states by {window} and class at {site}.",
        note=hidden_note(min_count),
    )


def _beyond(states: pd.DataFrame) -> str:
    """How many residuals are large, against how many would be by chance."""
    residual = states["residual"].dropna().abs()
    if not len(residual):
        return ""
    chance, bound = 2 * ndtr(-2) * len(residual), -ndtri(0.025 / len(residual))
    return (
        f"Of {len(residual):,} residuals, about {chance:.0f} would be beyond ±2 by chance alone; "
        f"{(residual > 2).sum():,} are, and {(residual > bound).sum():,} beyond ±{bound:.1f}, "
        "where in 19 of 20 such tables there would be none (Bonferroni)."
    )


def _stays(
    study: Study, site: str, full: Diagnostics, part: Diagnostics, names: Mapping[int, str]
) -> Item:
    min_count, windows = study.privacy.min_count, windows_name(study)
    return Item(
        f"stays_{site}",
        f"Lengths of stay, {site}",
        "Share of patients who leave a state next, by how long they have been in it (dots), and "
        "the share that a Markov chain expects at all lengths (lines). Dots that rise or fall "
        "where the line is level are evidence against the chain.",
        _with_names(part.stays, names),
        Plain(shares=("leaving", "expected"), n_keys=3, left_out="leaving"),
        lambda: plot_stays(full, names=names, min_count=min_count, xlabel=windows.capitalize()),
        f"Dots and lines of the share who leave each state by length of stay at {site}.",
        note=hidden_note(min_count),
    )


def _transitions_by_half(
    study: Study, site: str, part: Diagnostics, names: Mapping[int, str]
) -> Item:
    public = is_public(study)
    steps = _without_exact_shares(study, _common(part.steps))
    what = (
        "Transition rates by class in either half of the time, minus those of the model, which are "
        "the same in both halves, in standard errors"
        if public
        else "Transition rates by class in either half of the time, and those of the model, which "
        "are the same in both halves"
    )
    return Item(
        f"steps_{site}",
        f"Transitions in the first and the second half, {site}",
        f"{what}; the table of tests has the test of the halves. Transitions that are both rare "
        "and rarely expected (below 0.5 %) are left out.",
        _with_names(steps, names),
        Plain(
            shares=() if public else ("observed", "expected"),
            columns=tuple(steps),
            n_keys=4,
            left_out="residual",
        ),
        note=hidden_note(study.privacy.min_count),
    )


def _without_exact_shares(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """In a public release, exact shares beside rounded counts would reveal more than these."""
    return table.drop(columns=["observed", "expected"]) if is_public(study) else table


def _common(steps: pd.DataFrame) -> pd.DataFrame:
    """Transitions that are not both rare and rarely expected; hidden ones stay, blank."""
    rare = (steps["observed"] < 0.005) & (steps["expected"] < 0.005)
    nobody = steps["observed"].isna() & steps["expected"].notna()
    return steps[~rare & ~nobody]


def _with_names(table: pd.DataFrame, names: Mapping[int, str]) -> pd.DataFrame:
    """A table with the names of its classes."""
    return table.assign(**{"class": table["class"].map(names)})


def _in_standard_errors(row: Mapping[Any, Any]) -> str:
    return "in standard errors"


def _observed_and_expected(row: Mapping[Any, Any]) -> str:
    return f"observed {100 * row['observed']:.1f} %, expected {100 * row['expected']:.1f} %"


def _estimates(
    study: Study, site: str, model: MixtureMarkov, table: pd.DataFrame, names: Mapping[int, str]
) -> Item:
    return Item(
        f"parameters_{site}",
        f"Estimated probabilities, {site}",
        f"First states and transition probabilities of each class of {_own_model(study)}, with 95 "
        f"% limits {_limits_from(study, model)}. They are valid if the model is right and the "
        "maximum was found. The table has standard errors.",
        _with_names(table, names),
        Plain(n_keys=4, empty={"from": "", "to": ""}, left_out="estimate"),
        lambda: plot_estimates(model, table, names=list(names.values())),
        f"Heat maps of the estimated transition probabilities of each class at {site}.",
        note=hidden_note(study.privacy.min_count),
    )


def _limits_from(study: Study, model: MixtureMarkov) -> str:
    if uses_refits(study, model):
        return (
            f"from {study.inference.bootstrap:,} refits to patients drawn with replacement "
            "(bootstrap), because the classes overlap"
        )
    return "from robust (sandwich) standard errors"


def _numbers_of_classes(
    study: Study, findings: Findings, names: Mapping[str, Mapping[int, str]]
) -> Iterator[Item]:
    """Tests of the number of classes, and their stability."""
    tests, stability = findings.inference.class_tests, findings.inference.stability
    where = ", at each site" if len(study.sites) > 1 else ""
    if tests is not None:
        yield Item(
            "class_tests",
            "Are there more classes, or fewer?",
            f"Bootstrap likelihood-ratio tests of a number of classes against one fewer{where}: "
            "twice the difference in log-likelihood, the share of samples from the smaller model "
            "with a larger one (p), and how far p may be off because the samples are few. A small "
            "p favours the larger number.",
            tests,
            Plain(n_keys=3),
        )
    if stability is not None:
        classes = stability[["site", "class"]].itertuples(index=False)
        yield Item(
            "stability",
            "Stability of the classes",
            f"From {study.inference.bootstrap:,} refits of {_own_model(study)} to resampled "
            "patients: how similar the patients of a class and of its counterpart are (Jaccard "
            "index), and the share of refits in which the class was found again.",
            stability.assign(**{"class": [names[site][k] for site, k in classes]}),
            Plain(shares=("found_again",), n_keys=2),
        )


# --- methods, cautions and answers --------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """Where standard errors come from, and how number, stability and fit were judged."""
    found, rules, text = findings.inference, study.inference, []
    several = len(findings.analysis.own) > 1
    model = "each site's own model" if several else "the model"
    if found.parameters is not None:
        text.append(
            f"Standard errors of the probabilities of {model} are robust (sandwich), with "
            f"intervals on the logit scale{_bootstrapped(study, findings)}."
        )
    if found.class_tests is not None:
        text.append(
            f"{'At each site, the' if several else 'The'} number of classes was compared with one "
            f"fewer and one more by likelihood-ratio tests with at most {rules.blrt} samples from "
            "the smaller model, to which both models were fitted (parametric bootstrap)."
        )
    if found.stability is not None:
        text.append(
            f"Stability of the classes was judged by {rules.bootstrap:,} refits to patients drawn "
            "with replacement."
        )
    if found.diagnostics:
        n_sim = next(iter(found.diagnostics.values())).n_sim
        shared = "; the model that the sites share was judged in the same way" if several else ""
        text.append(
            f"The fit of {model} was judged by the mean probabilities of assigned classes, by "
            "residuals of the states over time, and by tests of memory beyond one step, of lengths "
            "of stay, of the states over time and of transitions in the two halves of the time. "
            f"Reference values are from {n_sim} sets of sequences drawn from the model and fitted "
            "again, in which follow-up ended after each state and time as often as in the "
            f"data{shared}. P-values were adjusted for the number of these tests by Holm's method."
        )
    return text


def _bootstrapped(study: Study, findings: Findings) -> str:
    own = findings.analysis.own
    sites = [site for site, model in own.items() if uses_refits(study, model)]
    if not sites:
        return ""
    where = f"at {listed(sites)}, " if len(own) > 1 else ""
    return (
        f"; {where}where the classes overlap (entropy R² below {OVERLAP:g}), they are from "
        f"{study.inference.bootstrap:,} refits to patients drawn with replacement"
    )


def cautions(study: Study, findings: Findings) -> list[str]:
    """Evidence against the models, and where intervals may be too narrow."""
    found, own = findings.inference, findings.analysis.own
    parts = _shown(study, findings) | _shared_fit(study, findings)
    doubts = {
        "all sites together" if site == SHARED else site: part.cautions()
        for site, part in parts.items()
    }
    notes = [f"At {sites}: {text[0].lower()}{text[1:]}" for sites, text in by_sentence(doubts)]
    overlapping = [site for site, model in own.items() if model.entropy() < OVERLAP]
    if found.parameters is not None and overlapping and not study.inference.bootstrap:
        where = f" at {listed(overlapping)}" if len(own) > 1 else ""
        notes.append(
            f"The classes{where} overlap (entropy R² below {OVERLAP:g}), so the intervals of their "
            "probabilities may be too narrow; bootstrap = 500 under [inference] takes them from "
            "refits instead."
        )
    return notes


def answers(study: Study, findings: Findings) -> dict[str, str]:
    """Whether the form of the models was examined, and whether estimates have errors."""
    found, section = findings.inference, f"section “{_TITLE}”"
    tested = f"; {section} tests whether one step is enough" if found.diagnostics else ""
    halves = f"; {section} compares both halves of the time" if found.diagnostics else ""
    errors = f"{section}, with standard errors"
    return {
        "6a": "in a class, all patients have the same chain; other forms as models of their own: "
        f"{NOT_DONE}{tested}",
        "7": f"transitions do not change with time; models in which they do: {NOT_DONE}{halves}",
        "15": "numbers without standard errors" if found.parameters is None else errors,
    }


SECTION = Section("fit", _TITLE, items, methods, cautions, answers)
