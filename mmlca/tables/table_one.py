"""Table 1: who the patients of each cluster are, by site."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import one_of, some
from font.errors import InputError
from font.spelling import option
from mmlca.sequences.checks import looks_like_dates, match_ids
from mmlca.sequences.type import Labels
from mmlca.tables.comparisons import N_PERMUTATIONS, p_categories, p_continuous, smd, smd_categories
from mmlca.tables.disclosure import Rounding, check_min_count, hidden_note
from mmlca.tables.table_one_counts import SiteNumbers, hide_numbers, ordered, round_numbers

_MAX_LEVELS = 30
_INDENT = "\N{NO-BREAK SPACE}" * 2
_LATEX = str.maketrans(
    {c: rf"\{c}" for c in "&%$#_{}"}
    | {"<": "$<$", "\\": r"\textbackslash{}", "†": r"\dag{}", _INDENT[0]: "~"}
)
_TESTS = {
    "mean": "p: analysis of variance; chi-squared test for categories.",
    "median": "p: Kruskal–Wallis test; chi-squared test for categories.",
    "†": "† Some expected counts are below 5: permutation test of the chi-squared statistic, "
    f"{N_PERMUTATIONS:,} random tables with the same margins.",
    "smd": "SMD: standardised mean difference, averaged over all pairs of clusters.",
}


def _markdown(text: str) -> str:
    """A text without HTML: a level may be called anything, and Markdown passes tags on."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


