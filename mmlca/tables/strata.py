"""Strata of patients: who is in which, whether memberships differ between them, what may show."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError, option
from mmlca.tables.disclosure import Rounding, few_digits, hidden_cells, is_small
from mmlca.tables.table_one_counts import SiteNumbers, Variable, all_groups

Floats = NDArray[np.float64]
MOST_STRATA = 30
_DIGITS = 2
_TOLERANCE = 1e-8  # eigenvalues of a covariance below this share of the largest are zero


# --- who is in which stratum ----------------------------------------------------------------


def stratify(
    values: pd.Series, points: Sequence[float] | None = None, *, years: bool = False
) -> pd.Series:
    """The stratum of each patient as a text, None if the value is missing.

    Numbers are cut at the `points`, each of which begins a stratum.

    Examples
    --------
    >>> stratify(pd.Series([39, 40, 70, np.nan]), [40, 65]).tolist()
    ['below 40', '40 to below 65', '65 and over', None]
    >>> stratify(pd.Series([2012, 2016]), [2015, 2017], years=True).tolist()
    ['before 2015', '2015 to 2016']
    """
    missing = values.isna().to_numpy()
    if points is not None:
        numbers = values.to_numpy(float, na_value=np.nan)
        labels = stratum_labels(points, years=years)
        texts = [labels[i] for i in np.searchsorted(points, numbers, side="right")]
    else:
        texts = ["" if lacks else _text(v) for v, lacks in zip(values, missing, strict=True)]
    known = [None if lacks else text for text, lacks in zip(texts, missing, strict=True)]
    return pd.Series(known, values.index, dtype=object, name=values.name)


def stratum_labels(points: Sequence[float], *, years: bool = False) -> list[str]:
    """What the strata between cut points are called, in their order.

    >>> stratum_labels([2015, 2016], years=True)
    ['before 2015', '2015', '2016 and later']
    """
    inner = []
    for low, high in zip(points, points[1:], strict=False):
        if years:
            inner.append(f"{low:g}" if high == low + 1 else f"{low:g} to {high - 1:g}")
        else:
            inner.append(f"{low:g} to below {high:g}")
    first, last = ("before", "and later") if years else ("below", "and over")
    return [f"{first} {points[0]:g}", *inner, f"{points[-1]:g} {last}"]


def _text(value: Any) -> str:
    """A value in words; a whole number is the same with and without decimals."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def check_strata(values: pd.Series, cut: bool) -> None:
    """Refuse a column that cannot be strata: too many values, or cut points of texts."""
    is_number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    name = str(values.name)
    if cut:
        if not is_number:
            raise InputError(
                f"strata.cut_points has cut points of {name!r}, which holds texts; leave these out."
            )
        return
    n = values.nunique()
    if n > MOST_STRATA or (n > 2 and is_number and (values.dropna() % 1 != 0).any()):
        example = option("cut_points", {name: [1, 2]})
        advice = f"say where strata begin, such as {example}" if is_number else "group them"
        raise InputError(
            f"{name!r} of strata.columns has {n:,} different values, too many for strata; {advice}."
        )


# --- do memberships differ between strata? --------------------------------------------------


class ShareScores(NamedTuple):
    """Scores of equal class shares in all strata; several sites are added up.

    `excess`: strata by clusters, the sum of the memberships of a stratum less what they would be
    if all strata had the same shares; `covariance` of its cells, row by row.
    """

    excess: pd.DataFrame
    covariance: Floats


class ShareTest(NamedTuple):
    """A test that the class shares are the same in all strata."""

    statistic: float
    df: int
    p_value: float


