"""The three files that sites and centre exchange: models, label counts, the ensemble.

"One round" is one upload of parameters (model files, site → all), one upload of counts
(labels files, site → centre) and one broadcast of the result (ensemble file, centre → all).
They travel by any means, e-mail included; `font.flower` sends the same files over a network.

Every file is one JSON object in UTF-8. Reading checks all of it, and refuses what does not fit
with a `ValueError` of one sentence; nothing in a file is executed or names code to load.

=================== =========================================================================
field               content
=================== =========================================================================
format              "font exchange"
version             1
kind                "model", "labels" or "ensemble"
study               name of the study; files of another study are refused
site                name of the sender
created             day of writing, YYYY-MM-DD in UTC; no time, and never a patient's date
software            program that wrote the file
payload             the content, below
sha256              SHA-256 of the payload as canonical JSON (keys sorted, no spaces, UTF-8). It
                    finds damage and careless edits; it is no signature, so send files through a
                    channel that tells who sent them.
=================== =========================================================================

Payload of a *model* file; its checksum is the model's fingerprint:

=================== =========================================================================
name                "SITE", or "SITE/1", "SITE/2", … for resamples of a site
min_count           no class has fewer patients, by its weight
digits              decimals of probabilities, digits of other parameters; null if not rounded
n_pooled_rows       rows of transitions resting on fewer than min_count patients, which were
                    pooled; null if that was not looked at
bic                 list of {n_classes, bic}: the site's choice of K, may be empty
model.format        "mmlca model"
model.version       1
model.software      program that fitted it
model.states        S state labels, in order
model.params        weights (K), initial (K × S), transition (K × S × S): probabilities
model.n_parameters  free parameters
model.prior         pseudo-count of the fit
model.loglik        log-likelihood of the fit, before rounding
model.n_sequences   patients, or their summed weights
model.n_timepoints  observed states
model.classification_entropy  how uncertain classes are, summed over patients
model.converged     whether the fit converged
model.n_replicated  starts that reached the maximum
=================== =========================================================================

Other models (their `format`: "font k-means", "font gaussian mixture", "font latent class") have in
place of that, apart from format, version, converged and loglik as above:

=================== =========================================================================
model.variables     names of the d columns
model.n_patients    patients
model.weights       shares of the K classes
model.centres       K-means: centres of the classes (K × d)
model.means         Gaussian mixture: means of the classes (K × d)
model.covariance_type  "full", "tied", "diag" or "spherical"
model.covariances   K × d × d, 1 × d × d, K × 1 × d or K × 1 × 1, in that order of types
model.items         latent class model: list of {item, categories}; no answer may stand for fewer
                    than min_count patients
model.probabilities of all categories, item after item (K rows)
=================== =========================================================================

Payload of a *labels* file:

=================== =========================================================================
models              list of {name, fingerprint}, in the order of the labels
min_count           the smallest count there may be
rare                "withhold" or "merge": what became of rarer patterns
epsilon             of the noise added to the counts; null if exact
patterns            list of label patterns, one class of each model, sorted, none twice
counts              patients of the site with each
n_withheld          patients left out; 1 … min_count − 1 is written as min_count, and null
                    stands with noise, where the number would give the exact counts away
=================== =========================================================================

Payload of an *ensemble* file:

=================== =========================================================================
models              list of the payloads of the model files, in order
ensemble            `Ensemble.to_dict()`: format, version, settings, models (names), n_classes,
                    weights, centred_weights, agreement, spectrum, n_clusters_choice, axes,
                    centres, votes, patterns, clusters, sites, cluster_sizes, n_withheld
=================== =========================================================================

Limits, checked before anything is built: 32 MB a file, nesting of 12, numbers of 30 digits,
2,500,000 lists, 500,000 texts, 127 states or 1,000 columns, 1,000 classes of a model, 1,000
models, 1,000 sites, 1,000,000 patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.checks import some, whole_number
from font.ensemble import Ensemble
from font.files import write_file
from font.kinds import (
    KINDS,
    content_of,
    local_model,
    rounded,
    variables_of,
    weights_of,
)
from font.labels import LabelPatterns
from font.latent_class import LatentClass
from font.privacy import MIN_COUNT, Released, pool_rare_rows, release
from font.protocol import SklearnModel
from font.schema import Path_, Source, fingerprint, name_of, read_file


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model as another site sent it.

    Parameters
    ----------
    study, site, name : str
    fingerprint : str
        SHA-256 of the payload.
    payload : dict
        As in the file; `payload["model"]` is what the model's own `from_dict` takes.
    """

    study: str
    site: str
    name: str
    fingerprint: str
    payload: dict[str, Any] = field(repr=False)

    @property
    def content(self) -> dict[str, Any]:
        """The model's own dict."""
        content: dict[str, Any] = self.payload["model"]
        return content

    @property
    def states(self) -> tuple[str, ...]:
        """What the model looks at: the states or, of other kinds, the columns or items."""
        return variables_of(self.content)

    @property
    def n_classes(self) -> int:
        return len(weights_of(self.content))

    @property
    def model(self) -> SklearnModel | LatentClass:
        """The model, ready to predict, of all kinds but mixtures of Markov chains.

        Those belong to another package, whose `MixtureMarkov.from_dict` takes `content`.
        """
        return local_model(self.content)

    @property
    def bic(self) -> dict[int, float]:
        """BIC by number of classes; empty if the site did not say."""
        return {row["n_classes"]: row["bic"] for row in self.payload["bic"]}

    @property
    def class_parameters_(self) -> NDArray[np.float64]:
        """One row a class, (K, d); of Markov chains initial probabilities, then transitions."""
        return KINDS[self.content["format"]].parameters(self.content)


