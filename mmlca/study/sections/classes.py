"""Which models: forms of chains, numbers of classes, what the criteria chose and what else fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from font.weights import RECORD
from mmlca.figures.models import plot_selection
from mmlca.model.selection import compare_criteria, support_sentences
from mmlca.model.settings import CRITERIA
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
        yield _support_item(study, findings)
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


def _own_patients(study: Study) -> str:
    return "the patients" if len(study.sites) == 1 else "each site's patients"


def _support(study: Study, findings: Findings) -> dict[str, pd.DataFrame]:
    """The models of the form used at each site, with what resamples and refits say of them.

    `resampled` counts the resamples that choose a number, `jaccard` is of the least stable class of
    the site's own model.
    """
    fits, support = findings.fits, {}
    assert fits.choice is not None
    choice = form_choice.of_sites(study, fits.choice[fits.choice["form"] == fits.form])
    for site, rows in choice.groupby("site", sort=False):
        rows = rows.drop(columns=["site", "form"])
        chosen = rows["chosen"].astype(bool)  # by exact numbers: few digits may say otherwise
        best = rows[study.classes.criterion].min()
        rows[study.classes.criterion] = rows[study.classes.criterion].mask(chosen, best)
        rows = pd.concat([rows[chosen], rows[~chosen]], ignore_index=True)
        rows["classes"] = rows["classes"].astype(int)
        if fits.choices is not None:
            counts = fits.choices[fits.choices["site"] == site].set_index("classes")["resamples"]
            rows["resampled"] = rows["classes"].map(counts).fillna(0).astype(int)
        if fits.stability is not None:
            least = fits.stability.loc[fits.stability["site"] == site, "jaccard"].min()
            rows["jaccard"] = rows["classes"].map({int(fits.own.at[site, "classes"]): least})
        support[str(site)] = rows
    return support


def _support_item(study: Study, findings: Findings) -> Item:
    """Which number of classes each criterion chooses, and how sure the choice is."""
    criterion, support = study.classes.criterion, _support(study, findings)
    table, said = [], {}
    for site, rows in support.items():
        names = [name for name in (*CRITERIA, "bic_all") if name in rows]
        numbers = {name: int(rows.loc[rows[name].idxmin(), "classes"]) for name in names}
        row: dict[str, Any] = {"site": site, **numbers}
        best = rows.loc[rows[criterion].idxmin()]
        if "resampled" in rows:
            row |= {"resamples_agree": int(best["resampled"])}
            row |= {"resamples": int(rows["resampled"].sum())}
        if "jaccard" in rows:
            row["jaccard_least"] = best["jaccard"]
        table.append(row)
        said[site] = [compare_criteria(rows[["classes", *names]])]
        said[site] += support_sentences(rows, criterion)
    several = len(support) > 1
    texts = [
        f"{sites}: {text}" if several else text[:1].upper() + text[1:]
        for sites, text in by_sentence(said)
    ]
    more = "resamples_agree" in table[0]
    return Item(
        "support",
        "How sure is the number of classes?",
        sentences(
            f"The number of classes that each criterion chooses. {criterion.upper()} is the one "
            f"that the study uses; it counts {form_choice.what_counts(study)}.",
            f"Beside it is how many resamples of {_own_patients(study)} choose the same number. "
            "Resamples contain patients several times, which favours larger numbers."
            if more
            else "",
            "The Jaccard index is that of the class of the site's own model which refits find "
            "again least well; it is blank where that model has another number of classes."
            if "jaccard_least" in table[0]
            else "",
            " ".join(texts),
        ),
        pd.DataFrame(table),
        Plain(),
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
    if findings.fits.choice is not None:
        of_form.append(
            f"Criteria count {form_choice.what_counts(study)}, since the data say nothing about "
            "the others; textbooks count these too, and the table of models compared has both."
        )
    if findings.fits.choices is not None:
        of_form.append(
            "How sure this choice is was judged by choosing again for "
            f"{study.inference.choices:,} resamples of {_own_patients(study)}, drawn with "
            "replacement."
        )
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
            *_criteria_that_disagree(study, findings),
        ]
    return [*of_choice, *_tests_that_disagree(findings)]


def _other_choices(study: Study, findings: Findings, choice: pd.DataFrame) -> list[str]:
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    k, (sites, resamples) = int(clusters.value), votes(study, choice)
    others = {site: f"{chosen:.0f}" for site, chosen in sites.items() if chosen != k}
    counts = resamples[resamples != k].value_counts()
    others |= {f"{n} of {len(resamples)} resamples": f"{c:.0f}" for c, n in counts.items()}
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


def _criteria_that_disagree(study: Study, findings: Findings) -> list[str]:
    """Criteria that choose other numbers, and resamples most of which do."""
    criterion, support = study.classes.criterion, _support(study, findings)
    columns = ["resampled", "jaccard"]
    said = {
        site: [compare_criteria(rows.drop(columns=columns, errors="ignore"))]
        for site, rows in support.items()
    }
    notes = [
        f"The criteria disagree at {sites}: {sentence}"
        for sites, sentence in by_sentence(said)
        if not sentence.startswith("All criteria")
    ]
    doubts = {site: support_sentences(rows, criterion) for site, rows in support.items()}
    return notes + [
        f"{sites}: {sentence}"
        for sites, sentence in by_sentence(doubts)
        if "most do not" in sentence or "Not all" in sentence
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
