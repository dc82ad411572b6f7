"""Starting values and kicks: always probabilities, and made of what they say they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import random_params

from mmlca import Sequences, simulate
from mmlca.model.em import Run, Settings, run_em
from mmlca.model.search import KICKS, KINDS, Maximum, Start, Starter
from mmlca.sequences.patterns import Patterns

K, S = 3, 4
DATA, _ = simulate(random_params(K, S, 1), 120, 8, seed=1)
SETTINGS = Settings(1e-4, np.zeros(S * (S + 1), dtype=bool), 300, 1e-4, True)


def ends(patterns: Patterns, starter: Starter, n: int) -> list[Run]:
    starts = [starter.draw(KINDS[i % len(KINDS)]) for i in range(n)]
    return [run_em(patterns, *start, SETTINGS) for start in starts]


def check(start: Start, n_classes: int) -> None:
    cells, shares = start
    assert cells.shape == (n_classes, S * (S + 1))
    assert (cells >= 0).all()
    assert cells.reshape(n_classes, S + 1, S).sum(axis=-1) == pytest.approx(1)
    assert (shares > 0).all()
    assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("kind", KICKS)
def test_a_kick_gives_probabilities_with_and_without_other_maxima(kind: str) -> None:
    starter = Starter(DATA.patterns, K, np.random.default_rng(1))
    here, *others = (Maximum(run, DATA.patterns).place for run in ends(DATA.patterns, starter, 4))
    for _ in range(20):
        check(starter.kick(kind, here, others), K)
        check(starter.kick(kind, here, []), K)


@pytest.mark.parametrize("kind", ["classes", "states"])
def test_mixed_starts_are_made_of_both_maxima(kind: str) -> None:
    starter = Starter(DATA.patterns, K, np.random.default_rng(2))
    here, other = (Maximum(run, DATA.patterns).place for run in ends(DATA.patterns, starter, 2))
    shuffled = other._replace(
        cells=other.cells[::-1], shares=other.shares[::-1], posterior=other.posterior[:, ::-1]
    )
    matched = starter._match_classes(shuffled, here)
    shape = (K, S + 1, S)
    origins = set()
    for _ in range(30):
        rows = starter.kick(kind, here, [shuffled])[0].reshape(shape)
        is_here = np.isclose(rows, here.cells.reshape(shape), atol=1e-5).all(axis=-1)
        is_there = np.isclose(rows, matched.cells.reshape(shape), atol=1e-5).all(axis=-1)
        assert (is_here | is_there).all()
        along = 1 if kind == "classes" else 0
        whole = is_here.all(axis=along) | is_there.all(axis=along)
        assert whole.all()
        origins.add(is_here.all(axis=along).tobytes())
    assert len(origins) > 2


def test_a_new_class_grows_even_from_patterns_of_gaps_alone() -> None:
    codes = np.full((12, 4), -1, dtype=np.int8)
    codes[:, 3] = np.arange(12) % S
    codes[:4, 0] = [0, 1, 2, 3]
    patterns = Sequences.from_codes(codes, tuple("abcd")).patterns
    starter = Starter(patterns, 2, np.random.default_rng(3))
    for _ in range(30):
        check(starter.grow(np.ones((len(patterns), 1))), 2)
