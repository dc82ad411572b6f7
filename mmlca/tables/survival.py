"""Survival by cluster, from a landmark after the window that formed the clusters.

Clusters are made from treatments in a window of time. Someone who has the event inside the window
cannot be in a cluster of those who stayed on treatment through it, so that follow-up from the
beginning would favour such clusters (immortal time). Time is counted from the landmark, and only
those who reach it count.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import some
from font.errors import InputError
from mmlca.model.outcomes import (
    Z95,
    aligned,
    design,
    holm,
    wald,
)
from mmlca.model.params import AnySequences, Seed
from mmlca.tables.class_survival import (
    Hazards,
    Memberships,
    class_curves,
    class_hazards,
    read_memberships,
)
from mmlca.tables.disclosure import (
    Rounding,
    add_totals,
    coarse_times,
    hidden_grid,
    hide_rows,
    hides,
    is_small,
)

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov

Floats = NDArray[np.float64]

_COUNTS = ["at_risk", "events", "left"]
_EFFECTIVE = "effective"
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
        interval. Of classes with memberships the counts are sums of weights; `effective` is the
        number of patients of known class who would be as informative as those at risk, and `se`
        the standard error of `survival`.
    tests : DataFrame
        Log-rank tests of all groups and of each pair, stratified: `statistic`, `df`, `p_value`,
        `p_holm`. Of classes with memberships: Wald tests of the Cox regression.
    hazards : DataFrame
        Cox regression: term, `hazard_ratio` with `low`, `high` and `p_value`; `events` and
        `others` (patients with and without event that the term rests on); `p_proportional`
        of the test that the ratio does not change with time (not of classes with memberships).
    excluded : DataFrame
        Patients of each group before the landmark: `event`, `competing` and `left` (follow-up
        ended); `unknown` (no time, event or covariate), `included` (reached it), and `all`.
    landmark : float
    competing : bool
        Whether there are competing events.
    assigned : DataFrame, optional
        Of classes with memberships: the patients assigned to each group who are at risk, have the
        event, a competing one, or leave at each time.
    """

    curves: pd.DataFrame
    tests: pd.DataFrame
    hazards: pd.DataFrame
    excluded: pd.DataFrame
    landmark: float
    competing: bool
    assigned: pd.DataFrame | None = None

    def shown(self, min_count: int, rounding: Rounding | None = None) -> Survival:
        """The same without what is based on, or would reveal, fewer than `min_count` patients.

        Curves are shown only at round times, between which nobody or at least `min_count` patients
        have the event, and nobody or as many leave; with three digits. A curve that ends because
        nobody is left ends at the life-table estimate, without an interval. Numbers at risk are
        blank where few of a group did not reach the landmark. With a `rounding` of the groups all
        numbers of patients are rounded instead of hiding some.

        All classes with memberships have the same times, since the patients assigned to each
        follow from the curves of all: between two times nobody or at least `min_count` patients
        who are assigned to any of the classes have the event, and as many leave.
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
        together = None
        if self.assigned is not None:
            no_counts |= no_counts.any()  # the counts of all classes follow from each other
            together = _times_of_all(self.assigned, step, min_count)
        for group, blank, small in zip(groups, no_counts, few, strict=True):
            rows = self.curves[self.curves["group"] == group]
            if together is None:
                part = _coarse(rows, step, min_count)
            else:
                part = _coarse_class(rows, step, together)
            if blank and rounding is None:
                part[_counts_of(part)] = np.nan
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
            self.hazards,
            ["site", "term", "group"],
            rests | of_hidden | (is_group & reference_small),
        )
        frame = frame.reset_index()
        if rounding is not None:
            curves, hazards, frame = _rounded(
                curves, self.hazards, hazards, self.excluded, rounding
            )
        return Survival(curves, tests, hazards, frame, self.landmark, self.competing)


def _counts_of(curves: pd.DataFrame) -> list[str]:
    """The columns of numbers of patients."""
    return [name for name in (*_COUNTS, _EFFECTIVE) if name in curves]


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
    alike = {"at_risk", "effective", "included", "all"}
    names = _counts_of(curves)
    curves = curves.assign(
        **{c: rounding.column(curves, c, [], *([] if c in alike else [c])) for c in names}
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
    clusters: pd.Series | ArrayLike | None = None,
    *,
    window: float,
    landmark: float | None = None,
    competing: Any = None,
    covariates: pd.DataFrame | None = None,
    strata: pd.Series | ArrayLike | None = None,
    posterior: pd.DataFrame | ArrayLike | MixtureMarkov | None = None,
    sequences: AnySequences | None = None,
    seed: Seed = 1,
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
        As assigned. Without a `posterior` they are taken as certain; with one the default is each
        patient's most probable class.
    window : float
        Length of the time in which treatments formed the clusters.
    landmark : float, optional
        From where time is counted; default `window`. It may not lie inside the window.
    competing : value or list of values of `event`, optional
    covariates : DataFrame, optional
        For the Cox regression, beside the clusters; the first cluster is the reference.
    strata : Series by id or array (n,), optional
        Such as sites: their baseline hazards differ.
    posterior : DataFrame by id, array (n, K), or fitted MixtureMarkov with `sequences`, optional
        Probability of each class for each patient: corrects curves and regression for wrong
        assignments, with the weights of `mmlca.three_step` (BCH). Given the model itself, the
        standard errors allow for the uncertainty of its parameters, and errors of classification
        are not underestimated.
    sequences : Sequences, optional
        The patients that the model was fitted to, where `posterior` is a model.
    seed : int or Generator
        Of the draws that show how uncertain the model is.

    Returns
    -------
    Survival

    Notes
    -----
    With competing events, log-rank tests and Cox regression are of cause-specific hazards: the
    competing event ends follow-up. Tests and regression of certain classes need lifelines (extra
    `survival`).

    With memberships, the errors of classification are those of the patients who reach the landmark,
    among whom the proportions of the classes may differ from those at the start. Standard errors
    are robust; they include that the errors are estimated and, with a model, its uncertainty.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> group = rng.integers(1, 3, size=400)
    >>> end = 4 + rng.exponential(group * 5.0)
    >>> result = survival_by_cluster(np.minimum(end, 10), end < 10, group, window=4)
    >>> result.hazards["hazard_ratio"].round(1).tolist()
    [0.5]
    """
    members = None
    if posterior is not None:
        members = read_memberships(posterior, sequences, clusters, time)
        clusters = members.label
    elif sequences is not None:
        raise InputError("sequences= belong to a model; give the model as posterior=.")
    elif clusters is None:
        raise InputError("give the clusters of the patients, or their memberships as posterior=.")
    cases = read_cases(time, event, clusters, competing, strata, covariates)
    if len(cases.levels) < 2:
        raise InputError(f"found the single cluster {some(cases.levels)}; at least two are needed.")
    if not (cases.event == 1).any():
        raise InputError("no patient has the event; there is nothing to compare.")
    landmark = checked_landmark(window, landmark, cases.time)
    late, excluded = after_landmark(cases, landmark)
    gone = cases.levels[np.bincount(late.group, minlength=len(cases.levels)) == 0]
    if len(gone):
        raise InputError(
            f"nobody of the groups {some(gone)} is followed beyond the landmark at {landmark:g}; "
            "use a shorter window, or leave these groups out."
        )
    if members is not None:
        return _of_classes(late, members, excluded, landmark, seed)
    return Survival(
        pooled_curves([risk_table(late)], late.levels),
        log_rank([log_rank_scores(part) for part in late.by_stratum()], late.levels),
        hazard_ratios(cox(late)),
        excluded,
        landmark,
        bool((cases.event == 2).any()),
    )