class EnsembleFile(NamedTuple):
    """The result as the centre sent it: all that a site needs to place its patients."""

    study: str
    site: str
    ensemble: Ensemble
    models: dict[str, ModelFile]


def write_model(
    path: Path_ | None,
    model: Any,
    *,
    study: str,
    site: str,
    name: str | None = None,
    bic: Mapping[int, float] | None = None,
    support: Any = None,
    variables: Sequence[str] | None = None,
    min_count: int = MIN_COUNT,
    digits: int | None = 6,
    software: str = "font",
    created: str | None = None,
) -> ModelFile:
    """Write a fitted model for the other sites.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    model : fitted MixtureMarkov (or its `to_dict()`), KMeans, GaussianMixture or LatentClass
    study, site : str
    name : str, optional
        The site's name, or "SITE/1", … for its resamples.
    bic : {K: BIC}, optional
        For the vote on the number of clusters.
    support : (K, S), optional; (K,) for other models than Markov chains, which need it
        How many patients each row of transitions rests on, as `font.row_support` gives it;
        rows with fewer than `min_count` are pooled, see `font.privacy.pool_rare_rows`. Without
        it all rows are sent as they are, and the file says so. For other models, how many
        patients each class has.
    variables : list of str, optional
        Names of the columns, for K-means and Gaussian mixtures.
    min_count : int
        A class with fewer patients is refused; 1 suppresses nothing.
    digits : int from 4 to 12, or None
        Probabilities are rounded to so many decimals. What is possible stays possible: a
        positive probability becomes at least one unit of the last decimal. Rows sum to 1.
        Centres, means and covariances are rounded to so many significant digits.
    software, created : str
        The program, and the day (today if not given).

    Returns
    -------
    ModelFile
        What the others will read: label with this rather than with the unrounded model.
    """
    whole_number(min_count, 1, "min_count")
    stored = content_of(model, support, variables)
    n_pooled = None
    if support is not None and "params" in stored:
        stored, n_pooled = _pooled(stored, support, min_count)
    if digits is not None:
        stored = rounded(stored, digits)
    payload = {
        "name": site if name is None else name,
        "min_count": min_count,
        "digits": digits,
        "n_pooled_rows": n_pooled,
        "bic": [
            {"n_classes": int(k), "bic": round(float(v), 6 if digits is None else digits)}
            for k, v in sorted((bic or {}).items())
        ],
        "model": stored,
    }
    file = write_file(path, "model", payload, study, site, software, created)
    return _model_file(file.study, file.site, file.payload, file.sha256)


def read_model(source: Source, *, study: str | None = None) -> ModelFile:
    """Read a model file (or its bytes); with `study`, one of that study only."""
    file = read_file(source, study=study, kind="model")
    return _model_file(file.study, file.site, file.payload, file.sha256)


def read_models(sources: Iterable[Source], *, study: str | None = None) -> dict[str, ModelFile]:
    """Read all model files of a study, in the order of their names, however they are listed.

    A file is a path or its bytes. Models with a name twice, of different studies or with other
    states are refused.
    """
    found: dict[str, ModelFile] = {}
    first: ModelFile | None = None
    for source in sources:
        model, path = read_model(source, study=study), name_of(source)
        first = first or model
        if model.name in found:
            raise ValueError(
                f"the model {model.name!r} comes twice ({path} is the second); give each once."
            )
        if model.study != first.study:
            raise ValueError(
                f"{path} belongs to the study {model.study!r}, the files before it to "
                f"{first.study!r}; give the files of one study."
            )
        if model.states != first.states:
            raise ValueError(
                f"{path} has the states {some(model.states)}, but {first.name!r} has "
                f"{some(first.states)}; fit all models with the same states in the same order."
            )
        found[model.name] = model
    if not found:
        raise ValueError("there are no model files to read; give at least one.")
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


