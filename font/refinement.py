"""Refinement: shared classes, each site's own proportions, estimated from sums over patients.

One round of the ensemble gives clusters. From there EM goes on between the sites without any
patient's row leaving: a site sums its patients' statistics by cluster, the centre adds the sums of
all sites and estimates the clusters' shared parameters from them; a site then estimates its own
cluster proportions under these, computes its patients' memberships, and sums again. A family of
models takes part that has

- `statistics(data, membership)` → (K, P): sums over patients by class, the patients first;
- `from_statistics(total)` → the model with K classes that such sums give;
- `log_likelihoods(data)` → (n, K), whatever the proportions;

and, where it has use for them, `log_penalty()` (of its prior, without the proportions),
`proportions_prior` (pseudo-count of each class in the proportions, else 0), `distinct(data)`
(fewer patients with weights that stand for all) and `form_title` (words for what the sums of some
of its models have and of others have not).

The loop over steps and a site's part of each step are in one module, so that the whole EM can be
read in one place; `font.exchange.messages.refinement` calls the same functions with files between.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from font.checks import Floats, Integers, Models, check_dict, some, whole_number
from font.errors import InputError, ReportWarning
from font.labels import (
    capped_site,
    label,
    n_patients,
    own_weights,
    patient_ids,
    site_proportions,
)
from font.models import wrap
from font.probabilities import posterior

_MOST_STEPS = 5_000
_HELD_OUT = 0.2  # share of each site's patients that choose the number of steps
_TOL, _SETTLED = 1e-6, 1e-9  # gain in log-likelihood; change of a proportion
_FALL = 1e-6  # relative fall of the log-likelihood that is not rounding error


@runtime_checkable
class SumsModel(Protocol):
    """A family of models that can be estimated from sums over patients."""

    def statistics(self, data: Any, membership: ArrayLike) -> Floats:
        """Sums over patients by class, (K, P); the first column are the patients."""

    def from_statistics(self, total: ArrayLike) -> Any:
        """The model that sums of all patients give, as many classes as rows."""

    def log_likelihoods(self, data: Any) -> Floats:
        """Log-likelihood of each patient in each class, (n, K), whatever the proportions."""


class SiteStep(NamedTuple):
    """What a site knows under a shared model.

    Proportions (K,), memberships (n, K) of its patients, and its log-likelihood.
    """

    proportions: Floats
    membership: Floats
    loglik: float


@dataclass(frozen=True, eq=False)
class Refined:
    """Clusters with shared parameters and proportions by site, numbered as in the ensemble.

    `model_` is the shared model, with one class per cluster; `proportions_` are sites × clusters.
    `loglik_path_` is the log-likelihood of all patients after 0, 1, … steps; `penalised_path_` adds
    the prior's penalty and never falls. `converged_` says whether further steps would change
    nothing. With rounds="held-out", `held_out_path_` is the mean log-likelihood of a held-out
    patient after 0, 1, … steps on the others, up to the first fall.

    Notes
    -----
    All of this takes it that the sites share the clusters' parameters, and differ only in how
    common the clusters are. Where they do not share them, further steps fit the clusters to the
    differences between sites, and the probabilities are too high. How far these can be trusted was
    measured where the truth is known, see *Does it work?* in the documentation.
    """

    model_: Any = field(repr=False)
    proportions_: pd.DataFrame
    loglik_path_: Floats = field(repr=False)
    penalised_path_: Floats = field(repr=False)
    n_steps_: int
    converged_: bool
    held_out_path_: Floats = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def params_(self) -> Any:
        """The clusters' shared parameters: the model's `params_`, or else `class_parameters_`."""
        params = getattr(self.model_, "params_", None)
        return self.class_parameters_ if params is None else params

    @property
    def class_parameters_(self) -> Floats:
        """One row per cluster, (K, d)."""
        return np.asarray(self.model_.class_parameters_)

    @property
    def n_clusters_(self) -> int:
        return int(self.proportions_.shape[1])

    def predict_proba(self, data: Any, site: Hashable | None = None) -> pd.DataFrame:
        """Each patient's probability of each cluster, patients × clusters.

        With the proportions of `site`. Those of a site that was not part of the refinement, or of
        none, are estimated from `data`, which should then be that site's patients.
        """
        n = n_patients(data)
        if not n:
            membership = np.zeros((0, self.n_clusters_))
        elif site is not None and site in self.proportions_.index:
            logs = _logs(self.model_, data)
            membership, _ = _posterior(logs, self.proportions_.loc[site].to_numpy())
        else:
            membership = site_memberships(self.model_, data)
        return pd.DataFrame(membership, index=patient_ids(data), columns=self.proportions_.columns)

    def predict(self, data: Any, site: Hashable | None = None) -> pd.Series:
        """The most probable cluster of each patient, 0 … K − 1; see `predict_proba`."""
        table = self.predict_proba(data, site)
        best = table.to_numpy().argmax(axis=1) if len(table) else np.zeros(0, dtype=np.int64)
        return pd.Series(best, index=table.index, name="cluster")


def refine(
    ensemble: Any,
    models: Models,
    data: Mapping[Any, Any],
    rounds: int | str = 1,
    *,
    seed: int | np.random.Generator | None = None,
) -> Refined:
    """Re-estimate an ensemble's clusters: shared parameters, proportions by site.

    Parameters
    ----------
    ensemble : fitted Ensemble
        Its clusters are the beginning.
    models : {name: model}
        Those of the ensemble, all of one family that can be estimated from sums: mixtures of Markov
        chains, K-means, Gaussian mixtures, latent class models. The first one's settings (prior,
        form of the covariances) hold for the clusters too.
    data : {site: data}
        The patients of each site: what the models' `predict` takes.
    rounds : int, "converge" or "held-out"
        Number of steps; 0 gives the parameters of the ensemble's clusters as they are, and each
        site's proportions under these. "converge" goes on until nothing changes; the result is a
        maximum of the likelihood of all patients with proportions by site.
        "held-out" makes as many steps as are best for patients who take no part in them: a fifth
        of each site's patients is held out, steps on the others end where the likelihood of those
        held out falls, and all patients then make that number of steps.
    seed : int or Generator, optional
        Which patients are held out.

    Notes
    -----
    Refine where sites share the clusters' parameters. Test it first: for Markov chains with
    `mmlca.shared_chain_test`. Held-out patients guard against too many steps on few patients, not
    against sites that differ, since what fits the differences between sites fits held-out patients
    of the same sites as well. *Does it work?* in the documentation has what was measured.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> from font import Ensemble
    >>> rng = np.random.default_rng(1)
    >>> sites = {s: np.append(rng.normal(0, 1, 60), rng.normal(4, 1, n))[:, None]
    ...          for s, n in (("A", 60), ("B", 6))}
    >>> models = {s: KMeans(2, n_init=5, random_state=1).fit(x) for s, x in sites.items()}
    >>> ensemble = Ensemble(2, seed=1).fit(models, {s: label(models, x) for s, x in sites.items()})
    >>> result = refine(ensemble, models, sites, rounds="converge")
    >>> result.proportions_.max(axis=1).round(1).tolist()
    [0.5, 0.9]
    """
    if rounds not in ("converge", "held-out"):
        rounds = whole_number(rounds, 0, 'rounds, unless "converge" or "held-out",')
    template = check_family(models)
    _check_ensemble(ensemble, models)
    sites = _checked_sites(data)
    table = {site: label(models, part) for site, part in sites.items()}
    clusters = {site: ensemble.predict(t).to_numpy() for site, t in table.items()}
    return refine_clusters(template, sites, clusters, int(ensemble.n_clusters_), rounds, seed)


def refine_clusters(
    template: Any,
    sites: Mapping[Any, Any],
    clusters: Mapping[Any, Integers],
    n_clusters: int,
    steps: int | str = 1,
    seed: int | np.random.Generator | None = None,
    *,
    capped: bool = False,
) -> Refined:
    """`refine` from any clusters {site: (n,)}, for models like `template`.

    If `capped`, of three or more sites none counts for more than all the others together, as
    between sites that exchange files.
    """
    counts = dict.fromkeys(sites, 1.0)
    if capped:
        largest, factor = capped_site([n_patients(part) for part in sites.values()])
        counts[list(sites)[largest]] = factor
    if steps == "held-out":
        rng = np.random.default_rng(seed)
        path = _held_out_path(template, sites, clusters, n_clusters, counts, rng)
        number = int(path.argmax())
        result = refine_clusters(template, sites, clusters, n_clusters, number, capped=capped)
        return replace(result, held_out_path_=path)
    model = _first_model(template, sites, clusters, n_clusters, counts)
    parts = {site: fewer(template, part) for site, part in sites.items()}
    return _climb(model, parts, steps, counts)


def _first_model(
    template: Any,
    sites: Mapping[Any, Any],
    clusters: Mapping[Any, Integers],
    n_clusters: int,
    counts: Mapping[Any, float],
) -> Any:
    """The shared model that the patients assigned to the clusters give."""
    total = sum(
        counts[site] * first_sums(template, part, clusters[site], n_clusters)
        for site, part in sites.items()
    )
    empty = np.flatnonzero(np.asarray(total)[:, 0] <= 0)
    if len(empty):
        raise InputError(
            f"the clusters {some(empty + 1)} (counted from 1) have no patients at these sites; "
            "give the sites that the ensemble was made with, or ask it for fewer clusters."
        )
    return template.from_statistics(total)


def _held_out_path(
    template: Any,
    sites: Mapping[Any, Any],
    clusters: Mapping[Any, Integers],
    n_clusters: int,
    counts: Mapping[Any, float],
    rng: np.random.Generator,
) -> Floats:
    """Mean log-likelihood of held-out patients after 0, 1, … steps on the others.

    It ends with the first step that lowers it, or with convergence.
    """
    kept = {}
    for site, part in sites.items():
        n = n_patients(part)
        out = rng.permutation(n) < round(_HELD_OUT * n)
        kept[site] = ~out
    inside = {site: part[kept[site]] for site, part in sites.items()}
    labels = {site: np.asarray(clusters[site])[kept[site]] for site in sites}
    outside = {s: fewer(template, p[~kept[s]]) for s, p in sites.items() if not kept[s].all()}
    path: list[float] = []
    possible: dict[Any, Any] = {}

    def go_on(model: Any, shares: Mapping[Any, Floats]) -> bool:
        total = weight = 0.0
        for site, part in outside.items():
            logs = _logs(model, part)
            _, each = _posterior(logs, shares[site])
            case = own_weights(part)
            counted = possible.setdefault(site, np.isfinite(each) & (case > 0))
            total += float(case[counted] @ each[counted])
            weight += float(case[counted].sum())
        path.append(total / weight if weight else 0.0)
        return len(path) < 2 or path[-1] >= path[-2]

    model = _first_model(template, inside, labels, n_clusters, counts)
    _climb(model, {s: fewer(template, p) for s, p in inside.items()}, "converge", counts, go_on)
    return np.array(path)


def _climb(
    model: Any,
    sites: Mapping[Any, Any],
    steps: int | str,
    counts: Mapping[Any, float],
    go_on: Callable[[Any, Mapping[Any, Floats]], bool] | None = None,
) -> Refined:
    """EM from a shared model: the loop of all steps, each site's step and the centre's.

    `counts` says what a patient of each site counts for, in the log-likelihood too. `go_on`, given
    the model and the sites' proportions after each step, may end it.
    """
    most = _MOST_STEPS if isinstance(steps, str) else steps
    path: list[tuple[float, float]] = []
    shares: dict[Any, Floats | None] = dict.fromkeys(sites)
    gain_before, converged = np.inf, False
    last = model
    while True:
        found = {site: site_step(model, part, shares[site]) for site, part in sites.items()}
        loglik = sum(counts[site] * step.loglik for site, step in found.items())
        penalised = loglik + _penalty(model, found, counts)
        if path and penalised < path[-1][1] - _FALL * abs(path[-1][1]):
            warnings.warn(
                f"step {len(path)} lowered the log-likelihood from {path[-1][1]:,.4f} to "
                f"{penalised:,.4f}, which EM does not do: `from_statistics` of the models does not "
                "give the most likely parameters; the refinement ends with the step before.",
                ReportWarning,
                stacklevel=3,
            )
            model = last
            break
        shares = {site: step.proportions for site, step in found.items()}
        path.append((loglik, penalised))
        if len(path) > 1:
            gain = path[-1][1] - path[-2][1]
            noise = 1e-13 * abs(path[-1][1])
            # the gains to come, gain · ratio / (1 − ratio) with ratio = gain / gain_before
            converged = gain <= noise or (gain < _TOL and gain * gain < _TOL * (gain_before - gain))
            gain_before = gain
        if len(path) > most or (converged and isinstance(steps, str)):
            break
        if go_on is not None and not go_on(model, shares):  # type: ignore[arg-type]
            break
        total = sum(
            counts[site] * model.statistics(sites[site], step.membership)
            for site, step in found.items()
        )
        last, model = model, model.from_statistics(total)
    if isinstance(steps, str) and not converged and len(path) > most:
        warnings.warn(
            f"the refinement had not converged after {most:,} steps; its likelihood still rises.",
            ReportWarning,
            stacklevel=3,
        )
    columns = pd.RangeIndex(len(next(iter(shares.values()))), name="cluster")  # type: ignore[arg-type]
    table = pd.DataFrame(
        [shares[site] for site in sites], index=pd.Index(list(sites), name="site"), columns=columns
    )
    logliks, penalised = np.array(path).T
    return Refined(model, table, logliks, penalised, len(path) - 1, bool(converged))


# --- what a site does -------------------------------------------------------------------------


def first_sums(template: Any, data: Any, clusters: Integers, n_clusters: int) -> Floats:
    """A site's sums by the ensemble's clusters (n,), the beginning of the refinement.

    What the family fills in where data are missing, it fills in with one class for everyone, made
    of the site's own patients, because the clusters have no parameters yet.
    """
    sums: Floats = one_class(template, data).statistics(
        data, np.eye(n_clusters)[np.asarray(clusters)]
    )
    return sums


def one_class(template: Any, data: Any) -> Any:
    """A model with one class for all of a site's patients."""
    sums = template.statistics(data, _memberships(template, data))
    return template.from_statistics(sums.sum(axis=0, keepdims=True))


