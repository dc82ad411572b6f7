"""What a refinement gains, and from what size on a hospital should send a model: simulated studies.

Hospitals have patients from the four RA-like chains of `ra_like`, each in proportions of its own,
with 4 to 16 quarters. All numbers are adjusted Rand indices with the simulated classes. The numbers
in the documentation come from these functions with more studies (`python` on this file prints
them); the tests run fewer studies and check what the documentation claims.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ra_like import PARAMS, STATES
from sklearn.metrics import adjusted_rand_score

import font
from font.errors import InputError
from font.exchange.disclosure import SecretDraws, label_unit, round_counts, shared_draws
from font.exchange.envelope import write_file
from font.exchange.masked import mask_key
from font.exchange.messages.labels import sum_of_labels, write_masked_labels
from font.exchange.messages.refinement import (
    Question,
    SumsFile,
    answer,
    read_step,
    share,
    share_masked,
    write_masked_sums,
)
from font.refinement import site_memberships
from mmlca import MarkovParams, MixtureMarkov, Sequences, simulate
from mmlca.federation.markov_kind import expected_counts
from mmlca.federation.steps import step_memberships

K = len(PARAMS.weights)
MIN_COUNT = 11
CONFIGURATIONS: dict[str, tuple[int, tuple[int, int], float]] = {
    # sites, their smallest and largest size, concentration of their class proportions
    "5 sites of 50 to 500, Dirichlet(1)": (5, (50, 500), 1.0),
    "10 sites of 50 to 150, Dirichlet(1)": (10, (50, 150), 1.0),
    "5 sites of 300 to 800, Dirichlet(0.3)": (5, (300, 800), 0.3),
    "2 sites of 2,000 to 3,200, Dirichlet(1)": (2, (2_000, 3_200), 1.0),
    "2 sites of 2,000 to 3,200, equal": (2, (2_000, 3_200), np.inf),
}
ROUNDED = {
    "2 sites of 2,000 to 3,200, Dirichlet(1)": (2, (2_000, 3_200), 1.0),
    "5 sites of 200 to 500, equal": (5, (200, 500), np.inf),
    "10 sites of 50 to 150, equal": (10, (50, 150), np.inf),
    "10 sites of 50 to 150, Dirichlet(1)": (10, (50, 150), 1.0),
}
METHODS = ("FONT", "refit", "+1", "+2", "converge", "pooled EM", "pooled, by site", "true")
DOCUMENTED = {  # number of studies, from 1, and their means, in docs/simulation.md
    "5 sites of 50 to 500, Dirichlet(1)": (
        *(48, (0.761, 0.805, 0.812, 0.813, 0.818)),
        (0.786, 0.816, 0.843),
    ),
    "10 sites of 50 to 150, Dirichlet(1)": (
        *(24, (0.752, 0.805, 0.817, 0.820, 0.817)),
        (0.768, 0.816, 0.845),
    ),
    "5 sites of 300 to 800, Dirichlet(0.3)": (
        *(24, (0.703, 0.817, 0.837, 0.847, 0.863)),
        (0.811, 0.874, 0.883),
    ),
    "2 sites of 2,000 to 3,200, Dirichlet(1)": (
        *(48, (0.773, 0.822, 0.830, 0.833, 0.836)),
        (0.816, 0.836, 0.843),
    ),
    "2 sites of 2,000 to 3,200, equal": (
        *(24, (0.797, 0.803, 0.804, 0.804, 0.802)),
        (0.801, 0.801, 0.812),
    ),
}
N_OTHER = 10
Truth = dict[str, Any]


def network(sizes: Sequence[int], concentration: float, rng: np.random.Generator) -> Any:
    """Sites of these sizes: their sequences, the true classes, and the true proportions."""
    data, truth, shares = {}, {}, {}
    for i, n in enumerate(sizes):
        site = f"h{i}"
        equal = np.isinf(concentration)
        shares[site] = np.full(K, 1 / K) if equal else rng.dirichlet(np.full(K, concentration))
        chains = MarkovParams(shares[site], PARAMS.initial, PARAMS.transition)
        lengths = rng.integers(4, 17, n)
        data[site], classes = simulate(chains, int(n), lengths, rng, states=STATES)
        truth[site] = classes.to_numpy()
    return data, truth, shares


def fitted(data: Sequences, n_classes: int, seed: int, **options: Any) -> MixtureMarkov:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MixtureMarkov(n_classes, n_init=10, prior=0.5, seed=seed).fit(data, **options)


def score(truth: Truth, clusters: Mapping[str, Any], sites: Sequence[str] | None = None) -> float:
    both = [
        np.concatenate([np.asarray(part[s]) for s in sites or truth]) for part in (truth, clusters)
    ]
    return float(adjusted_rand_score(*both))


def true_clusters(data: Sequences, shares: Any) -> Any:
    """The most probable class of each patient under the parameters that drew the data."""
    with np.errstate(divide="ignore"):
        first, step, logs = np.log(PARAMS.initial), np.log(PARAMS.transition), np.log(shares)
    logs = logs + first[:, data.codes[:, 0]].T
    for before, now in zip(data.codes.T[:-1], data.codes.T[1:], strict=True):
        logs += np.where(now >= 0, step[:, before, now], 0.0).T
    return logs.argmax(axis=1)


def gains(n_sites: int, sizes: tuple[int, int], concentration: float, seed: int) -> dict[str, Any]:
    """One simulated study under all methods, with nothing rounded."""
    rng = np.random.default_rng([19, seed])
    data, truth, shares = network(rng.integers(sizes[0], sizes[1] + 1, n_sites), concentration, rng)
    models = {site: fitted(part, K, seed) for site, part in data.items()}
    labels = {site: font.label(models, part) for site, part in data.items()}
    ensemble = font.Ensemble(K, seed=1).fit(models, font.LabelPatterns.from_labels(labels))
    result = {"FONT": score(truth, {s: ensemble.predict(t) for s, t in labels.items()})}
    for name, rounds in {"refit": 0, "+1": 1, "+2": 2, "converge": "converge"}.items():
        refined = font.refine(ensemble, models, data, rounds=rounds)  # type: ignore[arg-type]
        result[name] = score(truth, {s: refined.predict(part, s) for s, part in data.items()})
    width = max(part.codes.shape[1] for part in data.values())
    codes = [
        np.pad(part.codes, ((0, 0), (0, width - part.codes.shape[1])), constant_values=-1)
        for part in data.values()
    ]
    everyone = Sequences.from_codes(np.concatenate(codes), STATES)
    flat = np.concatenate(list(truth.values()))
    pooled = fitted(everyone, K, seed).predict(everyone)
    result["pooled EM"] = adjusted_rand_score(flat, pooled)
    groups = np.repeat(list(data), [len(part) for part in data.values()])
    by_site = fitted(everyone, K, seed, groups=groups).predict(everyone, groups=groups)
    result["pooled, by site"] = adjusted_rand_score(flat, by_site)
    known = {site: true_clusters(part, shares[site]) for site, part in data.items()}
    result["true"] = score(truth, known)
    return result


# --- with everything that leaves a site rounded ---------------------------------------------


def model_file(data: Sequences, site: str, seed: int, draws: Any) -> bytes:
    """A site's model file, with fewer classes where one would have too few patients."""
    for n_classes in range(K, 0, -1):
        model = fitted(data, n_classes, seed)
        if n_classes == 1 or expected_counts(model, data).patients.min() >= MIN_COUNT:
            break
    return font.write_model(
        None, model, data, font.Header(study="s", site=site), min_count=MIN_COUNT, draws=draws
    ).data


