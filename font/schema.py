"""What an exchange file may contain, and the reader that refuses everything else.

`font.exchange` has the specification in words; here it is in code. A file is looked at in the
order of cost: kind of file and size, nesting, JSON, the outer fields, the checksum, the
payload's fields, and last whether its numbers fit together.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from font.checks import some
from font.ensemble import Ensemble
from font.fields import MOST_CLASSES, MOST_STATES, Count, ModelPart, Number, One, Strict, Text
from font.kinds import KINDS, patients_of, unfit, variables_of, weights_of

FORMAT, VERSION = "font exchange", 1
FILE_LIMIT = 32 * 2**20
_MOST_MODELS, _MOST_PATTERNS = 1_000, 1_000_000
_DEEPEST, _MOST_LISTS, _MOST_TEXTS = 12, 2_500_000, 500_000

Path_ = str | os.PathLike[str]
Source = Path_ | bytes


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
    for what, name, pattern, most, also in (
        ("study", study, _STUDY, 200, "commas, colons, semicolons, brackets, & ' + "),
        ("site", site, _SITE, 64, ""),
    ):
        if not isinstance(name, str) or not re.fullmatch(pattern, name):
            raise ValueError(
                f"the {what} {_short(name)} needs another name: 1 to {most} letters, digits, "
                f"spaces, dots, hyphens, underscores {also}alone, the first a letter or digit."
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


def _canonical(payload: Mapping[str, Any]) -> bytes:
    text = json.dumps(
        payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


# --- what a file may contain -----------------------------------------------------------


_SITE = r"\w[\w .\-]{0,63}"
_STUDY = r"\w[\w .,:;()&'+\-]{0,199}"
Site = Annotated[str, Field(pattern=f"^{_SITE}$")]
Study = Annotated[str, Field(pattern=f"^{_STUDY}$")]
Name = Annotated[str, Field(pattern=f"^{_SITE}(/[0-9]{{1,4}})?$")]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Least = Annotated[int, Field(ge=1, le=10**6)]
Size = Annotated[int, Field(ge=1, le=MOST_CLASSES)]
Class = Annotated[int, Field(ge=0, lt=MOST_CLASSES)]
Numbers = Annotated[list[Number], Field(max_length=_MOST_PATTERNS)]
Pattern = Annotated[list[Class], Field(min_length=1, max_length=_MOST_MODELS)]
Patterns = Annotated[list[Pattern], Field(min_length=1, max_length=_MOST_PATTERNS)]


class Envelope(Strict):
    """What all files have."""

    format: Literal["font exchange"]
    version: One
    kind: Literal["model", "labels", "ensemble"]
    study: Study
    site: Site
    created: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    software: Text
    payload: dict[str, Any]
    sha256: Hash


class BicPart(Strict):
    """The site's BIC for one number of classes."""

    n_classes: Size
    bic: Number


class ModelPayload(Strict):
    """A site's model."""

    name: Name
    min_count: Least
    digits: Annotated[int, Field(ge=4, le=12)] | None
    n_pooled_rows: Annotated[int, Field(ge=0, le=MOST_CLASSES * MOST_STATES)] | None
    bic: Annotated[list[BicPart], Field(max_length=MOST_CLASSES)]
    model: ModelPart


class ModelName(Strict):
    """A model that a labels file refers to."""

    name: Name
    fingerprint: Hash


class LabelsPayload(Strict):
    """A site's label patterns and their counts."""

    models: Annotated[list[ModelName], Field(min_length=1, max_length=_MOST_MODELS)]
    min_count: Least
    rare: Literal["withhold", "merge"]
    epsilon: Annotated[Number, Field(gt=0)] | None
    patterns: Patterns
    counts: Annotated[list[Count], Field(min_length=1, max_length=_MOST_PATTERNS)]
    n_withheld: Count | None


class SettingsPart(Strict):
    """How the ensemble was made."""

    n_clusters: Size | None
    weights: Literal["spectral", "centred", "equal", "prior", "sparse"]
    distance: Literal["euclidean", "hellinger", "total-variation", "function"]
    method: Literal["kmeans", "kmeans-distance", "average", "complete", "ward", "spectral"]
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)]


