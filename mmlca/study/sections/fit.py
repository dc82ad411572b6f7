"""How well the models fit: tests, certainty, residuals, estimates with errors, stability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
from scipy.special import ndtr, ndtri

from mmlca.figures.models import plot_residuals, plot_stays
from mmlca.figures.transitions import plot_estimate_table
from mmlca.model.inference import OVERLAP
from mmlca.sequences.checks import listed
from mmlca.sequences.forms import PLAIN
from mmlca.study.release import count_note, is_public
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Grid, Plain
from mmlca.study.results.site import ALL_SITES
from mmlca.study.sections import form_choice
from mmlca.study.sections.section import NOT_DONE, Section
from mmlca.study.words import by_sentence, sentences, window_name, windows_name
from mmlca.tables.diagnostics import N_TESTS, cautions_of_tests
from mmlca.tables.disclosure import hidden_note

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.results.fit import Fits
    from mmlca.study.settings import Study
    from mmlca.tables.diagnostics import Diagnostics

_TITLE = "How well the models fit"
_OF_CLUSTERS = (
    "“All sites” is about the clusters: at each site, a mixture that was fitted from its patients' "
    "clusters to convergence; the statistics of the sites are added up."
)


def _own_model(study: Study) -> str:
    return "the site's own model" if len(study.sites) > 1 else "the model"


# --- tables and figures -------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """Tests, certainty, what each site's own model does not explain, errors and stability."""
    fits, names = findings.fits, findings.class_names
    if fits.tests is not None:
        yield _tests(study, fits, fits.tests)
        yield _certainty(study, fits, names)
    for site, part in fits.diagnostics.items():
        yield _residuals(study, site, part, names[site])
        yield _stays(study, site, part, names[site], fits.form == PLAIN.title)
        yield _transitions_by_half(study, site, part, names[site])
    parameters = fits.parameters
    for site, table in () if parameters is None else parameters.groupby("site", sort=False):
        states = findings.results[str(site)].tables["states"]["state"].tolist()
        yield _estimates(study, str(site), states, table.drop(columns="site"), names[str(site)])
    yield from _numbers_of_classes(study, findings)


def _tests(study: Study, fits: Fits, tests: pd.DataFrame) -> Item:
    whose = "Each site's own model" if len(study.sites) > 1 else "The model"
    n_sim = next(iter(fits.diagnostics.values())).n_sim
    columns = ["site", "test", "statistic", "typical", "effect", "bic_gain", "p_value", "p_holm"]
    if tests["bic_gain"].isna().all():  # chains of another form than the plain one
        columns.remove("bic_gain")
    gain = (
        "by how much chains of second order, chains by time in state or chains of their own in "
        "each half would improve the BIC for the same classes (below 0: not at all); "
        if "bic_gain" in columns
        else ""
    )
    return Item(
        "fit_tests",
        "Do the models fit?",
        sentences(
            f"{whose} is compared with its patients.",
            _OF_CLUSTERS if ALL_SITES in set(tests["site"]) else "",
            "Memory: does the next state depend on the one before the present state? Stays: does "
            "leaving a state depend on how long a patient has been in it? States: are their shares "
            "over time as expected among those still observed, whose follow-up may end for reasons "
            "that depend on the time and the state then? Halves: are transitions as likely in the "
            "second half of the time as in the first? The columns are the statistic; its typical "
            f"value in {n_sim} sets of sequences drawn from the model and fitted again; the size "
            "of the effect (0.1 is called small, 0.3 medium, 0.5 large); "
            f"{gain}the share of the sets with a larger statistic (p); and p adjusted for the "
            f"{N_TESTS} tests of a site by Holm's method. A small p is evidence against the model; "
            "with many "
            "patients, small effects have a small p, too.",
            "Richer chains are worth their parameters where they improve the BIC." if gain else "",
        ),
        tests[columns],
        Plain(n_keys=2, digits={"bic_gain": 0}, labels={"bic_gain": "gain of BIC"}),
    )


