"""What exchange files may contain, and the reader that refuses everything else.

`font.exchange.spec` has the specification in words; here it is in code. After `font.exchange.parse`
come the outer fields, the checksum, the fields of the payload with their bounds, and last whether
its numbers fit together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from font.errors import InputError
from font.exchange.fields import (
    MOST_CLASSES,
    MOST_CLASSES_IN_ALL,
    MOST_MODELS,
    MOST_SITES,
    Count,
    Hash,
    Label,
    Least,
    Name,
    Number,
    Patients,
    Round,
    SignaturePart,
    Site,
    Size,
    StepNumber,
    Strict,
    Study,
    SumsTable,
    Text,
    size,
)
from font.exchange.parse import (
    FILE_LIMIT,
    Path_,
    Source,
    name_of,
    no_collection,
    parse,
    read_bytes,
    shorten,
)
from font.exchange.registry import all_kinds
from font.exchange.rules import RULES, validated
from font.exchange.signatures import Keys, sign, verify
from font.files import atomic_write

FORMAT, VERSION = "font exchange", 2


def fingerprint(payload: Mapping[str, Any]) -> str:
    """SHA-256 of a payload as canonical JSON: keys sorted, no spaces, UTF-8.

    Examples
    --------
    >>> fingerprint({"b": 1, "a": [0.5]}) == fingerprint({"a": [0.5], "b": 1})
    True
    """
    text = json.dumps(
        payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


# --- what a file may contain -----------------------------------------------------------


class Envelope(Strict):
    """What all files have."""

    format: Literal["font exchange"]
    version: Annotated[int, Field(ge=VERSION, le=VERSION)]
    kind: Literal["model", "labels", "ensemble", "sums", "shared", "key", "masked", "effects"]
    study: Study
    round: Round
    site: Site
    created: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    software: Text
    payload: dict[str, Any]
    sha256: Hash
    signature: SignaturePart | None = None


class BicPart(Strict):
    """How far the site's BIC for a number of classes lies above the lowest."""

    n_classes: Size
    above_best: Count


class ModelPayload(Strict):
    """A site's model."""

    name: Name
    min_count: Least
    bic: Annotated[list[BicPart], size(0, MOST_CLASSES)]
    model: dict[str, Any]


class ModelName(Strict):
    """A model that a labels file refers to."""

    name: Name
    fingerprint: Hash


# counts with spaces between them: hundreds of thousands are read ten times as fast as a JSON list
CountsText = Annotated[str, Field(pattern=r"^[0-9]{1,10}( [0-9]{1,10})*$")]


class LabelsPayload(Strict):
    """A site's cross-tables of labels."""

    models: Annotated[list[ModelName], size(1, MOST_MODELS)]
    min_count: Least
    classes: Annotated[list[Patients], size(1, MOST_MODELS)]
    tables: Annotated[list[CountsText], size(0, MOST_CLASSES_IN_ALL)]


class SettingsPart(Strict):
    """How the ensemble was made."""

    n_clusters: Size | None
    weights: Literal["spectral", "centred", "equal", "prior", "sparse"]
    distance: Literal["euclidean", "hellinger", "total-variation", "function"]
    method: Literal["latent", "kmeans"]
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)]


Numbers = Annotated[list[Number], size(0, MOST_CLASSES_IN_ALL)]
Shares = Annotated[list[Annotated[Number, Field(ge=0)]], size(0, MOST_CLASSES_IN_ALL)]


class EnsemblePart(Strict):
    """`Ensemble.to_dict()`."""

    format: Literal["font ensemble"]
    version: Annotated[int, Field(ge=2, le=2)]
    settings: SettingsPart
    models: Annotated[list[Name], size(1, MOST_MODELS)]
    n_classes: Annotated[list[Size], size(1, MOST_MODELS)]
    shares: Shares
    weights: Shares
    centred_weights: Numbers
    agreement: Annotated[list[Numbers], size(0, MOST_MODELS)]
    spectrum: Numbers
    n_clusters_choice: Annotated[list[Number | Literal["clear", "fair", "doubtful"]], size(4, 4)]
    axes: Annotated[list[Numbers], size(1, MOST_CLASSES_IN_ALL)]
    centres: Annotated[list[Numbers], size(1, MOST_CLASSES)]
    proportions: Shares
    confusion: Annotated[list[Shares], size(0, MOST_CLASSES_IN_ALL)]
    votes: Annotated[
        list[Annotated[int, Field(ge=-1, lt=MOST_CLASSES)]], size(1, MOST_CLASSES_IN_ALL)
    ]
    sites: Annotated[list[Site], size(1, MOST_SITES)]
    cluster_sizes: Annotated[
        list[Annotated[list[Count], size(1, MOST_SITES)]], size(1, MOST_CLASSES)
    ]


