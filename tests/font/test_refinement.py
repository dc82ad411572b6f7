"""Refinement: each family's sums against a naive version, the steps against a naive EM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

import font
from font.errors import InputError
from font.models import SklearnModel, kmeans_at
from font.refinement import first_sums, site_step

FORMS = ("full", "tied", "diag", "spherical")


def two_sites(seed: int = 0, far: float = 2.0) -> dict[str, np.ndarray]:
    """Two groups in the plane, equally common at A, 9 : 1 at B."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [far, far]])
    return {
        site: centres[np.repeat([0, 1], sizes)] + rng.normal(size=(sum(sizes), 2))
        for site, sizes in (("A", (80, 80)), ("B", (135, 15)))
    }


def ensemble_of(data: dict[str, Any], model: Any = None) -> tuple[font.Ensemble, dict[str, Any]]:
    make = model or (lambda x: KMeans(2, n_init=5, random_state=1).fit(x))
    models = {site: make(x) for site, x in data.items()}
    labels = {site: font.label(models, x) for site, x in data.items()}
    return font.Ensemble(2, seed=1).fit(models, labels), models


def mixture(form: str) -> Any:
    return lambda x: GaussianMixture(2, covariance_type=form, random_state=1).fit(x)


# --- the families ------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_gaussian_sums_are_scikit_learns_update(form: str, shift: float) -> None:
    x = two_sites()["A"] + shift
    member = np.random.default_rng(1).dirichlet(np.ones(2), len(x))
    model = SklearnModel(mixture(form)(x))
    again = model.from_statistics(model.statistics(x, member)).estimator
    textbook = GaussianMixture(2, covariance_type=form)
    # the M-step from given memberships; scikit-learn's own loses digits far from zero
    textbook._initialize(x - shift, member)
    assert again.weights_ == pytest.approx(textbook.weights_ / textbook.weights_.sum())
    assert again.means_ - shift == pytest.approx(textbook.means_, abs=1e-8)
    assert again.covariances_ == pytest.approx(textbook.covariances_, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_gaussian_log_likelihoods_are_scipys(form: str) -> None:
    x = two_sites()["A"]
    inner = mixture(form)(x)
    full = {
        "full": lambda k: inner.covariances_[k],
        "tied": lambda k: inner.covariances_,
        "diag": lambda k: np.diag(inner.covariances_[k]),
        "spherical": lambda k: inner.covariances_[k] * np.eye(2),
    }[form]
    expected = [multivariate_normal(inner.means_[k], full(k)).logpdf(x) for k in range(2)]
    assert SklearnModel(inner).log_likelihoods(x) == pytest.approx(np.transpose(expected))


def test_kmeans_is_a_mixture_with_one_variance() -> None:
    x = two_sites()["A"]
    model = SklearnModel(KMeans(2, n_init=5, random_state=1).fit(x))
    labels = np.eye(2)[model.predict(x)]
    again = model.from_statistics(model.statistics(x, labels))
    assert again.class_parameters_ == pytest.approx(model.class_parameters_)
    variance = model.estimator.inertia_ / x.size
    far = ((x[:, None] - model.class_parameters_) ** 2).sum(axis=2)
    expected = -0.5 * far / variance - np.log(2 * np.pi * variance)
    assert again.log_likelihoods(x) == pytest.approx(expected)
    assert model.log_likelihoods(x) == pytest.approx(expected)
    with pytest.raises(ValueError, match="how far"):
        SklearnModel(kmeans_at(model.class_parameters_)).log_likelihoods(x)


def test_latent_class_sums_are_one_update_of_em() -> None:
    rng = np.random.default_rng(3)
    answers = pd.DataFrame(rng.choice(["y", "n", None], (60, 3), p=[0.5, 0.4, 0.1]))
    model = font.LatentClass(2, n_init=3, prior=0.4, seed=1).fit(answers)
    member = model.predict_proba(answers)
    total = model.statistics(answers, member)
    again = model.from_statistics(total)
    for k in range(2):
        for j in range(3):
            said = [(member[:, k] * (answers[j] == c)).sum() for c in ("n", "y")]
            share = (np.array(said) + 0.2) / (sum(said) + 0.4)
            assert again.class_parameters_[k, 2 * j : 2 * j + 2] == pytest.approx(share)
    logs = model.log_likelihoods(answers)
    joint = logs + np.log(model.weights_)
    assert np.logaddexp.reduce(joint, axis=1).sum() == pytest.approx(model.loglik_)


# --- the steps --------------------------------------------------------------------------


def test_steps_by_a_naive_version() -> None:
    data = two_sites()
    ensemble, models = ensemble_of(data)
    everyone = np.concatenate(list(data.values()))
    site = np.repeat([0, 1], [len(x) for x in data.values()])
    clusters = np.concatenate(
        [ensemble.predict(font.label(models, x)).to_numpy() for x in data.values()]
    )
    member = np.eye(2)[clusters]
    for steps in range(3):
        centres = (member.T @ everyone) / member.sum(axis=0)[:, None]
        far = ((everyone[:, None] - centres) ** 2).sum(axis=2)
        variance = (member * far).sum() / everyone.size
        density = np.exp(-0.5 * far / variance) / (2 * np.pi * variance)
        pi = np.full((2, 2), 0.5)
        for _ in range(1000):
            joint = pi[site] * density
            member = joint / joint.sum(axis=1, keepdims=True)
            pi = np.array([member[site == s].mean(axis=0) for s in (0, 1)])
        result = font.refine(ensemble, models, data, rounds=steps)
        assert result.class_parameters_ == pytest.approx(centres)
        assert result.proportions_.to_numpy() == pytest.approx(pi, abs=1e-6)
        assert result.loglik_path_[-1] == pytest.approx(np.log(joint.sum(axis=1)).sum())
        shares = np.concatenate([result.predict_proba(x, s) for s, x in data.items()])
        assert shares == pytest.approx(member, abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_the_likelihood_never_falls_and_sites_keep_their_proportions(form: str) -> None:
    data = two_sites(far=2.5)
    ensemble, models = ensemble_of(data, mixture(form))
    result = font.refine(ensemble, models, data, rounds="converge")
    assert (np.diff(result.penalised_path_) > -1e-7).all()
    assert result.converged_
    assert result.n_steps_ == len(result.loglik_path_) - 1
    assert result.proportions_.loc["A"].max() < 0.65
    assert result.proportions_.loc["B"].max() > 0.8
    further = font.refine(ensemble, models, data, rounds=result.n_steps_ + 5)
    assert further.class_parameters_ == pytest.approx(result.class_parameters_, abs=1e-3)


def test_held_out_patients_choose_the_number_of_steps() -> None:
    """Against a naive version: every number of steps by itself, likelihoods by scipy."""
    data = two_sites(far=1.5)
    ensemble, models = ensemble_of(data, mixture("spherical"))
    result = font.refine(ensemble, models, data, rounds="held-out", seed=4)
    rng = np.random.default_rng(4)
    out = {site: rng.permutation(len(x)) < round(0.2 * len(x)) for site, x in data.items()}
    inside = {site: x[~out[site]] for site, x in data.items()}
    path = []
    for steps in range(len(result.held_out_path_)):
        refined = font.refine(ensemble, models, inside, rounds=steps)
        inner, total = refined.model_.estimator, 0.0
        for site, x in data.items():
            density = sum(
                refined.proportions_.at[site, k]
                * multivariate_normal(inner.means_[k], inner.covariances_[k] * np.eye(2)).pdf(
                    x[out[site]]
                )
                for k in range(2)
            )
            total += np.log(density).sum()
        path.append(total / sum(part.sum() for part in out.values()))
    assert result.held_out_path_ == pytest.approx(np.array(path))
    best = int(np.argmax(path))
    assert 0 < best == len(path) - 2  # one step more lowered it
    assert result.n_steps_ == best < font.refine(ensemble, models, data, "converge").n_steps_
    same = font.refine(ensemble, models, data, rounds=best)
    pd.testing.assert_frame_equal(result.proportions_, same.proportions_)
    again = font.refine(ensemble, models, data, rounds="held-out", seed=4)
    assert (again.held_out_path_ == result.held_out_path_).all()
    assert len(same.held_out_path_) == 0
    with pytest.raises(ValueError, match='unless "converge" or "held-out"'):
        font.refine(ensemble, models, data, rounds="best")


def test_latent_classes_converge_to_one_fit_where_sites_are_alike() -> None:
    rng = np.random.default_rng(5)
    true = rng.integers(2, size=600)
    answers = pd.DataFrame(
        {f"q{j}": np.where(rng.random(600) < np.where(true, 0.9, 0.15), "y", "n") for j in range(5)}
    )
    data = {"A": answers[:300], "B": answers[300:]}
    ensemble, models = ensemble_of(data, lambda x: font.LatentClass(2, n_init=3, seed=1).fit(x))
    result = font.refine(ensemble, models, {"all": answers}, rounds="converge")
    pooled = font.LatentClass(2, seed=1, tol=1e-12, max_iter=5000).fit(answers)
    order = np.argsort(-result.proportions_.loc["all"].to_numpy())
    assert result.class_parameters_[order] == pytest.approx(pooled.class_parameters_, abs=1e-3)
    assert result.loglik_path_[-1] == pytest.approx(pooled.loglik_, abs=1e-3)


def test_a_new_sites_proportions_are_estimated() -> None:
    data = two_sites()
    ensemble, models = ensemble_of(data)
    result = font.refine(ensemble, models, data)
    new = two_sites(seed=9)["B"]
    estimated = site_step(result.model_, new)
    assert result.predict_proba(new, "C").to_numpy() == pytest.approx(estimated.membership)
    assert result.predict_proba(new).to_numpy() == pytest.approx(estimated.membership)
    assert not np.allclose(result.predict_proba(new, "A"), estimated.membership, atol=0.01)
    assert (result.predict(new, "A") == result.predict_proba(new, "A").idxmax(axis=1)).all()


def test_ids_and_numbers_of_clusters_stay() -> None:
    frames = {
        s: pd.DataFrame(x, index=[f"{s}{i}" for i in range(len(x))])
        for s, x in two_sites(far=6).items()
    }
    ensemble, models = ensemble_of(
        frames, lambda x: KMeans(2, n_init=5, random_state=1).fit(x.to_numpy())
    )
    result = font.refine(ensemble, models, frames)
    for site, frame in frames.items():
        published = ensemble.predict(font.label(models, frame))
        assert (result.predict(frame, site) == published).mean() > 0.98
        assert result.predict(frame, site).index.equals(frame.index)
    assert result.predict(frames["A"][:0], "A").empty


def test_sums_of_sites_add_up_to_those_of_all() -> None:
    data = two_sites()
    ensemble, models = ensemble_of(data, mixture("full"))
    template = SklearnModel(models["A"])
    clusters = {s: ensemble.predict(font.label(models, x)).to_numpy() for s, x in data.items()}
    parts = sum(first_sums(template, x, clusters[s], 2) for s, x in data.items())
    whole = first_sums(
        template, np.concatenate(list(data.values())), np.concatenate(list(clusters.values())), 2
    )
    assert parts == pytest.approx(whole)


# --- what cannot be refined --------------------------------------------------------------


def test_input_that_cannot_be_refined() -> None:
    data = two_sites()
    ensemble, models = ensemble_of(data)
    with pytest.raises(ValueError, match="rounds"):
        font.refine(ensemble, models, data, rounds=-1)
    with pytest.raises(ValueError, match="rounds"):
        font.refine(ensemble, models, data, rounds="forever")
    with pytest.raises(TypeError, match="dict"):
        font.refine(ensemble, models, data["A"])
    with pytest.raises(ValueError, match=r"'C'.*no patients"):
        font.refine(ensemble, models, data | {"C": np.zeros((0, 2))})
    with pytest.raises(InputError, match="need the methods"):
        font.refine(ensemble, {"A": np.eye(2), "B": np.eye(2)}, data)
    with pytest.raises(InputError, match="different families"):
        font.refine(ensemble, {"A": models["A"], "B": mixture("full")(data["B"])}, data)
    one_group = {"A": data["A"][:3] * 0}
    with pytest.raises(ValueError, match="have no patients"):
        font.refine(ensemble, models, one_group)
    with pytest.raises(ValueError, match="missing or infinite"):
        SklearnModel(models["A"]).log_likelihoods(data["A"] * np.nan)


def test_refinement_that_runs_out_of_steps_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("font.refinement._MOST_STEPS", 1)
    data = two_sites()
    ensemble, models = ensemble_of(data)
    with pytest.warns(UserWarning, match="not converged after 1 steps"):
        font.refine(ensemble, models, data, rounds="converge")


def test_a_step_that_lowers_the_likelihood_is_taken_back() -> None:
    """A family whose update is wrong from the second on: the result is that of the first step."""

    class Drifting(SklearnModel):
        updates = 0

        def from_statistics(self, total: Any) -> Any:
            model = super().from_statistics(total)
            Drifting.updates += 1
            if Drifting.updates > 4:  # two sites' models of one class, the beginning, one step
                model.estimator.means_ = model.estimator.means_ + 3
            return model

    data = two_sites()
    ensemble, models = ensemble_of(data, lambda x: Drifting(mixture("full")(x)))
    with pytest.warns(UserWarning, match="step 2 lowered the log-likelihood from"):
        result = font.refine(ensemble, models, data, rounds=5)
    assert result.n_steps_ == 1
    assert result.loglik_path_[1] > result.loglik_path_[0]
    plain = {site: model.estimator for site, model in models.items()}
    right = font.refine(ensemble, plain, data, rounds=1)
    assert result.class_parameters_ == pytest.approx(right.class_parameters_)


def test_models_must_be_those_of_the_ensemble() -> None:
    data = two_sites()
    ensemble, models = ensemble_of(data)
    three = KMeans(3, n_init=1, random_state=1).fit(data["A"])
    for ours, other, words in [
        (font.Ensemble(2), models, "not fitted"),
        (ensemble, {"A": models["A"]}, "made with the models 'A', 'B'; found 'A'"),
        (ensemble, models | {"A": three}, "'A' have other numbers of classes"),
    ]:
        with pytest.raises(ValueError, match=words):
            font.refine(ours, other, data)
    with pytest.raises(TypeError, match="found an empty one"):
        font.refine(ensemble, models, {})


def test_counts_below_zero_are_refused() -> None:
    rows = pd.DataFrame({"a": [0, 1] * 10, "b": [0, 0, 1, 1] * 5})
    model = font.LatentClass(2, n_init=2, seed=1).fit(rows)
    sums = model.statistics(rows, np.full((20, 2), 0.5))
    sums[1, 2] = -1.0
    with pytest.raises(ValueError, match="counts 0 or more"):
        model.from_statistics(sums)
