"""The three files that sites and centre exchange: models, cross-tables of labels, the ensemble.

`font.exchange.spec` says what is in them, `font.exchange.privacy` what may be. They stand in one
module, because the function that writes a kind of file and the one that reads it must agree on
every field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.checks import class_parameters, some, whole_number
from font.cross_tables import CrossTables
from font.ensemble import Ensemble
from font.errors import InputError
from font.exchange.fields import MOST_CLASSES_IN_ALL
from font.exchange.parse import Path_, Source, name_of
from font.exchange.privacy import (
    MIN_COUNT,
    Draws,
    SecretDraws,
    label_unit,
    round_counts,
    shared_draws,
)
from font.exchange.registry import ModelKind, all_kinds, kind_of
from font.exchange.rules import label_counts, later_models
from font.exchange.schema import fingerprint, read_file, write_file
from font.exchange.signatures import Keys


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model as a site sent it.

    Parameters
    ----------
    study, site, name : str
    fingerprint : str
        SHA-256 of the payload.
    payload : dict
        As in the file.
    data : bytes
        The file, if it was written here.
    """

    study: str
    site: str
    name: str
    fingerprint: str
    payload: dict[str, Any] = field(repr=False)
    data: bytes = field(repr=False, default=b"")

    @property
    def content(self) -> dict[str, Any]:
        """The model in numbers, as `font.exchange.spec` describes it."""
        content: dict[str, Any] = self.payload["model"]
        return content

    @property
    def kind(self) -> ModelKind:
        return kind_of(self.content["format"])

    @cached_property
    def model(self) -> Any:
        """The model, ready to predict."""
        return self.kind.read(self.content)

    @property
    def states(self) -> tuple[str, ...]:
        """What the model looks at: the states or, of other kinds, the columns or items."""
        return self.kind.variables(self.content)

    @property
    def n_classes(self) -> int:
        return len(self.content["patients"])

    @property
    def bic(self) -> dict[int, int]:
        """By number of classes, BIC minus the lowest; empty if the site did not compare."""
        return {row["n_classes"]: row["above_best"] for row in self.payload["bic"]}

    @property
    def vote(self) -> int:
        """The number of classes that the site votes for: of lowest BIC, or its model's own."""
        return min(self.bic, key=lambda k: (self.bic[k], k)) if self.bic else self.n_classes

    @property
    def class_parameters_(self) -> NDArray[np.float64]:
        """One row per class, (K, d)."""
        return class_parameters(self.model, self.name)


class LabelsFile(NamedTuple):
    """A site's cross-tables as they were written, rounded."""

    tables: CrossTables
    data: bytes


class EnsembleFile(NamedTuple):
    """The result as the centre sent it: all that a site needs to place its patients."""

    study: str
    site: str
    ensemble: Ensemble
    models: dict[str, ModelFile]


def write_model(
    path: Path_ | None,
    model: Any,
    data: Any,
    *,
    study: str,
    site: str,
    name: str | None = None,
    round: int = 1,
    bic: Mapping[int, float] | None = None,
    min_count: int = MIN_COUNT,
    draws: Draws | None = None,
    software: str = "font",
    created: str | None = None,
    signing_key: Path_ | None = None,
) -> ModelFile:
    """Write a fitted model for the other sites, as counts that may leave.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    model : fitted model of a registered kind
        K-means or a Gaussian mixture of scikit-learn, `font.LatentClass`, `mmlca.MixtureMarkov`.
    data
        The patients it was fitted to: what its `predict` takes.
    study, site : str
    name : str, optional
        The site's name, or "SITE/1", … for its resamples.
    round : int
    bic : {K: BIC}, optional
        For the vote on the number of clusters.
    min_count : int
        Counts are rounded to multiples of it; a class with fewer patients is refused.
    draws : Draws, optional
        Where the random numbers come from; new secret ones if not given. All resamples of a site
        should get the same draws, so that together they tell no more than one.
    software, created : str
        The program, and the day (today if not given).
    signing_key : path, optional
        The site's private key, to sign the file with; see `font.exchange.signatures`.

    Returns
    -------
    ModelFile
        What the others will read: label with its `model` rather than with the one that was fitted.
    """
    whole_number(min_count, 1, "min_count")
    kinds = [kind for kind in all_kinds().values() if kind.is_kind(model)]
    if not kinds:
        known = ", ".join(kind.name for kind in all_kinds().values())
        raise InputError(
            f"a fitted {type(model).__name__} cannot be exchanged; known here are: {known}."
        )
    lowest = min((bic or {}).values(), default=0.0)
    payload = {
        "name": site if name is None else name,
        "min_count": min_count,
        "bic": [
            {"n_classes": int(k), "above_best": int(np.rint(value - lowest))}
            for k, value in sorted((bic or {}).items())
        ],
        "model": kinds[0].write(model, data, min_count, draws or SecretDraws()),
    }
    about: dict[str, Any] = {"study": study, "site": site, "round": round, "software": software}
    file, sent = write_file(
        path, "model", payload, created=created, signing_key=signing_key, **about
    )
    return ModelFile(file.study, file.site, file.payload["name"], file.sha256, file.payload, sent)


