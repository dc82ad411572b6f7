"""Numbers as they come: decimal points and decimal commas."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import some
from font.errors import InputError
from font.spelling import option, option_name

_TOLERATED = 0.01  # share of different numbers that only the other decimal sign can read
_COMMA = re.compile(r"[+-]?\d+,\d+")
_POINT = re.compile(r"[+-]?\d*\.\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")


def check_decimal(decimal: str | None) -> None:
    if decimal not in (None, ".", ","):
        raise InputError(f"{option_name('decimal')} must be a point or a comma, found {decimal!r}.")


def decimal_sign(values: Iterable[Any], name: str) -> str:
    """The decimal sign of a column's texts: a comma where some have one and none has a point.

    Examples
    --------
    >>> decimal_sign(["12,5", "7", "<2"], "labs.csv"), decimal_sign(["1,234", "12.5"], "labs.csv")
    (',', '.')
    """
    texts = [value.strip() for value in values if isinstance(value, str)]
    commas = [text for text in texts if _COMMA.fullmatch(text)]
    if not commas or any(_POINT.fullmatch(text) for text in texts):
        return "."
    if all(_THOUSANDS.fullmatch(text) for text in commas):
        raise InputError(
            f"nothing shows whether the comma in {some(commas)} of {name} is a decimal comma or "
            f"sets thousands apart; state it, as in {option('decimal', ',')} or "
            f"{option('decimal', '.')}."
        )
    return ","


def read_numbers(values: Iterable[Any], decimal: str | None, name: str) -> NDArray[np.float64]:
    """Texts as numbers with the stated decimal sign, or with the one that they show.

    Raises
    ------
    ValueError
        If the stated sign makes numbers unreadable that the other one reads.
    """
    texts = list(values)
    if decimal is None:
        return to_numbers(texts, decimal_sign(texts, name))
    numbers, other = to_numbers(texts, decimal), "." if decimal == "," else ","
    lost = np.isnan(numbers) & ~np.isnan(to_numbers(texts, other))
    if lost.sum() > _TOLERATED * len(texts):
        raise InputError(
            f"{option('decimal', decimal)} cannot read {lost.sum():,} of the {len(texts):,} "
            f"different numbers of {name}, such as {some(texts[i] for i in np.flatnonzero(lost))}; "
            f"{option('decimal', other)} can."
        )
    return numbers


def to_numbers(values: Iterable[Any], decimal: str) -> NDArray[np.float64]:
    """Texts as numbers, NaN where they are not; the other sign may separate thousands.

    Examples
    --------
    >>> to_numbers(["12,5", "1.234,5", "<2"], ",").tolist()
    [12.5, 1234.5, nan]
    """
    numbers: NDArray[np.float64] = pd.to_numeric(
        pd.Series([_plain(value, decimal) for value in values], dtype=object), errors="coerce"
    ).to_numpy(float)
    return numbers


def _plain(value: Any, decimal: str) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    other = "." if decimal == "," else ","
    if other in text and re.fullmatch(rf"[+-]?\d{{1,3}}(\{other}\d{{3}})+(\{decimal}\d*)?", text):
        text = text.replace(other, "")
    return text.replace(",", ".") if decimal == "," and "." not in text else text
