"""Table 1: who the patients of each cluster are, by site."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import some
from font.errors import InputError
from font.settings import change
from mmlca.sequences.checks import match_ids
from mmlca.sequences.type import Labels
from mmlca.tables.disclosure import Rounding, check_min_count, count_note
from mmlca.tables.settings import TableOneSettings
from mmlca.tables.table_one_counts import (
    SiteNumbers,
    Variable,
    all_groups,
    common_variables,
    hide_numbers,
    pool_sites,
    read_site,
    variables_of,
)
from mmlca.tables.table_one_site import (
    KNOWN,
    LEVEL,
    N_PERMUTATIONS,
    Tables,
    chosen_columns,
    coarse,
    site_tables,
    values_of,
)

ALL_SITES = "all sites"
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
_TOGETHER = {
    "mean": "All sites: sums of the numbers of the sites, and means and standard deviations of all "
    "patients.",
    "median": "All sites: sums of the numbers of the sites; medians of all patients do not follow "
    "from those of the sites.",
}
_SUMMARIES = {"mean": "mean (SD)", "median": "median [quartiles]"}
_HEADINGS = {"p": "p", "smd": "SMD"}


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
    legend : str
        What the cells are, and what the columns beside the clusters compare.
    hidden_together : {column: DataFrame of bool, levels by clusters}
        For the columns `together` of `table_one`: the numbers at all sites together that other
        tables may not show, since hidden ones of this table would follow.
    numbers : {site: SiteNumbers}
        What the cells are made of, with what is hidden; all sites together, if shown, come last.
    variables : {column: Variable}
    """

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()
    legend: str = ""
    hidden_together: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    numbers: Mapping[str, SiteNumbers] = field(default_factory=dict)
    variables: Mapping[Any, Variable] = field(default_factory=dict)

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
    settings: TableOneSettings | None = None,
    *,
    descriptions: Mapping[Any, str] | None = None,
    min_count: int = 0,
    together: Sequence[str] = (),
    rounding: Rounding | None = None,
    **changes: Any,
) -> TableOne:
    """Describe the patients of each cluster: n (%), mean (SD), categories, missing values.

    Parameters
    ----------
    patients : DataFrame or dict {site: DataFrame}
        One row per patient, ids as index or in a column "id", such as the `.patients` of
        sequences built from records. Patients without a cluster are left out.
    clusters : Series or array, or dict {site: Series or array}
        A Series is matched by id; an array is in the order of the patients.
    settings : TableOneSettings, optional
    descriptions : {cluster: text}, optional
        What each cluster is, written below the table; such as the column "description" of
        `mmlca.describe_clusters`.
    min_count : int
        Counts above 0 and below `min_count` are written "–", and so is the mean of so few
        patients; and so are as many other numbers as are needed so that none of these follows from
        those that are shown, or from the sizes of the clusters at all sites together. Where a
        number of a variable is hidden, its comparison is coarse.
    together : columns, optional
        Those whose numbers at all sites together another table shows: hidden numbers must not
        follow from that one either, and `hidden_together` says what it may not show.
    rounding : Rounding, optional
        Of the clusters: round all counts to multiples of its unit instead of hiding some; shares
        are those of the rounded counts, and comparisons are coarse. Means of fewer patients than
        `min_count` are not shown.
    **changes
        Single settings, which override `settings`: `variables`, `columns`, `continuous`; see
        `TableOneSettings`.

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
    chosen = change(settings or TableOneSettings(), changes)
    check_min_count(min_count)
    people = _by_site(patients, clusters)
    _check_columns([frame for frame, _ in people.values()], chosen.variables)
    sites = {
        site: site_tables(frame, cluster, chosen, min_count, rounding)
        for site, (frame, cluster) in people.items()
    }
    return put_together(
        sites,
        chosen,
        descriptions=descriptions,
        min_count=min_count,
        together=together,
        rounded=rounding is not None,
    )


def put_together(
    tables: Mapping[str, Tables],
    settings: TableOneSettings,
    *,
    names: Mapping[Any, str] | None = None,
    descriptions: Mapping[Any, str] | None = None,
    min_count: int = 0,
    together: Sequence[str] = (),
    rounded: bool = False,
    all_sites: bool = False,
) -> TableOne:
    """Table 1 of the numbers of each site, see `site_tables`.

    Only exact numbers are hidden, not `rounded` ones. `names` are those of the clusters, which the
    `descriptions` use; `all_sites` adds columns of all sites together, if there are several. Other
    arguments are those of `table_one`.
    """
    variables, alike = variables_of(tables, settings.variables)
    sites = {site: read_site(part, variables) for site, part in alike.items()}
    pooled = pool_sites(sites, variables) if all_sites and len(sites) > 1 else None
    hidden_together: dict[str, pd.DataFrame] = {}
    if not rounded:
        hidden_together = hide_numbers(sites, variables, min_count, together, pooled)
    named = {group: str((names or {}).get(group, group)) for group in all_groups(sites)}
    named[None] = "all"
    places = sites if pooled is None else {**sites, ALL_SITES: pooled}
    table = frame_of(places, variables, named, settings, rounded)
    explained = _explain_columns(table, settings)
    if pooled is not None:
        explained.append(_TOGETHER[settings.continuous])
    notes = [
        *_describe_clusters(descriptions or {}, {*named.values()} - {"all"}),
        *explained,
        *filter(None, [count_note(min_count, rounded)]),
    ]
    legend = " ".join([f"Number (%) or {_SUMMARIES[settings.continuous]}.", *explained])
    hidden_together = {c: mask.rename(columns=named) for c, mask in hidden_together.items()}
    return TableOne(table, tuple(notes), legend, hidden_together, places, variables)


def frame_of(
    places: Mapping[str, SiteNumbers],
    variables: Mapping[Any, Variable],
    names: Mapping[Any, str],
    settings: TableOneSettings,
    rounded: bool,
) -> pd.DataFrame:
    """The cells of Table 1 as texts, from its numbers; `names` are those of the groups."""
    columns = {
        (site, name): cells
        for site, part in places.items()
        for name, cells in _columns(part, variables, names, settings, rounded, site == ALL_SITES)
    }
    rows = pd.MultiIndex.from_tuples(_row_names(variables, settings), names=["", "level"])
    table = pd.DataFrame(columns, index=rows)
    table.columns = pd.MultiIndex.from_tuples(list(columns), names=["site", "cluster"])
    if list(places) == [""]:
        table.columns = pd.Index([name for _, name in columns], name="cluster")
    return table


def check_variables(
    patients: Mapping[str, pd.DataFrame], settings: TableOneSettings | None = None
) -> None:
    """Refuse what `table_one` would refuse, before there are clusters; patients by site."""
    chosen = (settings or TableOneSettings()).variables
    _check_columns(list(patients.values()), chosen)
    sites = {
        site: {c: values_of(frame[c]) for c in chosen_columns(frame, chosen)}
        for site, frame in patients.items()
    }
    common_variables(sites, chosen)


# --- inside ----------------------------------------------------------------------------


def _check_columns(
    frames: Sequence[pd.DataFrame], chosen: Sequence[str] | Mapping[str, str] | None
) -> None:
    """Refuse variables that no site has."""
    known = list(dict.fromkeys(column for frame in frames for column in frame))
    if absent := [column for column in chosen or () if column not in known]:
        raise InputError(f"the patients have no column {some(absent)}; they have {some(known)}.")


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


def _row_names(
    variables: Mapping[Any, Variable], settings: TableOneSettings
) -> list[tuple[str, str]]:
    rows = [("patients, n (%)", "")]
    summary = _SUMMARIES[settings.continuous]
    for label, levels, has_missing in variables.values():
        title = f"{label}, {summary if levels is None else 'n (%)'}"
        rows += [(title, "")] if levels is None else [(title, level) for level in levels]
        rows += [(title, "missing")] if has_missing else []
    return rows


def _columns(
    part: SiteNumbers,
    variables: Mapping[Any, Variable],
    names: Mapping[Any, str],
    settings: TableOneSettings,
    rounded: bool,
    pooled: bool,
) -> Iterator[tuple[str, list[str]]]:
    """The columns of one site: its clusters, then those of `settings.columns`."""
    for k, group in enumerate(part.groups):
        if group is not None or "all" in settings.columns:
            cells = [
                part.describe(column, variable, k, settings.continuous)
                for column, variable in variables.items()
            ]
            yield names[group], [part.describe_size(k), *itertools.chain(*cells)]
    for name in settings.columns:
        if name != "all" and not pooled:
            texts = [_compare(part, c, v, name, rounded) for c, v in variables.items()]
            yield _HEADINGS[name], ["", *itertools.chain(*texts)]


def _compare(
    part: SiteNumbers, column: Any, variable: Variable, comparison: str, rounded: bool
) -> list[str]:
    """A p-value or a standardised mean difference, in the first row of a variable.

    It is coarse where three digits would reveal hidden or rounded numbers.
    """
    row = KNOWN if variable.levels is None else LEVEL
    value, permuted = part.comparisons.get((column, row, comparison), (np.nan, False))
    if np.isnan(value):
        text = "–"
    elif not rounded and not part.hidden[column].any():
        text = "<0.001" if comparison == "p" and value < 0.001 else f"{value:.3f}"
    elif comparison == "smd":
        text = f"{value:.1f}"
    else:
        bound = value if rounded else coarse(comparison, value)
        text = f"<{bound:g}" if bound < 1 else "≥0.05"
    return [text + "†" if permuted else text, *[""] * (len(part.counts[column]) - 1)]


# --- notes ------------------------------------------------------------------------------


def _describe_clusters(descriptions: Mapping[Any, str], present: set[str]) -> list[str]:
    unknown = [cluster for cluster in descriptions if str(cluster) not in present]
    if unknown:
        raise InputError(
            f"descriptions names {some(unknown)}, but the clusters are {some(sorted(present))}."
        )
    return [f"{cluster}: {text}" for cluster, text in descriptions.items()]


def _explain_columns(table: pd.DataFrame, settings: TableOneSettings) -> list[str]:
    notes = []
    for name in settings.columns:
        if name == "p":
            notes.append(_TESTS[settings.continuous])
            marked = table.map(lambda text: "†" in text).any(axis=None)
            notes += [_TESTS["†"]] if marked else []
        elif name == "smd":
            notes.append(_TESTS["smd"])
    return notes
