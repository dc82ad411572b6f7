"""The three files that sites and centre exchange: models, label counts, the ensemble.

"One round" is one upload of parameters (model files, site → all), one upload of counts
(labels files, site → centre) and one broadcast of the result (ensemble file, centre → all).

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
digits              decimals of the probabilities; null if not rounded
n_pooled_rows       rows of transitions resting on fewer than min_count patients, which were
                    replaced by the average over classes; null if that was not looked at
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
2,500,000 lists, 500,000 texts, 127 states, 1,000 classes of a model, 1,000 models, 1,000 sites,
1,000,000 patterns.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from font.checks import some, whole_number
from font.ensemble import Ensemble
from font.labels import LabelPatterns
from font.privacy import MIN_COUNT, Released, pool_rare_rows, release

FORMAT, VERSION = "font exchange", 1
KINDS = ("model", "labels", "ensemble")
FILE_LIMIT = 32 * 2**20
_MOST_STATES, _MOST_CLASSES, _MOST_MODELS, _MOST_PATTERNS = 127, 1_000, 1_000, 1_000_000
_DEEPEST, _MOST_LISTS, _MOST_TEXTS = 12, 2_500_000, 500_000
_SUM_TOLERANCE = 1e-8

Path_ = str | os.PathLike[str]


# --- what users call -------------------------------------------------------------------


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
        return tuple(self.content["states"])

    @property
    def n_classes(self) -> int:
        return len(self.content["params"]["weights"])

    @property
    def bic(self) -> dict[int, float]:
        """BIC by number of classes; empty if the site did not say."""
        return {row["n_classes"]: row["bic"] for row in self.payload["bic"]}

    @property
    def class_parameters_(self) -> NDArray[np.float64]:
        """One row a class: initial probabilities, then transitions, (K, S + S²)."""
        params = self.content["params"]
        transition = np.array(params["transition"], dtype=float)
        return np.hstack([np.array(params["initial"], dtype=float), _flat(transition)])


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
    min_count: int = MIN_COUNT,
    digits: int | None = 6,
    software: str = "font",
    created: str | None = None,
) -> ModelFile:
    """Write a fitted mixture of Markov chains for the other sites.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    model : fitted model, or its `to_dict()`
    study, site : str
    name : str, optional
        The site's name, or "SITE/1", … for its resamples.
    bic : {K: BIC}, optional
        For the vote on the number of clusters.
    support : (K, S), optional
        How many patients each row of transitions rests on, as `font.row_support` gives it;
        rows with fewer than `min_count` are replaced by the average over classes. Without it
        all rows are sent as they are, and the file says so.
    min_count : int
        A class with fewer patients is refused; 1 suppresses nothing.
    digits : int from 4 to 12, or None
        Probabilities are rounded to so many decimals. What is possible stays possible: a
        positive probability becomes at least one unit of the last decimal. Rows sum to 1.
    software, created : str
        The program, and the day (today if not given).

    Returns
    -------
    ModelFile
        What the others will read: label with this rather than with the unrounded model.
    """
    whole_number(min_count, 1, "min_count")
    stored = dict(model.to_dict() if hasattr(model, "to_dict") else model)
    n_pooled = None
    if support is not None:
        stored, n_pooled = _pooled_model(stored, support, min_count)
    if digits is not None:
        stored = _rounded_model(stored, digits)
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
    file = _write(path, "model", payload, study, site, software, created)
    return _model_file(file.study, file.site, file.payload, file.sha256)


def read_model(path: Path_, *, study: str | None = None) -> ModelFile:
    """Read a model file; with `study`, one of that study only."""
    file = read_file(path, study=study, kind="model")
    return _model_file(file.study, file.site, file.payload, file.sha256)


def read_models(paths: Iterable[Path_], *, study: str | None = None) -> dict[str, ModelFile]:
    """Read all model files of a study, in the order of their names, however they are listed.

    Models with a name twice, of different studies or with other states are refused.
    """
    found: dict[str, ModelFile] = {}
    first: ModelFile | None = None
    for path in paths:
        model = read_model(path, study=study)
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
    _write(path, "labels", payload, study, site, software, created)
    return out


def read_labels(
    path: Path_, models: Mapping[str, ModelFile], *, study: str | None = None
) -> LabelPatterns:
    """Read a site's label counts, which must have been made with just these models."""
    file = read_file(path, study=study, kind="labels")
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
    _write(path, "ensemble", payload, study, site, software, created)


