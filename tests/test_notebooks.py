"""What a notebook shows of the main objects."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import ehr_prep
import font
import mmlca
from mmlca import Sequences


@pytest.mark.filterwarnings("ignore::mmlca.model.inference.OverlapWarning")  # coins, two classes
def test_tables_are_shown_and_names_are_escaped() -> None:
    codes = np.random.default_rng(1).integers(0, 2, (60, 6))
    data = Sequences.from_codes(codes, ["<b>A", "B"])
    model = mmlca.MixtureMarkov(2, n_init=2, seed=1).fit(data)
    labels = {site: font.label({"m": model}, data) for site in ("x", "y")}
    ensemble = font.Ensemble(2, seed=1).fit({"m": model}, font.LabelPatterns.from_labels(labels))
    clusters = {site: np.arange(60) % 2 for site in ("x", "y")}
    differences = mmlca.site_differences({"x": data, "y": data}, clusters, n_boot=10, seed=1)
    patients = pd.DataFrame({"id": data.ids, "sex": ["<i>f", "m"] * 30}).set_index("id")
    table = ehr_prep.table_one(patients, clusters["x"])
    for thing in (data, model, table, differences):
        page = thing._repr_html_()
        assert "<table" in page
        assert "<b>A" not in page
        assert "<i>f" not in page
    assert model._repr_mimebundle_()["text/html"] == model._repr_html_()  # asked for first
    assert "Ensemble of 1 model:" in ensemble._repr_html_()
    assert "Ensemble of 1 model:" in repr(ensemble)
    assert "<td>\u00a0\u00a0m</td>" in table._repr_html_()  # levels are indented
    assert f"<td>{(model.predict(data) == 0).sum()}</td>" in model._repr_html_()  # not 31.000
    assert "sex, n (%)" in repr(table)
    assert "&nbsp;" not in repr(table) + str(table)
    for unfitted in (mmlca.MixtureMarkov(2), font.Ensemble(2)):
        assert unfitted._repr_html_().startswith("<pre")
