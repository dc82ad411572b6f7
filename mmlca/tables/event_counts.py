"""Events of patients counted by class: states, steps, pairs of steps and stays, for diagnostics."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmlca.sequences.type import Sequences

Floats = NDArray[np.float64]


class Counts:
    """Sequences and memberships (n, K), and sums of memberships over what patients do.

    `site` (n,) is the site of each patient, where there are several.
    """

    def __init__(self, data: Sequences, posterior: Floats, site: NDArray[np.intp]) -> None:
        self.data, self.codes = data, data.codes.astype(np.intp)
        self.members = posterior * data.weights[:, None]
        self.n_classes, self.n_states = posterior.shape[1], data.n_states
        self.site, self.n_sites = site, int(site.max(initial=0)) + 1

    def total(self, patient: NDArray[np.intp], event: NDArray[np.intp], n_events: int) -> Floats:
        """Memberships of those with each event, (K, n_events)."""
        return np.array(
            [np.bincount(event, m[patient], minlength=n_events) for m in self.members.T],
            dtype=float,  # also where there is no event at all
        )

    def different(
        self, assigned: NDArray[np.intp], patient: NDArray[np.intp], event: NDArray[np.intp], n: int
    ) -> NDArray[np.intp]:
        """Different patients assigned to each class with each event, (K, n)."""
        counts = self.data.weights[patient] > 0
        once = np.unique(patient[counts] * n + event[counts])
        place = assigned[once // n] * n + once % n
        return np.bincount(place, minlength=self.n_classes * n).reshape(self.n_classes, n)

    def states(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Every observed state: whose, and time · S + state."""
        patient, time = np.nonzero(self.codes >= 0)
        return patient, time * self.n_states + self.codes[patient, time]

    def at_sites(self) -> Floats:
        """Memberships by site, time and state, (K, sites, T, S)."""
        n_times, s = self.data.shape[1], self.n_states
        patient, event = self.states()
        event = self.site[patient] * (n_times * s) + event
        total = self.total(patient, event, self.n_sites * n_times * s)
        return total.reshape(-1, self.n_sites, n_times, s)

    def endings(self) -> Floats:
        """Of those in a state at a time, the share not observed any more, (sites, T, S)."""
        n_times, s = self.data.shape[1], self.n_states
        patient, event = self.states()
        last = np.append(patient[1:] != patient[:-1], True)[: len(patient)]
        event = self.site[patient] * (n_times * s) + event
        weights, n = self.data.weights[patient], self.n_sites * n_times * s
        there = np.bincount(event, weights, minlength=n)
        ended = np.bincount(event[last], weights[last], minlength=n)
        share = np.divide(ended, there, out=np.zeros(n), where=there > 0)
        return share.reshape(-1, n_times, s)

    def steps(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Every step: whose, and (half · S + from) · S + to."""
        patient, time = self._all_steps()
        half = (time >= (self.codes.shape[1] - 1) / 2).astype(np.intp)
        before, after = self.codes[patient, time], self.codes[patient, time + 1]
        return patient, (half * self.n_states + before) * self.n_states + after

    def step_times(self) -> NDArray[np.intp]:
        """The time of each step of `steps`, counted from 0."""
        return self._all_steps()[1]

    def _all_steps(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        patient, time = np.nonzero((self.codes[:, :-1] >= 0) & (self.codes[:, 1:] >= 0))
        return patient, time

    def triples(self) -> Floats:
        """Memberships by three states in a row, (K, S, S, S)."""
        s, c = self.n_states, self.codes
        patient, time = np.nonzero((c[:, :-2] >= 0) & (c[:, 1:-1] >= 0) & (c[:, 2:] >= 0))
        event = (c[patient, time] * s + c[patient, time + 1]) * s + c[patient, time + 2]
        return self.total(patient, event, s**3).reshape(-1, s, s, s)

    def durations(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
        """Every step from a stay whose beginning was seen: whose, duration · S + state, leaves?"""
        c, age = self.codes, self._ages()
        patient, time = np.nonzero((age[:, :-1] > 0) & (c[:, 1:] >= 0))
        event = (age[patient, time] - 1) * self.n_states + c[patient, time]
        return patient, event, c[patient, time + 1] != c[patient, time]

    def duration_times(self) -> NDArray[np.intp]:
        """The time of each step of `durations`, counted from 0."""
        return np.nonzero((self._ages()[:, :-1] > 0) & (self.codes[:, 1:] >= 0))[1]

    def _ages(self) -> NDArray[np.intp]:
        """Times in the state so far, where its beginning was seen, (n, T)."""
        c, n_times = self.codes, self.codes.shape[1]
        age = np.zeros(c.shape, dtype=np.intp)  # times in the state so far; 0: not known
        age[:, 0] = c[:, 0] >= 0
        for t in range(1, n_times):
            same = (c[:, t] == c[:, t - 1]) & (c[:, t] >= 0)
            began = (c[:, t] != c[:, t - 1]) & (c[:, t] >= 0) & (c[:, t - 1] >= 0)
            age[:, t] = np.where(same, np.where(age[:, t - 1] > 0, age[:, t - 1] + 1, 0), began)
        return age
