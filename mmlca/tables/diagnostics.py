"""Does the model fit? Classes as assigned, states and steps as expected, memory, and stays.

Counts of a class are sums over all patients of their probability of the class. What the model
expects follows from its chains, for the patients and times that were observed. Reference values of
the tests come from sequences drawn from the model itself, as long and with the same gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.model.checks import AnySequences, in_states
from mmlca.model.em import Settings
from mmlca.model.params import MarkovParams, Seed
from mmlca.model.search import fit_from
from mmlca.model.simulate import simulate
from mmlca.sequences.checks import listed
from mmlca.sequences.type import Sequences
from mmlca.tables.event_counts import Counts
from mmlca.tables.suppress import (
    add_totals,
    hidden_grid,
    hide,
    hide_parts,
    hide_rows,
    hides,
    is_small,
)

_LOW, _CONFUSED, _SMALL, _ALIKE = 0.7, 0.2, 0.05, 0.1
_DOUBT = 0.05
_LEAST = 1.0  # memberships that a share of leavers needs
_SHOWN_DIGITS = 2  # decimals of shares where small numbers are hidden
_REFIT = 50  # EM updates on the sequences drawn for the tests
_HALVES = ("first half", "second half")
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
        class, time, state, `observed` and `expected` (shares of those observed then), `n`
        (memberships of those), `residual` (standardised), `patients` (assigned to the class,
        in the state then).
    steps : DataFrame
        class, half (of the times), from, to, `observed` and `expected` rates, `n`, `residual`,
        `patients` (assigned, who make the step).
    stays : DataFrame
        class, state, `duration` (times in the state so far), `leaving` (share who leave next)
        and `expected` (the same at all durations), `n`, `patients` and `leavers` (assigned to
        the class), `left_ever` and `stayed_ever` (the same at any duration). Durations of fewer
        than one membership are left out.
    tests : DataFrame
        What is tested, `statistic`, `typical` (its mean in sequences drawn from the model) and
        `p_value`.
    alike : float
        Smallest distance between two classes (mean total variation of their rows, weighted by
        how often these are visited): 0 if equal.
    shares : array (K,)
    n_sim : int
    """

    classification: pd.DataFrame
    states: pd.DataFrame
    steps: pd.DataFrame
    stays: pd.DataFrame
    tests: pd.DataFrame
    alike: float
    shares: Floats
    n_sim: int

    def cautions(self) -> list[str]:
        """What speaks against the model, in words; empty if nothing does."""
        table = self.classification.drop(columns="patients").to_numpy()
        right = np.diag(table)
        notes = []
        reasons = []
        if (right < _LOW).any():
            low = [f"{k + 1} ({right[k]:.2f})" for k in np.flatnonzero(right < _LOW)]
            reasons.append(f"patients assigned to class {listed(low)} belong there hardly")
        if (self.shares < _SMALL).any():
            small = [f"{k + 1}" for k in np.flatnonzero(self.shares < _SMALL)]
            reasons.append(f"class {listed(small)} has fewer than {100 * _SMALL:.0f} % of all")
        if self.alike < _ALIKE:
            reasons.append(f"two classes are nearly the same (distance {self.alike:.2f})")
        mixed = np.argwhere((table > _CONFUSED) & ~np.eye(len(table), dtype=bool))
        if len(mixed):
            pairs = [f"{a + 1} with {b + 1}" for a, b in mixed]
            reasons.append(f"classes are confused ({listed(pairs)})")
        if reasons:
            notes.append(
                f"{len(table)} classes look too many: {listed(reasons)}; compare a model with one "
                "class less."
            )
        p = self.tests.set_index("test")["p_value"]
        if p["memory beyond one step"] <= _DOUBT:
            notes.append(
                "The next state depends on more than the present one and the class (p = "
                f"{p['memory beyond one step']:.2g}): chains of first order are a "
                "simplification here, or there are more classes."
            )
        if p["length of stays"] <= _DOUBT:
            notes.append(
                "How likely patients leave a state changes with the time they have been in it (p = "
                f"{p['length of stays']:.2g}); the model takes it as constant, so that lengths of "
                "treatment follow from it only roughly."
            )
        if p["states over time"] <= _DOUBT:
            notes.append(
                "The shares of the states over time differ from what the chains expect (p = "
                f"{p['states over time']:.2g}): steps may become more or less likely with time, or "
                "patients may leave observation for reasons that depend on their state."
            )
        return notes

    def shown(self, min_count: int) -> Diagnostics:
        """The same without numbers that rest on, or would reveal, fewer than `min_count`.

        Shares have two decimals, and the columns of memberships and patients are gone.
        """
        if not hides(min_count):
            return self
        sizes = self.classification["patients"].to_numpy()
        hidden = hidden_grid(add_totals(sizes[None, :]), min_count)[0, :-1]
        few = is_small(sizes, min_count)
        classification = self.classification.astype(float)
        classification.loc[hidden, "patients"] = np.nan
        classification.loc[few] = np.nan
        classification = classification.round(_SHOWN_DIGITS)
        states = _hidden(self.states, ["class", "time"], min_count)
        steps = _hidden(self.steps, ["class", "half", "from"], min_count)
        # numbers of patients by duration would tell of single ones by subtraction
        stayed = self.stays.assign(
            stayers=self.stays["patients"] - self.stays["leavers"],
            nobody=np.where(self.stays["patients"] == 0, 1, 0),
        )
        tiny = ["patients", "leavers", "stayers", "nobody"]
        stays = hide(stayed, ["leaving"], tiny, min_count)
        # the share that the chain expects is that of all who leave, whatever the duration
        ever = np.maximum(stayed[["left_ever", "stayed_ever"]], 1)
        few = np.asarray(is_small(ever, min_count).any(axis=1))
        stays = stays.assign(
            leaving=stays["leaving"].round(_SHOWN_DIGITS),
            expected=stays["expected"].round(_SHOWN_DIGITS).mask(few),
        )
        stays = stays.drop(columns=["n", "left_ever", "stayed_ever", *tiny])
        tests = self.tests.assign(**self.tests[["statistic", "typical"]].round(1))
        return Diagnostics(
            classification, states, steps, stays, tests, self.alike, self.shares, self.n_sim
        )


