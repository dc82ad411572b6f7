"""Survival by cluster, from a landmark after the window that formed the clusters.

Clusters are made from treatments in a window of time. Someone who has the event inside the window
cannot be in a cluster of those who stayed on treatment through it, so that follow-up from the
beginning would favour such clusters (immortal time). Time is counted from the landmark, and only
those who reach it count.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import some
from font.errors import InputError
from mmlca.tables.disclosure import (
    Rounding,
    add_totals,
    coarse_times,
    hidden_grid,
    hide_rows,
    hides,
    is_small,
)
from mmlca.tables.survival_cases import Cases, before_landmark, checked_landmark, read_cases

_Z95 = 1.959963984540054
_COUNTS = ["at_risk", "events", "left"]
_SHARES = ["survival", "low", "high"]
_DIGITS = 3


@dataclass(frozen=True, eq=False)
class Survival:
    """The result of `survival_by_cluster`.

    Parameters
    ----------
    curves : DataFrame
        group, `time` (since the landmark), `at_risk` (just before), `events` then, `left` (end
        of follow-up or a competing event then), `survival` (Kaplan–Meier: the share without the
        event; with competing events 1 − the cumulative incidence, Aalen–Johansen) with its 95 %
        interval.
    tests : DataFrame
        Log-rank tests of all groups and of each pair: `statistic`, `df`, `p_value`, `p_holm`.
    hazards : DataFrame
        Cox regression: term, `hazard_ratio` with `low`, `high` and `p_value`; `events` and
        `others` (patients with and without event that the term rests on); `p_proportional`
        of the test that the ratio does not change with time.
    excluded : DataFrame
        Patients of each group before the landmark: `event`, `competing` and `left` (follow-up
        ended); `unknown` (no time, event or covariate), `included` (reached it), and `all`.
    landmark : float
    competing : bool
        Whether there are competing events.
    """

    curves: pd.DataFrame
    tests: pd.DataFrame
    hazards: pd.DataFrame
    excluded: pd.DataFrame
    landmark: float
    competing: bool

    def shown(self, min_count: int, rounding: Rounding | None = None) -> Survival:
        """The same without what is based on, or would reveal, fewer than `min_count` patients.

        Curves are shown only at round times, between which nobody or at least `min_count` patients
        have the event, and nobody or as many leave; with three digits. A curve that ends because
        nobody is left ends at the life-table estimate, without an interval. Numbers at risk are
        blank where few of a group did not reach the landmark. With a `rounding` of the groups all
        numbers of patients are rounded instead of hiding some.
        """
        if not hides(min_count):
            return self
        table = self.excluded.set_index("group").drop(columns="all")
        hidden = hidden_grid(add_totals(table), min_count)
        excluded = add_totals(table)[:-1]
        names = [*table, "all"]
        frame = pd.DataFrame(np.where(hidden[:-1], np.nan, excluded), table.index, names)
        groups = list(table.index)
        no_counts: NDArray[np.bool_] = np.asarray(hidden[:-1].any(axis=1))
        few = is_small(table["included"], min_count)
        step, parts = _round_step(self.curves["time"].max()), []
        for group, blank, small in zip(groups, no_counts, few, strict=True):
            rows = self.curves[self.curves["group"] == group]
            part = _coarse(rows, step, min_count)
            if blank and rounding is None:
                part[_COUNTS] = np.nan
            parts.append(part.iloc[:0] if small else part)
        curves = pd.concat(parts, ignore_index=True)
        shown = set(curves["group"])
        unsafe = [not all(g in shown for g in pair) for pair in self.tests["pair"]]
        tests = hide_rows(self.tests, ["test", "pair"], unsafe)
        rests = is_small(self.hazards[["events", "others"]], min_count).any(axis=1)
        is_group = self.hazards["group"].notna().to_numpy()
        reference_small = groups[0] not in shown
        of_hidden = is_group & ~self.hazards["group"].isin(shown).to_numpy()
        hazards = hide_rows(
            self.hazards, ["term", "group"], rests | of_hidden | (is_group & reference_small)
        )
        frame = frame.reset_index()
        if rounding is not None:
            curves, hazards, frame = _rounded(
                curves, self.hazards, hazards, self.excluded, rounding
            )
        return Survival(curves, tests, hazards, frame, self.landmark, self.competing)


def _rounded(
    curves: pd.DataFrame,
    exact: pd.DataFrame,
    hazards: pd.DataFrame,
    excluded: pd.DataFrame,
    rounding: Rounding,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The tables with rounded numbers of patients.

    Those at risk, those who reach the landmark and all of a group share the draw of its size.
    """
    alike = {"at_risk", "included", "all"}
    curves = curves.assign(
        **{c: rounding.column(curves, c, [], *([] if c in alike else [c])) for c in _COUNTS}
    )
    excluded = excluded.assign(
        **{
            c: rounding.column(excluded, c, [], *([] if c in alike else ["before the landmark", c]))
            for c in excluded.columns.drop("group")
        }
    )
    # a covariate is one of all groups; those compare theirs with the first
    term = exact.assign(of=exact["term"].where(exact["group"].isna(), ""))
    hazards = hazards.assign(
        **{c: rounding.column(term, c, ["of"], "hazard", c) for c in ("events", "others")}
    )
    return curves, hazards, excluded


