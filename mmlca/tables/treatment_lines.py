"""Treatment lines: the paths that patients take from one state to the next.

A line is a run of one state; a change of state begins the next line, so A A B A has three. Missing
states, times off treatment and death are not lines and are passed over: A ? A and A none A are one
line.

Small numbers are hidden by pruning. The paths of a group form a tree; a branch of fewer than
`min_count` patients is put together with the smallest of its neighbours until the branch "others"
holds enough, and is not followed further. So all that is shown are sums of sets of patients that
are large enough, and nothing smaller follows from it. Where every number is rounded at random
afterwards (`keyed_paths`), rare branches are put together with each other only: whether there are
any must not decide which others are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import one_of, some
from font.errors import InputError
from mmlca.sequences.type import Sequences
from mmlca.tables.disclosure import hides, is_small
from mmlca.tables.groups import Groups, SequencesBySite, by_group
from mmlca.tables.survival import pooled_curves

ENDED, OTHER = "no further", "others"
ARROW = " → "
_MAX_LINES = 4


def treatment_paths(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    *,
    max_lines: int = _MAX_LINES,
    not_lines: Sequence[str] | None = None,
    min_count: int = 0,
) -> pd.DataFrame:
    """How many patients take each path of treatment lines, as a tree.

    Parameters
    ----------
    sequences, groups : as in `state_distribution`
    max_lines : paths are cut after this many lines
    not_lines : list of states, optional
        States that are passed over, as missing ones are. By default the state off treatment (the
        one of the sequences' rules, or "none") and "dead"; [] for none.
    min_count : smaller branches are put together as "others"

    Returns
    -------
    DataFrame
        One row per branch: `line`, `path` (the states so far, such as "A → B"), `parent` (the
        path it continues), `before` (state of the line before, missing for the first), `state`
        (of this line; "no further" for those whose last line was the one before, "others" for
        small branches together), `count` (weighted patients), `patients` and `share` (of all).
        A path comes before its continuations, which add up to it; it has none where all of them
        are rare.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "B"], ["A", "A", "A"], ["A", None, "B"]])
    >>> treatment_paths(s)[["line", "path", "patients"]]
       line                path  patients
    0     1                   A         3
    1     2               A → B         2
    2     3  A → B → no further         2
    3     2      A → no further         1
    """
    _check(max_lines)
    return by_group(sequences, groups, lambda s: _paths(s, max_lines, min_count, not_lines))


def treatment_lines(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    *,
    max_lines: int = _MAX_LINES,
    not_lines: Sequence[str] | None = None,
    min_count: int = 0,
) -> pd.DataFrame:
    """How patients move from one treatment line to the next: sums of `treatment_paths`.

    Parameters are those of `treatment_paths`.

    Returns
    -------
    DataFrame
        `line`, `from` (the state of that line), `to` (the state of the next line, "no further"
        if there was none during follow-up, "others" together), `count` (weighted patients),
        `patients` and `share` (of those who had `from` as this line and whose next one is
        known). Lines 1 to `max_lines` − 1, and only what happened.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "B"], ["A", "A", "A"], ["A", None, "B"]])
    >>> treatment_lines(s)[["line", "from", "to", "patients"]]
       line from          to  patients
    0     1    A           B         2
    1     1    A  no further         1
    2     2    B  no further         2
    """
    _check(max_lines)
    return by_group(sequences, groups, lambda s: _lines(s, max_lines, min_count, not_lines))


def time_to_next_line(
    lines: pd.DataFrame,
    *,
    by: Sequence[str] = ("line",),
    death: Literal["event", "competing"] = "event",
    max_lines: int = _MAX_LINES,
    min_count: int = 0,
) -> pd.DataFrame:
    """Time from the start of each line to the start of the next one, in days.

    Parameters
    ----------
    lines : DataFrame
        From `ehr_prep.patient_lines`.
    by : list of columns of `lines`
        What to tabulate by, such as ["line", "regimen"].
    death : "event" or "competing"
        "event": time to the next line or death, by Kaplan–Meier. "competing": the cumulative
        incidence of the next line (Aalen–Johansen), which no longer can come after a death.
        Patients whose follow-up ends before either are censored.
    max_lines : later lines are left out
    min_count : rows of fewer patients are left out, and times are rounded to weeks

    Returns
    -------
    DataFrame
        One row per group: the columns of `by`, `patients`, `next_line` and `died` (how many of
        them), `censored`, and the times by which a quarter (`q25`), half (`median`) and three
        quarters (`q75`) had the event, missing if so many never had it; `low` and `high`, the
        95 % interval of the median.

    Examples
    --------
    >>> day = pd.Timestamp("2020-01-01") + pd.to_timedelta([0, 90, 0, 0], "D")
    >>> lines = pd.DataFrame({"id": [1, 1, 2, 3], "line": [1, 2, 1, 1], "start": day,
    ...                       "followed_until": pd.Timestamp("2020-12-31"), "died": False})
    >>> time_to_next_line(lines)[["line", "patients", "next_line", "censored", "q25"]]
       line  patients  next_line  censored   q25
    0     1         3          1         2  90.0
    1     2         1          0         1   NaN
    """
    _check(max_lines)
    one_of(death, ("event", "competing"), "death")
    by = list(by)
    needed = ["id", "line", "start", "followed_until", "died", *by]
    if absent := [name for name in needed if name not in lines]:
        raise InputError(
            f"lines has no column {some(absent)}; give what ehr_prep.patient_lines returned."
        )
    ordered = lines.sort_values(["id", "line"], kind="stable")
    same = ordered["id"].shift(-1) == ordered["id"]
    ended = ordered["start"].shift(-1).where(same, ordered["followed_until"])
    kept = ordered.assign(
        time=(ended - ordered["start"]).dt.days.astype(float),
        event=np.select([same, ordered["died"]], [1, 2], 0),
    )
    kept = kept[kept["line"] <= max_lines]
    rows = [
        _times_of(part, death, min_count) | dict(zip(by, key, strict=True))
        for key, part in kept.groupby(by, sort=True, observed=True)
        if not is_small(len(part), min_count)
    ]
    return pd.DataFrame(rows, columns=[*by, *_TIMES])


_KINDS = {"events": 1, "competing": 2, "left": 0}
_TIMES = ["patients", "next_line", "died", "censored", "q25", "median", "q75", "low", "high"]


def _times_of(part: pd.DataFrame, death: str, min_count: int) -> dict[str, Any]:
    """The row of one group; without numbers from which fewer than `min_count` would follow."""
    event = part["event"].to_numpy()
    kinds = {name: int((event == k).sum()) for k, name in ((1, "next_line"), (2, "died"))}
    kinds["censored"] = int((event == 0).sum())
    if death == "event":
        event = np.minimum(event, 1)
    cases = part.assign(group="all", **{n: event == k for n, k in _KINDS.items()})
    table = cases.groupby(["group", "time"], as_index=False)[list(_KINDS)].sum()
    at_risk = table[list(_KINDS)].sum(axis=1)[::-1].cumsum()
    curve = pooled_curves([table.assign(at_risk=at_risk)], ["all"])
    quantiles = {
        "q25": (curve["survival"], 0.75),
        "median": (curve["survival"], 0.5),
        "q75": (curve["survival"], 0.25),
        "low": (curve["low"], 0.5),
        "high": (curve["high"], 0.5),
    }
    step = 7.0 if hides(min_count) else 1.0
    found = {
        name: np.ceil(_first_at_most(curve["time"], share, level) / step) * step
        for name, (share, level) in quantiles.items()
    }
    few = any(is_small(n, min_count) for n in kinds.values() if n)
    return {
        "patients": len(part),
        **{name: np.nan if few else n for name, n in kinds.items()},
        **found,
    }


def _first_at_most(times: pd.Series, share: pd.Series, level: float) -> float:
    """The first time at which a curve is at most `level`; missing if it never is."""
    reached = times[share <= level + 1e-12]
    return float(reached.iloc[0]) if len(reached) else np.nan


def keyed_paths(
    sequences: SequencesBySite, groups: Groups, min_count: int, key_of: Callable[[Any], str]
) -> pd.DataFrame:
    """`treatment_paths` to be rounded, with what `key_of` calls the patients of each as `key`.

    The branch "others" may have fewer than `min_count` patients here.
    """
    return by_group(
        sequences,
        groups,
        lambda s: _paths(s, _MAX_LINES, min_count, None, lambda rows: key_of(s.ids[rows])),
    )


def branch_names(states: Sequence[str]) -> list[str]:
    """Names of the states, of no further line and of others, all different."""
    names = list(states)
    for name in (ENDED, OTHER):
        while name in names:  # a state may be called so
            name += "*"
        names.append(name)
    return names


def _check(max_lines: int) -> None:
    if max_lines < 2:
        raise InputError(f"max_lines must be at least 2, found {max_lines}.")


def _passed_over(s: Sequences, not_lines: Sequence[str] | None) -> list[int]:
    """The codes of the states that are not lines."""
    if not_lines is None:
        off = "none" if s.account is None else s.account.settings.get("off_treatment", "none")
        return [code for code, name in enumerate(s.states) if name in (off, "dead")]
    unknown = [name for name in not_lines if name not in s.states]
    if unknown:
        raise InputError(
            f"not_lines names {some(unknown)}, which are not among the states "
            f"{', '.join(s.states)}."
        )
    return [s.states.index(name) for name in not_lines]


def line_codes(s: Sequences, max_lines: int, passed_over: Sequence[int] = ()) -> NDArray[np.int8]:
    """The state of each patient's lines 1 … max_lines, (n, max_lines); −1 after the last."""
    lines = np.full((len(s), max_lines), -1, dtype=np.int8)
    number = np.zeros(len(s), dtype=np.intp)
    current = np.full(len(s), -1, dtype=np.int8)
    for t in range(s.shape[1]):
        state = np.where(np.isin(s.codes[:, t], passed_over), np.int8(-1), s.codes[:, t])
        new = np.flatnonzero((state >= 0) & (state != current) & (number < max_lines))
        lines[new, number[new]] = state[new]
        number[new] += 1
        current = np.where(state >= 0, state, current)
    return lines


