"""Models other than Markov chains go through files and label as before."""

from __future__ import annotations

import copy
import json
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
from font.schema import fingerprint

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


KINDS = ("k-means", "full", "tied", "diag", "spherical", "latent class")


def sent(path: Path | None, kind: str, **settings: Any) -> font.ModelFile:
    model, data = fitted(kind)
    names = None if kind == "latent class" else COLUMNS
    settings = {"study": "ra", "site": "north", "variables": names} | settings
    return font.write_model(path, model, support=np.bincount(model.predict(data)), **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unrounded_model_labels_bit_for_bit_the_same(kind: str, tmp_path: Path) -> None:
    model, data = fitted(kind)
    sent(tmp_path / "m.json", kind, digits=None)
    file = font.read_model(tmp_path / "m.json", study="ra")
    new = answers(2) if kind == "latent class" else numbers(2)
    for table in (data, new):
        assert (file.model.predict(table) == model.predict(table)).all()
    if kind != "k-means":
        assert (file.model.predict_proba(new) == model.predict_proba(new)).all()
    parameters = getattr(model, "class_parameters_", getattr(model, "means_", None))
    assert (file.class_parameters_ == parameters).all()
    assert file.n_classes == len(parameters)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rounded_model_is_the_same_for_sender_and_receiver(kind: str, tmp_path: Path) -> None:
    model, data = fitted(kind)
    mine = sent(tmp_path / "m.json", kind)
    yours = font.read_model(tmp_path / "m.json")
    assert yours.fingerprint == mine.fingerprint
    assert (mine.model.predict(data) == yours.model.predict(data)).all()
    assert (mine.model.predict(data) == model.predict(data)).mean() > 0.99
    parameters = getattr(model, "class_parameters_", getattr(model, "means_", None))
    assert mine.class_parameters_ == pytest.approx(parameters, rel=1e-5, abs=2e-6)


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
    make = answers if kind == "latent class" else numbers
    models, tables = {}, {}
    for seed, site in enumerate(("north", "south")):
        data = make(seed + 1)
        model = {
            "k-means": font.SklearnModel(KMeans(2, n_init=3, random_state=1)),
            "full": font.SklearnModel(GaussianMixture(2, random_state=1)),
            "latent class": font.LatentClass(2, seed=1),
        }[kind].fit(data)
        font.write_model(
            tmp_path / f"{site}.json",
            model,
            study="ra",
            site=site,
            support=np.bincount(model.predict(data)),
        )
    files = font.read_models(tmp_path.glob("*.json"), study="ra")
    models = {name: file.model for name, file in files.items()}
    for seed, site in enumerate(("north", "south")):
        tables[site] = font.label(models, make(seed + 1))
        own = font.LabelPatterns.from_labels({site: tables[site]})
        font.write_labels(tmp_path / f"{site}.labels", own, files, study="ra")
    counts = [font.read_labels(p, files) for p in sorted(tmp_path.glob("*.labels"))]
    ensemble = font.Ensemble(2, seed=1).fit(files, font.LabelPatterns.merge(counts))
    font.write_ensemble(tmp_path / "e", ensemble, files, study="ra")
    result = font.read_ensemble(tmp_path / "e", study="ra")
    together = font.Ensemble(2, seed=1).fit(models, tables)
    for site, table in tables.items():
        again = font.label({n: f.model for n, f in result.models.items()}, make(1 + (site > "o")))
        assert (again.to_numpy() == table.to_numpy()).all()
        assert (result.ensemble.predict(table) == together.predict(table)).mean() > 0.98


HOSTILE = {
    "code": ("k-means", {"class": "os.system"}, "payload.model.class"),
    "another kind's field": ("k-means", {"means": [[0.0]]}, "payload.model.means"),
    "unknown kind": ("k-means", {"format": "sklearn.svm"}, "payload.model "),
    "short centres": ("k-means", {"centres": [[1.0, 2.0, 3.0]]}, r"centres have the shape \(1, 3"),
    "ragged centres": ("k-means", {"centres": [[1.0], [1.0, 2.0]]}, "unequal length"),
    "infinite": ("k-means", {"centres": [[1e300, 0.0, 0.0]] * 3}, "payload.model.centres"),
    "column twice": ("k-means", {"variables": ["a", "a", "b"]}, "not distinct"),
    "rare class": ("k-means", {"weights": [0.49, 0.5, 0.01]}, "4.0 patients, fewer"),
    "weights": ("full", {"weights": [0.5, 0.2, 0.2]}, "weights sum to 0.9"),
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
        "variance that is not above 0",
    ),
    "answers": ("latent class", {"probabilities": [[0.5] * 7] * 2}, "sum to 1.5"),
    "one class": ("latent class", {"probabilities": [[0.5] * 7]}, "shape"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_model_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    kind, change, message = HOSTILE[case]
    sent(tmp_path / "m.json", kind)
    content = json.loads((tmp_path / "m.json").read_text())
    content["payload"]["model"] |= copy.deepcopy(change)
    content["sha256"] = fingerprint(content["payload"])
    (tmp_path / "m.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as refusal:
        font.read_model(tmp_path / "m.json")
    assert "\n" not in str(refusal.value)


def test_what_may_not_leave_is_not_written(tmp_path: Path) -> None:
    model, data = fitted("k-means")
    path, said = tmp_path / "m.json", {"study": "ra", "site": "north"}
    with pytest.raises(ValueError, match="how many patients each of the 3 classes has"):
        font.write_model(path, model, **said)
    with pytest.raises(ValueError, match=r"about 5\.0 patients, fewer than 11"):
        font.write_model(path, model, support=[200, 195, 5], **said)
    with pytest.raises(ValueError, match="names 1 columns, the model has 3"):
        font.write_model(path, model, support=[200, 100, 100], variables=["a"], **said)
    bayes = font.SklearnModel(BayesianGaussianMixture(n_components=2, random_state=1)).fit(data)
    with pytest.raises(ValueError, match="BayesianGaussianMixture cannot be exchanged"):
        font.write_model(path, bayes, support=[200, 200], **said)
    rare = answers()
    rare.loc[0, "erosions"] = "see letter of Dr Smith"
    with_name = font.LatentClass(2, seed=1).fit(rare)
    with pytest.raises(ValueError, match="fewer than 11, and such answers have to be joined"):
        font.write_model(path, with_name, support=[200, 200], **said)
    assert list(tmp_path.iterdir()) == []


def test_a_mixture_of_markov_chains_is_built_by_its_own_package() -> None:
    file = font.ModelFile("s", "x", "x", "0", {"model": {"format": "mmlca model"}})
    with pytest.raises(TypeError, match=r"MixtureMarkov\.from_dict"):
        file.model  # noqa: B018


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
    """A changed file is refused with a ValueError, or gives a model that can label."""
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
        file = font.read_model(json.dumps(content).encode())
    except ValueError:
        return
    table = answers() if kind == "latent class" else numbers()
    # items or answers that the data do not have are refused
    allowed = suppress(ValueError) if kind == "latent class" else nullcontext()
    with allowed:
        assert len(file.model.predict(table)) == len(table)
