"""Which models: forms of chains, numbers of classes, what the criteria chose and what else fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from font.weights import RECORD
from mmlca.figures.models import plot_selection
from mmlca.model.selection import compare_criteria
from mmlca.sequences.checks import listed
from mmlca.study.headline import Kind, pick, votes
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.results.registry import whole_numbers
from mmlca.study.sections import form_choice
from mmlca.study.sections.section import NOT_DONE, Section
from mmlca.study.words import by_sentence, sentences, span
from mmlca.tables.disclosure import hides

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

_CRITERION_TABLE = "the table behind the figure of the criterion"


# --- tables and figures -------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """The criterion by form and number of classes, and what models with more classes suggest."""
    yield from form_choice.items(study, findings)
    min_count, choice = study.privacy.min_count, findings.fits.choice
    if choice is not None and choice["classes"].nunique() > 1:
        criterion = study.classes.criterion.upper()
        fits = _shown(choice, min_count)
        yield Item(
            "selection",
            f"{criterion} by number of classes",
            sentences(
                f"{criterion} of models with different numbers of classes{_whose(study)}; "
                f"{study.model.n_init} starts per search. Smaller is better; filled marks show the "
                "choice. The table has the sizes of all classes in percent.",
                "They are blank where a class has too few patients to show."
                if hides(min_count)
                else "",
            ),
            fits,
            Plain(shares=("smallest",)),
            lambda: plot_selection(fits, study.classes.criterion, chosen="chosen"),
            f"Line plot of {criterion} against the number of classes.",
        )
    if (suggested := findings.combined.suggested) is not None:
        yield Item(
            "suggested",
            "Clusters suggested by models with more classes",
            "Models with as many classes as there are clusters cannot separate more groups, so "
            "their ensemble suggests that number partly by construction. Models with more classes "
            "leave it open. The table shows the number of clusters that the spectrum of their "
            "ensemble suggests, how certain that is, and the range of thresholds that give this "
            "number (as shares of the largest eigenvalue). "
            f"{RECORD[suggested['sure'].iloc[-1]]}",
            suggested,
        )


def _shown(choice: pd.DataFrame, min_count: int) -> pd.DataFrame:
    """The table as people read it, with the sizes of all classes as a text of percentages."""
    digits = 0 if hides(min_count) else 1
    sizes = [
        " / ".join(f"{100 * share:.{digits}f}" for share in shares)
        if isinstance(shares, list)
        else None
        for shares in choice["sizes"]
    ]
    table = whole_numbers(choice.assign(sizes=sizes), "selection")
    columns = ["site", "form", "classes", "loglik", "parameters", "parameters_all"]
    columns += ["aic", "bic", "bic_all", "sabic", "caic", "icl"]
    columns += ["entropy", "posterior", "smallest", "sizes", "replicated", "searches"]
    return table[[*columns, "converged", "chosen"]]


def _whose(study: Study) -> str:
    if len(study.sites) == 1:
        return ", less the smallest"
    if study.pseudo_sites.per_site and study.classes.stability:
        return (
            " for each site and each pseudo-site (a resample of its patients), less the smallest "
            "of that site or pseudo-site"
        )
    return " for each site, less the smallest of that site"


# --- methods, cautions and answers --------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """How the form of the chains and the number of classes were chosen."""
    of_form = form_choice.methods(study, findings)
    if study.classes.number != "vote":
        return of_form
    who = " for most sites' own data (in a tie, the smaller number)"
    return [
        *of_form,
        "The number of classes was the one with the smallest "
        f"{study.classes.criterion.upper()}{who if len(study.sites) > 1 else ''}, among "
        f"{span(study.classes.candidates)} (n: {study.classes.count}). These fits used the same "
        "search, and those with the chosen number of classes are the models reported here.",
    ]


def cautions(study: Study, findings: Findings) -> list[str]:
    """Where another form fits better, or data sets, criteria and tests disagree on the number."""
    choice, of_choice = findings.fits.choice, []
    if choice is not None:
        of_choice = [
            *form_choice.cautions(study, findings),
            *_other_choices(study, findings, choice),
            *_suggestions(findings),
            *_criteria_that_disagree(study, choice[choice["form"] == findings.fits.form]),
        ]
    return [*of_choice, *_tests_that_disagree(findings)]


def _other_choices(study: Study, findings: Findings, choice: pd.DataFrame) -> list[str]:
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    k, (sites, resamples) = int(clusters.value), votes(study, choice)
    others = {site: str(chosen) for site, chosen in sites.items() if chosen != k}
    counts = resamples[resamples != k].value_counts()
    others |= {f"{n} of {len(resamples)} resamples": str(c) for c, n in counts.items()}
    notes = []
    if others:
        chosen = listed([f"{name} chose {number}" for name, number in others.items()])
        notes.append(
            f"Not all data sets chose the same number of classes: {chosen}. `mmlca study "
            "sensitivity` shows how the results change with another number."
        )
    if k == choice["classes"].max() > 1 and study.classes.number == "vote":
        notes.append(f"The largest number of classes tried ({k}) was chosen; try larger ones.")
    n = int((~choice["converged"]).sum())
    if n:
        notes.append(
            f"{n} of the {len(choice)} fits that compare numbers of classes did not converge (see "
            "the column “converged” of their table)."
        )
    return notes


def _suggestions(findings: Findings) -> list[str]:
    suggested = findings.combined.suggested
    if suggested is None:
        return []
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    pairs = list(zip(suggested["suggested"], suggested["sure"], strict=True))
    same = len(set(pairs)) == 1
    numbers = listed([f"{number} ({sure})" for number, sure in pairs[: 1 if same else None]])
    asked = listed([str(c) for c in suggested["classes"] if c != "all"])
    joint = ", and of all of these together," if "all" in [*suggested["classes"]] else ""
    return [
        f"Models with {clusters.value:.0f} classes separate {clusters.value:.0f} groups, so the "
        "spectrum of their ensemble suggests that number of clusters partly by construction. "
        f"Ensembles of models with {asked} classes{joint} suggest {numbers} clusters. "
        f"{RECORD[suggested['sure'].iloc[-1]]}"
    ]


def _criteria_that_disagree(study: Study, choice: pd.DataFrame) -> list[str]:
    of_sites = form_choice.of_sites(study, choice).drop(columns="form").groupby("site")
    said = {site: [compare_criteria(rows.drop(columns="site"))] for site, rows in of_sites}
    return [
        f"The criteria disagree at {sites}: {sentence}"
        for sites, sentence in by_sentence(said)
        if not sentence.startswith("All criteria")
    ]


def _tests_that_disagree(findings: Findings) -> list[str]:
    tests, notes = findings.fits.class_tests, []
    if tests is None:
        return []
    for site, k in findings.fits.own["classes"].astype(int).items():
        for row in tests[tests["site"] == site].to_dict("records"):
            p = f"bootstrap test, p = {row['p_value']:.3g}"
            if row["classes"] > k and row["p_value"] <= 0.05:
                notes.append(
                    f"At {site}, {row['classes']:.0f} classes fit better than the {k} used ({p})."
                )
            if row["classes"] == k and row["p_value"] > 0.05:
                notes.append(
                    f"At {site}, the {k} classes used do not fit clearly better than {k - 1} ({p})."
                )
    return notes


def answers(study: Study, findings: Findings) -> dict[str, str]:
    """How models were compared, and which."""
    choice = findings.fits.choice
    if choice is None or study.classes.number != "vote":
        return {
            "10": "the number of classes was given in advance",
            "11": NOT_DONE,
            "12": "of the chosen models: the tables of clusters and of how certain the assignments "
            "are",
            "14b": NOT_DONE,
        }
    tried = tuple(sorted({int(k) for k in choice["classes"]}))
    alone = "" if 1 in tried else "; one class was not tried"
    blank = "; blank where a class has too few patients to show"
    plots = (
        "models/alternatives_SITE.png for each site; they show exact parameters and stay inside "
        "the hospital"
    )
    return {
        "10": f"{study.classes.criterion.upper()}; methods; other criteria: {_CRITERION_TABLE}",
        "11": f"{span(tried)} classes{alone}: {_CRITERION_TABLE}",
        "12": f"the same table{blank if hides(study.privacy.min_count) else ''}",
        "14b": plots if study.outputs.figures else NOT_DONE,
    }


SECTION = Section("classes", "Number of classes", items, methods, cautions, answers)
