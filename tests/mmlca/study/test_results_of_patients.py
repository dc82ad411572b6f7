"""Table 1, the account of the data and the labs in the results of sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ehr_prep
from mmlca.sequences.type import Sequences
from mmlca.study import read_study
from mmlca.study.results import about
from mmlca.study.results.about import TABLE_ONE, table_one_of
from mmlca.study.results.site import ENSEMBLE, SitePatients, SiteResults
from mmlca.study.settings import Study
from mmlca.tables.disclosure import Rounding, is_small
from mmlca.tables.settings import TableOneSettings
from mmlca.tables.table_one import put_together, table_one
from mmlca.tables.table_one_site import site_tables
from tests.helpers.study_attack import table_one_system

NAMES = {1: "1: stay", 2: "2: switch", 3: "3: others"}
UNIT = 11


def people(seed: int, sites: int = 3) -> tuple[dict[str, pd.DataFrame], dict[str, pd.Series]]:
    rng = np.random.default_rng(seed)
    tables, clusters = {}, {}
    for i in range(sites):
        n = int(rng.integers(80, 160))
        ids = pd.Index([f"{i}-{j}" for j in range(n)])
        tables[f"S{i}"] = pd.DataFrame(
            {
                "age": rng.integers(20, 90, n).astype(float),
                "sex": rng.choice(["F", "M"], n),
                "race": rng.choice(list("abcd"), n, p=[0.8, 0.1, 0.07, 0.03]),
                "score": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
            },
            ids,
        )
        clusters[f"S{i}"] = pd.Series(rng.choice([1, 2, 3], n, p=[0.6, 0.25, 0.15]), ids)
    return tables, clusters


def study_of(folder: Path, tables: dict[str, pd.DataFrame], release: str = "inside") -> Study:
    """A study of sequences, whose patients' tables are files."""
    lines = ['name = "x"', "[privacy]", f'release = "{release}"', f"min_count = {UNIT}"]
    lines += ["[table_one]", 'columns = ["all", "p", "smd"]']
    for site, table in tables.items():
        table.rename_axis("patient_id").to_csv(folder / f"{site}.csv")
        (folder / f"{site}_sequences.csv").touch()
        lines += [f"[sites.{site}]", f'sequences = "{site}_sequences.csv"']
        lines += [f'patients = "{site}.csv"']
    path = folder / "study.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_study(path)


def results_of(
    study: Study,
    tables: dict[str, pd.DataFrame],
    clusters: dict[str, pd.Series],
    rounding: Rounding | None = None,
) -> dict[str, SiteResults]:
    """The results of each site, of which no other is known there."""
    results = {}
    for site, table in tables.items():
        data = Sequences.from_lists([["a"]] * len(table), ids=table.index)
        empty = pd.DataFrame(index=data.ids)
        groups = {ENSEMBLE: clusters[site]}
        alone = SitePatients(site, data, groups, empty, empty, rounding=rounding)
        made = about.TABLE_ONE.results(study, alone)
        results[site] = SiteResults(site, 1 if rounding is None else UNIT, made)
    return results


@pytest.mark.parametrize("seed", range(3))
def test_table_one_of_exact_results_is_that_of_all_patients(tmp_path: Path, seed: int) -> None:
    tables, clusters = people(seed)
    study = study_of(tmp_path, tables)
    named = {site: part.map(NAMES) for site, part in clusters.items()}
    expected = table_one(tables, named, study.table_one, min_count=UNIT, descriptions={})
    found = table_one_of(study, results_of(study, tables, clusters), NAMES, {})
    pd.testing.assert_frame_equal(found.frame[list(tables)], expected.frame)


def test_all_sites_together_are_one_site(tmp_path: Path) -> None:
    """Sums, and means and standard deviations, are those of all patients in one table."""
    tables, clusters = people(1)
    settings = TableOneSettings(columns=("all",))
    parts = {
        site: site_tables(table, clusters[site].to_numpy(), settings)
        for site, table in tables.items()
    }
    found = put_together(parts, settings, all_sites=True).frame["all sites"]
    expected = table_one(pd.concat(list(tables.values())), pd.concat(list(clusters.values())))
    assert found.to_numpy().tolist() == expected.frame.to_numpy().tolist()


