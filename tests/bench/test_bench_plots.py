"""Figures of the study's size, and of 100,000 patients."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from ra_like import cpu, ra_like

import mmlca

pytestmark = pytest.mark.bench

FIGURES = (
    "state_distribution",
    "index",
    "frequencies",
    "time_in_state",
    "entropy",
    "transitions",
    "lines",
)


def seconds(work) -> float:
    """CPU seconds to make a figure and to draw it."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    def once() -> None:
        whole = work()
        (whole if hasattr(whole, "savefig") else whole.figure).canvas.draw()
        plt.close("all")

    return cpu(once, repeat=2)


@pytest.mark.parametrize("name", FIGURES)
def test_two_sites_and_four_clusters(name: str) -> None:
    everyone = ra_like(5_322)
    sites = {"A": everyone[:3_174], "B": everyone[3_174:]}
    clusters = {site: np.arange(len(data)) % 4 for site, data in sites.items()}
    taken = seconds(lambda: getattr(mmlca, f"plot_{name}")(sites, clusters))
    print(f"\nplot_{name}, 5,322 patients, 2 × 4 panels: {taken:.2f} s CPU")
    assert taken < 2


def test_index_of_100_000_patients() -> None:
    everyone = ra_like(100_000)
    taken = seconds(lambda: mmlca.plot_index(everyone))
    print(f"\nplot_index, 100,000 patients: {taken:.2f} s CPU")
    assert taken < 2
