"""Attempts to work out what a site keeps back, from what it sends. Each one used to succeed.

An attacker here knows the file format, the rule of rounding and how models are fitted, but not the
site's secret. "Guessing" is the most frequent value; an attack is a success where it beats that.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from ra_like import ra_like
from sklearn.metrics import roc_auc_score

import ehr_prep
import font
import mmlca
from font.errors import InputError
from font.exchange.disclosure import SecretDraws, label_unit, round_counts, round_sums, shared_draws
from font.exchange.messages.refinement import MOST_STEPS, Step
from font.refinement import site_step
from mmlca.federation.markov_kind import expected_counts, markov_support
from mmlca.federation.steps import check_agreed_steps

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
M = 11


def fitted(data: mmlca.Sequences, k: int, **form: Any) -> mmlca.MixtureMarkov:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mmlca.MixtureMarkov(k, n_init=4, seed=1, **form).fit(data)


def sent(model: mmlca.MixtureMarkov, data: mmlca.Sequences, draws: Any = None) -> dict[str, Any]:
    return font.write_model(
        None, model, data, font.Header(study="s", site="x"), draws=draws
    ).content


def gain(readings: list[Any], truths: list[int]) -> float:
    """How much more often the truth is guessed with the reading than without, at the very best.

    For each reading the guess is the truth most frequent with it, looked up after the fact: no
    attacker can do better.
    """
    by_reading: dict[Any, Counter[int]] = {}
    for reading, truth in zip(readings, truths, strict=True):
        by_reading.setdefault(reading, Counter())[truth] += 1
    informed = sum(max(counts.values()) for counts in by_reading.values())
    blind = max(Counter(truths).values())
    return (informed - blind) / len(truths)


# --- 1. small counts from model files ------------------------------------------------------


def first_states(data: mmlca.Sequences) -> np.ndarray:
    return np.bincount(data.codes[:, 0], minlength=len(data.states))


def test_first_states_cannot_be_counted() -> None:
    """At EM's fixed point Σ wₖ πₖ(s) n is the number of patients who begin with s."""
    hits, readings, truths = 0, [], []
    for seed in range(30):
        data = ra_like(150, seed=seed)
        content = sent(fitted(data, 2), data, SecretDraws(b"k" * 32, str(seed)))
        told = np.array(content["first"]).sum(axis=0)
        weights = np.array(content["patients"]) / np.sum(content["patients"])
        first = np.array(content["first"], dtype=float)
        shares = weights @ (first / first.sum(axis=1, keepdims=True))
        for s, true in enumerate(first_states(data)):
            if 0 < true < M:
                hits += round(shares[s] * sum(content["patients"])) == true or told[s] == true
                readings.append(int(told[s]))
                truths.append(int(true))
    assert len(truths) >= 60
    assert hits / len(truths) < 0.1
    assert gain(readings, truths) < 0.1


def steps_of(data: mmlca.Sequences) -> np.ndarray:
    """Number of patients who make each step, (S, S)."""
    before, after = data.codes[:, :-1], data.codes[:, 1:]
    s = len(data.states)
    return np.array(
        [[((before == i) & (after == j)).any(axis=1).sum() for j in range(s)] for i in range(s)]
    )


def test_steps_cannot_be_counted_with_a_single_class() -> None:
    readings, truths, hits = [], [], 0
    for seed in range(30):
        data = ra_like(150, seed=seed)
        content = sent(fitted(data, 1), data, SecretDraws(b"k" * 32, str(seed)))
        told = np.array(content["steps"][0]) / content["steps_per_patient"]
        for cell, true in np.ndenumerate(steps_of(data)):
            if 0 < true < M:
                hits += round(told[cell]) == true
                readings.append(bool(told[cell] > 0))
                truths.append(int(true))
    assert len(truths) >= 200
    assert hits == 0
    assert gain(readings, truths) < 0.1


def test_a_rare_step_is_mostly_misread_as_absent() -> None:
    """What one patient alone does is written as nobody's in 10 of 11 cases."""
    shown = 0
    codes = np.zeros((100, 6), dtype=np.int8)
    codes[:50, 3:] = 1
    codes[0, 5] = 2  # the only one
    data = mmlca.Sequences.from_codes(codes, ["A", "B", "C"])
    model = fitted(data, 1)
    for i in range(660):
        content = sent(model, data, SecretDraws(bytes(32), str(i)))
        shown += content["steps"][0][1][2] > 0
    assert abs(shown / 660 - 1 / 11) < 4 * np.sqrt(10 / 121 / 660)


