"""Tables of covariates in the order of patients, or of patients and windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from font.checks import counted, some
from font.errors import InputError

AnyCovariates: TypeAlias = pd.DataFrame | pd.Series | Mapping[str, Any] | ArrayLike


def align(covariates: AnyCovariates, patients: pd.Index) -> pd.DataFrame:
    """One row of covariates per patient, in the order of the patients; NaN where there is none.

    A table with a column "id", or whose index holds the ids, is matched by id; one with the
    plain index 0 … n − 1, and an array, are taken in the order of the patients.
    """
    frame = _as_frame(covariates)
    if "id" in frame.columns:
        frame = frame.set_index("id")
    elif isinstance(frame.index, pd.RangeIndex) and (frame.index.start, frame.index.step) == (0, 1):
        if len(frame) != len(patients):
            raise InputError(
                f"there are {len(frame):,} rows of covariates for {len(patients):,} patients; give "
                'one row per patient in their order, or match rows by a column "id".'
            )
        return frame.set_axis(patients, axis=0)
    if frame.index.has_duplicates:
        twice = frame.index[frame.index.duplicated()].unique()
        raise InputError(f"the covariates have several rows for {some(twice)}; keep one of each.")
    if frame.index.dtype != patients.dtype and not frame.index.isin(patients).any():
        frame.index, ids = frame.index.astype(str), patients.astype(str)
    else:
        ids = patients
    if not ids.isin(frame.index).any():
        raise InputError(
            f"no patient has covariates: the sequences' ids are like {some(patients[:2])}, those "
            f"of the covariates like {some(frame.index[:2])}."
        )
    return frame.reindex(ids).set_axis(patients, axis=0)


def _as_frame(covariates: AnyCovariates) -> pd.DataFrame:
    if isinstance(covariates, pd.Series):
        covariates = covariates.to_frame("x" if covariates.name is None else covariates.name)
    elif isinstance(covariates, Mapping):
        covariates = pd.DataFrame(dict(covariates))
    elif not isinstance(covariates, pd.DataFrame):
        array = np.asarray(covariates)
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2:
            raise InputError(f"covariates must be a table, found an array of shape {array.shape}.")
        return pd.DataFrame(array, columns=[f"x{i + 1}" for i in range(array.shape[1])])
    frame = covariates.rename(columns=str)
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()].unique()
        raise InputError(f"the covariates have several columns called {some(twice)}.")
    return frame


def calendar_table(
    index_dates: pd.Series,
    cuts: Iterable[Any],
    times: tuple[str, ...],
    months: int,
    days: float | None,
) -> pd.DataFrame:
    """The calendar period of each patient's windows; see `Sequences.calendar_periods`.

    Windows are `months` long, or so many `days`.
    """
    limits = pd.DatetimeIndex([pd.Timestamp(cut) for cut in cuts])
    if not len(limits) or not limits.is_monotonic_increasing or limits.has_duplicates:
        raise InputError(
            "cuts must be at least one date, each later than the one before, such as "
            "['2015-01-01', '2018-01-01']."
        )
    if index_dates.isna().any():
        missing = index_dates.index[index_dates.isna()]
        have = counted(len(missing), "patient has", "patients have")
        raise InputError(f"{have} no index date ({some(missing)}); give one for each.")
    texts = [text.removesuffix("-01").removesuffix("-01") for text in limits.strftime("%Y-%m-%d")]
    names = [f"before {texts[0]}", *(f"from {text}" for text in texts)]
    starts = [
        index_dates
        + (
            pd.DateOffset(months=number * months)
            if days is None
            else pd.Timedelta(days=np.ceil(number * days))
        )
        for number in range(len(times))
    ]
    codes = [limits.searchsorted(start, side="right") for start in starts]
    period = pd.Categorical.from_codes(np.concatenate(codes), names)
    if len(np.unique(period.codes)) < 2:
        raise InputError(
            f"all windows begin in one period, between {min(starts[0]):%Y-%m-%d} and "
            f"{max(starts[-1]):%Y-%m-%d}; choose other cuts."
        )
    ids = np.tile(index_dates.index.to_numpy(), len(times))
    return pd.DataFrame(
        {"id": ids, "time": np.repeat(np.array(times, dtype=object), len(index_dates))}
    ).assign(period=period)


def align_steps(
    covariates: AnyCovariates, patients: pd.Index, times: tuple[str, ...]
) -> pd.DataFrame:
    """Covariates by patient (n rows), or by patient and window (n · T rows, patient by patient).

    A table with the columns "id" and "time" is by patient and window, and every other one is by
    patient, matched as by `align`. What a table lacks is NaN.
    """
    frame = _as_frame(covariates)
    if "time" not in frame.columns:
        return align(frame, patients).reset_index(drop=True)
    if "id" not in frame.columns:
        raise InputError(
            'covariates with a column "time" need a column "id", too: one row per patient and '
            f"window; found the columns {some(frame.columns)}."
        )
    values = frame["time"]
    if pd.api.types.is_float_dtype(values.dtype) and (values.dropna() % 1 == 0).all():
        values = values.astype("Int64")  # numbers beside missing ones
    window = pd.Index(list(times)).get_indexer(pd.Index(values.astype(str)))
    if (window < 0).any():
        raise InputError(
            f"the covariates have rows at the times {some(frame['time'][window < 0].unique())}, "
            f"which the sequences do not have; they have {some(times)}."
        )
    ids = frame["id"]
    if ids.dtype != patients.dtype and not ids.isin(patients).any():
        ids, patients = ids.astype(str), patients.astype(str)
    patient = patients.get_indexer(pd.Index(ids))
    if not (patient >= 0).any():
        raise InputError(
            f"no patient has covariates: the sequences' ids are like {some(patients[:2])}, those "
            f"of the covariates like {some(frame['id'][:2])}."
        )
    place = patient * len(times) + window
    known = patient >= 0
    twice = pd.Series(place[known]).duplicated().to_numpy()
    if twice.any():
        raise InputError(
            "the covariates have several rows for the same patient and time (patients "
            f"{some(ids[known][twice].unique())}); keep one of each."
        )
    columns = frame.loc[known].drop(columns=["id", "time"]).set_axis(place[known], axis=0)
    return columns.reindex(np.arange(len(patients) * len(times)))
