"""Counts that the tables are based on: patients by time and state, and steps from state to state.

A *step* goes from the state at one time to the state `lag` times later, both observed. Step
i·S + j goes from state i to state j; where first states are counted too, S·S + j is "begins in j".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.errors import InputError
from font.probabilities import probabilities
from mmlca.sequences.type import Sequences


class Steps(NamedTuple):
    """Every step of every patient: whose it is (position in the sequences), and which."""

    patient: NDArray[np.intp]
    step: NDArray[np.intp]


def steps(data: Sequences, lag: int = 1) -> Steps:
    """All steps of all patients."""
    if lag < 1:
        raise InputError(f"lag must be at least 1, found {lag}.")
    before, after = data.codes[:, :-lag], data.codes[:, lag:]
    patient, time = np.nonzero((before >= 0) & (after >= 0))
    step = before[patient, time].astype(np.intp) * data.n_states + after[patient, time]
    return Steps(patient, step)


def pattern_steps(data: Sequences) -> Any:
    """Steps and first states of each of the sequences' patterns, sparse (U, S·(S + 1))."""
    from scipy.sparse import csr_array

    table, n_steps = data.patterns, data.n_states * (data.n_states + 1)
    counts = (table.times[table.tokens], table.cell[table.tokens], table.indptr)
    return csr_array(counts, shape=(len(table), n_steps + len(table.gaps)))[:, :n_steps]


def step_counts(data: Sequences, lag: int = 1) -> NDArray[np.float64]:
    """Weighted number of steps from each state to each other one, (S, S)."""
    s = data.n_states
    patient, step = steps(data, lag)
    count = np.bincount(step, weights=data.weights[patient], minlength=s * s)
    return count.astype(float).reshape(s, s)


def step_patients(data: Sequences, lag: int = 1) -> NDArray[np.intp]:
    """Number of different patients who make each step, (S, S); weight 0 does not count."""
    s = data.n_states
    patient, step = steps(data, lag)
    return _different_patients(data, patient, step, s * s).reshape(s, s)


def leaving_patients(data: Sequences, lag: int = 1) -> NDArray[np.intp]:
    """Number of different patients with a step from each state, (S,); weight 0 does not count."""
    patient, step = steps(data, lag)
    return _different_patients(data, patient, step // data.n_states, data.n_states)


def _different_patients(
    data: Sequences, patient: NDArray[np.intp], event: NDArray[np.intp], n_events: int
) -> NDArray[np.intp]:
    """How many patients have each event at least once."""
    counted = data.weights[patient] > 0
    each_once = np.unique(patient[counted] * n_events + event[counted]) % n_events
    return np.bincount(each_once, minlength=n_events)


def state_counts(data: Sequences) -> NDArray[np.float64]:
    """Weighted number of patients in each state at each time, (T, S)."""
    return _by_time(data, data.weights)


def state_patients(data: Sequences) -> NDArray[np.float64]:
    """Number of different patients in each state at each time; weight 0 does not count."""
    return _by_time(data, (data.weights > 0).astype(float))


def _by_time(data: Sequences, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    table = np.empty((data.shape[1], data.n_states))
    for t, codes in enumerate(data.codes.T):
        seen = codes >= 0
        table[t] = np.bincount(codes[seen], weights=weights[seen], minlength=data.n_states)
    return table


def rates(count: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts as shares of their row; NaN in a row without any."""
    return np.where(count.sum(axis=-1, keepdims=True) > 0, probabilities(count), np.nan)
