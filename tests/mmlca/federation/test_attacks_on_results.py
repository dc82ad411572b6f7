"""Attempts to work out small numbers from the results of a site, and from its other files.

The attacker knows all rules but the site's secret. A small number is safe if ten values remain.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chain_study import SITES, STUDY, combined, hospital, refine_by_files
from ra_like import ra_like
from released import release
from study_attack import Name, ResultsAttack

import font
import mmlca
from font.exchange.messages.refinement import read_step
from mmlca.federation.results import site_patients, study_of
from mmlca.study.results.opinions import other_groups
from mmlca.study.results.registry import site_results
from mmlca.study.results.site import SitePatients
from mmlca.study.settings import Study

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
M = 11
Views = dict[str, np.ndarray]


def people(n: int, seed: int) -> tuple[mmlca.Sequences, Views]:
    """Patients who leave at any time, in three views that differ by few of them."""
    rng = np.random.default_rng(seed)
    codes = ra_like(n, seed=seed).codes[:, :8].copy()
    codes[:, :1] = np.maximum(codes[:, :1], 0)
    last = np.where(rng.random(n) < 0.6, 8, rng.integers(1, 9, n))
    last = np.minimum(last, (codes >= 0).sum(axis=1))
    codes[np.arange(8) >= last[:, None]] = -1
    switches = ((codes != codes[:, :1]) & (codes >= 0)).any(axis=1)
    first = np.where(codes[:, 0] == 0, 1 + switches, np.where(rng.random(n) < 0.8, 3, 1))
    views = {"ensemble": first, "own": first.copy(), "refined": first.copy()}
    for view, few in (("own", 15), ("refined", 6)):
        views[view][rng.choice(n, few, replace=False)] = rng.integers(1, 4, few)
    return mmlca.Sequences.from_codes(codes, list("ABCDE")), views


def tables_of(data: mmlca.Sequences, views: Views, secret: bytes) -> dict[str, pd.DataFrame]:
    parts = {view: {"x": groups[: len(data)]} for view, groups in views.items()}
    return dict(release({"x": data}, parts, M, secret)["x"].tables)


def true_numbers(data: mmlca.Sequences, views: Views) -> dict[Name, int]:
    """The numbers of patients behind the tables of courses."""
    codes, n_times = data.codes, data.shape[1]
    last = (codes >= 0).sum(axis=1)
    switched = (codes != codes[:, :1]) & (codes >= 0)
    until = np.where(switched.any(axis=1), switched.argmax(axis=1), 0)
    end = codes[np.arange(len(codes)), last - 1]
    numbers: dict[Name, int] = {}
    for view, groups in views.items():
        for group in np.unique(groups).tolist():
            here, of = groups == group, (view, group)
            numbers["stay", *of] = int((here & (until == 0)).sum())
            for code, state in enumerate(data.states):
                numbers["end", *of, state] = int((here & (end == code)).sum())
                for t in range(n_times):
                    numbers["cell", *of, t, state] = int((here & (codes[:, t] == code)).sum())
            for k in range(1, n_times + 1):
                numbers["followed", *of, k] = int((here & (last == k)).sum())
                numbers["switched", *of, k] = int((here & (until == k)).sum())
    names = list(views)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            for g in np.unique(views[a]).tolist():
                for h in np.unique(views[b]).tolist():
                    both = (views[a] == g) & (views[b] == h)
                    numbers["pair", a, b, g, h] = int(both.sum())
    return numbers


def check_open(attack: ResultsAttack, numbers: dict[Name, int], n: int, seed: int) -> None:
    """So many of the small numbers, drawn at random, have ten possible values or more."""
    small = [name for name, count in numbers.items() if 0 < count < M and name in attack.at]
    assert len(small) >= n
    for place in np.random.default_rng(seed).choice(len(small), n, replace=False):
        name = small[place]
        low, high = attack.range_of(name)
        assert low - 1e-6 <= numbers[name] <= high + 1e-6, name
        assert np.floor(high + 1e-6) - np.ceil(low - 1e-6) >= M - 2, (name, low, high)


@pytest.mark.parametrize("seed", [1, 2])
def test_tables_of_courses_together_leave_small_numbers_open(seed: int) -> None:
    """Windows, ends, spans, paths, lines, courses and overlaps of three views in one system.

    With a draw for each length the numbers followed and switched by length narrowed some down.
    """
    data, views = people(110 + 20 * seed, seed)
    attack = ResultsAttack(tables_of(data, views, bytes([seed]) * 32), M)
    check_open(attack, true_numbers(data, views), 12, seed)


def test_a_small_set_of_patients_has_one_draw_in_all_tables() -> None:
    """Three patients who are in B always: by windows, begins, ends and paths, in all views.

    The rows of the tree of lines do not show that there are any.
    """
    rows = ["A" * 8] * 77 + ["B" * 8] * 3
    data = mmlca.Sequences.from_lists([list(row) for row in rows], states=["A", "B"])
    views = dict.fromkeys(("ensemble", "own", "refined"), np.ones(80, dtype=int))
    for seed in range(20):
        tables = tables_of(data, views, bytes([seed + 1]) * 32)
        shown = tables["windows"].query("state == 'B'")["count"].tolist()
        ends = tables["ends"].query("state == 'B'")
        shown += [*ends["begin"], *ends["end"]]
        first = tables["lines"].query("line == 1")
        shown += first.query("state == 'others'")["count"].tolist()
        assert len(set(shown)) <= 1
        assert set(first["state"]) == ({"A", "others"} if M in shown else {"A"})


def test_no_row_shows_that_there_is_one_patient() -> None:
    """Whether a row is there follows from rounded numbers: of a state, a switch, a pair of groups.

    Lists of paths and courses are another matter: they name those of at least a unit of patients.
    """
    data, views = people(150, 3)
    codes = np.vstack([data.codes, [5, 5, 0, 0, 5, 5, 5, -1]])
    whole = mmlca.Sequences.from_codes(codes, list("ABCDEF"), ids=[f"p{i}" for i in range(151)])
    for view, group in (("ensemble", 3), ("own", 1), ("refined", 2)):
        views[view] = np.append(views[view], group)
    always: set[tuple[Any, ...]] | None = None
    for seed in range(8):
        with_, without = (
            rows_of(tables_of(part, views, bytes([seed + 1]) * 32)) for part in (whole, whole[:-1])
        )
        always = (with_ ^ without) if always is None else always & (with_ ^ without)
    assert not always


def rows_of(tables: dict[str, pd.DataFrame]) -> set[tuple[Any, ...]]:
    """What the rows of tables of counts are about, without their numbers."""
    about = ("view", "other", "group", "other_group", "rank", "windows", "longest", "line", "more")
    rows: set[tuple[Any, ...]] = set()
    for name in ("windows", "ends", "spans", "switches", "steps", "step_rows", "overlaps", "lines"):
        table = tables[name]
        columns = [c for c in table if table[c].dtype == object or c in about]
        texts = table[columns].astype(str).itertuples(index=False, name=None)
        rows |= {(name, *row) for row in texts}
    return rows


# --- beside the other files of the study ---------------------------------------------------


def with_files(attack: ResultsAttack, root: Path, site: str) -> None:
    """What the model, labels and sums files of a site add, each with draws of its own."""
    model = payload(root / site / "to_all" / f"{site}.model.json")
    labels = payload(root / site / "to_centre" / f"{site}.labels.json")
    sums = payload(root / site / "to_centre" / f"{site}.sums-0.json")
    first = np.array(model["model"]["first"])
    for s, state in enumerate(model["model"]["states"]):
        # expected numbers by class, which add up to the patients who begin in the state
        parts = [("expected", k, state) for k in range(len(first))]
        for k, part in enumerate(parts):
            attack.shown(part, first[k, s])
        groups = attack.views["ensemble"]
        attack.add([("begin", "ensemble", g, state) for g in groups], ("begin at the site", state))
        attack.add(parts, ("begin at the site", state))
    own = [m["name"] for m in labels["models"]].index(site)
    for k, n in enumerate(labels["classes"][own]):
        unit, attack.unit = attack.unit, labels["min_count"]
        attack.shown(("class of the sent model", k), n)
        attack.unit = unit
    n_states = len(model["model"]["states"])
    for k, row in enumerate(np.array(sums["sums"]) / sums["scale"]):
        assert row[0] % M == 0
        attack.shown(("size", "ensemble", k + 1), row[0])
        for state, n in zip(model["model"]["states"], row[1 : 1 + n_states], strict=True):
            if n > M * sums["per_patient"]:  # others may rest on few patients
                attack.shown(("begin", "ensemble", k + 1, state), n)


def payload(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())["payload"]
    return content


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("attacked")
    combined(root, M)
    refine_by_files(root, M, 1)
    return root


def test_results_leave_small_numbers_open_beside_model_labels_and_sums(root: Path) -> None:
    site = "west"
    home = hospital(root, site, M)
    path = root / "west.csv"
    home.sequences.to_frame().rename_axis("id").to_csv(path)
    places = {name: {"sequences": str(path)} for name in SITES}
    study = study_of(home, Study.model_validate({"name": STUDY, "sites": places}))
    step, ensemble = read_step(root / "shared-1.json"), font.read_ensemble(root / "ensemble.json")
    patients = site_patients(home, home.ledger(), home.sequences, study, ensemble, step)
    attack = ResultsAttack(site_results(study, patients).tables, M)
    with_files(attack, root, site)
    views = {view: groups.to_numpy() for view, groups in patients.groups.items()}
    check_open(attack, true_numbers(home.sequences, views), 10, 1)
    check_open(attack, opinion_numbers(study, patients), 2, 1)  # of four to seven


def opinion_numbers(study: Study, patients: SitePatients) -> dict[Name, int]:
    """The numbers of patients by refined cluster and group of another method."""
    assert patients.own is not None
    clusters = patients.groups["refined"]
    opinions = other_groups(study, patients.sequences, patients.own.n_classes)
    return {
        ("opinion", method, k, g): int(((clusters == k) & (groups == g)).sum())
        for method, groups in opinions.items()
        for k in range(1, patients.own.n_classes + 1)
        for g in range(1, int(groups.max()) + 1)
    }
