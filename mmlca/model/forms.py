"""Chains of a form other than plain: what they say, in tables and words, and what data they need.

`mmlca.sequences.forms` defines the forms, `mmlca.model.params.FormParams` their parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.model.params import AnyParams, Floats, FormParams, MarkovParams
from mmlca.sequences.forms import PLAIN, bins_of, step_contexts
from mmlca.sequences.patterns import Patterns


def need_plain(params: AnyParams, what: str) -> MarkovParams:
    """Refuse chains of another form, for `what` is about plain chains alone."""
    if isinstance(params, FormParams):
        raise InputError(
            f"{what}, and those of the model are {params.form.title}; fit it without stays, "
            "periods and transitions."
        )
    return params


def need_no_step_covariates(params: AnyParams, what: str, instead: str = "") -> None:
    """Refuse chains whose steps depend on covariates, where `what` does not exist for them."""
    if params.form.transitions:
        advice = instead or "fit the model without transitions"
        raise InputError(
            f"there is no {what} for chains whose steps depend on covariates "
            f"({params.form.transitions}); {advice}."
        )


def too_fine(patterns: Patterns) -> str:
    """Why the data are too few for the form, in a sentence, or "".

    No step falls in a bin or period, or there are more contexts than steps.
    """
    form, s = patterns.form, patterns.n_states
    if form == PLAIN:
        return ""
    steps = patterns.weights @ patterns.token_counts[:, : patterns.layout.first_destination]
    n_contexts, total = form.n_periods * form.n_bins * s, float(steps.sum())
    if total < n_contexts:
        return (
            f"the chains have {n_contexts:,} contexts ({s} states × {form.n_bins} bins of time in "
            f"state × {form.n_periods} periods), more than the {total:,.0f} steps of the patients; "
            "give fewer cut points."
        )
    by_context = steps.reshape(form.n_periods, form.n_bins, -1).sum(axis=2)
    for name, cuts, labels, reached in (
        ("stays", form.stays, form.bins, by_context.sum(axis=0)),
        ("periods", form.periods, form.period_labels, by_context.sum(axis=1)),
    ):
        empty = [label for label, n in zip(labels, reached, strict=True) if n == 0]
        if empty:
            what = "is in a state for" if name == "stays" else "makes a step in"
            return (
                f"{name} = {cuts} has cut points that are too late: nobody {what} {empty[0]} "
                "windows and is seen in the next; give smaller ones."
            )
    return ""


def occurring_cells(patterns: Patterns, patients: NDArray[Any], least: int) -> NDArray[np.bool_]:
    """The cells (C,) that at least `least` patients visit; `patients` (U,) have each pattern.

    Steps that nobody saw are in the gaps between observed states. Where a chain of observed steps
    can fill a gap of the data, it informs no other step. Where none can, as if every second window
    is missing, the gap informs all steps between states that occur.
    """
    visits = patients.astype(float) @ (patterns.token_counts > 0) >= least
    cells = np.asarray(visits[: patterns.n_cells])
    gaps = patterns.gaps[visits[patterns.n_cells :]]
    if not len(gaps):
        return cells
    s = patterns.n_states
    steps = cells.reshape(s + 1, s)  # of a plain chain; row s has the first states
    states = steps.any(axis=0) | np.isin(np.arange(s), gaps[:, [0, 2]])
    possible = steps.copy()
    for before, n_missing, after in gaps.tolist():
        reached = steps[before]
        for _ in range(n_missing):
            reached = reached @ steps[:s]
        if not reached[after]:
            possible[before] |= states
            possible[:s, after] |= states
            if n_missing > 1:
                possible[:s] |= np.outer(states, states)
    return possible.ravel()


LEFT_OUT = "some steps are left out because windows are missing beside them."
"""What a report for the public says instead of `left_out_text`, which counts patients."""


def left_out_text(patterns: Patterns, n: int) -> str:
    """What missing windows cost, in a sentence; "" if no step was left out."""
    n_steps, n_patients = patterns.left_out
    if not n_steps:
        return ""
    return (
        f"{n_steps:,} steps of {n_patients:,} of {n:,} patients are left out because windows are "
        "missing: those into and out of missing windows, and those that follow while it is unknown "
        "for how long the patient has been in the state; plain chains sum over what is missing."
    )


# --- what the chains expect ---------------------------------------------------------------


def state_shares(params: AnyParams, n_times: int, endings: Floats | None = None) -> Floats:
    """The share of each state that each class expects in each window, (K, n_times, S).

    With `endings` (n_times, S), the shares of those in a state in a window whose follow-up ends
    then, it is the share among those who are still followed up.
    """
    rest = None if endings is None else 1 - endings
    if isinstance(params, MarkovParams):
        shares = [params.initial]
        for t in range(n_times - 1):
            here = shares[-1] if rest is None else _followed(shares[-1][:, None], rest[t])[:, 0]
            shares.append(np.einsum("ki,kij->kj", here, params.transition))
        return np.stack(shares, axis=1)
    form = params.form
    # windows in a state from which on nothing changes
    most = min(form.stays[-1], n_times) if form.stays else 1
    bins = bins_of(form.stays, np.arange(1, most + 1))
    period = bins_of(form.periods, np.arange(1, n_times + 1))
    here = np.zeros((params.n_classes, most, params.n_states))
    here[:, 0] = params.initial
    shares = [params.initial]
    for t in range(n_times - 1):
        here = here if rest is None else _followed(here, rest[t])
        leave = here * params.leaving[:, period[t]][:, bins]
        stay, q = here - leave, 0 if form.shared else period[t]
        here = np.zeros_like(here)
        here[:, 1:] = stay[:, :-1]
        here[:, -1] += stay[:, -1]
        here[:, 0] += np.einsum("ki,kij->kj", leave.sum(axis=1), params.destination[:, q])
        shares.append(here.sum(axis=1))
    return np.stack(shares, axis=1)


def _followed(here: Floats, rest: Floats) -> Floats:
    """Shares (K, D, S) among those whose follow-up goes on, as it does for `rest` (S,) of them."""
    stay = here * rest
    total = stay.sum(axis=(1, 2), keepdims=True)
    return np.asarray(np.divide(stay, total, out=here.copy(), where=total > 0))


def step_probabilities(
    params: AnyParams, codes: NDArray[np.int8], patient: NDArray[np.intp], time: NDArray[np.intp]
) -> Floats:
    """Probabilities of the next state at observed steps, (steps, K, S).

    The steps are those of the patients from the windows `time`, counted from 0. Where missing
    windows leave open for how long a patient has been in the state, the least is taken.
    """
    state = codes[patient, time].astype(np.intp)
    if isinstance(params, MarkovParams):
        return np.asarray(params.transition[:, state].swapaxes(0, 1))
    bins, period, _ = step_contexts(codes, params.form)
    steps = params.steps[:, period[time], bins[patient, time], state]
    return np.asarray(steps.swapaxes(0, 1))


def leaving_table(params: AnyParams, states: tuple[str, ...]) -> pd.DataFrame:
    """Probability of leaving each state, by time in state and period.

    Returns
    -------
    DataFrame
        `class`, `state`, `stay` and `period` (in windows, "" if the chains have one), `leaving`.
    """
    if isinstance(params, MarkovParams):
        form = PLAIN
        leaving = 1 - np.diagonal(params.transition, axis1=1, axis2=2)[:, None, None]
    else:
        form, leaving = params.form, params.leaving
    levels = [
        pd.RangeIndex(1, params.n_classes + 1, name="class"),
        pd.Index(form.period_labels, name="period"),
        pd.Index(form.bins, name="stay"),
        pd.Index(states, name="state"),
    ]
    table = pd.DataFrame({"leaving": leaving.ravel()}, pd.MultiIndex.from_product(levels))
    columns = ["class", "state", "stay", "period", "leaving"]
    order = table.reset_index()[columns]
    place = np.arange(len(order)).reshape(leaving.shape).transpose(0, 3, 1, 2).ravel()
    return order.iloc[place].reset_index(drop=True)  # a state's rows stand together


def leaving_text(params: FormParams, k: int, state: int, name: str) -> str:
    """How often a class leaves a state, in words.

    >>> from mmlca.sequences.forms import Form
    >>> params = FormParams(Form((2, 4)), [1], [[1, 0]], [[[[0.31, 0], [0.15, 0], [0.04, 0]]]],
    ...                     [[[[0, 1], [0, 0]]]])
    >>> leaving_text(params, 0, 0, "TNFi")
    '31 % leave TNFi after 1 window, 15 % after 2–3, 4 % after 4+'
    """
    form = params.form
    return leaving_words(name, form.bins, form.period_labels, params.leaving[k, :, :, state])


def leaving_words(
    name: str,
    bins: Sequence[str],
    periods: Sequence[str],
    shares: NDArray[np.float64],
    windows: tuple[str, str] = ("window", "windows"),
) -> str:
    """How often a state is left, in words; `shares` (periods, bins) that are NaN are left out.

    >>> leaving_words("TNFi", ["1", "2–3", "4+"], [""], np.array([[0.31, np.nan, 0.04]]))
    '31 % leave TNFi after 1 window, 4 % after 4+'
    """
    parts: list[str] = []
    for period, row in zip(periods, shares, strict=True):
        words: list[str] = []
        for label, share in zip(bins, row, strict=True):
            if np.isnan(share):
                continue
            leave = "" if parts or words else f" leave {name}"
            unit = "" if parts or words else f" {windows[label != '1']}"
            words.append(f"{_percent(share)}{leave}{f' after {label}{unit}' if label else ''}")
        if words:
            parts.append(", ".join(words) + (f" (in {windows[1]} {period})" if period else ""))
    return "; ".join(parts)


def _percent(share: float) -> str:
    if 0 < share < 0.005:
        return "<1 %"
    return f"{100 * share:.0f} %"