def read_ensemble(path: Path_, *, study: str | None = None) -> EnsembleFile:
    """Read the centre's result: the ensemble and the models it needs."""
    file = read_file(path, study=study, kind="ensemble")
    models = {}
    for payload in file.payload["models"]:
        name = payload["name"]
        models[name] = _model_file(
            file.study, name.partition("/")[0], payload, fingerprint(payload)
        )
    return EnsembleFile(file.study, file.site, Ensemble.from_dict(file.payload["ensemble"]), models)


def fingerprint(payload: Mapping[str, Any]) -> str:
    """SHA-256 of a payload as canonical JSON: keys sorted, no spaces, UTF-8.

    Examples
    --------
    >>> fingerprint({"b": 1, "a": [0.5]}) == fingerprint({"a": [0.5], "b": 1})
    True
    """
    return hashlib.sha256(_canonical(payload)).hexdigest()


def check_names(study: str, site: str) -> None:
    """Refuse names that a file could not carry, before any work is done."""
    for what, name in (("study", study), ("site", site)):
        if not isinstance(name, str) or not re.fullmatch(_SITE, name):
            raise ValueError(
                f"the {what} {_short(name)} needs another name: 1 to 64 letters, digits, spaces, "
                "dots, hyphens and underscores, the first a letter or digit."
            )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of each kind of file: {"model": …, "labels": …, "ensemble": …}."""
    schemas: dict[str, Any] = {}
    for kind, content in _PAYLOADS.items():
        schema = Envelope.model_json_schema()
        inner = content.model_json_schema(ref_template="#/$defs/{model}")
        schema["$defs"] = schema.get("$defs", {}) | inner.pop("$defs", {})
        schema["properties"] |= {"payload": inner, "kind": {"const": kind}}
        schemas[kind] = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
    return schemas


# --- what a file may contain -----------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


_SITE = r"\w[\w .\-]{0,63}"
_PRINTED = r"^[^\p{C}\p{Zl}\p{Zp}]"  # nothing that hides, breaks or turns the line
Site = Annotated[str, Field(pattern=f"^{_SITE}$")]
Name = Annotated[str, Field(pattern=f"^{_SITE}(/[0-9]{{1,4}})?$")]
Text = Annotated[str, Field(max_length=100, pattern=_PRINTED + "*$")]
Label = Annotated[str, Field(min_length=1, max_length=200, pattern=_PRINTED + "+$")]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**12)]
One = Annotated[int, Field(ge=1, le=1)]  # a Literal would take true and 1.0
Least = Annotated[int, Field(ge=1, le=10**6)]
Size = Annotated[int, Field(ge=1, le=_MOST_CLASSES)]
Class = Annotated[int, Field(ge=0, lt=_MOST_CLASSES)]
Row = Annotated[list[Share], Field(min_length=1, max_length=_MOST_STATES)]
Numbers = Annotated[list[Number], Field(max_length=_MOST_PATTERNS)]
Pattern = Annotated[list[Class], Field(min_length=1, max_length=_MOST_MODELS)]
Patterns = Annotated[list[Pattern], Field(min_length=1, max_length=_MOST_PATTERNS)]


class Envelope(_Strict):
    """What all files have."""

    format: Literal["font exchange"]
    version: One
    kind: Literal["model", "labels", "ensemble"]
    study: Site
    site: Site
    created: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    software: Text
    payload: dict[str, Any]
    sha256: Hash


class ParamsPart(_Strict):
    """Probabilities of a mixture of Markov chains."""

    weights: Annotated[list[Share], Field(min_length=1, max_length=_MOST_CLASSES)]
    initial: Annotated[list[Row], Field(min_length=1, max_length=_MOST_CLASSES)]
    transition: Annotated[
        list[Annotated[list[Row], Field(max_length=_MOST_STATES)]],
        Field(min_length=1, max_length=_MOST_CLASSES),
    ]


class ModelPart(_Strict):
    """The model's own dict."""

    format: Literal["mmlca model"]
    version: One
    software: Text
    states: Annotated[list[Label], Field(min_length=1, max_length=_MOST_STATES)]
    params: ParamsPart
    n_parameters: Count
    prior: Annotated[Number, Field(ge=0)]
    loglik: Annotated[Number, Field(le=0)]
    n_sequences: Annotated[Number, Field(gt=0)]
    n_timepoints: Annotated[Number, Field(gt=0)]
    classification_entropy: Annotated[Number, Field(ge=0)]
    converged: bool
    n_replicated: Count


