"""What the paper's supplement and discussion raise, measured: scenarios beside the main grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from font.checks import one_of
from font.simulation.run import grid_scenarios, run_simulation, simulation_table
from font.simulation.sources import SETTINGS, GaussianSource

_WEIGHTINGS = (
    "consensus",
    "FONT equal",
    "FONT",
    "FONT centred",
    "FONT sparse",
    "FONT prior",
    "best local",
)


class Question(NamedTuple):
    """A question, and the scenarios and methods that answer it."""

    question: str
    scenarios: list[dict[str, Any]]
    methods: tuple[str, ...]


def _scenarios(**grid: Any) -> list[dict[str, Any]]:
    return grid_scenarios(grid)


QUESTIONS: Mapping[str, Question] = {
    "resamples": Question(
        "Do resampled pseudo-sites help where sites are two?",
        _scenarios(
            setting=["homogeneous", "imbalanced"],
            n_sites=2,
            variance=[0.1, 0.3],
            resamples=[0, 2, 4, 8],
        ),
        ("local", "FONT", "pooled"),
    ),
    "n_local": Question(
        "What does a wrong number of local classes cost (5 are right)?",
        _scenarios(
            setting=["homogeneous", "imbalanced"],
            n_sites=5,
            variance=[0.1, 0.3],
            n_local=[4, 5, 6, 7, 8],
        ),
        ("local", "FONT"),
    ),
    "spectrum": Question(
        "Can the number of clusters be read off the spectrum?",
        _scenarios(
            setting=SETTINGS, n_sites=[5, 10], variance=[0.05, 0.1, 0.3], n_local=[5, 6, 7, 8]
        ),
        ("FONT", "FONT any K"),
    ),
    "noise": Question(
        "What do sites without information do (Theorem 2)?",
        _scenarios(setting="imbalanced", n_sites=10, variance=0.1, noise_sites=[0, 2, 4, 6, 8]),
        _WEIGHTINGS,
    ),
    "adversarial": Question(
        "What do sites do that agree with each other and with nobody else?",
        _scenarios(setting="imbalanced", n_sites=10, variance=0.1, adversarial_sites=[0, 2, 4, 6]),
        _WEIGHTINGS,
    ),
    "absent": Question(
        "What if sites lack classes, and fit as many as there are in all, or as they have?",
        [
            scenario
            for absent in (0, 1, 2, 3)
            for scenario in _scenarios(
                setting="homogeneous",
                n_sites=[5, 10],
                variance=0.1,
                absent_classes=absent,
                n_local=sorted({5, 5 - absent}),
            )
        ],
        ("local", "consensus", "FONT equal", "FONT", "pooled", "best local"),
    ),
    "outliers": Question(
        "What if all outlying points of a site come from one Gaussian?",
        _scenarios(
            setting="contaminated",
            n_sites=[5, 10],
            variance=[0.05, 0.1, 0.3],
            outlier_means=["point", "site"],
        ),
        ("local", "consensus", "FONT equal", "FONT", "FONT centred", "pooled"),
    ),
}


def measure(
    names: Iterable[str] | None = None, replicates: int = 100, **options: Any
) -> dict[str, pd.DataFrame]:
    """Answer questions, all unless given, one table each; options are those of `run_simulation`.

    One row per scenario: the mean adjusted Rand index of each method, `se`, the largest of their
    standard errors; `K found`, how often the spectrum gives FONT the true number of clusters; and,
    where sites do harm, `bad weight`, FONT's mean weight of theirs as a share of the mean over all.
    """
    chosen = list(QUESTIONS if names is None else names)
    for name in chosen:
        one_of(name, QUESTIONS, "each question")
    return {
        name: _summary(
            run_simulation(
                QUESTIONS[name].scenarios,
                replicates,
                methods=QUESTIONS[name].methods,
                **options,
            )
        )
        for name in chosen
    }


def _summary(results: pd.DataFrame) -> pd.DataFrame:
    scores = simulation_table(results)
    table: pd.DataFrame = scores.xs("mean", axis=1, level=1).copy()
    table["se"] = scores.xs("se", axis=1, level=1).max(axis=1)
    right = results.assign(suggested=results["suggested"] == GaussianSource.defaults["n_classes"])
    table["K found"] = simulation_table(right[right["method"] == "FONT"], "suggested")["FONT"][
        "mean"
    ]
    if results["bad_weight"].notna().any():
        table["bad weight"] = simulation_table(results, "bad_weight")["FONT"]["mean"]
    table.columns.name = None
    return table
