"""Small cells do not leave a site, and noise is what it says it is."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import font
from font.privacy import add_noise, merge_rare, pool_rare_rows

MODELS = {
    "A": np.array([[0.0], [1.0], [1.1]]),
    "B": np.array([[0.0], [1.0]]),
}


def patterns(rows: dict[tuple[int, int], int]) -> font.LabelPatterns:
    table = pd.DataFrame([row for row, n in rows.items() for _ in range(n)], columns=["A", "B"])
    return font.LabelPatterns.from_labels({"here": table})


def as_dict(table: font.LabelPatterns) -> dict[tuple[int, ...], int]:
    rows = map(tuple, table.patterns.tolist())
    return dict(zip(rows, table.counts[:, 0].tolist(), strict=True))


def test_a_rare_pattern_is_counted_as_the_nearest() -> None:
    table = patterns({(0, 0): 50, (1, 1): 20, (2, 1): 3, (0, 1): 2, (1, 0): 1})
    merged = merge_rare(table, MODELS, 11)
    # (2, 1) is near (1, 1); (0, 1) is 1 from (0, 0) and 10/11 from (1, 1);
    # (1, 0) is 10/11 from (0, 0) and 1 from (1, 1)
    assert as_dict(merged) == {(0, 0): 51, (1, 1): 25}
    assert merged.withheld.tolist() == [0]


def test_ties_go_to_the_common_pattern() -> None:
    two = {"A": np.array([[0.0], [1.0]]), "B": np.array([[0.0], [1.0]])}
    table = patterns({(0, 0): 20, (1, 1): 50, (0, 1): 3})
    assert as_dict(merge_rare(table, two, 11)) == {(0, 0): 20, (1, 1): 53}


def test_release_merges_or_withholds() -> None:
    table = patterns({(0, 0): 50, (1, 1): 20, (2, 1): 3})
    merged = font.release(table, MODELS, rare="merge")
    assert (merged.n_rare, merged.n_merged) == (3, 3)
    assert merged.patterns.n_patients == 73
    kept = font.release(table, MODELS)
    assert (kept.n_rare, kept.n_merged) == (3, 0)
    assert kept.patterns.withheld.tolist() == [3]
    assert as_dict(kept.patterns) == {(0, 0): 50, (1, 1): 20}
    nobody = font.release(patterns({(0, 0): 5}), MODELS, rare="merge")
    assert (len(nobody.patterns), nobody.n_merged) == (0, 0)


def test_everything_common_stays_as_it_is() -> None:
    table = patterns({(0, 0): 50, (1, 1): 20})
    assert font.release(table, MODELS).patterns is table


def test_wrong_wishes_are_refused() -> None:
    table = patterns({(0, 0): 50})
    with pytest.raises(ValueError, match="rare must be one of 'withhold', 'merge'"):
        font.release(table, MODELS, rare="hide")
    with pytest.raises(ValueError, match="min_count must be a whole number"):
        font.release(table, MODELS, min_count=0)
    with pytest.raises(ValueError, match="epsilon must be a finite number above 0"):
        font.release(table, MODELS, epsilon=0)
    with pytest.raises(ValueError, match="merging needs the models 'B'"):
        merge_rare(table, {"A": MODELS["A"]})
    other = font.LabelPatterns.from_labels({"there": pd.DataFrame({"A": [0], "B": [0]})})
    with pytest.raises(ValueError, match="its own counts only"):
        font.release(font.LabelPatterns.merge([table, other]), MODELS)


def test_the_noise_is_two_sided_geometric() -> None:
    n, epsilon = 200_000, 0.7
    table = font.LabelPatterns(
        ("A",),
        ("here",),
        np.arange(n)[:, None],
        np.full((n, 1), 1000, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )
    noise = add_noise(table, epsilon, seed=1).counts[:, 0] - 1000
    alpha = np.exp(-epsilon)
    for x in range(-3, 4):
        expected = (1 - alpha) / (1 + alpha) * alpha ** abs(x)
        assert (noise == x).mean() == pytest.approx(expected, abs=4 * np.sqrt(expected / n))
    again = add_noise(table, epsilon, seed=1).counts[:, 0] - 1000
    assert (noise == again).all()


def test_a_single_patient_shows_as_rarely_as_delta_says() -> None:
    n, epsilon, least = 200_000, 0.5, 6
    counts = np.ones((n, 1), dtype=np.int64)
    table = font.LabelPatterns(
        ("A",), ("here",), np.arange(n)[:, None], counts, np.zeros(1, dtype=np.int64)
    )
    out = font.release(table, {"A": np.zeros((1, 1))}, min_count=least, epsilon=epsilon, seed=2)
    assert out.delta == pytest.approx(np.exp(-2.5) / (1 + np.exp(-0.5)))
    assert len(out.patterns) / n == pytest.approx(out.delta, rel=0.05)
    assert out.patterns.counts.min() >= least
    assert out.n_rare == n - len(out.patterns)


def test_rare_rows_of_a_state_share_their_average() -> None:
    rng = np.random.default_rng(1)
    rows = rng.dirichlet(np.ones(3), (4, 3))
    support = np.array([[100, 6, 50], [5, 2, 4], [90, 4, 60], [8, 3, 5]])
    pooled, n = pool_rare_rows(rows, support, 11)
    assert n == 8
    # state 0: classes 1 and 3 have 13 patients together
    share = (5 * rows[1, 0] + 8 * rows[3, 0]) / 13
    assert pooled[[1, 3], 0] == pytest.approx(np.array([share, share]))
    # state 1: all four have 15 together
    assert pooled[:, 1] == pytest.approx(np.tile(support[:, 1] @ rows[:, 1] / 15, (4, 1)))
    # state 2: 9 patients are too few, so each takes the nearer of the rows 0 and 2
    for k in (1, 3):
        far = np.abs(rows[[0, 2], 2] - rows[k, 2]).sum(axis=1)
        assert (pooled[k, 2] == rows[[0, 2][far.argmin()], 2]).all()
    for k, i in ((0, 0), (2, 0), (0, 2), (2, 2)):
        assert (pooled[k, i] == rows[k, i]).all()
    assert pooled.sum(axis=2) == pytest.approx(np.ones((4, 3)))


def test_a_state_that_few_visit_gets_an_even_row() -> None:
    rows = np.array([[[0.9, 0.1], [0.5, 0.5]], [[0.4, 0.6], [0.2, 0.8]]])
    pooled, n = pool_rare_rows(rows, [[100], [50]], 11)
    assert n == 2
    assert pooled[:, 1].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    with pytest.raises(ValueError, match="support has the shape"):
        pool_rare_rows(rows, [[1, 2]])


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_every_row_rests_on_enough_patients(k: int, s: int, seed: int) -> None:
    """Where a file shows a row, min_count patients share it, or none of it is theirs."""
    rng = np.random.default_rng(seed)
    rows, support = rng.dirichlet(np.ones(s), (k, s)), rng.integers(0, 30, (k, s))
    pooled, n = pool_rare_rows(rows, support, 11)
    rare = support < 11
    assert n == rare.sum()
    for i in range(s):
        shown = {pooled[j, i].round(9).tobytes() for j in np.flatnonzero(rare[:, i])}
        if support[rare[:, i], i].sum() >= 11:
            assert len(shown) == 1
        else:
            kept = {pooled[j, i].round(9).tobytes() for j in np.flatnonzero(~rare[:, i])}
            assert shown <= (kept or {np.full(s, 1 / s).round(9).tobytes()})
        assert (pooled[~rare[:, i], i] == rows[~rare[:, i], i]).all()


def test_support_counts_patients_not_steps() -> None:
    codes = np.array([[0, 0, 0, 1], [0, -1, 1, 1], [1, 0, -1, -1], [0, 0, 0, 0]])
    found = font.row_support(codes, np.ones((4, 1)), weights=[1, 3, 1, 0])
    assert found.tolist() == [[1, 2]]


# --- words -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    params = {
        "weights": [0.6, 0.4],
        "initial": [[0.9, 0.1], [0.2, 0.8]],
        "transition": [[[0.9, 0.1], [0.5, 0.5]], [[0.5, 0.5], [0.1, 0.9]]],
    }
    model = {
        "format": "mmlca model",
        "version": 1,
        "software": "mmlca 0.1.0",
        "states": ["TNFi", "<b>JAK</b>"],
        "params": params,
        "n_parameters": 7,
        "prior": 0.0,
        "loglik": -10.0,
        "n_sequences": 100.0,
        "n_timepoints": 800.0,
        "classification_entropy": 1.0,
        "converged": True,
        "n_replicated": 5,
    }
    paths = {kind: folder / f"{kind}.json" for kind in ("model", "labels", "noisy", "ensemble")}
    sent = font.write_model(paths["model"], model, study="ra", site="here", bic={2: 1.5})
    table = pd.DataFrame({"here": [0] * 60 + [1] * 40})
    own = font.LabelPatterns.from_labels({"here": table})
    font.write_labels(paths["labels"], own, {"here": sent}, study="ra")
    font.write_labels(paths["noisy"], own, {"here": sent}, study="ra", epsilon=1.0, seed=1)
    ensemble = font.Ensemble(2).fit({"here": sent}, own)
    font.write_ensemble(paths["ensemble"], ensemble, {"here": sent}, study="ra")
    return paths


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("model", ["2 classes over 2 states", "rounded to 6 digits", "about 40 patients"]),
        ("labels", ["2 combinations of 100 patients", "the smallest count, 40"]),
        ("noisy", ["noise (ε = 1)", "not stated"]),
        ("ensemble", ["2 clusters", "100 in all, the smallest number 40"]),
    ],
)
def test_files_in_plain_words(files: dict[str, Path], kind: str, words: list[str]) -> None:
    said = font.explain(files[kind])
    for word in [*words, "It reveals:", "It does not contain: patient ids", "checksum matches"]:
        assert word in said
    about = font.describe_file(files[kind])
    assert json.loads(json.dumps(about))["study"] == "ra"


def test_the_page_shows_everything_and_runs_nothing(files: dict[str, Path]) -> None:
    for path in files.values():
        page = font.explain_page(path)
        stored = json.loads(path.read_text(encoding="utf-8"))
        assert "<b>JAK" not in page
        assert "<script" not in page
        for value in leaves(stored):
            assert value is None or escape(str(value)) in page


def leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [*value, *(leaf for part in value.values() for leaf in leaves(part))]
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list) else [value]
