"""How a lab value develops around the first prescription: a mixed model for each site.

The model itself is in `mmlca.tables.mixed_model`. What is done with a lab table before and after it
is in this module, because every value that is left out on the way is counted in the same result.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import counted, one_of, some
from font.errors import InputError, ReportWarning, option
from mmlca.sequences.checks import match_ids, need_columns
from mmlca.sequences.type import Sequences
from mmlca.tables.disclosure import (
    Rounding,
    check_min_count,
    fewest_patients,
    hidden_note,
    hides,
    is_small,
    show_counts,
)
from mmlca.tables.mixed_model import Curve, Floats, fit_curves, natural_spline, whole_curve_quantile
from mmlca.tables.pooling import Z95, pool

IndexDates: TypeAlias = pd.Series | pd.DataFrame | Sequences
Bands = Literal["pointwise", "simultaneous"]

KNOTS = (-1.0, -0.4, 0.0, 0.3, 0.8, 1.6, 3.0)
"""Years around the index date; no curve begins before the first or goes on after the last."""

_STEPS = 81  # points of each curve over all years
_LEVEL = 0.95  # of the bands
_UNNAMED = "Laboratory value"
_DAYS_A_YEAR = 365.25
_SUPPORT = 5  # patients who must have values beyond a time for a curve to reach it
_NEAR = 1 / 12  # years by which a curve may go beyond these
_LIMIT = re.compile(r"\s*[<>≤≥]=?\s*[\d.]")
_USED = "used"
_MISSING, _CENSORED, _TEXT = "value missing", "below or above a limit", "not a number"
_SPARSE = "where few patients of the group have values"
_REASONS = (
    "patient without a group or an index date",
    "date missing or unreadable",
    "outside the years studied",
    _MISSING,
    _CENSORED,
    _TEXT,
    "not positive, has no logarithm",
    _SPARSE,
    "group with too few labs or patients for a curve",
)


@dataclass(frozen=True, eq=False, repr=False)
class Trend:
    """The result of `trend`, as tables.

    Parameters
    ----------
    curves : DataFrame
        `site`, `group`, `years`, `estimate`, `low`, `high`, in the units of the lab. With
        `log` the estimate is a geometric mean. A curve covers the years in which the group has
        values, see `support`.
    coefficients : DataFrame
        `site`, `group`, `years` (a knot), `estimate` and `error`: the height of the curve at
        each knot with its standard error, on the scale of the model.
    variances : DataFrame
        `site`, `between` and `within`: standard deviations of the patients' levels and of
        the rest, on the scale of the model; `correlation` of two labs of a patient;
        `loglik`, restricted.
    counts : DataFrame
        `site`, `group`, `reason`, `patients`, `labs`: the labs used, and those dropped by
        reason (no group: not known); they add up to the input. Blank where they are based on fewer
        than `min_count` patients, or would reveal such a number by subtraction.
    censored : DataFrame
        `site`, `patients`, `labs`: values that were given only as a limit ("<2", ">130") and
        therefore dropped, among those of patients with a group in the years studied. Blank where
        they are based on fewer than `min_count` patients.
    support : DataFrame
        `site`, `group`, `patients` and the years `begin` and `end` of the curve: so many patients
        of the group have values before `begin` and after `end`, or within a month of them.
    label : str
        The test and its unit as the tables name them, such as "CRP (mg/L)"; "Laboratory value"
        where they do not.
    log, bands, min_count
        As given to `trend`.
    rounded : bool
        Whether the numbers of patients and labs are rounded.
    pooled : DataFrame or None
        Of all sites, where they were asked for: `group`, `years`, `estimate`, `low`, `high` (with
        fixed effects), `random`, `random_low`, `random_high` (pointwise, with random effects),
        `sites`, and `i2` of the differences between the sites.
    """

    curves: pd.DataFrame
    coefficients: pd.DataFrame
    variances: pd.DataFrame
    counts: pd.DataFrame
    censored: pd.DataFrame
    support: pd.DataFrame
    label: str = _UNNAMED
    log: bool = True
    bands: Bands = "pointwise"
    min_count: int = 0
    rounded: bool = False
    pooled: pd.DataFrame | None = None

    def caption(self) -> str:
        """What the curves and bands are, and what a reader must know about the data."""
        mean = "Geometric means" if self.log else "Means"
        scale = "the logarithm of the value" if self.log else "the value"
        percent = f"{100 * _LEVEL:g} %"
        what = {
            "pointwise": f"The bands are pointwise: at any one time the band contains the mean "
            f"in {percent} of studies, and the whole curve less often.",
            "simultaneous": f"The bands are simultaneous: they contain the whole curve of a group "
            f"in {percent} of studies.",
        }
        fewest = self.support["patients"].min()
        sentences = [
            f"{mean} by group from a linear mixed model of {scale} (natural cubic spline by group, "
            f"random intercept by patient) at each site, with {percent} bands from the sandwich "
            "estimator with patients as clusters.",
            what[self.bands],
            f"A curve ends where fewer than {fewest:g} patients of the group have earlier or later "
            "values.",
            "Values before the index date are those of patients who are grouped by their later "
            "treatment.",
        ]
        if self.pooled is not None and len(self.pooled):
            sentences.append(
                "The curves of all sites are the means of those of the sites, weighted by the "
                "inverse of their variances (fixed effects), in the years that all cover; of their "
                f"differences sampling does not explain {100 * self.pooled['i2'].median():.0f} % "
                "(I², median over time and groups)."
            )
        given = self.censored["labs"]
        if given.isna().any() or given.sum():
            values = "Some" if given.isna().any() else f"{given.sum():,.0f}"
            sentences.append(
                f"{values} values given only as a limit (such as <2 or >130) were left out, so "
                "that extreme values are under-represented."
            )
        if not self.rounded and (hidden := hidden_note(self.min_count)):
            sentences.append(hidden)
        return " ".join(sentences)

    def __repr__(self) -> str:
        used = self.counts[self.counts["reason"] == _USED]
        return (
            f"Trend: {used['labs'].sum():,.0f} of {self.counts['labs'].sum():,.0f} labs, "
            f"{used['patients'].sum():,.0f} patients, "
            f"{counted(len(self.variances), 'site', 'sites')}"
        )


def trend(
    labs: pd.DataFrame | Mapping[str, pd.DataFrame],
    groups: pd.Series | Mapping[str, pd.Series],
    index_dates: IndexDates | Mapping[str, IndexDates],
    *,
    test: str | None = None,
    knots: Sequence[float] = KNOTS,
    log: bool = True,
    bands: Bands = "pointwise",
    min_count: int = 0,
) -> Trend:
    r"""Mean course of a lab in each group of patients, with bands, at each site.

    The j-th lab of patient i, of group g, at time t after the index date is

    .. math:: \log y_{ij} = \sum_k \beta_{gk} B_k(t_{ij}) + b_i + e_{ij}, \quad
        b_i \sim N(0, \tau^2), \; e_{ij} \sim N(0, \sigma^2),

    where :math:`B_k` is the natural cubic spline that is 1 at knot k and 0 at the others.
    These functions add up to 1: they contain the groups' intercepts, and
    :math:`\beta_{gk}` is the height of the curve at the knot. Variances are estimated by
    restricted maximum likelihood (REML). The bands come from the sandwich estimator with
    patients as clusters, so that they hold if patients also differ in slope.

    No curve is drawn beyond its data. At either end, the outermost knots are left out for a group
    of which fewer than five patients (or `min_count`, if that is more) have values between them,
    and the curve is given only as far as so many patients have values, or within a month of that.

    With logarithms the curves, :math:`\exp \sum_k \beta_{gk} B_k(t)`, are geometric means,
    which are below the arithmetic ones. A value that is only a limit ("<2", ">130") is dropped
    and counted in `.censored`. A group is one of the whole follow-up,
    such as a cluster of treatment sequences: labs before the index date are grouped by
    *later* treatment, so that a difference there is not an effect of treatment.

    Parameters
    ----------
    labs : DataFrame, or dict {site: DataFrame}
        One row per lab: `patient_id`, `date` and `value`, and `test` and `unit` where the table
        has them, as `ehr_prep.read_labs` returns.
    groups : Series by patient id, or dict {site: Series}
        Such as clusters. Patients without one are left out.
    index_dates : Series by patient id, or dict {site: Series}
        Instead of a Series: sequences built from records, or a table with a column
        "index_date", such as the `.patients` of such sequences.
    test : str, optional
        Which lab, where the table holds several.
    knots : numbers
        In years; labs before the first or after the last are left out.
    log : bool
        Model the logarithm; the curves are then geometric means.
    bands : "pointwise" or "simultaneous"
        Pointwise bands hold the mean at any one time with the probability 0.95; simultaneous ones
        are wider and hold the whole curve of a group with it. Their width follows from the length
        of the path of the standardised curve (the tube formula of J. Sun and C. R. Loader, Annals
        of Statistics 22 (1994)).
    min_count : int
        A group of fewer patients at a site has no curve, and numbers in `.counts` based on
        fewer are blank.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> labs = pd.DataFrame({"patient_id": np.repeat(np.arange(50), 8),
    ...                      "date": np.datetime64("2010-01-01") + np.timedelta64(1, "D")
    ...                      * rng.integers(-300, 1000, 400),
    ...                      "value": np.exp(rng.normal(3, 0.4, 400))})
    >>> index_dates = pd.Series(np.datetime64("2010-01-01", "s"), index=range(50))
    >>> result = trend(labs, pd.Series(1, index=range(50)), index_dates)
    >>> result
    Trend: 400 of 400 labs, 50 patients, 1 site
    >>> bool(result.curves["estimate"].between(14, 28).all())
    True
    """
    one_of(bands, ("pointwise", "simultaneous"), "bands")
    check_min_count(min_count)
    at = np.asarray(knots, dtype=float)
    if at.ndim != 1 or len(at) < 3 or not np.isfinite(at).all() or (np.diff(at) <= 0).any():
        raise InputError(f"knots must be three or more increasing numbers, found {knots!r}.")
    several = isinstance(labs, Mapping)
    parts = {
        site: site_labs(
            table,
            _pick_site(groups, site, several, "groups"),
            _pick_site(index_dates, site, several, "index_dates"),
            test=test,
            knots=knots,
            log=log,
            min_count=min_count,
        )
        for site, table in (labs.items() if isinstance(labs, Mapping) else {"": labs}.items())
    }
    return put_together(parts, knots=knots, log=log, bands=bands, min_count=min_count)


class SiteLabs(NamedTuple):
    """The labs of a site, and the curves of its groups.

    `counts`: `group`, `reason`, `patients`, `labs`; `censored`: the same of values given as limits,
    without groups and reasons; `curves`: on the scale of the model, with `n_free`; `support`:
    `group`, `patients`, `begin`, `end`; `variances` as in `Trend`.
    """

    counts: pd.DataFrame
    censored: pd.DataFrame
    curves: list[Curve]
    support: pd.DataFrame
    variances: dict[str, float]
    label: str


def site_labs(
    labs: pd.DataFrame,
    groups: pd.Series,
    index_dates: IndexDates,
    *,
    test: str | None = None,
    knots: Sequence[float] = KNOTS,
    log: bool = True,
    min_count: int = 0,
) -> SiteLabs:
    """The labs of one site, with exact numbers; the arguments are those of `trend`."""
    at, group = np.asarray(knots, dtype=float), _check_patients(groups, "groups")
    rows, label = _prepare_labs(labs, test, group, _index_dates(index_dates))
    rows = rows.assign(reason=_find_reasons(rows, at, log))
    rows, ranges = _find_ranges(rows, at, np.linspace(at[0], at[-1], _STEPS), min_count)
    limits = rows.loc[rows["reason"] == _CENSORED, "who"]
    censored = pd.DataFrame({"patients": [limits.nunique()], "labs": [len(limits)]})
    used = rows[rows["reason"] == _USED]
    curves, variances = list[Curve](), dict[str, float]()
    if len(used):
        y = np.log(used["value"].to_numpy()) if log else used["value"].to_numpy()
        own = {name: part.knots for name, part in ranges.items()}
        fit = fit_curves(y, used["years"].to_numpy(), used["group"], used["who"].to_numpy(), own)
        curves, variances = fit.curves, fit.variances
    support = [
        {"group": name, "patients": part.patients, "begin": part.years[0], "end": part.years[-1]}
        for name, part in ranges.items()
    ]
    names = ["group", "patients", "begin", "end"]
    table = pd.DataFrame(support, columns=names)
    return SiteLabs(_count_labs(rows), censored, curves, table, variances, label)


def put_together(
    sites: Mapping[str, SiteLabs],
    *,
    knots: Sequence[float] = KNOTS,
    log: bool = True,
    bands: Bands = "pointwise",
    min_count: int = 0,
    rounded: bool = False,
    all_sites: bool = False,
) -> Trend:
    """The labs of all sites, as they may be shown; the options are those of `trend`.

    `rounded`: the sites have rounded their numbers of patients and labs. `all_sites`: also pool the
    curves of the sites.
    """
    counts, censored, support = (
        pd.concat([getattr(p, name).assign(site=s) for s, p in sites.items()], ignore_index=True)
        for name in ("counts", "censored", "support")
    )
    _check_used(counts, len(knots))
    _warn_skipped(sites, counts, len(knots), min_count)
    counts = counts[["site", "group", "reason", "patients", "labs"]]
    censored = censored[["site", "patients", "labs"]]
    if not rounded:
        counts = show_labs(counts, min_count, None, ["reason"], ("labs", ["site"]))
        censored = show_labs(censored, min_count, None)
    years = np.linspace(knots[0], knots[-1], _STEPS)
    grids = {site: _grids(part, years) for site, part in sites.items()}
    curves = [
        _band(grid, log, bands).assign(site=site, group=group)
        for site, of_site in grids.items()
        for group, grid in of_site.items()
    ]
    heights = [
        pd.DataFrame(
            {"years": c.knots, "estimate": c.beta, "error": np.sqrt(np.diagonal(c.covariance))}
        ).assign(site=site, group=c.group)
        for site, part in sites.items()
        for c in part.curves
    ]
    variances = pd.DataFrame([{"site": s, **p.variances} for s, p in sites.items() if p.variances])
    pooled = _pooled_curves(grids, log, bands) if all_sites and len(sites) > 1 else None
    names = ["site", "group", "years", "estimate"]
    return Trend(
        pd.concat(curves, ignore_index=True)[[*names, "low", "high"]],
        pd.concat(heights, ignore_index=True)[[*names, "error"]],
        variances,
        counts,
        censored,
        support[["site", "group", "patients", "begin", "end"]],
        next(iter(sites.values())).label,
        log,
        bands,
        min_count,
        rounded,
        pooled,
    )


def _warn_skipped(
    sites: Mapping[str, SiteLabs], counts: pd.DataFrame, n_knots: int, min_count: int
) -> None:
    """Name the groups with labs, or patients, but without a curve."""
    enough = f", of at least {min_count} patients" if hides(min_count) else ""
    for site, part in sites.items():
        mine = counts[(counts["site"] == site) & counts["group"].notna()]
        drawn = {curve.group for curve in part.curves}
        if skipped := [name for name in mine["group"].unique() if name not in drawn]:
            where = f" of site {site}" if site else ""
            warnings.warn(
                f"no curve for {some(skipped)}{where}: a group needs more labs than the "
                f"{n_knots} knots, spread over the years{enough}; use fewer knots, or join groups.",
                ReportWarning,
                stacklevel=4,
            )


class _Grid(NamedTuple):
    """A curve at some years: its heights on the scale of the model, with their covariance.

    `fine` and `spread` are a basis and a covariance that give the covariance of a finer grid.
    """

    years: Floats
    height: Floats
    covariance: Floats
    fine: Floats
    spread: Floats
    n_free: int


def _grids(part: SiteLabs, years: Floats) -> dict[Any, _Grid]:
    """The curves of a site at those of the years that they cover."""
    ends = part.support.set_index("group")
    grids = {}
    for curve in part.curves:
        begin, end = ends.loc[curve.group, ["begin", "end"]]
        at = years[(years >= begin - 1e-9) & (years <= end + 1e-9)]
        basis = natural_spline(at, curve.knots)
        fine = natural_spline(np.linspace(at[0], at[-1], 401), curve.knots)
        spread = curve.covariance
        covariance = basis @ spread @ basis.T
        grids[curve.group] = _Grid(at, basis @ curve.beta, covariance, fine, spread, curve.n_free)
    return grids


def _band(grid: _Grid, log: bool, bands: Bands) -> pd.DataFrame:
    """A curve and its band."""
    error = np.sqrt(np.maximum(np.diagonal(grid.covariance), 0.0))
    reach = Z95
    if bands == "simultaneous":
        reach = whole_curve_quantile(grid.fine, grid.spread, grid.n_free, _LEVEL)
    lines = {
        "estimate": grid.height,
        "low": grid.height - reach * error,
        "high": grid.height + reach * error,
    }
    shown = {name: np.exp(line) if log else line for name, line in lines.items()}
    return pd.DataFrame({"years": grid.years, **shown})


def _pooled_curves(
    sites: Mapping[str, Mapping[Any, _Grid]], log: bool, bands: Bands
) -> pd.DataFrame:
    """Curves of all sites: at each time the sites' heights, weighted by inverse variance.

    A curve covers the years that those of all sites with this group cover.
    """
    names = list(dict.fromkeys(group for grids in sites.values() for group in grids))
    curves = []
    for group in names:
        parts = [grids[group] for grids in sites.values() if group in grids]
        years = parts[0].years
        for part in parts[1:]:
            years = years[np.isclose(years[:, None], part.years).any(axis=1)]
        if len(parts) < 2 or len(years) < 2:
            continue
        places = [np.isclose(part.years[:, None], years).any(axis=1) for part in parts]
        heights = np.array([p.height[at] for p, at in zip(parts, places, strict=True)])
        spread = [p.covariance[np.ix_(at, at)] for p, at in zip(parts, places, strict=True)]
        variance = np.array([np.diagonal(c) for c in spread])
        if not (variance > 0).all():
            continue
        weight = (1 / variance) / (1 / variance).sum(axis=0)
        covariance = sum(np.outer(w, w) * c for w, c in zip(weight, spread, strict=True))
        n_free, every = sum(part.n_free for part in parts), np.eye(len(years))
        found = pool(heights, np.sqrt(variance))
        fixed = _Grid(
            years, found["estimate"].to_numpy(), np.asarray(covariance), every,
            np.asarray(covariance), n_free,
        )  # fmt: skip
        curve = _band(fixed, log, bands)
        for name in ("random", "random_low", "random_high"):
            curve[name] = np.exp(found[name]) if log else found[name]
        curve.insert(0, "group", pd.Series([group] * len(curve), dtype=object))
        curves.append(curve.assign(sites=len(parts), i2=found["i2"]))
    return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame()


def _check_used(counts: pd.DataFrame, n_knots: int) -> None:
    """Refuse labs of which none can be used, with the reasons."""
    by_reason = counts.groupby("reason", sort=False)["labs"].sum()
    if not by_reason.get(_USED, 0):
        reasons = ", ".join(f"{reason} ({n:,})" for reason, n in by_reason.items() if n)
        raise InputError(
            f"no lab can be used: {reasons or 'no rows'}; check the ids, the dates and the values, "
            f"and that each group has more labs than the {n_knots} knots."
        )


# --- what comes in ----------------------------------------------------------------------


def _pick_site(by_site: Any, site: str, several: bool, argument: str) -> Any:
    if not several:
        return by_site
    if not isinstance(by_site, Mapping) or site not in by_site:
        names = some(by_site) if isinstance(by_site, Mapping) else type(by_site).__name__
        raise InputError(
            f"{argument} must be a dict with the sites of the labs; {site!r} is not in {names}."
        )
    return by_site[site]


def _check_patients(values: Any, argument: str) -> pd.Series:
    if not isinstance(values, pd.Series):
        raise TypeError(
            f"{argument} must be a Series with patient ids as index, found {type(values).__name__}."
        )
    twice = values.index[values.index.duplicated()]
    if len(twice):
        raise InputError(
            f"{argument} must have each patient only once; {some(twice)} occur several times."
        )
    return values


def _index_dates(dates: Any) -> pd.Series:
    table = dates.patients if isinstance(dates, Sequences) else dates
    if isinstance(table, pd.DataFrame):
        if "index_date" not in table:
            raise InputError(
                f'index_dates needs a column "index_date"; the table has {some(table.columns)}.'
            )
        table = table["index_date"]
    return _check_patients(table, "index_dates")


def _prepare_labs(
    frame: pd.DataFrame, test: str | None, group: pd.Series, start: pd.Series
) -> tuple[pd.DataFrame, str]:
    """One row per lab (who, group, years, value, and why there is no value), and the lab's name.

    The group is missing where the patient has none or no index date; the value is NaN where
    the text is not a number, with the reason in `why`.
    """
    need_columns(frame, ["patient_id", "date", "value"])
    frame = _choose_test(frame, test)
    who, ids = pd.factorize(frame["patient_id"], sort=True)
    codes, names = _group_codes(group)
    dates = np.append(_as_dates(start), np.datetime64("NaT", "D"))
    in_group = np.append(codes, -1)[match_ids(pd.Index(ids), group.index)]
    started = dates[match_ids(pd.Index(ids), start.index)]
    in_group, started = np.append(in_group, -1)[who], np.append(started, dates[-1])[who]
    value, why = _parse_values(frame["value"])
    in_group[np.isnat(started)] = -1
    days = (_as_dates(frame["date"]) - started) / np.timedelta64(1, "D")
    return pd.DataFrame(
        {
            "who": who,
            "group": pd.Categorical.from_codes(in_group, categories=names),
            "years": days / _DAYS_A_YEAR,
            "value": value,
            "why": why,
        }
    ), _lab_name(frame)


def _choose_test(frame: pd.DataFrame, test: str | None) -> pd.DataFrame:
    """The rows of one test, where the table says which test each is."""
    if "test" not in frame:
        if test is None:
            return frame
        raise InputError(
            "the table of labs has no column that names the test; leave "
            f"{option('test').rstrip('= ')} out."
        )
    tests = frame["test"].astype(object)
    if test is not None:
        chosen = tests.map(lambda t: str(t).strip().casefold() == test.strip().casefold())
        if len(frame) and not chosen.any():
            raise InputError(
                f"the table of labs has no test {test!r}; it has {some(tests.dropna().unique())}."
            )
        return frame[chosen.astype(bool)]
    if tests.nunique() > 1:
        raise InputError(
            f"the table of labs has several tests ({some(tests.dropna().unique())}); "
            f"say which, as in {option('test', tests.dropna().iloc[0])}."
        )
    return frame


def _as_dates(column: pd.Series) -> NDArray[np.datetime64]:
    """Whole days, NaT where a date is missing or unreadable."""
    dates = pd.to_datetime(column, format="ISO8601", errors="coerce")
    if isinstance(dates.dtype, pd.DatetimeTZDtype):
        dates = dates.dt.tz_localize(None)
    days: NDArray[np.datetime64] = dates.to_numpy().astype("datetime64[D]")
    return days


def _lab_name(frame: pd.DataFrame) -> str:
    """The test and its unit, as far as the table names one of each."""
    known = (frame[name].dropna() if name in frame else [] for name in ("test", "unit"))
    test, unit = ({str(text).strip() for text in texts} - {""} for texts in known)
    name = next(iter(test), _UNNAMED)
    return f"{name} ({next(iter(unit))})" if len(unit) == 1 else name


def _group_codes(group: pd.Series) -> tuple[NDArray[np.int64], pd.Index]:
    """Codes (−1: missing) and the groups, in their own order if they have one."""
    if not isinstance(group.dtype, pd.CategoricalDtype):
        group = group.astype("category")
    group = group.cat.remove_unused_categories()
    return group.cat.codes.to_numpy().astype(np.int64), group.cat.categories


def _parse_values(column: pd.Series) -> tuple[Floats, NDArray[np.object_]]:
    """The values as numbers: NaN where the text is not a number, with the reason."""
    codes, texts = pd.factorize(column)
    number = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").to_numpy(float)
    why = np.full(len(texts) + 1, "", dtype=object)
    for position in np.flatnonzero(~np.isfinite(number)):
        text = str(texts[position])
        blank = not text.strip() or text.strip().casefold() in ("nan", "na", "none", "null")
        why[position] = _MISSING if blank else _CENSORED if _LIMIT.match(text) else _TEXT
    why[-1] = _MISSING
    return np.append(number, np.nan)[codes], why[codes]


def _find_reasons(rows: pd.DataFrame, at: Floats, log: bool) -> NDArray[np.object_]:
    tests = {
        _REASONS[0]: rows["group"].isna(),
        _REASONS[1]: rows["years"].isna(),
        _REASONS[2]: ~rows["years"].between(at[0], at[-1]),
        **{reason: rows["why"] == reason for reason in (_MISSING, _CENSORED, _TEXT)},
        _REASONS[6]: (rows["value"] <= 0) & log,
    }
    reasons: NDArray[np.object_] = np.select(list(tests.values()), list(tests), _USED)
    return reasons.astype(object)


class _Range(NamedTuple):
    """Where a group's curve is: its knots, the years it is given at, and how many bound it."""

    knots: Floats
    years: Floats
    patients: int