def _certainty(study: Study, fits: Fits, names: Mapping[str, Mapping[int, str]]) -> Item:
    parts = []
    for site, part in fits.diagnostics.items():
        table = part.classification
        frame = table.rename(columns={k: f"class {k}" for k in table if k != "patients"})
        frame.insert(0, "assigned", [names[site][k] for k in table.index])
        parts.append(frame.assign(site=site))
    together = pd.concat(parts, ignore_index=True)
    return Item(
        "classification",
        "How certain the assignments are",
        f"For the patients assigned to a class of {_own_model(study)} (row): their number, and "
        "their mean probability of each class (columns), which is right if the model is: see the "
        "tests above.",
        together[["site", *together.columns.drop("site")]],
        Plain(n_keys=2),
        note=count_note(study),
    )


def _residuals(study: Study, site: str, part: Diagnostics, names: Mapping[int, str]) -> Item:
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
        _with_names(part.states, names),
        Grid(
            ("class", "state"),
            "time",
            "residual",
            ("n",) if "n" in part.states else (),
            _in_standard_errors if is_public(study) else _observed_and_expected,
            "difference",
            text=f"Residuals in standard errors; columns: {windows_name(study)}.",
        ),
        lambda: plot_residuals(part, names=names, min_count=min_count, xlabel=window.capitalize()),
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
    study: Study, site: str, part: Diagnostics, names: Mapping[int, str], plain: bool
) -> Item:
    min_count, windows = study.privacy.min_count, windows_name(study)
    what = (
        "the share that a Markov chain expects at all lengths (lines). Dots that rise or fall "
        "where the line is level are evidence against the chain."
        if plain
        else "the share that the model expects (lines). Dots that do not follow their line are "
        "evidence against the model."
    )
    return Item(
        f"stays_{site}",
        f"Lengths of stay, {site}",
        "Share of patients who leave a state next, by how long they have been in it (dots), and "
        f"{what}",
        _with_names(part.stays, names),
        Plain(shares=("leaving", "expected"), n_keys=3, left_out="leaving"),
        lambda: plot_stays(part, names=names, min_count=min_count, xlabel=windows.capitalize()),
        f"Dots and lines of the share who leave each state by length of stay at {site}.",
        note=hidden_note(min_count),
    )


def _transitions_by_half(
    study: Study, site: str, part: Diagnostics, names: Mapping[int, str]
) -> Item:
    public = is_public(study)
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
        _with_names(part.steps, names),
        Plain(
            shares=() if public else ("observed", "expected"),
            columns=tuple(part.steps),
            n_keys=4,
            left_out="residual",
        ),
        note=hidden_note(study.privacy.min_count),
    )


def _with_names(table: pd.DataFrame, names: Mapping[int, str]) -> pd.DataFrame:
    """A table with the names of its classes."""
    return table.assign(**{"class": table["class"].map(names)})


def _in_standard_errors(row: Mapping[Any, Any]) -> str:
    return "in standard errors"


def _observed_and_expected(row: Mapping[Any, Any]) -> str:
    return f"observed {100 * row['observed']:.1f} %, expected {100 * row['expected']:.1f} %"


def _estimates(
    study: Study, site: str, states: list[str], table: pd.DataFrame, names: Mapping[int, str]
) -> Item:
    limits = (
        f"from {study.inference.bootstrap:,} refits to patients drawn with replacement "
        "(bootstrap), because the classes overlap"
        if table["refits"].any()
        else "from robust (sandwich) standard errors"
    )
    table = table.drop(columns="refits").astype({"class": int})
    plain = "leave" not in set(table["parameter"])
    steps = "transition probabilities" if plain else "next states of those who leave"
    more = "" if plain else " and the probabilities of leaving"
    idle = [name for name in ("stay", "period") if not (table[name] != "").any()]
    blank = dict.fromkeys(("from", "to", "stay", "period"), "")
    return Item(
        f"parameters_{site}",
        f"Estimated probabilities, {site}",
        f"First states and {steps} of each class of {_own_model(study)}, with 95 "
        f"% limits {limits}. They are valid if the model is right and the maximum was found. The "
        f"table has standard errors{more}.",
        _with_names(table.drop(columns=idle), names),
        Plain(n_keys=6 - len(idle), empty=blank, left_out="estimate"),
        lambda: plot_estimate_table(table, states, names=list(names.values())),
        f"Heat maps of the estimated {steps} of each class at {site}.",
        note=hidden_note(study.privacy.min_count),
    )


