"""A study of combinations: all sites get the same states, and the methods say the rules."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from mmlca.sequences.type import Sequences
from mmlca.study import read_study
from mmlca.study.results import about
from mmlca.study.results.site import SitePatients, SiteResults
from mmlca.study.sections import patients
from mmlca.study.site_data import build_site, build_sites, read_site, read_source

STUDY = """
name = "Combinations"
[sites.N]
records = "N.csv"
patients = "people.csv"
[sites.S]
records = "S.csv"
observation = "periods.csv"
[records]
drugs = "map.csv"
default_supply = {A = 60}
[rules]
states = "combinations"
max_combinations = 1
min_combination_patients = 1
impute = "carry_forward_supplied"
death = "end"
[privacy]
min_count = 1
"""


@pytest.fixture
def study(tmp_path: Path) -> Any:
    files = {
        "study.toml": STUDY,
        "map.csv": "drug,class\na,A\nb,B\nc,C\n",
        "N.csv": "id,date,drug,days_supply\n1,2010-01-01,a,\n1,2010-01-01,b,60\n",
        "S.csv": "id,date,drug,days_supply\n1,2010-01-01,a,90\n1,2010-01-01,c,90\n"
        "2,2010-01-01,a,90\n2,2010-01-01,c,90\n",
        "people.csv": "id,death_date\n1,2010-03-05\n",
        "periods.csv": "id,start,end\n1,2009-01-01,2010-12-31\n2,2009-01-01,2010-12-31\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return read_study(tmp_path / "study.toml")


def test_all_sites_share_the_states(study: Any) -> None:
    data = build_sites(study, {site: read_source(study, site) for site in study.sites})
    for part in data.values():
        assert part.states == ("A", "B", "C", "A+C", "other combination", "none")
    assert data["N"].to_frame().iloc[0].dropna().to_list() == ["other combination"]
    assert data["S"].to_frame().iloc[0].to_list()[:3] == ["A+C", "A+C", "none"]
    with pytest.raises(ValueError, match=r"rules\.combinations must name the combinations"):
        read_site(study, "N")
    named = study.changed(rules={"combinations": ("A+B",)})
    assert read_site(named, "N").to_frame().iloc[0, 0] == "A+B"


def findings_of(study: Any, data: dict[str, Sequences]) -> Any:
    """What the section on patients reads."""
    results = {}
    for site, part in data.items():
        alone = SitePatients(site, part, {}, pd.DataFrame(), pd.DataFrame())
        results[site] = SiteResults(site, 1, about.DATA.results(study, alone))
    states = list(next(iter(data.values())).states)
    return SimpleNamespace(results=results, states=states)


def test_the_methods_say_the_rules(study: Any) -> None:
    data = build_sites(study, {site: read_source(study, site) for site in study.sites})
    findings = findings_of(study, data)
    text = " ".join(patients.methods(study, findings))
    for part in (
        "Supplies of a drug class that were at most 30 days apart were joined",
        "used together for at least 30 days of a quarter formed a combination",
        "until 30 days after the end of its supply; after that, the state was “none”",
        "was assumed to cover 60 days of A",
        "Death ended follow-up",
        "records outside observation periods were dropped",
    ):
        assert part in text, part
    cut = {"death": "state", "states": "most_frequent", "data_cut": dt.date(2010, 12, 31)}
    study = study.changed(rules=cut)
    findings = findings_of(study, {"N": build_site(study, "N", read_source(study, "N"))})
    dead = " ".join(patients.methods(study, findings))
    assert "after a patient's death was “dead”" in dead
    assert "until the end of the data (2010-12-31)" in dead
    assert "that was recorded most often" in dead


def test_the_methods_say_how_follow_up_and_ties_end(study: Any) -> None:
    """They said nothing about the end of follow-up, and half of what decides a tie."""
    data = build_sites(study, {site: read_source(study, site) for site in study.sites})
    findings = findings_of(study, data)
    text = " ".join(patients.methods(study, findings))
    for part in (
        "At N, follow-up ended with a patient's last record of any kind, since no other end of ",
        "At S, follow-up ended with the last observation period; ",
        "Death ended follow-up at N, where it was known.",
        "If several classes were recorded equally often, the state was the one recorded first in "
        "the quarter; if that was the same day, the one with the longer supply, then the one taken "
        "before, ",
    ):
        assert part in text, part
    (study.sites["N"].patients).write_text("id,follow_up_end\n1,2010-03-05\n")
    findings = findings_of(study, {"N": build_site(study, "N", read_source(study, "N"))})
    text = " ".join(patients.methods(study, findings))
    assert "Follow-up ended on the date in the patients' table" in text
    assert "Dates of death were not known." in text
