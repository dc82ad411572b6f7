from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import pytest

import ehr_prep

mpl.use("Agg")


@pytest.fixture
def sequences() -> ehr_prep.TreatmentSequences:
    frame = pd.DataFrame(
        {
            "id": [1, 1, 1, 2, 3, 3],
            "date": ["2010-01-01", "2010-01-01", "2016-01-01", "2007-01-01", "junk", "2010-01-01"],
            "drug": ["Humira", "Humira", "Orencia", "Humira", "Humira", "Rinvoq"],
        }
    )
    return ehr_prep.build_sequences(ehr_prep.read_records(frame))


def test_the_diagram_shows_the_table(sequences: ehr_prep.TreatmentSequences) -> None:
    ax = ehr_prep.plot_flow(sequences)
    texts = [text.get_text() for text in ax.texts if text.get_text()]
    assert texts == [
        *("Records read", "3 patients", "6 records"),
        *("Dropped: 2 records", "  date missing or unreadable: 1 record"),
        "  repeats another record: 1 record",
        *("Usable records of mapped drugs", "3 patients", "4 records"),
        *("Dropped: 1 patient, 1 record",),
        "  first treatment before 2008-01-01: 1 patient, 1 record",
        *("Eligible patients", "2 patients", "3 records"),
        *("Dropped: 1 record", "  after the last of 16 windows: 1 record"),
        *("In the sequences", "2 patients", "2 records"),
    ]


def test_nothing_is_drawn_outside_and_no_text_leaves_its_box(
    sequences: ehr_prep.TreatmentSequences,
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


def test_it_draws_into_given_axes(sequences: ehr_prep.TreatmentSequences) -> None:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    assert ehr_prep.plot_flow(sequences, ax=ax) is ax
    plt.close(figure)
