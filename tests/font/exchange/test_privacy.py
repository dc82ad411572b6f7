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
from font.errors import InputError
from font.exchange.disclosure import (
    SecretDraws,
    round_counts,
    round_events,
    round_sums,
    round_total,
)
from font.exchange.explain import describe_file
from font.exchange.fields import look_alikes


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
    with pytest.raises(InputError, match="finite numbers of 0 or more"):
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
        (
            "labels",
            ["of 4 models", "6 pairs of models", "a patient contributes to 10 of the counts"],
        ),
        ("ensemble", ["4 models", "2 clusters", "north, south"]),
    ],
)
def test_files_in_plain_words(files: dict[str, Path], kind: str, words: list[str]) -> None:
    text = font.explain(files[kind])
    for word in [*words, "It reveals:", "It does not contain: patient ids", "checksum matches"]:
        assert word in text
    about = describe_file(files[kind])
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
        rows = stored["payload"].pop("tables", [])  # texts of counts, which the page sets apart
        for row in rows:
            assert "".join(f"<td>{count}</td>" for count in row.split()) in page
        for value in leaves(stored):
            words = [value] if path != files["labels"] else str(value).split()  # tables are texts
            assert value is None or all(escape(str(word)) in page for word in words)


def test_the_page_escapes_what_a_file_says(files: dict[str, Path], tmp_path: Path) -> None:
    from font.exchange.envelope import fingerprint

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
    means = [round_sums(sums, support, 11, SecretDraws(bytes(32), str(i))).per_patient
             for i in range(2_000)]  # fmt: skip
    assert set(means) == {4.0, 4.5}  # never 4.42, which shows who moves from step to step
    assert np.mean(means) == pytest.approx(137 / 31, abs=4 * 0.25 / np.sqrt(2_000))


def test_events_of_one_patient_do_not_show_whatever_the_draw() -> None:
    """Attack: a patient who stays twelve times in one state, in a cell of 40 others who do. With
    the unit 11 the cell changed in every case, and by twelve events in one of eleven."""
    others, with_him = np.array([480.0]), np.array([492.0])
    uniform = np.random.default_rng(1).random((4_000, 1))
    shown = [
        np.array([round_events(events, np.array([n]), 11, draw)[0] for draw in uniform])
        for events, n in ((others, 40.0), (with_him, 41.0))
    ]
    assert set(np.unique(shown)) <= {396, 528}  # multiples of 11 patients of twelve events
    assert np.mean(shown[0] != shown[1]) == pytest.approx(1 / 11, abs=0.02)
    assert np.mean(shown[0]) == pytest.approx(480, abs=4)
    plain = [round_counts(e, 11, uniform[:, 0]) for e in (np.full(4_000, 480), np.full(4_000, 492))]
    assert (plain[0] != plain[1]).all()  # why


# --- the total of secure sums --------------------------------------------------------------

BLOCKS = np.repeat([0, 1, 2], [1, 3, 9])


def tables_of(cells: list[list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums, support and shares of patients in one cluster; each is a list of steps, 0 to 8."""
    steps = np.array([np.bincount(row, minlength=9) for row in cells], dtype=float)
    seen = np.minimum(steps, 1)
    shares = seen / np.maximum(seen.sum(axis=1, keepdims=True), 1)
    front = np.array([len(cells), len(cells), 0, 0], dtype=float)
    return tuple(  # type: ignore[return-value]
        np.append(front, part.sum(axis=0))[None] for part in (steps, seen, shares)
    )


MANY = [[0] * 5 + [1] * (i % 5 == 0) + [2] * (i % 9 == 0) for i in range(120)]
RARE = [[0, 3, 3], [0, 3, 4], [0, 4, 4, 4], [0, 5, 3], [0, 5], [0, 6, 3], [0, 6, 4, 5]] * 2

OTHERS = [*[[3, 4, 5]] * 30, *[[3, 7, 7]] * 9, *[[3, 8]] * 9]


def test_rare_cells_of_a_total_show_as_one_number_of_patients() -> None:
    """On average patients times mean events, alike in all cells, 0 where few patients ever are."""
    sums, support, shares = (
        np.vstack([one, two])
        for one, two in zip(tables_of([*MANY, *RARE]), tables_of(OTHERS), strict=True)
    )
    few = (support < 11) & (BLOCKS == 2)
    assert few[0].nonzero()[0].tolist() == [4 + c for c in (3, 4, 5, 6, 7, 8)]
    shown = np.array(
        [
            round_total(sums, support, shares, BLOCKS, 11, SecretDraws(i.to_bytes(32))).values
            for i in range(3_000)
        ]
    )
    large = ~few & (support >= 11)
    assert (shown[:, large] % 1_100 == 0).all()
    often = np.ceil(sums[large] / support[large])
    assert (np.abs(shown[:, large] / 100 - sums[large]) < 11 * often).all()
    common = [4 + c for c in (3, 4, 5)]  # at least 11 patients of the second cluster make these
    assert (shown[:, 0, common] == shown[:, 0, common[:1]]).all()
    assert (shown[:, 0, [10, 11, 12]] == 0).all()  # made by few in all clusters together
    events = shown[:, 0, common].sum(axis=1) / 100
    halves = events / 5.5  # a multiple of 11 patients, times a whole or half mean, to two decimals
    assert np.abs(halves - np.rint(halves)).max() < 0.01
    assert shares[few].sum() >= 11
    mean = sums[few].sum() / shares[few].sum()
    assert events.mean() == pytest.approx(shares[0, few[0]].sum() * mean, rel=0.15)


def test_a_patient_more_shows_in_a_total_in_few_cases_whatever_he_does() -> None:
    """Someone who knows all others: six rare steps tell hardly more than one."""
    n = 2_000

    def differs(extra: list[int], rounding: str) -> float:
        times = 0
        without, with_him = tables_of([*MANY, *RARE]), tables_of([*MANY, *RARE, extra])
        rare = (without[1] < 11) & (with_him[1] < 11) & (BLOCKS == 2)
        for i in range(n):
            one, two = (
                round_total(*part, BLOCKS, 11, SecretDraws(i.to_bytes(32))).values[rare]
                if rounding == "total"
                else round_sums(part[0], part[1], 11, SecretDraws(i.to_bytes(32))).values[rare]
                for part in (without, with_him)
            )
            times += (one != two).any()
        return times / n

    everything = [3, 4, 5, 6, 7, 8]
    assert differs([3], "total") < 0.2
    assert differs(everything, "total") < 0.2
    assert differs(everything, "cell by cell") > 0.3  # what this is for


def test_one_patient_alone_in_a_cluster_of_a_total() -> None:
    alone, others = tables_of([[0, 0, 3, 5, 5]]), tables_of(MANY * 2)
    tables = [np.vstack(part) for part in zip(alone, others, strict=True)]
    shown = []
    for i in range(600):
        values = round_total(*tables, BLOCKS, 11, SecretDraws(i.to_bytes(32))).values[0]
        shown.append(values.any())
        assert values[0] in (0, 1_100)
        assert (values[0] > 0) == (values[4:].sum() > 0)  # all at once
    assert np.mean(shown) == pytest.approx(1 / 11, abs=0.04)


def test_a_total_with_min_count_1_is_exact() -> None:
    tables = tables_of(MANY)
    rounded = round_total(*tables, BLOCKS, 1, SecretDraws(b"k" * 32))
    assert (rounded.values / rounded.scale == tables[0]).all()