@pytest.mark.parametrize("seed", range(4))
def test_no_small_number_follows_from_those_of_all_sites(tmp_path: Path, seed: int) -> None:
    """The sites and all sites together, in one system with the sizes of the clusters."""
    tables, clusters = people(10 + seed)
    study = study_of(tmp_path, tables)
    frame = table_one_of(study, results_of(study, tables, clusters), NAMES, {}).frame
    exact, n_small = pd.concat(tables), 0
    for name in ("sex", "race"):
        levels = {"patients, n (%)": [("", "all")]}
        levels[f"{name}, n (%)"] = [(level, level) for level in sorted(exact[name].unique())]
        shown: dict[tuple[str, str, str], float | None] = {}
        for site in [*tables, "all sites"]:
            for group in [*NAMES.values(), "all"]:
                for title, rows in levels.items():
                    for row, level in rows:
                        cell = frame.at[(title, row), (site, group)]
                        count = None if cell == "–" else float(cell.split(" ")[0].replace(",", ""))
                        shown[site, level, group] = count
        pooled = {key[1:]: shown.pop(key) for key in [*shown] if key[0] == "all sites"}
        system = table_one_system(shown, pooled)
        for site, table in tables.items():
            counts = pd.crosstab(table[name], clusters[site].map(NAMES))
            for level in counts.index:
                for group in counts:
                    if is_small(counts.at[level, group], UNIT):
                        n_small += 1
                        low, high = system.range_of((site, level, group))
                        open_to = counts[group].sum() - (counts[group] > 0).sum()
                        assert high - low > min(UNIT - 2, open_to) - 1e-6, (site, level, group)
    assert n_small > 10


def counts_of(frame: pd.DataFrame) -> pd.DataFrame:
    counted = ~frame.index.get_level_values(0).str.contains("mean")
    return frame[counted].map(lambda text: float(text.split(" ")[0].replace(",", "")))


def test_rounded_counts_are_multiples_and_their_totals_are_sums(tmp_path: Path) -> None:
    tables, clusters = people(2)
    study = study_of(tmp_path, tables, "public")
    results = results_of(study, tables, clusters, Rounding(b"secret", UNIT, clusters))
    for result in results.values():
        for name, columns in TABLE_ONE.tables.items():
            for column in (c for c, spec in columns.items() if spec.kind == "count"):
                assert (result.tables[name][column] % UNIT == 0).all()
        summaries = result.tables["table_one_summaries"]
        assert (summaries["mean"].dropna().round(1) == summaries["mean"].dropna()).all()
        values = result.tables["table_one_comparisons"].query("comparison == 'p'")["value"]
        assert set(values.dropna()) <= {0.001, 0.01, 0.05, 1}
    frame = table_one_of(study, results, NAMES, {}).frame
    sites = [counts_of(frame[site][[*NAMES.values(), "all"]]) for site in tables]
    pd.testing.assert_frame_equal(counts_of(frame["all sites"]), sum(sites[1:], sites[0]))


def test_a_rounded_site_does_not_name_a_level_that_it_counts_as_nobody() -> None:
    table = pd.DataFrame({"race": ["a"] * 60 + ["rare"]}, [f"p{i}" for i in range(61)])
    clusters = pd.Series(1, table.index)
    seen = set()
    for secret in range(40):
        rounding = Rounding(bytes([secret]), UNIT, {"A": clusters})
        counts = site_tables(table, clusters.to_numpy(), TableOneSettings(), UNIT, rounding)[
            "counts"
        ]
        everyone = counts[counts["group"].isna() & (counts["row"] == "level")].set_index("level")
        assert (everyone["count"] > 0).all()
        seen.add("rare" in everyone.index)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("one", "two", "levels"),
    [
        ([0, 1, 1], [0, 0, 1], ["0", "1"]),
        ([0, 1, 1], [0, np.nan, 1], ["0.0", "1.0"]),
        (["b", "a", "b"], ["c", None, "c"], ["a", "b", "c"]),
        ([True, False, True], [True, True, True], ["False", "True"]),
        ([0, 1, 1], [0, 2, 2], None),
        ([1, 1, 1], [2.5, 3, 4], None),
        ([1, 2, 1], ["1", "3", "1"], ["1", "2", "3"]),
    ],
)
def test_levels_are_those_of_any_site(one: list, two: list, levels: list[str] | None) -> None:
    """As if all patients were in one table."""
    frames = {"A": pd.DataFrame({"x": one}), "B": pd.DataFrame({"x": two})}
    settings = TableOneSettings()
    parts = {s: site_tables(f, np.array([1, 1, 2]), settings) for s, f in frames.items()}
    frame = put_together(parts, settings).frame
    title = "x, mean (SD)" if levels is None else "x, n (%)"
    rows = [""] if levels is None else levels
    shown = frame.loc[[title]].index.get_level_values(1).tolist()
    assert [row for row in shown if row != "missing"] == rows
    assert ("missing" in shown) == bool(pd.isna(two).any())