def test_averaging_resamples_tells_no_more_than_one_draw() -> None:
    """The resamples of a site share its draws; with draws of their own they could be averaged."""
    mean_error = {}
    for shared in (False, True):
        errors = []
        for seed in range(8):
            data = ra_like(200, seed=seed)
            true = steps_of(data)
            told = []
            for i, part in enumerate(
                ehr_prep.pseudo_sites({"x": data}, n_per_site=40, fraction=1.0, seed=seed).values()
            ):
                topic = f"{seed}" if shared else f"{seed} {i}"
                content = sent(fitted(part, 1), part, SecretDraws(b"k" * 32, topic))
                told.append(np.array(content["steps"][0]) / content["steps_per_patient"])
            # a resample of n from n has each patient with probability 1 − 1/e
            estimate = np.mean(told, axis=0) / (1 - np.exp(-1))
            small = (true > 0) & (true < M)
            errors += np.abs(estimate - true)[small].tolist()
        mean_error[shared] = float(np.mean(errors))
    assert mean_error[False] < 1.6  # why they share
    assert mean_error[True] > 3


def test_no_exact_number_is_in_a_model_file() -> None:
    data = ra_like(317, seed=1)
    content = sent(fitted(data, 2), data)
    assert set(content) == {
        *("format", "version", "states", "prior", "patients", "first", "steps"),
        "steps_per_patient",
    }
    whole = [*content["patients"], *np.ravel(content["first"]).tolist()]
    assert all(count % M == 0 for count in whole)
    assert sum(content["patients"]) != 317


# --- 1b. the same from chains by time in state ----------------------------------------------


def rare_group(size: int) -> mmlca.Sequences:
    """A few of 160 patients switch from A to C and stay there: all in the cells of three bins."""
    codes = np.zeros((160, 12), dtype=np.int8)
    codes[:80, 6:] = 1
    codes[80 : 80 + size, 3:] = 2
    return mmlca.Sequences.from_codes(codes, ["A", "B", "C"])


def test_a_small_group_in_several_bins_cannot_be_averaged() -> None:
    """Who stays long is in the cells of several bins, and before in one of leaving and one of a
    destination; these show together or not at all."""
    hits, readings, truths = {"sent": 0, "apart": 0}, [], []
    for size in range(1, 11):
        data = rare_group(size)
        model = fitted(data, 1, stays=(2, 4))
        (support,) = expected_counts(model, data).support
        own = np.flatnonzero(support == size)
        assert len(own) == 5
        for i in range(30):
            draws = SecretDraws(b"k" * 32, f"{size} {i}")
            hits["apart"] += round(round_counts(support[own], M, draws).mean()) == size
            content = sent(model, data, draws)
            cells = [np.stack([content["staying"], content["leaving"]], axis=-1).ravel()]
            cells += [np.ravel(content["destinations"])]
            shown = np.concatenate(cells)[own] / content["steps_per_patient"]
            assert set(shown) in ({0}, {M})
            hits["sent"] += round(shown.mean()) == size
            readings.append(shown[0])
            truths.append(size)
    assert hits["apart"] > 30  # of 300: why
    assert hits["sent"] == 0
    assert gain(readings, truths) < 0.1  # of one draw: 0.09


def test_leaving_and_destinations_do_not_count_those_who_leave_twice() -> None:
    """The same patients are in two tables, by bin and by destination."""
    readings, truths = [], []
    for seed in range(30):
        data = ra_like(40, seed=seed)
        model = fitted(data, 1, stays=(2, 4))
        content = sent(model, data, SecretDraws(b"k" * 32, str(seed)))
        leaving = np.array(content["leaving"])[0, 0]
        destinations = np.array(content["destinations"])[0, 0]
        steps = steps_of(data)
        for state in range(5):
            people = steps[state].sum() - steps[state, state]
            if 0 < people < M:
                told = np.array([*leaving[:, state], *destinations[state]])
                readings.append(bool((told > 0).any()))
                truths.append(int(people))
    assert len(truths) >= 40
    assert gain(readings, truths) < 0.1


