"""Covariates: which row of a table belongs to which patient, and the columns of the logit.

Numbers enter as they are, texts and categories as one column per level but the first. A formula
names columns, `a + b`, and their products, `a:b` or `a * b`; `C(a)` takes numbers as levels. The
rules are data (`Design`), so that a model file can hold them and `predict` applies the same ones.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr

from font.errors import InputError, option
from mmlca.model.params import Floats
from mmlca.sequences.checks import some
from mmlca.sequences.type import Sequences

AnyCovariates: TypeAlias = pd.DataFrame | pd.Series | Mapping[str, Any] | ArrayLike

INTERCEPT = "(Intercept)"
_MANY_LEVELS = 30
_COLLINEAR = 1e-8
_SEPARATED = 12.0  # log-odds between the smallest and the largest value of a column
_FORMULA = "columns joined by +, products a:b or a*b, and C(a) for numbers that are labels"


class Variable(NamedTuple):
    """A column of the covariates; `levels` (the first is the reference) if it is categorical."""

    name: str
    levels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Design:
    """How covariates become columns: variables, and terms as products of them.

    `shift` and `scale` (of each column but the intercept) standardise the columns inside the
    fit; coefficients are always those of the columns as they were given.
    """

    variables: tuple[Variable, ...]
    terms: tuple[tuple[str, ...], ...]
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns, the intercept first."""
        return [INTERCEPT, *(name for term in self.terms for name in self._names(term))]

    @cached_property
    def term_of(self) -> list[str]:
        """The term that each column belongs to."""
        return [INTERCEPT, *(":".join(term) for term in self.terms for _ in self._names(term))]

    def _names(self, term: tuple[str, ...]) -> list[str]:
        levels = {v.name: v.levels for v in self.variables}
        parts = [
            [name] if levels[name] is None else [f"{name}[{x}]" for x in (levels[name] or ())[1:]]
            for name in term
        ]
        return [":".join(names) for names in product(*parts)]

    def matrix(self, frame: pd.DataFrame) -> Floats:
        """The columns for covariates (n rows); NaN in rows where a value is missing."""
        parts = {v.name: self._part(v, frame) for v in self.variables}
        columns = [np.ones(len(frame))]
        for term in self.terms:
            for chosen in product(*(range(parts[name].shape[1]) for name in term)):
                columns.append(
                    np.prod([parts[n][:, i] for n, i in zip(term, chosen, strict=True)], axis=0)
                )
        return np.column_stack(columns)

    def _part(self, variable: Variable, frame: pd.DataFrame) -> Floats:
        if variable.name not in frame.columns:
            raise InputError(
                f"the covariates lack the column {variable.name}; found {some(frame.columns)}."
            )
        values = frame[variable.name]
        if variable.levels is None:
            return _numbers(variable.name, values)[:, None]
        texts = _texts(values)
        known = texts.isin(variable.levels) | texts.isna()
        if not known.all():
            raise InputError(
                f"the covariate {variable.name} has the levels {some(texts[~known].unique())}, "
                f"which the model does not know; it knows {some(variable.levels)}."
            )
        dummies = np.column_stack([(texts == level).to_numpy(float) for level in variable.levels])
        dummies[texts.isna().to_numpy()] = np.nan
        return dummies[:, 1:]

    def standardised(self, matrix: Floats) -> Floats:
        """Columns with mean 0 and variance 1, as the fit sees them."""
        result = matrix.copy()
        result[:, 1:] = (matrix[:, 1:] - np.array(self.shift)) / np.array(self.scale)
        return result

    @cached_property
    def back(self) -> Floats:
        """(P, P): coefficients of standardised columns → coefficients of the columns as given."""
        back = np.diag([1.0, *(1 / s for s in self.scale)])
        back[0, 1:] = -np.array(self.shift) / np.array(self.scale)
        return back

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, as in a JSON file."""
        return {
            "variables": [
                {"name": v.name, "levels": None if v.levels is None else list(v.levels)}
                for v in self.variables
            ],
            "terms": [list(term) for term in self.terms],
            "shift": list(self.shift),
            "scale": list(self.scale),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Design:
        """The inverse of `to_dict`; refuses what does not fit together."""
        variables = tuple(
            Variable(v["name"], None if v["levels"] is None else tuple(v["levels"]))
            for v in stored["variables"]
        )
        design = cls(
            variables,
            tuple(tuple(term) for term in stored["terms"]),
            tuple(stored["shift"]),
            tuple(stored["scale"]),
        )
        names = {v.name for v in variables}
        unknown = [name for term in design.terms for name in term if name not in names]
        n_columns = 0 if unknown else len(design.columns) - 1
        if unknown or not n_columns == len(design.shift) == len(design.scale):
            raise InputError("the covariates of the model do not fit together.")
        return design


# --- the patients of a fit, and others ----------------------------------------------------


def read_covariates(
    covariates: AnyCovariates, formula: str | None, data: Sequences, missing: str
) -> tuple[Design, Floats, NDArray[np.bool_]]:
    """The design that covariates give, its matrix (m, P), and which patients (n,) have all of them.

    `missing` says what happens to the others: "error" refuses them, "drop" warns.
    """
    frame = align(covariates, data)
    known = complete(frame, formula)
    advice = f"fill them in, or leave these patients out with {option('missing', 'drop')}"
    lacking = _check_missing(known, data, missing if known.any() else "error", advice)
    if lacking:
        warnings.warn(f"{lacking} and are left out of the fit.", stacklevel=4)
    frame = frame[known]
    design = learn(frame, formula, data.weights[known])
    return design, design.matrix(frame), known


def matrix_of(
    design: Design, covariates: AnyCovariates, data: Sequences, missing: str, advice: str
) -> tuple[Floats, NDArray[np.bool_]]:
    """The columns (n, P) of other patients' covariates, and which patients have all of them.

    Patients who lack any are refused with the `advice`, unless `missing` is "drop".
    """
    matrix = design.matrix(align(covariates, data))
    known: NDArray[np.bool_] = np.asarray(~np.isnan(matrix).any(axis=1))
    _check_missing(known, data, missing, advice)
    return matrix, known


def _check_missing(known: NDArray[np.bool_], data: Sequences, missing: str, advice: str) -> str:
    """How many patients lack covariates, in words; "" if none. Refuses them if "error"."""
    if known.all():
        return ""
    lacking = f"{int((~known).sum()):,} of {len(data):,} patients lack covariates"
    if missing == "error":
        raise InputError(f"{lacking} (patients {some(data.ids[~known])}); {advice}.")
    return lacking


# --- from a table to a design -----------------------------------------------------------


def align(covariates: AnyCovariates, data: Sequences) -> pd.DataFrame:
    """One row of covariates per patient, in the order of the patients; NaN where there is none.

    A table with a column "id", or whose index holds the ids, is matched by id; one with the
    plain index 0 … n − 1, and an array, are taken in the order of the patients.
    """
    frame = _as_frame(covariates)
    if "id" in frame.columns:
        frame = frame.set_index("id")
    elif isinstance(frame.index, pd.RangeIndex) and (frame.index.start, frame.index.step) == (0, 1):
        if len(frame) != len(data):
            raise InputError(
                f"there are {len(frame):,} rows of covariates for {len(data):,} patients; give one "
                'row per patient in their order, or match rows by a column "id".'
            )
        return frame.set_axis(data.ids, axis=0)
    if frame.index.has_duplicates:
        twice = frame.index[frame.index.duplicated()].unique()
        raise InputError(f"the covariates have several rows for {some(twice)}; keep one of each.")
    if frame.index.dtype != data.ids.dtype and not frame.index.isin(data.ids).any():
        frame.index, ids = frame.index.astype(str), data.ids.astype(str)
    else:
        ids = data.ids
    if not ids.isin(frame.index).any():
        raise InputError(
            f"no patient has covariates: the sequences' ids are like {some(data.ids[:2])}, those "
            f"of the covariates like {some(frame.index[:2])}."
        )
    return frame.reindex(ids).set_axis(data.ids, axis=0)


def _as_frame(covariates: AnyCovariates) -> pd.DataFrame:
    if isinstance(covariates, pd.Series):
        covariates = covariates.to_frame("x" if covariates.name is None else covariates.name)
    if isinstance(covariates, pd.DataFrame):
        frame = covariates.rename(columns=str)
        if frame.columns.has_duplicates:
            twice = frame.columns[frame.columns.duplicated()].unique()
            raise InputError(f"the covariates have several columns called {some(twice)}.")
        return frame
    if isinstance(covariates, Mapping):
        return pd.DataFrame(dict(covariates)).rename(columns=str)
    array = np.asarray(covariates)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InputError(f"covariates must be a table, found an array of shape {array.shape}.")
    return pd.DataFrame(array, columns=[f"x{i + 1}" for i in range(array.shape[1])])


def learn(frame: pd.DataFrame, formula: str | None, weights: Floats) -> Design:
    """The design of covariates that are complete, checked for what cannot be estimated."""
    terms, labels = _parse_formula(formula, frame.columns)
    names = list(dict.fromkeys(name for term in terms for name in term))
    if not names:
        raise InputError("there are no covariates: the table has no columns besides the id.")
    variables = tuple(_learn_variable(name, frame[name], name in labels) for name in names)
    design = Design(variables, tuple(terms))
    matrix = design.matrix(frame)
    counted = matrix[weights > 0]
    shift = counted[:, 1:].mean(axis=0)
    scale = counted[:, 1:].std(axis=0)
    flat = scale <= 1e-12 * np.maximum(1, np.abs(shift))
    if flat.any():
        same = [name for name, is_flat in zip(design.columns[1:], flat, strict=True) if is_flat]
        raise InputError(
            f"the covariate column {some(same)} is the same for all patients, so that nothing can "
            "be learned from it; leave it out."
        )
    design = Design(variables, tuple(terms), tuple(shift.tolist()), tuple(scale.tolist()))
    _check_rank(design, design.standardised(counted))
    return design


def _check_rank(design: Design, matrix: Floats) -> None:
    triangle, order = qr(matrix, mode="r", pivoting=True)
    size = np.abs(np.diagonal(triangle))
    rank = int((size > _COLLINEAR * size[0]).sum())
    if rank == matrix.shape[1]:
        return
    extra, kept = int(order[rank]), order[:rank]
    shares = np.linalg.lstsq(matrix[:, kept], matrix[:, extra], rcond=None)[0]
    others = [design.columns[c] for c, b in zip(kept, shares, strict=True) if abs(b) > 1e-6]
    others = [name for name in others if name != INTERCEPT]
    raise InputError(
        f"the covariate column {design.columns[extra]} follows from {some(others)}, so that their "
        "effects cannot be separated; leave one of them out."
    )


def _learn_variable(name: str, values: pd.Series, is_label: bool) -> Variable:
    values = values.infer_objects()  # numbers that were mixed with None
    if isinstance(values.dtype, pd.CategoricalDtype):
        used = set(_texts(values))
        levels = [_text(x) for x in values.dtype.categories if _text(x) in used]
    elif is_label or not pd.api.types.is_numeric_dtype(values.dtype):
        if pd.api.types.is_datetime64_any_dtype(values.dtype):
            raise InputError(
                f"the covariate {name} holds dates; turn it into a number, such as age."
            )
        plain = pd.api.types.is_numeric_dtype(values.dtype)
        levels = [_text(x) for x in sorted(values.unique(), key=None if plain else str)]
    else:
        return Variable(name)
    if len(levels) < 2:
        raise InputError(
            f"the covariate column {name!r} is the same for all patients, so that nothing can be "
            "learned from it; leave it out."
        )
    if len(levels) > _MANY_LEVELS:
        raise InputError(
            f"the covariate {name} has {len(levels):,} different texts ({some(levels[:3])}, …), at "
            f"most {_MANY_LEVELS} can be compared; group them, or give numbers."
        )
    return Variable(name, tuple(levels))


def _parse_formula(
    formula: str | None, columns: Iterable[str]
) -> tuple[list[tuple[str, ...]], set[str]]:
    """Terms, and the variables that C() makes labels; without a formula each column is a term."""
    known = list(columns)
    if formula is None:
        return [(name,) for name in known], set()
    terms: list[tuple[str, ...]] = []
    labels: set[str] = set()
    quoted: list[str] = []

    def hide(match: re.Match[str]) -> str:
        quoted.append(match[1])
        return f"\x00{len(quoted) - 1}\x00"

    text = re.sub(r"`([^`]+)`", hide, formula.strip().removeprefix("~"))
    for part in text.split("+"):
        if part.strip() == "1":
            continue
        crossed = "*" in part
        names = []
        for factor in re.split(r"[:*]", part):
            name = factor.strip()
            label = re.fullmatch(r"C\((.*)\)", name)
            if label:
                name = label[1].strip()
            hidden = re.fullmatch("\x00(\\d+)\x00", name)
            if hidden:
                name = quoted[int(hidden[1])]
            if name not in known:
                raise InputError(
                    f"the formula {formula!r} names {name!r}, which is not a column of the "
                    f"covariates ({some(known)}); a formula may contain {_FORMULA}."
                )
            if label:
                labels.add(name)
            names.append(name)
        if len(set(names)) != len(names) or (crossed and ":" in part):
            raise InputError(f"the formula {formula!r} is invalid; it may contain {_FORMULA}.")
        sizes = range(1, len(names) + 1) if crossed else [len(names)]
        for size in sizes:
            terms += [t for t in combinations(names, size) if not _has_term(terms, t)]
    return sorted(terms, key=len), labels


def _has_term(terms: list[tuple[str, ...]], term: tuple[str, ...]) -> bool:
    return any(set(other) == set(term) for other in terms)


def _numbers(name: str, values: pd.Series) -> Floats:
    try:
        numbers = pd.to_numeric(values).to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError):
        texts = values[pd.to_numeric(values, errors="coerce").isna() & values.notna()]
        raise InputError(
            f"the covariate {name} is a number in the model, but holds {some(texts.unique())}."
        ) from None
    if np.isinf(numbers).any():
        raise InputError(
            f"the covariate {name} holds infinite numbers; correct them or leave it out."
        )
    return np.asarray(numbers, dtype=float)


def _texts(values: pd.Series) -> pd.Series:
    """Values as texts; missing ones stay missing. 1.0 and 1 are the same."""
    texts = [None if pd.isna(x) or x == "" else _text(x) for x in values]
    return pd.Series(texts, index=values.index, dtype=object)


def _text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def complete(frame: pd.DataFrame, formula: str | None) -> NDArray[np.bool_]:
    """Which patients lack no covariate that is used; an empty text is missing."""
    terms, _ = _parse_formula(formula, frame.columns)
    used = list(dict.fromkeys(name for term in terms for name in term))
    known = frame[used].notna() & (frame[used] != "")
    return np.asarray(known.all(axis=1), dtype=bool)


def separation(matrix: Floats, columns: list[str], coefficients: Floats) -> str:
    """A sentence on columns that separate a class without exception; empty if there is none."""
    effect = np.abs(coefficients) * np.ptp(matrix, axis=0)[:, None]
    separating = [columns[c] for c in np.flatnonzero((effect[1:] > _SEPARATED).any(axis=1)) + 1]
    if not separating:
        return ""
    return (
        f"the covariate column {some(separating)} separates classes almost without exception, so "
        "its odds ratios grow without bound and their intervals mean little; merge rare levels or "
        "leave it out."
    )