def share_scores(memberships: pd.DataFrame, strata: pd.Series) -> ShareScores:
    r"""Scores of the shares of each cluster in each stratum, for `share_test`.

    The derivative of the log-likelihood of a mixture by the logit of the share of class k in
    stratum g, at equal shares, is the excess :math:`U_{gk} = \sum_{i \in g} (p_{ik} - \bar p_k)` of
    the memberships :math:`p_{ik}`. If classes do not depend on the stratum, the mean of the
    memberships is the same in all strata, however uncertain they are and however long patients are
    observed: whoever fitted the model did not know the strata. Hence nothing needs to be corrected
    for wrong assignments. The covariance is that of the sum over patients of
    :math:`(z_{ig} - \bar z_g)(p_{ik} - \bar p_k)`, which needs no equal variances in the strata.

    Parameters
    ----------
    memberships : DataFrame by id
        A column for each cluster.
    strata : Series by id
        Patients without one are left out.

    Examples
    --------
    >>> sure = pd.DataFrame({1: [1.0, 1, 0, 0], 2: [0.0, 0, 1, 1]})
    >>> share_scores(sure, pd.Series(["F", "F", "F", "M"])).excess.loc["M"].tolist()
    [-0.5, 0.5]
    """
    strata = strata.reindex(memberships.index)
    known = strata.notna().to_numpy()
    p, mine = memberships.to_numpy(float)[known], strata[known].to_numpy()
    labels = list(dict.fromkeys(sorted(mine, key=str)))
    z = np.array([[label == name for name in labels] for label in mine], dtype=float)
    z, p = z.reshape(len(p), len(labels)), p.reshape(len(mine), memberships.shape[1])
    if not len(p):
        return ShareScores(pd.DataFrame(columns=memberships.columns), np.zeros((0, 0)))
    away = p - p.mean(axis=0)
    terms = ((z - z.mean(axis=0))[:, :, None] * away[:, None, :]).reshape(len(p), -1)
    excess = pd.DataFrame(z.T @ away, labels, memberships.columns)
    return ShareScores(excess, terms.T @ terms)


def share_test(sites: Sequence[ShareScores]) -> ShareTest | None:
    """A test that class shares are the same in all strata within each site; None if nothing varies.

    The scores of the sites are added up, as in a stratified log-rank test, so that differences
    between sites are not taken for differences between strata.

    Examples
    --------
    >>> sure = pd.DataFrame({1: [1.0, 0] * 20, 2: [0.0, 1] * 20})
    >>> share_test([share_scores(sure, pd.Series(["F", "F", "M", "M"] * 10))]).p_value
    1.0
    """
    strata = list(dict.fromkeys(g for part in sites for g in part.excess.index))
    clusters = list(dict.fromkeys(k for part in sites for k in part.excess.columns))
    cells = [(g, k) for g in strata for k in clusters]
    place = {cell: i for i, cell in enumerate(cells)}
    excess, covariance = np.zeros(len(cells)), np.zeros((len(cells), len(cells)))
    for part in sites:
        at = [place[g, k] for g in part.excess.index for k in part.excess.columns]
        excess[at] += part.excess.to_numpy(float).ravel()
        covariance[np.ix_(at, at)] += part.covariance
    # the others leave the last of each: rows and columns of the excess add up to 0
    kept = [place[g, k] for g in strata[:-1] for k in clusters[:-1]]
    spread, scores = covariance[np.ix_(kept, kept)], excess[kept]
    values, vectors = np.linalg.eigh(spread) if kept else (np.zeros(0), np.zeros((0, 0)))
    solid = values > _TOLERANCE * values.max(initial=0.0)
    if not solid.any() or values.max() <= 0:
        return None
    from scipy import stats

    statistic = float((((vectors.T @ scores)[solid]) ** 2 / values[solid]).sum())
    df = int(solid.sum())
    return ShareTest(statistic, df, float(stats.chi2.sf(statistic, df)))


def rounded_scores(found: ShareScores, uniform: Floats) -> ShareScores:
    """The scores rounded at random to whole standard errors, which have one digit.

    They are right on average, and the covariance includes what the rounding adds. `uniform` are
    random numbers of the cells of the excess.
    """
    se = np.sqrt(np.diagonal(found.covariance))
    step = few_digits(np.where(se > 0, se, 1.0), 1)
    step = np.where(step > 1, [float(f"{x:.0e}") for x in step], step)
    multiples = found.excess.to_numpy(float).ravel() / step
    whole = np.floor(multiples)
    drawn = (whole + (uniform.ravel() < multiples - whole)) * step
    excess = [float(f"{x:.10g}") for x in drawn]
    covariance = np.array(
        [[float(f"{x:.{_DIGITS - 1}e}") for x in row] for row in found.covariance]
    )
    covariance = covariance + np.diag([float(f"{x:.{_DIGITS - 1}e}") for x in step**2 / 6])
    frame = pd.DataFrame(
        np.reshape(excess, found.excess.shape), found.excess.index, found.excess.columns
    )
    return ShareScores(frame, covariance)


def score_draws(found: ShareScores, strata: pd.Series, site: str, rounding: Rounding) -> Floats:
    """Uniform numbers of each cell, named by the patients of its stratum and of its cluster."""
    rows = []
    for stratum in found.excess.index:
        key = rounding.key_of(strata.index[(strata == stratum).to_numpy()])
        names = [rounding.key(site, cluster) for cluster in found.excess.columns]
        rows.append([rounding.uniform(key, "share", name) for name in names])
    return np.array(rows)


