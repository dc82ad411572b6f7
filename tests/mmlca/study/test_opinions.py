"""Second opinions in studies: the library's numbers, what is hidden or rounded, and sentences."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mmlca
from mmlca.study.results import groups, opinions
from mmlca.study.results.groups import pairs_of
from mmlca.study.results.opinions import Opinions, opinions_of, other_groups
from mmlca.study.results.registry import TABLES
from mmlca.study.results.shown_courses import sizes_of
from mmlca.study.results.site import ENSEMBLE, REFINED, SitePatients, SiteResults, typed
from mmlca.study.sections import opinions as section
from mmlca.study.settings import Study
from mmlca.tables.course_fit import course_fit
from mmlca.tables.disclosure import Rounding, is_small
from mmlca.tables.second_opinion import (
    COURSE,
    DISTANCES,
    SecondOpinion,
    patients_by_group,
    second_opinion,
)

UNIT, T = 11, 8
PARTS = (groups.PART, opinions.PART)


def study_of(min_count: int = 1, **inference: Any) -> Study:
    return Study.model_validate(
        {
            "name": "x",
            "sites": {site: {"sequences": f"{site}.csv"} for site in "AB"},
            "privacy": {"min_count": min_count},
            "inference": inference,
            "classes": {"candidates": [1, 2, 3, 4]},
            "model": {"n_init": 4},
        }
    )


def people(seed: int, n: int) -> SitePatients:
    """Patients who leave early, late or never, in clusters that are not quite these; three views.

    The third cluster has few patients.
    """
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, n)
    stay = np.array([2, 5, T])[kind] + rng.integers(-1, 2, n)
    codes = (np.arange(T) >= stay[:, None]).astype(np.int8)
    codes[rng.random(codes.shape) < 0.05] = 2
    data = mmlca.Sequences.from_codes(codes, ["A", "B", "C"], ids=[f"{seed}-{i}" for i in range(n)])
    first = np.where(kind == 0, 1, 2)
    first[rng.choice(n, 20, replace=False)] = 1
    first[rng.choice(n, 4, replace=False)] = 3
    refined = first.copy()
    refined[rng.choice(n, 9, replace=False)] = 2
    views = {ENSEMBLE: pd.Series(first, data.ids), REFINED: pd.Series(refined, data.ids)}
    own: Any = SimpleNamespace(n_classes=3)
    nothing = pd.DataFrame(index=data.ids)
    return SitePatients("AB"[seed], data, views, nothing, nothing, own=own)


@pytest.fixture(scope="module")
def sites() -> dict[str, SitePatients]:
    return {"AB"[seed]: people(seed, 180 + 40 * seed) for seed in range(2)}


def rounded(patients: SitePatients) -> SitePatients:
    first = {patients.site: patients.groups[ENSEMBLE]}
    return SitePatients(
        patients.site,
        patients.sequences,
        patients.groups,
        patients.labels,
        patients.certainty,
        own=patients.own,
        rounding=Rounding(b"a secret", UNIT, first),
    )


def results_of(study: Study, sites: dict[str, SitePatients]) -> dict[str, SiteResults]:
    results = {}
    for site, patients in sites.items():
        tables = {name: typed(pd.DataFrame(), columns) for name, columns in TABLES.items()}
        about = pd.DataFrame({"patients": [len(patients.sequences)]})
        for part in PARTS:
            tables |= part.results(study, patients)
        tables["about"] = about.reindex(columns=list(TABLES["about"]))
        results[site] = SiteResults(site, 1 if patients.rounding is None else UNIT, tables)
    return results


def opinions_in(study: Study, sites: dict[str, SitePatients]) -> Opinions:
    found = opinions_of(results_of(study, sites), study.privacy.min_count, "cluster")
    assert found is not None
    return found


def library(study: Study, patients: SitePatients, min_count: int = 0) -> SecondOpinion:
    by_distance = mmlca.cluster_sequences(patients.sequences, 3, linkage="ward")
    return second_opinion(
        patients.sequences,
        patients.groups[REFINED],
        {DISTANCES: by_distance.labels + 1},
        ks=study.classes.candidates,
        n_init=study.model.n_init,
        min_count=min_count,
        seed=study.seed,
    )


@pytest.mark.filterwarnings("ignore:the best of all maxima")
def test_a_study_has_the_numbers_of_the_library(sites: dict[str, SitePatients]) -> None:
    """Groups have the numbers of the clusters to which they correspond; all else is the same."""
    study = study_of()
    found = opinions_in(study, sites)
    assert found.view == REFINED
    for site, patients in sites.items():
        other, here = library(study, patients), found.sites[site]
        pd.testing.assert_frame_equal(here.agreement, other.agreement)
        assert {COURSE, DISTANCES} <= set(here.agreement["method"])
        keys = ["method", "cluster", "patients", "share", "paired"]
        for mine, theirs in ((here.cross, other.cross), (here.courses, other.courses)):
            by = [name for name in (*keys, "path", "sequence_patients") if name in mine]
            both = [t[by].astype(str).sort_values(by).to_numpy() for t in (mine, theirs)]
            np.testing.assert_array_equal(*both)
        paired = here.cross[here.cross["paired"]]
        assert (paired["cluster"] == paired["group"]).all()
        fit = found.course_fit[found.course_fit["site"] == site].reset_index(drop=True)
        alone = course_fit(patients.sequences, patients.groups[REFINED], min_count=1, seed=1)
        pd.testing.assert_frame_equal(
            fit[list(alone.drop(columns="n"))], alone.drop(columns="n"), check_dtype=False
        )


def test_small_numbers_inside_are_hidden_with_the_sizes_of_the_page(
    sites: dict[str, SitePatients],
) -> None:
    study = study_of(UNIT)
    results = results_of(study, sites)
    sizes = sizes_of(results, REFINED, UNIT)
    found = opinions_of(results, UNIT, "cluster")
    assert found is not None
    hidden = [(site, k) for site in sites for k in (1, 2, 3) if np.isnan(sizes.at[site, k])]
    assert hidden
    for name in ("cross", "courses"):
        table = found.table(name)
        assert not set(hidden) & set(zip(table["site"], table["cluster"], strict=True))
        for column in table.filter(like="patients"):
            assert not is_small(table[column].fillna(0), UNIT).any()
    assert not set(hidden) & set(
        zip(*(found.course_fit[c] for c in ("site", "cluster")), strict=True)
    )
    fit = found.course_fit
    near = zip(fit["site"], fit["nearest"], strict=True)
    assert not set(hidden) & set(near)
    found.course_cautions()  # none is about a cluster that is not there
    for site, part in found.sites.items():
        whole = sizes.loc[site].drop(["all", *[k for s, k in hidden if s == site]]).sum()
        assert set(part.agreement["patients"]) == {whole}


def test_rounded_counts_have_the_draws_of_the_patients_who_are_counted(
    sites: dict[str, SitePatients],
) -> None:
    """The patients of a cluster and of a group are one number, whatever the group is called."""
    patients = rounded(sites["A"])
    clusters, others = patients.groups[REFINED], patients.groups[ENSEMBLE]
    rounding = patients.rounding_of(REFINED)
    assert rounding is not None
    counts, sizes = patients_by_group(clusters, others, rounding)
    pairs = pairs_of(clusters, others, "A", rounding)
    known = {(k, g): n for k, g, n in pairs}
    for k, row in counts.iterrows():
        for g, n in row.items():
            assert n >= known.get((k, g), 0.0)  # which is not above the size of g either
            assert n == known.get((k, g), 0.0) or n > rounding.of({"A": others})(
                (others == g).sum(), "A", int(str(g))
            )
    results = results_of(study_of(UNIT), {"A": patients})["A"]
    table = results.tables["groups"].query("view == 'refined'").set_index("group")["patients"]
    assert table.tolist() == sizes.tolist()
    for name in ("opinions", "opinion_courses"):
        for column in results.tables[name].filter(like="patients"):
            values = results.tables[name][column].fillna(0)
            assert not (values % UNIT).any()
            assert values.sum() > 0
    table = results.tables["opinion_courses"]
    assert not is_small(table["path_patients"].fillna(0), UNIT).any()


def test_a_cluster_of_few_patients_shows_neither_in_rows_nor_in_numbers_of_groups(
    sites: dict[str, SitePatients],
) -> None:
    """The rows of the release are the same whether anybody is in the third cluster or not."""
    patients, study = sites["A"], study_of(UNIT)
    there = opinions.PART.results(study, rounded(patients))["opinions"]
    views = {view: groups.replace(3, 2) for view, groups in patients.groups.items()}
    absent = SitePatients(
        "A", patients.sequences, views, patients.labels, patients.certainty, own=patients.own
    )
    other = opinions.PART.results(study, rounded(absent))["opinions"]
    keys = ["method", "cluster", "group"]
    pd.testing.assert_frame_equal(there[keys], other[keys])


def test_sentences_follow_from_the_numbers(sites: dict[str, SitePatients]) -> None:
    study = study_of()
    found = opinions_in(study, sites)
    names = {k: f"cluster {k}" for k in (1, 2, 3)}
    findings: Any = SimpleNamespace(
        opinions=found, names=SimpleNamespace(groups={"refined": names}), sites=["A", "B"]
    )
    table = found.agreement
    low = table[(table["adjusted_rand_index"] < 0.8) & (table["groups"] == 3)]
    assert len(low)
    caution = section.cautions(study, findings)[0]
    said = re.findall(r"(\d\.\d\d) at ([AB])", caution)
    assert sorted(said) == sorted(
        (f"{row.adjusted_rand_index:.2f}", row.site) for row in low.itertuples()
    )
    (methods,) = section.methods(study, findings)
    assert "best of 4 random starts" in methods
    items = {item.name: item for item in section.items(study, findings)}
    assert [*items] == ["second_opinion", "second_opinion_patients", "second_opinion_courses",
                        "course_fit"]  # fmt: skip
    wide = items["second_opinion_patients"].layout.shown  # type: ignore[union-attr]
    assert wide is not None
    cross = found.table("cross")
    assert len(wide) == len(cross[["site", "method", "cluster"]].drop_duplicates())
    shown = [int(re.match(r"[\d,]+", t)[0].replace(",", "")) for t in  # type: ignore[index]
             wide.filter(like="group ").stack().dropna()]  # fmt: skip
    assert sum(shown) == cross["patients"].sum()


def test_where_nothing_can_be_compared(sites: dict[str, SitePatients]) -> None:
    """Without the setting, without a model of the site, and with fewer courses than clusters."""
    patients = sites["A"]
    off = opinions.make(study_of(second_opinion=False), patients)
    alone = SitePatients("A", patients.sequences, patients.groups, *[pd.DataFrame()] * 2)
    assert off == opinions.make(study_of(), alone) == {}
    empty = results_of(study_of(second_opinion=False), sites)
    assert opinions_of(empty, 1, "cluster") is None
    nothing: Any = SimpleNamespace(opinions=None)
    study = study_of()
    assert not [*section.items(study, nothing), *section.methods(study, nothing)]
    same = mmlca.Sequences.from_lists([["A", "B"]] * 40 + [["B", "B"]] * 20)
    assert other_groups(study, same, 3) == {}
    assert {COURSE, DISTANCES} <= set(other_groups(study, same, 2))
    assert DISTANCES not in other_groups(study, same, 1)