# --- classes with memberships ---------------------------------------------------------------


def _of_classes(
    late: Cases, members: Memberships, excluded: pd.DataFrame, landmark: float, seed: Seed
) -> Survival:
    """Curves, regression and tests, corrected for wrong assignments."""
    if len(late.levels) < len(members.names):
        nobody = [name for name in members.names if name not in set(late.levels)]
        raise InputError(
            f"no patient with a time is assigned to class {some(nobody)}; use fewer classes, or no "
            "posterior."
        )
    assigned = np.eye(len(late.levels))[late.group]
    patients = members.among(members.row[late.row], assigned, seed)
    happened, names = late.event == 1, list(late.levels)
    curves = []
    for name, curve in zip(names, class_curves(late.time, late.event, patients), strict=True):
        low, high = log_log_limits(curve["survival"].to_numpy(), curve["se"].to_numpy() ** 2)
        curve = curve.assign(low=low, high=high)
        curve.insert(0, "group", pd.Series([name] * len(curve), dtype=object))
        curves.append(curve)
    columns = ["group", "time", *_COUNTS, _EFFECTIVE, *_SHARES, "se"]
    strata = np.zeros(len(late.time), dtype=np.intp)
    if late.strata is not None:
        strata = pd.factorize(late.strata)[0]
    found = class_hazards(late.time, happened, late.covariates, strata, patients)
    dummies = np.column_stack([assigned[:, 1:], late.covariates])
    rests = [_rests_on(column, happened) for column in dummies.T]
    hazards = pd.DataFrame(
        {
            "term": [f"{name} against {names[0]}" for name in names[1:]] + late.terms,
            "group": pd.array([*names[1:], *[None] * len(late.terms)], dtype=object),
            "estimate": found.estimate,
            "se": np.sqrt(np.diag(found.covariance)),
            "events": [row[0] for row in rests],
            "others": [row[1] for row in rests],
        }
    )
    return Survival(
        pd.concat(curves, ignore_index=True)[columns],
        _wald_tests(names, found),
        hazard_ratios(hazards),
        excluded,
        landmark,
        bool((late.event == 2).any()),
        risk_table(late),
    )


