"""Counts that the tables are based on: patients by time and state, and steps from state to state.

A *step* goes from the state at one time to the state `lag` times later, both observed. Step
i·S + j goes from state i to state j; where first states are counted too, S·S + j is "begins in j".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.errors import InputError
from font.probabilities import probabilities
from mmlca.sequences.forms import Form, layout_of, step_contexts
from mmlca.sequences.type import Sequences

Floats = NDArray[np.float64]


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


class ClusterSteps(NamedTuple):
    """What the patients of a site's clusters do first and next, for K clusters and S states.

    Row i < S of the S + 1 rows has the steps from state i, the last row the first states. `steps`
    (K, S + 1, S) are weighted numbers of steps and of first states, `patients` the different
    patients with such a step, and `leaving` (K, S + 1) those with any step from the state.
    `dispersion` (K, S + 1) is how much more the rates of a row vary when patients are drawn again
    than if all steps were independent: the ratio of the sums of variances, NaN where they do not
    vary. `n_sites` is the number of sites whose counts these are.
    """

    steps: Floats
    patients: Floats
    leaving: Floats
    dispersion: Floats
    n_sites: int = 1

    @property
    def n(self) -> Floats:
        """The steps of each row, (K, S + 1)."""
        n: Floats = self.steps.sum(axis=-1)
        return n


def cluster_steps(data: Sequences, codes: NDArray[np.intp], k: int) -> ClusterSteps:
    """The steps of the patients in each of k clusters, given as `codes` (n,) from 0.

    A rate is a ratio of two sums over patients. With x the steps of a patient from a state, n their
    number and p the rates, drawing m patients again gives the rates the variances
    m/(m − 1)·Σ(x − np)² / (Σn)², up to terms of a higher order. If steps were independent, they
    would be p(1 − p)/Σn. `dispersion` is the ratio of their sums.
    """
    s, table = data.n_states, pattern_steps(data)
    weight = np.zeros((3, k, len(data.patterns)))
    for part, values in zip(weight, (data.weights, data.weights**2, data.weights > 0), strict=True):
        np.add.at(part, (codes, data.patterns.inverse), values)
    mass, square, people = weight
    cells, rows = np.zeros((2, k, s + 1, s)), np.zeros((2, k, s + 1))
    found = ClusterSteps(cells[0], cells[1], rows[0], rows[1])
    for i in range(s + 1):
        x = table[:, i * s : (i + 1) * s].toarray()
        n = x.sum(axis=1)
        found.steps[:, i], found.patients[:, i] = mass @ x, people @ (x > 0)
        found.leaving[:, i] = people @ (n > 0)
        total, m = found.steps[:, i].sum(axis=1), found.leaving[:, i]
        p = np.nan_to_num(rates(found.steps[:, i]))
        away = square @ (x**2).sum(axis=1) - 2 * (p * (square @ (n[:, None] * x))).sum(axis=1)
        away += (square @ n**2) * (p**2).sum(axis=1)
        independent = total * (1 - (p**2).sum(axis=1)) * (m - 1)
        varies = (p.max(axis=1) < 1) & (m > 1)
        found.dispersion[:, i] = np.nan
        np.divide(away * m, independent, out=found.dispersion[:, i], where=varies)
    return found


def together(sites: Sequence[ClusterSteps]) -> ClusterSteps:
    """The steps of the clusters at several sites together."""
    known = [~np.isnan(site.dispersion) for site in sites]
    weight = np.array([site.n * there for site, there in zip(sites, known, strict=True)])
    total = weight.sum(axis=0)
    varies = np.array([np.nan_to_num(site.dispersion) for site in sites])
    dispersion = np.full(total.shape, np.nan)
    np.divide((weight * varies).sum(axis=0), total, out=dispersion, where=total > 0)
    steps, patients, leaving = (
        np.sum([getattr(site, name) for site in sites], axis=0)
        for name in ("steps", "patients", "leaving")
    )
    return ClusterSteps(steps, patients, leaving, dispersion, sum(site.n_sites for site in sites))


def step_counts(data: Sequences, lag: int = 1) -> Floats:
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


def state_counts(data: Sequences) -> Floats:
    """Weighted number of patients in each state at each time, (T, S)."""
    return _by_time(data, data.weights)


def state_patients(data: Sequences) -> NDArray[np.intp]:
    """Number of different patients in each state at each time; weight 0 does not count."""
    return _by_time(data, (data.weights > 0).astype(float)).astype(np.intp)


def _by_time(data: Sequences, weights: Floats) -> Floats:
    table = np.empty((data.shape[1], data.n_states))
    for t, codes in enumerate(data.codes.T):
        seen = codes >= 0
        table[t] = np.bincount(codes[seen], weights=weights[seen], minlength=data.n_states)
    return table


def rates(count: Floats) -> Floats:
    """Counts as shares of their row; NaN in a row without any."""
    return np.where(count.sum(axis=-1, keepdims=True) > 0, probabilities(count), np.nan)


def form_patients(
    s: Sequences, classes: NDArray[np.intp], n_classes: int, form: Form
) -> NDArray[np.intp]:
    """Numbers of different patients that the parameters of chains of a form rest on.

    Parameters
    ----------
    s : Sequences
    classes : (n,)
        The class of each patient, from 0.
    n_classes : int
    form : Form
        Other than plain.

    Returns
    -------
    array
        In the order of `mmlca.model.inference.parameter_names`: for each class the probabilities of
        leaving, which rest on those who leave and on those who stay (the smaller number counts),
        and then for each class the destinations.
    """
    layout = layout_of(form, s.n_states)
    bins, periods, known = step_contexts(s.codes, form)
    patient, time = np.nonzero(known & (s.weights > 0)[:, None])
    before, after = (s.codes[patient, time + i].astype(np.intp) for i in (0, 1))
    leaves = before != after
    context = layout.context_cell(periods[time], bins[patient, time], before) + leaves
    into = layout.destination_cell(periods[time], before, after)[leaves]
    who, cell = np.append(patient, patient[leaves]), np.append(context, into)
    once = np.unique(who * layout.n_cells + cell)
    place = classes[once // layout.n_cells] * layout.n_cells + once % layout.n_cells
    counts = np.bincount(place, minlength=n_classes * layout.n_cells).reshape(n_classes, -1)
    _, leaving, destination = layout.parts
    either = np.minimum(counts[:, leaving], counts[:, leaving - 1])
    return np.concatenate([either.ravel(), counts[:, destination].ravel()])