def test_bins_of_two_rounds_cannot_be_subtracted() -> None:
    """With the cut points 4 and 5 in two rounds, the difference would be who stays in window 4."""
    hits, readings, truths = 0, [], []
    for seed in range(30):
        data = ra_like(100, seed=seed)
        told, exact = [], []
        for stays in ((2, 4), (2, 5)):
            model = fitted(data, 1, stays=stays)
            content = sent(model, data, SecretDraws(b"k" * 32, str(seed)))
            told.append(np.array(content["staying"])[0, 0, 2])
            counts = expected_counts(model, data).steps[0]
            exact.append(counts[: 2 * 3 * 5 : 2].reshape(3, 5)[2])
        for state in range(5):
            true = round(exact[0][state] - exact[1][state])
            if 0 < true < M:
                hits += told[0][state] - told[1][state] == true
                readings.append(bool(told[0][state] > told[1][state]))
                truths.append(true)
    assert len(truths) >= 40
    assert hits == 0
    assert gain(readings, truths) < 0.1


# --- 2. the number withheld ----------------------------------------------------------------


def test_no_number_of_patients_left_out_can_be_worked_out(tmp_path: Path) -> None:
    for seed in range(13):
        n = 150 + 7 * seed
        site = hospital(tmp_path / str(seed), sequences=ra_like(n, seed=seed))
        stored = json.loads(site.label(site.fit()).read_text())["payload"]
        assert set(stored) == {"models", "min_count", "classes", "tables"}
        rows = [*stored["classes"], *([int(n) for n in row.split()] for row in stored["tables"])]
        cells = [cell for row in rows for cell in row]
        assert all(cell % M == 0 for cell in cells)
        assert sum(stored["classes"][0]) != n or n % M == 0


# --- 3. membership queries -----------------------------------------------------------------


def hospital(folder: Path, **changes: Any) -> mmlca.Hospital:
    settings: dict[str, Any] = {"study": "s", "site": "x", "folder": folder, "n_classes": 2}
    settings |= {"starts": 4, "fewer_classes": True, "sequences": ra_like(200, seed=1)}
    return mmlca.Hospital(**(settings | changes))


def trap(row: np.ndarray, states: tuple[str, ...]) -> bytes:
    """A model of two classes, the second of which fits one course and hardly any other."""
    s = len(states)
    steps = np.full((2, s, s), 11.0)
    first = np.full((2, s), 11)
    steps[1], first[1] = 0.0, 0
    first[1, row[0]] = 11 * 10**5
    for i, j in zip(row[:-1], row[1:], strict=True):
        if j >= 0:
            steps[1, i, j] = 11.0 * 10**5
    content = {
        "format": "mmlca markov counts",
        "version": 1,
        "states": list(states),
        "prior": 1e-9,
        "patients": [11, 11],
        "first": first.tolist(),
        "steps": steps.tolist(),
        "steps_per_patient": 1.0,
    }
    payload = {"name": "centre", "min_count": 11, "bic": [], "model": content}
    from font.exchange.envelope import write_file

    return write_file(None, "model", payload, font.Header(study="s", site="centre")).data


def rare_patient(data: mmlca.Sequences) -> int:
    """Someone whose course nobody shares, and whom a trap isolates."""
    for i in range(len(data)):
        model = font.read_model(trap(data.codes[i], data.states)).model
        if (model.predict(data) == 1).sum() == 1:
            return i
    raise AssertionError("nobody is rare")


def test_a_site_labels_only_with_the_agreed_list(tmp_path: Path) -> None:
    site = hospital(tmp_path)
    crafted = trap(site.sequences.codes[0], site.sequences.states)
    with pytest.raises(InputError, match="a site labels only with a list of models that its own"):
        site.label([crafted])  # before it has sent any
    own = site.fit()
    with pytest.raises(InputError, match=r"the models of x in this list \('x'\) are not those"):
        site.label([crafted])
    other = json.loads(own[0].read_bytes())
    other["payload"]["model"]["prior"] = 2.0
    other["sha256"] = font.fingerprint(other["payload"])
    with pytest.raises(InputError, match="are not those that it sent"):
        site.label([json.dumps(other).encode()])
    agreed = font.list_fingerprint(font.read_models(own))
    strict = hospital(tmp_path, agreed=agreed[:16])
    with pytest.raises(InputError, match="not the agreed"):
        strict.label([*own, crafted])
    strict.label(own)
    with pytest.raises(InputError, match="released other labels files"):
        site.label([*own, crafted])  # and never a second list


