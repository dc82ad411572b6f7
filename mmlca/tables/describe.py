"""Tables that describe sequences, weighted and by group.

Each function takes one `Sequences` or a dict {site: Sequences}, and `groups`: one label per
patient, as `mmlca.tables.groups` says. The tables are tidy: the columns "site" and "group"
come first where they apply.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.sequences.type import Sequences
from mmlca.tables.counts import (
    leaving_patients,
    rates,
    state_counts,
    state_patients,
    step_counts,
    step_patients,
)
from mmlca.tables.disclosure import is_small
from mmlca.tables.groups import Groups, SequencesBySite, by_group


def state_distribution(
    sequences: Sequences | SequencesBySite, groups: Groups = None
) -> pd.DataFrame:
    """Share of each state at each time, among those observed then (TraMineR's seqstatd).

    Returns
    -------
    DataFrame
        time, state, `count` (weighted patients in the state), `n` (weighted patients
        observed), `share` = count / n, NaN where nobody is observed, and `patients` (number of
        different patients in the state).

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A"], ["A", "B"], ["B"]])
    >>> state_distribution(s).query("time == '1'")[["state", "count", "n", "share"]]
      state  count    n     share
    0     A    2.0  3.0  0.666667
    1     B    1.0  3.0  0.333333
    """
    return by_group(sequences, groups, _state_distribution)


def _state_distribution(s: Sequences) -> pd.DataFrame:
    count = state_counts(s)
    n = count.sum(axis=1, keepdims=True)
    return pd.DataFrame(
        {
            "time": _ordered(np.repeat(np.arange(s.shape[1]), s.n_states), s.times),
            "state": _ordered(np.tile(np.arange(s.n_states), s.shape[1]), s.states),
            "count": count.ravel(),
            "n": np.broadcast_to(n, count.shape).ravel(),
            "share": rates(count).ravel(),
            "patients": state_patients(s).ravel(),
        }
    )


def sequence_frequencies(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    top: int | None = 10,
    *,
    min_count: int = 0,
) -> pd.DataFrame:
    """The most frequent sequences, written as spells (TraMineR's seqtab).

    A missing stretch is written "?". Ties keep the order of the codes. Sequences that fewer
    than `min_count` patients have are left out, and with them the rarest others until at least
    `min_count` patients are; the shares stay those of all patients.

    Returns
    -------
    DataFrame
        rank, sequence, `count` (weighted patients), `share` and `cumulative` share.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "B"], ["A", "A", "B"], ["A", None, "A"]])
    >>> sequence_frequencies(s)[["sequence", "count"]]
              sequence  count
    0        A×2 → B×1    2.0
    1  A×1 → ?×1 → A×1    1.0
    """
    return by_group(sequences, groups, lambda s: _sequence_frequencies(s, top, min_count))


def _sequence_frequencies(s: Sequences, top: int | None, min_count: int) -> pd.DataFrame:
    common = frequent(s, top, min_count)
    return pd.DataFrame(
        {
            "rank": np.arange(1, len(common.rows) + 1),
            "sequence": course_texts(course_spells(s, common.rows)),
            "count": common.weight,
            "share": common.share,
            "cumulative": np.cumsum(common.share),
        }
    )


class Frequent(NamedTuple):
    """The most frequent sequences: the row of one patient who has it, weight and share of each.

    `n_rare` is the number of different sequences that fewer than `min_count` patients have.
    """

    rows: NDArray[np.intp]
    weight: NDArray[np.float64]
    share: NDArray[np.float64]
    n_rare: int


def frequent(s: Sequences, top: int | None, min_count: int = 0) -> Frequent:
    """The distinct sequences by falling weight, without those of fewer than `min_count`.

    The patients of those left out are together none or at least `min_count`.
    """
    if top is not None and top < 1:
        raise InputError(f"top must be at least 1, or None for all; found {top}.")
    first, number = s.distinct()
    weight = np.bincount(number, weights=s.weights, minlength=len(first)).astype(float)
    patients = np.bincount(number, weights=s.weights > 0, minlength=len(first))
    rare = is_small(patients, min_count)
    by_codes = np.lexsort([*s.codes[first].T[::-1], -weight])
    chosen = by_codes[((patients > 0) & ~rare)[by_codes]][:top]
    while len(chosen) and is_small(patients.sum() - patients[chosen].sum(), min_count):
        chosen = chosen[:-1]  # the patients of all other sequences would be few
    return Frequent(first[chosen], weight[chosen], rates(weight)[chosen], int(rare.sum()))


def frequency_spells(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    top: int | None = 10,
    *,
    min_count: int = 0,
) -> pd.DataFrame:
    """The spells of the sequences that `sequence_frequencies` lists, as `plot_frequencies` draws.

    Returns
    -------
    DataFrame
        One row per spell, in order: rank of the sequence, state (missing where it is not known)
        and `windows` (how many times the spell lasts).

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "B"], ["A", "A", "B"]])
    >>> frequency_spells(s)
       rank state  windows
    0     1     A        2
    1     1     B        1
    """
    return by_group(sequences, groups, lambda s: course_spells(s, frequent(s, top, min_count).rows))


def course_spells(s: Sequences, rows: NDArray[np.intp]) -> pd.DataFrame:
    """The spells of some patients' sequences, which are numbered by rank from 1."""
    codes = s.codes[rows]
    followed = np.arange(s.shape[1]) < s.lengths[rows][:, None]
    begins = followed.copy()
    begins[:, 1:] &= codes[:, 1:] != codes[:, :-1]
    row, time = np.nonzero(begins)
    spell = np.cumsum(begins)[followed.ravel()] - 1
    names = np.array([*s.states, None], dtype=object)  # code -1 is the last one
    return pd.DataFrame(
        {
            "rank": row + 1,
            "state": names[codes[row, time]],
            "windows": np.bincount(spell, minlength=len(row)),
        }
    )