@dataclass(frozen=True, eq=False)
class TableOne:
    """A finished table of texts, for a paper. Made by `table_one`.

    Parameters
    ----------
    frame : DataFrame
        Rows (variable, level), columns (site, cluster), or clusters alone for one site.
    notes : tuple of str
        Lines below the table.
    hidden_together : {column: DataFrame of bool, levels by clusters}
        For the columns `together` of `table_one`: the numbers at all sites together that other
        tables may not show, since hidden ones of this table would follow.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()
    hidden_together: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        return self.frame.copy()

    def to_markdown(self) -> str:
        """A pipe table."""
        table = self.lines()
        rows = [list(table.columns), ["---", *["---:"] * (table.shape[1] - 1)], *table.to_numpy()]
        cells = [[" ".join(_markdown(c).splitlines()).replace("|", r"\|") for c in r] for r in rows]
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        return "\n".join(lines + [f"\n{_markdown(note)}" for note in self.notes])

    def to_latex(self) -> str:
        """A tabular with booktabs rules."""
        table = self.lines()
        head, *rows = (
            " & ".join(cell.translate(_LATEX) for cell in row) + r" \\"
            for row in [list(table.columns), *table.to_numpy()]
        )
        begin = rf"\begin{{tabular}}{{l{'r' * (table.shape[1] - 1)}}}"
        notes = [rf"\par {note.translate(_LATEX)}" for note in self.notes]
        rules = [r"\bottomrule", r"\end{tabular}"]
        return "\n".join([begin, r"\toprule", head, r"\midrule", *rows, *rules, *notes])

    def to_html(self) -> str:
        """A table element without styles of its own, and a paragraph for each note."""
        table = self.lines()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
        rows = [  # not by pandas, which strips the indents of levels
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in table.to_numpy()
        ]
        begin = f'<table class="dataframe">\n<thead><tr>{head}</tr></thead>\n<tbody>'
        paragraphs = [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return "\n".join([begin, *rows, "</tbody>\n</table>", *paragraphs])

    def __str__(self) -> str:
        return self.to_markdown()

    def __repr__(self) -> str:
        return "\n".join([self.lines().to_string(index=False), *self.notes])

    def _repr_html_(self) -> str:
        return self.to_html()

    def lines(self) -> pd.DataFrame:
        """Texts line by line: the first column names the variable, or, indented, its level."""
        columns = [c if isinstance(c, tuple) else (c,) for c in self.frame.columns]
        lines: list[list[str]] = []
        previous = None
        for (variable, level), row in zip(self.frame.index, self.frame.to_numpy(), strict=True):
            if level and variable != previous:
                lines.append([variable, *[""] * len(row)])
            lines.append([_INDENT + level if level else variable, *map(str, row)])
            previous = variable
        head = ["", *(" ".join(str(part) for part in c) for c in columns)]
        return pd.DataFrame(lines, columns=head, dtype=object)


def table_one(
    patients: pd.DataFrame | Mapping[str, pd.DataFrame],
    clusters: Labels | Mapping[str, Labels],
    *,
    variables: Sequence[str] | Mapping[str, str] | None = None,
    compare: str | None = None,
    continuous: str = "mean",
    descriptions: Mapping[Any, str] | None = None,
    min_count: int = 0,
    together: Sequence[str] = (),
    rounding: Rounding | None = None,
) -> TableOne:
    """Describe the patients of each cluster: n (%), mean (SD), categories, missing values.

    Parameters
    ----------
    patients : DataFrame or dict {site: DataFrame}
        One row per patient, ids as index or in a column "id", such as the `.patients` of
        sequences built from records. Patients without a cluster are left out.
    clusters : Series or array, or dict {site: Series or array}
        A Series is matched by id; an array is in the order of the patients.
    variables : columns, or dict {column: label}, optional
        Default: all columns but dates. Numbers with more than two values are continuous,
        everything else is a category. A share is one of those whose value is known.
    compare : "p" or "smd", optional
        A last column for each site: p-values (analysis of variance, or Kruskal–Wallis
        with medians; χ² for categories, with permutations and a mark where an expected
        count is below 5), or the standardised mean difference, averaged over all pairs of
        clusters. The notes below the table name the tests.
    continuous : "mean" or "median"
        Mean (SD), or median [quartiles].
    descriptions : {cluster: text}, optional
        What each cluster is, written below the table; such as the column "description" of
        `mmlca.describe_clusters`.
    min_count : int
        Counts above 0 and below `min_count` are written "–", and so is the mean of so few
        patients; with them as many other numbers as it takes that none of these follows from
        those that are shown, or from the sizes of the clusters at all sites together. Where a
        number of a variable is hidden, its comparison is coarse.
    together : columns, optional
        Those whose numbers at all sites together another table shows: hidden numbers must not
        follow from that one either, and `hidden_together` says what it may not show.
    rounding : Rounding, optional
        Of the clusters: round all counts to multiples of its unit in place of hiding some; shares
        are those of the rounded counts, and comparisons are coarse. Means of fewer patients than
        `min_count` are not shown.

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
    | \u00a0\u00a0F | 2 (100.0) | 1 (50.0) | 3 (75.0) |
    | \u00a0\u00a0M | 0 (0.0) | 1 (50.0) | 1 (25.0) |
    """
    if compare is not None:
        one_of(compare, ("p", "smd"), "compare")
    one_of(continuous, ("mean", "median"), "continuous")
    check_min_count(min_count)
    sites = _by_site(patients, clusters)
    everyone = pd.concat([frame for frame, _ in sites.values()], ignore_index=True)
    labels = _variables(everyone, variables)
    levels_of = {column: _levels(everyone[column]) for column in labels}
    has_missing = {column: bool(everyone[column].isna().any()) for column in labels}
    rows = _row_names(labels, levels_of, has_missing, continuous)
    described = {
        site: SiteNumbers(frame, cluster, levels_of, has_missing)
        for site, (frame, cluster) in sites.items()
    }
    hidden_together: dict[str, pd.DataFrame] = {}
    if rounding is None:
        hidden_together = hide_numbers(described, min_count, together)
    else:
        round_numbers(described, rounding, min_count)
    columns: dict[Any, list[str]] = {}
    for site, part in described.items():
        for k, name in enumerate(part.groups):
            cells = [part.describe_size(k)]
            for column in labels:
                cells += part.describe(column, k, continuous)
            columns[site, name] = cells
        if compare:
            cells = [""]
            for column in labels:
                n_rows = len(levels_of[column] or [0]) + has_missing[column]
                split = [part.frame[column][g] for name, g in part.groups.items() if name != "all"]
                coarse = rounding is not None or bool(part.hidden[column].any())
                cells += [_compare(split, levels_of[column], compare, continuous, coarse)]
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
        raise InputError(
            f"descriptions names {some(unknown)}, but the clusters are {some(sorted(present))}."
        )
    notes = [f"{cluster}: {text}" for cluster, text in texts.items()]
    if compare:
        notes.append(_TESTS[continuous if compare == "p" else compare])
        notes += [_TESTS["†"]] * any("†" in cell for column in columns.values() for cell in column)
    if rounding is not None:
        notes.append(
            f"Numbers of patients are rounded at random to multiples of {rounding.unit}, and "
            "shares are those of the rounded numbers."
        )
    elif hidden := hidden_note(min_count):
        notes.append(hidden)
    return TableOne(table, tuple(notes), hidden_together)


def check_variables(
    patients: Mapping[str, pd.DataFrame], variables: Sequence[str] | None = None
) -> None:
    """Refuse what `table_one` would refuse, before there are clusters; patients by site."""
    everyone = pd.concat(list(patients.values()), ignore_index=True)
    for column in _variables(everyone, variables):
        _levels(everyone[column])


# --- inside ----------------------------------------------------------------------------


def _by_site(
    patients: pd.DataFrame | Mapping[str, pd.DataFrame], clusters: Labels | Mapping[str, Labels]
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
                raise InputError(f"patients has no site {site!r}; it has {some(patients)}.")
            frame = patients[site]
        elif "site" in patients:
            frame = patients[patients["site"].astype(str) == str(site)].drop(columns="site")
        else:
            frame = patients
        sites[str(site)] = _matched(frame, labels, f"the patients of {site}")
    return sites


def _matched(frame: pd.DataFrame, labels: Labels, whose: str) -> tuple[pd.DataFrame, NDArray[Any]]:
    if "id" in frame.columns:
        frame = frame.set_index("id")
    if isinstance(labels, pd.Series):
        rows = match_ids(labels.index, frame.index)
        if (rows < 0).any():
            raise InputError(
                f"{(rows < 0).sum():,} ids with a cluster are not among {whose}: "
                f"{some(labels.index[rows < 0])}."
            )
        frame, cluster = frame.iloc[rows], labels.to_numpy()
    else:
        cluster = np.asarray(labels)
    if len(cluster) != len(frame):
        raise InputError(
            f"found {len(cluster):,} clusters for {len(frame):,} of {whose}; give one for each, or "
            "a Series indexed by id."
        )
    known = ~pd.isna(cluster)
    if not known.any():
        raise InputError(f"none of {whose} has a cluster.")
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
        raise InputError(
            f"the patients have no column {some(absent)}; they have {some(frame.columns)}."
        )
    return labels


def _levels(values: pd.Series) -> list[Any] | None:
    """The categories in order, or None for a continuous variable."""
    categories = isinstance(values.dtype, pd.CategoricalDtype)
    levels = values.cat.categories if categories else values.dropna().unique()
    is_number = pd.api.types.is_numeric_dtype(values) and values.dtype != bool
    if is_number and not categories and len(levels) > 2:
        return None
    if len(levels) > _MAX_LEVELS:
        advice = "group them"
        if looks_like_dates(levels):
            named = option("patients_columns", {"birth_date": str(values.name)})
            advice = f"if they are dates of birth, death or the last contact, say so, as in {named}"
        raise InputError(
            f"{values.name!r} of the patients' table has {len(levels):,} different values; "
            f"{advice}; or list the columns of Table 1, without it, with {option('variables')}."
        )
    return list(levels) if categories else ordered(np.asarray(levels, dtype=object))


def _row_names(
    labels: dict[str, str],
    levels_of: dict[str, list[Any] | None],
    has_missing: dict[str, bool],
    continuous: str,
) -> list[tuple[str, str]]:
    rows = [("patients, n (%)", "")]
    summary = "mean (SD)" if continuous == "mean" else "median [quartiles]"
    for column, label in labels.items():
        levels = levels_of[column]
        title = f"{label}, {summary if levels is None else 'n (%)'}"
        rows += [(title, "")] if levels is None else [(title, str(level)) for level in levels]
        rows += [(title, "missing")] * has_missing[column]
    return rows


def _compare(
    groups: list[pd.Series],
    levels: list[Any] | None,
    compare: str,
    continuous: str,
    coarse: bool,
) -> str:
    """The comparison as text; `coarse` where three digits would give hidden numbers away."""
    known = [g.dropna() for g in groups]
    known = [g for g in known if len(g)]
    if len(known) < 2:
        return "–"
    mark = ""
    if levels is None:
        samples = [g.to_numpy(float) for g in known]
        value = smd(samples) if compare == "smd" else p_continuous(samples, continuous)
    else:
        table = np.array([[(g == level).sum() for level in levels] for g in known], dtype=float)
        table = table[:, table.sum(axis=0) > 0]
        if compare == "smd":
            value = smd_categories(table)
        else:
            value, permuted = p_categories(table)
            mark = "†" * permuted
    if np.isnan(value):
        return "–"
    if coarse and compare == "smd":
        return f"{value:.1f}"
    if coarse:
        return next((f"<{p}" for p in (0.001, 0.01, 0.05) if value < p), "≥0.05") + mark
    return ("<0.001" if compare == "p" and value < 0.001 else f"{value:.3f}") + mark
