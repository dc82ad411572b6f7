"""Mixtures of Markov chains in exchange files: counts by hand, and what a hostile file may try."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from ra_like import ra_like

import font
import mmlca
from font.errors import InputError
from font.exchange.envelope import fingerprint
from mmlca.federation import markov_kind
from mmlca.federation.markov_kind import expected_counts, markov_content

NOBODY = np.random.default_rng(1)  # draws where no secret is needed


class NeverUp:
    """Draws that always round down."""

    def random(self, size: object) -> np.ndarray:
        return np.ones(size) - 1e-12


@pytest.fixture(scope="module")
def fitted() -> tuple[mmlca.MixtureMarkov, mmlca.Sequences]:
    data = ra_like(500, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mmlca.MixtureMarkov(3, n_init=6, seed=1).fit(data), data


def by_hand(model: mmlca.MixtureMarkov, data: mmlca.Sequences) -> list[np.ndarray]:
    """Patients, first states, steps and support (K, S·S) by class, patient after patient."""
    shares = model.predict_proba(data)
    k, s = shares.shape[1], len(data.states)
    first, steps, support = np.zeros((k, s)), np.zeros((k, s, s)), np.zeros((k, s, s))
    for row, share, weight in zip(data.codes, shares, data.weights, strict=True):
        first[:, row[0]] += weight * share
        seen = set()
        for i, j in zip(row[:-1], row[1:], strict=True):
            if j >= 0:
                steps[:, i, j] += weight * share
                seen.add((i, j))
        for i, j in seen if weight > 0 else ():
            support[:, i, j] += share
    return [data.weights @ shares, first, steps.reshape(k, -1), support.reshape(k, -1)]


def test_expected_counts_by_hand(fitted: tuple[mmlca.MixtureMarkov, mmlca.Sequences]) -> None:
    model, data = fitted
    resample = data.reweight(np.random.default_rng(1).multinomial(400, np.full(500, 1 / 500)))
    for part in (data, resample):
        counts = expected_counts(model, part)[:4]
        for ours, theirs in zip(counts, by_hand(model, part), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_steps_in_gaps_count_but_nobody_stands_behind_them() -> None:
    codes = np.array([[0, -1, 1], [0, 0, 1], [0, 1, 1]] * 20)
    data = mmlca.Sequences.from_codes(codes, ["A", "B"])
    model = mmlca.MixtureMarkov(1).fit(data)
    expected = expected_counts(model, data)
    assert expected.steps.sum() == pytest.approx(120)
    assert expected.support.sum() == pytest.approx(80)


def test_cells_of_few_patients_are_rounded_as_patients(
    fitted: tuple[mmlca.MixtureMarkov, mmlca.Sequences],
) -> None:
    model, data = fitted
    patients, first, steps, support = by_hand(model, data)
    few = support < 11
    mean = steps[few].sum() / support[few].sum()
    often = np.ceil(steps / np.maximum(support, 1e-9))  # times that a patient makes a step
    runs, means = [], []
    for seed in range(400):
        content = markov_content(model, data, 11, np.random.default_rng(seed))
        shown = content["steps_per_patient"]
        assert shown in (np.floor(2 * mean) / 2, np.ceil(2 * mean) / 2)
        cells = np.array(content["steps"]).reshape(3, -1)
        assert np.isin(cells[few], [0, 11 * shown]).all()
        assert (cells[~few] % (11 * often[~few]) == 0).all()
        assert (np.abs(cells - steps)[~few] < 11 * often[~few]).all()
        assert (np.abs(np.array(content["first"]) - first) < 11).all()
        assert (np.abs(np.array(content["patients"]) - patients) < 11).all()
        runs.append(np.where(few, cells / shown, cells))
        means.append(shown)
    error = 5.5 * np.where(few, 1, often) / np.sqrt(400)
    off = np.abs(np.mean(runs, axis=0) - np.where(few, support, steps))
    assert (off < 4.5 * error + 1e-9).all()
    assert np.mean(means) == pytest.approx(mean, abs=4.5 * 0.25 / np.sqrt(400))


def test_receivers_add_the_stated_prior(
    fitted: tuple[mmlca.MixtureMarkov, mmlca.Sequences],
) -> None:
    model, data = fitted
    file = font.write_model(None, model, data, font.Header(study="ra", site="x"), draws=NOBODY)
    steps = np.array(file.content["steps"]) + file.content["prior"]
    params = file.model.params_
    np.testing.assert_allclose(params.transition, steps / steps.sum(axis=2, keepdims=True))
    assert file.states == data.states
    assert file.class_parameters_.shape == (3, 5 + 25)
    agree = (file.model.predict(data) == model.predict(data)).mean()
    assert agree > 0.9


def test_a_class_may_never_be_small(
    fitted: tuple[mmlca.MixtureMarkov, mmlca.Sequences],
) -> None:
    model, data = fitted
    with pytest.raises(InputError, match=r"fewer than 200 patients, .*; fit fewer classes"):
        markov_content(model, data, 200, NOBODY)


def test_reading_needs_nothing_but_both_packages(
    fitted: tuple[mmlca.MixtureMarkov, mmlca.Sequences], tmp_path: Path
) -> None:
    """`import mmlca, font` makes the kind known, and loads nothing heavy."""
    font.write_model(tmp_path / "m.json", *fitted, font.Header(study="ra", site="x"))
    code = (
        "import sys, mmlca, font\n"
        "print([m for m in ('numba', 'pandas', 'sklearn', 'matplotlib') if m in sys.modules])\n"
        f"print(type(font.read_model({str(tmp_path / 'm.json')!r}).model).__name__)\n"
    )
    root = Path(mmlca.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.split("\n")[:2] == ["[]", "MixtureMarkov"]
    alone = code.replace("mmlca, font", "font").splitlines()
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(alone)], capture_output=True, text=True, cwd=root
    )
    assert "InputError" in done.stderr
    assert "is unknown" in done.stderr


HOSTILE = {
    "exact first state": (("first", 0, 0), 3, "count 3, not a multiple"),
    "exact step": (("steps", 0, 0, 1), 3.0, "count 3, not a multiple"),
    "part of a step": (("steps", 0, 0, 1), 0.5, "not a multiple"),
    "negative": (("steps", 0, 0, 1), -11.0, "payload.model.steps"),
    "steps not in a list": (("steps", 0, 0), 11.0, "payload.model.steps"),
    "short row": (("steps", 0, 0), [11.0], "unequal length"),
    "class missing": (("first",), [[11, 11, 11, 11, 11]], "first states have the shape"),
    "128 states": (("states",), [str(i) for i in range(128)], "at most 127"),
    "other states": (("states",), ["TNFi", "JAK"], "shape"),
    "a state twice": (("states",), ["a", "a", "b", "c", "d"], "with repeats"),
    "a state with a line": (("states", 0), "a\nb", "model.states"),
    "hidden text": (("states", 0), "TNF\u202ei", "model.states"),
    "no prior": (("prior",), 0.0, "payload.model.prior"),
    "mean below one": (("steps_per_patient",), 0.5, "steps_per_patient"),
    "log-likelihood": (("loglik",), -1.0, "payload.model.loglik"),
    "time points": (("n_timepoints",), 8000.0, "payload.model.n_timepoints"),
    "number of patients": (("n_sequences",), 500.0, "payload.model.n_sequences"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_model_is_refused_in_one_sentence(
    case: str, fitted: tuple[mmlca.MixtureMarkov, mmlca.Sequences]
) -> None:
    path, value, message = HOSTILE[case]
    file = font.write_model(None, *fitted, font.Header(study="ra", site="x"), draws=NeverUp())
    content = json.loads(file.data)
    spot = content["payload"]["model"]
    for key in path[:-1]:
        spot = spot[key]
    if isinstance(spot, list):
        spot[path[-1]] = copy.deepcopy(value)
    else:
        spot |= {path[-1]: copy.deepcopy(value)}
    content["sha256"] = fingerprint(content["payload"])
    with pytest.raises(InputError, match=message) as refusal:
        font.read_model(json.dumps(content).encode())
    assert "\n" not in str(refusal.value)


def test_the_mean_number_of_steps_is_not_that_of_one_patient() -> None:
    """One patient who makes many rare steps, each several times, would determine it alone."""
    codes = np.zeros((60, 40), dtype=np.int8)
    codes[0] = np.tile([1, 2, 3, 4, 1, 3, 2, 4, 3, 1], 4)
    data = mmlca.Sequences.from_codes(codes, list("ABCDE"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mmlca.MixtureMarkov(1, seed=1).fit(data)
    expected = expected_counts(model, data)
    few = expected.support < 11
    assert expected.support[few].sum() > 8
    assert expected.steps[few].sum() / expected.support[few].sum() > 3
    content = markov_content(model, data, 5, np.random.default_rng(1))
    assert content["steps_per_patient"] == 1.0


def test_every_field_is_in_the_documentation() -> None:
    own = set(markov_kind.MarkovPart.model_fields) - {"version", "patients"}  # all kinds have these
    assert own <= set((markov_kind.__doc__ or "").split())