class BicPart(_Strict):
    """The site's BIC for one number of classes."""

    n_classes: Size
    bic: Number


class ModelPayload(_Strict):
    """A site's model."""

    name: Name
    min_count: Least
    digits: Annotated[int, Field(ge=4, le=12)] | None
    n_pooled_rows: Annotated[int, Field(ge=0, le=_MOST_CLASSES * _MOST_STATES)] | None
    bic: Annotated[list[BicPart], Field(max_length=_MOST_CLASSES)]
    model: ModelPart


class ModelName(_Strict):
    """A model that a labels file refers to."""

    name: Name
    fingerprint: Hash


class LabelsPayload(_Strict):
    """A site's label patterns and their counts."""

    models: Annotated[list[ModelName], Field(min_length=1, max_length=_MOST_MODELS)]
    min_count: Least
    rare: Literal["withhold", "merge"]
    epsilon: Annotated[Number, Field(gt=0)] | None
    patterns: Patterns
    counts: Annotated[list[Count], Field(min_length=1, max_length=_MOST_PATTERNS)]
    n_withheld: Count | None


class SettingsPart(_Strict):
    """How the ensemble was made."""

    n_clusters: Size | None
    weights: Literal["spectral", "centred", "equal", "prior", "sparse"]
    distance: Literal["euclidean", "hellinger", "total-variation", "function"]
    method: Literal["kmeans", "kmeans-distance", "average", "complete", "ward", "spectral"]
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)]


class EnsemblePart(_Strict):
    """`Ensemble.to_dict()`."""

    format: Literal["font ensemble"]
    version: One
    settings: SettingsPart
    models: Annotated[list[Name], Field(min_length=1, max_length=_MOST_MODELS)]
    n_classes: Annotated[list[Size], Field(min_length=1, max_length=_MOST_MODELS)]
    weights: Annotated[list[Annotated[Number, Field(ge=0)]], Field(max_length=_MOST_MODELS)]
    centred_weights: Annotated[list[Number], Field(max_length=_MOST_MODELS)]
    agreement: Annotated[list[Numbers], Field(max_length=_MOST_MODELS)]
    spectrum: Numbers
    n_clusters_choice: Annotated[
        list[Number | Literal["clear", "fair", "doubtful"]], Field(min_length=4, max_length=4)
    ]
    axes: Annotated[list[Numbers], Field(min_length=1, max_length=_MOST_PATTERNS)]
    centres: Annotated[list[Numbers], Field(min_length=1, max_length=_MOST_CLASSES)]
    votes: Annotated[list[Annotated[int, Field(ge=-1, lt=_MOST_CLASSES)]], Field(min_length=1)]
    patterns: Patterns
    clusters: Annotated[list[Class], Field(min_length=1, max_length=_MOST_PATTERNS)]
    sites: Annotated[list[Site], Field(min_length=1, max_length=1_000)]
    cluster_sizes: Annotated[list[list[Count]], Field(max_length=_MOST_CLASSES)]
    n_withheld: Count


class EnsemblePayload(_Strict):
    """The centre's result and the models it rests on."""

    models: Annotated[list[ModelPayload], Field(min_length=1, max_length=_MOST_MODELS)]
    ensemble: EnsemblePart


_PAYLOADS: dict[str, type[_Strict]] = {
    "model": ModelPayload,
    "labels": LabelsPayload,
    "ensemble": EnsemblePayload,
}


# --- reading -----------------------------------------------------------------------------


def read_file(path: Path_, *, study: str | None = None, kind: str | None = None) -> Envelope:
    """Read and check an exchange file of any kind.

    Parameters
    ----------
    path : the file
    study : str, optional
        Refuse files of another study.
    kind : "model", "labels" or "ensemble", optional
        Refuse files of another kind.
    """
    return _checked(_parse(_bytes_of(Path(path)), str(path)), str(path), study, kind)


