"""The synthetic cohort has the published make-up, and what is built from it finds the truth."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

import ehr_prep
import mmlca
from ehr_prep.synthetic.ra import SyntheticCohort, parameters, ra_cohort

PARAMETERS = parameters()
SITES = ("MGB", "VA")


@pytest.fixture(scope="module")
def cohort() -> SyntheticCohort:
    return ra_cohort(seed=1)


@pytest.fixture(scope="module")
def records(cohort: SyntheticCohort) -> dict[str, ehr_prep.Records]:
    return {
        site: ehr_prep.read_records(
            data.records, drugs="ra", patients=data.patients, labs=data.labs
        )
        for site, data in cohort.items()
    }


@pytest.fixture(scope="module")
def sequences(records: dict[str, ehr_prep.Records]) -> dict[str, mmlca.Sequences]:
    return {site: ehr_prep.build_sequences(table, preset="ra") for site, table in records.items()}


def true_states(data: Any, ids: Any) -> np.ndarray:
    return data.truth.loc[ids].filter(regex=r"^q\d+$").to_numpy(object)


# --- as published -----------------------------------------------------------------------


@pytest.mark.parametrize("site", SITES)
def test_class_sizes_are_those_published(cohort: SyntheticCohort, site: str) -> None:
    counts = cohort[site].truth["class"].value_counts(sort=False)
    assert counts.to_list() == PARAMETERS["sites"][site]["patients"]
    assert counts.sum() == {"MGB": 2164, "VA": 3158}[site]


@pytest.mark.parametrize("site", SITES)
def test_demographics_hold_within_sampling_error(
    cohort: SyntheticCohort, sequences: dict[str, Any], site: str
) -> None:
    people = sequences[site].patients
    kind = cohort[site].truth["class"].loc[people.index]
    expected = PARAMETERS["sites"][site]
    for number, name in enumerate(PARAMETERS["classes"]):
        mine = people[(kind == name).to_numpy()]
        n = len(mine)
        for found, share in (
            ((mine["sex"] == "F").mean(), expected["female"][number]),
            ((mine["race"] == "White").mean(), expected["white"][number]),
        ):
            assert abs(found - share) < 4 * np.sqrt(share * (1 - share) / n)
        mean, sd = PARAMETERS["published_age_mean_sd"][site][number]
        assert abs(mine["age"].mean() - mean) < 4 * sd / np.sqrt(n) + 0.05
        assert abs(mine["age"].std() - sd) < 4 * sd / np.sqrt(2 * n) + 0.05
        assert mine["age"].between(18, 95).all()


def test_no_drug_is_recorded_before_its_class_was_approved(
    records: dict[str, ehr_prep.Records],
) -> None:
    first: dict[str, str] = {}
    for drug in PARAMETERS["drugs"].values():
        first[drug["class"]] = min(drug["approved"], first.get(drug["class"], "9999"))
    for table in records.values():
        for number, state in enumerate(table.states):
            earliest = table.date[table.state == number].min().astype("datetime64[D]")
            assert earliest >= np.datetime64(first[state])
    jak = records["VA"].date[records["VA"].state == 3].min().astype("datetime64[D]")
    assert jak < np.datetime64("2013-06-01")


# --- the records ------------------------------------------------------------------------


@pytest.mark.parametrize("site", SITES)
def test_the_dirt_has_its_rates_and_nobody_eligible_is_lost(
    cohort: SyntheticCohort, records: dict[str, Any], sequences: dict[str, Any], site: str
) -> None:
    data, issues = cohort[site], records[site].issues.set_index("issue")["n"]
    treatment = len(records[site])
    assert issues["date missing or unreadable"] / treatment == pytest.approx(0.002, rel=0.25)
    assert issues["end before start"] / treatment == pytest.approx(0.002, rel=0.25)
    assert issues["repeats another record"] / treatment == pytest.approx(0.01, rel=0.15)
    misspelt = ehr_prep.drug_report(records[site]).dropna(subset="did_you_mean")
    assert misspelt["records"].sum() / treatment == pytest.approx(0.003, rel=0.35)
    assert 1 - len(data.truth) / len(data.patients) == pytest.approx(0.06, abs=0.001)
    flow = sequences[site].flow.set_index("reason")
    assert flow.loc["drug not in the map", "patients"] > 0
    assert flow.loc["first treatment before 2008-01-01", "patients"] > 0
    assert flow.loc["after the last of 16 windows", "records"] > 0
    assert sorted(sequences[site].ids) == sorted(data.truth.index)


@pytest.mark.parametrize("site", SITES)
def test_the_sequences_find_the_true_states(
    cohort: SyntheticCohort, sequences: dict[str, Any], site: str
) -> None:
    built = sequences[site]
    truth, found = true_states(cohort[site], built.ids), built.to_frame().to_numpy(object)
    known = ~pd.isna(truth)
    np.testing.assert_array_equal(known, ~pd.isna(found))
    assert 0.97 < (truth == found)[known].mean() < 1
    windows = built.settings["windows"]
    assert 0.04 < windows["without_record"] / windows["followed_up"] < 0.10
    assert 0.002 < windows["tied"] / windows["followed_up"] < 0.02
    assert built.patients["index_date"].dt.date.to_list() == (
        cohort[site].truth.loc[built.ids, "index_date"].dt.date.to_list()
    )


def test_each_drug_keeps_its_rhythm() -> None:
    data = ra_cohort(seed=3, scale=0.3, dirt=False, p_gap=0.0)["MGB"]
    table = data.records.assign(day=pd.to_datetime(data.records["date"]))
    for name in ("rituximab", "etanercept", "infliximab", "methotrexate"):
        facts = PARAMETERS["drugs"].get(name) or PARAMETERS["background"][name]
        mine = table[table["drug"].isin(facts["names"])]
        wait = mine.groupby(["patient_id", "drug"])["day"].diff().dt.days.dropna()
        usual = wait[wait > 35] if name in ("rituximab", "infliximab") else wait
        assert usual.median() == pytest.approx(facts["every"], abs=3)
        assert wait.nunique() > 10
        supply = (pd.to_datetime(mine["end_date"]) - mine["day"]).dt.days + 1
        assert set(supply) == {facts["supply"]}


def test_a_clean_cohort_has_nothing_unusual() -> None:
    data = ra_cohort(seed=2, scale=0.1, dirt=False)["VA"]
    assert not len(
        ehr_prep.read_records(data.records, drugs="ra", patients=data.patients, strict=True).issues
    )
    assert data.labs["value"].str.fullmatch(r"\d+").all()


def test_assumptions_matter() -> None:
    share = {}
    for p_gap in (0.0, 0.3):
        data = ra_cohort(seed=2, scale=0.1, p_gap=p_gap)["MGB"]
        table = ehr_prep.read_records(data.records, drugs="ra", patients=data.patients)
        windows = ehr_prep.build_sequences(table, preset="ra").settings["windows"]
        share[p_gap] = windows["without_record"] / windows["followed_up"]
    assert share[0.3] > 3 * share[0.0]


# --- what a study finds in it -----------------------------------------------------------


def test_four_classes_are_chosen_and_agree_with_the_truth(
    cohort: SyntheticCohort, sequences: dict[str, Any]
) -> None:
    table = mmlca.select_n_classes(sequences, range(2, 6), seed=1, n_init=12)
    assert table.loc[table["chosen"], "classes"].to_list() == [4, 4]
    for site, built in sequences.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the best of")
            model = mmlca.MixtureMarkov(4, seed=1, n_init=12).fit(built)
        truth = cohort[site].truth["class"].loc[built.ids]
        assert 0.81 < adjusted_rand_score(truth, model.predict(built)) < 0.92


# --- sites, seeds, files ----------------------------------------------------------------


def test_a_seed_makes_the_same_and_a_site_is_its_own() -> None:
    one, same, other = (ra_cohort(seed, scale=0.03) for seed in (5, 5, 6))
    alone = ra_cohort(5, scale=0.03, sites=["VA"])
    for table in ("records", "patients", "labs", "truth"):
        for again in (same, alone):
            pd.testing.assert_frame_equal(getattr(one["VA"], table), getattr(again["VA"], table))
    assert not one["VA"].records.equals(other["VA"].records)
    assert not set(one["VA"].patients["patient_id"]) & set(one["MGB"].patients["patient_id"])


def test_any_sites_and_sizes() -> None:
    many = ra_cohort(1, sites={"North": 60, "South": 61, "VA": 40, "tiny": 1})
    assert [len(site.truth) for site in many.values()] == [60, 61, 40, 1]
    women = [(many[s].patients["sex"] == "F").mean() for s in ("North", "South")]
    assert women[0] > 0.6 > 0.4 > women[1], "North is made like MGB, South like VA"
    assert len(ra_cohort(1, scale=0.5, sites={"A": 100})["A"].truth) == 50


def test_it_says_that_it_is_synthetic(cohort: SyntheticCohort) -> None:
    assert cohort.synthetic
    assert "SYNTHETIC" in str(ra_cohort.__doc__)
    assert "made-up" in repr(cohort)
    for data in cohort.values():
        assert data.synthetic
        assert data.patients["patient_id"].str.startswith("SYN-").all()
        assert "SYNTHETIC" in data.records.attrs["synthetic"]


def test_files_can_be_read_and_keep_the_truth_apart(tmp_path: Path) -> None:
    small = ra_cohort(1, scale=0.05)
    written = small.write(tmp_path / "new")
    found = sorted(p.relative_to(tmp_path / "new").as_posix() for p in written)
    files = [f"{s}/{t}.csv" for s in SITES for t in ("labs", "medications", "patients")]
    assert found == [
        *files[:3],
        "SYNTHETIC.json",
        *files[3:],
        *(f"truth/synthetic_{s}.csv" for s in SITES),
    ]
    on_disk = [p for p in (tmp_path / "new").rglob("*") if p.is_file()]
    assert len(on_disk) == len(written), "no temporary file is left"
    assert "SYNTHETIC" in (tmp_path / "new" / "SYNTHETIC.json").read_text()
    for site in SITES:
        folder = tmp_path / "new" / site
        assert not any("persist" in p.read_text() for p in folder.iterdir())
        table = ehr_prep.read_records(
            folder / "medications.csv", drugs="ra", patients=folder / "patients.csv"
        )
        data = small[site]
        direct = ehr_prep.read_records(data.records, drugs="ra", patients=data.patients)
        np.testing.assert_array_equal(table.date, direct.date)
        np.testing.assert_array_equal(table.state, direct.state)
        truth = pd.read_csv(tmp_path / "new" / "truth" / f"synthetic_{site}.csv")
        assert truth["class"].to_list() == data.truth["class"].to_list()


def test_it_is_quick() -> None:
    before = time.process_time()
    cohort = ra_cohort(seed=4)
    assert time.process_time() - before < 10
    assert 270_000 < sum(len(site.records) for site in cohort.values()) < 330_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"scale": 0}, "scale must be a positive number"),
        ({"sites": {"A": 0}}, "site A would have 0 × 1 patients"),
        ({"sites": {"A": 2.5}}, "site A would have 2.5"),
        ({"sites": {"A": 1}, "scale": 0.5}, "site A would have 1 × 0.5"),
        ({"sites": []}, "one or more names"),
        ({"sites": ["a/b"]}, "can be folders"),
        ({"sites": ["A", "A"]}, "different names"),
        ({"sites": ["truth"]}, "none “truth”"),
        ({"p_gap": 2}, "p_gap must be from 0 to 1, found 2"),
    ],
)
def test_what_cannot_be_made_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ra_cohort(**{"seed": 1, **options})


def test_wrong_kinds_of_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="'p_gaps' is not an assumption"):
        ra_cohort(1, p_gaps=0.1)
    with pytest.raises(TypeError, match="found the text 'MGB'"):
        ra_cohort(1, sites="MGB")


# --- harder cohorts ---------------------------------------------------------------------


def courses(**assumptions: float) -> tuple[pd.DataFrame, np.ndarray]:
    """The truth of a site, and its states by quarter as numbers, −1 after follow-up."""
    truth = ra_cohort(seed=1, scale=0.3, sites=["VA"], dirt=False, **assumptions)["VA"].truth
    states = truth.filter(regex=r"^q\d+$")
    return truth, np.array([PARAMETERS["states"].index(s) if isinstance(s, str) else -1
                            for s in states.to_numpy().ravel()]).reshape(states.shape)  # fmt: skip


def test_courses_of_which_no_switch_is_seen() -> None:
    """Follow-up that ends at every switch leaves courses without one, of the same patients."""
    _, usual = courses()
    _, lost = courses(p_lost_at_switch=1.0)
    assert ((usual[:, 1:] != usual[:, :-1]) & (usual[:, 1:] >= 0)).sum() > 300
    assert not ((lost[:, 1:] != lost[:, :-1]) & (lost[:, 1:] >= 0)).any()
    assert (lost[:, 0] == usual[:, 0]).all()
    assert ((lost == usual) | (lost == -1)).all()


def test_leaving_a_drug_becomes_less_likely_in_the_course_of_a_year() -> None:
    """In a Markov chain the share who leave is the same after any number of quarters."""
    shares = {}
    for memory in (0.0, 0.6):
        truth, states = courses(stay_memory=memory)
        several = states[(truth["class"] != "TNFi persisters").to_numpy()]
        stayed = np.zeros(several.shape, dtype=int)
        for q in range(1, several.shape[1]):
            stayed[:, q] = np.where(several[:, q] == several[:, q - 1], stayed[:, q - 1] + 1, 0)
        seen, left = several[:, 1:] >= 0, several[:, 1:] != several[:, :-1]
        on_anti_cd20 = seen & (several[:, :-1] == PARAMETERS["states"].index("anti-CD20"))
        short, long = (on_anti_cd20 & when for when in (stayed[:, :-1] == 0, stayed[:, :-1] >= 3))
        shares[memory] = left[short].mean() / left[long].mean()
    assert shares[0.6] > 1.6 * shares[0.0]


def test_classes_that_overlap_altogether_are_one() -> None:
    truth, states = courses(class_overlap=1.0, subtype_separation=0.0)
    stay = (truth["class"] == "TNFi persisters").to_numpy()
    rates = []
    for group in (stay, ~stay):
        before, after = states[group, :-1].ravel(), states[group, 1:].ravel()
        steps = (before == 0) & (after >= 0)
        rates.append((after[steps] == 0).mean())
    assert rates[0] == pytest.approx(rates[1], abs=0.02)


@pytest.mark.parametrize("name", ["class_overlap", "stay_memory", "p_lost_at_switch"])
def test_what_makes_a_cohort_harder_is_a_share(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be from 0 to 1, found 1.5"):
        ra_cohort(seed=1, scale=0.02, **{name: 1.5})
