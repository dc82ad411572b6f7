from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ehr_prep
import mmlca
from mmlca.sequences.type import Step, flow_table
from mmlca.tables.data_account import hide_flow

mpl.use("Agg")
STAGES = ["usable", "eligible", "sequences"]


@pytest.fixture
def sequences() -> mmlca.Sequences:
    frame = pd.DataFrame(
        {
            "id": [1, 1, 1, 2, 3, 3],
            "date": ["2010-01-01", "2010-01-01", "2016-01-01", "2007-01-01", "junk", "2010-01-01"],
            "drug": ["Humira", "Humira", "Orencia", "Humira", "Humira", "Rinvoq"],
        }
    )
    return ehr_prep.build_sequences(ehr_prep.read_records(frame, drugs="ra"), preset="ra")


def test_the_diagram_shows_the_table(sequences: mmlca.Sequences) -> None:
    ax = ehr_prep.plot_flow(sequences)
    texts = [text.get_text() for text in ax.texts if text.get_text()]
    assert texts == [
        "Records read",
        "3 patients",
        "6 records",
        "Dropped: 2 records",
        "  date missing or unreadable: 1 record",
        "  repeats another record: 1 record",
        "Usable records of mapped drugs",
        "3 patients",
        "4 records",
        "Dropped: 1 patient, 1 record",
        "  first treatment before 2008-01-01: 1 patient, 1 record",
        "Eligible patients",
        "2 patients",
        "3 records",
        "Dropped: 1 record",
        "  after the last of 16 windows: 1 record",
        "In the sequences",
        "2 patients",
        "2 records",
    ]


def test_small_numbers_do_not_show() -> None:
    steps = [Step("usable", "no date", 0, 40), Step("usable", "no drug", 3, 12)]
    steps += [Step("eligible", "too late", 30, 99), Step("eligible", "too young", 4, 20)]
    steps += [Step("sequences", "after the end", 0, 300)]
    flow = flow_table(300, 900, steps)
    texts = [text.get_text() for text in ehr_prep.plot_flow(flow, min_count=11).texts]
    assert [text for text in texts if text] == [
        "Records read",
        "300 patients",
        "900 records",
        "Dropped: 37 patients, 171 records",
        "  no date: 40 records",
        "  other reasons: 37 patients, 131 records",
        "Eligible patients",
        "263 patients",
        "729 records",
        "Dropped: 300 records",
        "  after the end: 300 records",
        "In the sequences",
        "263 patients",
        "429 records",
    ]
    pd.testing.assert_frame_equal(hide_flow(flow, 1), flow)


def test_a_flow_that_drops_few_shows_its_end_alone() -> None:
    table = hide_flow(flow_table(300, 900, [Step("sequences", "too young", 4, 20)]), 11)
    assert table[["patients_left", "records_left"]].to_numpy().tolist() == [[296, 880]]
    assert table[["patients", "records"]].to_numpy().tolist() == [[0, 0]]


DROPPED = st.tuples(st.sampled_from([0, 0, 1, 5, 10, 11, 40]), st.integers(0, 60))


@given(st.lists(st.tuples(st.sampled_from(STAGES), DROPPED), max_size=9))
def test_no_difference_in_a_flow_is_small(drops: list[tuple[str, tuple[int, int]]]) -> None:
    drops = sorted(drops, key=lambda drop: STAGES.index(drop[0]))
    steps = [Step(stage, f"reason {i}", p, p + r) for i, (stage, (p, r)) in enumerate(drops)]
    flow = flow_table(1000, 5000, steps)
    table = hide_flow(flow, 11)
    assert table.iloc[-1][["patients_left", "records_left"]].equals(
        flow.iloc[-1][["patients_left", "records_left"]]
    )
    for left in ("patients_left", "records_left"):
        whole = table[left].to_numpy()
        gap = np.abs(whole[:, None] - whole)  # what any two numbers of the chart reveal
        assert not ((gap > 0) & (gap < 11)).any()
        assert (np.diff(whole) == -table[left.removesuffix("_left")].to_numpy()[1:]).all()


def test_nothing_is_drawn_outside_and_no_text_leaves_its_box(
    sequences: mmlca.Sequences,
) -> None:
    import matplotlib.pyplot as plt

    ax = ehr_prep.plot_flow(sequences.flow)
    ax.figure.canvas.draw()
    boxes = [patch.get_window_extent() for patch in ax.patches]
    for text in ax.texts:
        if text.get_text():
            extent = text.get_window_extent()
            assert any(box.contains(*extent.min) and box.contains(*extent.max) for box in boxes)
    for one in boxes:
        assert sum(one.overlaps(other) for other in boxes) == 1
    plt.close(ax.figure)


def test_letters_are_smaller_in_small_axes(sequences: mmlca.Sequences) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(7.2, 5), layout="constrained")
    ax = ehr_prep.plot_flow(sequences, axes[0, 0])
    figure.canvas.draw()
    boxes = [patch.get_window_extent() for patch in ax.patches]
    for text in ax.texts:
        if text.get_text():
            extent = text.get_window_extent()
            assert any(box.contains(*extent.min) and box.contains(*extent.max) for box in boxes)
    plt.close(figure)


def test_it_draws_into_given_axes(sequences: mmlca.Sequences) -> None:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    assert ehr_prep.plot_flow(sequences, ax=ax) is ax
    plt.close(figure)