def read_model(
    source: Source,
    *,
    study: str | None = None,
    min_count: int = 1,
    round: int | None = None,
    keys: Keys = None,
) -> ModelFile:
    """Read a model file (or its bytes).

    With `study`, `round` and `min_count`, only one of that study and round whose counts were
    rounded to multiples of at least `min_count`; with `keys` ({site: public key}), of these sites
    only what they signed.
    """
    file = read_file(source, study=study, kind="model", min_count=min_count, round=round, keys=keys)
    return ModelFile(file.study, file.site, file.payload["name"], file.sha256, file.payload)


def read_models(
    sources: Iterable[Source],
    *,
    study: str | None = None,
    min_count: int = 1,
    round: int | None = None,
    keys: Keys = None,
) -> dict[str, ModelFile]:
    """Read all model files of a study, in the order of their names, however they are listed.

    A file is a path or its bytes. Models with a name twice, of different studies or with other
    states are refused.
    """
    models: dict[str, ModelFile] = {}
    first: ModelFile | None = None
    n_classes = 0
    for source in sources:
        path = name_of(source)
        model = read_model(source, study=study, min_count=min_count, round=round, keys=keys)
        first = first or model
        if model.name in models:
            raise InputError(
                f"the model {model.name!r} comes twice ({path} is the second); give each once."
            )
        if model.study != first.study:
            raise InputError(
                f"{path} belongs to the study {model.study!r}, the files before it to "
                f"{first.study!r}; give the files of one study."
            )
        if model.states != first.states:
            raise InputError(
                f"{path} has the states {some(model.states)}, but {first.name!r} has "
                f"{some(first.states)}; fit all models with the same states in the same order."
            )
        n_classes += model.n_classes
        if n_classes > MOST_CLASSES_IN_ALL:
            raise InputError(
                f"the models have more than {MOST_CLASSES_IN_ALL:,} classes in all; use fewer."
            )
        models[model.name] = model
    if not models:
        raise InputError("there are no model files to read; give at least one.")
    return dict(sorted(models.items(), key=lambda item: _natural(item[0])))


def list_fingerprint(models: Mapping[str, ModelFile]) -> str:
    """One fingerprint of a whole list of models, for sites to compare by telephone."""
    return fingerprint({name: model.fingerprint for name, model in models.items()})


