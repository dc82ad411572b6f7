"""The patients of a survival analysis: times, events and groups, and who reaches the landmark."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import some
from font.errors import InputError
from mmlca.model.outcomes import aligned, design


class Cases(NamedTuple):
    """Times, events (0 none, 1 the event, 2 a competing one), groups as codes, and the rest."""

    time: NDArray[np.float64]
    event: NDArray[np.intp]
    group: NDArray[np.intp]
    levels: NDArray[Any]
    strata: pd.Series | None
    terms: list[str]
    covariates: NDArray[np.float64]
    unknown: NDArray[np.intp]

    def of(self, rows: NDArray[np.bool_], landmark: float) -> Cases:
        """Some of them, with times from the landmark on."""
        return self._replace(
            time=self.time[rows] - landmark,
            event=self.event[rows],
            group=self.group[rows],
            strata=None if self.strata is None else self.strata[rows],
            covariates=self.covariates[rows],
        )

    def only(self, rows: NDArray[np.bool_]) -> Cases:
        """Some of them, without groups of which there are none."""
        part = self.of(rows, 0.0)
        present, codes = np.unique(part.group, return_inverse=True)
        return part._replace(group=codes, levels=self.levels[present])

    def by_stratum(self) -> list[Cases]:
        """The cases of each stratum."""
        if self.strata is None:
            return [self]
        codes, _ = pd.factorize(self.strata)
        return [self.of(codes == k, 0.0) for k in range(codes.max() + 1)]


def read_cases(
    time: Any, event: Any, clusters: Any, competing: Any, strata: Any, covariates: Any
) -> Cases:
    """All inputs for the same patients; those without a value are left out, with a warning."""
    index = time.index if isinstance(time, pd.Series) else None
    if index is not None and not index.is_unique:
        raise InputError("time names a patient more than once; give one time for each.")
    n = len(np.asarray(time))
    values = aligned(time, n, index, "time").to_numpy(dtype=float, na_value=np.nan)
    happened = aligned(event, n, index, "event")
    groups = aligned(clusters, n, index, "clusters")
    where = None if strata is None else aligned(strata, n, index, "strata")
    terms, x = design(covariates, n, index)
    known = ~np.isnan(values) & happened.notna().to_numpy() & groups.notna().to_numpy()
    known &= ~np.isnan(x).any(axis=1)
    if where is not None:
        known &= where.notna().to_numpy()
    if not known.all():
        warnings.warn(
            f"{(~known).sum():,} of {n:,} patients lack a time, an event, a cluster or a covariate "
            "and are left out.",
            stacklevel=3,
        )
    if not known.any():
        raise InputError("no patient has a time, an event and a cluster; are the ids the same?")
    if not (np.isfinite(values[known]) & (values[known] >= 0)).all():
        raise InputError(f"times must be at least 0 and finite; found {np.nanmin(values):g}.")
    codes = _event_codes(happened[known], competing)
    kept = groups[known]
    if isinstance(kept.dtype, pd.CategoricalDtype):
        kept = kept.cat.remove_unused_categories()
    level, names = pd.factorize(kept, sort=True)
    return Cases(
        values[known],
        codes,
        level,
        np.asarray(names, dtype=object),
        None if where is None else where[known].reset_index(drop=True),
        terms,
        x[known],
        np.array([(groups[~known] == name).sum() for name in names]),
    )


def _event_codes(event: pd.Series, competing: Any) -> NDArray[np.intp]:
    one = competing is None or np.isscalar(competing)
    others = [] if competing is None else [competing] if one else list(competing)
    rival = event.isin(others).to_numpy()
    rest = event[~rival]
    if not rest.isin([0, 1]).all():
        others = rest[~rest.isin([0, 1])].unique()
        raise InputError(
            f"event must be 0 (none) or 1 (the event), or one of the competing events; found "
            f"{some(others)}: name these in competing, or recode them."
        )
    codes = np.zeros(len(event), dtype=np.intp)
    codes[~rival] = rest.astype(float).astype(np.intp)
    codes[rival] = 2
    return codes


def checked_landmark(window: float, landmark: float | None, time: NDArray[np.float64]) -> float:
    """The landmark: the end of the window, or a later one."""
    if not (np.isfinite(window) and window > 0):
        raise InputError(f"window must be a length of time above 0, found {window!r}.")
    at = float(window if landmark is None else landmark)
    if at < window:
        raise InputError(
            f"the landmark at {at:g} lies inside the window of {window:g} that forms the clusters: "
            "patients with the event in the window cannot be in the same clusters as the others, "
            "which would look like an effect; set the landmark to the end of the window or later."
        )
    if not (time > at).any():
        raise InputError(
            f"nobody is followed beyond the landmark at {at:g} (the longest time is "
            f"{time.max():g}); use a shorter window, or check the unit of time."
        )
    return at


def after_landmark(cases: Cases, landmark: float) -> tuple[Cases, pd.DataFrame]:
    """The patients who reach the landmark, and the numbers of those who do not."""
    reached = cases.time > landmark
    return cases.of(reached, landmark), _before_landmark(cases, reached)


def _before_landmark(cases: Cases, reached: NDArray[np.bool_]) -> pd.DataFrame:
    """Patients of each group who do not reach the landmark, by reason, and those who do."""

    def count(rows: NDArray[np.bool_]) -> NDArray[np.intp]:
        return np.bincount(cases.group[rows], minlength=len(cases.levels))

    table = {
        "event": count(~reached & (cases.event == 1)),
        "competing": count(~reached & (cases.event == 2)),
        "left": count(~reached & (cases.event == 0)),
        "unknown": cases.unknown,
        "included": count(reached),
    }
    frame = pd.DataFrame({"group": list(cases.levels), **table})
    return frame.assign(all=frame[list(table)].sum(axis=1))
