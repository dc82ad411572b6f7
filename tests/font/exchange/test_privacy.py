"""The one rule of what leaves a site, and the files in plain words."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path

import numpy as np
import pytest
from exchange_study import write_study
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import font
from font.exchange.names import look_alikes
from font.exchange.privacy import SecretDraws, round_counts, round_sums


@given(st.lists(st.floats(0, 1e6), max_size=20), st.integers(1, 50), st.integers(0, 99))
def test_counts_become_one_of_the_two_multiples_around_them(
    counts: list[float], unit: int, seed: int
) -> None:
    rounded = round_counts(counts, unit, np.random.default_rng(seed))
    assert (rounded % unit == 0).all()
    assert (np.abs(rounded - np.array(counts)) < unit).all()


def test_rounding_is_unbiased_and_keeps_multiples() -> None:
    counts, n = np.array([0, 1, 5, 10, 11, 12, 22, 100.5]), 40_000
    draws = np.random.default_rng(1)
    rounded = np.array([round_counts(counts, 11, draws) for _ in range(n)])
    assert (rounded[:, [0, 4, 6]] == counts[[0, 4, 6]]).all()
    error = 5.5 / np.sqrt(n)
    assert np.abs(rounded.mean(axis=0) - counts).max() < 4 * error
    share = (rounded[:, 1] == 11).mean()
    assert abs(share - 1 / 11) < 4 * np.sqrt(1 / 11 / n)


def test_whole_numbers_stay_with_min_count_1() -> None:
    counts = np.arange(1000)
    assert (round_counts(counts, 1, SecretDraws()) == counts).all()


@pytest.mark.parametrize("counts", [[-1.0], [np.nan], [np.inf]])
def test_what_is_no_count_is_refused(counts: list[float]) -> None:
    with pytest.raises(ValueError, match="finite numbers of 0 or more"):
        round_counts(counts, 11, SecretDraws())


def test_secret_draws_repeat_with_the_key_alone() -> None:
    key = b"k" * 32
    first, again = SecretDraws(key, "ra").random((3, 4)), SecretDraws(key, "ra").random((5, 4))
    assert (first == again[:3]).all()
    others = [SecretDraws(key, "other"), SecretDraws(b"x" * 32, "ra"), SecretDraws(), SecretDraws()]
    values = [first.ravel(), *(draws.random(12) for draws in others)]
    assert len({float(v) for row in values for v in row}) == 12 * len(values)
    source = SecretDraws(key)
    assert (source.random(5) != source.random(5)).all()


def test_secret_draws_are_uniform() -> None:
    draws = SecretDraws(b"k" * 32).random(20_000)
    assert 0 <= draws.min() <= draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 0.01


def test_names_that_look_alike() -> None:
    assert look_alikes(["MGB", "VA", "BWH"]) == []
    assert look_alikes(["north", "North", "n0rth", "no_rth", "south"]) == [
        ("north", "North"),
        ("north", "n0rth"),
        ("north", "no_rth"),
    ]
    assert look_alikes(["MGB", "\u041cG\u0412".replace("G", "G")])[0][0] == "MGB"


# --- words -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = write_study(tmp_path_factory.mktemp("files"))
    names = {"model": "north-1.model", "labels": "north.labels", "ensemble": "ensemble"}
    return {kind: folder / f"{name}.json" for kind, name in names.items()}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("model", ["a latent class model", "pain, fever, rash", "rounded at random", "of 11"]),
        ("labels", ["of 4 models", "6 pairs of models", "a patient stands in 10 of the counts"]),
        ("ensemble", ["4 models", "2 clusters", "north, south"]),
    ],
)
def test_files_in_plain_words(files: dict[str, Path], kind: str, words: list[str]) -> None:
    text = font.explain(files[kind])
    for word in [*words, "It reveals:", "It does not contain: patient ids", "checksum matches"]:
        assert word in text
    about = font.describe_file(files[kind])
    assert json.loads(json.dumps(about))["study"] == "ra"


def test_the_page_shows_everything_and_runs_nothing(files: dict[str, Path]) -> None:
    for path in files.values():
        page = font.explain_page(path)
        stored = json.loads(path.read_text(encoding="utf-8"))
        assert "<script" not in page
        style = page.split("<style>")[1].split("</style>")[0]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'"
        assert escape(policy) in page
        for value in leaves(stored):
            words = [value] if path != files["labels"] else str(value).split()  # tables are texts
            assert value is None or all(escape(str(word)) in page for word in words)


def test_the_page_escapes_what_a_file_says(files: dict[str, Path], tmp_path: Path) -> None:
    from font.exchange.schema import fingerprint

    content = json.loads(files["model"].read_text(encoding="utf-8"))
    content["payload"]["model"]["items"][0]["item"] = "<b>pain</b>"
    content["sha256"] = fingerprint(content["payload"])
    (tmp_path / "m.json").write_text(json.dumps(content))
    page = font.explain_page(tmp_path / "m.json")
    assert "<b>pain" not in page
    assert "&lt;b&gt;pain" in page


def leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [*value, *(leaf for part in value.values() for leaf in leaves(part))]
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list) else [value]


def test_the_mean_in_rare_cells_is_not_that_of_one_patient() -> None:
    """Three patients who stand in five cells each are three different patients, not fifteen."""
    support = np.array([[40.0, 3, 3, 3, 3, 3], [50.0, 0, 0, 0, 0, 0]])
    sums = np.array([[40.0, 21, 21, 21, 21, 21], [50.0, 0, 0, 0, 0, 0]])
    assert round_sums(sums, support, 11, SecretDraws(b"k" * 32)).per_patient == 1.0
    support[1, 1:3], sums[1, 1:3] = 8, 16  # at least 3 + 8 different patients
    assert round_sums(sums, support, 11, SecretDraws(b"k" * 32)).per_patient == round(137 / 31, 2)