class _Branch(NamedTuple):
    """The patients of a path, and its last state: a code, or S for ended and S + 1 for other."""

    path: tuple[int, ...]
    rows: NDArray[np.intp]
    patients: int

    @property
    def state(self) -> int:
        return self.path[-1]


def _tree(
    s: Sequences,
    max_lines: int,
    min_count: int,
    not_lines: Sequence[str] | None,
    *,
    few_others: bool = False,
) -> Iterator[_Branch]:
    """All branches, each before its own ones; `few_others` lets "others" have few patients."""
    lines = line_codes(s, max_lines, _passed_over(s, not_lines)).astype(np.intp)
    lines[lines < 0] = s.n_states
    counted = s.weights > 0
    whole = _Branch((), np.flatnonzero(counted), int(counted.sum()))
    waiting = [whole]
    while waiting and not is_small(whole.patients, min_count):
        branch = waiting.pop()
        if branch.path:
            yield branch
        if len(branch.path) < max_lines and (not branch.path or branch.state < s.n_states):
            state = lines[branch.rows, len(branch.path)]
            waiting += reversed(_split(branch, state, s.n_states, min_count, few_others))


def _split(
    branch: _Branch, state: NDArray[np.intp], n_states: int, min_count: int, few_others: bool
) -> list[_Branch]:
    """The branches of a branch; rare ones together, or none at all if they would be too few."""
    parts = {int(code): branch.rows[state == code] for code in np.unique(state)}
    by_size = sorted(parts, key=lambda code: (len(parts[code]), code))
    rare = [code for code in by_size if is_small(len(parts[code]), min_count)]
    common = by_size[len(rare) :]
    n_rare = sum(len(parts[code]) for code in rare)
    while rare and common and not few_others and is_small(n_rare, min_count):
        n_rare += len(parts[common[0]])
        rare.append(common.pop(0))
    if rare and not common and branch.path:
        return []
    branches = [
        _Branch((*branch.path, code), parts[code], len(parts[code])) for code in sorted(common)
    ]
    if rare:
        rows = np.concatenate([parts[code] for code in rare])
        branches.append(_Branch((*branch.path, n_states + 1), rows, len(rows)))
    return branches


