"""Chains of a form other than plain: what they say, in tables and words, and what data they need.

`mmlca.sequences.forms` defines the forms, `mmlca.model.params.FormParams` their parameters.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from font.errors import InputError
from mmlca.model.params import AnyParams, Floats, FormParams, MarkovParams
from mmlca.sequences.forms import PLAIN, bins_of
from mmlca.sequences.patterns import Patterns


def need_plain(params: AnyParams, what: str) -> MarkovParams:
    """Refuse chains of another form, for `what` is about plain chains alone."""
    if isinstance(params, FormParams):
        raise InputError(
            f"{what}, and those of the model are {params.form.title}; fit it without stays and "
            "periods."
        )
    return params


def check_reached(patterns: Patterns) -> None:
    """Refuse bins and periods that no step falls in, and more contexts than steps."""
    form, s = patterns.form, patterns.n_states
    if form == PLAIN:
        return
    steps = patterns.weights @ patterns.token_counts[:, : patterns.layout.first_destination]
    n_contexts, total = form.n_periods * form.n_bins * s, float(steps.sum())
    if total < n_contexts:
        raise InputError(
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
            raise InputError(
                f"{name} = {cuts} has cut points that are too late: nobody {what} {empty[0]} "
                "windows and is seen in the next; give smaller ones."
            )


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


def state_shares(params: AnyParams, n_times: int) -> Floats:
    """The share of each state that each class expects in each window, (K, n_times, S)."""
    if isinstance(params, MarkovParams):
        shares = [params.initial]
        for _ in range(n_times - 1):
            shares.append(np.einsum("ki,kij->kj", shares[-1], params.transition))
        return np.stack(shares, axis=1)
    form = params.form
    most = form.stays[-1] if form.stays else 1  # windows in a state from which on nothing changes
    bins = bins_of(form.stays, np.arange(1, most + 1))
    period = bins_of(form.periods, np.arange(1, n_times + 1))
    here = np.zeros((params.n_classes, most, params.n_states))
    here[:, 0] = params.initial
    shares = [params.initial]
    for t in range(n_times - 1):
        leave = here * params.leaving[:, period[t]][:, bins]
        stay, q = here - leave, 0 if form.shared else period[t]
        here = np.zeros_like(here)
        here[:, 1:] = stay[:, :-1]
        here[:, -1] += stay[:, -1]
        here[:, 0] += np.einsum("ki,kij->kj", leave.sum(axis=1), params.destination[:, q])
        shares.append(here.sum(axis=1))
    return np.stack(shares, axis=1)


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

    >>> params = FormParams(Form((2, 4)), [1], [[1, 0]], [[[[0.31, 0], [0.15, 0], [0.04, 0]]]],
    ...                     [[[[0, 1], [0, 0]]]])
    >>> leaving_text(params, 0, 0, "TNFi")
    '31 % leave TNFi after 1 window, 15 % after 2–3, 4 % after 4+'
    """
    form = params.form
    parts: list[str] = []
    for p, period in enumerate(form.period_labels):
        shares = [f"{100 * share:.0f} %" for share in params.leaving[k, p, :, state]]
        first = f"{shares[0]} leave {name}" if not parts else shares[0]
        if form.stays:
            window = " window" if form.bins[0] == "1" else " windows"
            bins = [form.bins[0] + (window if not parts else ""), *form.bins[1:]]
            text = ", ".join(
                f"{share} after {label}"
                for share, label in zip([first, *shares[1:]], bins, strict=True)
            )
        else:
            text = first
        parts.append(f"{text} (in windows {period})" if period else text)
    return "; ".join(parts)
