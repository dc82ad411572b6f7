"""How long a record lasts that says neither its end nor its supply."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.drugs import DrugMap
from ehr_prep.screen import MAX_DAYS
from font.checks import some, whole_number
from font.errors import InputError
from font.spelling import option_name


def supply_by_text(
    default: int | Mapping[str, int] | None, texts: pd.DataFrame, known: DrugMap
) -> NDArray[np.int32] | None:
    """The days that a record of each drug text covers by default; None without a default.

    Parameters
    ----------
    default : see `ehr_prep.read_records`
    texts : DataFrame
        `class`, `ingredient` and `matched` (the name in the map) of each text, several joined with
        " + "; the index is its number.
    """
    if default is None:
        return None
    called = option_name("default_supply")
    days = np.ones(int(texts.index.max()) + 1 if len(texts) else 1, dtype=np.int32)
    if not isinstance(default, Mapping):
        days[:] = _checked(called, default)
        return days
    ingredients = {name for names in known.ingredients.values() for name in names}
    unknown = [name for name in default if name not in ingredients and name not in known.states]
    if unknown:
        raise InputError(
            f"{called} names {some(unknown)}, which are neither classes nor ingredients of "
            f"the drug map; its classes are {some(known.states)}."
        )
    named = {name: _checked(f"{called} of {name!r}", n) for name, n in default.items()}
    columns = (texts[name] for name in ("ingredient", "matched", "class"))
    for number, *described in zip(texts.index, *columns, strict=True):
        parts = [part for text in described if isinstance(text, str) for part in text.split(" + ")]
        days[number] = next((named[part] for part in parts if part in named), 1)
    return days


def _checked(name: str, days: int) -> int:
    if whole_number(days, 1, name) > MAX_DAYS:
        raise InputError(f"{name} is {days:,} days; one record covers at most {MAX_DAYS}.")
    return int(days)