def survival_by_cluster(
    time: pd.Series | ArrayLike,
    event: pd.Series | ArrayLike,
    clusters: pd.Series | ArrayLike,
    *,
    window: float,
    landmark: float | None = None,
    competing: Any = None,
    covariates: pd.DataFrame | None = None,
    strata: pd.Series | ArrayLike | None = None,
) -> Survival:
    """Compare the time to an event between clusters, from a landmark on.

    Parameters
    ----------
    time : Series by id or array (n,)
        From the first window to the event or the end of follow-up, in the unit of `window`.
    event : Series by id or array (n,)
        Whether the event happened at `time`: booleans, or 0 and 1; with competing events any
        values, of which `competing` names those that compete.
    clusters : Series by id or array (n,)
        As assigned, without regard to how certain the assignment is.
    window : float
        Length of the time in which treatments formed the clusters.
    landmark : float, optional
        From where time is counted; default `window`. It may not lie inside the window.
    competing : value or list of values of `event`, optional
    covariates : DataFrame, optional
        For the Cox regression, beside the clusters; the first cluster is the reference.
    strata : Series by id or array (n,), optional
        Such as sites: their baseline hazards differ.

    Returns
    -------
    Survival

    Notes
    -----
    With competing events, log-rank tests and Cox regression are of cause-specific hazards: the
    competing event ends follow-up. Tests and regression need lifelines (extra `survival`).

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> group = rng.integers(1, 3, size=400)
    >>> end = 4 + rng.exponential(group * 5.0)
    >>> result = survival_by_cluster(np.minimum(end, 10), end < 10, group, window=4)
    >>> result.hazards["hazard_ratio"].round(1).tolist()
    [0.5]
    """
    cases = read_cases(time, event, clusters, competing, strata, covariates)
    landmark = checked_landmark(window, landmark, cases.time)
    reached = cases.time > landmark
    excluded = before_landmark(cases, reached)
    gone = cases.levels[np.bincount(cases.group[reached], minlength=len(cases.levels)) == 0]
    if len(gone):
        raise InputError(
            f"nobody of the groups {some(gone)} is followed beyond the landmark at {landmark:g}; "
            "use a shorter window, or leave these groups out."
        )
    late = cases.of(reached, landmark)
    curves = pd.concat(
        [_curve(late, k).assign(group=name) for k, name in enumerate(late.levels)],
        ignore_index=True,
    )
    curves = curves[["group", *(name for name in curves if name != "group")]]
    return Survival(
        curves,
        _log_rank(late),
        _cox(late),
        excluded,
        landmark,
        bool((cases.event == 2).any()),
    )


# --- curves ---------------------------------------------------------------------------------


