"""Rules of known studies by name: `build_sequences(records, preset="ra")`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from font.checks import one_of

P = ParamSpec("P")
R = TypeVar("R")

PRESETS: dict[str, dict[str, Any]] = {
    "ra": {
        "first_on_or_after": "2008-01-01",
        "months": 3,
        "max_windows": 16,
        "states": "most_frequent",
        "by": "records",
        "ties": "first",
        "impute": "carry_forward",
        "death": "end",
    }
}
"""`ra`: the rheumatoid arthritis study. First biologic or JAK inhibitor from 2008 on, four years of
quarters, the most recorded class, carried forward without end: in that study a quarter without a
record of a drug that is infused or dispensed for months was taken to be a continuation."""


def takes_preset(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function with an argument `preset` start from the rules of that name.

    What is given beside the preset overrides it.
    """

    @wraps(function)
    def with_preset(*args: P.args, **options: P.kwargs) -> R:
        name = options.get("preset")
        if name is None:
            return function(*args, **options)
        one_of(name, PRESETS, "preset")
        return function(*args, **{**PRESETS[str(name)], **options})

    return with_preset