def _bytes_of(path: Path) -> bytes:
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # before it is opened: a pipe would wait for ever
        raise ValueError(f"{path} is not a regular file; give an exchange file.")
    size, data = about.st_size, b""
    if size <= FILE_LIMIT:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT + 1)  # it may have grown
        size = len(data)
    if size > FILE_LIMIT:
        raise ValueError(
            f"{path} has {size:,} bytes or more, at most {FILE_LIMIT:,} are read; ask the sender "
            "for fewer patterns (a higher min_count)."
        )
    return data


def _parse(data: bytes, what: str) -> Any:
    """JSON, after a look at its shape that costs little memory and linear time."""
    if data.count(b'"') > 2 * _MOST_TEXTS:
        raise ValueError(
            f"{what} has more than {_MOST_TEXTS:,} texts, which no exchange file has; ask the "
            "sender to write it again."
        )
    # possessive, and the last quote optional: no file makes it start over
    bare = re.sub(rb'"(?:[^"\\]++|\\.)*+"?', b"", data, flags=re.DOTALL)
    _refuse_towers(bare.translate(_STEPS, _NO_BRACKETS), what)
    if re.search(rb"[0-9]{31}", bare):
        raise ValueError(
            f"{what} has a number of more than 30 digits; ask the sender to write it again."
        )
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except UnicodeDecodeError:
        raise ValueError(f"{what} is not UTF-8 text; ask the sender to write it again.") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{what} is not JSON (line {error.lineno}: {error.msg}); ask the sender to send it "
            "again."
        ) from None
    except ValueError as error:
        raise ValueError(f"{what} {error}; ask the sender to write it again.") from None


_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: up, down
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def _refuse_towers(brackets: bytes, what: str) -> None:
    """Refuse what nests deeply or has millions of lists."""
    steps = np.frombuffer(brackets, dtype=np.int8)
    depth, block = 0, 1 << 20
    for start in range(0, len(steps), block):
        levels = depth + np.cumsum(steps[start : start + block], dtype=np.int64)
        if levels.max() > _DEEPEST:
            raise ValueError(
                f"{what} is nested more than {_DEEPEST} deep, which no exchange file is; ask the "
                "sender to write it again."
            )
        depth = int(levels[-1])
    if len(brackets) > 2 * _MOST_LISTS:
        raise ValueError(
            f"{what} has more than {_MOST_LISTS:,} lists; ask the sender for fewer patterns (a "
            "higher min_count)."
        )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"has the field {_short(twice)} twice")
    return found


def _no_constant(word: str) -> float:
    raise ValueError(f"has the value {word}, which is not a number of JSON")


def _checked(content: Any, what: str, study: str | None, kind: str | None) -> Envelope:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(
            f"{what} is not an exchange file: its format should be {FORMAT!r}; give a file that "
            "mmlca wrote for exchange."
        )
    if type(content.get("version")) is not int or content["version"] != VERSION:
        raise ValueError(
            f"{what} has the version {_short(content.get('version'))}, this program reads "
            f"{VERSION}; use the same release of mmlca at all sites."
        )
    file: Envelope = _validated(Envelope, content, what)
    if kind is not None and file.kind != kind:
        raise ValueError(f"{what} is a file of the kind {file.kind!r}; give one of {kind!r}.")
    if study is not None and file.study != study:
        raise ValueError(
            f"{what} belongs to the study {file.study!r}, not to {study!r}; give the files of one "
            "study."
        )
    try:
        found = fingerprint(file.payload)
    except ValueError:  # 1e999 becomes infinite; half a surrogate pair is no text
        raise ValueError(
            f"{what} has a number or a text that JSON cannot hold; ask the sender to write it "
            "again."
        ) from None
    if found != file.sha256:
        raise ValueError(
            f"{what} was changed or damaged after it was written: its checksum does not match; "
            "ask the sender to send it again."
        )
    _validated(_PAYLOADS[file.kind], file.payload, what, "payload.")
    _RULES[file.kind](file.payload, file.site, what)
    return file


def _validated(schema: type[Any], content: Any, what: str, prefix: str = "") -> Any:
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = prefix + ".".join(_short(part, 40).strip("'") for part in first["loc"])
        raise ValueError(
            f"{what} does not fit the specification at {where} "
            f"({first['msg'][:200].rstrip('.')}); ask the sender to write it again."
        ) from None