def small_sites(n: int, n_large: int, large: tuple[int, int], seed: int) -> dict[str, float]:
    """Five small sites of n patients that only label, or that also send a model.

    Adjusted Rand index over all patients and over those of the small sites, before and after one
    round of refinement.
    """
    rng = np.random.default_rng([19, seed])
    n_small = 5
    sizes = [*rng.integers(large[0], large[1] + 1, n_large), *[n] * n_small]
    data, truth, _ = network(sizes, 1.0, rng)
    small = list(data)[n_large:]
    files = {site: model_file(part, site, seed, rng) for site, part in data.items()}
    result = {}
    for way, senders in {"labels": list(data)[:n_large], "models": list(data)}.items():
        models = font.read_models([files[site] for site in senders])
        classes = {name: file.n_classes for name, file in models.items()}
        local = {name: file.model for name, file in models.items()}
        labels = {site: font.label(local, part) for site, part in data.items()}
        parts = []
        for site, table in labels.items():
            tables = font.CrossTables.from_labels({site: table}, classes)
            sent = font.write_labels(
                None,
                tables,
                models,
                font.Header(study="s", site=site),
                min_count=MIN_COUNT,
                draws=rng,
            ).data
            parts.append(font.read_labels(sent, models))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ensemble, _ = font.combine(models, parts, n_clusters=K)
        clusters = {site: ensemble.predict(table) for site, table in labels.items()}
        try:
            refined = font.refine(ensemble, local, data, rounds=1)
            placed = {site: refined.predict(part, site) for site, part in data.items()}
        except InputError:  # a cluster without patients: the ensemble stays as it is
            placed = clusters
        result[f"{way}, all"] = score(truth, clusters)
        result[f"{way}, small"] = score(truth, clusters, small)
        result[f"{way}, all, refined"] = score(truth, placed)
        result[f"{way}, small, refined"] = score(truth, placed, small)
    return result