def write_labels(
    path: Path_ | None,
    tables: CrossTables,
    models: Mapping[str, ModelFile],
    *,
    study: str,
    round: int = 1,
    min_count: int = MIN_COUNT,
    draws: Draws | None = None,
    software: str = "font",
    created: str | None = None,
    signing_key: Path_ | None = None,
) -> LabelsFile:
    """Write a site's cross-tables of labels, every count rounded at random.

    With more than five models the unit is a multiple of `min_count`, see
    `font.exchange.privacy.label_unit`.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    tables : CrossTables
        Of this site alone, exact: `CrossTables.from_labels({site: table}, n_classes)`.
    models : {name: ModelFile}
        Those that labelled, as `read_models` gives them.
    study, round, min_count, draws, software, created, signing_key
        As in `write_model`.
    """
    _of_study(models, study)
    if len(tables.tables) != 1:
        raise InputError(
            f"a site releases its own counts only; found the sites {some(tables.tables)}."
        )
    if tables.models != tuple(models):
        raise InputError("the tables were made with other models than those given; label again.")
    ((site, exact),) = tables.tables.items()
    cuts = tables.offsets
    unit = label_unit(min_count, len(models))
    rounded = round_counts(exact, unit, shared_draws(exact, cuts, draws or SecretDraws()))
    blocks = [slice(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    payload = {
        "models": [{"name": m.name, "fingerprint": m.fingerprint} for m in models.values()],
        "min_count": unit,
        "classes": [np.diag(rounded)[block].tolist() for block in blocks],
        "tables": [
            " ".join(map(str, rounded[row, block.stop :].tolist()))
            for block in blocks[:-1]
            for row in range(block.start, block.stop)
        ],
    }
    about: dict[str, Any] = {
        "study": study,
        "site": str(site),
        "round": round,
        "software": software,
    }
    _, sent = write_file(path, "labels", payload, created=created, signing_key=signing_key, **about)
    return LabelsFile(
        CrossTables(tables.models, tables.n_classes, {site: rounded.astype(float)}), sent
    )


def read_labels(
    source: Source,
    models: Mapping[str, ModelFile],
    *,
    study: str | None = None,
    min_count: int = 1,
    round: int | None = None,
    keys: Keys = None,
) -> CrossTables:
    """Read a site's cross-tables, which must have been made with just these models."""
    rules: dict[str, Any] = {"study": study, "min_count": min_count, "round": round, "keys": keys}
    file = read_file(source, kind="labels", **rules)
    payload, path = file.payload, name_of(source)
    theirs = [(row["name"], row["fingerprint"]) for row in payload["models"]]
    ours = [(model.name, model.fingerprint) for model in models.values()]
    if theirs != ours:
        other = [name for name, _ in set(theirs) ^ set(ours)] or [name for name, _ in theirs]
        raise InputError(
            f"{path} was made with other models than these (they differ in "
            f"{some(sorted(set(other)))}); have the site label again with the model files that "
            "all sites use."
        )
    sizes = tuple(len(part) for part in payload["classes"])
    if sizes != tuple(model.n_classes for model in models.values()):
        raise InputError(f"{path} has other numbers of classes than its models; label again.")
    total = np.diag(np.concatenate(payload["classes"]).astype(float))
    if len(sizes) > 1:
        total[later_models(sizes)] = label_counts(payload["tables"])
        total += np.triu(total, 1).T
    return CrossTables(tuple(models), sizes, {file.site: total})


def write_ensemble(
    path: Path_ | None,
    ensemble: Ensemble,
    models: Mapping[str, ModelFile],
    *,
    study: str,
    site: str = "centre",
    round: int = 1,
    software: str = "font",
    created: str | None = None,
    signing_key: Path_ | None = None,
) -> bytes:
    """Write the centre's result, with the models, so that sites can place their patients."""
    _of_study(models, study)
    if tuple(ensemble.models_) != tuple(models):
        raise InputError(
            f"the ensemble has the models {some(ensemble.models_)}, the files {some(models)}; "
            "give the models it was fitted with, in their order."
        )
    payload = {"models": [m.payload for m in models.values()], "ensemble": ensemble.to_dict()}
    about: dict[str, Any] = {"study": study, "site": site, "round": round, "software": software}
    return write_file(path, "ensemble", payload, created=created, signing_key=signing_key, **about)[
        1
    ]


def read_ensemble(
    source: Source, *, study: str | None = None, round: int | None = None, keys: Keys = None
) -> EnsembleFile:
    """Read the centre's result: the ensemble and the models it needs."""
    file = read_file(source, study=study, kind="ensemble", round=round, keys=keys)
    models = {}
    for payload in file.payload["models"]:
        name = payload["name"]
        site = name.partition("/")[0]
        models[name] = ModelFile(file.study, site, name, fingerprint(payload), payload)
    ensemble = Ensemble.from_dict(file.payload["ensemble"])
    return EnsembleFile(file.study, file.site, ensemble, models)


def file_name(name: str, kind: str) -> str:
    """What a site's file is called, such as "MGB-1.model.json".

    Examples
    --------
    >>> file_name("south hospital/2", "model")
    'south_hospital-2.model.json'
    """
    return f"{name.replace('/', '-').replace(' ', '_')}.{kind}.json"


def file_names(names: Iterable[str], kind: str) -> dict[str, str]:
    """The file names of several sites, no two alike.

    Examples
    --------
    >>> file_names(["a b", "a_b"], "labels")
    {'a b': 'a_b.labels.json', 'a_b': 'a_b-2.labels.json'}
    """
    files: dict[str, str] = {}
    for name in names:
        file, number = file_name(name, kind), 2
        while file in files.values():
            file, number = file_name(f"{name}-{number}", kind), number + 1
        files[name] = file
    return files


def _of_study(models: Mapping[str, ModelFile], study: str) -> None:
    other = [model.name for model in models.values() if model.study != study]
    if other or not models:
        raise InputError(
            f"the models of the study {study!r} are needed; found "
            + (f"{some(other)} of another study." if other else "none.")
        )


def _natural(name: str) -> tuple[str, int]:
    site, _, number = name.partition("/")
    return site, int(number or 0)
