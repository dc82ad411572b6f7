"""How a lab value develops around the first prescription: a mixed model for each site."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.mixed import Fit, Floats, fit_curves, natural_spline
from ehr_prep.patients import Source
from ehr_prep.sources import (
    NO_DATE,
    encode_ids,
    factorize,
    match_ids,
    read_table,
    source_name,
    to_days,
)
from mmlca.checks import some

KNOTS = (-1.0, -0.4, 0.0, 0.3, 0.8, 1.6, 3.0)
"""Years around the index date; the first and the last are where the curves begin and end."""

_DAYS_A_YEAR = 365.25
_LIMIT = re.compile(r"\s*[<>≤≥]=?\s*[\d.]")
_USED = "used"
_REASONS = (
    "patient without a group or an index date",
    "date missing or unreadable",
    "outside the years studied",
    "value missing",
    "below or above a limit",
    "not a number",
    "not positive, has no logarithm",
    "group with too few labs for a curve",
)


@dataclass(frozen=True, eq=False, repr=False)
class Trend:
    """What `trend` found, as tables.

    Parameters
    ----------
    curves : DataFrame
        `site`, `group`, `years`, `estimate`, `low`, `high`, in the units of the lab.
    coefficients : DataFrame
        `site`, `group`, `years` (a knot), `estimate` and `error`: the height of the curve at
        each knot with its standard error, on the scale of the model.
    variances : DataFrame
        `site`, `between` and `within`: standard deviations of the patients' levels and of
        the rest, on the scale of the model; `correlation` of two labs of a patient;
        `loglik`, restricted.
    counts : DataFrame
        `site`, `group`, `reason`, `patients`, `labs`: the labs used, and those dropped by
        reason (no group: not known); they add up to the input.
    """

    curves: pd.DataFrame
    coefficients: pd.DataFrame
    variances: pd.DataFrame
    counts: pd.DataFrame

    def __repr__(self) -> str:
        used = self.counts[self.counts["reason"] == _USED]
        return (
            f"Trend: {used['labs'].sum():,} of {self.counts['labs'].sum():,} labs, "
            f"{used['patients'].sum():,} patients, {len(self.variances)} sites"
        )


def trend(
    labs: Source | Mapping[str, Source],
    groups: Any,
    index_dates: Any,
    *,
    test: str | None = None,
    knots: Sequence[float] = KNOTS,
    log: bool = True,
    level: float = 0.95,
    steps: int = 81,
    patient: str | None = None,
    date: str | None = None,
    value: str | None = None,
    date_format: str | None = None,
) -> Trend:
    r"""Mean course of a lab in each group of patients, with bands, at each site.

    The j-th lab of patient i, of group g, at time t after the index date is

    .. math:: \log y_{ij} = \sum_k \beta_{gk} B_k(t_{ij}) + b_i + e_{ij}, \quad
        b_i \sim N(0, \tau^2), \; e_{ij} \sim N(0, \sigma^2),

    where :math:`B_k` is the natural cubic spline that is 1 at knot k and 0 at the others.
    These functions add up to 1: they contain the groups' intercepts, and
    :math:`\beta_{gk}` is the height of the curve at the knot. Variances are estimated by
    restricted maximum likelihood (REML). The bands are pointwise, from the sandwich
    estimator with patients as clusters, so that they hold if patients also differ in slope.

    Parameters
    ----------
    labs : path or DataFrame, or dict {site: path or DataFrame}
        One row a lab: patient, date and value, columns guessed from their names unless given.
    groups : Series by patient id, or dict {site: Series}
        Such as clusters. Patients without one are left out.
    index_dates : Series by patient id, or dict {site: Series}
        Instead of a Series: sequences or a table with "index_date", such as
        `TreatmentSequences.patients`.
    test : str, optional
        Which lab, where the table holds several.
    knots : numbers
        In years; labs before the first or after the last are left out.
    log : bool
        Model the logarithm; the curves are then geometric means.
    level : float
        Of the bands.
    steps : int
        Points of each curve.
    patient, date, value, date_format
        See `read_records`.

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
    Trend: 400 of 400 labs, 50 patients, 1 sites
    >>> bool(result.curves["estimate"].between(14, 28).all())
    True
    """
    at = _check_options(knots, level, steps)
    several = isinstance(labs, Mapping)
    sites = labs if isinstance(labs, Mapping) else {"": labs}
    columns = {"patient": patient, "date": date, "value": value}
    curves, coefficients, variances, counts = [], [], [], []
    for site, source in sites.items():
        group = _by_patient(_of_site(groups, site, several, "groups"), "groups")
        start = _index_dates(_of_site(index_dates, site, several, "index_dates"))
        rows = _read_labs(source, columns, test, date_format, group, start)
        rows, skipped = _enough(rows.assign(reason=_reasons(rows, at, log)), at)
        counts.append(_count(rows).assign(site=site))
        rows = rows[rows["reason"] == _USED]
        if skipped:
            where = f" of site {site}" if several else ""
            warnings.warn(
                f"no curve for {some(skipped)}{where}: a group needs more labs than the "
                f"{len(at)} knots, spread over the years; use fewer knots, or join groups.",
                stacklevel=2,
            )
        if not len(rows):
            continue
        y = np.log(rows["value"].to_numpy()) if log else rows["value"].to_numpy()
        fit = fit_curves(y, rows["years"].to_numpy(), rows["group"], rows["who"].to_numpy(), at)
        curves.append(_curves(fit, at, log, level, steps).assign(site=site))
        error = np.sqrt(np.diagonal(fit.covariance, axis1=1, axis2=2))
        coefficients.append(
            pd.DataFrame(
                {
                    "site": site,
                    "group": np.repeat(np.array(fit.groups, dtype=object), len(at)),
                    "years": np.tile(at, len(fit.groups)),
                    "estimate": fit.beta.ravel(),
                    "error": error.ravel(),
                }
            )
        )
        variances.append({"site": site, **fit.variances})
    counted = pd.concat(counts, ignore_index=True)
    if not curves:
        found = counted.groupby("reason", sort=False)["labs"].sum()
        listed = ", ".join(f"{reason} ({n:,})" for reason, n in found.items()) or "no rows"
        raise ValueError(
            f"no lab can be used: {listed}; check the ids, the dates and the values, and that each "
            f"group has more labs than the {len(at)} knots."
        )
    return Trend(
        pd.concat(curves, ignore_index=True)[["site", "group", "years", "estimate", "low", "high"]],
        pd.concat(coefficients, ignore_index=True),
        pd.DataFrame(variances),
        counted[["site", "group", "reason", "patients", "labs"]],
    )


# --- what comes in ----------------------------------------------------------------------


def _check_options(knots: Sequence[float], level: float, steps: int) -> Floats:
    at = np.asarray(knots, dtype=float)
    if at.ndim != 1 or len(at) < 3 or not np.isfinite(at).all() or (np.diff(at) <= 0).any():
        raise ValueError(f"knots must be three or more increasing numbers, found {knots!r}.")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95, found {level!r}.")
    if steps < 2:
        raise ValueError(f"steps must be at least 2, found {steps!r}.")
    return at


def _of_site(given: Any, site: str, several: bool, what: str) -> Any:
    if not several:
        return given
    if not isinstance(given, Mapping) or site not in given:
        found = some(given) if isinstance(given, Mapping) else type(given).__name__
        raise ValueError(
            f"{what} must be a dict with the sites of the labs; {site!r} is not in {found}."
        )
    return given[site]


def _by_patient(given: Any, what: str) -> pd.Series:
    if not isinstance(given, pd.Series):
        raise TypeError(
            f"{what} must be a Series with patient ids as index, found {type(given).__name__}."
        )
    twice = given.index[given.index.duplicated()]
    if len(twice):
        raise ValueError(f"{what} must have each patient once; {some(twice)} repeat.")
    return given


def _index_dates(given: Any) -> pd.Series:
    is_table = isinstance(given, pd.DataFrame | pd.Series)
    table = given if is_table else getattr(given, "patients", given)
    if isinstance(table, pd.DataFrame):
        if "index_date" not in table:
            raise ValueError(
                f'index_dates needs a column "index_date"; the table has {some(table.columns)}.'
            )
        table = table["index_date"]
    return _by_patient(table, "index_dates")


def _read_labs(
    source: Source,
    columns: Mapping[str, str | None],
    test: str | None,
    date_format: str | None,
    group: pd.Series,
    start: pd.Series,
) -> pd.DataFrame:
    """One row a lab: who, group (NaN: none, or no index date), years and value (NaN: none).

    `why` says what a value is that is no number.
    """
    frame, roles, _ = read_table(source, {**columns, "test": None}, ("patient", "date", "value"))
    if "test" in roles:
        tests = frame[roles["test"]].astype(object)
        if test is not None:
            chosen = tests.map(lambda t: str(t).strip().casefold() == test.strip().casefold())
            frame = frame[chosen.astype(bool)]
        elif tests.nunique() > 1:
            raise ValueError(
                f"{source_name(source)} has several tests ({some(tests.dropna().unique())}); "
                f'say which, as in test="{tests.dropna().iloc[0]}".'
            )
    elif test is not None:
        raise ValueError(
            f"{source_name(source)} has no column that names the test; leave test= out."
        )
    who, ids, _ = encode_ids(frame[roles["patient"]])
    kind, kinds = _group_codes(group)
    in_group = np.append(kind, -1)[match_ids(ids, group.index)]
    started = np.append(to_days(start), NO_DATE)[match_ids(ids, start.index)]
    in_group, started = np.append(in_group, -1)[who], np.append(started, NO_DATE)[who]
    day = to_days(frame[roles["date"]], date_format)
    value, why = _numbers(frame[roles["value"]])
    in_group[started == NO_DATE] = -1
    years = np.where(day == NO_DATE, np.nan, (day.astype(float) - started) / _DAYS_A_YEAR)
    return pd.DataFrame(
        {
            "who": who,
            "group": pd.Categorical.from_codes(in_group, categories=kinds),
            "years": years,
            "value": value,
            "why": why,
        }
    )


def _group_codes(group: pd.Series) -> tuple[NDArray[np.int64], pd.Index]:
    """Codes (−1: missing) and the groups, in their own order if they have one."""
    if not isinstance(group.dtype, pd.CategoricalDtype):
        group = group.astype("category")
    group = group.cat.remove_unused_categories()
    return group.cat.codes.to_numpy().astype(np.int64), group.cat.categories


def _numbers(column: pd.Series) -> tuple[Floats, NDArray[np.object_]]:
    """Values as numbers (NaN: none), and why each that is none is none."""
    codes, texts = factorize(column)
    number = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").to_numpy(float)
    why = np.full(len(texts) + 1, "", dtype=object)
    for position in np.flatnonzero(~np.isfinite(number)):
        text = str(texts[position])
        blank = not text.strip() or text.strip().casefold() in ("nan", "na", "none", "null")
        why[position] = _REASONS[3 if blank else 4 if _LIMIT.match(text) else 5]
    why[-1] = _REASONS[3]
    return np.append(number, np.nan)[codes], why[codes]


def _reasons(rows: pd.DataFrame, at: Floats, log: bool) -> NDArray[np.object_]:
    tests = {
        _REASONS[0]: rows["group"].isna(),
        _REASONS[1]: rows["years"].isna(),
        _REASONS[2]: ~rows["years"].between(at[0], at[-1]),
        **{reason: rows["why"] == reason for reason in _REASONS[3:6]},
        _REASONS[6]: (rows["value"] <= 0) & log,
    }
    found: NDArray[np.object_] = np.select(list(tests.values()), list(tests), _USED).astype(object)
    return found


def _enough(rows: pd.DataFrame, at: Floats) -> tuple[pd.DataFrame, list[Any]]:
    """Drop the labs of groups in which they do not determine a curve; returns these groups."""
    skipped = []
    for name in rows["group"].cat.categories:
        mine = (rows["group"] == name) & (rows["reason"] == _USED)
        basis = natural_spline(rows.loc[mine, "years"].to_numpy(), at)
        if len(basis) <= len(at) or np.linalg.matrix_rank(basis) < len(at):
            skipped.append(name)
            rows = rows.assign(reason=rows["reason"].mask(mine, _REASONS[7]))
    return rows, skipped


def _count(rows: pd.DataFrame) -> pd.DataFrame:
    """Patients and labs by group and reason; every group has a row of labs used."""
    order = pd.CategoricalDtype([_USED, *_REASONS])
    keys = [rows["group"], rows["reason"].astype(order)]
    found = rows["who"].groupby(keys, observed=False, dropna=False).agg(["nunique", "size"])
    found = found.rename(columns={"nunique": "patients", "size": "labs"}).reset_index()
    used = (found["reason"] == _USED) & found["group"].notna()
    found = found[used | (found["labs"] > 0)]
    return found.astype({"group": object, "reason": object})


# --- what comes out --------------------------------------------------------------------


def _curves(fit: Fit, at: Floats, log: bool, level: float, steps: int) -> pd.DataFrame:
    from scipy.special import ndtri

    years = np.linspace(at[0], at[-1], steps)
    basis = natural_spline(years, at)
    middle = fit.beta @ basis.T
    error = np.sqrt(np.einsum("tk,gkl,tl->gt", basis, fit.covariance, basis))
    reach = ndtri((1 + level) / 2) * error
    lines = {"estimate": middle, "low": middle - reach, "high": middle + reach}
    shown = {name: np.exp(line) if log else line for name, line in lines.items()}
    return pd.DataFrame(
        {
            "group": np.repeat(np.array(fit.groups, dtype=object), steps),
            "years": np.tile(years, len(fit.groups)),
            **{name: line.ravel() for name, line in shown.items()},
        }
    )