class EnsemblePart(Strict):
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
    centres: Annotated[list[Numbers], Field(min_length=1, max_length=MOST_CLASSES)]
    votes: Annotated[list[Annotated[int, Field(ge=-1, lt=MOST_CLASSES)]], Field(min_length=1)]
    patterns: Patterns
    clusters: Annotated[list[Class], Field(min_length=1, max_length=_MOST_PATTERNS)]
    sites: Annotated[list[Site], Field(min_length=1, max_length=1_000)]
    cluster_sizes: Annotated[list[list[Count]], Field(max_length=MOST_CLASSES)]
    n_withheld: Count


class EnsemblePayload(Strict):
    """The centre's result and the models it rests on."""

    models: Annotated[list[ModelPayload], Field(min_length=1, max_length=_MOST_MODELS)]
    ensemble: EnsemblePart


_PAYLOADS: dict[str, type[Strict]] = {
    "model": ModelPayload,
    "labels": LabelsPayload,
    "ensemble": EnsemblePayload,
}


# --- reading -----------------------------------------------------------------------------


def read_file(source: Source, *, study: str | None = None, kind: str | None = None) -> Envelope:
    """Read and check an exchange file of any kind.

    Parameters
    ----------
    source : the file, or its bytes
    study : str, optional
        Refuse files of another study.
    kind : "model", "labels" or "ensemble", optional
        Refuse files of another kind.
    """
    what = name_of(source)
    data = source if isinstance(source, bytes) else _bytes_of(Path(source))
    if len(data) > FILE_LIMIT:
        raise _too_large(what, len(data))
    return checked(parse(data, what), what, study, kind)


def name_of(source: Source) -> str:
    """What messages call a file."""
    return "the file received" if isinstance(source, bytes) else str(source)


def _bytes_of(path: Path) -> bytes:
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # before it is opened: a pipe would wait for ever
        raise ValueError(f"{path} is not a regular file; give an exchange file.")
    if about.st_size > FILE_LIMIT:
        raise _too_large(str(path), about.st_size)
    with path.open("rb") as file:
        return file.read(FILE_LIMIT + 1)  # it may have grown


def _too_large(what: str, size: int) -> ValueError:
    return ValueError(
        f"{what} has {size:,} bytes or more, at most {FILE_LIMIT:,} are read; ask the sender for "
        "fewer patterns (a higher min_count)."
    )


def parse(data: bytes, what: str) -> Any:
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


def checked(content: Any, what: str, study: str | None, kind: str | None) -> Envelope:
    """The file, if everything in it fits; else one sentence."""
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
        place = [part for part in first["loc"] if part not in KINDS]
        where = prefix + ".".join(_short(part, 40).strip("'") for part in place)
        raise ValueError(
            f"{what} does not fit the specification at {where} "
            f"({first['msg'][:200].rstrip('.')}); ask the sender to write it again."
        ) from None


def _model_rules(payload: Mapping[str, Any], site: str, what: str) -> None:
    model, name = payload["model"], payload["name"]
    if name.partition("/")[0] != site:
        raise _unfit(what, f"its model {name!r} does not carry the name of the site {site!r}")
    if len({row["n_classes"] for row in payload["bic"]}) != len(payload["bic"]):
        raise _unfit(what, "it has two values of BIC for one number of classes")
    wrong = unfit(model, payload["min_count"])
    if wrong is not None:
        raise _unfit(what, wrong)
    smallest = min(weights_of(model)) * patients_of(model)
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
    if any(variables_of(m["model"]) != variables_of(models[0]["model"]) for m in models):
        raise _unfit(what, "its models do not all have the same states")
    sizes = [len(weights_of(model["model"])) for model in models]
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


def _unfit(what: str, wrong: str) -> ValueError:
    return ValueError(f"{what} does not fit together: {wrong}; ask the sender to write it again.")


def _short(value: Any, most: int = 60) -> str:
    """Something from a stranger's file for a message: on one line, not long."""
    text = ascii(value)
    return text if len(text) <= most else text[: most - 1] + "…"