def test_a_trap_for_one_patient_shuts_empty_ten_times_out_of_eleven(tmp_path: Path) -> None:
    """Even if the sites agree on a crafted model, its class of one patient shows as 0 or 11."""
    data = ra_like(200, seed=1)
    target = rare_patient(data)
    model = font.read_model(trap(data.codes[target], data.states))
    labels = font.label({"trap": model.model}, data)
    tables = font.CrossTables.from_labels({"x": labels}, {"trap": 2})
    assert tables.tables["x"][1, 1] == 1
    shown = []
    for i in range(660):
        out = font.write_labels(
            None,
            tables,
            {"trap": model},
            font.Header(study="s", site="x"),
            draws=SecretDraws(bytes(32), str(i)),
        )
        shown.append(out.tables.tables["x"][1, 1])
    assert set(shown) == {0, 11}
    assert abs(np.mean(shown) - 1) < 4 * 11 * np.sqrt(10 / 121 / 660)


def labels_of(n_models: int, seed: int = 1) -> tuple[font.CrossTables, np.ndarray]:
    """Exact cross-tables of 500 patients in 4 groups, whom each model puts right in 95 %."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(4, size=500, p=[0.6, 0.25, 0.13, 0.02])
    right = rng.random((500, n_models)) < 0.95
    labels = np.where(right, truth[:, None], rng.integers(4, size=(500, n_models)))
    frame = pd.DataFrame(labels, columns=list(map(str, range(n_models))))
    tables = font.CrossTables.from_labels({"x": frame}, dict.fromkeys(frame.columns, 4))
    return tables, labels


def advantage(n_models: int, n_people: int = 40, n_draws: int = 60) -> np.ndarray:
    """Areas under the curve of the best test of membership, by one who knows all other patients.

    Such a one knows which cells share a draw, and what each would be with and without the patient;
    the likelihood of what was written is the range of draws that give it.
    """
    rng = np.random.default_rng(2)
    unit = label_unit(M, n_models)
    tables, labels = labels_of(n_models)
    exact = tables.tables["x"]
    n = len(exact)
    marks = shared_draws(exact, tables.offsets, rng)  # equal where the draw is
    group = np.unique(marks, return_inverse=True)[1].reshape(n, n)
    upper = np.triu(np.ones((n, n), dtype=bool))
    scores = []
    for person in rng.choice(500, n_people, replace=False):
        own = np.zeros(n, dtype=bool)
        own[labels[person] + tables.offsets[:-1]] = True
        inside, outside = exact[upper], (exact - np.outer(own, own))[upper]
        evidence = []
        for truth in (inside, outside):
            uniform = rng.random((n_draws, group.max() + 1))[:, group[upper]]
            told = np.array([round_counts(truth, unit, row) for row in uniform])
            with_, without = (
                log_range(told, counts, group[upper], unit) for counts in (inside, outside)
            )
            evidence.append(with_ - without)
        scores.append(roc_auc_score([1] * n_draws + [0] * n_draws, np.concatenate(evidence)))
    return np.array(scores)


def log_range(told: np.ndarray, counts: np.ndarray, group: np.ndarray, unit: int) -> np.ndarray:
    """Logarithm of the share of draws that turn the counts into what was written."""
    below = np.floor(counts / unit)
    part = counts / unit - below
    up, down = told == unit * (below + 1), told == unit * below
    total = np.zeros(len(told))
    for number in np.unique(group):
        here = group == number
        high = np.where(up[:, here], part[here], 1.0).min(axis=1)
        low = np.where(down[:, here], part[here], 0.0).max(axis=1)
        possible = (up | down)[:, here].all(axis=1)
        total += np.log(np.maximum(np.where(possible, high - low, 0.0), 1e-12))
    return total


@pytest.mark.parametrize(("n_models", "stated"), [(1, 0.54), (4, 0.69), (20, 0.77)])
def test_what_all_cells_together_tell_is_what_the_specification_says(
    n_models: int, stated: float
) -> None:
    from font.exchange import envelope

    assert f"{stated:g}" in (envelope.__doc__ or "")
    assert advantage(n_models).mean() == pytest.approx(stated, abs=0.04)


def test_a_small_group_in_many_cells_cannot_be_averaged() -> None:
    """All models agree on a group of 1 to 10 patients; its cells are drawn together."""
    hits = {"shared": 0, "apart": 0}
    rng = np.random.default_rng(1)
    for size in range(1, 11):
        for _ in range(30):
            truth = np.repeat([0, 1, 2], [200, 150, size])
            frame = pd.DataFrame({str(m): truth for m in range(12)})
            tables = font.CrossTables.from_labels({"x": frame}, dict.fromkeys(frame.columns, 3))
            exact = tables.tables["x"]
            cells = exact == size
            for way, draws in (
                ("shared", shared_draws(exact, tables.offsets, SecretDraws())),
                ("apart", rng.random(exact.shape)),
            ):
                told = np.triu(round_counts(exact, M, draws))[np.triu(cells)]
                hits[way] += round(told.mean()) == size
    assert hits["apart"] > 150  # of 300: why they are drawn together
    assert hits["shared"] == 0


# --- 4. the steps of a refinement ------------------------------------------------------------


def steps_of_a_refinement(data: dict[str, mmlca.Sequences]) -> tuple[list[Any], list[Any]]:
    """The shared models of a refinement to convergence, and the exact sums of the site x."""
    start = fitted(data["x"], 3)
    first = {site: np.eye(3)[start.predict(part)] for site, part in data.items()}
    models, exact = [fitted(data["x"], 1)], []
    while len(models) < 12:
        model, total = models[-1], np.zeros(1)
        for site, part in data.items():
            members = first[site] if len(models) == 1 else site_step(model, part).membership
            sums = model.statistics(part, members), markov_support(model, part, members)
            rounded = round_sums(*sums, M, SecretDraws(b"k" * 32, site))
            total = total + rounded.values / rounded.scale
            if site == "x":
                exact.append(sums)
        models.append(start.from_statistics(total))
        change = models[-1].class_parameters_ - model.class_parameters_
        if len(models) > 2 and np.abs(change).max() < 1e-3:
            break
    return models, exact


def units_of(sums: Any, whole: bool, least: int = M) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which cells rest on few patients, what is rounded in each cell, and to multiples of what."""
    events, support = sums
    few = support < least
    often = np.maximum(np.ceil(events / np.maximum(support, 1) - 1e-9), 1)
    return few, np.where(few, support, events), least * np.where(few | (not whole), 1, often)


