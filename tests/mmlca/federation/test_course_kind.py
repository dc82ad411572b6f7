"""Latent classes of the time course go through the files and the commands of a study."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import mmlca_does, refusal

import font
import mmlca
from font.errors import InputError
from font.exchange.envelope import fingerprint
from font.probabilities import PRIOR_OF_ITEMS
from mmlca.federation.course_kind import TIME_COURSE

HEADER = font.Header(study="s", site="north", created="2026-01-02")
SITES = ("north", "south", "west")


def patients(seed: int, n: int = 300) -> tuple[mmlca.Sequences, np.ndarray]:
    """Two groups that leave A early or late; two patients are in a rare state."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(2, size=n)
    codes = np.where(np.arange(6) < np.where(truth == 0, 1, 4)[:, None], 0, 1)
    codes = np.where(rng.random(codes.shape) < 0.05, 1 - codes, codes)
    codes[rng.random(codes.shape) < 0.05] = -1
    codes[:, 0] = np.maximum(codes[:, 0], 0)
    codes[:2, 3] = 2
    return mmlca.Sequences.from_codes(codes.astype(np.int8), ["A", "B", "rare"]), truth


def sent(path: Path, **options: Any) -> tuple[mmlca.CourseClasses, mmlca.Sequences, Any]:
    data, _ = patients(1)
    model = mmlca.CourseClasses(2, n_init=8, seed=1).fit(data)
    draws = np.random.default_rng(1)
    return model, data, font.write_model(path, model, data, HEADER, draws=draws, **options)


def test_a_file_has_rounded_counts_and_its_model_labels_alike(tmp_path: Path) -> None:
    model, data, _ = sent(tmp_path / "m.json")
    file = font.read_model(tmp_path / "m.json")
    content = json.loads((tmp_path / "m.json").read_text())["payload"]["model"]
    counts = np.array(content["answers"])
    assert counts.shape == (2, 6 * 3)
    assert not (counts % 11).any()
    assert not (np.array(content["patients"]) % 11).any()
    same = (file.model.predict(data) == model.predict(data)).mean()
    assert max(same, 1 - same) > 0.9
    assert (file.model.times_, file.model.states_) == (model.times_, model.states_)
    said = font.explain(tmp_path / "m.json")
    assert "3 states (A, B, rare) in each of the 6 windows 1 to 6, rounded at random" in said


def test_counts_are_right_on_average_and_count_weights(tmp_path: Path) -> None:
    data, _ = patients(1)
    model = mmlca.CourseClasses(2, n_init=8, seed=1).fit(data)
    drawn = data.reweight(np.where(np.arange(len(data)) < 150, 2.0, 0.0))
    expected = model.statistics(drawn, model.predict_proba(drawn))
    counts = []
    for seed in range(60):
        draws = np.random.default_rng(seed)
        font.write_model(tmp_path / "m.json", model, drawn, HEADER, draws=draws)
        content = json.loads((tmp_path / "m.json").read_text())["payload"]["model"]
        counts.append(np.hstack([np.array(content["patients"])[:, None], content["answers"]]))
    error = np.mean(counts, axis=0) - expected
    assert np.abs(error).max() < 4 * 5.5 / np.sqrt(60)


def test_windows_cannot_be_averaged(tmp_path: Path) -> None:
    """Three patients who stay in a rare state show as 0 or 11 in all windows alike."""
    rng = np.random.default_rng(5)
    codes = np.where(np.arange(12) < np.where(rng.random(200) < 0.5, 2, 9)[:, None], 0, 1)
    codes[:3] = 2
    data = mmlca.Sequences.from_codes(codes.astype(np.int8), ["A", "B", "rare"])
    model = mmlca.CourseClasses(2, n_init=8, seed=1).fit(data)
    shown = set()
    for seed in range(40):
        draws = np.random.default_rng(seed)
        font.write_model(tmp_path / "m.json", model, data, HEADER, draws=draws)
        content = json.loads((tmp_path / "m.json").read_text())["payload"]["model"]
        rare = np.array(content["answers"]).reshape(2, 12, 3)[:, :, 2]
        assert (rare == rare[:, :1]).all()
        shown |= set(rare.sum(axis=0).tolist())
    assert shown == {0, 11}


def change(content: dict[str, Any], **parts: Any) -> bytes:
    content = copy.deepcopy(content)
    content["payload"]["model"] |= parts
    content["sha256"] = fingerprint(content["payload"])
    return json.dumps(content).encode()


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    sent(tmp_path / "m.json")
    content = json.loads((tmp_path / "m.json").read_text())
    items = content["payload"]["model"]["items"]
    twice = [items[0], *items[:-1]]
    other = [*items[:-1], items[-1] | {"categories": ["A", "B", "other"]}]
    numbers = [item | {"categories": [1, 2, 3]} for item in items]
    answers = np.array(content["payload"]["model"]["answers"])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"items": twice}, "names a window twice"),
        ({"items": other}, "do not all have the same states"),
        ({"items": numbers}, "do not all have the same states"),
        ({"items": items[:-1]}, "shape"),
        ({"answers": (answers + 1).tolist()}, "not a multiple"),
        ({"prior": -1}, "prior"),
        ({"format": "font latent class", "more": 1}, "more"),
    ]
    for parts, message in wrong:
        with pytest.raises(InputError, match=message):
            font.read_model(change(content, **parts))


