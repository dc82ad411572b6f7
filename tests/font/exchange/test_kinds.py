"""Models other than Markov chains go through files and label as before."""

from __future__ import annotations

import copy
import json
import time
import tracemalloc
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import font
from font.errors import InputError
from font.exchange.envelope import fingerprint

COLUMNS = ["age", "crp", "das28"]


def numbers(seed: int = 1, n: int = 400) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.array([[60.0, 3, 2], [45.0, 25, 5], [70.0, 90, 4]])
    return centres[rng.integers(3, size=n)] + rng.normal(size=(n, 3)) * [6, 4, 0.8]


def answers(seed: int = 1, n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    group = rng.integers(2, size=n)
    return pd.DataFrame(
        {
            "erosions": np.where(rng.random(n) < 0.1 + 0.7 * group, "yes", "no"),
            "nodules": rng.random(n) < 0.8 - 0.6 * group,
            "joints": rng.integers(0, 2, n) + group,
        }
    )


def fitted(kind: str) -> tuple[Any, Any]:
    """A model and its data."""
    data = numbers()
    if kind == "k-means":
        return font.SklearnModel(KMeans(3, n_init=5, random_state=1)).fit(data), data
    if kind == "latent class":
        return font.LatentClass(2, seed=1).fit(answers()), answers()
    return GaussianMixture(3, covariance_type=kind, random_state=1).fit(data), data


HEADER = font.Header(study="ra", site="north")
KINDS = ("k-means", "full", "tied", "diag", "spherical", "latent class")


def sent(path: Path | None, kind: str, **settings: Any) -> font.ModelFile:
    model, data = fitted(kind)
    if kind != "latent class":
        data = pd.DataFrame(data, columns=COLUMNS)
    settings = {"draws": np.random.default_rng(1)} | settings
    return font.write_model(path, model, data, HEADER, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_the_same_for_sender_and_receiver(kind: str, tmp_path: Path) -> None:
    model, data = fitted(kind)
    mine = sent(tmp_path / "m.json", kind)
    yours = font.read_model(tmp_path / "m.json", font.Header(study="ra"))
    assert yours.fingerprint == mine.fingerprint
    assert (mine.model.predict(data) == yours.model.predict(data)).all()
    assert (mine.model.predict(data) == model.predict(data)).mean() > 0.97
    assert mine.n_classes == len(mine.class_parameters_)
    assert (np.array(mine.content["patients"]) % 11 == 0).all()
    assert abs(sum(mine.content["patients"]) - len(data)) <= 11 * mine.n_classes


@pytest.mark.parametrize("kind", ["k-means", "full"])
def test_means_have_the_precision_that_the_file_states(kind: str) -> None:
    file, (model, _) = sent(None, kind), fitted(kind)
    exact = getattr(model, "class_parameters_", getattr(model, "means_", None))
    steps = np.array(file.content["precision"])
    assert (np.abs(file.class_parameters_ - exact) <= steps / 2 * 1.001).all()
    units = file.class_parameters_ / steps
    np.testing.assert_allclose(units, units.round(), atol=1e-6)
    span = np.ptp(exact, axis=0)
    assert (steps <= span / 100).all()
    assert (steps > span / 1001).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_says_what_it_holds(kind: str, tmp_path: Path) -> None:
    sent(tmp_path / "m.json", kind)
    said = font.explain(tmp_path / "m.json")
    words = {"k-means": "K-means", "latent class": "latent class model"}
    assert words.get(kind, "Gaussian mixture") in said
    assert ("joints" if kind == "latent class" else "das28") in said
    assert "Everything in the file" in font.explain_page(tmp_path / "m.json")


@pytest.mark.parametrize("kind", ["k-means", "full", "latent class"])
def test_a_whole_round(kind: str, tmp_path: Path) -> None:
    make, draws = answers if kind == "latent class" else numbers, np.random.default_rng(1)
    for seed, site in enumerate(("north", "south")):
        data = make(seed + 1)
        model = {
            "k-means": font.SklearnModel(KMeans(2, n_init=3, random_state=1)),
            "full": font.SklearnModel(GaussianMixture(2, random_state=1)),
            "latent class": font.LatentClass(2, seed=1),
        }[kind].fit(data)
        header = font.Header(study="ra", site=site)
        font.write_model(tmp_path / f"{site}.json", model, data, header, draws=draws)
    files = font.read_models(tmp_path.glob("*.json"), font.Header(study="ra"))
    models = {name: file.model for name, file in files.items()}
    labels = {}
    for seed, site in enumerate(("north", "south")):
        labels[site] = font.label(models, make(seed + 1))
        own = font.CrossTables.from_labels({site: labels[site]}, dict.fromkeys(models, 2))
        font.write_labels(
            tmp_path / f"{site}.labels", own, files, font.Header(study="ra", site=site), draws=draws
        )
    parts = [font.read_labels(p, files) for p in sorted(tmp_path.glob("*.labels"))]
    ensemble, _ = font.combine(files, parts, n_clusters=2)
    font.write_ensemble(tmp_path / "e", ensemble, files, font.Header(study="ra"))
    result = font.read_ensemble(tmp_path / "e", font.Header(study="ra"))
    together = font.Ensemble(2, seed=1).fit(models, labels)
    for site, table in labels.items():
        again = font.label({n: f.model for n, f in result.models.items()}, make(1 + (site > "o")))
        assert (again.to_numpy() == table.to_numpy()).all()
        ours, theirs = result.ensemble.predict(table), together.predict(table)
        same = (ours == theirs).mean()
        assert max(same, 1 - same) > 0.9


HOSTILE = {
    "code": ("k-means", {"class": "os.system"}, "payload.model.class"),
    "another kind's field": ("k-means", {"means": [[0.0]]}, "payload.model.means"),
    "unknown kind": ("k-means", {"format": "sklearn.svm"}, "'sklearn.svm' is unknown"),
    "short centres": ("k-means", {"centres": [[1.0, 2.0, 3.0]]}, r"centres have the shape \(1, 3"),
    "ragged centres": ("k-means", {"centres": [[1.0], [1.0, 2.0]]}, "unequal length"),
    "infinite": ("k-means", {"centres": [[1e300, 0.0, 0.0]] * 3}, "payload.model.centres"),
    "column twice": ("k-means", {"variables": ["a", "a", "b"]}, "with repeats"),
    "small class": ("k-means", {"patients": [0, 11, 11]}, "0 patients, fewer"),
    "exact class": ("k-means", {"patients": [132, 134, 121]}, "count 134, not a multiple"),
    "no precision": ("k-means", {"precision": [1.0, 1.0, 0.0]}, "payload.model.precision"),
    "short precision": ("k-means", {"precision": [1.0]}, "precision have the shape"),
    "not positive": ("full", {"covariances": [[[0.0] * 3] * 3] * 3}, "not positive definite"),
    "not symmetric": (
        "tied",
        {"covariances": [[[4.0, 1, 0], [0.5, 4.0, 0], [0, 0, 4.0]]]},
        "not symmetric",
    ),
    "other type": ("full", {"covariance_type": "diag"}, "covariances have the shape"),
    "no variance": (
        "diag",
        {"covariances": [[[1.0, 0.0, 1.0]]] * 3},
        "variance not above 0",
    ),
    "answers": ("latent class", {"answers": [[5] * 7] * 2}, "count 5, not a multiple"),
    "one class": ("latent class", {"answers": [[11] * 7]}, "shape"),
    "work": (
        "k-means",
        {
            "patients": [11] * 100,
            "variables": [f"x{i}" for i in range(1_000)],
            "centres": [[0.0] * 1_000] * 100,
            "precision": [1.0] * 1_000,
        },
        "more than can be compared",
    ),
    "large matrices": (
        "full",
        {
            "patients": [330],
            "variables": [f"x{i}" for i in range(500)],
            "means": [[0.0] * 500],
            "precision": [1.0] * 500,
            "covariances": [np.eye(500).tolist()],
        },
        "1 covariance matrices of 500 variables are more than can be solved",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_model_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    kind, change, message = HOSTILE[case]
    sent(tmp_path / "m.json", kind)
    content = json.loads((tmp_path / "m.json").read_text())
    content["payload"]["model"] |= copy.deepcopy(change)
    content["sha256"] = fingerprint(content["payload"])
    (tmp_path / "m.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as refusal:
        font.read_model(tmp_path / "m.json")
    assert "\n" not in str(refusal.value)


def largest(k: int, d: int) -> dict[str, Any]:
    """A Gaussian mixture as large as the limits let it be."""
    return {
        "patients": [110] * k,
        "variables": [f"x{i}" for i in range(d)],
        "means": [[0.5] * d] * k,
        "precision": [0.1] * d,
        "covariances": [np.eye(d).tolist()] * k,
    }


@pytest.mark.bench
@pytest.mark.parametrize(("k", "d"), [(1, 460), (3, 300), (8, 200)])
def test_the_largest_mixtures_that_are_read_take_a_second_and_200_mb(
    k: int, d: int, tmp_path: Path
) -> None:
    sent(tmp_path / "m.json", "full")
    content = json.loads((tmp_path / "m.json").read_text())
    content["payload"]["model"] |= largest(k, d)
    content["sha256"] = fingerprint(content["payload"])
    data = json.dumps(content).encode()
    font.read_model(tmp_path / "m.json").model  # noqa: B018  what is imported on first use
    start = time.process_time()
    assert font.read_model(data).model is not None
    assert time.process_time() - start < 1
    tracemalloc.start()
    try:
        assert font.read_model(data).model is not None
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()


def test_what_may_not_leave_is_not_written(tmp_path: Path) -> None:
    model, data = fitted("k-means")
    path = tmp_path / "m.json"
    with pytest.raises(InputError, match="fewer than 300 patients"):
        font.write_model(path, model, data, HEADER, min_count=300)
    bayes = BayesianGaussianMixture(n_components=2, random_state=1).fit(data)
    with pytest.raises(InputError, match="a fitted BayesianGaussianMixture cannot be exchanged"):
        font.write_model(path, bayes, data, HEADER)
    rare = answers()
    rare.loc[0, "erosions"] = "see letter of Dr Smith"
    with_name = font.LatentClass(2, seed=1).fit(rare)
    with pytest.raises(InputError, match=r"1 patients gave .*join it with other answers"):
        font.write_model(path, with_name, rare, HEADER)
    assert list(tmp_path.iterdir()) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**17) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("kinds")
    for kind in KINDS:
        sent(folder / kind, kind)
    return {kind: json.loads((folder / kind).read_text()) for kind in KINDS}


@settings(max_examples=300)
@given(st.sampled_from(KINDS), st.data())
def test_fuzz_one_place_of_a_model(
    contents: dict[str, dict], kind: str, data: st.DataObject
) -> None:
    """A changed file is refused, or gives a model that can label."""
    content = copy.deepcopy(contents[kind])
    spot: Any = content["payload"]["model"]
    while True:
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(spot[key], (dict, list)) and spot[key] and data.draw(st.integers(0, 5)):
            spot = spot[key]
            continue
        spot[key] = data.draw(JSON)
        break
    try:
        content["sha256"] = fingerprint(content["payload"])
    except ValueError:  # a number that JSON does not have
        return
    try:
        file = font.read_model(json.dumps(content).encode())
    except InputError:
        return
    table = answers() if kind == "latent class" else numbers()
    # items or answers that the data do not have are refused
    allowed = suppress(ValueError) if kind == "latent class" else nullcontext()
    with allowed:
        assert len(file.model.predict(table)) == len(table)