class EnsemblePayload(Strict):
    """The centre's result and the models it rests on."""

    models: Annotated[list[ModelPayload], size(1, MOST_MODELS)]
    ensemble: EnsemblePart


class SumsPayload(Strict):
    """A site's sums by cluster, for a refinement."""

    step: StepNumber
    of: Hash
    min_count: Least
    format: Text
    per_patient: Annotated[Number, Field(ge=1)]
    scale: Least
    sums: SumsTable


class LabelledPart(Strict):
    """The most patients that a site can have labelled."""

    site: Site
    patients: Count


class SharedPayload(Strict):
    """The sums of all sites, and the model content that says how to read them."""

    step: StepNumber
    last: bool
    ensemble: Hash
    of: Hash
    min_count: Least
    model: dict[str, Any]
    labelled: Annotated[list[LabelledPart], size(1, MOST_SITES)]
    sites: Annotated[list[Site], size(1, MOST_SITES)]
    scale: Least
    sums: SumsTable


class KeyPayload(Strict):
    """A site's public key for the masks of secure sums."""

    public: Hash
    min_count: Least


class MaskKey(Strict):
    """A site of the set whose masks are in a masked file."""

    site: Site
    key: Hash


class MaskedPayload(Strict):
    """A site's numbers under masks, whole numbers modulo 2⁶⁴."""

    what: Literal["labels", "sums"]
    of: Hash
    min_count: Least
    sites: Annotated[list[MaskKey], size(3, MOST_SITES)]
    values: Annotated[str, Field(min_length=12, max_length=FILE_LIMIT)]


MOST_TERMS, MOST_EFFECTS = 50, 300  # of an effects file
Effect = Annotated[Number, Field(ge=-1e6, le=1e6)]
EffectError = Annotated[Number, Field(ge=1e-6, le=1e6)]


class VariablePart(Strict):
    """A covariate: a number, or levels of which the first is the reference."""

    name: Label
    levels: Annotated[list[Label], size(2, MOST_CLASSES)] | None


class EffectsPayload(Strict):
    """A site's effects of covariates on membership in the clusters."""

    of: Hash
    min_count: Least
    variables: Annotated[list[VariablePart], size(1, MOST_TERMS)]
    terms: Annotated[list[Label], size(1, MOST_TERMS)]
    clusters: Annotated[
        list[Annotated[int, Field(ge=1, lt=MOST_CLASSES)]],
        size(1, MOST_CLASSES),
    ]
    estimates: Annotated[list[Effect], size(1, MOST_EFFECTS)]
    errors: Annotated[list[EffectError], size(1, MOST_EFFECTS)]


