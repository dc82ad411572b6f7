"""A family of local models as a newcomer would add it: medians of columns, two classes at a cut."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from font.exchange.disclosure import Draws, precision, round_counts
from font.exchange.fields import (
    Content,
    Names,
    Number,
    One,
    Patients,
    Strict,
    enough_patients,
    misfit_of_patients,
    patients_in_words,
    size,
)
from font.exchange.registry import ModelFamily


class MediansPart(Strict):
    format: Literal["toy medians"]
    version: One
    variables: Names
    patients: Patients
    cut: Number
    centres: Annotated[list[Number], size(1, 10)]


class Medians:
    """Two groups of patients: below and above the median of the first column."""

    def __init__(self, cut: float, centres: list[float]) -> None:
        self.cut = cut
        self.class_parameters_ = np.array(centres)[:, None]

    def predict(self, data: Any) -> Any:
        return (np.asarray(data, dtype=float)[:, 0] > self.cut).astype(int)


def fit(data: Any, n_classes: int, *, seed: int) -> Medians:
    values = np.asarray(data, dtype=float)[:, 0]
    cut = float(np.median(values))
    return Medians(cut, [float(values[values <= cut].mean()), float(values[values > cut].mean())])


def sizes(model: Medians, data: Any) -> Any:
    return np.bincount(model.predict(data), minlength=2)


def write(model: Medians, data: Any, min_count: int, draws: Draws) -> dict[str, Any]:
    patients = enough_patients(sizes(model, data), min_count)
    step = precision(model.class_parameters_[:, 0])
    return {
        "format": "toy medians",
        "version": 1,
        "variables": [str(name) for name in data.columns],
        "patients": round_counts(patients, min_count, draws).tolist(),
        "cut": round(model.cut / step) * step,
        "centres": (np.round(model.class_parameters_[:, 0] / step) * step).tolist(),
    }


def explain(content: Content) -> tuple[list[str], list[str]]:
    return [patients_in_words(content)], ["about where the two groups lie"]


MEDIANS = ModelFamily(
    name="Medians",
    schema=MediansPart,
    variables=lambda content: tuple(content["variables"]),
    find_misfit=misfit_of_patients,
    recognises=lambda model: isinstance(model, Medians),
    write=write,
    read=lambda content: Medians(content["cut"], content["centres"]),
    explain=explain,
    sizes=sizes,
    fit=fit,
)