def _model_rules(payload: Mapping[str, Any], site: str, what: str) -> None:
    model = payload["model"]
    name, states, params = payload["name"], model["states"], model["params"]
    k, s = len(params["weights"]), len(states)
    if name.partition("/")[0] != site:
        raise _unfit(what, f"its model {name!r} does not carry the name of the site {site!r}")
    if len(set(states)) != s:
        raise _unfit(what, f"its states {some(states)} are not distinct")
    if len({row["n_classes"] for row in payload["bic"]}) != len(payload["bic"]):
        raise _unfit(what, "it has two values of BIC for one number of classes")
    wanted = {"weights": (k,), "initial": (k, s), "transition": (k, s, s)}
    for part, shape in wanted.items():
        array = _array(params[part], what, f"its {part}")
        if array.shape != shape:
            raise _unfit(what, f"its {part} have the shape {array.shape} in place of {shape}")
        sums = array.sum(axis=-1)
        worst = float(np.ravel(sums)[np.abs(sums - 1).argmax()])
        if abs(worst - 1) > _SUM_TOLERANCE:
            raise _unfit(what, f"its {part} sum to {worst:.9g} in place of 1")
    smallest = min(params["weights"]) * model["n_sequences"]
    if smallest < payload["min_count"] - 1e-6:
        raise ValueError(
            f"{what}: a class of the model {name!r} has about {smallest:.1f} patients, fewer than "
            f"{payload['min_count']}; fit fewer classes, or more patients."
        )


def _labels_rules(payload: Mapping[str, Any], site: str, what: str) -> None:
    names = [row["name"] for row in payload["models"]]
    if len(set(names)) != len(names):
        raise _unfit(what, f"it names the models {some(names)} with repeats")
    patterns, counts, least = payload["patterns"], payload["counts"], payload["min_count"]
    if len(patterns) != len(counts):
        raise _unfit(what, f"it has {len(patterns):,} patterns but {len(counts):,} counts")
    if any(len(row) != len(names) for row in patterns):
        raise _unfit(what, f"its patterns do not all have {len(names)} labels, one a model")
    if any(not a < b for a, b in zip(patterns, patterns[1:], strict=False)):
        raise _unfit(what, "its patterns are not in order, or one comes twice")
    if min(counts) < least:
        raise _unfit(what, f"it has the count {min(counts)}, below its own min_count of {least}")
    withheld = payload["n_withheld"]
    if (withheld is None) != (payload["epsilon"] is not None):
        raise _unfit(what, "n_withheld must be null with noise, and a number without")
    if withheld and withheld < least:
        raise _unfit(what, f"it says that {withheld} patients are withheld, below {least}")


def _ensemble_rules(payload: Mapping[str, Any], site: str, what: str) -> None:
    models, part = payload["models"], payload["ensemble"]
    for model in models:
        _model_rules(model, model["name"].partition("/")[0], what)
    names = [model["name"] for model in models]
    if len(set(names)) != len(names):
        raise _unfit(what, f"the models {some(names)} come with repeats")
    if names != part["models"]:
        raise _unfit(what, "its ensemble names other models than those it carries")
    if any(model["model"]["states"] != models[0]["model"]["states"] for model in models):
        raise _unfit(what, "its models do not all have the same states")
    sizes = [len(model["model"]["params"]["weights"]) for model in models]
    if sizes != part["n_classes"]:
        raise _unfit(what, "its n_classes are not those of its models")
    if len(set(part["sites"])) != len(part["sites"]):
        raise _unfit(what, f"the sites {some(part['sites'])} come with repeats")
    choice = part["n_clusters_choice"]
    kinds = [isinstance(value, str) for value in choice]
    if kinds != [False, False, False, True] or not isinstance(choice[0], int):
        raise _unfit(what, "its n_clusters_choice is not a number, two shares and a word")
    if not 1 <= choice[0] <= sum(sizes) + 1:
        raise _unfit(what, f"its n_clusters_choice says {choice[0]} clusters")
    if any(len(row) != len(names) for row in part["patterns"]):
        raise _unfit(what, f"its patterns do not all have {len(names)} labels, one a model")
    if any(not a < b for a, b in zip(part["patterns"], part["patterns"][1:], strict=False)):
        raise _unfit(what, "its patterns are not in order, or one comes twice")
    if (np.max(part["patterns"], axis=0) >= sizes).any():
        raise _unfit(what, "its patterns have labels that its models do not know")
    if max(part["votes"]) >= len(part["centres"]):
        raise _unfit(what, "its votes are for clusters that it does not have")
    try:
        Ensemble.from_dict(part)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