def _find_ranges(
    rows: pd.DataFrame, at: Floats, years: Floats, min_count: int
) -> tuple[pd.DataFrame, dict[Any, _Range]]:
    """Drop the labs that no curve can rest on; returns where each curve is.

    These are labs of groups that have too few of them, and those beyond a group's own knots.
    """
    ranges = {}
    for name in rows["group"].cat.categories:
        mine = (rows["group"] == name) & (rows["reason"] == _USED)
        when, who = rows.loc[mine, "years"].to_numpy(), rows.loc[mine, "who"].to_numpy()
        found = _find_range(when, who, at, years, min_count)
        if found is None:
            rows = rows.assign(reason=rows["reason"].mask(mine, _REASONS[-1]))
            continue
        ranges[name] = found
        inside = (when >= found.knots[0]) & (when <= found.knots[-1])
        rows.loc[rows.index[mine][~inside], "reason"] = _SPARSE
    return rows, ranges


def _find_range(
    when: Floats, who: NDArray[np.int32], at: Floats, years: Floats, min_count: int
) -> _Range | None:
    """Where the curve of labs at the times `when` is; None if they are too few for one."""
    least = fewest_patients(min_count, min(_SUPPORT, len(np.unique(who))))
    own = _choose_knots(at, when, who, least)
    inside = (when >= own[0]) & (when <= own[-1])
    basis = natural_spline(when[inside], own)
    if len(basis) <= len(own) or np.linalg.matrix_rank(basis) < len(own):
        return None
    span = pd.Series(when[inside]).groupby(who[inside])
    if len(span) < least:
        return None
    begin = span.min().sort_values().iloc[least - 1] - _NEAR
    end = span.max().sort_values().iloc[-least] + _NEAR
    begin, end = max(begin, own[0]) - 1e-9, min(end, own[-1]) + 1e-9
    covered = years[(years >= begin) & (years <= end)]
    return _Range(own, covered, least) if len(covered) > 1 else None


