"""Class proportions by group: against a naive EM, and against the refinement between sites."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from oracle import random_params

import font
import mmlca
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate

CHAINS = MarkovParams(
    [0.5, 0.5],
    [[0.8, 0.2], [0.3, 0.7]],
    [[[0.85, 0.15], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]]],
)
SHARES = {"north": (0.9, 0.1), "south": (0.25, 0.75), "west": (0.5, 0.5)}


def three_sites(n: int = 300, length: int = 10, seed: int = 1) -> dict[str, Sequences]:
    return {
        site: simulate(
            MarkovParams(share, CHAINS.initial, CHAINS.transition), n, length, seed=seed + i
        )[0]
        for i, (site, share) in enumerate(SHARES.items())
    }


def joined(sites: dict[str, Sequences]) -> tuple[Sequences, np.ndarray]:
    return Sequences.concat(sites), np.repeat(list(sites), [len(x) for x in sites.values()])


@pytest.mark.parametrize("prior", [0.0, 0.3])
def test_em_with_groups_by_a_naive_version(prior: float) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 3, size=(50, 5))
    weights, group = rng.uniform(0.5, 2, 50), rng.integers(0, 3, 50)
    data, p = Sequences.from_codes(codes, range(3), weights=weights), random_params(2, 3, 1)
    pi, initial, steps = np.tile(p.weights, (3, 1)), p.initial, p.transition
    path = []
    for _ in range(4):
        likelihood = np.array(
            [
                [initial[k, row[0]] * np.prod(steps[k, row[:-1], row[1:]]) for k in range(2)]
                for row in codes
            ]
        )
        joint = pi[group] * likelihood
        path.append(weights @ np.log(joint.sum(axis=1)))
        member = weights[:, None] * joint / joint.sum(axis=1, keepdims=True)
        counts = np.array([member[group == g].sum(axis=0) + prior for g in range(3)])
        pi = counts / counts.sum(axis=1, keepdims=True)
        first, moves = np.full((2, 3), prior), np.full((2, 3, 3), prior)
        for row, r in zip(codes, member, strict=True):
            first[:, row[0]] += r
            for i, j in zip(row[:-1], row[1:], strict=True):
                moves[:, i, j] += r
        initial = first / first.sum(axis=1, keepdims=True)
        steps = moves / moves.sum(axis=2, keepdims=True)
    model = MixtureMarkov(2, init=p, prior=prior, max_iter=4, tol=0, accelerate=False)
    model.fit(data, groups=group)
    order = np.argsort(-member.sum(axis=0))
    assert model.loglik_path_[:4] == pytest.approx(path)
    assert model.group_weights_.to_numpy() == pytest.approx(pi[:, order])
    assert model.params_.initial == pytest.approx(initial[order])
    assert model.params_.transition == pytest.approx(steps[order])
    assert list(model.group_weights_.index) == [0, 1, 2]
    joint = model.group_weights_.to_numpy()[group] * np.exp(model.log_likelihoods(data))
    expected = joint / joint.sum(axis=1, keepdims=True)
    assert model.predict_proba(data, groups=group) == pytest.approx(expected)
    assert model.posterior_["probability"].to_numpy() == pytest.approx(expected.max(axis=1))
    assert (model.labels_ == model.predict(data, groups=group)).all()
    total = model.score(data, groups=group) * weights.sum()
    assert total == pytest.approx(model.loglik_)


@pytest.mark.parametrize("prior", [0.0, 0.5])
def test_refining_to_convergence_is_one_fit_with_groups(prior: float) -> None:
    sites = three_sites()
    models = {s: MixtureMarkov(2, n_init=6, prior=prior, seed=1).fit(x) for s, x in sites.items()}
    labels = {site: font.label(models, x) for site, x in sites.items()}
    ensemble = font.Ensemble(2, seed=1).fit(models, labels)
    refined = font.refine(ensemble, models, sites, rounds="converge")
    data, group = joined(sites)
    model = MixtureMarkov(2, n_init=6, prior=prior, seed=2, tol=1e-9).fit(data, groups=group)
    order = np.argsort(-refined.params_.weights)
    assert refined.loglik_path_[-1] == pytest.approx(model.loglik_, abs=1e-4)
    assert refined.penalised_path_[-1] == pytest.approx(model.penalised_path_[-1], abs=1e-4)
    shares = refined.proportions_.to_numpy()[:, order]
    assert shares == pytest.approx(model.group_weights_.loc[list(sites)].to_numpy(), abs=1e-3)
    assert refined.class_parameters_[order] == pytest.approx(model.class_parameters_, abs=1e-3)
    assert (np.diff(refined.penalised_path_) > -1e-8).all()


def test_groups_recover_their_proportions_and_count_in_the_criteria() -> None:
    data, group = joined(three_sites(n=600, length=16))
    by_id = pd.Series(group, index=data.ids).sample(frac=1, random_state=1)
    model = MixtureMarkov(2, n_init=6, seed=1).fit(data, groups=by_id)
    plain = MixtureMarkov(2, n_init=6, seed=1).fit(data)
    order = np.argsort(-model.params_.transition[:, 0, 0])  # the first chain stays in state 0 more
    for site, share in SHARES.items():
        assert model.group_weights_.loc[site].to_numpy()[order] == pytest.approx(share, abs=0.06)
    assert model.n_parameters_ == plain.n_parameters_ + 2
    assert model.loglik_ > plain.loglik_
    assert model.bic() < plain.bic()
    assert model.weights_.sum() == pytest.approx(1)
    assert model.weights_.to_numpy() == pytest.approx(model.group_weights_.mean().to_numpy())
    assert "weight in north" in model.summary()
    assert (np.diff(model.penalised_path_) > -1e-9).all()


def test_one_group_is_none_to_the_bit() -> None:
    data = three_sites()["north"]
    one = MixtureMarkov(2, n_init=4, seed=1).fit(data, groups=["a"] * len(data))
    none = MixtureMarkov(2, n_init=4, seed=1).fit(data)
    assert one.params_ == none.params_
    assert one.bic() == none.bic()
    assert none.group_weights_.empty


def test_groups_many_patterns_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmlca.model.search._SCREEN", 50)  # search on a sample of patients
    data, group = joined(three_sites())
    fits = [MixtureMarkov(3, n_init=4, seed=1, n_jobs=n).fit(data, groups=group) for n in (1, 2)]
    assert fits[0].params_ == fits[1].params_
    assert fits[0].group_weights_.equals(fits[1].group_weights_)
    again = MixtureMarkov(3, n_init=4, seed=1, search="thorough")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again.fit(data, groups=group)
    assert again.loglik_ > fits[0].loglik_ - 0.5


def test_a_group_that_weighs_nothing_keeps_valid_proportions() -> None:
    data, group = joined(three_sites(n=60))
    model = MixtureMarkov(2, n_init=4, prior=0, seed=1)
    model.fit(data, weights=np.where(group == "west", 0.0, 1.0), groups=group)
    assert model.group_weights_.sum(axis=1).to_numpy() == pytest.approx(1)


def test_files_keep_the_groups(tmp_path: Path) -> None:
    data, group = joined(three_sites(n=80))
    model = MixtureMarkov(2, n_init=4, seed=1).fit(data, groups=group)
    model.save(tmp_path / "m.json")
    again = MixtureMarkov.load(tmp_path / "m.json")
    assert (
        again.predict_proba(data, groups=group) == model.predict_proba(data, groups=group)
    ).all()
    assert again.bic() == model.bic()
    for spoil, words in [
        ({"group": "north", "weights": [0.5, 0.5]}, "twice"),
        ({"group": "east", "weights": [0.5, 0.6]}, "sum 1"),
        ({"group": "east", "weights": [1.0]}, "2 class proportions"),
        ({"group": 1.5, "weights": [0.5, 0.5]}, "not a model"),
    ]:
        content = json.loads((tmp_path / "m.json").read_text())
        content["groups"].append(spoil)
        with pytest.raises(ValueError, match=words):
            MixtureMarkov.from_dict(content)


def test_groups_that_do_not_fit() -> None:
    data, group = joined(three_sites(n=40))
    model = MixtureMarkov(2, n_init=3, seed=1)
    with pytest.raises(ValueError, match="found 3 groups for 120 patients"):
        model.fit(data, groups=["a", "b", "c"])
    with pytest.raises(ValueError, match="groups are missing for 1 of 120"):
        model.fit(data, groups=[None, *group[1:]])
    with pytest.raises(TypeError, match=r"whole numbers, found 0\.5"):
        model.fit(data, groups=np.full(120, 0.5))
    with pytest.raises(TypeError, match="mix types"):
        model.fit(data, groups=pd.Series([1, *group[1:]], index=data.ids, dtype=object))
    model.fit(data, groups=group)
    with pytest.raises(ValueError, match=r"no class proportions for the groups 'east'"):
        model.predict(data, groups=["east", *group[1:]])
    with pytest.raises(ValueError, match="fitted with the groups 'north'"):
        model.standard_errors(data)
    ages = pd.DataFrame({"age": np.arange(120.0)})
    with pytest.raises(ValueError, match="both groups and covariates"):
        model.fit(data, covariates=ages, groups=group)
    model.fit(data)
    with pytest.raises(ValueError, match="fitted without groups"):
        model.predict_proba(data, groups=group)


def test_standard_errors_are_those_of_the_group_as_a_covariate() -> None:
    """Proportions by group are the logit of the class on the group: the same model."""
    data, group = joined(three_sites())
    model = MixtureMarkov(2, prior=0, seed=1, tol=1e-10).fit(data, groups=group)
    frame = pd.DataFrame({"site": group}, index=data.ids)
    same = MixtureMarkov(2, init=model.params_, prior=0, tol=1e-10).fit(data, covariates=frame)
    for kind in ("opg", "observed", "sandwich"):
        table = model.standard_errors(data, groups=group, information=kind)  # type: ignore[arg-type]
        expected = same.standard_errors(data, frame, information=kind)  # type: ignore[arg-type]
        plain = table[table["parameter"] != "group weight"]
        numbers = ["estimate", "se", "low", "high"]
        np.testing.assert_allclose(plain[numbers], expected[numbers], atol=2e-5)
    # the first site's log-odds are the intercept
    odds = same.coefficient_table(data, frame, information="sandwich")
    north = table.query("parameter == 'group weight' and `from` == 'north'")
    p = north["estimate"].to_numpy()
    np.testing.assert_allclose(north["se"], odds["se"].iloc[0] * p[0] * p[1], rtol=1e-3)
    assert list(table.query("parameter == 'group weight'")["from"].unique()) == sorted(SHARES)


def test_the_prior_counts_in_every_group() -> None:
    """Where classes are certain, the prior adds K pseudo-patients to those of a group."""
    stay, move = [0.97, 0.03], [0.03, 0.97]
    far = MarkovParams([0.5, 0.5], [[0.999, 0.001], [0.001, 0.999]], [[stay] * 2, [move] * 2])
    data, _ = simulate(far, 300, 25, seed=1)
    group = np.where(np.arange(300) < 60, "small", "large")
    prior = 8.0
    model = MixtureMarkov(2, prior=prior, seed=1, tol=1e-9).fit(data, groups=group)
    table = model.standard_errors(data, groups=group, information="observed")
    for name, n in (("small", 60), ("large", 240)):
        rows = table[(table["parameter"] == "group weight") & (table["from"] == name)]
        p = rows["estimate"].to_numpy()
        expected = np.sqrt(p * (1 - p) / (n + 2 * prior))
        np.testing.assert_allclose(rows["se"], expected, rtol=1e-3)


def test_the_bootstrap_has_intervals_of_the_groups() -> None:
    data, group = joined(three_sites())
    model = MixtureMarkov(2, seed=1).fit(data, groups=group)
    table = mmlca.bootstrap(model, data, 60, seed=1, groups=group).intervals
    analytic = model.standard_errors(data, groups=group)
    weights = table.query("parameter == 'group weight'")
    errors = analytic.query("parameter == 'group weight'")
    np.testing.assert_allclose(weights["estimate"], errors["estimate"], atol=1e-9)
    np.testing.assert_allclose(weights["se"], errors["se"], rtol=0.35)


def test_a_class_that_a_group_lacks_lies_on_the_boundary() -> None:
    far = MarkovParams([0.5, 0.5], [[1, 0], [0, 1]], [[[0.95, 0.05]] * 2, [[0.05, 0.95]] * 2])
    data, truth = simulate(far, 200, 12, seed=1)
    model = MixtureMarkov(2, seed=1).fit(data, groups=truth)
    table = model.standard_errors(data, groups=truth).query("parameter == 'group weight'")
    assert table["boundary"].all()
    assert table["note"].isin(["never or hardly ever", "(nearly) always"]).all()
    assert table[["low", "high"]].notna().all(axis=None)
    assert ((table["high"] - table["low"]) < 0.1).all()


def test_groups_are_asked_for() -> None:
    data, group = joined(three_sites(50))
    model = MixtureMarkov(2, seed=1).fit(data, groups=group)
    with pytest.raises(ValueError, match="fitted with the groups 'north'"):
        model.standard_errors(data)
    with pytest.raises(ValueError, match="fitted without groups"):
        MixtureMarkov(2, seed=1).fit(data).standard_errors(data, groups=group)