def write_labels(
    path: Path_,
    patterns: LabelPatterns,
    models: Mapping[str, ModelFile],
    *,
    study: str,
    min_count: int = MIN_COUNT,
    rare: str = "withhold",
    epsilon: float | None = None,
    seed: int | None = None,
    software: str = "font",
    created: str | None = None,
) -> Released:
    """Write how many of a site's patients have which labels, without small cells.

    Parameters
    ----------
    path : where to
    patterns : LabelPatterns
        Of this site alone, nothing withheld yet: `LabelPatterns.from_labels({site: table})`.
    models : {name: ModelFile}
        Those that labelled, as `read_models` gives them.
    study : str
    min_count, rare, epsilon, seed
        See `font.release`.
    software, created : str
        The program, and the day (today if not given).
    """
    _of_study(models, study)
    out = release(
        patterns.reorder(list(models)),
        models,
        min_count=min_count,
        rare=rare,
        epsilon=epsilon,
        seed=seed,
    )
    site, shown = str(patterns.sites[0]), out.patterns
    if not len(shown):
        raise ValueError(
            f"no label pattern of {site!r} is shared by {min_count} patients or more (it has "
            f"{patterns.n_patients:,}), so there is nothing to send; use fewer models or lower "
            "min_count if your rules allow it."
        )
    withheld = int(shown.withheld[0])
    payload = {
        "models": [{"name": m.name, "fingerprint": m.fingerprint} for m in models.values()],
        "min_count": int(min_count),
        "rare": "withhold" if epsilon is not None else rare,
        "epsilon": None if epsilon is None else float(epsilon),
        "patterns": shown.patterns.tolist(),
        "counts": shown.counts[:, 0].tolist(),
        "n_withheld": None if epsilon is not None else withheld and max(withheld, min_count),
    }
    write_file(path, "labels", payload, study, site, software, created)
    return out


def read_labels(
    source: Source, models: Mapping[str, ModelFile], *, study: str | None = None
) -> LabelPatterns:
    """Read a site's label counts, which must have been made with just these models."""
    file, path = read_file(source, study=study, kind="labels"), name_of(source)
    payload = file.payload
    told = [(row["name"], row["fingerprint"]) for row in payload["models"]]
    ours = [(model.name, model.fingerprint) for model in models.values()]
    if told != ours:
        other = [name for name, _ in set(told) ^ set(ours)] or [name for name, _ in told]
        raise ValueError(
            f"{path} was made with other models than these (they differ in "
            f"{some(sorted(set(other)))}); have the site label again with the model files that "
            "all sites use."
        )
    patterns = np.array(payload["patterns"], dtype=np.int64).reshape(-1, len(ours))
    for (name, model), highest in zip(models.items(), patterns.max(axis=0), strict=True):
        if highest >= model.n_classes:
            raise ValueError(
                f"{path} has the label {highest} from the model {name!r}, which has "
                f"{model.n_classes} classes; have the site label again."
            )
    counts = np.array(payload["counts"], dtype=np.int64)[:, None]
    withheld = np.array([payload["n_withheld"] or 0], dtype=np.int64)
    small = patterns.astype(np.min_scalar_type(-int(patterns.max()) - 1))
    return LabelPatterns(tuple(models), (file.site,), small, counts, withheld)


def write_ensemble(
    path: Path_,
    ensemble: Ensemble,
    models: Mapping[str, ModelFile],
    *,
    study: str,
    site: str = "centre",
    software: str = "font",
    created: str | None = None,
) -> None:
    """Write the centre's result, with the models, so that sites can place their patients."""
    _of_study(models, study)
    if tuple(ensemble.models_) != tuple(models):
        raise ValueError(
            f"the ensemble has the models {some(ensemble.models_)}, the files {some(models)}; "
            "give the models it was fitted with, in their order."
        )
    payload = {"models": [m.payload for m in models.values()], "ensemble": ensemble.to_dict()}
    write_file(path, "ensemble", payload, study, site, software, created)


def read_ensemble(source: Source, *, study: str | None = None) -> EnsembleFile:
    """Read the centre's result: the ensemble and the models it needs."""
    file = read_file(source, study=study, kind="ensemble")
    models = {}
    for payload in file.payload["models"]:
        name = payload["name"]
        models[name] = _model_file(
            file.study, name.partition("/")[0], payload, fingerprint(payload)
        )
    return EnsembleFile(file.study, file.site, Ensemble.from_dict(file.payload["ensemble"]), models)


def _of_study(models: Mapping[str, ModelFile], study: str) -> None:
    other = [model.name for model in models.values() if model.study != study]
    if other or not models:
        raise ValueError(
            f"the models of the study {study!r} are needed; found "
            + (f"{some(other)} of another study." if other else "none.")
        )


def _model_file(study: str, site: str, payload: dict[str, Any], mark: str) -> ModelFile:
    return ModelFile(study, site, payload["name"], mark, payload)


def _natural(name: str) -> tuple[str, int]:
    site, _, number = name.partition("/")
    return site, int(number or 0)


def _pooled(stored: dict[str, Any], support: Any, min_count: int) -> tuple[dict[str, Any], int]:
    if min_count == 1:
        return stored, 0
    params = stored["params"]
    rows, n_pooled = pool_rare_rows(params["transition"], support, min_count)
    return stored | {"params": {**params, "transition": rows.tolist()}}, n_pooled