def _numbers_of_classes(study: Study, findings: Findings) -> Iterator[Item]:
    """Tests of the number of classes, and their stability."""
    tests, stability = findings.fits.class_tests, findings.fits.stability
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
            stability.assign(
                **{"class": [findings.class_names[site][int(k)] for site, k in classes]}
            ),
            Plain(shares=("found_again",), n_keys=2),
        )


# --- methods, cautions and answers --------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """Where standard errors come from, and how number, stability and fit were judged."""
    fits, rules, text = findings.fits, study.inference, []
    several = len(findings.sites) > 1
    model = "each site's own model" if several else "the model"
    if fits.parameters is not None:
        text.append(
            f"Standard errors of the probabilities of {model} are robust (sandwich), with "
            f"intervals on the logit scale{_bootstrapped(study, fits.parameters)}."
        )
    if fits.class_tests is not None:
        text.append(
            f"{'At each site, the' if several else 'The'} number of classes was compared with one "
            f"fewer and one more by likelihood-ratio tests with at most {rules.blrt} samples from "
            "the smaller model, to which both models were fitted (parametric bootstrap)."
        )
    if fits.stability is not None:
        text.append(
            f"Stability of the classes was judged by {rules.bootstrap:,} refits to patients drawn "
            "with replacement."
        )
    if fits.diagnostics:
        n_sim = next(iter(fits.diagnostics.values())).n_sim
        clusters = findings.combined.ensemble is not None
        shared = (
            "; at each site a model of the clusters was judged in the same way" if clusters else ""
        )
        text.append(
            f"The fit of {model} was judged by the mean probabilities of assigned classes, by "
            "residuals of the states over time, and by tests of memory beyond one step, of lengths "
            "of stay, of the states over time and of transitions in the two halves of the time. "
            f"Reference values are from {n_sim} sets of sequences drawn from the model and fitted "
            "again, in which follow-up ended after each state and time as often as in the "
            f"data{shared}. P-values were adjusted for the {N_TESTS} tests of a site by Holm's "
            "method."
        )
    return text


def _bootstrapped(study: Study, parameters: pd.DataFrame) -> str:
    sites = parameters["site"][parameters["refits"]].unique().tolist()
    if not sites:
        return ""
    where = f"at {listed(sites)}, " if parameters["site"].nunique() > 1 else ""
    return (
        f"; {where}where the classes overlap (entropy R² below {OVERLAP:g}), they are from "
        f"{study.inference.bootstrap:,} refits to patients drawn with replacement"
    )


def cautions(study: Study, findings: Findings) -> list[str]:
    """Evidence against the models, and where intervals may be too narrow."""
    fits = findings.fits
    doubts = {site: part.cautions() for site, part in fits.diagnostics.items()}
    if fits.tests is not None:
        together = fits.tests[fits.tests["site"] == ALL_SITES]
        doubts["all sites together"] = cautions_of_tests(together)
    notes = [f"At {sites}: {text[0].lower()}{text[1:]}" for sites, text in by_sentence(doubts)]
    overlapping = fits.own.index[fits.own["entropy"] < OVERLAP].tolist()
    if fits.parameters is not None and overlapping and not study.inference.bootstrap:
        where = f" at {listed(overlapping)}" if len(fits.own) > 1 else ""
        notes.append(
            f"The classes{where} overlap (entropy R² below {OVERLAP:g}), so the intervals of their "
            "probabilities may be too narrow; bootstrap = 500 under [inference] takes them from "
            "refits instead."
        )
    return notes


def answers(study: Study, findings: Findings) -> dict[str, str]:
    """Whether the form of the models was examined, and whether estimates have errors."""
    found, section = findings.fits, f"section “{_TITLE}”"
    tested = f"; {section} tests whether one step is enough" if found.diagnostics else ""
    halves = f"; {section} compares both halves of the time" if found.diagnostics else ""
    errors = f"{section}, with standard errors"
    forms = form_choice.answer(study, findings) or f"models in which they do: {NOT_DONE}"
    shape = "transitions do not change with time"
    if found.form != PLAIN.title:
        shape = "leaving a state depends on time: section “When states are left”"
    return {
        "6a": "in a class, all patients have the same chain; other forms as models of their own: "
        f"{NOT_DONE}{tested}",
        "7": f"{shape}; {forms}{halves}",
        "15": "numbers without standard errors" if found.parameters is None else errors,
    }


SECTION = Section("fit", _TITLE, items, methods, cautions, answers)
