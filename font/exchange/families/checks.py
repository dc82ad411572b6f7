"""What the families of local models check alike: class sizes, shapes, rounded counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from font.checks import Floats
from font.errors import InputError
from font.exchange.disclosure import unrounded

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