_RULES = {"model": _model_rules, "labels": _labels_rules, "ensemble": _ensemble_rules}


def _array(values: Any, what: str, part: str) -> NDArray[np.float64]:
    try:
        return np.array(values, dtype=float)
    except ValueError:
        raise _unfit(what, f"{part} have rows of unequal length") from None


def _unfit(what: str, wrong: str) -> ValueError:
    return ValueError(f"{what} does not fit together: {wrong}; ask the sender to write it again.")


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


def _short(value: Any, most: int = 60) -> str:
    """Something from a stranger's file for a message: on one line, not long."""
    text = ascii(value)
    return text if len(text) <= most else text[: most - 1] + "…"


# --- writing -----------------------------------------------------------------------------


def _write(
    path: Path_ | None,
    kind: str,
    payload: dict[str, Any],
    study: str,
    site: str,
    software: str,
    created: str | None,
) -> Envelope:
    """Write a file that the reader accepts, or nothing."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "study": study,
        "site": site,
        "created": created or datetime.now(UTC).date().isoformat(),
        "software": software,
        "payload": payload,
    }
    try:
        content["sha256"] = fingerprint(payload)
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = text.encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"the {kind} cannot be written as JSON: {error}.") from None
    if len(data) > FILE_LIMIT:
        raise ValueError(
            f"the {kind} file would have {len(data):,} bytes, at most {FILE_LIMIT:,} are read; "
            "raise min_count or use fewer models."
        )
    file = _checked(_parse(data, f"the {kind} file"), f"the {kind} file", study, kind)
    if path is not None:
        atomic_write(Path(path), data)
    return file


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file wholly or not at all: beside it, flushed to the disk, then renamed.

    Folders that are not there are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _canonical(payload: Mapping[str, Any]) -> bytes:
    text = json.dumps(
        payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def _params_of(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    params = stored.get("params")
    if not isinstance(params, Mapping) or "transition" not in params:
        raise ValueError(
            "only models with the parameters of a mixture of Markov chains can be exchanged; give "
            "a fitted MixtureMarkov."
        )
    return params


def _pooled_model(
    stored: dict[str, Any], support: Any, min_count: int
) -> tuple[dict[str, Any], int]:
    params = _params_of(stored)
    if min_count == 1:
        return stored, 0
    rows, n_pooled = pool_rare_rows(params["transition"], support, min_count)
    return stored | {"params": {**params, "transition": rows.tolist()}}, n_pooled


def _rounded_model(stored: dict[str, Any], digits: int) -> dict[str, Any]:
    if whole_number(digits, 4, "digits") > 12:
        raise ValueError(f"digits must be at most 12; found {digits}; use None for no rounding.")
    params = _params_of(stored)
    out = stored | {"params": {key: round_rows(v, digits).tolist() for key, v in params.items()}}
    for key in ("loglik", "classification_entropy"):
        out[key] = round(float(out[key]), digits)
    return out


def round_rows(rows: Any, digits: int) -> NDArray[np.float64]:
    """Probabilities with so many decimals that still sum to 1 along the last axis.

    Units of the last decimal are given out by largest remainder, a positive cell getting at
    least one; of equal cells the first comes first.

    Examples
    --------
    >>> round_rows([1 / 3, 1 / 3, 1 / 3], 4).tolist()
    [0.3334, 0.3333, 0.3333]
    >>> round_rows([1 - 1e-9, 1e-9, 0], 4).tolist()
    [0.9999, 0.0001, 0.0]
    """
    array = np.array(rows, dtype=float)
    unit = 10**digits
    flat = array.reshape(-1, array.shape[-1])
    out = np.empty(flat.shape)
    for row, target in zip(flat, out, strict=True):
        exact = row / row.sum() * unit
        whole = np.maximum(np.floor(exact), row > 0).astype(np.int64)
        left = unit - int(whole.sum())
        if left > 0:
            order = np.argsort(whole - exact, kind="stable")
            whole[order[:left]] += 1
        for _ in range(-left):
            whole[whole.argmax()] -= 1
        target[:] = whole / unit
    return out.reshape(array.shape)


def _flat(transition: NDArray[np.float64]) -> NDArray[np.float64]:
    return transition.reshape(len(transition), -1)
