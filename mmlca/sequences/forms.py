"""Forms of chains: what the probability of a step depends on besides the present state.

A plain chain has one probability of each step. In other forms a step has a *context*: for how many
windows the patient has been in the state (a *bin* of time in state), and in which *period* since
the start the step falls. There the probability of leaving the state depends on both, and the
*destination*, the next state of those who leave, on the period (or on neither). Both may depend on
covariates of the step, too, such as age (`mmlca.model.step_covariates`).

The classes' probabilities are a row of cells; some of them together sum to 1 and are a *row* of the
chain. `Layout` says which cells there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.errors import InputError, option_name
from mmlca.sequences.checks import MAX_TIMES

Shared = Literal["destinations"]
Cuts = Sequence[int] | None


class Form(NamedTuple):
    """Which parts a chain has; `make_form` checks them.

    Parameters
    ----------
    stays : tuple of int
        Cut points of time in state: (2, 4) makes the bins 1, 2–3 and 4+, in windows.
    periods : tuple of int
        Cut points of time since the start: with (5,) the steps from windows 1–4 have other
        probabilities than those from window 5 on.
    shared : "destinations", optional
        Periods and covariates change the probabilities of leaving alone.
    transitions : str
        Covariates on which the steps depend, as a formula such as "age + sex"; "" if there are
        none.
    """

    stays: tuple[int, ...] = ()
    periods: tuple[int, ...] = ()
    shared: Shared | None = None
    transitions: str = ""

    @property
    def time_parts(self) -> dict[str, Any]:
        """All but the covariates, which other sites do not have."""
        return {name: value for name, value in self._asdict().items() if name != "transitions"}

    @property
    def n_bins(self) -> int:
        return len(self.stays) + 1

    @property
    def n_periods(self) -> int:
        return len(self.periods) + 1

    @property
    def n_destinations(self) -> int:
        """How many destinations each state has: one for each period, or one for all."""
        return 1 if self.shared else self.n_periods

    @property
    def bins(self) -> list[str]:
        """Labels of the bins of time in state, such as "1", "2–3" and "4+"; "" if there is one."""
        return _labels(self.stays)

    @property
    def period_labels(self) -> list[str]:
        """Labels of the periods, in windows; "" if there is one."""
        return _labels(self.periods)

    @property
    def title(self) -> str:
        """The form in words.

        >>> Form((2, 4)).title
        'by time in state (1, 2–3, 4+)'
        """
        parts = [f"time in state ({', '.join(self.bins)})"] if self.stays else []
        parts += [f"period ({', '.join(self.period_labels)})"] if self.periods else []
        parts += [f"covariates ({self.transitions})"] if self.transitions else []
        shared = ", shared destinations" if self.shared else ""
        return f"by {_and(parts)}{shared}" if parts else "plain"


def _and(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


PLAIN = Form()


def make_form(
    stays: Cuts = None,
    periods: Cuts = None,
    shared: Shared | None = None,
    transitions: str | None = None,
) -> Form:
    """The form with these parts, checked; cut points are whole numbers from 2, increasing.

    >>> make_form(stays=[2, 4])
    Form(stays=(2, 4), periods=(), shared=None, transitions='')
    """
    if shared not in (None, "destinations"):
        raise InputError(f"shared must be 'destinations' or None, found {shared!r}.")
    if not isinstance(transitions, str | None):
        raise TypeError(
            f"transitions must be a formula, such as 'age + sex', found {transitions!r}."
        )
    formula = (transitions or "").strip()
    if shared and not periods and not formula:
        raise InputError(
            f"{option_name('shared')} = 'destinations' is about periods and covariates of the "
            f"steps, and there are none; give {option_name('periods')}."
        )
    return Form(_cuts("stays", stays), _cuts("periods", periods), shared, formula)


def _cuts(name: str, cuts: Any) -> tuple[int, ...]:
    points = () if cuts is None else tuple(cuts) if isinstance(cuts, Iterable) else (cuts,)
    whole = all(isinstance(c, int | np.integer) and 2 <= c <= MAX_TIMES for c in points)
    if not whole or any(a >= b for a, b in pairwise(points)):
        raise InputError(
            f"{option_name(name)} must be increasing whole numbers from 2 to {MAX_TIMES:,}, such "
            f"as 2,4 for 1, 2–3 and 4+ windows; found {cuts!r}."
        )
    return tuple(int(c) for c in points)


def _labels(cuts: tuple[int, ...]) -> list[str]:
    """The bins between cut points in words."""
    if not cuts:
        return [""]
    whole = [f"{a}" if b == a + 1 else f"{a}–{b - 1}" for a, b in pairwise((1, *cuts))]
    return [*whole, f"{cuts[-1]}+"]


# --- the cells of a class ---------------------------------------------------------------


class Layout:
    """The C cells of a class with S states.

    In a plain chain cell i·S + j is the step from state i to j, and i = S the start. In another
    form, with B bins, P periods and Q destinations: cells 2r and 2r + 1, with r = (p·B + b)·S + i,
    are staying in state i and leaving it; from 2·P·B·S on follow the destinations, S cells for each
    (q, i), where cell i itself is always zero; and last the S first states.

    Attributes
    ----------
    bounds : (R + 1,)
        The cells of row r are those from bounds[r] to bounds[r + 1].
    row, before, after : (C,)
        The row of each cell, the state that it is about (S: the start) and the next state (−1 for
        leaving).
    closed : (C,) bool
        Cells that are zero in every chain.
    initial : slice
        The first states.
    parts : list of (C′,)
        The cells that a table of parameters names, by kind: first states, then transitions, or
        leaving and destinations.
    """

    def __init__(self, form: Form, n_states: int) -> None:
        s = n_states
        states = np.arange(s)
        n_leaving = 0 if form == PLAIN else form.n_periods * form.n_bins * s
        n_rows = s if form == PLAIN else form.n_destinations * s
        sizes = np.repeat([2, s], [n_leaving, n_rows + 1])
        self.form, self.n_states = form, s
        self.bounds = np.append(0, np.cumsum(sizes)).astype(np.int64)
        self.row = np.repeat(np.arange(len(sizes)), sizes)
        own = np.append(np.tile(states, (n_leaving + n_rows) // s), s)
        self.before = own[self.row]
        into = np.tile(states, n_rows + 1)
        staying = np.column_stack([own[:n_leaving], np.full(n_leaving, -1)]).ravel()
        self.after = np.append(staying, into)
        self.first_destination, n_cells = 2 * n_leaving, len(self.row)
        self.initial = slice(n_cells - s, n_cells)
        steps = np.arange(2 * n_leaving, n_cells - s)
        self.closed: NDArray[np.bool_] = np.zeros(n_cells, dtype=bool)
        first = np.arange(n_cells - s, n_cells)
        if form == PLAIN:
            self.parts = [first, steps]
        else:
            self.closed[steps] = self.before[steps] == self.after[steps]
            self.parts = [first, np.arange(1, 2 * n_leaving, 2), steps[~self.closed[steps]]]

    @property
    def n_cells(self) -> int:
        return len(self.row)

    @property
    def is_plain(self) -> bool:
        return self.form == PLAIN

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Sums (…, R) of cells (…, C) over each row."""
        if self.is_plain:  # sums of equal rows are rounded in another way
            table = values.reshape(*values.shape[:-1], -1, self.n_states)
            return np.asarray(table.sum(axis=-1))
        return np.add.reduceat(values, self.bounds[:-1], axis=-1)

    def context_cell(self, period: Any, bin_: Any, state: Any) -> Any:
        """The cell of staying; that of leaving follows it."""
        return 2 * ((period * self.form.n_bins + bin_) * self.n_states + state)

    def destination_cell(self, period: Any, state: Any, after: Any) -> Any:
        """The cell of the next state of those who leave."""
        q = 0 if self.form.shared else period
        return self.first_destination + (q * self.n_states + state) * self.n_states + after


