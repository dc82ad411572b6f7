"""Records to sequences against a careful pandas version: one run, CPU time and peak memory."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparisons import Compare
from ra_like import cpu

import ehr_prep
import mmlca
from mmlca import MixtureMarkov

N_RECORDS = int(float(os.environ.get("MMLCA_BENCH_PREP", "10e6")))
N_PATIENTS, N_WINDOWS = N_RECORDS // 20, 16
START = np.datetime64("2008-01-01")
STATES = ehr_prep.RA_DRUGS.states


def make_records() -> pd.DataFrame:
    """Patients stay on a class and now and then switch; records come in no order."""
    rng = np.random.default_rng(1)
    names = ehr_prep.RA_DRUGS.table.query("vocabulary == 'name'").drop_duplicates("ingredient")
    patient = rng.integers(0, N_PATIENTS, N_RECORDS)
    first = rng.integers(0, 2500, N_PATIENTS)
    after = rng.integers(0, 1400, N_RECORDS)
    drug = rng.integers(0, len(names), N_PATIENTS)[patient]
    drug = (drug + (rng.random(N_RECORDS) < 0.2) * (after // 400)) % len(names)
    return pd.DataFrame(
        {
            "patient_id": patient + 1,
            "date": (START + (first[patient] + after)).astype("datetime64[s]"),
            "drug": pd.Categorical.from_codes(drug, names["drug"].to_list()).astype(str),
        }
    )


def with_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    """groupby-size, sort, drop_duplicates, pivot and ffill, with windows of calendar months."""
    known = ehr_prep.RA_DRUGS.classify(frame["drug"].unique())
    class_of = {d: STATES.index(c) for d, c in zip(known["drug"], known["class"], strict=True)}
    data = frame.drop_duplicates(["patient_id", "date", "drug"])
    data = data.assign(state=data["drug"].map(class_of).astype("int8"))
    index = data.groupby("patient_id")["date"].transform("min")
    data = data[index >= pd.Timestamp(START)]
    date, index = data["date"].dt, index[index >= pd.Timestamp(START)].dt
    months = (date.year - index.year) * 12 + (date.month - index.month)
    months -= date.day < np.minimum(index.day, date.days_in_month)
    data = data.assign(window=months // 3)
    length = data.groupby("patient_id")["window"].max().clip(upper=N_WINDOWS - 1)
    data = data[data["window"] < N_WINDOWS]
    cells = data.groupby(["patient_id", "window", "state"])["date"].agg(["size", "min"])
    best = (
        cells.reset_index()
        .sort_values(
            ["patient_id", "window", "size", "min", "state"],
            ascending=[True, True, False, True, True],
        )
        .drop_duplicates(["patient_id", "window"])
    )
    wide = best.pivot(index="patient_id", columns="window", values="state").ffill(axis=1)
    return wide.where(wide.columns.to_numpy() <= length.to_numpy()[:, None])


def cpu_seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


@pytest.mark.bench
def test_ten_million_records(compare: Compare) -> None:
    def ours() -> mmlca.Sequences:
        return ehr_prep.build_sequences(
            ehr_prep.read_records(frame, drugs="ra"), preset="ra", max_windows=N_WINDOWS
        )

    frame = make_records().head(1000)
    ours()  # compiles
    frame = make_records()
    seconds, sequences = cpu_seconds(ours)
    pandas_seconds, wide = cpu_seconds(lambda: with_pandas(frame))
    assert np.array_equal(sequences.codes, wide.fillna(-1).to_numpy(np.int8))
    assert sequences.ids.equals(wide.index.rename("id"))

    size = frame.memory_usage(index=False, deep=True).sum()
    tracemalloc.start()
    ours()
    extra = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    task = f"{len(frame):,} records of {len(sequences):,} patients to sequences"
    compare(task, seconds, "pandas", pandas_seconds, "groupby, sort, pivot, ffill")
    print(f"\nextra memory {extra / 2**20:,.0f} MiB, {extra / size:.1f}× the records")
    assert pandas_seconds / seconds >= 5
    assert extra / size <= 3


@pytest.mark.bench
def test_combinations_cost_at_most_four_times_the_most_frequent_class() -> None:
    """Reading and building, with 30 days of supply; eras, overlaps and stopping by supply."""

    def ours(**rules: Any) -> mmlca.Sequences:
        records = ehr_prep.read_records(frame, drugs="ra", default_supply=30)
        return ehr_prep.build_sequences(records, max_windows=N_WINDOWS, **rules)

    combine = {"states": "combinations", "impute": "carry_forward_supplied"}
    frame = make_records().head(1000)
    ours(), ours(**combine)  # compiles
    frame = make_records()
    plain_seconds, plain = cpu_seconds(ours)
    seconds, combined = cpu_seconds(lambda: ours(**combine))
    assert plain.ids.equals(combined.ids)
    assert combined.settings["windows"]["combination"] > 0.01 * combined.lengths.sum()
    print(
        f"\n{len(frame):,} records: most frequent class {plain_seconds:.2f} CPU s, combinations "
        f"{seconds:.2f} CPU s, {seconds / plain_seconds:.1f}×"
    )
    assert seconds / plain_seconds <= 4


@pytest.mark.bench
def test_cohort_and_lab_trend() -> None:
    made = cpu(lambda: ehr_prep.synthetic.ra_cohort(seed=1))
    cohort = ehr_prep.synthetic.ra_cohort(seed=1)
    built = {
        site: ehr_prep.build_sequences(
            ehr_prep.read_records(s.records, drugs="ra", patients=s.patients), preset="ra"
        )
        for site, s in cohort.items()
    }
    labs = {site: s.labs for site, s in cohort.items()}
    groups = {
        site: pd.Series(MixtureMarkov(4, n_init=8, seed=1).fit(data).labels_, index=data.ids)
        for site, data in built.items()
    }
    trend = cpu(lambda: ehr_prep.trend(labs, groups, built))
    result = ehr_prep.trend(labs, groups, built)
    drawn = cpu(lambda: ehr_prep.plot_trend(result).canvas.draw(), repeat=1)
    n_records = sum(len(s.records) for s in cohort.values())
    print(
        f"\nsynthetic cohort, {n_records:,} records: {made:.2f} s CPU; trends of "
        f"{sum(map(len, labs.values())):,} labs {trend:.2f} s, their figure {drawn:.2f} s"
    )
    assert made < 10
    assert trend + drawn < 4


@pytest.mark.bench
def test_a_hundred_thousand_texts_take_seconds() -> None:
    rng = np.random.default_rng(1)
    names = ehr_prep.RA_DRUGS.table["drug"].to_list()
    words = ["".join(rng.choice(list("abcdefghiklmnoprstuvy"), 8)) for _ in range(2_000)]
    texts = [
        f"{n % 97} ML {names[n % len(names)] if n % 4 == 0 else words[n % 2000]} "
        f"{words[n // 7 % 2000]} {n} MG/ML Auto-Injector [{words[n % 1999]}]"
        for n in range(100_000)
    ]
    start = time.process_time()
    table = ehr_prep.RA_DRUGS.classify(texts)
    classified = time.process_time() - start
    assert table["class"].notna().mean() == pytest.approx(0.2, abs=0.05)
    frame = pd.DataFrame({"id": 1, "date": "2010-01-01", "drug": texts})
    start = time.process_time()
    report = ehr_prep.drug_report(ehr_prep.read_records(frame, drugs="ra"))
    reported = time.process_time() - start
    print(f"100,000 texts: {classified:.1f} CPU s, {reported:.1f} CPU s with the report")
    assert classified < 5
    assert len(report) == 100_000
