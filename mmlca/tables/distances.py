"""Distances between sequences: what it costs to make two of them equal.

All distances are computed between the distinct sequences alone, since most patients share theirs.

*Missing and void.* A missing window (followed up, nothing known) is a state of its own, as far from
each state as two states can be; two missing windows are equal. Void (after the end of the
follow-up) is no state. Where sequences are compared window by window (Hamming), a window that only
one of the two has costs as much as two different states; where states may be inserted (optimal
matching, LCS) the longer sequence is made shorter by deletions.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.checks import of_type, one_of
from font.errors import InputError
from mmlca.sequences.type import Sequences

Floats = NDArray[np.float64]
Method = Literal["hamming", "dynamic_hamming", "lcs", "om"]
Costs = Literal["constant", "rates"]

_METHODS = ("hamming", "dynamic_hamming", "lcs", "om")
_COSTS = ("constant", "rates")
_IN_TRAMINER = {"ham": "hamming", "dhd": "dynamic_hamming", "trate": "rates"}
_ALIGNED = {"hamming": 1.0, "dynamic_hamming": 4.0}
_REPLACED = 2.0
_MOST_PATIENTS = 20_000


def distances(
    sequences: Sequences,
    method: Method = "hamming",
    *,
    costs: Costs = "constant",
    indel: float | None = None,
) -> Floats:
    """Distances between the sequences of all patients, equal to TraMineR's `seqdist`.

    ==================  ==========================================================  ============
    method              distance                                                    in TraMineR
    ==================  ==========================================================  ============
    "hamming"           number of windows in which the states differ                HAM
    "dynamic_hamming"   the same, but a difference costs less where transitions     DHD
                        between the two states are frequent at that time
    "lcs"               windows that are not part of the longest common             LCS
                        subsequence, of both sequences together
    "om"                optimal matching: the lowest total cost of replacing,       OM
                        inserting and deleting states
    ==================  ==========================================================  ============

    With p(i → j) the transition rates, replacing state i by j costs 2 or, with `costs="rates"`,
    2 − p(i → j) − p(j → i). In the dynamic Hamming distance a difference at time t costs
    4 − Σ (p(i → j) + p(j → i)), summed over the steps into t and out of it; at the first and the
    last time the one step counts twice. Rates are weighted by the patients' weights.

    A missing window is a state of its own, as far from each state as two states can be (1, 4 or 2).
    After the end of the follow-up there is no state: a window that only one of two patients has
    costs 1 in the Hamming distance and 4 in the dynamic one (TraMineR refuses sequences of unequal
    lengths there), and one deletion in the other two.

    Parameters
    ----------
    sequences : Sequences
        Of at most 20,000 patients. For more, use `cluster_sequences`, or keep one patient of each
        distinct sequence: ``sequences[sequences.distinct()[0]]``.
    method : "hamming", "dynamic_hamming", "lcs" or "om"
        TraMineR's names are understood too.
    costs : "constant" or "rates"
        What replacing a state costs in optimal matching.
    indel : float, optional
        What inserting or deleting a state costs in optimal matching; default: half of the largest
        cost of replacing one.

    Returns
    -------
    array (n, n)

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "B", "B"], ["A", "B", "B", "B"], ["B", "B", "A"]])
    >>> distances(s)
    array([[0., 1., 4.],
           [1., 0., 3.],
           [4., 3., 0.]])
    >>> distances(s, "lcs")[0]
    array([0., 2., 3.])
    """
    of_type(sequences, Sequences, "Sequences, such as those that Sequences.from_frame returns")
    if len(sequences) > _MOST_PATIENTS:
        raise InputError(
            f"found {len(sequences):,} patients, whose distances would take "
            f"{8e-9 * len(sequences) ** 2:,.0f} GB; at most {_MOST_PATIENTS:,} are possible: use "
            "cluster_sequences, or give one patient of each distinct sequence, "
            "sequences[sequences.distinct()[0]]."
        )
    distinct = distinct_sequences(sequences)
    metric = metric_of(distinct, method, costs, indel)
    return np.asarray(metric.square(np.float64)[np.ix_(distinct.number, distinct.number)])


# --- distinct sequences ---------------------------------------------------------------------


class Distinct(NamedTuple):
    """The distinct sequences in the order of their codes, whatever the order of the patients.

    Parameters
    ----------
    codes : (d, T) uint8
        States from 0; S where missing, S + 1 where void.
    lengths : (d,) int32
    weight : (d,)
        Sums of the patients' weights.
    patients : (d,)
        Number of patients of positive weight.
    rows : (d,)
        The first patient with the sequence.
    number : (n,)
        The sequence of each patient.
    n_states : int
        S
    """

    codes: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    weight: Floats
    patients: Floats
    rows: NDArray[np.intp]
    number: NDArray[np.intp]
    n_states: int


def distinct_sequences(sequences: Sequences) -> Distinct:
    """The distinct sequences, in an order that does not depend on that of the patients."""
    rows, number = sequences.distinct()
    lengths, n_states = sequences.lengths[rows], sequences.n_states
    codes = sequences.codes[rows].astype(np.uint8)  # room for two more than the most states
    codes[sequences.codes[rows] < 0] = n_states
    codes[np.arange(sequences.shape[1]) >= lengths[:, None]] = n_states + 1
    order = np.lexsort(codes.T[::-1])
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.arange(len(order))
    number = place[number]
    weight, patients = (
        np.bincount(number, weights=values, minlength=len(order)).astype(float)
        for values in (sequences.weights, sequences.weights > 0)
    )
    codes = np.ascontiguousarray(codes[order])
    return Distinct(codes, lengths[order], weight, patients, rows[order], number, n_states)


# --- metrics --------------------------------------------------------------------------------


class Metric(NamedTuple):
    """A distance, ready to be computed between any of the sequences.

    Parameters
    ----------
    codes, lengths
        As in `Distinct`.
    costs : (T or 1, S + 2, S + 2)
        What two states cost that differ, at each time or at all times.
    indel : float, optional
        What inserting a state costs; None if sequences are compared window by window.
    """

    codes: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    costs: Floats
    indel: float | None

    def between(self, rows: NDArray[np.intp], others: NDArray[np.intp]) -> Floats:
        """Distances from some sequences to others, (rows, others)."""
        out = np.empty((len(rows), len(others)))
        self._fill(rows, others, False, out)
        return out

    def square(self, dtype: Any, rows: NDArray[np.intp] | None = None) -> NDArray[Any]:
        """Distances between all sequences, or between some of them."""
        rows = np.arange(len(self.codes)) if rows is None else rows
        out = np.empty((len(rows), len(rows)), dtype=dtype)
        self._fill(rows, rows, True, out)
        return out

    def _fill(
        self, rows: NDArray[np.intp], others: NDArray[np.intp], same: bool, out: NDArray[Any]
    ) -> None:
        from mmlca.tables import _kernels

        a, b = self.codes[rows], self.codes[others]
        if self.indel is None:
            _kernels.aligned_distances(a, b, self.costs, same, out)
        else:
            lengths = self.lengths[rows], self.lengths[others]
            cost = self.costs[0]
            _kernels.edit_distances(a, lengths[0], b, lengths[1], cost, self.indel, same, out)


def metric_of(
    distinct: Distinct,
    method: str = "hamming",
    costs: str = "constant",
    indel: float | None = None,
) -> Metric:
    """The distance that goes by this name; see `distances`."""
    method, costs = (
        _IN_TRAMINER.get(name := str(value).lower(), name) for value in (method, costs)
    )
    one_of(method, _METHODS, "method")
    one_of(costs, _COSTS, "costs")
    if method != "om" and (costs != "constant" or indel is not None):
        raise InputError(
            f"costs and indel are about optimal matching, and method is {method!r}; give "
            "method='om', or leave them out."
        )
    number = isinstance(indel, (int, float, np.integer, np.floating))
    if indel is not None and not (number and 0 < indel < np.inf):
        raise InputError(f"indel must be a positive number, found {indel!r}.")
    s, n_times = distinct.n_states, distinct.codes.shape[1]
    if method in _ALIGNED:
        most = _ALIGNED[method]
        table = np.full((1, s + 2, s + 2), most)
        if method == "dynamic_hamming":
            table = np.repeat(table, n_times, axis=0)
            table[:, :s, :s] = np.maximum(most - _rates_around(distinct), 0.0)
        table[:, np.arange(s + 2), np.arange(s + 2)] = 0.0
        return Metric(distinct.codes, distinct.lengths, table, None)
    cost = np.full((s + 2, s + 2), _REPLACED)
    if costs == "rates":
        rates = _rates(_steps(distinct).sum(axis=0))
        cost[: s + 1, : s + 1] -= rates + rates.T
    np.fill_diagonal(cost, 0.0)
    if indel is None:
        # before missing windows get their price, as in TraMineR, which has them if there are any
        known = s + 1 if (distinct.codes == s).any() else s
        indel = (cost[:known, :known].max(initial=0) or _REPLACED) / 2
    cost[s, :s] = cost[:s, s] = _REPLACED
    return Metric(distinct.codes, distinct.lengths, cost[None], float(indel))


def _steps(distinct: Distinct) -> Floats:
    """Weighted steps at each time from state to state, missing included, (T − 1, S + 1, S + 1)."""
    n_times, s = distinct.codes.shape[1], distinct.n_states
    table = np.zeros((max(n_times - 1, 0), s + 1, s + 1))
    for t, step in enumerate(table):
        before, after = distinct.codes[:, t].astype(np.intp), distinct.codes[:, t + 1]
        seen = after <= s
        np.add.at(step, (before[seen], after[seen]), distinct.weight[seen])
    return table


def _rates(steps: Floats) -> Floats:
    """Shares of each row (…, S, S), 0 in rows without any step."""
    total = np.broadcast_to(steps.sum(axis=-1, keepdims=True), steps.shape)
    return np.asarray(np.divide(steps, total, out=np.zeros_like(steps), where=total > 0))


def _rates_around(distinct: Distinct) -> Floats:
    """Rates of the steps between two states, in either direction, into and out of each time.

    At the first and the last time the one step counts twice. (T, S, S)
    """
    n_times, s = distinct.codes.shape[1], distinct.n_states
    rates = _rates(_steps(distinct))[:, :s, :s]
    either = rates + rates.swapaxes(1, 2)
    around = np.zeros((n_times, s, s))
    around[1:] += either
    around[:-1] += either
    if n_times > 1:
        around[[0, -1]] *= 2
    return around
