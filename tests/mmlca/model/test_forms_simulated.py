"""How often BIC finds the true form and number of classes, and intervals hold the truth.

The numbers of `docs/when_does_a_chain_fit.md` come from `python` on this file.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

if __name__ == "__main__":
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))

from stay_chains import THREE_BINS, destinations, two_classes

from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.model.inference import parameter_values
from mmlca.model.params import AnyParams, FormParams
from mmlca.sequences.forms import PLAIN, Form

PERIODS = Form((), (5,))
MODELS = {  # whose BIC is compared
    "stays": [PLAIN, THREE_BINS, Form((2,)), Form((3, 6))],
    "geometric": [PLAIN, THREE_BINS],
    "periods": [PLAIN, THREE_BINS, PERIODS],
}


def truth(kind: str, seed: int) -> AnyParams:
    """Two classes of equal size, of four states, that leave them with different probabilities."""
    next_states, first = destinations(2, 1, 4, seed), np.full((2, 4), 0.25)
    if kind == "geometric":
        leave = np.array([0.15, 0.35])[:, None, None]
        chains = (1 - leave) * np.eye(4) + leave * next_states[:, 0]
        return MarkovParams([0.5, 0.5], first, chains)
    if kind == "periods":  # windows 1–4, and later ones
        leaving = np.array([[0.30, 0.08], [0.50, 0.25]])[:, :, None, None]
        shape = (2, 2, 1, 4)
        twice = np.repeat(next_states, 2, axis=1)
        return FormParams(PERIODS, [0.5, 0.5], first, np.broadcast_to(leaving, shape), twice)
    return two_classes(seed)


def choices(kind: str, n: int, seed: int) -> Iterator[dict[str, Any]]:
    """The K with the smallest BIC for each form; three K after the smallest are not better."""
    data, classes = simulate(truth(kind, seed), n, 16, seed=seed)
    for form in MODELS[kind]:
        fits: dict[int, MixtureMarkov] = {}
        for k in range(1, 9):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = MixtureMarkov(k, seed=seed, n_init=6, **form._asdict()).fit(data)
            fits[k] = model
            best = min(fits, key=lambda j: fits[j].bic())
            if k >= max(best + 1, 2) and (form != PLAIN or k > best + 1):
                break
        ari = {j: adjusted_rand_score(classes, fits[j].labels_) for j in (2, best)}
        yield {
            "truth": kind, "n": n, "seed": seed, "form": form.title, "classes": best,
            "bic": fits[best].bic(), "ari": ari[best], "ari_two": ari[2],
        }  # fmt: skip


@pytest.mark.slow
def test_bic_finds_form_and_number_of_classes() -> None:
    table = pd.DataFrame([row for seed in range(100) for row in choices("stays", 1_000, seed)])
    right = table[table["form"] == THREE_BINS.title]
    plain = table[table["form"] == "plain"]
    assert (right["classes"] == 2).mean() >= 0.9
    assert (plain["classes"] >= 4).mean() > 0.9
    assert right["ari"].mean() > plain["ari"].mean() + 0.2
    assert (right["bic"].to_numpy() < plain["bic"].to_numpy()).all()
    geometric = pd.DataFrame([r for seed in range(30) for r in choices("geometric", 1_000, seed)])
    smallest = geometric.loc[geometric.groupby("seed")["bic"].idxmin()]
    assert (smallest["form"] == "plain").mean() >= 0.95
    assert (smallest["classes"] == 2).mean() >= 0.9


def coverage(n: int, n_studies: int) -> pd.DataFrame:
    """Share of studies whose 95 % interval holds the truth, for each probability."""
    p = two_classes()
    parts = []
    for seed in range(n_studies):
        data, _ = simulate(p, n, 16, seed=seed)
        model, order = fitted(data, p)
        true = parameter_values(
            FormParams(
                p.form, p.weights[order], p.initial[order], p.leaving[order], p.destination[order]
            )
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = model.standard_errors(data)
        covered = (table["low"] <= true) & (true <= table["high"])
        parts.append(table[["parameter", "stay"]].assign(covered=covered))
    return pd.concat(parts).groupby(["parameter", "stay"])["covered"].mean().reset_index()


def fitted(data: Sequences, p: FormParams) -> tuple[MixtureMarkov, Any]:
    """The fit that begins at the truth, and the true class behind each of its classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixtureMarkov(2, init=p, **p.form._asdict()).fit(data)
    apart = (model.params_.destination[:, None] - p.destination[None]) ** 2
    return model, linear_sum_assignment(apart.sum(axis=(2, 3, 4)))[1]


@pytest.mark.slow
def test_coverage_of_intervals() -> None:
    table = coverage(1_000, 300)
    assert table["covered"].between(0.93, 0.97).all(), table


if __name__ == "__main__":
    size, begin, end = (int(word) for word in sys.argv[1:4])
    for number in range(begin, end):
        for name in MODELS:
            for line in choices(name, size, number):
                sys.stdout.write(f"{json.dumps(line)}\n")
                sys.stdout.flush()