def _wald_tests(names: Sequence[Any], found: Hazards) -> pd.DataFrame:
    """Tests that the log hazard ratios of all classes, and of each pair, are 0."""
    k = len(names)
    whole = np.vstack([np.zeros((1, len(found.estimate))), np.eye(k - 1, len(found.estimate))])
    chosen = [tuple(range(k)), *(combinations(range(k), 2) if k > 2 else [])]
    rows = []
    for number, which in enumerate(chosen):
        first, *others = which
        labels = tuple(names[i] for i in which)
        rows.append(
            {
                "test": " and ".join(map(str, labels)) if number else "all groups equal",
                "pair": labels,
                **wald(whole[others] - whole[first], found.estimate, found.covariance),
            }
        )
    table = pd.DataFrame(rows)
    return table.assign(p_holm=[np.nan, *holm(table["p_value"][1:].tolist())])


# --- patients -------------------------------------------------------------------------------


class Cases(NamedTuple):
    """Times, events (0 none, 1 the event, 2 a competing one), groups as codes, and the rest.

    `row` is the place of each patient in the data.
    """

    time: Floats
    event: NDArray[np.intp]
    group: NDArray[np.intp]
    levels: NDArray[Any]
    strata: pd.Series | None
    terms: list[str]
    covariates: Floats
    unknown: NDArray[np.intp]
    row: NDArray[np.intp]

    def of(self, rows: NDArray[np.bool_], landmark: float) -> Cases:
        """Some of them, with times from the landmark on."""
        return self._replace(
            time=self.time[rows] - landmark,
            event=self.event[rows],
            group=self.group[rows],
            strata=None if self.strata is None else self.strata[rows],
            covariates=self.covariates[rows],
            row=self.row[rows],
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
    if index is not None and isinstance(clusters, pd.Series):
        absent = ~clusters.index.isin(index)
        if absent.any():
            warnings.warn(
                f"{absent.sum():,} of {len(absent):,} patients with a cluster are not among those "
                "with a time and are left out.",
                stacklevel=3,
            )
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
    bad = ~(np.isfinite(values) & (values >= 0)) & known
    if bad.any():
        raise InputError(
            f"times must be at least 0 and finite; found {some(values[bad])} for {bad.sum():,} of "
            f"{n:,} patients; correct these times."
        )
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
        np.flatnonzero(known),
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


def checked_landmark(window: float, landmark: float | None, time: Floats) -> float:
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
    """The patients who reach the landmark; and by group, those who do not, by reason."""
    reached = cases.time > landmark

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
    return cases.of(reached, landmark), frame.assign(all=frame[list(table)].sum(axis=1))


# --- curves ---------------------------------------------------------------------------------


def risk_table(cases: Cases) -> pd.DataFrame:
    """`group`, `time`, `at_risk`, `events`, `competing` and `left` at each time of a group."""
    parts = []
    for group, name in enumerate(cases.levels):
        mine = cases.group == group
        times, place = np.unique(cases.time[mine], return_inverse=True)
        events, rivals, ended = (
            np.bincount(place[cases.event[mine] == kind], minlength=len(times)).astype(float)
            for kind in (1, 2, 0)
        )
        frame = pd.DataFrame(
            {"time": times, "at_risk": np.cumsum((events + rivals + ended)[::-1])[::-1]}
        )
        frame = frame.assign(events=events, competing=rivals, left=ended)
        frame.insert(0, "group", pd.Series([name] * len(frame), dtype=object))
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


def pooled_curves(tables: Sequence[pd.DataFrame], groups: Iterable[Any]) -> pd.DataFrame:
    """The curve of each group from the risk tables of sites, as if all patients were at one site.

    Tables with a column `survival` are coarse: their times are some of all, `at_risk` is at the
    time before, and between the times a curve falls evenly on the scale of logarithms. The curve of
    all sites then has the sum of the numbers at risk, and falls by the mean of the sites' falls,
    weighted by these; the numbers of events and of those who left are not known at its times.
    """
    curves = []
    for group in groups:
        parts = [table[table["group"] == group] for table in tables]
        parts = [part for part in parts if len(part)]
        if not parts:
            continue
        times = np.unique(np.concatenate([part["time"] for part in parts]))
        coarse = "survival" in parts[0]
        if coarse and len(parts) == 1:
            curve = parts[0].drop(columns="group").reset_index(drop=True)
        else:
            falls = _falls if coarse else _counted
            sums = np.sum([falls(part, times) for part in parts], axis=0)
            curve = _curve(times, sums, coarse)
        curve.insert(0, "group", pd.Series([group] * len(curve), dtype=object))
        curves.append(curve)
    names = ["group", "time", *_COUNTS, *_SHARES]
    return pd.concat(curves, ignore_index=True)[names] if curves else pd.DataFrame(columns=names)


def _curve(times: Floats, sums: Floats, coarse: bool) -> pd.DataFrame:
    """A curve from sums (times, 4): at risk, events, competing events, and those who left."""
    at_risk, events, rivals, ended = sums.T
    incidence, variance = incidence_curve(at_risk, events, rivals)
    low, high = log_log_limits(1 - incidence, variance)
    frame = pd.DataFrame({"time": times, "at_risk": at_risk, "events": events})
    frame = frame.assign(left=rivals + ended, survival=1 - incidence, low=low, high=high)
    if coarse:
        frame[["events", "left"]] = np.nan
        frame[_SHARES] = frame[_SHARES].round(_DIGITS)
    return frame


def _counted(part: pd.DataFrame, times: Floats) -> Floats:
    """At risk just before the times, and what happens then, (times, 4)."""
    at = part["time"].to_numpy(float)
    rows = np.zeros((len(times), 4))
    rows[:, 0] = np.append(part["at_risk"].to_numpy(float), 0.0)[np.searchsorted(at, times)]
    rows[np.searchsorted(times, at), 1:] = part[["events", "competing", "left"]].to_numpy(float)
    return rows


def _falls(part: pd.DataFrame, times: Floats) -> Floats:
    """The same of a coarse table: so many events as would let its curve fall as it does."""
    at, share = (part[c].to_numpy(float) for c in ("time", "survival"))
    height = np.log(np.maximum(np.append(1.0, share), 1e-9))
    here = np.interp(np.append(0.0, times), np.append(0.0, at), height)
    rows = np.zeros((len(times), 4))
    rows[:, 0] = np.append(part["at_risk"].to_numpy(float), 0.0)[np.searchsorted(at, times)]
    rows[:, 1] = rows[:, 0] * -np.expm1(np.diff(here))
    return rows


def incidence_curve(
    at_risk: ArrayLike, events: ArrayLike, competing: ArrayLike
) -> tuple[Floats, Floats]:
    """Cumulative incidence at each time (Aalen–Johansen) and its variance (delta method).

    Without competing events this is 1 − Kaplan–Meier with Greenwood's variance.

    >>> incidence_curve([4, 3, 1], [1, 1, 0], [0, 0, 1])[0].tolist()
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


def log_log_limits(survival: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """95 % intervals by the log-log transformation; missing where the curve is at 0 or 1."""
    low, high = np.full_like(survival, np.nan), np.full_like(survival, np.nan)
    ok = (survival > 1e-12) & (survival < 1 - 1e-12)
    log = np.log(survival[ok])
    width = Z95 * np.sqrt(variance[ok]) / np.abs(survival[ok] * log)
    low[ok], high[ok] = np.exp(log * np.exp(width)), np.exp(log * np.exp(-width))
    return low, high


def _coarse(rows: pd.DataFrame, step: float, min_count: int) -> pd.DataFrame:
    """A curve at round times between which enough patients have the event or leave.

    The times are multiples of `step`: that of a single event would reveal one patient.
    """
    at = pd.Series(_round_times(rows["time"], step), rows.index, name="at")
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


def _round_times(time: pd.Series, step: float) -> NDArray[np.float64]:
    """The numbers of the round times at which the stretches with these times end."""
    return np.asarray(np.maximum(np.ceil(time.to_numpy(float) / step - 1e-9), 1))


def _times_of_all(assigned: pd.DataFrame, step: float, min_count: int) -> Floats:
    """The numbers of the round times at which all classes with memberships show their curves."""
    table = assigned.assign(
        at=_round_times(assigned["time"], step), left=assigned["left"] + assigned["competing"]
    )
    counts = table.pivot_table(
        values=["events", "left"], index="at", columns="group", aggfunc="sum", fill_value=0
    )
    return np.asarray(counts.index.to_numpy(float)[coarse_times(counts, min_count)])


def _coarse_class(rows: pd.DataFrame, step: float, kept: Floats) -> pd.DataFrame:
    """The curve of a class with memberships at the round times `kept`.

    A stretch in which the curve ends, because too few are at risk, is left out.
    """
    stretch = np.searchsorted(kept, _round_times(rows["time"], step))
    last = rows.iloc[-1]
    over = last["at_risk"] - last["events"] - last["left"] < 1e-6
    complete = stretch < len(kept)
    if not over and kept[-1:].size:
        complete &= kept[np.minimum(stretch, len(kept) - 1)] < _round_times(rows["time"], step)[-1]
    how: dict[str, Any] = {"group": "first", "events": "sum", "left": "sum", "at_risk": "first"}
    how |= {_EFFECTIVE: "first", **dict.fromkeys([*_SHARES, "se"], "last")}
    part = rows[complete].groupby(stretch[complete]).agg(how)
    part.insert(1, "time", kept[part.index] * step)
    if over and len(part):
        _end_by_life_table(part)
    part[[*_SHARES, "se"]] = part[[*_SHARES, "se"]].round(_DIGITS)
    part[_counts_of(part)] = part[_counts_of(part)].round()
    return part[list(rows)]


def _end_by_life_table(part: pd.DataFrame) -> None:
    """Where nobody is left after the last time, the curve ends at the life-table estimate.

    The exact curve ends with few at risk: that it falls to 0 reveals what the last patient had. The
    life table takes those who leave as half at risk, so that it follows from the counts alone.
    """
    risk, events, left = (float(part[name].iloc[-1]) for name in ("at_risk", "events", "left"))
    if risk > events + left + 1e-6:
        return
    before = float(part["survival"].iloc[-2]) if len(part) > 1 else 1.0
    names = [name for name in (*_SHARES, "se") if name in part]
    part.iloc[-1, part.columns.get_indexer(names)] = np.nan
    share = before * (1 - min(events / (risk - left / 2), 1.0))
    part.iloc[-1, part.columns.get_loc("survival")] = share


def _round_step(longest: float) -> float:
    """A round length of time, of which at most a hundred make the longest."""
    power = 10.0 ** np.floor(np.log10(longest / 40))
    sizes = power * np.array([1, 2, 5, 10])
    return float(sizes[np.argmax(sizes >= longest / 100)])


# --- tests and regression -------------------------------------------------------------------


def log_rank_scores(cases: Cases) -> pd.DataFrame:
    """What log-rank tests of all groups of a stratum, and of each pair, are sums of.

    `first` and `second` of a pair (None: all groups), `group`, `other`, `excess` (events of the
    group less those expected) and `covariance` of the excesses of two groups.
    """
    names = list(cases.levels)
    happened = cases.event == 1
    events, place = np.unique(cases.time[happened], return_inverse=True)
    d, n = np.zeros((len(events), len(names))), np.zeros((len(events), len(names)))
    np.add.at(d, (place, cases.group[happened]), 1.0)
    for k in range(len(names)):
        ends = np.sort(cases.time[cases.group == k])
        n[:, k] = len(ends) - np.searchsorted(ends, events)
    every = tuple(range(len(names)))
    chosen = [every, *combinations(every, 2)]
    rows = []
    for number, which in enumerate(chosen):
        pick = list(which)
        excess, covariance = _scores(n[:, pick], d[:, pick])
        pair = (names[which[0]], names[which[1]]) if number else (None, None)
        for i, a in enumerate(pick):
            for j, b in enumerate(pick):
                key = dict(zip(("first", "second"), pair, strict=True))
                numbers = {"excess": excess[i], "covariance": covariance[i, j]}
                rows.append(key | {"group": names[a], "other": names[b]} | numbers)
    return pd.DataFrame(rows, columns=SCORES, dtype=object)


SCORES = ["first", "second", "group", "other", "excess", "covariance"]


def _scores(n: Floats, d: Floats) -> tuple[Floats, Floats]:
    """Events less expected ones of each group, and their covariance; n, d: (times, groups)."""
    risk, events = n.sum(axis=1), d.sum(axis=1)
    share = n / np.maximum(risk, 1)[:, None]
    excess: Floats = (d - events[:, None] * share).sum(axis=0)
    weight = events * (risk - events) / np.maximum(risk - 1, 1)
    covariance = np.diag(weight @ share) - (share * weight[:, None]).T @ share
    return excess, covariance


def log_rank(scores: Sequence[pd.DataFrame], groups: Iterable[Any]) -> pd.DataFrame:
    """Log-rank tests of all groups and of each pair, stratified: scores are added up."""
    from scipy.stats import chi2

    names = list(groups)
    pairs = list(combinations(names, 2)) if len(names) > 2 else []
    every, rows = pd.concat(scores, ignore_index=True), list[dict[str, Any]]()
    for chosen in (tuple(names), *pairs):
        of_all = len(chosen) == len(names)
        if of_all:
            part = every[every["first"].isna()]
        else:
            part = every[(every["first"] == chosen[0]) & (every["second"] == chosen[1])]
        statistic, df = _statistic(part, chosen)
        rows.append(
            {
                "test": "all groups equal" if of_all else " and ".join(map(str, chosen)),
                "pair": chosen,
                "statistic": statistic,
                "df": df,
                "p_value": float(chi2.sf(statistic, df)) if df else np.nan,
            }
        )
    table = pd.DataFrame(rows)
    return table.assign(p_holm=[np.nan, *holm([row["p_value"] for row in rows[1:]])])


def _statistic(scores: pd.DataFrame, groups: Sequence[Any]) -> tuple[float, int]:
    """The statistic of summed scores and its degrees of freedom."""
    place = {group: i for i, group in enumerate(groups)}
    excess, covariance = np.zeros(len(place)), np.zeros((len(place), len(place)))
    for row in scores.itertuples(index=False):
        i, j = place[row.group], place[row.other]
        excess[i] += row.excess if i == j else 0.0
        covariance[i, j] += row.covariance
    df = int(np.linalg.matrix_rank(covariance, tol=1e-6, hermitian=True))
    inverse = np.linalg.pinv(covariance, rcond=1e-9, hermitian=True)
    return (float(excess @ inverse @ excess), df) if df else (np.nan, 0)


def cox(cases: Cases) -> pd.DataFrame:
    """Cox regression on groups and covariates: log hazard ratios against the first group.

    `term`, `group` (None: a covariate), `estimate`, `se`, `p_proportional` (of the test that the
    ratio does not change with time), and the `events` and `others` that a term rests on.
    """
    try:
        import lifelines.statistics
    except ImportError:
        raise ImportError(
            "log-rank tests and Cox regression need lifelines, which is not installed; install "
            "mmlca[survival]."
        ) from None
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
    event = cases.event == 1
    rests = [_rests_on(column, event) for column in x.T]
    return pd.DataFrame(
        {
            "term": [f"{g} against {groups[0]}" for g in groups[1:]] + cases.terms,
            "group": pd.array([*groups[1:], *[None] * len(cases.terms)], dtype=object),
            "estimate": model.summary.loc[names, "coef"].to_numpy(),
            "se": model.summary.loc[names, "se(coef)"].to_numpy(),
            "p_proportional": checks.summary["p"].loc[names].to_numpy(),
            "events": [row[0] for row in rests],
            "others": [row[1] for row in rests],
        }
    )


def hazard_ratios(hazards: pd.DataFrame) -> pd.DataFrame:
    """The table of `cox` with hazard ratios, their intervals and p-values."""
    from scipy.stats import norm

    estimate, se = hazards["estimate"].astype(float), hazards["se"].astype(float)
    table = hazards.drop(columns=["estimate", "se"])
    at = list(table).index("group") + 1
    for name, values in {
        "p_value": 2 * norm.sf(np.abs(estimate / se)),
        "high": np.exp(estimate + Z95 * se),
        "low": np.exp(estimate - Z95 * se),
        "hazard_ratio": np.exp(estimate),
    }.items():
        table.insert(at, name, values)
    return table


def _rests_on(column: Floats, event: NDArray[np.bool_]) -> tuple[int, int]:
    """The fewest patients with, and without, an event among those with and without a trait."""
    levels = np.unique(column)
    if len(levels) > 2:
        return int(event.sum()), int((~event).sum())
    parts = [column == level for level in levels]
    return min(int((event & p).sum()) for p in parts), min(int((~event & p).sum()) for p in parts)
