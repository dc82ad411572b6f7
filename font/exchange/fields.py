"""From bytes to checked fields, whoever sent them: JSON, names, types with bounds, shapes.

A file is looked at in the order of cost: what kind of file it is and how large, how many values and
texts it has and how deeply they nest, then JSON, then the fields. What passes needs at most about a
second and 200 MB, whatever it says.
"""

from __future__ import annotations

import gc
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from font.checks import Floats
from font.errors import InputError
from font.exchange.disclosure import unrounded
from font.files import check_regular

# --- from bytes to JSON -----------------------------------------------------------------------

FILE_LIMIT = 8 * 2**20
_MOST_VALUES, _MOST_TEXTS, _DEEPEST = 600_000, 100_000, 12
_MOST_FIELDS = 100  # of one object: each unknown one would be remembered to be complained about

Path_ = str | os.PathLike[str]
Source = Path_ | bytes


def read_bytes(source: Source) -> bytes:
    """The bytes of a regular file that is not too large."""
    if isinstance(source, bytes):
        data = source
    else:
        path = Path(source)
        size = path.stat().st_size
        check_regular(path)  # before it is opened: a pipe would wait for ever
        if size > FILE_LIMIT:
            raise _too_large(str(path), size)
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT + 1)  # it may have grown
    if len(data) > FILE_LIMIT:
        raise _too_large(name_of(source), len(data))
    return data