def possible_draws(told: list[np.ndarray], steps: list[Any]) -> float:
    """Log-probability that these tables are written as `told`, all with the same draws."""
    low, high = np.zeros(told[0].shape), np.ones(told[0].shape)
    bottom, top = 0.0, 1.0  # of the draw that all cells of few patients share
    for shown, (few, values, unit) in zip(told, steps, strict=True):
        below = np.floor(values / unit)
        part = values / unit - below
        up, down = shown == unit * (below + 1), shown == unit * below
        most, least = np.where(up, part, 1.0), np.where(down, part, 0.0)
        most = np.where(up | down, most, -1.0)  # it cannot be
        high, low = (
            np.where(few, high, np.minimum(high, most)),
            np.where(few, low, np.maximum(low, least)),
        )
        top, bottom = min(top, most[few].min(initial=1)), max(bottom, least[few].max(initial=0))
    return float(np.log(np.maximum(high - low, 1e-9)).sum() + np.log(max(top - bottom, 1e-9)))


def test_the_steps_of_a_refinement_hardly_show_who_is_at_the_site() -> None:
    """The attacker is the centre: it sees a site's sums at every step, and knows all its patients
    but one, all shared models and which draws are alike. With units of 11 events, of which one
    patient has a dozen, it knew nearly always."""
    data = {site: ra_like(n, seed=n) for site, n in (("x", 150), ("y", 200), ("z", 210))}
    models, exact = steps_of_a_refinement(data)
    start, rng = fitted(data["x"], 3), np.random.default_rng(1)
    labels = start.predict(data["x"])
    areas: dict[tuple[bool, int], list[float]] = {}
    for person in rng.choice(150, 10, replace=False):
        kept = np.arange(150) != person
        others = data["x"].select(data["x"].ids[kept])
        members = [np.eye(3)[labels[kept]]]
        members += [site_step(model, others).membership for model in models[1 : len(exact)]]
        absent = [
            (model.statistics(others, own), markov_support(model, others, own))
            for model, own in zip(models, members, strict=False)
        ]
        for whole in (False, True):
            for n_steps in (1, len(exact)):
                sides = [[units_of(t, whole) for t in part[:n_steps]] for part in (exact, absent)]
                evidence = []
                for truth in np.repeat([0, 1], 40):
                    each, one = rng.random(exact[0][0].shape), rng.random()
                    told = [
                        unit * (np.floor(v / unit) + (np.where(few, one, each) < v / unit % 1))
                        for few, v, unit in sides[truth]
                    ]
                    evidence.append(possible_draws(told, sides[0]) - possible_draws(told, sides[1]))
                area = roc_auc_score(np.repeat([1, 0], 40), evidence)
                areas.setdefault((whole, n_steps), []).append(float(area))
    mean = {way: np.mean(values) for way, values in areas.items()}
    assert mean[False, 1] > 0.85  # why
    assert mean[False, len(exact)] > 0.9
    assert mean[True, 1] < 0.72
    assert mean[True, len(exact)] < 0.82
    for sums in exact:  # and this is what the files have
        few, _, unit = units_of(sums, whole=True)
        written = round_sums(*sums, M, SecretDraws(bytes(32))).values / 100
        assert (written[~few] % unit[~few] == 0).all()


