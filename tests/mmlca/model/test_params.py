"""Parameters and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import random_params

from mmlca import MarkovParams, simulate

P = MarkovParams([0.7, 0.3], [[0.9, 0.1], [0, 1]], [[[0.8, 0.2], [0.5, 0.5]], [[1, 0], [0.1, 0.9]]])


def test_immutable_and_comparable() -> None:
    with pytest.raises(AttributeError):
        P.weights = np.ones(2)  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        P.initial[0, 0] = 1
    assert MarkovParams.from_dict(P.to_dict()) == P
    assert random_params(2, 2, 1) != P
    assert P.class_parameters.tolist()[0] == [0.9, 0.1, 0.8, 0.2, 0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ([1.0], [[0.5, 0.4]], [np.eye(2)]),
            "initial must sum to 1 in each row, found a sum",
        ),
        (([0.5, 0.6], [[1.0]] * 2, [[[1.0]]] * 2), "weights must sum to 1"),
        (([1.0], [[1.5, -0.5]], [np.eye(2)]), "initial must be probabilities, found -0.5"),
        (([1.0], [[np.nan, 1]], [np.eye(2)]), "must be probabilities"),
        (([1.0], [[0.5, 0.5]], [np.eye(3)]), r"transition must have the shape \(1, 2, 2\)"),
        (([0.5, 0.5], [[1.0]], [[[1.0]]]), r"weights must have the shape \(1,\)"),
        (([1.0], [1.0], [[1.0]]), r"initial must have the shape \(classes, states\)"),
        (([1.0], np.full((1, 200), 1 / 200), np.full((1, 200, 200), 1 / 200)), "at most 127"),
    ],
)
def test_bad_parameters(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MarkovParams(*arguments)  # type: ignore[arg-type]


def test_ragged_and_incomplete() -> None:
    with pytest.raises(TypeError, match="rectangular"):
        MarkovParams([1.0], [[1.0], [0.5, 0.5]], [[[1.0]]])
    with pytest.raises(ValueError, match="lack initial, transition"):
        MarkovParams.from_dict({"weights": [1.0]})


def test_simulated_frequencies() -> None:
    s, classes = simulate(P, 40_000, 6, states=["A", "B"], seed=2)
    assert s.states == ("A", "B")
    assert classes.value_counts(normalize=True)[0] == pytest.approx(0.7, abs=0.01)
    first = s.codes[classes.to_numpy() == 0]
    assert (first[:, 0] == 0).mean() == pytest.approx(0.9, abs=0.01)
    stays = first[:, 1:][first[:, :-1] == 0]
    assert (stays == 0).mean() == pytest.approx(0.8, abs=0.01)
    second = s.codes[classes.to_numpy() == 1]
    assert (second[:, 0] == 1).all()
    assert (second[:, 1:][second[:, :-1] == 0] == 0).all()


def test_lengths_and_seed() -> None:
    lengths = np.array([1, 5, 3])
    s, _ = simulate(P, 3, lengths, seed=1)
    assert s.lengths.tolist() == [1, 5, 3]
    assert simulate(P, 3, lengths, seed=1)[0] == s
    for bad in (0, 1.5):
        with pytest.raises(ValueError, match="lengths"):
            simulate(P, 3, bad)
    with pytest.raises(ValueError, match="n must be"):
        simulate(P, 0)