def exchanged(n_sites: int, sizes: tuple[int, int], seed: int) -> dict[str, float]:
    """A study by exchange files and one round of refinement: all rounded, or with secure sums."""
    rng = np.random.default_rng([19, seed])
    data, truth, _ = network(rng.integers(sizes[0], sizes[1] + 1, n_sites), 1.0, rng)
    models = font.read_models([model_file(part, s, seed, rng) for s, part in data.items()])
    local = {name: file.model for name, file in models.items()}
    classes = {name: file.n_classes for name, file in models.items()}
    labels = {site: font.label(local, part) for site, part in data.items()}
    tables = {s: font.CrossTables.from_labels({s: t}, classes) for s, t in labels.items()}
    secrets = {site: bytes([i + 1]) * 32 for i, site in enumerate(data)}
    keys = {site: mask_key(secret) for site, secret in secrets.items()}
    headers = {site: font.Header(study="s", site=site) for site in data}
    result = {}
    for way in ("rounded", "secure"):
        if way == "rounded":
            parts = [
                font.write_labels(None, own, models, headers[s], draws=rng).tables
                for s, own in tables.items()
            ]
        else:
            masked = [
                write_masked_labels(None, own, models, secrets[s], keys, headers[s])
                for s, own in tables.items()
            ]
            parts = [sum_of_labels(masked, models)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ensemble, _ = font.combine(models, parts, n_clusters=K)
        clusters = {site: ensemble.predict(table) for site, table in labels.items()}
        result[way] = result[f"{way}, refined"] = score(truth, clusters)
        sent = font.write_ensemble(None, ensemble, models, font.Header(study="s"))
        for _ in range(2):  # step 0, and one round
            before = read_step(sent)
            members = {
                site: step_memberships(SimpleNamespace(sequences=part), before)  # type: ignore[arg-type]
                for site, part in data.items()
            }
            try:
                questions = {
                    s: Question(before, m, data[s], p, draws=SecretDraws(secrets[s], "sums"))
                    for s, (m, p) in members.items()
                }
                if way == "rounded":
                    sums = [
                        SumsFile(write_file(None, "sums", answer(q), headers[s]))
                        for s, q in questions.items()
                    ]
                    shared = share(before, sums, font.Header(study="s"), rounds=1)
                else:
                    hidden = [
                        write_masked_sums(None, q, secrets[s], keys, headers[s])
                        for s, q in questions.items()
                    ]
                    shared = share_masked(before, hidden, font.Header(study="s"), rounds=1)
            except InputError:  # a cluster without patients: the ensemble stays as it is
                break
            sent = shared.data
        else:
            placed = {s: site_memberships(shared.model, x).argmax(axis=1) for s, x in data.items()}
            result[f"{way}, refined"] = score(truth, placed)
    return result


def rounding_costs(
    n_sites: int, sizes: tuple[int, int], concentration: float, seed: int
) -> dict[str, float]:
    """One study with nothing rounded, with rounded tables of labels, and with rounded models too.

    "refused" is 1 if at least one site cannot send its model with all classes, because one of them
    has fewer than `MIN_COUNT` patients; it then sends one with fewer.
    """
    rng = np.random.default_rng([19, seed])
    data, truth, _ = network(rng.integers(sizes[0], sizes[1] + 1, n_sites), concentration, rng)
    exact = {site: fitted(part, K, seed) for site, part in data.items()}
    files = font.read_models([model_file(part, site, seed, rng) for site, part in data.items()])
    sent = {name: file.model for name, file in files.items()}
    result = {}
    for way, models, unit in (
        ("nothing rounded", exact, 1),
        ("tables rounded", exact, MIN_COUNT),
        ("models and tables rounded", sent, MIN_COUNT),
    ):
        labels = {site: font.label(models, part) for site, part in data.items()}
        classes = {name: len(model.class_parameters_) for name, model in models.items()}
        tables = font.CrossTables.from_labels(labels, classes)
        rounded = {
            site: round_counts(
                part, label_unit(unit, n_sites), shared_draws(part, tables.offsets, rng)
            ).astype(float)
            for site, part in tables.tables.items()
        }
        ensemble = font.Ensemble(K, method="latent" if n_sites > 2 else "kmeans", seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ensemble.fit(models, font.CrossTables(tables.models, tables.n_classes, rounded))
        result[way] = score(truth, {s: ensemble.predict(table) for s, table in labels.items()})
    smallest = [expected_counts(exact[s], part).patients.min() for s, part in data.items()]
    return result | {"refused": float(min(smallest) < MIN_COUNT)}


def rows_of(study: Callable[[int], dict[str, float]], seeds: Sequence[int]) -> pd.DataFrame:
    return pd.DataFrame([study(seed) for seed in seeds])


def table_of(study: Callable[[int], dict[str, float]], n_studies: int) -> pd.DataFrame:
    """Mean and its standard error over studies."""
    rows = rows_of(study, range(1, n_studies + 1))
    return pd.DataFrame({"mean": rows.mean(), "se": rows.sem()})


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_refinement_gains_what_the_documentation_says(name: str) -> None:
    """Other studies than the documented ones give the same means, up to Monte-Carlo error.

    So do the gains over FONT in each study, which vary less.
    """
    n_documented, federated, others = DOCUMENTED[name]
    seeds = range(n_documented + 1, n_documented + 1 + N_OTHER)
    rows = rows_of(lambda seed: gains(*CONFIGURATIONS[name], seed), seeds)
    documented = pd.Series(dict(zip(METHODS, federated + others, strict=True)))
    assert list(rows) == list(documented.index)
    scale = np.sqrt(1 + N_OTHER / n_documented)  # of the error of a difference of two means
    for values, expected in (
        (rows, documented),
        (rows.sub(rows["FONT"], axis=0), documented - documented["FONT"]),
    ):
        off = (values.mean() - expected).abs()
        assert (off < 4 * scale * values.sem() + 0.001).all(), off  # to three digits
    mean = rows.mean()
    assert mean["FONT"] < mean["refit"] < mean["+1"] < mean["true"] + 0.01
    if np.isfinite(CONFIGURATIONS[name][2]):  # where the sites' proportions differ
        assert mean["+1"] > mean["pooled EM"]  # which has one set of proportions for all sites


@pytest.mark.slow
def test_tiny_sites_need_not_send_a_model_and_larger_ones_should() -> None:
    tiny = table_of(lambda seed: small_sites(25, 5, (200, 400), seed), 6)["mean"]
    for way in ("all", "all, refined"):
        assert tiny[f"models, {way}"] == pytest.approx(tiny[f"labels, {way}"], abs=0.04)
    large = table_of(lambda seed: small_sites(200, 5, (200, 400), seed), 6)["mean"]
    assert large["models, all"] > large["labels, all"]


@pytest.mark.slow
def test_secure_sums_are_as_good_as_rounded_ones() -> None:
    mean = table_of(lambda seed: exchanged(10, (50, 150), seed), 8)["mean"]
    assert mean["secure, refined"] == pytest.approx(mean["rounded, refined"], abs=0.04)
    assert mean["secure, refined"] > 0.74  # 0.763 in studies 1 to 8, 0.801 in 17 to 40
    assert mean["rounded, refined"] > mean["rounded"]


@pytest.mark.slow
def test_rounding_the_models_costs_more_than_rounding_the_tables() -> None:
    mean = table_of(lambda seed: rounding_costs(5, (50, 500), 1.0, seed), 8)["mean"]
    assert mean["models and tables rounded"] > mean["nothing rounded"] - 0.06
    assert mean["refused"] > 0


if __name__ == "__main__":
    n_studies, say = int(sys.argv[2]), sys.stdout.write
    if sys.argv[1] == "gains":
        for name, (n_sites, sizes, concentration) in CONFIGURATIONS.items():
            table = table_of(
                lambda seed, a=n_sites, b=sizes, c=concentration: gains(a, b, c, seed), n_studies
            )
            say(f"{name}\n{table.round(3).T.to_string()}\n")
    elif sys.argv[1] == "secure":
        table = table_of(lambda seed: exchanged(10, (50, 150), seed), n_studies)
        say(f"10 sites of 50 to 150\n{table.round(3).T.to_string()}\n")
    elif sys.argv[1] == "rounding":
        for name, (n_sites, sizes, concentration) in ROUNDED.items():
            table = table_of(
                lambda seed, a=n_sites, b=sizes, c=concentration: rounding_costs(a, b, c, seed),
                n_studies,
            )
            say(f"{name}\n{table.round(3).T.to_string()}\n")
            sys.stdout.flush()
    elif sys.argv[1] == "sizes":
        for n in (25, 50, 100, 200, 400):
            table = table_of(lambda seed, a=n: small_sites(a, 5, (200, 400), seed), n_studies)
            say(f"5 sites of 200 to 400 and 5 of {n}\n{table.round(3).T.to_string()}\n")