@contextmanager
def no_collection() -> Iterator[None]:
    """Without Python's search for cycles, which JSON has none of and which would take long."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def name_of(source: Source) -> str:
    """What messages call a file."""
    return "the file received" if isinstance(source, bytes) else str(source)


def parse(data: bytes, origin: str) -> Any:
    """The JSON in a file, or an `InputError`."""
    if data.count(b'"') > 2 * _MOST_TEXTS:
        raise _too_many(origin, "texts", _MOST_TEXTS)
    if b"\\" in data:
        # possessive, and the last quote optional: no file makes it start over
        bare = re.sub(rb'"(?:[^"\\]++|\\.)*+"?', b"", data, flags=re.DOTALL)
    else:  # nothing is escaped: every second part is a text
        bare = b"".join(data.split(b'"')[::2])
    if bare.count(b",") + bare.count(b"[") > _MOST_VALUES:
        raise _too_many(origin, "values", _MOST_VALUES)
    _check_depth(bare.translate(_STEPS, _NO_BRACKETS), origin)
    if re.search(rb"[0-9]{31}", bare):
        raise InputError(
            f"{origin} has a number of more than 30 digits; ask the sender to write it again."
        )
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except UnicodeDecodeError:
        raise InputError(f"{origin} is not UTF-8 text; ask the sender to write it again.") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{origin} is not JSON (line {error.lineno}: {error.msg}); ask the sender to send it "
            "again."
        ) from None
    except InputError as error:
        raise InputError(f"{origin} {error}; ask the sender to write it again.") from None


def shorten(value: Any, most: int = 60) -> str:
    """Something from a stranger's file for a message: on one line, not long."""
    text = ascii(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _too_large(origin: str, size: int) -> InputError:
    return InputError(
        f"{origin} has {size:,} bytes or more, at most {FILE_LIMIT:,} are read; ask the sender for "
        "a file of fewer models."
    )


def _too_many(origin: str, things: str, most: int) -> InputError:
    return InputError(
        f"{origin} has more than {most:,} {things}, which no exchange file has; ask the sender to "
        "write it again."
    )


_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: up, down
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def _check_depth(brackets: bytes, origin: str) -> None:
    """Refuse what nests deeply."""
    steps = np.frombuffer(brackets, dtype=np.int8)
    if np.cumsum(steps, dtype=np.int64).max(initial=0) > _DEEPEST:
        raise InputError(
            f"{origin} is nested more than {_DEEPEST} deep, which no exchange file is; ask the "
            "sender to write it again."
        )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict, unless a key comes twice or there are too many."""
    if len(pairs) > _MOST_FIELDS:
        raise InputError(f"has an object of {len(pairs):,} fields, at most {_MOST_FIELDS} are read")
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise InputError(f"has the field {shorten(key)} twice")
        content[key] = value
    return content


def _no_constant(word: str) -> float:
    raise InputError(f"has the value {word}, which is not a number of JSON")


# --- names of studies and sites ---------------------------------------------------------------


ALL_SITES = "all sites"  # under this name stands what was added up before anyone could read it

_SITE = r"\w[\w .\-]{0,63}"
_STUDY = r"\w[\w .,:;()&'+\-]{0,199}"
# letters that no one sees, though Unicode calls them letters
_BLANK = "\u115f\u1160\u3164\uffa0\u2800"
# Cyrillic and Greek letters, and digits, that look like Latin letters
_LOOKS = str.maketrans(
    "АВЕКМНОРСТХІЈЅаеорсухіјѕԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧονα0",
    "ABEKMHOPCTXIJSaeopcyxijsqwABEZHIKMNOPTYXovao",
)


def check_study(name: str) -> str:
    """The name of a study, if a file may carry it."""
    return _checked(name, "study", _STUDY, 200, "commas, colons, semicolons, brackets, & ' + ")


def check_site(name: str, *, numbered: bool = False) -> str:
    """The name of a site, if a file may carry it; "SITE/1" too if `numbered`."""
    pattern = _SITE + ("(/[0-9]{1,4})?" if numbered else "")
    return _checked(name, "site", pattern, 64, "")


def _checked(name: str, title: str, pattern: str, most: int, also: str) -> str:
    shown = ascii(name)[:80]
    if not isinstance(name, str) or not re.fullmatch(pattern, name) or set(name) & set(_BLANK):
        raise InputError(
            f"the {title} {shown} needs another name: 1 to {most} letters, digits, spaces, dots, "
            f"hyphens, underscores {also}alone, the first a letter or digit"
        )
    if name != name.rstrip():
        raise InputError(f"the {title} {shown} ends with a space; write {name.rstrip()!a}")
    usual = unicodedata.normalize("NFKC", name)
    if usual != name:
        raise InputError(
            f"the {title} {shown} is not in the usual form of Unicode (NFKC); write {usual!a}"
        )
    scripts = {unicodedata.name(c, "").split()[0] for c in name if c.isalpha() and ord(c) > 0}
    if len(scripts & {"LATIN", "CYRILLIC", "GREEK"}) > 1:
        raise InputError(
            f"the {title} {shown} mixes letters of several alphabets that look alike; use one"
        )
    return name


def look_alikes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of different names that a person could take for the same.

    >>> look_alikes(["MGB", "VA", "mgb"])
    [('MGB', 'mgb')]
    """
    seen: dict[str, str] = {}
    pairs = []
    for name in names:
        skeleton = re.sub(r"[\W_]", "", name.translate(_LOOKS).casefold())
        skeleton = skeleton.replace("1", "l").replace("i", "l")
        if seen.setdefault(skeleton, name) != name:
            pairs.append((seen[skeleton], name))
    return pairs


# --- types with bounds ------------------------------------------------------------------------


MOST_STATES, MOST_CLASSES, MOST_VARIABLES = 127, 100, 1_000
MOST_MODELS, MOST_SITES = 300, 300
MOST_CLASSES_IN_ALL = 800  # of all models of a study together
MOST_CUBES = 100_000_000  # covariance matrices × cubed number of variables
MOST_WORK = 10_000_000  # squared number of classes × parameters: differences between classes


class Strict(BaseModel):
    """No unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def size(least: int, most: int) -> Any:
    """How many entries a list may have, for `Annotated`.

    Reading ends with the first wrong entry: a file of wrong entries would otherwise need much more
    memory for what is said of each than it has itself.
    """
    return Field(min_length=least, max_length=most, fail_fast=True)


PRINTED = r"^[^\p{C}\p{Zl}\p{Zp}]"  # nothing that hides, breaks or turns the line
Text = Annotated[str, Field(max_length=100, pattern=PRINTED + "*$")]
AgreedSettings = dict[Text, dict[Text, Text]]
Label = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTED + "+$")]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]
Positive = Annotated[Number, Field(gt=0)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Least = Annotated[int, Field(ge=1, le=10**6)]
One = Annotated[int, Field(ge=1, le=1)]  # a Literal would take true and 1.0
Round = Annotated[int, Field(ge=1, le=1_000)]
Size = Annotated[int, Field(ge=1, le=MOST_CLASSES)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Site = Annotated[str, AfterValidator(check_site)]
Study = Annotated[str, AfterValidator(check_study)]
Name = Annotated[str, AfterValidator(lambda name: check_site(name, numbered=True))]
Values = Annotated[list[Number], size(1, MOST_VARIABLES)]
ByClass = Annotated[list[Values], size(1, MOST_CLASSES)]
StepNumber = Annotated[int, Field(ge=0, le=50)]  # of a refinement
Sum = Annotated[int, Field(ge=0, le=10**15)]
SumsTable = Annotated[
    list[Annotated[list[Sum], size(2, 20 * MOST_VARIABLES)]],
    size(1, MOST_CLASSES),
]
Patients = Annotated[list[Count], size(1, MOST_CLASSES)]
Names = Annotated[list[Label], size(1, MOST_VARIABLES)]


class SignaturePart(Strict):
    """Ed25519: the public key and the signature, see `font.exchange.signatures`."""

    key: Hash
    value: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


def validated(schema: type[Any], content: Any, origin: str, prefix: str = "") -> Any:
    """The content as the schema reads it; an `InputError` at the first field that does not fit."""
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = prefix + ".".join(shorten(part, 40).strip("'") for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")[:200].rstrip(".")
        raise InputError(
            f"{origin} does not fit the specification at {where} ({message}); ask the sender to "
            "write it again."
        ) from None


def misfit(origin: str, wrong: str) -> InputError:
    """The error for content of the right form whose numbers do not fit together."""
    return InputError(f"{origin} does not fit together: {wrong}; ask the sender to write it again.")


# --- what families of models check alike ------------------------------------------------------


Content = Mapping[str, Any]


def enough_patients(sizes: Any, min_count: int) -> Floats:
    """The numbers of patients by class, none of which may be small."""
    patients = np.asarray(sizes, dtype=float)
    if patients.min() < min_count:
        raise InputError(
            f"a class of the model has fewer than {min_count} patients, so that the model may not "
            "leave; fit fewer classes, or more patients."
        )
    return patients


def misfit_of_patients(content: Content, min_count: int) -> str | None:
    """What is wrong with the rounded numbers of patients by class, if anything."""
    patients = content["patients"]
    if min(patients) < min_count:
        return f"a class has {min(patients)} patients, fewer than its min_count {min_count}"
    wrong = unrounded(patients, min_count)
    return None if wrong is None else f"its patients have {wrong}"


def misfit_of_shape(values: Any, part: str, shape: tuple[int, ...]) -> str | None:
    """What is wrong with the shape of a nested list, if anything."""
    try:
        actual = np.array(values, dtype=float).shape
    except ValueError:
        return f"its {part} have rows of unequal length"
    return None if actual == shape else f"its {part} have the shape {actual} instead of {shape}"


def first_misfit(*wrongs: str | None) -> str | None:
    return next((wrong for wrong in wrongs if wrong is not None), None)


def patients_in_words(content: Content) -> str:
    shown = ", ".join(f"{n:,}" for n in content["patients"])
    return f"the numbers of patients by class, rounded at random: {shown}"
