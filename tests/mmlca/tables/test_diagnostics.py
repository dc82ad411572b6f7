"""Diagnostics: hand numbers, naive loops, the size and power of the tests, small numbers."""

from __future__ import annotations

import itertools

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import mmlca
from mmlca.model.forms import state_shares
from mmlca.tables.diagnostics import bic_gain, cautions_of_tests, dependence
from mmlca.tables.disclosure import is_small

mpl.use("Agg")

CHAINS = mmlca.MarkovParams(
    [0.6, 0.4],
    [[0.9, 0.1], [0.2, 0.8]],
    [[[0.9, 0.1], [0.6, 0.4]], [[0.4, 0.6], [0.1, 0.9]]],
)


def fixed(params: mmlca.MarkovParams, sequences: mmlca.Sequences) -> mmlca.MixtureMarkov:
    """The model with exactly these parameters."""
    return mmlca.MixtureMarkov(params.n_classes, init=params, max_iter=0, tol=0).fit(sequences)


def ragged(seed: int, n: int = 60) -> mmlca.Sequences:
    sequences, _ = mmlca.simulate(CHAINS, n, np.random.default_rng(seed).integers(3, 9, n), seed)
    codes = sequences.codes.copy()
    codes[::7, 2] = -1
    return mmlca.Sequences.from_codes(codes, ["A", "B"])


def test_tables_are_those_of_naive_loops() -> None:
    data = ragged(1)
    model = fixed(CHAINS, data)
    posterior = model.predict_proba(data)
    found = mmlca.diagnose(model, data, n_sim=2, seed=1)
    states = found.states.set_index(["class", "time", "state"])
    steps = found.steps.set_index(["class", "half", "from", "to"])
    stays = found.stays.set_index(["class", "state", "duration"])
    n_times = data.shape[1]
    for k in (0, 1):
        for t in range(n_times):
            seen = data.codes[:, t] >= 0
            n = posterior[seen, k].sum()
            share = posterior[seen & (data.codes[:, t] == 1), k].sum() / n
            row = states.loc[(k + 1, data.times[t], "B")]
            assert row[["observed", "n"]].tolist() == pytest.approx([share, n])
        counts, risk = {}, {}
        for i, codes in enumerate(data.codes):
            for t in range(n_times - 1):
                a, b = codes[t], codes[t + 1]
                if min(a, b) < 0:
                    continue
                half = "first half" if t < (n_times - 1) / 2 else "second half"
                counts[half, a, b] = counts.get((half, a, b), 0) + posterior[i, k]
                since = next((s for s in range(t, -1, -1) if codes[s] != a), -1)
                if since >= 0 and codes[since] < 0:
                    continue  # the beginning of the stay was not seen
                key = ("AB"[a], t - since)
                left, n = risk.get(key, (0, 0))
                risk[key] = (left + posterior[i, k] * (a != b), n + posterior[i, k])
        for (half, a, b), count in counts.items():
            total = counts.get((half, a, 0), 0) + counts.get((half, a, 1), 0)
            row = steps.loc[(k + 1, half, "AB"[a], "AB"[b])]
            assert row["observed"] == pytest.approx(count / total)
            assert row["expected"] == CHAINS.transition[k, a, b]
        for (state, duration), (left, n) in risk.items():
            if n >= 1:
                row = stays.loc[(k + 1, state, duration)]
                assert row[["leaving", "n"]].tolist() == pytest.approx([left / n, n])
    mine = posterior.argmax(axis=1) == 0
    assert found.classification.loc[1, 1] == pytest.approx(posterior[mine, 0].mean())
    assert found.classification["patients"].tolist() == [mine.sum(), (~mine).sum()]


def test_expected_states_by_enumeration() -> None:
    share = np.zeros((2, 4, 2))
    for k, path in itertools.product(range(2), itertools.product(range(2), repeat=4)):
        p = CHAINS.initial[k, path[0]]
        for a, b in itertools.pairwise(path):
            p *= CHAINS.transition[k, a, b]
        for t, state in enumerate(path):
            share[k, t, state] += p
    assert state_shares(CHAINS, 4) == pytest.approx(share)