def test_a_number_at_one_site_and_a_text_at_another_are_refused() -> None:
    frames = {"A": pd.DataFrame({"x": [1, 2, 3]}), "B": pd.DataFrame({"x": ["1", "2", "few"]})}
    clusters = {site: [1, 1, 2] for site in frames}
    with pytest.raises(
        ValueError, match=r"'x' .* is a number at A and a text at B; write it alike"
    ):
        table_one(frames, clusters)


def test_a_site_may_lack_a_cluster_and_a_column() -> None:
    tables, clusters = people(4, 2)
    tables["S1"] = tables["S1"].drop(columns="race")[clusters["S1"] != 2]
    clusters["S1"] = clusters["S1"][clusters["S1"] != 2]
    settings = TableOneSettings()
    parts = {s: site_tables(t, clusters[s].to_numpy(), settings) for s, t in tables.items()}
    frame = put_together(parts, settings, all_sites=True).frame
    assert list(frame["S1"]) == ["1", "3", "all"]
    missing = counts_of(frame).xs(("race, n (%)", "missing"))
    assert missing["S1", "all"] == missing["all sites", "all"] == len(tables["S1"])
    assert missing["S0", "all"] == 0


# --- how sequences came about -------------------------------------------------------------


@pytest.fixture(scope="module")
def from_records() -> SitePatients:
    """Sequences with gaps, unknown drugs, one of which one patient takes, and dates of death."""
    rng = np.random.default_rng(1)
    n = 80
    records = pd.DataFrame(
        {
            "patient_id": np.repeat([f"p{i}" for i in range(n)], 6),
            "date": pd.Timestamp("2010-01-01") + pd.to_timedelta(rng.integers(0, 900, 6 * n), "D"),
            "drug": rng.choice(["Humira", "Xeljanz", "aspirin"], 6 * n),
        }
    )
    records.loc[0, "drug"] = "for Mr X"
    people = pd.DataFrame({"patient_id": records["patient_id"].unique(), "death_date": ""})
    people.loc[:19, "death_date"] = "2013-01-01"
    made = ehr_prep.read_records(records, drugs="ra", patients=people)
    data = ehr_prep.build_sequences(made, impute="missing", death="state", max_windows=8)
    everyone = {ENSEMBLE: pd.Series(1, data.ids)}
    return SitePatients("A", data, everyone, pd.DataFrame(), pd.DataFrame())


def account_of(study_of_one: Study, patients: SitePatients) -> SiteResults:
    made = about.DATA.results(study_of_one, patients)
    unit = 1 if patients.rounding is None else UNIT
    return SiteResults("A", unit, made)


def one_site(min_count: int) -> Study:
    files = {"A": {"records": "a.csv", "drugs": "ra"}}
    return Study.model_validate({"name": "x", "sites": files, "privacy": {"min_count": min_count}})


def test_an_exact_account_is_that_of_the_sequences(from_records: SitePatients) -> None:
    data = from_records.sequences
    result = account_of(one_site(1), from_records)
    assert result.from_records
    flow = data.flow.astype(dict.fromkeys(data.flow.columns[2:], float))
    pd.testing.assert_frame_equal(result.tables["flow"], flow, check_dtype=False)
    issues = data.issues[["issue", "n", "action"]]
    pd.testing.assert_frame_equal(result.tables["issues"], issues, check_dtype=False)
    assert set(result.tables["unmapped"]["drug"]) == {"aspirin", "for Mr X"}
    account = result.tables["account"].loc[0]
    for name in ("followed_up", "without_record", "several_classes", "tied"):
        assert account[name] == data.settings["windows"][name]
    assert (account["left_alive"], account["data_end"]) == (
        data.settings["left_alive"],
        data.settings["data_end"],
    )
    said = result.tables["about"].loc[0]
    assert (said["patients"], said["gaps"], said["dead"]) == (len(data), True, True)


def test_a_rounded_account_shows_no_text_of_few_patients(from_records: SitePatients) -> None:
    rounding = Rounding(b"secret", UNIT, {"A": from_records.groups[ENSEMBLE]})
    result = account_of(one_site(UNIT), replace(from_records, rounding=rounding))
    for name, columns in about.DATA.tables.items():
        for column in (c for c, spec in columns.items() if spec.kind == "count"):
            assert (result.tables[name][column].dropna() % UNIT == 0).all(), (name, column)
    assert set(result.tables["unmapped"]["drug"]) == {"aspirin", "other texts"}


def test_sequences_of_a_file_have_no_account() -> None:
    data = Sequences.from_lists([["a", "b"]] * 20)
    patients = SitePatients("A", data, {}, pd.DataFrame(), pd.DataFrame())
    result = account_of(one_site(1), patients)
    assert not result.from_records
    for name in ("account", "flow", "issues", "unmapped"):
        assert result.tables[name].empty
