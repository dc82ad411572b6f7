"""Does the model fit? Classes as assigned, states and steps as expected, memory, and stays.

Counts of a class are sums over all patients of their probability of the class. What the model
expects follows from its chains, for those who are still observed. Reference values of the tests
come from sequences drawn from the model itself. Follow-up may end for reasons that depend on the
state: in what is expected, and in what is drawn, it ends after each state and time as often as it
did in the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.model import em
from mmlca.model.forms import need_no_step_covariates, state_shares, step_probabilities
from mmlca.model.inference import check_chains
from mmlca.model.outcomes import holm
from mmlca.model.params import (
    AnyParams,
    AnySequences,
    MarkovParams,
    Seed,
    draw_codes,
    in_states,
)
from mmlca.sequences.checks import listed
from mmlca.sequences.forms import PLAIN, Form, bins_of, layout_of
from mmlca.sequences.type import Sequences
from mmlca.tables.disclosure import (
    add_totals,
    hidden_grid,
    hide,
    hide_parts,
    hide_rows,
    hides,
    is_small,
)
from mmlca.tables.groups import LabelsBySite, SequencesBySite
from mmlca.tables.shared_chains import shared_mixture

_LOW, _CONFUSED, _SMALL, _ALIKE = 0.7, 0.2, 0.05, 0.1
_DOUBT = 0.05
_LEAST = 1.0  # memberships that a share of leavers needs
_SHOWN_DIGITS = 2  # decimals of shares where small numbers are hidden
_REFIT = 50  # EM updates on the sequences drawn for the tests
_HALVES = ("first half", "second half")
N_TESTS = 4
_STAYS = (2, 4)  # cut points of the chains by time in state whose gain is given
_WORDS = {
    "memory beyond one step": "The next state depends on more than the present one and the class "
    "({}): first-order chains are a simplification, or there are more classes.",
    "length of stays": "The probability of leaving a state changes with the time spent in it ({}); "
    "the model assumes that it is constant, so it describes lengths of treatment only roughly.",
    "states over time": "The shares of the states over time differ from what the chains expect of "
    "those still observed ({}).",
    "steps by half": "Transition probabilities differ between the first and the second half of the "
    "time ({}); the model assumes that they are constant.",
}
_RICHER = {
    "memory beyond one step": "second-order chains",
    "length of stays": f"chains by time in state ({', '.join(Form(_STAYS).bins)} windows)",
    "steps by half": "chains with other probabilities in each half",
}
_SIZES = ((0.1, "very small"), (0.3, "small"), (0.5, "medium"))  # Cohen's words for effects below
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """The result of `diagnose`.

    Parameters
    ----------
    classification : DataFrame
        One row per assigned class: `patients` assigned to it, and their mean probability of
        each class; the diagonal should be high.
    states : DataFrame
        class, time, state, `observed` and `expected` (shares of those observed then, if follow-up
        ends after each state and time as often as it does), `n`
        (memberships of those), `residual` (standardised), `patients` (assigned to the class,
        in the state then).
    steps : DataFrame
        class, half (of the times), from, to, `observed` and `expected` rates, `n`, `residual`,
        `patients` (assigned, who make the step).
    stays : DataFrame
        class, state, `duration` (times in the state so far), `leaving` (share who leave next)
        and `expected` (the same at all durations in plain chains), `n`, `patients` and `leavers`
        (assigned to the class), `left_ever` and `stayed_ever` (the same at any duration).
        Durations of fewer than one membership are left out.
    tests : DataFrame
        What is tested, `statistic`, `typical` (its mean in sequences drawn from the model),
        `effect` (its size: √((statistic − typical)/n) for n events, at least 0; Cohen called 0.1
        small, 0.3 medium and 0.5 large), `bic_gain`, `p_value`, `p_holm`, adjusted for the number
        of tests by Holm's method, and `events`: how many (n) the statistic is about.

        `bic_gain` is by how much richer chains improve the BIC while memberships stay: chains of
        second order, by time in state (1, 2–3 and 4+ windows), or with other probabilities in each
        half. It is the likelihood-ratio statistic less the number of further probabilities, of
        cells that occur, times log(number of patients). Missing where there are no such chains,
        and for models whose chains are not plain.
    alike : float
        Smallest distance between two classes (mean total variation of their rows, weighted by
        how often these are visited): 0 if equal.
    shares : array (K,)
    drawn : array (n_sim, 4)
        The statistics of the sequences drawn from the model, in the order of `tests`.
    """

    classification: pd.DataFrame
    states: pd.DataFrame
    steps: pd.DataFrame
    stays: pd.DataFrame
    tests: pd.DataFrame
    alike: float
    shares: Floats
    drawn: Floats

    @property
    def n_sim(self) -> int:
        """Number of sets of sequences drawn from the model."""
        return len(self.drawn)

    def cautions(self) -> list[str]:
        """Evidence against the model, in sentences; empty if there is none."""
        table = self.classification.drop(columns="patients").to_numpy()
        right = np.diag(table)
        notes = []
        reasons = []
        if (right < _LOW).any():
            low = [f"{right[k]:.2f} in class {k + 1}" for k in np.flatnonzero(right < _LOW)]
            reasons.append(f"the mean probability of the assigned class is low ({listed(low)})")
        if (self.shares < _SMALL).any():
            small = [f"{k + 1}" for k in np.flatnonzero(self.shares < _SMALL)]
            have = "class {} has" if len(small) == 1 else "classes {} have"
            few = f"fewer than {100 * _SMALL:.0f} % of the patients"
            reasons.append(f"{have.format(listed(small))} {few}")
        if self.alike < _ALIKE:
            reasons.append(f"two classes are nearly the same (distance {self.alike:.2f})")
        mixed = np.argwhere((table > _CONFUSED) & ~np.eye(len(table), dtype=bool))
        if len(mixed):
            pairs = [f"{a + 1} with {b + 1}" for a, b in mixed]
            reasons.append(f"classes are hard to distinguish ({listed(pairs)})")
        if reasons:
            notes.append(
                f"{len(table)} classes may be too many: {listed(reasons)}; compare with a model "
                "that has one class fewer."
            )
        return [*notes, *cautions_of_tests(self.tests)]

    def shown(self, min_count: int) -> Diagnostics:
        """The same without numbers that are based on, or would reveal, fewer than `min_count`.

        Shares have two decimals, and the columns of memberships and patients are dropped; tables
        without these columns stay.
        """
        if not hides(min_count) or "patients" not in self.states:
            return self
        sizes = self.classification["patients"].to_numpy()
        hidden = hidden_grid(add_totals(sizes[None, :]), min_count)[0, :-1]
        few = is_small(sizes, min_count)
        classification = self.classification.astype(float)
        classification.loc[hidden, "patients"] = np.nan
        classification.loc[few] = np.nan
        classification = classification.round(_SHOWN_DIGITS)
        states = _hide_shares(self.states, ["class", "time"], min_count)
        steps = _hide_shares(self.steps, ["class", "half", "from"], min_count)
        # numbers of patients by duration would reveal single ones by subtraction
        stayed = self.stays.assign(
            stayers=self.stays["patients"] - self.stays["leavers"],
            nobody=np.where(self.stays["patients"] == 0, 1, 0),
        )
        tiny = ["patients", "leavers", "stayers", "nobody"]
        stays = hide(stayed, ["leaving"], tiny, min_count)
        # the share that the chain expects is that of all who leave, whatever the duration
        ever = np.maximum(stayed[["left_ever", "stayed_ever"]], 1)
        few = np.asarray(is_small(ever, min_count).any(axis=1))
        # where it depends on the duration, that of all who leave after so long, or longer
        varies = stayed.groupby(["class", "state"])["expected"].transform("nunique") > 1
        few |= (varies & stays["leaving"].isna()).to_numpy()
        stays = stays.assign(
            leaving=stays["leaving"].round(_SHOWN_DIGITS),
            expected=stays["expected"].round(_SHOWN_DIGITS).mask(few),
        )
        stays = stays.drop(columns=["n", "left_ever", "stayed_ever", *tiny])
        digits = {"statistic": 1, "typical": 1, "effect": _SHOWN_DIGITS, "bic_gain": 0}
        return replace(
            self,
            classification=classification,
            states=states,
            steps=steps,
            stays=stays,
            tests=self.tests.round(digits),
            shares=self.shares.round(_SHOWN_DIGITS),
            drawn=self.drawn.round(1),
        )


def cautions_of_tests(tests: pd.DataFrame) -> list[str]:
    """Evidence of tests against the model, in sentences; empty if there is none.

    With many patients everything is significant. Sentences say how large the effect is and what
    richer chains would gain; there is none where they gain nothing by their BIC.
    """
    notes = []
    doubtful = (tests["p_holm"] <= _DOUBT) & ~(tests["bic_gain"] <= 0)
    for row in tests[doubtful].to_dict("records"):
        effect = row["effect"]
        size = next((word for limit, word in _SIZES if effect < limit), "large")
        parts = [f"a {size} effect: {effect:.2f}"]
        if row["bic_gain"] > 0:
            gain = f"{row['bic_gain']:,.0f}" if row["bic_gain"] >= 1 else "less than 1"
            parts.append(f"{_RICHER[row['test']]} would improve the BIC by {gain}")
        parts.append(f"adjusted p = {row['p_holm']:.2g}")
        notes.append(_WORDS[row["test"]].format("; ".join(parts)))
    return notes


def _hide_shares(table: pd.DataFrame, by: list[str], min_count: int) -> pd.DataFrame:
    """A table of shares without small ones.

    In a row without patients half a membership or less counts as 0. The number of memberships in
    each row is not shown: it changes from one time to the next by few patients. Rows based on few
    patients are not shown either.
    """
    count = table["observed"].fillna(0) * table["n"]
    nobody = (table["patients"] == 0) & (count < 0.5)
    observed = table["observed"].mask(nobody & table["observed"].notna(), 0.0)
    shares = (x.to_numpy(dtype=float) for x in (observed, table["expected"], table["n"]))
    table = table.assign(
        observed=observed, residual=_residual(*shares), count=count.mask(nobody, 0.0)
    )
    numbers = ["observed", "expected", "residual"]
    table = hide_parts(table, by, numbers, min_count, patients=["patients", "count"])
    most = table.groupby(by)["patients"].transform("max")
    few = is_small(np.maximum(most, 1), min_count) & (table["n"] > 0)
    table = table.assign(
        observed=table["observed"].round(_SHOWN_DIGITS),
        expected=table["expected"].round(_SHOWN_DIGITS),
        residual=table["residual"].round(1),
    )
    table = hide_rows(table, [name for name in table if name not in numbers], few)
    return table.drop(columns=["count", "n", "patients"])


def diagnose(
    model: Any, sequences: AnySequences, *, n_sim: int = 99, seed: Seed = None
) -> Diagnostics:
    """Compare a fitted model with the sequences.

    Parameters
    ----------
    model : fitted MixtureMarkov
    sequences : the sequences it was fitted to
    n_sim : int
        Sets of sequences drawn from the model for the tests; p-values are at least
        1/(n_sim + 1).
    seed : int or Generator, optional

    Returns
    -------
    Diagnostics

    Examples
    --------
    >>> from mmlca import MarkovParams, MixtureMarkov, simulate
    >>> chains = MarkovParams([0.5, 0.5], [[1, 0], [0, 1]], [[[0.9, 0.1], [0.5, 0.5]],
    ...                                                      [[0.5, 0.5], [0.1, 0.9]]])
    >>> data, _ = simulate(chains, 500, 12, seed=1)
    >>> found = diagnose(MixtureMarkov(2, seed=1).fit(data), data, n_sim=19, seed=1)
    >>> found.classification.round(2)[[1, 2]]
                1     2
    assigned
    1         1.0   0.0
    2         0.0   1.0
    """
    check_chains(model, "diagnose")
    need_no_step_covariates(model.params_, "diagnosis")
    data = in_states(sequences, model.states_)
    posterior = model.predict_proba(data)
    chains = _Chains(model.params_, model.params_.weights[None], float(model.prior))
    one = np.zeros(len(data), dtype=np.intp)
    return _compare(chains, Counts(data, posterior, one), posterior, n_sim, seed)


def diagnose_clusters(
    sequences: SequencesBySite,
    clusters: LabelsBySite,
    *,
    form: Form = PLAIN,
    n_sim: int = 99,
    seed: Seed = None,
) -> Diagnostics:
    """Compare clusters of several sites with the sequences: those of an ensemble, or refined ones.

    Clusters stand for a model: Markov chains that all sites share, with proportions of each site's
    own. It is fitted by EM from the clusters to convergence, and then compared as in `diagnose`,
    all sites together. If it does not fit, neither do the clusters' chains before convergence.

    Parameters
    ----------
    sequences : {site: Sequences}
    clusters : {site: cluster of each patient}
    form : Form
        Of the chains, such as `model.form`.
    n_sim, seed
        As in `diagnose`.
    """
    mixture = shared_mixture(sequences, clusters, form)
    posterior = mixture.memberships()
    chains = _Chains(mixture.params, mixture.run.shares, 0.0)
    return _compare(chains, Counts(mixture.data, posterior, mixture.site), posterior, n_sim, seed)


def add_up_tests(tests: Sequence[pd.DataFrame], drawn: Sequence[Floats]) -> pd.DataFrame:
    """The tests of all sites together: statistics are added up, and so are those of drawn sets.

    So are the gains: they are those of richer chains of each site's own.
    """
    value, events, gain = (
        np.sum([table[name] for table in tests], axis=0)
        for name in ("statistic", "events", "bic_gain")
    )
    return _test_table(value, np.sum(drawn, axis=0), events, gain)


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


class _Chains(NamedTuple):
    """Chains, the proportions of each site (sites, K), and the prior that they were fitted with."""

    params: AnyParams
    shares: Floats
    prior: float


def _compare(
    chains: _Chains, counts: Counts, posterior: Floats, n_sim: int, seed: Seed
) -> Diagnostics:
    data, params = counts.data, chains.params
    if not data.weights.sum() > 0:
        raise InputError("there is nothing to compare: no sequences, or every weight is 0.")
    if n_sim < 1:
        raise InputError(f"n_sim must be at least 1, found {n_sim}.")
    assigned = posterior.argmax(axis=1)
    drawn = _drawn_statistics(chains, counts, n_sim, np.random.default_rng(seed))
    return Diagnostics(
        _classification(posterior, assigned, data.weights),
        _states(counts, params, assigned),
        _steps(counts, params, assigned),
        _stays(counts, params, assigned),
        _test_table(
            np.array(_statistics(counts, params)), drawn, _n_events(counts), _gains(counts, params)
        ),
        _alike(counts, params),
        np.asarray(params.weights),
        drawn,
    )


def _classification(posterior: Floats, assigned: NDArray[np.intp], weights: Floats) -> pd.DataFrame:
    k = posterior.shape[1]
    rows = np.full((k, k), np.nan)
    for c in range(k):
        mine = (assigned == c) & (weights > 0)
        if mine.any():
            rows[c] = np.average(posterior[mine], axis=0, weights=weights[mine])
    names = pd.RangeIndex(1, k + 1)
    table = pd.DataFrame(rows, names.rename("assigned"), names)
    patients = np.bincount(assigned[weights > 0], minlength=k)
    table.insert(0, "patients", patients)
    return table


# --- tables ---------------------------------------------------------------------------------


def _rates(count: Floats) -> tuple[Floats, Floats]:
    """Shares of the last axis, and their total repeated along it."""
    total = np.broadcast_to(count.sum(axis=-1, keepdims=True), count.shape)
    share = np.divide(count, total, out=np.full(count.shape, np.nan), where=total > 0)
    return share, total


def _residual(observed: Floats, expected: Floats, n: Floats) -> Floats:
    """(observed − expected) in standard errors of a share; missing where nobody is observed.

    What is certain in the model and in the data has the residual 0.
    """
    spread = expected * (1 - expected)
    ok = (n > 0) & (spread > 1e-9)
    certain = (n > 0) & ~ok & (np.abs(observed - expected) < 1e-6)
    result = np.where(certain, 0.0, np.nan)
    np.divide(observed - expected, np.sqrt(spread / np.maximum(n, 1e-12)), out=result, where=ok)
    return result


def _expected_counts(counts: Counts, params: AnyParams) -> Floats:
    """Memberships expected by time and state, given how many are observed at each, (K, T, S)."""
    there = counts.at_sites().sum(axis=3, keepdims=True)
    n_times = counts.data.shape[1]
    shares = np.stack([state_shares(params, n_times, ends) for ends in counts.endings()], axis=1)
    expected: Floats = (there * shares).sum(axis=1)
    return expected


def _states(counts: Counts, params: AnyParams, assigned: NDArray[np.intp]) -> pd.DataFrame:
    data, (k, t, s) = counts.data, (counts.n_classes, counts.data.shape[1], counts.n_states)
    events = counts.states()
    observed, n = _rates(counts.total(*events, t * s).reshape(k, t, s))
    expected, _ = _rates(_expected_counts(counts, params))
    unseen = np.isnan(expected)  # at a time at which nobody is observed
    expected[unseen] = state_shares(params, t)[unseen]
    keys = {"time": list(data.times), "state": list(data.states)}
    patients = counts.different(assigned, *events, t * s)
    return _frame(keys, observed, expected, n, patients)


def _steps(counts: Counts, params: AnyParams, assigned: NDArray[np.intp]) -> pd.DataFrame:
    k, s = counts.n_classes, counts.n_states
    events = counts.steps()
    observed, n = _rates(counts.total(*events, 2 * s * s).reshape(k, 2, s, s))
    expected = _expected_rates(counts, params)
    states = list(counts.data.states)
    keys = {"half": list(_HALVES), "from": states, "to": states}
    patients = counts.different(assigned, *events, 2 * s * s)
    return _frame(keys, observed, expected, n, patients)


def _expected_rates(counts: Counts, params: AnyParams) -> Floats:
    """Rates of steps that the chains expect in each half, (K, 2, S, S).

    Of chains other than plain it is the mean over the observed steps, by membership; where there is
    none, over windows and periods.
    """
    k, s = counts.n_classes, counts.n_states
    if isinstance(params, MarkovParams):
        return np.broadcast_to(params.transition[:, None], (k, 2, s, s))
    patient, event = counts.steps()
    place = event // s  # half and state
    chance = step_probabilities(params, counts.data.codes, patient, counts.step_times())
    rates = np.empty((k, 2 * s, s))
    for c in range(k):
        members = counts.members[patient, c]
        n = np.bincount(place, members, 2 * s)[:, None]
        sums = [np.bincount(place, members * chance[:, c, j], 2 * s) for j in range(s)]
        usual = np.tile(params.steps[c].mean(axis=(0, 1)), (2, 1))
        rates[c] = np.divide(np.array(sums).T, n, out=usual, where=n > 0)
    return rates.reshape(k, 2, s, s)


def _expected_leaving(
    counts: Counts, params: AnyParams, patient: NDArray[np.intp], event: NDArray[np.intp]
) -> Floats:
    """Shares who leave next that the chains expect by duration and state, (K, T, S)."""
    k, t, s = counts.n_classes, counts.data.shape[1], counts.n_states
    if isinstance(params, MarkovParams):
        stay = np.diagonal(params.transition, axis1=1, axis2=2)
        return np.broadcast_to(1 - stay[:, None, :], (k, t, s))
    time = counts.duration_times()
    chance = step_probabilities(params, counts.data.codes, patient, time)
    leave = 1 - chance[np.arange(len(patient)), :, event % s]
    n = counts.total(patient, event, t * s)
    sums = [np.bincount(event, counts.members[patient, c] * leave[:, c], t * s) for c in range(k)]
    share = np.divide(sums, n, out=np.full(n.shape, np.nan), where=n > 0)
    return np.asarray(share).reshape(k, t, s)


def _frame(
    keys: dict[str, list[str]], observed: Floats, expected: Floats, n: Floats, patients: Any
) -> pd.DataFrame:
    classes = list(range(1, len(observed) + 1))
    index = pd.MultiIndex.from_product([classes, *keys.values()], names=["class", *keys])
    columns = {
        "observed": observed.ravel(),
        "expected": expected.ravel(),
        "n": n.ravel(),
        "residual": _residual(observed, expected, n).ravel(),
        "patients": patients.ravel(),
    }
    return pd.DataFrame(columns, index=index).reset_index()


def _stays(counts: Counts, params: AnyParams, assigned: NDArray[np.intp]) -> pd.DataFrame:
    k, t, s = counts.n_classes, counts.data.shape[1], counts.n_states
    patient, event, leaves = counts.durations()
    n = counts.total(patient, event, t * s)
    left = counts.total(patient[leaves], event[leaves], t * s)
    share = np.divide(left, n, out=np.full(n.shape, np.nan), where=n > 0)
    expected = _expected_leaving(counts, params, patient, event)
    names = [list(range(1, k + 1)), list(counts.data.states), list(range(1, t + 1))]
    index = pd.MultiIndex.from_product(names, names=["class", "state", "duration"])
    columns = {
        "leaving": share,
        "expected": expected,
        "n": n,
        "patients": counts.different(assigned, patient, event, t * s),
        "leavers": counts.different(assigned, patient[leaves], event[leaves], t * s),
    }
    for name, rows in (("left_ever", leaves), ("stayed_ever", ~leaves)):
        ever = counts.different(assigned, patient[rows], event[rows] % s, s)
        columns[name] = np.broadcast_to(ever[:, None, :], (k, t, s))
    by_state = {c: v.reshape(k, t, s).transpose(0, 2, 1).ravel() for c, v in columns.items()}
    frame = pd.DataFrame(by_state, index=index).reset_index()
    return frame[frame["n"] >= _LEAST].reset_index(drop=True)


def _alike(counts: Counts, params: AnyParams) -> float:
    """The smallest distance between two classes; infinite for a single class."""
    k, s = counts.n_classes, counts.n_states
    patient, event = counts.steps()
    leaving = counts.total(patient, event, 2 * s * s).reshape(k, 2, s, s).sum(axis=(1, 3))
    if isinstance(params, MarkovParams):
        chains = params.transition
    else:  # on average over the contexts
        chains = params.steps.mean(axis=(1, 2))
    smallest = np.inf
    for a in range(k):
        for b in range(a + 1, k):
            rows = np.abs(chains[a] - chains[b]).sum(axis=1) / 2
            first = np.abs(params.initial[a] - params.initial[b]).sum() / 2
            weight = leaving[a] / max(leaving[a].sum(), 1e-12)
            other = leaving[b] / max(leaving[b].sum(), 1e-12)
            steps = float(rows @ (weight + other) / 2)
            smallest = min(smallest, max(steps, float(first)))
    return smallest


# --- tests ----------------------------------------------------------------------------------


def dependence(triples: Floats) -> float:
    """G² of the second axis against the last, given the third and the class, (K, …, S, S).

    With the state before last on the second axis it is the memory beyond one step, with the half of
    the time the change of steps with time.
    """
    pairs, steps = triples.sum(axis=3, keepdims=True), triples.sum(axis=1, keepdims=True)
    middle = triples.sum(axis=(1, 3), keepdims=True)
    seen = triples > 0
    observed, before, after, between = (  # logarithms, since products of tiny shares underflow
        np.log(np.broadcast_to(count, triples.shape)[seen])
        for count in (triples, pairs, steps, middle)
    )
    return float(2 * (triples[seen] * (observed + between - before - after)).sum())


def _stay_statistic(counts: Counts) -> float:
    """χ² of leaving against the duration, given the state and the class."""
    t, s = counts.data.shape[1], counts.n_states
    patient, event, leaves = counts.durations()
    n = counts.total(patient, event, t * s).reshape(-1, t, s)
    left = counts.total(patient[leaves], event[leaves], t * s).reshape(-1, t, s)
    total = n.sum(axis=1, keepdims=True)
    rate = np.divide(left.sum(axis=1, keepdims=True), total, out=np.zeros_like(total),
                     where=total > 0)  # fmt: skip
    spread = n * rate * (1 - rate)
    ok = spread > 1
    return float((((left - n * rate)[ok] / np.sqrt(spread[ok])) ** 2).sum())


def _state_statistic(counts: Counts, params: AnyParams) -> float:
    """χ² of the states over time against what the chains expect of those still observed."""
    observed = counts.at_sites().sum(axis=1)
    expected = _expected_counts(counts, params)
    ok = expected > 1
    return float((((observed - expected)[ok] / np.sqrt(expected[ok])) ** 2).sum())


def _statistics(counts: Counts, params: AnyParams) -> list[float]:
    """The four statistics, in the order of `_WORDS`."""
    s = counts.n_states
    halves = counts.total(*counts.steps(), 2 * s * s).reshape(-1, 2, s, s)
    with np.errstate(over="ignore"):  # absurdly large weights may make them infinite
        return [
            dependence(counts.triples()),
            _stay_statistic(counts),
            _state_statistic(counts, params),
            dependence(halves),
        ]


def _gains(counts: Counts, params: AnyParams) -> Floats:
    """How much richer chains improve the BIC, in the order of `_WORDS`; NaN without any."""
    if not isinstance(params, MarkovParams):
        return np.full(N_TESTS, np.nan)
    s = counts.n_states
    patient, event, leaves = counts.durations()
    bins = Form(_STAYS).n_bins
    duration, state = divmod(event, s)
    place = (bins_of(_STAYS, duration + 1) * s + state) * 2 + leaves
    stays = counts.total(patient, place, bins * s * 2).reshape(-1, bins, s, 2)
    halves = counts.total(*counts.steps(), 2 * s * s).reshape(-1, 2, s, s)
    n = float(counts.data.weights.sum())
    with np.errstate(over="ignore"):  # absurdly large weights may make them infinite
        return np.array(
            [bic_gain(counts.triples(), n), bic_gain(stays, n), np.nan, bic_gain(halves, n)]
        )


def bic_gain(table: Floats, n: float) -> float:
    """By how much the BIC of n patients is better if the last axis depends on the second, too.

    Shares on the last axis of the table (K, A, S, B) depend on the class and the state, or also on
    the second axis. Cells that occur in no class have no probability to estimate.
    """
    seen = table.sum(axis=0) > 0
    richer, plain = (
        np.maximum(cells.sum(axis=-1) - 1, 0).sum() for cells in (seen, seen.any(axis=0))
    )
    return float(dependence(table) - len(table) * (richer - plain) * np.log(n))


def _n_events(counts: Counts) -> Floats:
    """How many events each of the four statistics is about, by weight."""
    weights = counts.data.weights
    return np.array(
        [
            counts.triples().sum().round(6),  # summed over memberships
            weights[counts.durations()[0]].sum(),
            weights[counts.states()[0]].sum(),
            weights[counts.steps()[0]].sum(),
        ]
    )


def _drawn_statistics(
    chains: _Chains, counts: Counts, n_sim: int, rng: np.random.Generator
) -> Floats:
    """The statistics of sets of sequences drawn from the model and fitted again, (n_sim, 4)."""
    params, data = chains.params, counts.data
    layout = layout_of(params.form, data.n_states)
    settings = em.Settings(chains.prior, layout.closed, _REFIT, tol=0, accelerate=True)
    cells, endings = em.cells_of(params), counts.endings()
    drawn = []
    for _ in range(n_sim):
        codes = _drawn(chains, counts, endings, rng)
        keys = np.hstack([codes, counts.site.astype(np.int32)[:, None].view(np.int8)])
        alike = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1]))).ravel()
        _, first, number = np.unique(alike, return_index=True, return_inverse=True)
        site, weights = counts.site[first], np.bincount(number, data.weights).astype(float)
        other = Sequences.from_codes(codes[first], data.states, weights=weights)
        table = other.patterns_of(params.form).by_group(site, counts.n_sites, weights)
        # since the model was fitted to its data, it is fitted to these
        again = em.run_em(table, cells, chains.shares, settings, zeros=cells == 0)
        found = em.params_of(again.cells, again.overall, layout)
        posterior = em.e_step(table, found, again.shares).posterior[table.inverse]
        drawn.append(_statistics(Counts(other, posterior, site), found))
    return np.array(drawn)


def _test_table(value: Floats, drawn: Floats, events: Floats, gain: Floats) -> pd.DataFrame:
    """The table of tests, from the statistics and those of sequences drawn from the model."""
    typical = drawn.mean(axis=0)
    p = (1 + (drawn >= value - 1e-9).sum(axis=0)) / (len(drawn) + 1)
    with np.errstate(invalid="ignore"):
        excess = np.maximum(value - typical, 0.0) / np.maximum(events, 1e-300)
    return pd.DataFrame(
        {
            "test": list(_WORDS),
            "statistic": value,
            "typical": typical,
            "effect": np.sqrt(excess),
            "bic_gain": gain,
            "p_value": p,
            "p_holm": holm(p.tolist()),
            "events": events,
        }
    )


def _drawn(
    chains: _Chains, counts: Counts, endings: Floats, rng: np.random.Generator
) -> NDArray[np.int8]:
    """Codes of as many patients at each site, whose follow-up ends as often after each state.

    States inside the follow-up are missing as in the data: patients in the order of their lengths
    have the gaps of the patients who have them in the data.
    """
    data, n_times = counts.data, counts.data.shape[1]
    codes = np.full(data.codes.shape, -1, dtype=np.int8)
    for h in range(counts.n_sites):
        here = np.flatnonzero((counts.site == h) & (data.codes >= 0).any(axis=1))
        if not len(here):
            continue
        layout = layout_of(chains.params.form, data.n_states)
        share = em.params_of(em.cells_of(chains.params), chains.shares[h], layout)
        drawn, _ = draw_codes(share, np.full(len(here), n_times), rng)
        ends = endings[h][np.arange(n_times), drawn.astype(np.intp)]
        over = rng.random(drawn.shape) < ends
        over[:, -1] = True
        length = over.argmax(axis=1) + 1
        seen = data.codes[here] >= 0
        last = n_times - seen[:, ::-1].argmax(axis=1)
        time = np.arange(n_times)
        gaps = ~seen & (time < last[:, None])
        if gaps.any():
            missing = np.zeros_like(gaps)
            missing[np.argsort(length, kind="stable")] = gaps[np.argsort(last, kind="stable")]
            drawn[missing & (time < length[:, None] - 1)] = -1
        drawn[time >= length[:, None]] = -1
        codes[here] = drawn
    return codes