# --- what may be shown ----------------------------------------------------------------------


def hide_strata(
    clusters: Mapping[str, SiteNumbers],
    strata: Mapping[Any, Mapping[str, SiteNumbers]],
    variables: Mapping[Any, Variable],
    min_count: int,
    everywhere: str | None = None,
) -> None:
    """Decide what Table 1 by stratum hides, beside what Table 1 by cluster shows.

    Both show the same numbers of all patients, so that what one hides must not follow from the
    other. For each variable, one system has the counts of all clusters and of all strata at all
    sites, with those that Table 1 shows as known.

    Parameters
    ----------
    clusters : {site: SiteNumbers}
        Those of Table 1, with what is hidden in it; `everywhere` is the name of all sites together,
        if these are shown.
    strata : {variable of the strata: {site: SiteNumbers}}
        Their sizes with what is hidden of them; what is hidden of the counts is decided here. All
        sites together have sizes, and no counts.
    """
    for column, variable in variables.items():
        here = [part for part in strata.values() if any(column in n.counts for n in part.values())]
        n_rows = len(variable.rows())
        if not here:
            continue
        if variable.levels is not None:
            _hide_rows(clusters, here, column, range(n_rows), True, min_count, everywhere)
        else:  # the number of known values does not show, but a mean of few must not either
            for row in range(n_rows):
                _hide_rows(clusters, here, column, [row], False, min_count, everywhere)


def _hide_rows(
    clusters: Mapping[str, SiteNumbers],
    strata: Sequence[Mapping[str, SiteNumbers]],
    column: Hashable,
    rows: Sequence[int] | range,
    sized: bool,
    min_count: int,
    everywhere: str | None,
) -> None:
    """The same for some rows of a variable, with the sizes of clusters and strata or without."""
    blocks = [clusters, *strata]
    labels = [all_groups(block)[:-1] for block in blocks]
    starts = np.cumsum([0, *map(len, labels)])
    sites = list(clusters)
    if everywhere is not None:  # the last
        sites = [*(site for site in sites if site != everywhere), everywhere]
    at = list(rows)
    shape = (len(sites), len(at) + sized, int(starts[-1]) + 1)
    values, known = np.zeros(shape), np.ones(shape, dtype=bool)
    small, blank = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    places: list[tuple[int, SiteNumbers, list[int], list[int]]] = []
    for b, block in enumerate(blocks):
        for layer, site in enumerate(sites):
            part = block[site]
            groups = [g for g in part.groups if g is not None or b == 0]
            own = [part.groups.index(g) for g in groups]
            to = [
                shape[2] - 1 if g is None else int(starts[b]) + labels[b].index(g) for g in groups
            ]
            if sized:
                values[layer, -1, to] = part.sizes[own]
                small[layer, -1, to] = part.hidden_sizes[own]
                known[layer, -1, to] = ~part.hidden_sizes[own]
            cell = np.ix_([layer], range(len(at)), to)
            if column not in part.counts:
                blank[cell], known[cell] = True, False
                continue
            counts = part.counts[column][np.ix_(at, own)]
            values[cell] = counts
            if b == 0:
                hidden = part.hidden[column][np.ix_(at, own)]
                small[cell], known[cell] = hidden, ~hidden
            else:
                small[cell], known[cell] = is_small(counts, min_count), False
                places.append((layer, part, own, to))
    if everywhere is not None:
        values[-1] = values[:-1].sum(axis=0)
    index = np.arange(values.size).reshape(shape)
    sums: list[tuple[int, NDArray[np.intp]]] = []
    for table in index:
        for line in table:
            ranges = zip(starts, starts[1:], strict=False)
            sums += [(int(line[-1]), line[low:high]) for low, high in ranges if high > low]
        if sized:
            sums += [(int(line[-1]), line[:-1]) for line in table.T]
    if everywhere is not None:
        sums += [(int(line[-1]), line[:-1]) for line in index.reshape(shape[0], -1).T]
    hidden = hidden_cells(
        values.ravel(),
        sums,
        min_count,
        small.ravel(),
        blank=blank.ravel(),
        known=known.ravel(),
    ).reshape(shape)
    for layer, part, own, to in places:
        part.hidden[column][np.ix_(at, own)] = hidden[np.ix_([layer], range(len(at)), to)][0]
        of_all = clusters[sites[layer]].hidden[column][at, -1]
        part.hidden[column][at, -1] = of_all  # all patients, as in Table 1