def test_expected_states_of_those_still_observed_by_enumeration() -> None:
    ends = np.array([[0.1, 0.5], [0.3, 0.0], [0.2, 0.6], [0.0, 0.0]])
    share = np.zeros((2, 4, 2))
    for k, n in itertools.product(range(2), range(1, 5)):
        for path in itertools.product(range(2), repeat=n):
            p = CHAINS.initial[k, path[0]]
            for t, (a, b) in enumerate(itertools.pairwise(path)):
                p *= CHAINS.transition[k, a, b] * (1 - ends[t, a])
            share[k, n - 1, path[-1]] += p
    share /= share.sum(axis=2, keepdims=True)
    assert state_shares(CHAINS, len(ends), ends) == pytest.approx(share)


def test_the_memory_statistic_by_hand() -> None:
    # after A the next states are 30:10, after B 10:30, with the same present state
    triples = np.zeros((1, 2, 2, 2))
    triples[0, :, 0, :] = [[30, 10], [10, 30]]
    by_hand = 2 * (2 * 30 * np.log(30 / 20) + 2 * 10 * np.log(10 / 20))
    assert dependence(triples) == pytest.approx(by_hand)
    assert dependence(np.ones((2, 3, 3, 3))) == pytest.approx(0)


def _second_order(n: int, seed: int) -> mmlca.Sequences:
    """People who go back to where they came from."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(3, size=(n, 12)).astype(np.int8)
    for t in range(2, 12):
        back = rng.random(n) < 0.6
        codes[back, t] = codes[back, t - 2]
    return mmlca.Sequences.from_codes(codes)


def _long_stays(n: int, seed: int) -> mmlca.Sequences:
    """Stays of exactly four times."""
    rng = np.random.default_rng(seed)
    phase = rng.integers(4, size=(n, 1))
    return mmlca.Sequences.from_codes((((np.arange(12) + phase) // 4) % 2).astype(np.int8))


def _slower(n: int, seed: int, factor: float = 0.5) -> mmlca.Sequences:
    """Chains that are left less often in the second half of the time."""
    rng = np.random.default_rng(seed)
    k = (rng.random(n) < CHAINS.weights[1]).astype(int)
    codes = np.empty((n, 12), dtype=np.int8)
    codes[:, 0] = rng.random(n) < CHAINS.initial[k, 1]
    for t in range(1, 12):
        now = codes[:, t - 1]
        leaves = CHAINS.transition[k, now, 1 - now] * (factor if t > 5 else 1.0)
        codes[:, t] = np.where(rng.random(n) < leaves, 1 - now, now)
    return mmlca.Sequences.from_codes(codes)


STICKY = mmlca.MarkovParams(
    [0.5, 0.5],
    [[0.9, 0.1], [0.5, 0.5]],
    [[[0.9, 0.1], [0.03, 0.97]], [[0.5, 0.5], [0.5, 0.5]]],
)


def _leavers(n: int, seed: int) -> mmlca.Sequences:
    """Chains with a state that is hard to leave, in which follow-up ends more often."""
    rng = np.random.default_rng(seed)
    codes = mmlca.simulate(STICKY, n, 12, rng)[0].codes.copy()
    ended = (rng.random(codes.shape) < np.where(codes == 1, 0.15, 0.02)).cumsum(axis=1) > 0
    codes[:, 1:][ended[:, :-1]] = -1
    return mmlca.Sequences.from_codes(codes)


@pytest.mark.parametrize(
    ("draw", "test", "words"),
    [
        (_second_order, "memory beyond one step", "depends on more than the present one"),
        (_long_stays, "length of stays", "changes with the time spent in it"),
        (_slower, "steps by half", "differ between the first and the second half"),
    ],
)
def test_violations_are_noticed_and_put_in_words(draw, test: str, words: str) -> None:
    data = draw(300, 2)
    model = mmlca.MixtureMarkov(1).fit(data)
    found = mmlca.diagnose(model, data, n_sim=99, seed=1)
    row = found.tests.set_index("test").loc[test]
    assert row["p_value"] == 0.01
    assert row["effect"] > 0.1
    assert words in " ".join(found.cautions())


def test_too_many_classes_are_put_in_words() -> None:
    one = mmlca.MarkovParams([1.0], [[0.5, 0.5]], [[[0.7, 0.3], [0.4, 0.6]]])
    data, _ = mmlca.simulate(one, 300, 8, seed=3)
    twice = mmlca.MarkovParams(
        [0.51, 0.46, 0.03],
        [[0.5, 0.5], [0.52, 0.48], [0.4, 0.6]],
        [[[0.7, 0.3], [0.4, 0.6]], [[0.72, 0.28], [0.38, 0.62]], [[0.6, 0.4], [0.5, 0.5]]],
    )
    (text,) = [
        t for t in mmlca.diagnose(fixed(twice, data), data, n_sim=5).cautions() if "many" in t
    ]
    assert text.startswith("3 classes may be too many")
    assert "nearly the same" in text
    assert "fewer than 5 %" in text
    good, _ = mmlca.simulate(CHAINS, 400, 16, seed=4)
    assert not mmlca.diagnose(fixed(CHAINS, good), good, n_sim=19, seed=1).cautions()


def test_words_do_not_quote_the_memberships_of_few() -> None:
    three = mmlca.MarkovParams(
        [0.57, 0.37, 0.06],
        [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]],
        [*CHAINS.transition, [[0.4, 0.6], [0.6, 0.4]]],
    )
    data, _ = mmlca.simulate(three, 300, 6, seed=1)
    found = mmlca.diagnose(fixed(three, data), data, n_sim=1, seed=1)
    sizes, right = found.classification["patients"], found.classification.loc[3, 3]
    assert is_small(sizes[3], 11)
    assert right < 0.7
    assert f"{right:.2f} in class 3" in " ".join(found.cautions())
    assert f"3 ({right:.2f})" not in " ".join(found.shown(11).cautions())


def test_seed_and_mistakes() -> None:
    data = ragged(5)
    model = fixed(CHAINS, data)
    first, again = (mmlca.diagnose(model, data, n_sim=5, seed=7).tests for _ in range(2))
    assert first.equals(again)
    with pytest.raises(ValueError, match="n_sim must be at least 1"):
        mmlca.diagnose(model, data, n_sim=0)
    with pytest.raises(ValueError, match="nothing to compare"):
        mmlca.diagnose(model, data.reweight(np.zeros(len(data))))


@pytest.mark.parametrize("seed", range(4))
def test_no_small_number_shows_or_follows(seed: int) -> None:
    data = ragged(seed, n=120)
    found = mmlca.diagnose(fixed(CHAINS, data), data, n_sim=1, seed=1)
    shown = found.shown(11)
    for full, table, by in (
        (found.states, shown.states, ["class", "time"]),
        (found.steps, shown.steps, ["class", "half", "from"]),
    ):
        assert not {"n", "patients"} & set(table)
        known = table["observed"].notna().to_numpy()
        count = (full["observed"] * full["n"])[known]
        assert not is_small(full["patients"][known], 11).any()
        assert not is_small(count.where(count >= 0.5, 0), 11).any()
        hidden = (table["observed"].isna() & full["n"].gt(0)).groupby([table[c] for c in by]).sum()
        assert (hidden != 1).all()  # a single one would follow from the others
        behind = full.groupby(by)["patients"].transform("max")
        assert table["residual"][(behind < 11) & (full["n"] > 0)].isna().all()
    raw = found.stays
    few = is_small(raw[["patients", "leavers"]], 11).any(axis=1)
    few |= is_small(raw["patients"] - raw["leavers"], 11)
    assert shown.stays["leaving"][few].isna().all()
    assert not {"patients", "n", "leavers", "left_ever", "stayed_ever"} & set(shown.stays)
    # what the chain expects at all durations is the share of those who ever leave
    rare = (raw["left_ever"] < 11) | (raw["stayed_ever"] < 11)
    assert shown.stays["expected"][rare].isna().all()


def test_the_memberships_behind_residuals_do_not_follow_from_them() -> None:
    """n was in the table: from one time to the next it fell by the few who left."""
    errors = []
    for seed in range(1, 7):
        data = ragged(seed, n=300)
        found = mmlca.diagnose(fixed(CHAINS, data), data, n_sim=1, seed=1)
        table = found.shown(11).states.assign(n=found.states["n"]).dropna()
        spread = table["expected"] * (1 - table["expected"])
        gap = table["observed"] - table["expected"]
        told = table["residual"] ** 2 * spread / gap.where(gap != 0) ** 2
        errors += (told - table["n"]).abs().dropna().tolist()
    assert len(errors) > 50
    assert (np.array(errors) > 5).mean() > 0.8


def test_figures_draw_the_shown_tables() -> None:
    import matplotlib.pyplot as plt

    data, _ = mmlca.simulate(CHAINS, 400, 8, seed=6)
    found = mmlca.diagnose(fixed(CHAINS, data), data, n_sim=1, seed=1)
    figure = mmlca.plot_residuals(found, min_count=11)
    drawn = figure.axes[0].images[0].get_array()
    table = found.shown(11).states.query("`class` == 1")
    expected = table["residual"].to_numpy().reshape(8, 2).T
    assert np.allclose(drawn.filled(np.nan), expected, equal_nan=True)
    stays = mmlca.plot_stays(found, min_count=11)
    dots = {(x, y) for line in stays.axes[0].get_lines() for x, y in zip(*line.get_data())}  # noqa: B905
    rows = found.shown(11).stays.query("`class` == 1").dropna()
    assert set(zip(rows["duration"], rows["leaving"], strict=True)) <= dots
    plt.close("all")


def test_p_values_are_adjusted_for_their_number() -> None:
    data = ragged(5)
    tests = mmlca.diagnose(fixed(CHAINS, data), data, n_sim=19, seed=7).tests
    p = np.sort(tests["p_value"])
    by_hand = np.minimum(np.maximum.accumulate(p * [4, 3, 2, 1]), 1)
    assert np.sort(tests["p_holm"]) == pytest.approx(by_hand)


def test_effects_are_sizes_and_not_p_values() -> None:
    """Of the same chains ten times as many patients have the same effect, not a larger one."""
    few, many = (
        mmlca.diagnose(mmlca.MixtureMarkov(1).fit(data), data, n_sim=19, seed=1).tests["effect"][0]
        for data in (_second_order(300, 1), _second_order(3_000, 2))
    )
    assert few == pytest.approx(many, rel=0.15)


def test_gains_are_the_differences_of_the_bic_of_fitted_chains() -> None:
    data = _slower(400, 3)
    plain = mmlca.MixtureMarkov(1, prior=0).fit(data)
    gain = mmlca.diagnose(plain, data, n_sim=1, seed=1).tests.set_index("test")["bic_gain"]
    log_n = np.log(400)
    by_stay = mmlca.MixtureMarkov(1, prior=0, stays=(2, 4)).fit(data)
    # two states, each with three probabilities of leaving instead of one
    better = 2 * (by_stay.loglik_ - plain.loglik_) - 4 * log_n
    assert gain["length of stays"] == pytest.approx(better)
    assert gain["length of stays"] == pytest.approx(plain.bic() - by_stay.bic())
    by_half = mmlca.MixtureMarkov(1, prior=0, periods=(7,)).fit(data)
    assert gain["steps by half"] == pytest.approx(plain.bic() - by_half.bic())
    assert np.isnan(gain["states over time"])


def test_the_gain_of_second_order_chains_equals_naive_loops() -> None:
    data = _second_order(200, 4)
    found = mmlca.diagnose(mmlca.MixtureMarkov(1).fit(data), data, n_sim=1, seed=1)
    loglik = {}
    for order in (1, 2):
        pairs: dict[tuple[int, ...], dict[int, int]] = {}
        for codes in data.codes:
            for t in range(2, len(codes)):
                after = pairs.setdefault(tuple(codes[t - order : t]), {})
                after[codes[t]] = after.get(codes[t], 0) + 1
        loglik[order] = sum(
            n * np.log(n / sum(after.values())) for after in pairs.values() for n in after.values()
        )
    gain = 2 * (loglik[2] - loglik[1]) - (9 * 2 - 3 * 2) * np.log(200)
    assert found.tests["bic_gain"][0] == pytest.approx(gain)
    assert found.tests["bic_gain"][0] > 100
    (text,) = cautions_of_tests(found.tests.assign(p_holm=[0.01, 1, 1, 1]))
    assert f"second-order chains would improve the BIC by {gain:,.0f};" in text


def test_cells_that_do_not_occur_cost_nothing() -> None:
    # after B, B nobody is seen: of four rows three occur, and A, A is always followed by A
    triples = np.zeros((1, 2, 2, 2))
    triples[0, 0, 0], triples[0, 1, 0], triples[0, 0, 1] = [30, 0], [10, 10], [5, 5]
    seen = 2 * (30 * np.log(50 / 40) + 10 * np.log(0.5 / 0.8) + 10 * np.log(0.5 / 0.2))
    assert bic_gain(triples, 60) == pytest.approx(seen)
    triples[0, 0, 0, 1] = 1
    assert bic_gain(triples, 60) == pytest.approx(dependence(triples) - np.log(60))


def test_gains_of_the_right_chains_are_losses() -> None:
    for seed in range(5):
        data, _ = mmlca.simulate(CHAINS, 400, 12, seed=seed)
        model = mmlca.MixtureMarkov(2, seed=1).fit(data)
        gain = mmlca.diagnose(model, data, n_sim=1, seed=1).tests["bic_gain"]
        assert (gain.dropna() < 0).all()
        assert gain.notna().sum() == 3


def test_a_significant_test_without_a_gain_is_no_caution() -> None:
    tests = pd.DataFrame(
        {
            "test": ["memory beyond one step", "length of stays", "states over time"],
            "effect": [0.05, 0.2, 0.6],
            "bic_gain": [-3.0, 1234.4, np.nan],
            "p_holm": [0.01, 0.01, 0.01],
        }
    )
    stays, states = cautions_of_tests(tests)
    assert stays == (
        "The probability of leaving a state changes with the time spent in it (a small effect: "
        "0.20; chains by time in state (1, 2–3, 4+ windows) would improve the BIC by 1,234; "
        "adjusted p = 0.01); the model assumes that it is constant, so it describes lengths of "
        "treatment only roughly."
    )
    assert "(a large effect: 0.60; adjusted p = 0.01)" in states
    assert not cautions_of_tests(tests.assign(p_holm=0.06))


def test_chains_that_are_not_plain_have_no_gains() -> None:
    data = _slower(200, 1)
    model = mmlca.MixtureMarkov(1, stays=(2, 4)).fit(data)
    assert mmlca.diagnose(model, data, n_sim=1, seed=1).tests["bic_gain"].isna().all()


def test_follow_up_that_ends_by_state_is_no_misfit() -> None:
    """The right chains were rejected where the states over time took no account of who left."""
    data = _leavers(1_000, 1)
    found = mmlca.diagnose(fixed(STICKY, data), data, n_sim=39, seed=1)
    assert found.tests.set_index("test").loc["states over time", "p_value"] > 0.05
    late = found.states[found.states["time"] == found.states["time"].max()]
    assert late["residual"].abs().max() < 3
    everyone = state_shares(STICKY, 12)[:, -1].ravel()
    assert np.abs(late["observed"] - everyone).max() > 0.1  # what was expected before


def test_clusters_of_several_sites_are_compared_with_their_patients() -> None:
    sites, clusters = {}, {}
    for seed, (site, share) in enumerate({"x": 0.8, "y": 0.3}.items()):
        chains = mmlca.MarkovParams([share, 1 - share], CHAINS.initial, CHAINS.transition)
        sites[site], clusters[site] = mmlca.simulate(chains, 400 + 100 * seed, 8 + seed, seed=seed)
    found = mmlca.diagnose_clusters(sites, clusters, n_sim=19, seed=1)
    assert found.tests["p_value"].min() > 0.05
    assert found.classification["patients"].sum() == 900
    assert np.diag(found.classification[[1, 2]]).min() > 0.8
    both = mmlca.Sequences.concat(sites)
    site = np.repeat(["x", "y"], [400, 500])
    model = mmlca.MixtureMarkov(2, init=CHAINS, prior=0).fit(both, groups=site)
    posterior = model.predict_proba(both, groups=site)
    first = posterior[both.codes[:, 0] == 1, 0].sum() / posterior[:, 0].sum()
    assert found.states["observed"][1] == pytest.approx(first, abs=1e-3)


# --- size and power -------------------------------------------------------------------------


def rejected(draw, chains: mmlca.MarkovParams, n_sets: int, n: int = 400) -> pd.Series:
    """Share of data sets in which each test rejects at 0.05, after a fit of two classes."""
    p = []
    for seed in range(n_sets):
        data = draw(n, seed)
        model = mmlca.MixtureMarkov(2, init=chains, tol=1e-5).fit(data)
        tests = mmlca.diagnose(model, data, n_sim=39, seed=seed).tests
        p.append(tests.set_index("test")["p_value"])
    return (pd.DataFrame(p) <= 0.05).mean()


def _right(n: int, seed: int) -> mmlca.Sequences:
    return _slower(n, seed, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "chains"), [(_right, CHAINS), (_leavers, STICKY)])
def test_size_of_the_tests(draw, chains: mmlca.MarkovParams) -> None:
    """Under the right chains each test rejects 5 %, also if follow-up ends by state."""
    share = rejected(draw, chains, 120)
    assert (share <= 0.05 + 3.2 * np.sqrt(0.05 * 0.95 / 120)).all(), share  # at most 13 of 120
    assert share.sum() > 0.02


@pytest.mark.slow
def test_chains_that_slow_down_half_way_are_seen() -> None:
    assert rejected(_slower, CHAINS, 40)["steps by half"] == 1
