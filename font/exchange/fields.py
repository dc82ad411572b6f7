"""What the fields of exchange files may hold: types with bounds.

The bounds hold before anything is computed from a file: what passes here needs little memory.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from font.errors import InputError
from font.exchange.names import check_site, check_study
from font.exchange.parse import shorten

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
Class = Annotated[int, Field(ge=0, lt=MOST_CLASSES)]
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
