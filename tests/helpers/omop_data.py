"""Random OMOP tables with everything that the rules look at, the same as frames, and rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

import ehr_prep
import mmlca

DRUGS = {"alpha": "A", "beta": "B", "gamma": "C"}
NAMES = {11: "alpha", 12: "beta", 13: "gamma", 14: "alpha / gamma", 15: "water"}
FIRST = np.datetime64("2009-01-01").astype("datetime64[D]").astype(int)

OPTIONS: dict[str, dict[str, Any]] = {
    "general": {},
    "ra": {"preset": "ra", "first_on_or_after": "2009-06-01"},
    "days": {"by": "days", "ties": "latest", "impute": "missing"},
    "supplied": {"impute": "carry_forward_supplied", "gap_days": 10, "months": 1},
    "combinations": {
        "states": "combinations",
        "combination_days": 10,
        "min_combination_patients": 3,
        "death": "state",
    },
    "combined days": {
        "states": "combinations",
        "by": "days",
        "gap_days": 0,
        "combination_days": 3,
        "combinations": ["A+C"],
        "ties": "previous",
    },
    "washout": {
        "washout_days": 60,
        "first_on_or_after": "2009-09-01",
        "min_history_days": 30,
        "min_follow_up_days": 90,
        "min_age": 20,
    },
    "last record": {"follow_up": "last_record", "death": "state", "data_cut": "2012-01-31"},
    "one day": {"follow_up": "2011-12-31", "death": "state", "by": "days", "max_windows": 30},
    "uneven windows": {"days": 45.7, "by": "days", "max_windows": 9},
}


def make_tables(seed: int, n: int = 40) -> dict[str, pa.Table]:
    """Persons with records, fixed combinations, gaps in observation, deaths and mistakes."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 25, n)
    who = np.repeat(np.arange(1, n + 1), size)
    total = len(who)
    start = FIRST + rng.integers(0, 700, n)[who - 1] + rng.integers(0, 900, total)
    supply = rng.choice([0, 1, 14, 28, 30, 90, 400, 900], total)
    end = start + rng.integers(-3, 60, total)
    again = rng.integers(0, total, total // 8)
    rows = np.concatenate([np.arange(total), again])
    concept = rng.choice([*NAMES, 0], total, p=[0.3, 0.25, 0.15, 0.1, 0.15, 0.05])
    periods = []
    for person in range(1, n + 1):
        begin = FIRST + rng.integers(0, 400)
        for _ in range(rng.integers(1, 4)):
            stop = begin + rng.integers(100, 900)
            periods.append((person, begin, stop))
            begin = stop + rng.integers(-30, 200)
    of, begin, stop = (np.array(column) for column in zip(*periods, strict=True))
    dead = np.flatnonzero(rng.random(n) < 0.3) + 1
    died = FIRST + rng.integers(300, 1600, len(dead))
    year = np.ma.masked_array(rng.integers(1930, 2000, n), rng.random(n) < 0.1)
    return {
        "concept": pa.table(
            {
                "concept_id": [*NAMES, 8507, 8532],
                "concept_name": [*NAMES.values(), "MALE", "FEMALE"],
                "vocabulary_id": ["RxNorm"] * len(NAMES) + ["Gender"] * 2,
                "concept_class_id": ["Ingredient"] * 3 + ["Clinical Drug"] * 2 + ["Gender"] * 2,
                "concept_code": [f"x{i}" for i in range(len(NAMES) + 2)],
            }
        ),
        "concept_ancestor": pa.table(
            {
                "ancestor_concept_id": [11, 12, 13, 11, 13],
                "descendant_concept_id": [11, 12, 13, 14, 14],
            }
        ),
        "person": pa.table(
            {
                "person_id": np.arange(1, n + 1),
                "gender_concept_id": rng.choice([8507, 8532], n),
                "race_concept_id": np.zeros(n, dtype=np.int64),
                "race_source_value": rng.choice(["x", "y"], n),
                "year_of_birth": pa.array(year.data, mask=np.ma.getmaskarray(year)),
            }
        ),
        "observation_period": pa.table(
            {
                "person_id": of,
                "observation_period_start_date": _dates(begin),
                "observation_period_end_date": _dates(stop),
            }
        ),
        "death": pa.table({"person_id": dead, "death_date": _dates(died)}),
        "drug_exposure": pa.table(
            {
                "person_id": who[rows],
                "drug_concept_id": concept[rows],
                "drug_exposure_start_date": _dates(start, rng.random(total) < 0.03).take(rows),
                "drug_exposure_end_date": _dates(end, rng.random(total) < 0.5).take(rows),
                "days_supply": pa.array(supply, mask=rng.random(total) < 0.2).take(rows),
            }
        ),
    }


def as_frames(tables: dict[str, pa.Table]) -> dict[str, Any]:
    """The arguments of `read_records` that say the same."""
    drugs, people, periods, deaths = (
        tables[name].to_pandas(date_as_object=False)
        for name in ("drug_exposure", "person", "observation_period", "death")
    )
    drugs["drug"] = drugs["drug_concept_id"].map(lambda c: f"{c} {NAMES.get(c, 'unknown')}")
    birth = pd.to_datetime(
        people["year_of_birth"].map(lambda y: f"{y:.0f}-01-01", na_action="ignore")
    )
    sex = people["gender_concept_id"].map({8507: "MALE", 8532: "FEMALE"}).astype(object)
    patients = pd.DataFrame(
        {
            "patient_id": people["person_id"],
            "birth_date": birth,
            "sex": sex,
            "race": people["race_source_value"].astype(object),
            "death_date": people["person_id"].map(deaths.set_index("person_id")["death_date"]),
        }
    )
    records = pd.DataFrame(
        {
            "patient_id": drugs["person_id"],
            "date": drugs["drug_exposure_start_date"],
            "end": drugs["drug_exposure_end_date"],
            "supply": drugs["days_supply"],
            "drug": drugs["drug"],
        }
    )
    return {
        "path_or_frame": records,
        "drugs": {f"{c} {name}": _class(name) for c, name in NAMES.items() if _class(name)},
        "patients": patients,
        "observation": periods.set_axis(
            ["patient_id", "observation_start", "observation_end"], axis=1
        ),
    }


def check_same(got: mmlca.Sequences, expected: mmlca.Sequences) -> None:
    """Sequences, flow, patients and Table 1; issues but for their examples."""
    assert got.states == expected.states
    np.testing.assert_array_equal(got.codes, expected.codes)
    np.testing.assert_array_equal(got.lengths, expected.lengths)
    assert got.ids.equals(expected.ids)
    pd.testing.assert_frame_equal(got.flow, expected.flow)
    pd.testing.assert_frame_equal(got.patients, expected.patients)
    assert got.account is not None
    assert expected.account is not None
    np.testing.assert_array_equal(got.account.n_records, expected.account.n_records)
    for name in ("windows", "combinations_taken"):
        assert got.settings[name] == expected.settings[name]
    counts = [dict(zip(s.issues["issue"], s.issues["n"], strict=True)) for s in (got, expected)]
    missing = "person without a year of birth"
    counts[0].pop(missing, None)
    assert counts[0] == counts[1]
    groups = pd.Series(np.arange(len(got)) % 2, index=got.ids)
    assert str(ehr_prep.table_one(got.patients, groups)) == str(
        ehr_prep.table_one(expected.patients, groups)
    )


def _class(name: str) -> str:
    return " + ".join(DRUGS[part] for part in name.split(" / ") if part in DRUGS)


def _dates(days: Any, missing: Any = None) -> pa.Array:
    return pa.array(np.asarray(days).astype(np.int32), mask=missing).cast(pa.date32())
