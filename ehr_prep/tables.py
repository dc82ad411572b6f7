"""Table 1: who the patients of each cluster are, by site."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.sources import match_ids
from mmlca.checks import some

_MAX_LEVELS = 30
_LATEX = str.maketrans({c: rf"\{c}" for c in "&%$#_{}"} | {"<": "$<$", "\\": r"\textbackslash{}"})


@dataclass(frozen=True, eq=False)
class TableOne:
    """A finished table of texts, for a paper. Made by `table_one`.

    Parameters
    ----------
    frame : DataFrame
        Rows (variable, level), columns (site, cluster), or clusters alone for one site.
    notes : tuple of str
        Lines below the table.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        return self.frame.copy()

    def to_markdown(self) -> str:
        """A pipe table."""
        head, rows = self._cells()
        lines = [head, ["---", *["---:"] * (len(head) - 1)]]
        lines += [["&nbsp;&nbsp;" * deep + label, *cells] for deep, label, cells in rows]
        table = ["| " + " | ".join(c.replace("|", r"\|") for c in r) + " |" for r in lines]
        return "\n".join(table + [f"\n{note}" for note in self.notes])

    def to_latex(self) -> str:
        """A tabular with booktabs rules."""
        head, rows = self._cells()
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule"]
        lines += [" & ".join(c.translate(_LATEX) for c in head) + r" \\", r"\midrule"]
        for deep, label, cells in rows:
            texts = [c.translate(_LATEX) for c in (label, *cells)]
            lines.append(r"\quad " * deep + " & ".join(texts) + r" \\")
        notes = [rf"\par {note.translate(_LATEX)}" for note in self.notes]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes])

    def to_html(self) -> str:
        """A table element without styles of its own."""
        head, rows = self._cells()
        lines = ["<table>", "<thead><tr>" + "".join(f"<th>{html.escape(c)}</th>" for c in head)]
        lines[-1] += "</tr></thead>"
        lines.append("<tbody>")
        for deep, label, cells in rows:
            name = "&nbsp;&nbsp;" * deep + html.escape(label)
            body = "".join(f"<td>{html.escape(c)}</td>" for c in cells)
            lines.append(f'<tr><th scope="row">{name}</th>{body}</tr>')
        notes = [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return "\n".join([*lines, "</tbody>", "</table>", *notes])

    def __str__(self) -> str:
        return self.to_markdown()

    def _cells(self) -> tuple[list[str], list[tuple[int, str, list[str]]]]:
        """The header, and for each line its depth, label and cells."""
        columns = [c if isinstance(c, tuple) else (c,) for c in self.frame.columns]
        head = ["", *(" ".join(str(part) for part in c) for c in columns)]
        rows: list[tuple[int, str, list[str]]] = []
        previous = None
        for (variable, level), values in zip(
            self.frame.index, self.frame.itertuples(index=False), strict=True
        ):
            cells = [str(v) for v in values]
            if level == "":
                rows.append((0, variable, cells))
            else:
                if variable != previous:
                    rows.append((0, variable, [""] * len(cells)))
                rows.append((1, level, cells))
            previous = variable
        return head, rows


def table_one(
    patients: pd.DataFrame | Mapping[str, pd.DataFrame],
    clusters: Any,
    *,
    variables: Sequence[str] | Mapping[str, str] | None = None,
    compare: str | None = None,
    continuous: str = "mean",
    descriptions: Mapping[Any, str] | None = None,
    min_count: int = 0,
) -> TableOne:
    """Describe the patients of each cluster: n (%), mean (SD), categories, missing values.

    Parameters
    ----------
    patients : DataFrame or dict {site: DataFrame}
        Ids as index or in a column "id"; see `TreatmentSequences.patients`. Patients
        without a cluster are left out.
    clusters : Series or array, or dict {site: Series or array}
        A Series is matched by id; an array is in the patients' order.
    variables : columns, or dict {column: label}, optional
        Default: all columns but dates. Numbers with more than two values are continuous,
        everything else is a category. A share is one of those whose value is known.
    compare : "p" or "smd", optional
        A last column for each site: p-values (analysis of variance, or Kruskal–Wallis
        with medians; χ² for categories), or the standardised mean difference, averaged
        over all pairs of clusters.
    continuous : "mean" or "median"
        Mean (SD), or median [quartiles].
    descriptions : {cluster: text}, optional
        What each cluster is, written below the table; such as the column "description" of
        `mmlca.describe_clusters`.
    min_count : int
        Smaller counts, but for 0, are written "<11" and so on; a group of fewer patients is
        not described. A single hidden cell can still be found from its row's total.

    Examples
    --------
    >>> patients = pd.DataFrame({"age": [50, 60, 70, 41], "sex": list("FFMF")}, index=[1, 2, 3, 4])
    >>> clusters = pd.Series([1, 1, 2, 2], index=[1, 2, 3, 4])
    >>> print(table_one(patients, clusters))
    |  | 1 | 2 | all |
    | --- | ---: | ---: | ---: |
    | patients, n (%) | 2 (50.0) | 2 (50.0) | 4 (100.0) |
    | age, mean (SD) | 55.0 (7.1) | 55.5 (20.5) | 55.2 (12.5) |
    | sex, n (%) |  |  |  |
    | &nbsp;&nbsp;F | 2 (100.0) | 1 (50.0) | 3 (75.0) |
    | &nbsp;&nbsp;M | 0 (0.0) | 1 (50.0) | 1 (25.0) |
    """
    if compare not in (None, "p", "smd"):
        raise ValueError(f'compare must be "p", "smd" or None, found {compare!r}.')
    if continuous not in ("mean", "median"):
        raise ValueError(f'continuous must be "mean" or "median", found {continuous!r}.')
    sites = _by_site(patients, clusters)
    everyone = pd.concat([frame for frame, _ in sites.values()], ignore_index=True)
    labels = _variables(everyone, variables)
    kinds = {column: _levels(everyone[column]) for column in labels}
    has_missing = {column: bool(everyone[column].isna().any()) for column in labels}
    columns: dict[Any, list[str]] = {}
    rows = _row_names(labels, kinds, has_missing, continuous)
    for site, (frame, cluster) in sites.items():
        groups = {str(level): cluster == level for level in _ordered(cluster)}
        groups["all"] = np.ones(len(frame), dtype=bool)
        for name, members in groups.items():
            cells = [_count(int(members.sum()), len(frame), min_count)]
            for column in labels:
                values = frame[column][members]
                cells += _describe(
                    values, kinds[column], has_missing[column], continuous, min_count
                )
            columns[site, name] = cells
        if compare:
            cells = [""]
            for column in labels:
                split = [frame[column][g] for name, g in groups.items() if name != "all"]
                n_rows = len(kinds[column] or [0]) + has_missing[column]
                cells += [_compare(split, kinds[column], compare, continuous)]
                cells += [""] * (n_rows - 1)
            columns[site, compare.replace("smd", "SMD")] = cells
    table = pd.DataFrame(columns, index=pd.MultiIndex.from_tuples(rows, names=["", "level"]))
    table.columns = pd.MultiIndex.from_tuples(list(columns), names=["site", "cluster"])
    if list(sites) == [""]:
        table.columns = pd.Index([name for _, name in columns], name="cluster")
    texts = {} if descriptions is None else dict(descriptions)
    present = {str(level) for _, cluster in sites.values() for level in cluster}
    unknown = [cluster for cluster in texts if str(cluster) not in present]
    if unknown:
        raise ValueError(
            f"descriptions names {some(unknown)}, but the clusters are {some(sorted(present))}."
        )
    return TableOne(table, tuple(f"{cluster}: {text}" for cluster, text in texts.items()))


# --- inside ----------------------------------------------------------------------------


def _by_site(
    patients: pd.DataFrame | Mapping[str, pd.DataFrame], clusters: Any
) -> dict[str, tuple[pd.DataFrame, NDArray[Any]]]:
    """Patients with a cluster and their clusters, by site ("" if there are no sites)."""
    if not isinstance(clusters, Mapping):
        if isinstance(patients, Mapping):
            raise TypeError("patients come by site, so clusters must be a dict {site: …} too.")
        return {"": _matched(patients, clusters, "the patients")}
    sites = {}
    for site, labels in clusters.items():
        if isinstance(patients, Mapping):
            if site not in patients:
                raise ValueError(f"patients has no site {site!r}; it has {some(patients)}.")
            frame = patients[site]
        elif "site" in patients:
            frame = patients[patients["site"].astype(str) == str(site)].drop(columns="site")
        else:
            frame = patients
        sites[str(site)] = _matched(frame, labels, f"the patients of {site}")
    return sites


def _matched(frame: pd.DataFrame, labels: Any, what: str) -> tuple[pd.DataFrame, NDArray[Any]]:
    if "id" in frame.columns:
        frame = frame.set_index("id")
    if isinstance(labels, pd.DataFrame):
        labels = labels.squeeze(axis=1)
    if isinstance(labels, pd.Series):
        rows = match_ids(labels.index, frame.index)
        if (rows < 0).any():
            raise ValueError(
                f"{(rows < 0).sum():,} ids with a cluster are not among {what}: "
                f"{some(labels.index[rows < 0])}."
            )
        frame, cluster = frame.iloc[rows], labels.to_numpy()
    else:
        cluster = np.asarray(labels)
    if len(cluster) != len(frame):
        raise ValueError(
            f"found {len(cluster):,} clusters for {len(frame):,} of {what}; give one for each, or "
            "a Series indexed by id."
        )
    known = ~pd.isna(cluster)
    if not known.any():
        raise ValueError(f"none of {what} has a cluster.")
    return frame[known], cluster[known]


def _variables(
    frame: pd.DataFrame, variables: Sequence[str] | Mapping[str, str] | None
) -> dict[str, str]:
    """{column: label}."""
    if variables is None:
        kept = [c for c in frame.columns if frame[c].dtype.kind not in "mM"]
        labels = {c: str(c).replace("_", " ") for c in kept}
    elif isinstance(variables, Mapping):
        labels = dict(variables)
    else:
        labels = {c: str(c).replace("_", " ") for c in variables}
    absent = [c for c in labels if c not in frame.columns]
    if absent:
        raise ValueError(
            f"the patients have no column {some(absent)}; they have {some(frame.columns)}."
        )
    return labels


def _levels(values: pd.Series) -> list[Any] | None:
    """The categories in order, or None for a continuous variable."""
    ordered = isinstance(values.dtype, pd.CategoricalDtype)
    found = values.cat.categories if ordered else values.dropna().unique()
    if (
        not ordered
        and pd.api.types.is_numeric_dtype(values)
        and values.dtype != bool
        and len(found) > 2
    ):
        return None
    if len(found) > _MAX_LEVELS:
        raise ValueError(
            f"{values.name!r} has {len(found):,} different values ({some(found)}); group them, or "
            "leave it out with variables=."
        )
    return list(found) if ordered else _ordered(np.asarray(found, dtype=object))


def _ordered(values: Iterable[Any]) -> list[Any]:
    unique = list(dict.fromkeys(values))
    try:
        return sorted(unique)
    except TypeError:
        return sorted(unique, key=str)


def _row_names(
    labels: dict[str, str],
    kinds: dict[str, list[Any] | None],
    has_missing: dict[str, bool],
    continuous: str,
) -> list[tuple[str, str]]:
    rows = [("patients, n (%)", "")]
    summary = "mean (SD)" if continuous == "mean" else "median [quartiles]"
    for column, label in labels.items():
        levels = kinds[column]
        title = f"{label}, {summary if levels is None else 'n (%)'}"
        rows += [(title, "")] if levels is None else [(title, str(level)) for level in levels]
        rows += [(title, "missing")] * has_missing[column]
    return rows


def _describe(
    values: pd.Series,
    levels: list[Any] | None,
    has_missing: bool,
    continuous: str,
    min_count: int,
) -> list[str]:
    known = values.dropna()
    if levels is not None:
        cells = [_count(int((known == level).sum()), len(known), min_count) for level in levels]
    elif len(known) < max(min_count, 1):
        cells = ["–"]
    elif continuous == "mean":
        spread = f"{known.std():.1f}" if len(known) > 1 else "–"
        cells = [f"{known.mean():.1f} ({spread})"]
    else:
        low, middle, high = known.astype(float).quantile([0.25, 0.5, 0.75])
        cells = [f"{middle:.1f} [{low:.1f}, {high:.1f}]"]
    if has_missing:
        cells.append(_count(len(values) - len(known), len(values), min_count))
    return cells


def _count(n: int, total: int, min_count: int) -> str:
    if 0 < n < min_count:
        return f"<{min_count}"
    return f"{n:,} ({100 * n / total:.1f})" if total else f"{n:,} (–)"


def _compare(
    groups: list[pd.Series], levels: list[Any] | None, compare: str, continuous: str
) -> str:
    known = [g.dropna() for g in groups]
    known = [g for g in known if len(g)]
    if len(known) < 2:
        return "–"
    if levels is None:
        samples = [g.to_numpy(float) for g in known]
        value = _smd(samples) if compare == "smd" else _p_continuous(samples, continuous)
    else:
        table = np.array([[(g == level).sum() for level in levels] for g in known], dtype=float)
        table = table[:, table.sum(axis=0) > 0]
        value = _smd_categories(table) if compare == "smd" else _p_categories(table)
    if np.isnan(value):
        return "–"
    return "<0.001" if compare == "p" and value < 0.001 else f"{value:.3f}"


def _p_continuous(samples: list[NDArray[np.float64]], continuous: str) -> float:
    from scipy import stats

    pooled = np.concatenate(samples)
    if continuous == "median":
        return float(stats.kruskal(*samples).pvalue) if np.ptp(pooled) else float("nan")
    within = sum(float(((s - s.mean()) ** 2).sum()) for s in samples)
    between = sum(len(s) * float((s.mean() - pooled.mean()) ** 2) for s in samples)
    df = len(pooled) - len(samples)
    if df < 1 or within == 0:
        return float("nan")
    return float(stats.f.sf(between / (len(samples) - 1) / (within / df), len(samples) - 1, df))


def _p_categories(table: NDArray[np.float64]) -> float:
    from scipy import stats

    if table.shape[1] < 2:
        return float("nan")
    return float(stats.chi2_contingency(table, correction=False).pvalue)


def _smd(samples: list[NDArray[np.float64]]) -> float:
    pairs = []
    for a, b in itertools.combinations(samples, 2):
        if min(len(a), len(b)) < 2:
            return float("nan")
        spread = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
        if spread == 0:
            return float("nan")
        pairs.append(abs(a.mean() - b.mean()) / spread)
    return float(np.mean(pairs))


def _smd_categories(table: NDArray[np.float64]) -> float:
    """Mahalanobis distance of the shares of all levels but the first (Yang and Dalton 2012)."""
    pairs = []
    for a, b in itertools.combinations(table / table.sum(axis=1, keepdims=True), 2):
        spread = sum(np.diag(p[1:]) - np.outer(p[1:], p[1:]) for p in (a, b)) / 2
        gap = (a - b)[1:]
        inverse = np.linalg.pinv(spread)
        if not np.allclose(spread @ inverse @ gap, gap):  # no spread where they differ
            return float("nan")
        pairs.append(np.sqrt(max(float(gap @ inverse @ gap), 0.0)))
    return float(np.mean(pairs))