def _choose_knots(at: Floats, years: Floats, who: NDArray[np.int32], least: int) -> Floats:
    """The knots without outer ones between which fewer than `least` patients have values."""

    def patients(begin: float, end: float) -> int:
        return len(np.unique(who[(years >= begin) & (years <= end)]))

    while len(at) > 2 and patients(at[-2], at[-1]) < least:
        at = at[:-1]
    while len(at) > 2 and patients(at[0], at[1]) < least:
        at = at[1:]
    return at


def _count_labs(rows: pd.DataFrame) -> pd.DataFrame:
    """Patients and labs by group and reason; every group has a row of labs used."""
    keys = [rows["group"], rows["reason"].astype(pd.CategoricalDtype([_USED, *_REASONS]))]
    table = rows["who"].groupby(keys, observed=False, dropna=False).agg(["nunique", "size"])
    table = table.rename(columns={"nunique": "patients", "size": "labs"}).reset_index()
    used = (table["reason"] == _USED) & table["group"].notna()
    return table[used | (table["labs"] > 0)].astype({"group": object, "reason": object})


# --- what comes out --------------------------------------------------------------------


def show_labs(
    table: pd.DataFrame,
    min_count: int,
    rounding: Rounding | None,
    cells: Sequence[str] = (),
    adds_up: tuple[str, Sequence[str]] | None = None,
) -> pd.DataFrame:
    """Numbers of patients and labs as they may be shown."""
    if rounding is not None:  # labs of few patients are rounded as the number of these
        few = is_small(table["patients"], min_count)
        table = table.assign(labs=table["labs"].where(~few, table["patients"]))
    return show_counts(
        table,
        {"patients": ["patients with labs"], "labs": ["labs"]},
        min_count,
        rounding,
        cells=cells,
        patients=["patients"],
        adds_up=adds_up,
    )
