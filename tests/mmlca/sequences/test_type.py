"""Sequences: what goes in comes out, and bad input gets one clear sentence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmlca import Sequences

WIDE = pd.DataFrame(
    {
        "id": ["p1", "p2", "p3"],
        "q1": ["TNFi", "JAK", None],
        "q2": ["TNFi", "", "TNFi"],
        "q3": ["JAK", "JAK", np.nan],
    }
)


@st.composite
def sequences(draw: st.DrawFn, max_patients: int = 12, max_times: int = 11) -> Sequences:
    """Any sequences: gaps at the start, inside and at the end, unequal lengths, weights."""
    n_states = draw(st.integers(1, 5))
    n = draw(st.integers(1, max_patients))
    n_times = draw(st.integers(1, max_times))
    rows = []
    for _ in range(n):
        row = draw(st.lists(st.integers(-1, n_states - 1), min_size=n_times, max_size=n_times))
        row[draw(st.integers(0, n_times - 1))] = draw(st.integers(0, n_states - 1))
        rows.append(row)
    codes = np.array(rows)
    observed = n_times - np.argmax(codes[:, ::-1] >= 0, axis=1)
    lengths = [draw(st.integers(int(o), n_times)) for o in observed]
    weights = draw(st.lists(st.floats(0, 5), min_size=n, max_size=n))
    ids = draw(st.sampled_from([None, [f"patient {i}" for i in range(n)], range(-3, n - 3)]))
    labels = ["NA", "a,b", 'say "x"', "None", "ü"][:n_states]
    times = [f"quarter {t}" for t in range(n_times)]
    return Sequences.from_codes(
        codes, labels, ids=ids, weights=weights, lengths=lengths, times=times
    )


def test_wide_table_missing_inside_and_void_after() -> None:
    s = Sequences.from_frame(WIDE)
    assert s.states == ("JAK", "TNFi")
    assert s.times == ("q1", "q2", "q3")
    assert s.codes.tolist() == [[1, 1, 0], [0, -1, 0], [-1, 1, -1]]
    assert s.lengths.tolist() == [3, 3, 2]
    assert list(s.ids) == ["p1", "p2", "p3"]
    assert s.weights.tolist() == [1, 1, 1]
    assert len(s) == 3
    assert s.codes.dtype == np.int8


def test_wide_table_with_everything_named() -> None:
    frame = WIDE.assign(w=[1.0, 2.0, 0.5], followed=[3, 3, 3], age=[50, 60, 70])
    s = Sequences.from_frame(
        frame,
        "id",
        ["TNFi", "JAK", "IL6R"],
        columns=["q1", "q2", "q3"],
        weights="w",
        lengths="followed",
        times=["quarter 1", "quarter 2", "quarter 3"],
    )
    assert s.codes.tolist() == [[0, 0, 1], [1, -1, 1], [-1, 0, -1]]
    assert s.lengths.tolist() == [3, 3, 3]
    assert s.weights.tolist() == [1, 2, 0.5]
    assert s.times[0] == "quarter 1"


def test_categories_keep_their_order_and_numbers_sort_as_numbers() -> None:
    dtype = pd.CategoricalDtype(["late", "early"])
    frame = pd.DataFrame({"id": [1], "t1": pd.Categorical(["early"], dtype=dtype)})
    assert Sequences.from_frame(frame).states == ("late", "early")
    numbers = pd.DataFrame({"id": [1, 2], "t1": [10, 2], "t2": [np.nan, 2.0]})
    s = Sequences.from_frame(numbers)
    assert s.states == ("2", "10")
    assert s.codes.tolist() == [[1, -1], [0, 0]]
    texts = pd.DataFrame({"id": [1, 2], "t1": ["10", "2"]})
    assert Sequences.from_frame(texts).states == ("2", "10")


def test_users_own_missing_codes_and_the_index_as_id() -> None:
    frame = pd.DataFrame({"t1": ["A", "*"], "t2": ["*", "B"]}, index=["x", "y"])
    s = Sequences.from_frame(frame, id=None, missing=["*"])
    assert s.states == ("A", "B")
    assert s.codes.tolist() == [[0, -1], [-1, 1]]
    assert list(s.ids) == ["x", "y"]


def test_long_table_fills_the_grid_and_follows_to_the_last_row() -> None:
    frame = pd.DataFrame(
        {
            "who": ["b", "a", "a", "b", "b"],
            "quarter": [1, 1, 4, 2, 3],
            "drug": ["X", "Y", "X", "X", None],
        }
    )
    s = Sequences.from_long(frame, "who", "quarter", "drug")
    assert list(s.ids) == ["b", "a"]
    assert s.times == ("1", "2", "3", "4")
    assert s.codes.tolist() == [[0, 0, -1, -1], [1, -1, -1, 0]]
    assert s.lengths.tolist() == [3, 4]


def test_long_table_with_named_times() -> None:
    frame = pd.DataFrame({"id": [1, 1], "time": ["summer", "spring"], "state": ["A", "B"]})
    assert Sequences.from_long(frame).times == ("spring", "summer")
    s = Sequences.from_long(frame, times=["winter", "spring", "summer"])
    assert s.codes.tolist() == [[-1, 1, 0]]


def test_spells() -> None:
    frame = pd.DataFrame(
        {"id": [7, 7, 8], "start": [1, 4, 2], "end": [2, 5, 2], "state": ["A", "B", "B"]}
    )
    s = Sequences.from_spells(frame)
    assert s.codes.tolist() == [[0, 0, -1, 1, 1], [-1, 1, -1, -1, -1]]
    assert s.lengths.tolist() == [5, 2]


@given(sequences())
@settings(deadline=None)
def test_tables_round_trip(s: Sequences) -> None:
    row, column = np.nonzero(np.arange(s.shape[1]) < s.lengths[:, None])
    states = np.append(np.array(s.states, dtype=object), None)
    long = pd.DataFrame({"id": s.ids[row], "state": states[s.codes[row, column]]})
    long = long.assign(weight=s.weights[row], start=column + 1, end=column + 1)
    times = pd.Categorical.from_codes(column, list(s.times), ordered=True)
    options = {"states": s.states, "weights": "weight"}
    assert Sequences.from_long(long.assign(time=times), **options) == s
    assert Sequences.from_spells(long, **options, times=s.times) == s
    wide = s.to_frame().assign(weight=s.weights, length=s.lengths)
    assert Sequences.from_frame(wide, id=None, weights="weight", lengths="length") == s


@given(s=sequences(), suffix=st.sampled_from(["csv", "parquet"]))
@settings(deadline=None)
def test_files_round_trip_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, s: Sequences, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("files") / f"sequences.{suffix}"
    s.write(path)
    again = Sequences.read(path)
    assert again == s
    assert again.ids.dtype == s.ids.dtype
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file left


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_any_wide_table_can_be_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table.{suffix}"
    table = WIDE.assign(weight=[1.0, 2.0, 3.0])
    if suffix == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path)
    s = Sequences.read(path)
    assert s.codes.tolist() == [[1, 1, 0], [0, -1, 0], [-1, 1, -1]]
    assert s.weights.tolist() == [1, 2, 3]
    assert Sequences.read(path, states=["TNFi", "JAK"]).codes[0].tolist() == [0, 0, 1]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.csv"
    Sequences.from_frame(WIDE).write(path)
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    with pytest.raises(OSError, match="no space"):
        Sequences.from_frame(WIDE).write(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    Sequences.from_frame(WIDE).write(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"states"', '"sates"'), encoding="utf-8")
    with pytest.raises(ValueError, match="description is damaged"):
        Sequences.read(path)
    path.write_text(text.replace("t:q2", "t:q9"), encoding="utf-8")
    with pytest.raises(ValueError, match="should have the columns"):
        Sequences.read(path)
    path.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="is empty"):
        Sequences.read(path)
    with pytest.raises(ValueError, match=r"must end in \.csv or \.parquet"):
        Sequences.read(tmp_path / "s.xlsx")


def test_choosing_patients() -> None:
    s = Sequences.from_frame(WIDE)
    assert list(s[1:].ids) == ["p2", "p3"]
    assert list(s[0].ids) == ["p1"]
    assert list(s[[2, 0]].ids) == ["p3", "p1"]
    assert list(s[np.array([True, False, True])].ids) == ["p1", "p3"]
    assert list(s.select(["p3", "p1"]).ids) == ["p3", "p1"]
    assert list(s.select([False, True, False]).ids) == ["p2"]
    assert len(s.select([False, False, False])) == 0
    assert s.select([False] * 3).shape == (0, 3)
    with pytest.raises(ValueError, match="1 ids are not among the patients: 'p9'"):
        s.select(["p1", "p9"])
    with pytest.raises(ValueError, match="mask has 2 values for 3 patients"):
        s.select([True, False])


def test_reweighting_shares_the_codes_and_the_patterns() -> None:
    s = Sequences.from_frame(WIDE)
    before = s.patterns
    other = s.reweight([0, 2, 1])
    assert other.weights.tolist() == [0, 2, 1]
    assert s.weights.tolist() == [1, 1, 1]
    assert np.shares_memory(other.codes, s.codes)
    assert np.shares_memory(other.patterns.tokens, before.tokens)
    assert other.patterns.weights[other.patterns.inverse].tolist() == [0, 2, 1]


def test_concat_pads_and_keeps_sites_apart() -> None:
    a = Sequences.from_lists([["A", "B"]], ["A", "B"])
    b = Sequences.from_lists([["B", "B", "A"]], ["A", "B"], weights=[2])
    both = Sequences.concat({"MGB": a, "VA": b})
    assert list(both.ids) == ["MGB/1", "VA/1"]
    assert both.codes.tolist() == [[0, 1, -1], [1, 1, 0]]
    assert both.lengths.tolist() == [2, 3]
    assert both.weights.tolist() == [1, 2]
    with pytest.raises(ValueError, match="more than once"):
        Sequences.concat([a, b])
    with pytest.raises(ValueError, match="states differ"):
        Sequences.concat([a, Sequences.from_lists([["A"]], ["A"])])
    with pytest.raises(ValueError, match="nothing to concatenate"):
        Sequences.concat([])


def test_frozen() -> None:
    s = Sequences.from_frame(WIDE)
    with pytest.raises(AttributeError):
        s.states = ("x",)  # type: ignore[misc]
    for array in (s.codes, s.weights, s.lengths):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    codes = np.array([[0, 1]], dtype=np.int8)
    made = Sequences.from_codes(codes)
    codes[:] = 1
    assert made.codes.tolist() == [[0, 1]]
    weights = np.array([1.0])
    made = Sequences.from_codes(codes, weights=weights)
    weights[0] = 5
    assert made.weights.tolist() == [1]


def test_repr_says_what_matters() -> None:
    s = Sequences.from_lists([["A", "A"], ["A", "A"], ["A", None, "B"]], weights=[1, 1, 3])
    assert repr(s).splitlines() == [
        "Sequences: 3 patients × 3 times (1 … 3), 2 states",
        "  states    A, B",
        "  lengths   2 to 3, median 2",
        "  missing   1 of 7 followed-up times (14.3 %)",
        "  distinct  2 sequences, 33.3 % of patients repeat one of them",
        "  weights   sum 5",
    ]
    assert repr(s[:0]).startswith("Sequences: 0 patients")


@given(sequences())
@settings(deadline=None)
def test_distinct_sequences_are_those_of_plain_python(s: Sequences) -> None:
    rows = [(*map(int, c), int(n)) for c, n in zip(s.codes, s.lengths, strict=True)]
    order = {row: k for k, row in enumerate(dict.fromkeys(rows))}
    first, number = s.distinct()
    assert number.tolist() == [order[row] for row in rows]
    assert first.tolist() == [rows.index(row) for row in order]


DAYS = pd.DatetimeIndex(["2020-01-01", "2021-01-01"])


def long(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Sequences.from_frame(WIDE, states=["TNFi"]), ValueError, "found 'JAK' where"),
        (
            lambda: Sequences.from_long(long(id=[1, 1], time=[2, 2], state=["A", "B"])),
            ValueError,
            r"1 rows give a second state for the same patient and time \(1 at 2\)",
        ),
        (
            lambda: Sequences.from_spells(
                long(id=[1, 1], start=[1, 2], end=[2, 3], state=["A", "B"])
            ),
            ValueError,
            "second state",
        ),
        (
            lambda: Sequences.from_frame(long(id=[1, 2], t1=["A", None])),
            ValueError,
            r"1 patient has no observed state \(patients 2\)",
        ),
        (
            lambda: Sequences.from_codes([[0], [0]], weights=[1, -1]),
            ValueError,
            r"1 weight is negative or not finite \(patients 2\)",
        ),
        (lambda: Sequences.from_codes([[0]], weights=[np.nan]), ValueError, "not finite"),
        (lambda: Sequences.from_codes([[0]], weights=["x"]), ValueError, "weights must be numbers"),
        (lambda: Sequences.from_codes([[0]], weights=[1, 2]), ValueError, "shape"),
        (lambda: Sequences.from_codes(np.empty((2, 0), int)), ValueError, "T = 0"),
        (lambda: Sequences.from_lists([[], []]), ValueError, "T = 0"),
        (lambda: Sequences.from_codes([[127]]), ValueError, "found 128 states"),
        (lambda: Sequences.from_codes([[10**9]]), ValueError, "at most 127"),
        (
            lambda: Sequences.from_frame(long(id=range(200), t1=[f"s{i}" for i in range(200)])),
            ValueError,
            "found 200 states",
        ),
        (lambda: Sequences.from_codes([[0, -2]]), ValueError, "found -2"),
        (lambda: Sequences.from_codes([[0, 3]], ["A"]), ValueError, "found 3"),
        (lambda: Sequences.from_codes([[0.5]]), TypeError, "must be integers, found float64"),
        (lambda: Sequences.from_codes([0, 1]), ValueError, "two dimensions"),
        (
            lambda: Sequences.from_codes([[0], [0]], ids=["a", "a"]),
            ValueError,
            r"1 id occurs more than once \('a'\)",
        ),
        (lambda: Sequences.from_codes([[0], [0]], ids=["a", 1]), TypeError, "ids mix types"),
        (
            lambda: Sequences.from_codes([[0], [0]], ids=["a", None]),
            ValueError,
            "1 patient has no",
        ),
        (lambda: Sequences.from_codes([[0], [0]], ids=["a"]), ValueError, "found 1 ids for 2"),
        (
            lambda: Sequences.from_frame(long(id=[1, 2], t1=["A", "B"], age=[40, 50])),
            TypeError,
            r"mix text \('A', 'B'\) and other values \(40, 50\)",
        ),
        (lambda: Sequences.from_frame(WIDE, id="nr"), ValueError, "no column 'nr'.*it has 'id'"),
        (lambda: Sequences.from_frame(WIDE[["id"]]), ValueError, "no column holds states"),
        (lambda: Sequences.from_codes([[0]], "A"), TypeError, "states must be a list"),
        (lambda: Sequences.from_codes([[0]], ["A", "A"]), ValueError, "labels must differ"),
        (lambda: Sequences.from_codes([[0]], ["A", ""]), ValueError, "means missing"),
        (lambda: Sequences.from_codes([[0, 0]], times=["x"]), ValueError, "2 different time"),
        (lambda: Sequences.from_codes([[0, 0]], lengths=[1]), ValueError, "not a whole number"),
        (lambda: Sequences.from_codes([[0, 0]], lengths=[3]), ValueError, "not a whole number"),
        (
            lambda: Sequences.from_long(long(id=[1, None], time=[1, 1], state=["A", "A"])),
            ValueError,
            "1 row has no 'id'",
        ),
        (
            lambda: Sequences.from_long(long(id=[1], time=[1], state=["A"]), times=[2]),
            ValueError,
            "does not name 1",
        ),
        (
            lambda: Sequences.from_long(
                long(id=[1, 1], time=[20080101, 20191231], state=["A", "A"])
            ),
            ValueError,
            "number the windows",
        ),
        (
            lambda: Sequences.from_long(long(id=[1, 1], time=[1, "x"], state=["A", "A"])),
            TypeError,
            "times mix types",
        ),
        (lambda: Sequences.from_long(long(id=[], time=[], state=[])), ValueError, "no rows"),
        (
            lambda: Sequences.from_long(
                long(id=[1, 1], time=[1, 2], state=["A", "A"], w=[1, 2]), weights="w"
            ),
            ValueError,
            "several weights",
        ),
        (
            lambda: Sequences.from_spells(long(id=[1], start=[3], end=[2], state=["A"])),
            ValueError,
            "1 spells end before they start",
        ),
        (
            lambda: Sequences.from_spells(long(id=[1], start=["2020-01-01"], end=[2], state=["A"])),
            ValueError,
            "must be a whole number",
        ),
        *(  # once "the times span 31,622,400,000,000,001 steps"
            (
                lambda dates=dates: Sequences.from_spells(
                    long(id=[1, 1], start=[1, 2], end=dates, state=["A", "B"])
                ),
                ValueError,
                "the column 'end' holds dates, .* such as quarters since the patient's first date",
            )
            for dates in (DAYS, DAYS.date, DAYS.to_period("Q"), DAYS - DAYS[0])
        ),
    ],
)
def test_bad_input_gets_one_clear_sentence(build: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_at_most_five_offenders_are_named() -> None:
    with pytest.raises(ValueError, match=r"9 patients .*patients 1, 2, 3, 4, 5, …\)"):
        Sequences.from_codes(np.full((9, 2), -1))


def test_extremes() -> None:
    s = Sequences.from_codes(np.arange(127).reshape(1, -1))
    assert s.n_states == 127
    assert Sequences.from_codes([[0]]).shape == (1, 1)
    wide = Sequences.from_codes(np.zeros((2, 10_000), dtype=int))
    assert wide.lengths.tolist() == [10_000, 10_000]
    assert Sequences.from_frame(WIDE[:0], states=["A"]).shape == (0, 3)


def test_sequences_without_an_account_say_so(tmp_path: Path) -> None:
    s = Sequences.from_frame(WIDE)
    assert s.account is None
    for name in ("flow", "issues", "patients", "settings"):
        with pytest.raises(AttributeError, match="no account of how they came about"):
            getattr(s, name)
    with pytest.raises(AttributeError, match="no account"):
        s.write_all(tmp_path / "out.csv")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_files_of_patients_are_private(tmp_path: Path) -> None:
    for name in ("out.csv", "out.parquet"):
        Sequences.from_frame(WIDE).write(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