def test_time_in_state_shows_a_little_more_of_who_is_at_the_site() -> None:
    """A patient is in more cells of a chain by time in state, and each gives a slight hint to one
    who knows all other patients; with the unit 22 it is as little as of a plain chain with 11."""
    areas: dict[tuple[bool, int], list[float]] = {}
    rng = np.random.default_rng(1)
    for seed in range(3):
        data = ra_like(300, seed=seed)
        for stays in (None, (2, 4)):
            model = fitted(data, 2, stays=stays)
            members = model.predict_proba(data)
            for person in rng.choice(300, 8, replace=False):
                kept = np.arange(300) != person
                others = data.select(data.ids[kept])
                tables = [
                    (model.statistics(part, own), markov_support(model, part, own))
                    for part, own in ((data, members), (others, members[kept]))
                ]
                for unit in (M, 2 * M):
                    area = membership_area(tables, unit, rng)
                    areas.setdefault((stays is not None, unit), []).append(area)
    mean = {way: np.mean(values) for way, values in areas.items()}
    assert mean[False, M] < 0.75
    assert mean[True, M] < 0.8
    assert mean[True, 2 * M] < mean[False, M] + 0.05


def membership_area(tables: list[Any], unit: int, rng: np.random.Generator) -> float:
    """Area under the curve of the best test of whether a patient is in the first of two tables."""
    sides = [units_of(table, whole=True, least=unit) for table in tables]
    evidence = []
    for few, values, units in [sides[0]] * 40 + [sides[1]] * 40:
        draws = np.where(few, rng.random(), rng.random(values.shape))
        told = [units * (np.floor(values / units) + (draws < values / units % 1))]
        evidence.append(possible_draws(told, sides[:1]) - possible_draws(told, sides[1:]))
    return float(roc_auc_score(np.repeat([1, 0], 40), evidence))


def test_changes_between_steps_cannot_be_read_off() -> None:
    """Attack: subtract the sums of consecutive steps, between which few patients move."""
    seen = read = 0
    for seed in range(4):
        data = {site: ra_like(n, seed=n + seed) for site, n in (("x", 150), ("y", 200), ("z", 210))}
        _, exact = steps_of_a_refinement(data)
        rounded = [round_sums(*sums, M, SecretDraws(bytes(32), str(seed))) for sums in exact]
        for t in range(1, len(exact)):
            moved = exact[t][0] - exact[t - 1][0]
            told = (rounded[t].values - rounded[t - 1].values) / 100
            few = (np.abs(moved) >= 0.5) & (np.abs(moved) < M)
            seen += int(few.sum())
            read += int((np.rint(told[few]) == np.rint(moved[few])).sum())
    assert seen > 100
    assert read <= 0.02 * seen