def course_texts(spells: pd.DataFrame) -> list[str]:
    """Each sequence of `course_spells` as text, such as "TNFi×9 → ?×1 → CTLA4-Ig×7"."""
    states = spells["state"].where(spells["state"].notna(), "?")
    texts: dict[int, list[str]] = {}
    for rank, state, windows in zip(spells["rank"], states, spells["windows"], strict=True):
        texts.setdefault(rank, []).append(f"{state}×{windows}")
    return [" → ".join(parts) for parts in texts.values()]


def transition_rates(
    sequences: Sequences | SequencesBySite,
    groups: Groups = None,
    *,
    lag: int = 1,
) -> pd.DataFrame:
    """Empirical transition rates between states `lag` times apart (TraMineR's seqtrate).

    Only pairs with both states observed count. A state that is never left has no rate (NaN).

    Returns
    -------
    DataFrame
        `from`, and one column per state (the state gone to): rates whose rows sum to 1.
        `transition_counts` has the counts.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "B"], ["A", "B", "B"]])
    >>> transition_rates(s)
      from         A         B
    0    A  0.333333  0.666667
    1    B  0.000000  1.000000
    """
    return by_group(sequences, groups, lambda s: _transition_rates(s, lag))


def _transition_rates(s: Sequences, lag: int) -> pd.DataFrame:
    frame = pd.DataFrame(rates(step_counts(s, lag)), columns=list(s.states))
    frame.insert(0, "from", _ordered(np.arange(s.n_states), s.states), allow_duplicates=True)
    return frame


def transition_counts(
    sequences: Sequences | SequencesBySite, groups: Groups = None, *, lag: int = 1
) -> pd.DataFrame:
    """Transitions between states `lag` times apart, one row per pair of states.

    Only pairs with both states observed count.

    Returns
    -------
    DataFrame
        `from`, `to`, `count` (weighted number of transitions), `n` (of all that begin in
        `from`), `rate` = count / n (NaN for a state that is never left), `patients` and
        `n_patients` (numbers of different patients behind count and n).

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "A"], ["A", "B", "B"]])
    >>> transition_counts(s)[["from", "to", "count", "n", "patients"]]
      from to  count    n  patients
    0    A  A    2.0  3.0         1
    1    A  B    1.0  3.0         1
    2    B  A    0.0  1.0         0
    3    B  B    1.0  1.0         1
    """
    return by_group(sequences, groups, lambda s: _transition_counts(s, lag))


def _transition_counts(s: Sequences, lag: int) -> pd.DataFrame:
    count = step_counts(s, lag)
    before, after = (index.ravel() for index in np.indices(count.shape))
    return pd.DataFrame(
        {
            "from": _ordered(before, s.states),
            "to": _ordered(after, s.states),
            "count": count.ravel(),
            "n": count.sum(axis=1)[before],
            "rate": rates(count).ravel(),
            "patients": step_patients(s, lag).ravel(),
            "n_patients": leaving_patients(s, lag)[before],
        }
    )


def time_in_state(sequences: Sequences | SequencesBySite, groups: Groups = None) -> pd.DataFrame:
    """Mean number of times spent in each state (TraMineR's seqmeant).

    Returns
    -------
    DataFrame
        state, `mean` (weighted mean over patients of the times in the state) and `share`
        of all observed times.
    """
    return by_group(sequences, groups, _time_in_state)


def _time_in_state(s: Sequences) -> pd.DataFrame:
    total = state_counts(s).sum(axis=0)
    n, observed = s.weights.sum(), total.sum()
    return pd.DataFrame(
        {
            "state": _ordered(np.arange(s.n_states), s.states),
            "mean": total / n if n > 0 else np.nan,
            "share": total / observed if observed > 0 else np.nan,
        }
    )


def entropy_by_time(sequences: Sequences | SequencesBySite, groups: Groups = None) -> pd.DataFrame:
    """Entropy of the state distribution at each time, between 0 (all alike) and 1 (even).

    Shannon's −Σ p log p divided by the log of the number of states.

    Returns
    -------
    DataFrame
        time, `n` (weighted patients observed), `entropy` (NaN where nobody is observed).
    """
    return by_group(sequences, groups, _entropy_by_time)


def _entropy_by_time(s: Sequences) -> pd.DataFrame:
    count = state_counts(s)
    n = count.sum(axis=1)
    share = np.nan_to_num(rates(count))
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    entropy = -(share * logs).sum(axis=1) / np.log(max(s.n_states, 2))
    return pd.DataFrame(
        {
            "time": _ordered(np.arange(s.shape[1]), s.times),
            "n": n,
            "entropy": np.where(n > 0, np.abs(entropy), np.nan),
        }
    )


def _ordered(codes: NDArray[np.intp], labels: tuple[str, ...]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, list(labels), ordered=True)
