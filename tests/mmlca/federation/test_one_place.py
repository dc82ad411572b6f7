"""A network whose counts are exact finds what a study in one place finds by the same method."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from commands import mmlca_does
from network_folders import copy

import ehr_prep
from mmlca.federation.results import read_results
from mmlca.study import analysis, read_study, site_data
from mmlca.study.combined import site_patients
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
per_site = 0
[ensemble]
method = "{method}"
refine = {refine}
[covariates]
columns = ["age", "sex"]
[outcomes]
columns = ["race"]
[privacy]
min_count = 1
"""


def write_files(root: Path, method: str, refine: str) -> None:
    """Three sites' files; a study file for one place, one for all sites, and their own."""
    ehr_prep.ra_cohort(1, 0.08).write(root)
    ehr_prep.ra_cohort(2, 0.08).write(root / "more")
    shutil.move(root / "more" / "MGB", root / "BWH")
    text = STUDY.format(method=method, refine=refine)
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