def _hidden(table: pd.DataFrame, by: list[str], min_count: int) -> pd.DataFrame:
    """A table of shares without small ones; half a membership or less of nobody counts as 0.

    The number of memberships behind each row does not show: it changes from one time to the next
    by few patients. Nor does a row behind which there are few of them.
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
    >>> from mmlca import MarkovParams, MixtureMarkov
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
    data = in_states(sequences, model.states_)
    if not data.weights.sum() > 0:
        raise ValueError("there is nothing to compare: no sequences, or every weight is 0.")
    if n_sim < 1:
        raise ValueError(f"n_sim must be at least 1, found {n_sim}.")
    params = model.params_
    posterior = model.predict_proba(data)
    counted = Counts(data, posterior)
    assigned = posterior.argmax(axis=1)
    return Diagnostics(
        _classification(posterior, assigned, data.weights),
        _states(counted, params, assigned),
        _steps(counted, params, assigned),
        _stays(counted, params, assigned),
        _tests(model, data, counted, n_sim, np.random.default_rng(seed)),
        _alike(counted, params),
        np.asarray(params.weights),
        n_sim,
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
    """(observed − expected) in standard errors of a share; missing where nobody is seen.

    What is certain in the model and in the data has the residual 0.
    """
    spread = expected * (1 - expected)
    ok = (n > 0) & (spread > 1e-9)
    certain = (n > 0) & ~ok & (np.abs(observed - expected) < 1e-6)
    result = np.where(certain, 0.0, np.nan)
    np.divide(observed - expected, np.sqrt(spread / np.maximum(n, 1e-12)), out=result, where=ok)
    return result


def expected_states(params: MarkovParams, n_times: int) -> Floats:
    """Share of each state at each time in each class, (K, T, S)."""
    rows = [np.asarray(params.initial)]
    for _ in range(n_times - 1):
        rows.append(np.einsum("ka,kab->kb", rows[-1], params.transition))
    return np.stack(rows, axis=1)


def _states(counts: Counts, params: MarkovParams, assigned: NDArray[np.intp]) -> pd.DataFrame:
    data, (k, t, s) = counts.data, (counts.n_classes, counts.data.shape[1], counts.n_states)
    events = counts.states()
    observed, n = _rates(counts.total(*events, t * s).reshape(k, t, s))
    keys = {"time": list(data.times), "state": list(data.states)}
    patients = counts.different(assigned, *events, t * s)
    return _frame(keys, observed, expected_states(params, t), n, patients)


def _steps(counts: Counts, params: MarkovParams, assigned: NDArray[np.intp]) -> pd.DataFrame:
    k, s = counts.n_classes, counts.n_states
    events = counts.steps()
    observed, n = _rates(counts.total(*events, 2 * s * s).reshape(k, 2, s, s))
    expected = np.broadcast_to(params.transition[:, None], observed.shape)
    states = list(counts.data.states)
    keys = {"half": list(_HALVES), "from": states, "to": states}
    patients = counts.different(assigned, *events, 2 * s * s)
    return _frame(keys, observed, expected, n, patients)


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


def _stays(counts: Counts, params: MarkovParams, assigned: NDArray[np.intp]) -> pd.DataFrame:
    k, t, s = counts.n_classes, counts.data.shape[1], counts.n_states
    patient, event, leaves = counts.durations()
    n = counts.total(patient, event, t * s)
    left = counts.total(patient[leaves], event[leaves], t * s)
    share = np.divide(left, n, out=np.full(n.shape, np.nan), where=n > 0)
    stay = np.diagonal(params.transition, axis1=1, axis2=2)  # (K, S)
    expected = np.broadcast_to(1 - stay[:, None, :], (k, t, s))
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


def _alike(counts: Counts, params: MarkovParams) -> float:
    """The smallest distance between two classes; infinite for a single class."""
    k, s = counts.n_classes, counts.n_states
    patient, event = counts.steps()
    leaving = counts.total(patient, event, 2 * s * s).reshape(k, 2, s, s).sum(axis=(1, 3))
    smallest = np.inf
    for a in range(k):
        for b in range(a + 1, k):
            rows = np.abs(params.transition[a] - params.transition[b]).sum(axis=1) / 2
            first = np.abs(params.initial[a] - params.initial[b]).sum() / 2
            weight = leaving[a] / max(leaving[a].sum(), 1e-12)
            other = leaving[b] / max(leaving[b].sum(), 1e-12)
            steps = float(rows @ (weight + other) / 2)
            smallest = min(smallest, max(steps, float(first)))
    return smallest


# --- tests ----------------------------------------------------------------------------------


def memory_statistic(triples: Floats) -> float:
    """G² of the state before last against the next one, given the present one and the class."""
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


def _state_statistic(counts: Counts, params: MarkovParams) -> float:
    """χ² of the states over time against what the chains expect."""
    k, t, s = counts.n_classes, counts.data.shape[1], counts.n_states
    observed = counts.total(*counts.states(), t * s).reshape(k, t, s)
    expected = expected_states(params, t) * observed.sum(axis=2, keepdims=True)
    ok = expected > 1
    return float((((observed - expected)[ok] / np.sqrt(expected[ok])) ** 2).sum())


def _tests(
    model: Any, data: Sequences, counts: Counts, n_sim: int, rng: np.random.Generator
) -> pd.DataFrame:
    def statistics(these: Counts, params: MarkovParams) -> list[float]:
        with np.errstate(over="ignore"):  # absurdly large weights may make them infinite
            return [
                memory_statistic(these.triples()),
                _stay_statistic(these),
                _state_statistic(these, params),
            ]

    params, unknown, drawn = model.params_, data.codes < 0, []
    allowed = np.zeros(data.n_states * (data.n_states + 1), dtype=bool)
    settings = Settings(float(model.prior), allowed, _REFIT, tol=0, accelerate=True)
    for _ in range(n_sim):
        codes = simulate(params, len(data), data.shape[1], seed=rng)[0].codes.copy()
        codes[unknown] = -1
        alike = codes.view(np.dtype((np.void, codes.shape[1]))).ravel()  # a row is one value
        _, first, number = np.unique(alike, return_index=True, return_inverse=True)
        weights = np.bincount(number, data.weights)
        other = Sequences.from_codes(codes[first], data.states, weights=weights)
        # since the model was fitted to its data, it is fitted to these
        again = fit_from(other.patterns, params, settings)
        posterior = again.posterior[other.patterns.inverse]
        drawn.append(statistics(Counts(other, posterior), again.params))
    value, reference = np.array(statistics(counts, params)), np.array(drawn)
    return pd.DataFrame(
        {
            "test": ["memory beyond one step", "length of stays", "states over time"],
            "statistic": value,
            "typical": reference.mean(axis=0),
            "p_value": (1 + (reference >= value - 1e-9).sum(axis=0)) / (n_sim + 1),
        }
    )
