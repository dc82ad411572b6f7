"""The three packages together: two sites, resampled models, one clustering, new patients."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from ra_like import PARAMS, STATES
from sklearn.metrics import adjusted_rand_score

import ehr_prep
import font
import mmlca
from font.exchange.messages.ensemble import ensemble_content, ensemble_from


@pytest.fixture(scope="module")
def study() -> dict[str, dict[str, object]]:
    """Two sites with other class proportions; everything up to the clusters."""
    sequences, truth = {}, {}
    for site, n, weights in (
        ("MGB", 1500, [0.65, 0.12, 0.13, 0.10]),
        ("VA", 2000, [0.64, 0.17, 0.10, 0.09]),
    ):
        params = mmlca.MarkovParams(weights, PARAMS.initial, PARAMS.transition)
        sequences[site], truth[site] = mmlca.simulate(params, n, 16, states=STATES, seed=n)
    resamples = ehr_prep.pseudo_sites(sequences, n_per_site=4, fraction=0.8, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {
            name: mmlca.MixtureMarkov(4, n_init=12, seed=1).fit(data)
            for name, data in resamples.items()
        }
    labels = {site: font.label(models, data) for site, data in sequences.items()}
    patterns = font.LabelPatterns.from_labels(labels)
    ensemble = font.Ensemble(4, seed=1).fit(models, patterns)
    clusters = {site: ensemble.predict(table) for site, table in labels.items()}
    return {
        "sequences": sequences,
        "truth": truth,
        "models": models,
        "labels": labels,
        "ensemble": {"it": ensemble},
        "clusters": clusters,
    }


def pooled(parts: dict[str, pd.Series]) -> np.ndarray:
    return np.concatenate([np.asarray(part) for part in parts.values()])


def test_the_ensemble_finds_the_courses(study: dict[str, dict[str, object]]) -> None:
    truth, clusters = pooled(study["truth"]), pooled(study["clusters"])  # type: ignore[arg-type]
    assert list(study["models"]) == [f"{site}/{i}" for site in ("MGB", "VA") for i in range(1, 5)]
    found = adjusted_rand_score(truth, clusters)
    oracle = mmlca.MixtureMarkov(4, init=PARAMS, max_iter=0, tol=0)
    everyone = mmlca.Sequences.concat(study["sequences"])  # type: ignore[arg-type]
    best = adjusted_rand_score(truth, oracle.fit(everyone).predict(everyone))
    assert found > best - 0.03
    assert found > 0.8


def test_every_original_patient_has_one_cluster(study: dict[str, dict[str, object]]) -> None:
    for site, data in study["sequences"].items():
        table = study["labels"][site]
        assert table.index.equals(data.ids)  # type: ignore[attr-defined]
        assert table.shape[1] == 8  # type: ignore[attr-defined]
        assert study["clusters"][site].index.equals(data.ids)  # type: ignore[attr-defined]


def test_new_patients_from_the_files_alone(study: dict[str, dict[str, object]]) -> None:
    ensemble = study["ensemble"]["it"]
    stored = json.loads(json.dumps(ensemble_content(ensemble)))  # type: ignore[arg-type]
    models = {
        name: mmlca.MixtureMarkov.from_dict(json.loads(json.dumps(model.to_dict())))  # type: ignore[attr-defined]
        for name, model in study["models"].items()
    }
    new, truth = mmlca.simulate(PARAMS, 500, 16, states=STATES, seed=9)
    labels = font.label(models, new)
    again = ensemble_from(stored)
    assert (again.predict(labels) == ensemble.predict(labels)).all()  # type: ignore[attr-defined]
    assert adjusted_rand_score(truth, again.predict(labels)) > 0.75
    assert again.confidence(labels)["vote_share"].mean() > 0.9


def test_the_estimator_is_a_local_model(study: dict[str, dict[str, object]]) -> None:
    model = study["models"]["VA/1"]
    assert isinstance(model, font.LocalModel)
    assert model.class_parameters_.shape == (4, 5 + 25)  # type: ignore[attr-defined]