def site_step(model: Any, data: Any, start: Floats | None = None) -> SiteStep:
    """A site's proportions under the shared model, its patients' memberships, its log-likelihood.

    `start` are proportions to begin with.
    """
    n_clusters = len(model.class_parameters_)
    even = np.full(n_clusters, 1 / n_clusters)
    logs = _logs(model, data)
    before = even if start is None else np.maximum(start, 1e-12)
    before = before / before.sum()
    case = own_weights(data)
    shares, _ = _posterior(logs, before)
    now = site_proportions(
        shares, before, weights=case, prior=_prior(model), max_iter=500, tol=_SETTLED
    )
    membership, each = _posterior(logs, now)
    counted = case > 0
    return SiteStep(now, membership, float(case[counted] @ each[counted]))


def site_memberships(model: Any, data: Any) -> Floats:
    """Memberships (n, K) of a site's patients under the site's own proportions."""
    now = site_step(model, fewer(model, data)).proportions
    return _posterior(_logs(model, data), now)[0]


def membership_table(membership: Floats) -> pd.DataFrame:
    """Each patient's cluster, its probability, the runner-up (−1 if none) and its probability."""
    rows = np.arange(len(membership))
    best = membership.argmax(axis=1)
    others = membership.copy()
    others[rows, best] = -1.0
    alone = membership.shape[1] == 1
    runner_up = np.full(len(rows), -1) if alone else others.argmax(axis=1)
    return pd.DataFrame(
        {
            "cluster": best,
            "probability": membership[rows, best],
            "runner_up": runner_up,
            "runner_up_probability": 0.0 if alone else others.max(axis=1),
        }
    )