_PAYLOADS: dict[str, type[Strict]] = {
    "model": ModelPayload,
    "labels": LabelsPayload,
    "ensemble": EnsemblePayload,
    "sums": SumsPayload,
    "shared": SharedPayload,
    "key": KeyPayload,
    "masked": MaskedPayload,
    "effects": EffectsPayload,
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of each kind of file, {"model": …, "labels": …, "ensemble": …, …}.

    The content of each registered kind of model is in "models".
    """
    schemas: dict[str, Any] = {}
    for kind, content in _PAYLOADS.items():
        schema = Envelope.model_json_schema()
        inner = content.model_json_schema(ref_template="#/$defs/{model}")
        schema["$defs"] = schema.get("$defs", {}) | inner.pop("$defs", {})
        schema["properties"] |= {"payload": inner, "kind": {"const": kind}}
        schemas[kind] = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
    schemas["models"] = {
        form: kind.schema.model_json_schema() for form, kind in all_kinds().items()
    }
    return schemas


# --- reading and writing -------------------------------------------------------------------


def read_file(
    source: Source,
    *,
    study: str | None = None,
    kind: str | None = None,
    min_count: int = 1,
    round: int | None = None,
    keys: Keys = None,
) -> Envelope:
    """Read and check an exchange file of any kind.

    Parameters
    ----------
    source : the file, or its bytes
    study : str, optional
        Refuse files of another study.
    kind : str, optional
        One of those in `font.exchange.spec`, such as "model"; refuse files of another.
    min_count : int
        The study's: refuse files whose counts were rounded to multiples of less.
    round : int, optional
        Refuse files of another round.
    keys : {site: public key}, optional
        Refuse files of these sites that they did not sign.
    """
    origin = name_of(source)
    with no_collection():
        content = parse(read_bytes(source), origin)
        file = checked(content, origin, study, kind)
    verify(content, keys, origin)
    if round is not None and file.round != round:
        raise InputError(f"{origin} belongs to round {file.round} of the study, not to {round}.")
    parts = file.payload["models"] if file.kind == "ensemble" else [file.payload]
    lowest = min(part["min_count"] for part in parts)
    if lowest < min_count:
        raise InputError(
            f"{origin} was written with min_count {lowest}, the study asks for {min_count}; have "
            "the site write it again."
        )
    return file


def claimed_kind(source: Source) -> str:
    """The kind that an exchange file says it is of; nothing else in it is checked."""
    origin = name_of(source)
    with no_collection():
        content = parse(read_bytes(source), origin)
    _check_format(content, origin)
    return str(content.get("kind"))


def write_file(
    path: Path_ | None,
    kind: str,
    payload: dict[str, Any],
    *,
    study: str,
    site: str,
    round: int = 1,
    software: str = "font",
    created: str | None = None,
    signing_key: Path_ | None = None,
) -> tuple[Envelope, bytes]:
    """Write a file that the reader accepts, or nothing; without a path only the bytes are made.

    With the private key `signing_key` the file is signed.
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "study": study,
        "round": round,
        "site": site,
        "created": created or datetime.now(UTC).date().isoformat(),
        "software": software,
        "payload": payload,
    }
    try:
        content["sha256"] = fingerprint(payload)
        if signing_key is not None:
            content["signature"] = sign(content, signing_key)
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = text.encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise InputError(f"the {kind} cannot be written as JSON: {error}.") from None
    origin = f"the {kind} file"
    if len(data) > FILE_LIMIT:
        raise InputError(
            f"{origin} would have {len(data):,} bytes, at most {FILE_LIMIT:,} are read; use fewer "
            "models."
        )
    file = checked(parse(data, origin), origin, study, kind)
    if path is not None:
        atomic_write(Path(path), data)
    return file, data


def checked(content: Any, origin: str, study: str | None, kind: str | None) -> Envelope:
    """The file, if everything in it fits; else one sentence."""
    _check_format(content, origin)
    if type(content.get("version")) is not int or content["version"] != VERSION:
        raise InputError(
            f"{origin} has the version {shorten(content.get('version'))}, this program reads "
            f"{VERSION}; use the same release of mmlca at all sites."
        )
    file: Envelope = validated(Envelope, content, origin)
    if kind is not None and file.kind != kind:
        raise InputError(f"{origin} is a file of the kind {file.kind!r}; give one of {kind!r}.")
    if study is not None and file.study != study:
        raise InputError(
            f"{origin} belongs to the study {file.study!r}, not to {study!r}; give the files of "
            "one study."
        )
    try:
        mark = fingerprint(file.payload)
    except ValueError:  # 1e999 becomes infinite; half a surrogate pair is no text
        raise InputError(
            f"{origin} has a number or a text that JSON cannot hold; ask the sender to write it "
            "again."
        ) from None
    if mark != file.sha256:
        raise InputError(
            f"{origin} was changed or damaged after it was written: its checksum does not match; "
            "ask the sender to send it again."
        )
    validated(_PAYLOADS[file.kind], file.payload, origin, "payload.")
    RULES[file.kind](file.payload, file.site, origin)
    return file


def _check_format(content: Any, origin: str) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(
            f"{origin} is not an exchange file: its format should be {FORMAT!r}; give a file that "
            "mmlca wrote for exchange."
        )
