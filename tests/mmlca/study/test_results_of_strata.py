"""Strata in the results of sites: exact, rounded, put together, and what they reveal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from study_attack import System, count_of

from font.errors import InputError
from mmlca.figures.distribution import plot_state_distribution
from mmlca.sequences.type import Account, Sequences, flow_table
from mmlca.study import site_data
from mmlca.study.results import about, strata
from mmlca.study.results.registry import TABLES
from mmlca.study.results.site import ALL_SITES, ENSEMBLE, SitePatients, SiteResults, typed
from mmlca.study.results.strata import Strata, strata_of
from mmlca.study.sections.strata import differences, panels
from mmlca.study.settings import Study
from mmlca.tables.disclosure import Rounding, is_small
from mmlca.tables.shared_chains import cluster_memberships
from mmlca.tables.strata import share_scores, share_test
from mmlca.tables.table_one import TableOne, table_one

UNIT, SITES, CLUSTERS = 11, ("X", "Y"), (1, 2, 3)
NAMES = {k: f"cluster {k}" for k in CLUSTERS}
BY = {
    "columns": ("sex", "age", "race", "index_year", "site"),
    "cut_points": {"age": (45, 60), "index_year": (2012,)},
}
AGES = ("below 45", "45 to below 60", "60 and over")


class Cohort:
    """Patients of two sites; women are more often in the second cluster."""

    def __init__(self, n: Mapping[str, int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.data: dict[str, Sequences] = {}
        self.people: dict[str, pd.DataFrame] = {}
        self.clusters: dict[str, pd.Series] = {}
        stay = np.array([0.95, 0.5, 0.15])
        for i, site in enumerate(n):
            ids = [f"{site}{j}" for j in range(n[site])]
            sex = rng.choice(["F", "M"], n[site], p=[0.7, 0.3])
            group = np.array([rng.choice(3, p=[0.4, 0.4, 0.2] if s == "F" else [0.7, 0.2, 0.1])
                              for s in sex])  # fmt: skip
            codes = np.zeros((n[site], 8), dtype=np.int8)
            codes[:, 0] = rng.integers(0, 2, n[site])
            for t in range(1, 8):
                moves = rng.random(n[site]) > stay[group]
                codes[:, t] = np.where(moves, 1 - codes[:, t - 1], codes[:, t - 1])
            for row, length in enumerate(rng.integers(3, 9, n[site])):
                codes[row, length:] = -1
            data = Sequences.from_codes(codes, ["A", "B"])
            people = pd.DataFrame(
                {
                    "sex": sex,
                    "age": rng.integers(30, 80, n[site]),
                    "race": rng.choice(["a", "b", "c", "d"], n[site], p=[0.75, 0.12, 0.09, 0.04]),
                    "score": np.where(rng.random(n[site]) < 0.04, np.nan, rng.normal(size=n[site])),
                },
                ids,
            )
            people["race"] = people["race"].where(rng.random(n[site]) > 0.02 * i)
            start = pd.Timestamp("2010-01-01") + pd.to_timedelta(
                rng.integers(0, 1500, len(ids)), "D"
            )
            known = people.assign(index_date=start)
            flow = flow_table(len(ids), len(ids), [])
            issues = pd.DataFrame(columns=["issue", "n", "action"])
            account = Account(flow, issues, known, np.ones(len(ids), np.int64), {})
            self.data[site] = replace(data, ids=pd.Index(ids), account=account)
            self.people[site] = people
            self.clusters[site] = pd.Series(group + 1, ids)

    def study(self, release: str = "inside", min_count: int = 1, **by: Any) -> Study:
        sites = {site: {"records": f"{site}.csv"} for site in self.data}
        privacy = {"release": release, "min_count": min_count}
        settings = {"name": "strata", "sites": sites, "privacy": privacy, "strata": BY | by}
        return Study.model_validate(settings)

    def results(self, study: Study) -> dict[str, SiteResults]:
        results = {}
        for site, data in self.data.items():
            groups = {ENSEMBLE: self.clusters[site]}
            rounding = None
            if study.privacy.release == "public":
                rounding = Rounding(b"secret", UNIT, {site: groups[ENSEMBLE]})
            empty = pd.DataFrame(index=data.ids)
            alone = SitePatients(site, data, groups, empty, empty, rounding=rounding)
            tables = {name: typed(pd.DataFrame(columns=list(c)), c) for name, c in TABLES.items()}
            final = [False] * len(data.states)
            tables["states"] = pd.DataFrame({"state": list(data.states), "final": final})
            tables["times"] = pd.DataFrame({"time": list(data.times)})
            for part in (about.TABLE_ONE, strata.PART):
                tables |= part.results(study, alone)
            results[site] = SiteResults(site, 1 if rounding is None else UNIT, tables)
        return results

    def found(self, study: Study) -> tuple[TableOne, Strata]:
        results = self.results(study)
        one = about.table_one_of(study, results, NAMES, {})
        found = strata_of(study, results, NAMES, one)
        assert found is not None
        return one, found

    def strata(self, study: Study, site: str) -> pd.DataFrame:
        return site_data.strata_of(study, site, self.data[site])


@pytest.fixture
def cohort(monkeypatch: pytest.MonkeyPatch) -> Cohort:
    return made(monkeypatch, {"X": 260, "Y": 190}, 1)


def made(monkeypatch: pytest.MonkeyPatch, n: Mapping[str, int], seed: int) -> Cohort:
    """What a site reads is in memory."""
    cohort = Cohort(n, seed)
    monkeypatch.setattr(site_data, "patients_of", lambda study, site, data: cohort.people[site])
    return cohort


# --- exact numbers ------------------------------------------------------------------------------


def test_numbers_are_those_of_pandas_and_of_the_library(cohort: Cohort) -> None:
    study = cohort.study()
    _, found = cohort.found(study)
    assert [part.label for part in found.parts] == ["sex", "age", "race", "year of start", "site"]
    for part in found.parts:
        for site, data in cohort.data.items():
            labels = cohort.strata(study, site)[part.name]
            counts = pd.crosstab(labels.fillna("not known"), cohort.clusters[site])
            rows = part.shares[part.shares["site"] == site]
            grid = rows.pivot(index="stratum", columns="cluster", values="count")
            grid = grid.rename(columns={name: k for k, name in NAMES.items()})
            pd.testing.assert_frame_equal(
                grid.sort_index(), counts, check_dtype=False, check_names=False
            )
            share = rows["count"] / rows["stratum"].map(counts.sum(axis=1))
            np.testing.assert_allclose(rows["share"], share)
            shown = part.courses.shown("distribution")
            shown = shown[shown["site"] == site]
            frame = pd.DataFrame(data.codes, data.ids)
            for stratum, cell in shown.groupby("group", sort=False):
                here = frame[(labels == stratum).to_numpy()]
                in_a = cell[cell["state"] == "A"]
                assert in_a["count"].tolist() == (here == 0).sum().tolist()
                assert in_a["n"].tolist() == (here >= 0).sum().tolist()
    by_age = found.parts[1].shares
    assert list(dict.fromkeys(by_age["stratum"])) == list(AGES)
    years = found.parts[3].shares["stratum"]
    assert list(dict.fromkeys(years)) == ["before 2012", "2012 and later"]


def test_the_tables_by_stratum_are_those_of_table_one(cohort: Cohort) -> None:
    study = cohort.study()
    _, found = cohort.found(study)
    by_sex, by_age, by_race, by_year, by_site = (part.people for part in found.parts)
    left_out = [part.left_out for part in found.parts[:4]]
    assert left_out == [["sex"], ["sex"], ["sex", "race"], ["sex", "race"]]
    assert by_site is None  # the column of all patients of Table 1
    assert by_sex is not None
    assert by_age is not None
    assert by_race is not None
    assert by_year is not None
    labels = {site: cohort.strata(study, site)["sex"] for site in SITES}
    people = {site: frame.drop(columns="sex") for site, frame in cohort.people.items()}
    pd.testing.assert_frame_equal(by_sex, table_one(people, labels).to_frame())
    cells = {name: set(frame.index.get_level_values(0)) for name, frame in
             {"age": by_age, "race": by_race, "year": by_year}.items()}  # fmt: skip
    title = {"age": "age, mean (SD)", "sex": "sex, n (%)", "race": "race, n (%)"}
    assert {title["age"], title["race"]} < cells["age"]
    assert title["sex"] not in cells["age"]
    assert not {title["sex"], title["race"]} & cells["race"]
    assert not {title["sex"], title["race"]} & cells["year"]
    assert ("Y", "not known") in by_race.columns
    assert ("X", "not known") not in by_race.columns


def test_a_single_site_has_columns_without_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = made(monkeypatch, {"X": 150}, 3)
    study = cohort.study(min_count=UNIT, columns=("sex",), cut_points={})
    one, found = cohort.found(study)
    (part,) = found.parts
    assert part.people is not None
    assert part.people.columns.tolist() == ["F", "M", "all"]
    assert set(part.shares["site"]) == {"X"}
    in_table = one.frame.loc["sex, n (%)"].drop(columns="all").map(count_of)
    grid = part.shares.pivot(index="stratum", columns="cluster", values="count")
    pd.testing.assert_frame_equal(grid, in_table, check_names=False)  # hidden in both or none
    assert len(found.tests) == 1


def test_the_tests_are_those_of_the_memberships(cohort: Cohort) -> None:
    study = cohort.study()
    _, found = cohort.found(study)
    assert found.tests["variable"].tolist() == ["sex", "age", "race", "year of start"]
    scores = []
    for site in SITES:
        data, labels = cohort.data[site], cohort.clusters[site]
        posterior = cluster_memberships({"": data}, {"": labels})[""]
        scores.append(share_scores(posterior, cohort.strata(study, site)["sex"]))
    test = share_test(scores)
    assert test is not None
    row = found.tests.iloc[0]
    np.testing.assert_allclose(row[["statistic", "p_value"]].astype(float), test[::2], rtol=1e-9)
    assert row["df"] == 2
    # four tests: Holm's smallest p-value is multiplied by 4
    assert found.tests["p_holm"].min() == pytest.approx(4 * found.tests["p_value"].min())


def test_sentences_say_what_the_tables_show(cohort: Cohort) -> None:
    study = cohort.study()
    _, found = cohort.found(study)
    for text, row in zip(differences(study, found), found.tests.itertuples(), strict=True):
        assert text.startswith("The shares differ") == (row.p_holm < 0.05)
    part = found.parts[0]
    tests = pd.DataFrame({"variable": ["sex"], "p_value": [0.001], "p_holm": [0.001]})
    (text,) = differences(study, Strata([part], tests))
    every = part.shares[part.shares["site"] == ALL_SITES].pivot(
        index="stratum", columns="cluster", values="share"
    )
    spread = every.max() - every.min()
    cluster = spread.idxmax()
    high, low = every[cluster].max(), every[cluster].min()
    assert f"that of {cluster}: {100 * high:.0f} % of" in text
    assert f"and {100 * low:.0f} % of" in text
    blank = replace(part, shares=part.shares.assign(share=np.nan))
    assert differences(study, Strata([blank], tests)) == [
        "The shares differ by sex (adjusted p = 0.001)."
    ]


def test_each_figure_has_a_panel_for_each_site_and_stratum(cohort: Cohort) -> None:
    _, found = cohort.found(cohort.study())
    n_strata = {"sex": 2, "age": 3, "race": 4, "index_year": 2}
    for part in found.parts:
        drawn = plot_state_distribution(part.infos, table=panels(part))
        titles = [ax.get_title() for ax in drawn.axes if ax.get_title()]
        places = 2 if part.name == "site" else 3 * n_strata[part.name]
        assert len(titles) == places, titles
        plt.close("all")


# --- what they reveal ---------------------------------------------------------------------------


def system_of(one: TableOne, found: Strata) -> System:
    """What Table 1 and the tables of strata tell together of all counts.

    Unknowns are (variable, site, level, group) and ("size", site, group); groups are clusters,
    (column, stratum), and "all".
    """
    system, names = System(), {name: k for k, name in NAMES.items()} | {"all": "all"}
    groups: dict[str, list[Any]] = {"clusters": list(CLUSTERS)}
    tables: list[tuple[pd.DataFrame, str]] = [(one.frame, "clusters")]
    for part in found.parts:
        levels = list(dict.fromkeys(part.shares["stratum"]))
        groups[part.name] = [(part.name, level) for level in levels]
        assert part.people is not None
        tables.append((part.people, part.name))
    everywhere = [*SITES, ALL_SITES]
    group = {"clusters": names.__getitem__}
    variables: dict[str, dict[str, None]] = {}
    for frame, block in tables:
        for site, label in frame.columns:
            g = group.get(block, lambda x, b=block: x if x == "all" else (b, x))(label)
            for (title, level), cell in frame[site, label].items():
                variable = title.split(",")[0]
                if "mean" in title and not level:
                    continue
                name = (variable, site, level, g)
                if variable == "patients":
                    name = ("size", site, g)
                elif "mean" not in title:
                    variables.setdefault(variable, {})[level] = None
                shown(system, name, count_of(cell))
    for part in found.parts:
        for row in part.shares.itertuples():
            stratum = (part.name, row.stratum)
            shown(system, ("by", row.site, stratum, names[row.cluster]), row.count)
            shown(system, ("size", row.site, stratum), row.n)
    for site in everywhere:
        for block, members in groups.items():
            if site == ALL_SITES and block != "clusters":
                here = [g for g in members if ("size", site, g) in system.at]
            else:
                here = [g for g in members if ("size", site, g) in system.at]
            system.add([("size", site, g) for g in here], ("size", site, "all"))
            for variable, levels in variables.items():
                if block == variable or not any((variable, site, v, here[0]) in system.at
                                                for v in levels):  # fmt: skip
                    continue
                for level in levels:
                    parts = [(variable, site, level, g) for g in here]
                    system.add(parts, (variable, site, level, "all"))
                for g in [*here, "all"]:
                    system.add([(variable, site, v, g) for v in levels], ("size", site, g))
        for part in found.parts:
            here = [g for g in groups[part.name] if ("size", site, g) in system.at]
            for g in here:
                system.add([("by", site, g, k) for k in CLUSTERS], ("size", site, g))
                if part.name in variables and (part.name, site, g[1], 1) in system.at:
                    for k in CLUSTERS:
                        system.add([("by", site, g, k)], (part.name, site, g[1], k))
                    system.add([("size", site, g)], (part.name, site, g[1], "all"))
            for k in CLUSTERS:
                system.add([("by", site, g, k) for g in here], ("size", site, k))
    for name in list(system.at):
        if ALL_SITES in name:
            parts = [tuple(site if x == ALL_SITES else x for x in name) for site in SITES]
            system.add([p for p in parts if p in system.at], name)
    return system


def shown(system: System, name: tuple[Any, ...], value: float) -> None:
    """A zero shows, so that what is hidden is at least 1."""
    system.unknown(name, *((1.0, np.inf) if np.isnan(value) else (value, value)))


def truth(cohort: Cohort, study: Study) -> dict[tuple[Any, ...], int]:
    """The numbers of every site behind the unknowns."""
    numbers: dict[tuple[Any, ...], int] = {}
    for site in SITES:
        people, labels = cohort.people[site], cohort.strata(study, site).fillna("not known")
        groups: dict[Any, Any] = {k: cohort.clusters[site] == k for k in CLUSTERS}
        for column in labels:
            for level in labels[column].unique():
                groups[column, level] = labels[column] == level
        for g, members in groups.items():
            numbers["size", site, g] = int(members.sum())
            for variable in ("sex", "race"):
                values = people[variable].fillna("missing")
                for level in values.unique():
                    numbers[variable, site, level, g] = int((members & (values == level)).sum())
            if isinstance(g, tuple):
                for k in CLUSTERS:
                    both = members & (cohort.clusters[site] == k)
                    numbers["by", site, g, k] = int(both.sum())
    return numbers


@pytest.mark.parametrize("seed", [0, 2])
def test_strata_table_one_and_sizes_tell_no_small_number_together(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """What Table 1 hides would follow from strata that hide other cells, and the reverse."""
    cohort = made(monkeypatch, {"X": 150 + 40 * seed, "Y": 120}, seed + 5)
    study = cohort.study(min_count=UNIT, columns=("sex", "age", "race"), cut_points={"age": (60,)})
    one, found = cohort.found(study)
    system, n_small = system_of(one, found), 0
    numbers = truth(cohort, study)
    for name, n in numbers.items():
        if name not in system.at or not is_small(n, UNIT):
            continue
        n_small += 1
        low, high = system.range_of(name)
        assert low - 1e-6 <= n <= high + 1e-6, name
        # a size may show, and bounds what its parts can be
        sizes = [numbers.get(("size", name[1], part), 10**6) for part in name[2:]]
        others = 0
        if name[0] in ("sex", "race"):
            sizes.append(
                numbers["size", name[1], (name[0], name[2].replace("missing", "not known"))]
            )
            others = sum((name[0], name[1], v, name[3]) in system.at for v in "abcd") - 1
        assert high - low > min(UNIT - 2, min(sizes) - 1 - max(others, 1)) - 1e-6, (
            name,
            n,
            low,
            high,
        )
    assert n_small > 20


def test_every_count_of_a_public_release_is_rounded_alike_under_every_name(cohort: Cohort) -> None:
    study = cohort.study("public", UNIT)
    results = cohort.results(study)
    for result in results.values():
        for name in strata.PART.tables:
            for column, kind in strata.PART.tables[name].items():
                if kind.kind == "count":
                    values = result.tables[name][column].dropna()
                    assert len(values) or column == "patients"
                    assert (values % UNIT == 0).all(), (name, column)
        scores = result.tables["strata_scores"]["excess"]
        spread = result.tables["strata_covariances"]["covariance"]
        assert all(len(f"{abs(x):.12g}".replace("0.", "").strip("0.")) <= 4 for x in scores)
        assert spread.notna().all()
    for site in SITES:  # in other words
        cohort.people[site]["sex"] = cohort.people[site]["sex"].replace({"F": "w", "M": "z"})
    renamed = cohort.results(study)
    for site in SITES:
        for name in ("strata_clusters", "strata_windows", "strata_people", "strata_scores"):
            before, after = (r[site].tables[name].copy() for r in (results, renamed))
            for column in ("stratum", "level"):
                if column in before:
                    before[column] = before[column].replace({"F": "w", "M": "z"})
            pd.testing.assert_frame_equal(before, after, obj=name)


def test_rounded_scores_are_of_the_same_precision_as_their_errors(cohort: Cohort) -> None:
    """Someone who knows all patients but one cannot read off the stratum of that one."""
    exact = cohort.results(cohort.study())["X"].tables
    rounded = cohort.results(cohort.study("public", UNIT))["X"].tables
    keys = ["by", "stratum", "cluster"]
    both = exact["strata_scores"].merge(rounded["strata_scores"], on=keys)
    own = rounded["strata_covariances"]
    own = own[(own["stratum"] == own["other_stratum"]) & (own["cluster"] == own["other_cluster"])]
    both = both.merge(own, on=keys)
    away = (both["excess_x"] - both["excess_y"]).abs() / np.sqrt(both["covariance"])
    assert away.mean() > 0.2
    assert away.max() < 1.0
    multiples = both["excess_y"] / np.sqrt(both["covariance"] * 6 / 7)
    assert (multiples - multiples.round()).abs().max() < 0.1 * multiples.abs().max() + 0.1


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ({"columns": ("colour",), "cut_points": {}}, "strata.columns names colour"),
        ({"columns": ("score",), "cut_points": {}}, "'score' of strata.columns has"),
        ({"columns": ("sex",), "cut_points": {"sex": (1,)}}, "cut points of 'sex', which holds"),
    ],
)
def test_strata_that_cannot_be_formed_are_refused(
    cohort: Cohort, by: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        site_data.check_columns(cohort.study(**by), cohort.data)


def test_years_need_dates_and_sites_need_several(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {site: replace(data, account=None) for site, data in cohort.data.items()}
    with pytest.raises(InputError, match="index_year, which needs dates"):
        site_data.check_columns(cohort.study(columns=("index_year",), cut_points={}), plain)
    study = cohort.study(columns=("site",), cut_points={}).alone("X")
    with pytest.raises(InputError, match="the study has a single one"):
        site_data.check_columns(study, {"X": cohort.data["X"]})


def test_a_study_without_strata_has_none(cohort: Cohort) -> None:
    study = cohort.study(columns=(), cut_points={})
    results = cohort.results(study)
    assert all(not len(results["X"].tables[name]) for name in strata.PART.tables)
    one = about.table_one_of(study, results, NAMES, {})
    assert strata_of(study, results, NAMES, one) is None