def test_a_class_of_few_patients_does_not_leave(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fewer than 200 patients"):
        sent(tmp_path / "m.json", min_count=200)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:the best of all")
def test_a_study_by_commands_with_a_refinement(tmp_path: Path) -> None:
    truth = {}
    for seed, site in enumerate(SITES):
        data, truth[site] = patients(seed)
        data.write(tmp_path / f"{site}.csv")
    where = {site: ("--study", "s", "--site", site, "--folder", tmp_path / site) for site in SITES}
    for site in SITES:
        table = tmp_path / f"{site}.csv"
        said = mmlca_does("site", "fit", table, "--by", "course", "-k", 2, *where[site])
        assert "300 patients × 6 times" in said
    models = [tmp_path / site / "to_all" / f"{site}.model.json" for site in SITES]
    for site in SITES:
        mmlca_does("site", "label", *models, "--sequences", tmp_path / f"{site}.csv", *where[site])
    labels = [tmp_path / site / "to_centre" / f"{site}.labels.json" for site in SITES]
    mmlca_does("centre", "combine", *models, *labels, "--study", "s", "-k", 2, "--out", tmp_path)
    ensemble = tmp_path / "ensemble.json"
    for site in SITES:
        table = tmp_path / f"{site}.csv"
        mmlca_does("site", "assign", ensemble, "--sequences", table, *where[site])
        mmlca_does("site", "refine", ensemble, "--sequences", table, *where[site])
    sums = [tmp_path / site / "to_centre" / f"{site}.sums-0.json" for site in SITES]
    mmlca_does("centre", "refine", ensemble, *sums, "--study", "s", "--out", tmp_path)
    shared = tmp_path / "shared-0.json"
    for site, group in truth.items():
        table = tmp_path / f"{site}.csv"
        before = pd.read_csv(tmp_path / site / "clusters.csv")["cluster"]
        mmlca_does("site", "refine", shared, "--sequences", table, *where[site])
        after = pd.read_csv(tmp_path / site / "clusters.csv")["cluster"]
        for clusters in (before, after):
            same = (clusters - 1 == group).mean()
            assert max(same, 1 - same) > 0.9


def test_chains_and_courses_are_different_requests_to_the_ledger(tmp_path: Path) -> None:
    data, _ = patients(1)
    site = {"study": "s", "site": "north", "sequences": data, "folder": tmp_path, "n_classes": 2}
    mmlca.Hospital(**site, starts=4).fit()
    with pytest.raises(InputError):
        mmlca.Hospital(**site, starts=4, family="time-course-model").fit()


def test_numbers_are_tried_and_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    data, _ = patients(1)
    data.write(tmp_path / "north.csv")
    fit = (
        "site",
        "fit",
        tmp_path / "north.csv",
        "--study",
        "s",
        "--site",
        "north",
        "--by",
        "course",
    )
    fit = (*fit, "--folder", tmp_path / "north", "--n-init", 8)
    said = refusal(*fit, "-k", 2, "--prior", 0.1)
    assert "a time-course model does not use --prior 0.1" in said
    said = refusal(*fit, "-k", 2, "--family", "k-means")
    assert "--by course names the family of the models; leave out --family" in said
    mmlca_does(*fit, "--try", "1-3")
    assert font.read_model(tmp_path / "north/to_all/north.model.json").n_classes == 2


def test_the_vote_does_not_show_that_one_patient_is_in_a_state() -> None:
    """Each state counts in the criteria, whether any patient is in it or not."""
    rng = np.random.default_rng(1)
    codes = rng.choice(2, (60, 5))
    with_one = codes.copy()
    with_one[0, 4] = 2
    found = []
    for own in (codes, with_one):
        data = mmlca.Sequences.from_codes(own, ["A", "B", "C"])
        settings: dict[str, Any] = {"n_init": 2, "search": "default", "seed": 1}
        table = TIME_COURSE.compare(data, (1, 2), "bic", **settings)  # type: ignore[misc]
        logliks = [
            mmlca.CourseClasses(k, prior=PRIOR_OF_ITEMS / 3, **settings).fit(data).loglik_
            for k in (1, 2)
        ]
        found.append((table["bic"] + 2 * np.array(logliks)).to_numpy() / np.log(60))
    assert found[0] == pytest.approx(found[1])
    assert found[0] == pytest.approx([5 * 2, 1 + 2 * 5 * 2])
