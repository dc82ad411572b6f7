"""Hazard ratios and curves of several sites together, of classes with memberships."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.model.outcomes import Z95
from mmlca.tables.pooling import inverse_variance
from mmlca.tables.survival import Survival, log_log_limits


class PooledSurvival(NamedTuple):
    """The tables of `pooled_survival`."""

    hazards: pd.DataFrame
    curves: pd.DataFrame


def pooled_survival(results: Mapping[str, Survival]) -> PooledSurvival:
    """Hazard ratios and curves of several sites, each from `survival_by_cluster` with memberships.

    Returns
    -------
    PooledSurvival
        `hazards`: the columns of `inverse_variance` by `term` and `group`, as ratios
        (`hazard_ratio`, `low`, `high`, `random`, `random_low`, `random_high`), and the
        heterogeneity of their logarithms. `curves`: `group`, `time`, `effective` (the sum of the
        sites' numbers), `survival`, `low`, `high` and `se`: at each time the mean of the sites'
        curves, weighted by their patients of the class at the landmark. A curve ends where that
        of the first site ends.
    """
    if not results:
        raise InputError("give the result of survival_by_cluster of at least one site.")
    for site, found in results.items():
        if "se" not in found.curves:
            raise InputError(
                f"the result of {site} takes its classes as certain; give survival_by_cluster the "
                "memberships as posterior=."
            )
    logs = {
        site: found.hazards.assign(
            estimate=np.log(found.hazards["hazard_ratio"].astype(float)),
            se=np.log((found.hazards["high"] / found.hazards["low"]).astype(float)) / (2 * Z95),
        )
        for site, found in results.items()
    }
    pooled = inverse_variance(logs, ("term", "group"))
    ratios = ["estimate", "low", "high", "random", "random_low", "random_high"]
    pooled[ratios] = np.exp(pooled[ratios])
    pooled = pooled.rename(columns={"estimate": "hazard_ratio"})
    groups = list(dict.fromkeys(g for found in results.values() for g in found.excluded["group"]))
    curves = [_mean_curve(group, [found.curves for found in results.values()]) for group in groups]
    return PooledSurvival(
        pooled.drop(columns=["se", "random_se"]), pd.concat(curves, ignore_index=True)
    )


def _mean_curve(group: Any, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The mean of the sites' curves of a group, at all their times until the first ends."""
    parts = [table[table["group"] == group] for table in tables]
    parts = [part for part in parts if len(part)]
    names = ["group", "time", "effective", "survival", "low", "high", "se"]
    if not parts:
        return pd.DataFrame(columns=names)
    end = min(part["time"].iloc[-1] for part in parts)
    times = np.unique(np.concatenate([part["time"] for part in parts]))
    times = times[times <= end]
    size = np.array([float(part["at_risk"].iloc[0]) for part in parts])
    share, variance, effective = np.zeros(len(times)), np.zeros(len(times)), np.zeros(len(times))
    for weight, part in zip(size / size.sum(), parts, strict=True):
        at = part["time"].to_numpy(float)
        here = np.searchsorted(at, times, side="right")
        share += weight * np.append(1.0, part["survival"])[here]
        variance += (weight * np.append(0.0, part["se"])[here]) ** 2
        effective += part["effective"].to_numpy(float)[np.searchsorted(at, times)]
    low, high = log_log_limits(share, variance)
    frame = pd.DataFrame({"time": times, "effective": effective, "survival": share})
    frame = frame.assign(low=low, high=high, se=np.sqrt(variance))
    frame.insert(0, "group", pd.Series([group] * len(frame), dtype=object))
    return frame[names]