def check_family(models: Models) -> Any:
    """The first of the models, if all are of one family that can be refined."""
    check_dict(models, "models must be a dict {name: model}")
    wrapped = {name: wrap(model) for name, model in models.items()}
    unfit = [name for name, model in wrapped.items() if not isinstance(model, SumsModel)]
    if unfit:
        raise InputError(
            f"the models {some(unfit)} cannot be refined: they need the methods statistics(data, "
            "membership), from_statistics(total) and log_likelihoods(data)."
        )
    kinds = {_family(model) for model in wrapped.values()}
    if len(kinds) > 1:
        raise InputError(
            f"the models are of different families or forms ({some(sorted(kinds))}); refine "
            "models of one."
        )
    return next(iter(wrapped.values()))


def _check_ensemble(ensemble: Any, models: Models) -> None:
    """Refuse models that are not those of the ensemble."""
    if not hasattr(ensemble, "n_clusters_"):
        raise InputError("the ensemble is not fitted; call its fit first.")
    if set(models) != set(ensemble.models_):
        raise InputError(
            f"the ensemble was made with the models {some(ensemble.models_)}; found {some(models)}."
        )
    sizes = dict(zip(ensemble.models_, ensemble._n_classes, strict=True))
    other = [name for name, n in sizes.items() if len(wrap(models[name]).class_parameters_) != n]
    if other:
        raise InputError(
            f"the models {some(other)} have other numbers of classes than when the ensemble was "
            "made; give the models that it was fitted with."
        )


