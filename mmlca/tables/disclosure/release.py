"""Tables of counts as either release shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from mmlca.tables.disclosure.rounding import Rounding
from mmlca.tables.disclosure.small import hidden_note, hide, hide_parts


def show_counts(
    table: pd.DataFrame,
    counts: Mapping[str, Sequence[str]],
    min_count: int,
    rounding: Rounding | None = None,
    *,
    cells: Sequence[str] = (),
    patients: Sequence[str] | None = None,
    beside: Sequence[str] = (),
    adds_up: tuple[str, Sequence[str]] | None = None,
) -> pd.DataFrame:
    """The table as it may be shown: without small counts, or with all counts rounded.

    Parameters
    ----------
    table : DataFrame
        With columns "site" and "group", where its counts are not of all of them.
    counts : {column: what is counted}
        Names of the draws, such as ["records dropped"]; empty for the patients of a group.
    min_count : int
    rounding : Rounding, optional
        Round the counts instead of hiding some.
    cells : columns that distinguish the counts of a group
    patients : columns of the numbers of patients that the counts rest on; default: the counts
    beside : further columns, blank where a count is small
    adds_up : (column, other columns), optional
        A count that adds up to known totals over the rows with the same other columns: what would
        reveal a small one by subtraction is hidden too.

    Examples
    --------
    >>> table = pd.DataFrame({"site": "A", "drug": list("xyz"), "n": [30, 14, 3]})
    >>> show_counts(table, {"n": ["records"]}, 11)["n"].to_list()
    [30.0, 14.0, nan]
    >>> show_counts(table, {"n": ["records"]}, 11, adds_up=("n", ["site"]))["n"].to_list()
    [30.0, nan, nan]
    >>> rounding = Rounding(b"a secret", 11, {"A": pd.Series(1, ["p1", "p2"])})
    >>> set(show_counts(table, {"n": ["records"]}, 11, rounding, cells=["drug"])["n"] % 11)
    {0.0}
    """
    rests_on = list(counts if patients is None else patients)
    if adds_up is None:
        shown = hide(table, [*counts, *beside], rests_on, min_count)
    else:
        count, by = adds_up
        numbers = [*counts, *beside]
        shown = hide_parts(table, by, numbers, min_count, count=count, patients=rests_on)
    if rounding is None:
        return shown
    rounded = {name: rounding.column(table, name, cells, *what) for name, what in counts.items()}
    return shown.assign(**rounded)


def count_note(min_count: int, rounded: bool) -> str:
    """The sentence below a table or figure of counts; nothing if nothing is hidden."""
    if not rounded:
        return hidden_note(min_count)
    return (
        "Numbers of patients, records and steps are rounded at random to multiples of "
        f"{min_count}, and shares are those of the rounded numbers."
    )