@lru_cache(maxsize=32)  # files of strangers have forms of their own
def layout_of(form: Form, n_states: int) -> Layout:
    """The cells of chains of this form."""
    return Layout(form, n_states)


# --- the context of each step -----------------------------------------------------------


def bins_of(cuts: tuple[int, ...], times: NDArray[Any]) -> NDArray[np.intp]:
    """The bin of each number of windows, counted from 1."""
    found: NDArray[np.intp] = np.searchsorted(np.array(cuts, dtype=np.int64), times, side="right")
    return found


def step_contexts(
    codes: NDArray[np.int8], form: Form
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Bins (n, T − 1) and periods (T − 1,) of the steps of rows of codes, and which are known.

    A step is not known where either end is missing (or the sequence has ended), and where missing
    windows leave open in which bin it falls: a patient who is seen again in the state of before
    may have been there all the time, or may just have come back.
    """
    n, n_times = codes.shape
    least, most = np.ones((2, n, max(n_times - 1, 0)), dtype=np.int64)
    low, up, gap = np.zeros((3, n), dtype=np.int64)
    last = np.full(n, -1, dtype=codes.dtype)
    for t in range(n_times - 1):
        now = codes[:, t]
        seen, same = now >= 0, now == last
        low = np.where(seen, np.where(same & (gap == 0), low + 1, 1), low)
        up = np.where(seen, np.where(same, up, 0) + gap + 1, up)
        gap = np.where(seen, 0, gap + 1)
        last = np.where(seen, now, last)
        least[:, t], most[:, t] = low, up
    bins = bins_of(form.stays, least)
    known = (codes[:, :-1] >= 0) & (codes[:, 1:] >= 0) & (bins == bins_of(form.stays, most))
    return bins, bins_of(form.periods, np.arange(1, max(n_times, 1))), known