def fewer(template: Any, data: Any) -> Any:
    """Fewer patients with weights that stand for all, where the family knows how."""
    return template.distinct(data) if hasattr(template, "distinct") else data


def _family(model: Any) -> str:
    inner = getattr(model, "estimator", None)
    form = getattr(inner, "covariance_type", "") or getattr(model, "form_title", "")
    return type(inner if inner is not None else model).__name__ + (f" {form}" if form else "")


def _memberships(model: Any, data: Any) -> Floats:
    """Of the model's own classes, certain where it gives no probabilities."""
    try:
        return np.asarray(model.predict_proba(data), dtype=float)
    except AttributeError:
        certain: Floats = np.eye(len(model.class_parameters_))[np.asarray(model.predict(data))]
        return certain


def _posterior(logs: Floats, proportions: Floats) -> tuple[Floats, Floats]:
    """Memberships (n, K) and log-likelihoods (n,).

    A patient who is impossible in every cluster has the site's proportions.
    """
    with np.errstate(divide="ignore"):
        joint = logs + np.log(proportions)
    lost = np.isneginf(joint.max(axis=1))
    joint[lost] = np.log(np.maximum(proportions, 1e-300))
    membership, each = posterior(joint)
    return membership, np.where(lost, -np.inf, each)


def _penalty(model: Any, found: Mapping[Any, SiteStep], counts: Mapping[Any, float]) -> float:
    penalty = float(model.log_penalty()) if hasattr(model, "log_penalty") else 0.0
    prior = _prior(model)
    if prior:
        penalty += prior * sum(
            counts[site] * float(np.log(step.proportions).sum()) for site, step in found.items()
        )
    return penalty


def _prior(model: Any) -> float:
    return float(getattr(model, "proportions_prior", 0.0))


def _logs(model: Any, data: Any) -> Floats:
    return np.asarray(model.log_likelihoods(data), dtype=float)


def _checked_sites(data: Any) -> dict[Any, Any]:
    check_dict(data, "data must be a dict {site: patients}")
    empty = [site for site, part in data.items() if not n_patients(part)]
    if empty:
        raise InputError(f"the sites {some(empty)} have no patients; leave them out.")
    return dict(data)