def _paths(
    s: Sequences,
    max_lines: int,
    min_count: int,
    not_lines: Sequence[str] | None,
    key_of: Callable[[NDArray[np.intp]], str] | None = None,
) -> pd.DataFrame:
    names = branch_names(s.states)
    total = s.weights.sum()
    branches = list(_tree(s, max_lines, min_count, not_lines, few_others=key_of is not None))
    rows = [
        (
            len(branch.path),
            ARROW.join(names[code] for code in branch.path),
            ARROW.join(names[code] for code in branch.path[:-1]),
            names[branch.path[-2]] if len(branch.path) > 1 else None,
            names[branch.state],
            float(s.weights[branch.rows].sum()),
            branch.patients,
        )
        for branch in branches
    ]
    table = pd.DataFrame(
        rows, columns=["line", "path", "parent", "before", "state", "count", "patients"]
    )
    if key_of is not None:
        table["key"] = pd.Series([key_of(branch.rows) for branch in branches], dtype=object)
    return table.assign(share=table["count"] / total if total > 0 else table["count"])


def _lines(
    s: Sequences, max_lines: int, min_count: int, not_lines: Sequence[str] | None
) -> pd.DataFrame:
    names = branch_names(s.states)
    sums: dict[tuple[int, int, int], tuple[float, int]] = {}
    for branch in _tree(s, max_lines, min_count, not_lines):
        if len(branch.path) > 1:
            before, after = branch.path[-2:]
            key = len(branch.path) - 1, before, after
            count, patients = sums.get(key, (0.0, 0))
            weight = float(s.weights[branch.rows].sum())
            sums[key] = count + weight, patients + branch.patients
    order = sorted(sums)
    table = pd.DataFrame(
        {
            "line": np.array([key[0] for key in order], dtype=np.intp),
            "from": _ordered([key[1] for key in order], names),
            "to": _ordered([key[2] for key in order], names),
            "count": [sums[key][0] for key in order],
            "patients": [sums[key][1] for key in order],
        }
    )
    total = table.groupby(["line", "from"], observed=True)["count"].transform("sum")
    return table.assign(share=table["count"] / total)


def _ordered(codes: list[int], names: list[str]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, names, ordered=True)
