"""A network whose counts are exact finds what a study in one place finds by the same method."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from commands import mmlca_does
from network_folders import copy

import ehr_prep
from mmlca.federation.results import read_results
from mmlca.study import analysis, read_study, site_data
from mmlca.study.combined import site_patients
from mmlca.study.headline import Kind
from mmlca.study.processes import Processes
from mmlca.study.results.registry import site_results
from mmlca.study.results.site import SiteResults

SITES = ("BWH", "MGB", "VA")
STUDY = """
name = "Both ways"
seed = 3
synthetic = true
[records]
drugs = "ra"
[rules]
first_on_or_after = 2008-01-01
[classes]
number = 3
[model]
n_init = 6
prior = 1e-4
[pseudo_sites]
per_site = {per_site}
[ensemble]
method = "{method}"
refine = {refine}
[covariates]
columns = ["age", "sex"]
[outcomes]
columns = ["race"]
[strata]
columns = ["sex", "age", "index_year", "site"]
cut_points = {{age = [60], index_year = [2014]}}
[inference]
simulations = 19
[outputs]
figures = false
bootstrap = 20
[privacy]
min_count = 1
"""


def write_files(root: Path, method: str, refine: str, per_site: int = 0) -> None:
    """Three sites' files; a study file for one place, one for all sites, and their own.

    VA has more patients than the others together.
    """
    ehr_prep.ra_cohort(1, 0.08).write(root)
    ehr_prep.ra_cohort(2, 0.03).write(root / "more")
    shutil.move(root / "more" / "MGB", root / "BWH")
    text = STUDY.format(method=method, refine=refine, per_site=per_site)
    one, agreed = text, text
    for site in SITES:
        files = {role: f"{site}/{role}.csv" for role in ("patients", "labs")}
        files["records"] = f"{site}/medications.csv"
        own = "\n".join(f'{role} = "{file}"' for role, file in files.items()) + "\n"
        one += f"[sites.{site}]\n{own}"
        agreed += f"[sites.{site}]\n"
        (root / f"{site}.toml").write_text(f'site = "{site}"\nfloor = 1\n{own}')
    (root / "one.toml").write_text(one)
    (root / "study.toml").write_text(agreed)


def in_one_place(root: Path) -> dict[str, SiteResults]:
    study = read_study(root / "one.toml")
    data = site_data.build_sites(study, {s: site_data.read_source(study, s) for s in SITES})
    with Processes(1) as processes:
        models = analysis.fit_models(study, data, 3, processes)
    found = analysis.combine(study, data, models, models, 3)
    return {site: site_results(study, site_patients(study, found, site)) for site in SITES}


def in_folders(root: Path, turns: int) -> dict[str, SiteResults]:
    for _ in range(turns):
        for site in SITES:
            files = (root / "study.toml", root / f"{site}.toml")
            mmlca_does("site", "run", *files, "--folder", root / "homes" / site, "--quiet")
            copy(root / "homes" / site / "outbox", root / "centre" / "inbox")
        mmlca_does("centre", "run", root / "study.toml", "--folder", root / "centre", "--quiet")
        for site in SITES:
            copy(root / "centre" / "outbox", root / "homes" / site / "inbox")
    inbox = root / "centre" / "inbox"
    return {site: read_results(inbox / f"{site}.results.json") for site in SITES}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("method", "refine", "turns"), [("latent", "1", 5), ("kmeans-classes", '"none"', 3)]
)
def test_every_number_of_every_site_is_the_same(
    method: str, refine: str, turns: int, tmp_path: Path
) -> None:
    write_files(tmp_path, method, refine)
    one, network = in_one_place(tmp_path), in_folders(tmp_path, turns)
    for site in SITES:
        assert network[site].unit == one[site].unit == 1
        assert network[site].tables.keys() == one[site].tables.keys()
        for name, table in one[site].tables.items():
            pd.testing.assert_frame_equal(network[site].tables[name], table, rtol=1e-6)


# --- what people see -----------------------------------------------------------------------

TESTS_OF_PATIENTS = {"tables/own_chains.csv", "tables/shared_chains.csv"}
"""Tables that need the patients of all sites in one place."""
CLOSE = {
    *("figures/agreement.csv", "figures/weights.csv"),
    *("tables/headline.csv", "tables/refined_by_site.csv", "tables/refined_sizes.csv"),
}
"""Tables that rest on models from files, which are one step of EM further than the fits, or on
their sums, which have six decimals."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of the report of a study in one place, and of a network with resamples."""
    root = tmp_path_factory.mktemp("both")
    write_files(root, "latent", "1", per_site=2)
    mmlca_does("study", "run", root / "one.toml", "--out", root / "report", "--quiet")
    in_folders(root, 5)
    return root / "report", root / "centre" / "report"


def tables_of(report: Path) -> dict[str, pd.DataFrame]:
    files = (path for name in ("tables", "figures") for path in (report / name).glob("*.csv"))
    return {
        path.relative_to(report).as_posix(): pd.read_csv(path, float_precision="round_trip")
        for path in files
    }


def comparable(name: str, table: pd.DataFrame, everywhere: Counter[str]) -> pd.DataFrame:
    """A table less what needs all patients, or each site's own model at all sites, in one place.

    With resamples the models of whole sites do not travel. Norms have an interval where no test
    says how certain they are.
    """
    if "membership" in table:
        known = ~table["membership"].fillna("").str.endswith(" everywhere")
        everywhere[name] += int((~known).sum())
        table = table[known]
    if name == "tables/headline.csv":
        table = table[~table["kind"].isin([Kind.SHARED, Kind.APART])]
    if name == "tables/site_differences_norms.csv":
        table = table.drop(columns=["low", "high"], errors="ignore")
    return table.reset_index(drop=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_people_see_the_same_tables(both: tuple[Path, Path]) -> None:
    one, network = (tables_of(report) for report in both)
    assert one.keys() - network.keys() == TESTS_OF_PATIENTS
    assert network.keys() <= one.keys()
    assert {"figures/lab_ensemble.csv", "figures/effects.csv", "tables/table_one.csv"} <= set(one)
    assert {"tables/second_opinion.csv", "tables/course_fit.csv"} <= set(one)
    everywhere = Counter[str]()
    for name, table in network.items():
        pd.testing.assert_frame_equal(
            comparable(name, table, Counter()),
            comparable(name, one[name], everywhere),
            rtol=1e-6 if name in CLOSE else 1e-9,
            check_dtype=False,  # of a column of which only missing values remain
        )
        if "membership" in table:
            assert not table["membership"].fillna("").str.endswith(" everywhere").any()
    assert set(+everywhere) == {
        *(f"figures/site_differences_{i}.csv" for i in (1, 2, 3)),
        *("tables/headline.csv", "tables/site_differences_norms.csv"),
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_people_see_the_same_sections(both: tuple[Path, Path]) -> None:
    one, network = (json.loads((path / "results.json").read_bytes()) for path in both)
    assert one.keys() == network.keys()
    for name in ("study", "sites", "states", "views", "n_clusters", "statement", "published"):
        assert one[name] == network[name]
    assert [part["title"] for part in one["sections"]] == [
        part["title"] for part in network["sections"]
    ]

    def items(report: dict[str, Any]) -> list[tuple[str, str]]:
        return [
            (item["title"], item["file"]) for part in report["sections"] for item in part["items"]
        ]

    assert [item for item in items(one) if item[1] not in TESTS_OF_PATIENTS] == items(network)
    assert len(one["summary"]) == len(network["summary"])
    (of_one, of_network) = (set(report["careful"]) for report in (one, network))
    assert len(of_one - of_network) == len(of_network - of_one)