# --- 5. asking twice -------------------------------------------------------------------------


def test_noise_cannot_be_averaged_by_asking_again(tmp_path: Path) -> None:
    site = hospital(tmp_path)
    models = site.fit()
    assert len({site.label(models).read_bytes() for _ in range(50)}) == 1
    assert len({site.fit()[0].read_bytes() for _ in range(50)}) == 1


def test_two_runs_that_differ_by_one_patient_do_not_tell_that_patients_course(
    tmp_path: Path,
) -> None:
    """Even where a person let the second run leave: the draws are the same, so little changes."""
    exact = 0
    data = ra_like(150, seed=2)
    for person in range(60):
        folder = tmp_path / str(person)
        with pytest.raises(InputError, match="released other model files"):
            two_runs(folder, data, person, None)
        before, after = two_runs(folder, data, person, "a patient withdrew consent")
        codes = data.codes[person]
        course = np.zeros((5, 5))
        for i, j in zip(codes[:-1], codes[1:], strict=True):
            course[i, j] += j >= 0
        change = np.array(before["steps"][0]) - np.array(after["steps"][0])
        exact += bool((np.rint(change) == course).all())
    assert exact <= 3


def two_runs(
    folder: Path, data: mmlca.Sequences, person: int, override: str | None
) -> list[dict[str, Any]]:
    without = data.select([i for i in data.ids if i != data.ids[person]])
    contents = []
    for part, words in ((data, None), (without, override)):
        site = hospital(folder, sequences=part, n_classes=1, override=words)
        (path,) = site.fit()
        contents.append(font.read_model(path).content)
    return contents


# --- a centre that chooses the shared model of each step --------------------------------------


def test_dozens_of_chosen_steps_tell_an_exact_count() -> None:
    """Attack: shift memberships little by little, and see where a sum reaches the next multiple.

    Other patients of a cluster (300, all known to be there) belong to it with the probability q,
    three more with p. The places in q of two jumps give the number of the others and the draw; how
    far p = 1 moves a jump gives the three. That is why a site answers the steps that were agreed
    on and no others.
    """
    others, few, unit = 300, 3, 11
    draws = b"k" * 32
    asked = 0

    def shown(q: float, p: float) -> int:
        nonlocal asked
        asked += 1
        sums = np.array([[others * q + few * p]])
        support = np.array([[float(others + few)]])
        return int(round_sums(sums, support, unit, SecretDraws(draws)).values[0, 0])

    def jump(low: float, high: float, p: float, level: int) -> float:
        """Where in q the sum is first written as so many units."""
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (low, middle) if shown(middle, p) >= level else (middle, high)
        return high

    level = shown(0.5, 0.0) // unit * unit
    first = jump(0.4, 0.6, 0.0, level)
    next_one = jump(0.4, 0.6, 0.0, level + unit)
    moved = jump(first - 0.03, first, 1.0, level)
    number = unit / (next_one - first)
    assert number == pytest.approx(others, abs=3)
    assert round((first - moved) * number) == few
    assert 20 < asked <= MOST_STEPS


@pytest.mark.parametrize(
    ("agreed", "step", "refused"),
    [
        ("none", 0, True),
        (0, 0, False),
        (0, 1, True),
        (1, 1, False),
        (1, 2, True),
        ("converge", 49, False),
    ],
)
def test_a_site_answers_as_many_steps_as_were_agreed_on(
    agreed: int | str, step: int, refused: bool
) -> None:
    shared = SimpleNamespace(last=False) if step else None
    asked = cast(Step, SimpleNamespace(step=step, shared=shared))
    if refused:
        with pytest.raises(InputError, match=rf"sums of step {step} .* refine = \"?{agreed}"):
            check_agreed_steps(asked, agreed)
    else:
        check_agreed_steps(asked, agreed)
    if step:  # the last file only brings the patients' clusters
        last = SimpleNamespace(step=step, shared=SimpleNamespace(last=True))
        check_agreed_steps(cast(Step, last), agreed)
