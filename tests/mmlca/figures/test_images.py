"""The main figures look as they did: small, without text, compared pixel by pixel.

After a change that is meant: run this file with MMLCA_GOLDEN=write, look at the images in
tests/golden, and commit them.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from paths import ROOT

import ehr_prep
import mmlca
from mmlca import MixtureMarkov

GOLDEN = ROOT / "tests" / "golden"
PARAMS = mmlca.MarkovParams(
    [0.6, 0.4],
    [[0.9, 0.05, 0.05], [0.5, 0.3, 0.2]],
    [
        [[0.96, 0.02, 0.02], [0.3, 0.6, 0.1], [0.3, 0.1, 0.6]],
        [[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.1, 0.2, 0.7]],
    ],
)
STATES = ("TNFi", "CTLA4-Ig", "JAK")
COLOURS = {"JAK": "#CC79A7"}  # as with the whole map of rheumatoid arthritis
SITES = {s: mmlca.simulate(PARAMS, n, 16, n, states=STATES) for s, n in (("A", 300), ("B", 400))}
SEQUENCES = {site: made[0] for site, made in SITES.items()}
CLUSTERS = {site: made[1] for site, made in SITES.items()}


def esr() -> Figure:
    site = ehr_prep.synthetic.ra_cohort(seed=1, scale=0.1, sites=["MGB"])["MGB"]
    built = ehr_prep.build_sequences(
        ehr_prep.read_records(site.records, drugs="ra", patients=site.patients), preset="ra"
    )
    groups = pd.Series((built.codes[:, 0] > 0).astype(int), index=built.ids)
    return ehr_prep.plot_trend(ehr_prep.trend(site.labs, groups, built))


FIGURES = {
    "state_distribution": lambda: mmlca.plot_state_distribution(
        SEQUENCES, CLUSTERS, colours=COLOURS
    ),
    "frequencies": lambda: mmlca.plot_frequencies(SEQUENCES, CLUSTERS, colours=COLOURS),
    "transitions": lambda: mmlca.plot_transitions(SEQUENCES, CLUSTERS),
    "lines": lambda: mmlca.plot_lines(SEQUENCES, CLUSTERS, colours=COLOURS),
    "site_differences": lambda: mmlca.plot_site_differences(
        mmlca.site_differences(
            SEQUENCES,
            CLUSTERS,
            models={s: MixtureMarkov(2, seed=1).fit(d) for s, d in SEQUENCES.items()},
            n_boot=0,
        )
    ),
    "esr": esr,
}


@pytest.mark.parametrize("name", FIGURES)
def test_image(name: str, tmp_path: Path) -> None:
    figure = FIGURES[name]()
    figure.canvas.draw()  # the layout is settled with the text in place
    figure.set_layout_engine("none")
    for text in figure.findobj(Text):
        text.set_visible(False)
    path = tmp_path / f"{name}.png"
    figure.savefig(path, dpi=50)
    golden = GOLDEN / f"{name}.png"
    if os.environ.get("MMLCA_GOLDEN") == "write":
        golden.write_bytes(path.read_bytes())
    found, expected = imread(path)[..., :3], imread(golden)[..., :3]
    assert found.shape == expected.shape
    difference = np.abs(found - expected).mean()
    assert difference < 0.02, f"mean difference of {difference:.3f} from {golden.name}"
