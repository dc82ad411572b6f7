"""The sentences of a study: what they claim, and what they must not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mmlca.model.search import search_text
from mmlca.study import Study
from mmlca.study.headline import Kind, Number, numbers_table, pick
from mmlca.study.sections import classes, fit, models, refinement, registry, summary
from mmlca.study.sections.section import Section
from mmlca.study.words import period, span, windows_name


def study_of(*sites: str, **settings: Any) -> Study:
    files = {site: {"sequences": f"{site}.csv"} for site in sites}
    return Study.model_validate({"name": "Trial", "sites": files, **settings}, strict=False)


def choices(chosen: dict[str, int], unfinished: int = 0) -> pd.DataFrame:
    """A table of numbers of classes 1 to 8 in which each data set chose one."""
    rows = [
        {"site": s, "classes": c, "chosen": c == k} for s, k in chosen.items() for c in range(1, 9)
    ]
    return pd.DataFrame(rows).assign(converged=np.arange(len(rows)) >= unfinished)


def findings(chosen: dict[str, int], k: int, unfinished: int = 0) -> Any:
    numbers = [Number(Kind.CLUSTERS, k)]
    return SimpleNamespace(
        fits=SimpleNamespace(choice=choices(chosen, unfinished)),
        numbers=numbers,
        combined=SimpleNamespace(suggested=None),
    )


def other_choices(study: Study, made: Any) -> list[str]:
    return classes._other_choices(study, made, made.fits.choice)


def test_sites_vote_and_resamples_show_stability() -> None:
    study = study_of("A", "B")
    chosen = {"A": 4, "B": 4, "A/1": 4, "A/2": 5, "B/1": 4, "B/2": 4}
    text = summary._choice(study, findings(chosen, 4))
    assert text.startswith("At each site, BIC chose 4 classes for the site's own data (candid")
    assert "of 4 resamples, 3 chose 4" in text
    assert text.count(".") == 1  # one sentence
    assert "stability but is no further evidence" in text
    (note,) = other_choices(study, findings(chosen, 4))
    assert "1 of 4 resamples chose 5" in note


def test_models_with_more_classes_are_asked_too() -> None:
    made = findings({"A": 4, "B": 4}, 4)
    made.combined.suggested = pd.DataFrame(
        {
            "classes": [5, 6, "all"],
            "suggested": [4, 5, 4],
            "sure": ["clear", "fair", "doubtful"],
        }
    )
    (note,) = classes._suggestions(made)
    assert "models with 5 and 6 classes, and of all of these together, suggest 4 (clear), " in note
    assert "5 (fair) and 4 (doubtful) clusters" in note
    assert note.endswith("right in only 55 of 94 doubtful cases.")


@pytest.mark.parametrize(
    ("chosen", "k", "rule"),
    [
        ({"A": 5, "B": 4}, 4, "the smallest of the most frequent numbers, 4, was used"),
        ({"A": 5, "B": 5, "C": 3}, 5, "the most frequent number, 5, was used"),
    ],
)
def test_sites_that_disagree_are_named(chosen: dict[str, int], k: int, rule: str) -> None:
    study = study_of(*chosen)
    text = summary._choice(study, findings(chosen, k))
    assert "5 at A" in text
    assert rule in text
    (note,) = other_choices(study, findings(chosen, k))
    other = next(site for site, c in chosen.items() if c != k)
    assert f"{other} chose {chosen[other]}" in note


def test_fits_that_did_not_converge_are_told() -> None:
    notes = other_choices(study_of("A"), findings({"A": 3}, 3, unfinished=2))
    assert notes == [
        "2 of the 8 fits that compare numbers of classes did not converge (see the column "
        "“converged” of their table)."
    ]
    fitted = pd.DataFrame(
        [("A", 3, True), ("B", 1, True), ("C", 2, False)],
        columns=["model", "replicated", "converged"],
    ).assign(searches=3, parameters=9.0, patients=100.0, all_used=True)
    made: Any = SimpleNamespace(fits=SimpleNamespace(models=fitted))
    once, unfinished = models.cautions(study_of("A"), made)
    assert "1 model (B) was reached by fewer than two independent searches, or by" in once
    assert once.endswith('set model.search = "thorough", which takes several times as long.')
    thorough = study_of("A", model={"search": "thorough"})
    assert models.cautions(thorough, made)[0].endswith("raise model.n_init (now 40).")
    assert unfinished == "The fit of 1 model (C) did not converge."


def difference(membership: str, value: float, sites: str = "A − B", **more: float) -> Number:
    names = {"quantity": "transition", "weighting": "occupancy", "membership": membership}
    return Number(Kind.DIFFERENCE, value, sites, **names, **more)  # type: ignore[arg-type]


def test_a_smaller_difference_is_not_called_better() -> None:
    apart = {"debiased": 0.031, "low": 0.02, "high": 0.04, "n_boot": 199}
    steps = {"quantity": "transition", "weighting": "occupancy"}
    numbers = [
        difference("ensemble", 0.045, debiased=0.04),
        difference("local", 0.062, debiased=0.048),
        Number(Kind.SHARED, 123.4, "A − B", p_value=1 / 200, n_boot=199),
        Number(Kind.APART, 0.05, "A − B", **steps, **apart),  # type: ignore[arg-type]
    ]
    text = summary._site_sentence(SimpleNamespace(numbers=numbers))  # type: ignore[arg-type]
    first, second = text.split(". ", 1)
    assert "differs between the sites by 0.045 (norm" in first
    assert "; under each site's own model, by 0.062, but a common rule often lowers this" in first
    assert "p " not in first  # groups as they were formed are no evidence
    assert second == (
        "Without assigning patients to clusters, and without what sampling adds, the difference "
        "is 0.031 (95 % interval 0.020 to 0.040); a likelihood-ratio test that the sites share all "
        "courses gives p ≤ 0.005."
    )
    more = [
        difference("ensemble", 0.1, "A − C"),
        difference("local", 0.05, "A − C"),
        Number(Kind.SHARED, 150.0, "all sites", p_value=0.02, n_boot=199),
        Number(Kind.SHARED, 123.4, "A − B", p_value=0.03, n_boot=199),
        Number(Kind.SHARED, 60.0, "A − C", p_value=0.4, n_boot=199),
        Number(Kind.SHARED, 60.0, "B − C", p_value=0.4, n_boot=199),
    ]
    text = summary._site_sentence(SimpleNamespace(numbers=[*numbers[:2], *more]))  # type: ignore[arg-type]
    assert "; mean over the comparisons of sites)" in text
    assert "under each site's own model, by 0.056. " in text  # nothing to make light of
    assert text.endswith(
        "A likelihood-ratio test that all sites share all courses gives p = 0.02; 1 of the 3 pairs "
        "of sites differs (adjusted by Holm's method)."
    )


def test_numbers_are_records_with_names_for_people() -> None:
    numbers = [
        difference("MGB everywhere", 0.1, "MGB − VA"),
        Number(Kind.SIZE, 0.25, "MGB", "cluster 2", n=30),
        Number(Kind.TRUTH, 0.8, "VA", membership="own model"),
    ]
    assert [one.name for one in numbers] == [
        "site difference, transition by occupancy, MGB everywhere, MGB − VA",
        "share of cluster 2, MGB",
        "adjusted Rand index against the truth, own model, VA",
    ]
    assert [one.unit for one in numbers] == ["index", "share", "index"]
    assert pick(numbers, Kind.SIZE, sites="MGB") == [numbers[1]]
    assert pick(numbers, Kind.SIZE, sites="VA") == []
    table = numbers_table(numbers)
    assert table["kind"].tolist() == ["site difference", "share of", numbers[2].kind.value]
    assert table["n"].tolist()[1] == 30


def test_words() -> None:
    assert span((1, 2, 3, 4)) == "1 to 4"
    assert span((7, 2, 4)) == "2, 4 and 7"
    study = study_of("A", outputs={"time": "Month"})
    assert windows_name(study) == "months"
    assert period(study, 16) == "16 months"


def test_methods_describe_the_search_that_was_made() -> None:
    """Starts are of several kinds, and what follows them is no random start."""
    text = search_text(40, thorough=False)
    assert "random starts" not in text
    assert (
        "began from 40 starts (50 % from groups around patients with dissimilar courses, 25 %"
        in text
    )
    assert "the best 12 were followed" in text
    assert "If fewer than half of these ended at the best one" in text
    assert "up to 3 independent searches perturbed their maxima" in text
    thorough = search_text(8, thorough=True)
    assert "the best 8 were followed to their maxima. If not all of these" in thorough
    assert "up to 6 independent searches" in thorough


def test_methods_describe_the_refinement_and_what_resamples_are() -> None:
    """The summary quotes probabilities of the refined model; the methods must say what it is."""
    study = study_of("A", "B")
    done: Any = SimpleNamespace(n_steps=1, converged=False)
    text = " ".join(refinement._refined(study, done))
    assert (
        "followed by one step of expectation-maximisation across the sites (refined model)" in text
    )
    assert "converge" not in text
    further = study_of("A", "B", ensemble={"refine": "converge"})
    done = SimpleNamespace(n_steps=31, converged=True)
    assert (
        "by 31 steps of expectation-maximisation across the sites until convergence"
        in (refinement._refined(further, done)[0])
    )
    none: Any = SimpleNamespace(n_steps=0, converged=False)
    refit = refinement._refined(study_of("A", "B", ensemble={"refine": 0}), none)[0]
    assert "were estimated from the patients of the ensemble's clusters (refined model)" in refit
    used = {f"{site}/{i}": site for site in "AB" for i in (1, 2, 3, 4)}
    combined: Any = SimpleNamespace(n_groups=4, models=used)
    fitted = models._fitted(study, combined)[-1]
    assert "8 models of 2 sites show how stable the clusters are under resampling" in fitted
    assert "they are not 8 independent sites" in fitted
    whole = models._fitted(study_of("A", "B", pseudo_sites={"per_site": 0}), combined)
    assert "resampl" not in " ".join(whole)


def test_large_residuals_are_counted_against_chance() -> None:
    """Among 320 residuals 15 are beyond 2 by chance; that alone is no sign of a misfit."""
    residual = np.zeros(321)
    residual[:18], residual[18], residual[20] = 2.5, -4.2, np.nan
    text = fit._beyond(pd.DataFrame({"residual": residual}))
    assert text == (
        "Of 320 residuals, about 15 would be beyond ±2 by chance alone; 19 are, and 1 beyond ±3.8, "
        "where in 19 of 20 such tables there would be none (Bonferroni)."
    )
    assert fit._beyond(pd.DataFrame({"residual": [np.nan]})) == ""


def test_no_section_speaks_in_vain() -> None:
    """Methods and cautions follow the order of the analysis; no section may be missing there."""
    page = [*registry.RESULTS, *registry.DIAGNOSTICS]
    analysis = [section for paragraph in registry.PARAGRAPHS for section in paragraph]
    assert len({section.key for section in page}) == len(page)
    assert len({section.key for section in analysis}) == len(analysis)
    silent = Section("", "", lambda study, findings: [])
    for section in page:
        if section.methods is not silent.methods or section.cautions is not silent.cautions:
            assert section in analysis, section.key
    assert set(analysis) <= set(page)
