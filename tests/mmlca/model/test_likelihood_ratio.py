"""The bootstrap likelihood-ratio test: statistic, p-value, early end, size and power."""

from __future__ import annotations

import numpy as np
import pytest

import mmlca
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.model.selection import _share_limits, _simulate_statistic

ONE = MarkovParams([1.0], [[0.6, 0.4]], [[[0.7, 0.3], [0.4, 0.6]]])
TWO = MarkovParams(
    [0.6, 0.4], [[0.8, 0.2], [0.3, 0.7]], [[[0.9, 0.1], [0.4, 0.6]], [[0.4, 0.6], [0.1, 0.9]]]
)


def test_two_classes_are_seen() -> None:
    data = simulate(TWO, 200, 10, seed=1)[0]
    test = mmlca.bootstrap_lrt(data, 2, n=9, seed=1, n_init=4)
    gain = MixtureMarkov(2, seed=1).fit(data).loglik_ - MixtureMarkov(1).fit(data).loglik_
    assert test.statistic == pytest.approx(2 * gain, abs=1e-3)
    assert test.p_value == 0.1  # the smallest that nine simulations allow
    assert (test.low, test.high) == (0, pytest.approx(1 - 0.025 ** (1 / 9)))
    assert 0 < test.mc_error < 0.12
    assert len(test.simulated) == 9
    assert "2 classes are not clearly better" in repr(test)


def test_p_value_is_the_share_of_larger_statistics() -> None:
    data = simulate(ONE, 100, 6, seed=2)[0]
    test = mmlca.bootstrap_lrt(data, 2, n=12, seed=1, n_init=4, stop_early=False)
    assert test.p_value == (1 + (test.simulated >= test.statistic).sum()) / 13
    assert not test.ended_early


def test_early_end_is_the_same_on_any_number_of_threads() -> None:
    data = simulate(ONE, 100, 6, seed=2)[0]
    seen: list[int] = []
    one = mmlca.bootstrap_lrt(
        data, 2, n=60, seed=3, n_init=4, progress=lambda done, n: seen.append(done)
    )
    two = mmlca.bootstrap_lrt(data, 2, n=60, seed=3, n_init=4, n_jobs=3)
    assert one.ended_early
    assert 10 <= len(one.simulated) < 60
    assert one.low > 0.05
    assert seen == list(range(1, len(one.simulated) + 1))
    assert (one.simulated == two.simulated).all()
    assert one.p_value == two.p_value


def test_limits_by_hand() -> None:
    assert _share_limits(0, 10, 0.95) == (0, pytest.approx(1 - 0.025 ** (1 / 10)))
    assert _share_limits(10, 10, 0.95) == (pytest.approx(0.025 ** (1 / 10)), 1)
    assert _share_limits(5, 10, 0.95) == pytest.approx(
        (0.1871, 0.8129), abs=1e-4
    )  # a published table


def test_simulated_data_have_the_same_shape() -> None:
    codes = simulate(TWO, 40, 6, seed=1)[0].codes.copy()
    codes[:10, 3:] = -1
    codes[20:30, 2] = -1
    data = Sequences.from_codes(codes, ["A", "B"], weights=np.arange(40) % 3 + 1.0)
    copies: list[Sequences] = []

    def fit(copy: Sequences, k: int, seed: int) -> MixtureMarkov:
        copies.append(copy)
        return MixtureMarkov(k, seed=seed, n_init=2).fit(copy)

    value = _simulate_statistic(ONE, data, 2, fit, np.random.default_rng(1))
    assert value >= 0
    for copy in copies:
        assert ((copy.codes < 0) == (data.codes < 0)).all()
        assert (copy.weights == data.weights).all()
    assert (copies[0].codes == copies[1].codes).all()


def test_degenerate_and_wrong_input() -> None:
    with pytest.raises(ValueError, match="k must be a whole number of at least 2"):
        mmlca.bootstrap_lrt(simulate(ONE, 10, 3, seed=1)[0], 1)
    alike = Sequences.from_codes(np.repeat([[0, 0], [0, 1]], [30, 1], axis=0))
    test = mmlca.bootstrap_lrt(alike, 2, n=5, seed=1)  # many simulations hold one pattern only
    assert 0 < test.p_value <= 1
    assert np.isfinite(test.simulated).all()


@pytest.mark.slow
def test_size_under_the_hypothesis() -> None:
    """60 samples of one class: the test at 0.1 rejects in about a tenth of them."""
    rejected = [
        mmlca.bootstrap_lrt(
            simulate(ONE, 100, 6, seed=seed)[0], 2, n=19, seed=seed, n_init=4, stop_early=False
        ).p_value
        <= 0.1
        for seed in range(60)
    ]
    assert sum(rejected) <= 13  # P(more) = 0.3 % if the size is 0.1
    assert sum(rejected) >= 1