def _curve(cases: Cases, group: int) -> pd.DataFrame:
    """One group's curve at every time at which something happens."""
    mine = cases.group == group
    times, place = np.unique(cases.time[mine], return_inverse=True)
    kinds = [
        np.bincount(place[cases.event[mine] == kind], minlength=len(times)) for kind in (1, 2, 0)
    ]
    events, rivals, ended = (kind.astype(float) for kind in kinds)
    at_risk = mine.sum() - np.concatenate([[0], np.cumsum(sum(kinds))[:-1]])
    incidence, variance = incidence_curve(at_risk, events, rivals)
    survival = 1 - incidence
    low, high = _log_log(survival, variance)
    frame = pd.DataFrame({"time": times, "at_risk": at_risk.astype(float), "events": events})
    return frame.assign(left=rivals + ended, survival=survival, low=low, high=high)


def incidence_curve(
    at_risk: ArrayLike, events: ArrayLike, competing: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cumulative incidence at each time (Aalen–Johansen) and its variance (delta method).

    Without competing events this is 1 − Kaplan–Meier with Greenwood's variance.

    Examples
    --------
    >>> share, _ = incidence_curve([4, 3, 1], [1, 1, 0], [0, 0, 1])
    >>> share.tolist()
    [0.25, 0.5, 0.5]
    """
    n, d, r = (np.asarray(x, dtype=float) for x in (at_risk, events, competing))
    alive = np.cumprod(1 - (d + r) / n)
    before = np.concatenate([[1.0], alive[:-1]])
    share = np.cumsum(before * d / n)
    left = np.maximum(n - d - r, 1)  # the last factor is 0 where nobody is left
    a, b, c = (d + r) / (n * left), before**2 * (n - d) * d / n**3, before * d / n**2
    variance = (
        share**2 * np.cumsum(a)
        - 2 * share * np.cumsum(share * a)
        + np.cumsum(share**2 * a)
        + np.cumsum(b)
        - 2 * (share * np.cumsum(c) - np.cumsum(share * c))
    )
    return share, np.maximum(variance, 0)


def _log_log(
    survival: NDArray[np.float64], variance: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95 % intervals by the log-log transformation; missing where the curve is at 0 or 1."""
    low, high = np.full_like(survival, np.nan), np.full_like(survival, np.nan)
    ok = (survival > 1e-12) & (survival < 1 - 1e-12)
    log = np.log(survival[ok])
    width = _Z95 * np.sqrt(variance[ok]) / np.abs(survival[ok] * log)
    low[ok], high[ok] = np.exp(log * np.exp(width)), np.exp(log * np.exp(-width))
    return low, high


def _coarse(rows: pd.DataFrame, step: float, min_count: int) -> pd.DataFrame:
    """A curve at round times between which enough patients have the event or leave.

    The times are multiples of `step`: that of a single event would reveal one patient.
    """
    at = np.maximum(np.ceil(rows["time"] / step - 1e-9), 1).rename("at")
    total = {"events": "sum", "left": "sum", "at_risk": "first"}
    by_time = rows.groupby(at).agg({"group": "first", **total, **dict.fromkeys(_SHARES, "last")})
    by_time.insert(1, "time", by_time.index * step)
    counts = by_time[["events", "left"]].to_numpy()
    kept = coarse_times(counts, min_count)
    part = by_time.iloc[kept].copy()
    if len(kept):
        first = np.concatenate([[0], kept[:-1] + 1])
        part[["events", "left"]] = np.add.reduceat(counts[: kept[-1] + 1], first)
        part["at_risk"] = by_time["at_risk"].to_numpy()[first]
        _end_by_life_table(part)
    part[_SHARES] = part[_SHARES].round(_DIGITS)
    return part[list(rows)]


def _end_by_life_table(part: pd.DataFrame) -> None:
    """Where nobody is left after the last time, the curve ends at the life-table estimate.

    The exact curve ends with few at risk: that it falls to 0 reveals what the last patient had. The
    life table takes those who leave as half at risk, so that it follows from the counts alone.
    """
    risk, events, left = (float(part[name].iloc[-1]) for name in ("at_risk", "events", "left"))
    if risk > events + left:
        return
    before = float(part["survival"].iloc[-2]) if len(part) > 1 else 1.0
    part.iloc[-1, part.columns.get_indexer(["survival", "low", "high"])] = [
        before * (1 - min(events / (risk - left / 2), 1.0)),
        np.nan,
        np.nan,
    ]


def _round_step(longest: float) -> float:
    """A round length of time, of which at most a hundred make the longest."""
    power = 10.0 ** np.floor(np.log10(longest / 40))
    sizes = power * np.array([1, 2, 5, 10])
    return float(sizes[np.argmax(sizes >= longest / 100)])


# --- tests and regression -------------------------------------------------------------------


def _lifelines() -> Any:
    try:
        import lifelines.statistics
    except ImportError:
        raise ImportError(
            "log-rank tests and Cox regression need lifelines, which is not installed; install "
            "mmlca[survival]."
        ) from None
    import lifelines

    return lifelines


def _log_rank(cases: Cases) -> pd.DataFrame:
    from mmlca.model.outcomes import holm

    compare = _lifelines().statistics.multivariate_logrank_test
    names = list(cases.levels)
    pairs = list(combinations(range(len(names)), 2)) if len(names) > 2 else []
    rows: list[dict[str, Any]] = []
    for chosen in (tuple(range(len(names))), *pairs):
        mine = np.isin(cases.group, chosen)
        result = compare(cases.time[mine], cases.group[mine], cases.event[mine] == 1)
        every = len(chosen) == len(names)
        label = "all groups equal" if every else " and ".join(str(names[k]) for k in chosen)
        rows.append(
            {
                "test": label,
                "pair": tuple(names[k] for k in chosen),
                "statistic": float(result.test_statistic),
                "df": len(chosen) - 1,
                "p_value": float(result.p_value),
            }
        )
    table = pd.DataFrame(rows)
    adjusted = holm([row["p_value"] for row in rows[1:]])
    return table.assign(p_holm=[np.nan, *adjusted])


def _cox(cases: Cases) -> pd.DataFrame:
    lifelines = _lifelines()
    groups: list[Hashable] = list(cases.levels)
    dummies = np.eye(len(groups))[cases.group][:, 1:]
    x = np.column_stack([dummies, cases.covariates])
    names = [f"x{i}" for i in range(x.shape[1])]
    frame = pd.DataFrame(x, columns=names).assign(time=cases.time, event=cases.event == 1)
    options: dict[str, Any] = {"duration_col": "time", "event_col": "event"}
    if cases.strata is not None:
        frame["strata"] = cases.strata.astype(str).to_numpy()
        options["strata"] = ["strata"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = lifelines.CoxPHFitter().fit(frame, **options)
            checks = lifelines.statistics.proportional_hazard_test(
                model, frame, time_transform="rank"
            )
        except (lifelines.exceptions.ConvergenceError, np.linalg.LinAlgError) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            raise InputError(
                f"the Cox regression has no solution ({reason}): a group or covariate without any "
                "event, or covariates that determine each other; leave one out."
            ) from None
    summary = model.summary.loc[names]
    event = cases.event == 1
    rests = [_rests_on(column, event) for column in x.T]
    return pd.DataFrame(
        {
            "term": [f"{g} against {groups[0]}" for g in groups[1:]] + cases.terms,
            "group": pd.array([*groups[1:], *[None] * len(cases.terms)], dtype=object),
            "hazard_ratio": np.exp(summary["coef"]).to_numpy(),
            "low": np.exp(summary["coef"] - _Z95 * summary["se(coef)"]).to_numpy(),
            "high": np.exp(summary["coef"] + _Z95 * summary["se(coef)"]).to_numpy(),
            "p_value": summary["p"].to_numpy(),
            "p_proportional": checks.summary["p"].loc[names].to_numpy(),
            "events": [row[0] for row in rests],
            "others": [row[1] for row in rests],
        }
    )


def _rests_on(column: NDArray[np.float64], event: NDArray[np.bool_]) -> tuple[int, int]:
    """The fewest patients with, and without, an event among those with and without a trait."""
    levels = np.unique(column)
    if len(levels) > 2:
        return int(event.sum()), int((~event).sum())
    parts = [column == level for level in levels]
    return min(int((event & p).sum()) for p in parts), min(int((~event & p).sum()) for p in parts)
