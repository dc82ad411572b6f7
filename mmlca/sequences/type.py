"""The sequence type: every patient's states over time, validated once, here.

Its constructors are functions of `mmlca.sequences.build`.
"""

from __future__ import annotations

import html
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import some
from font.errors import InputError
from mmlca.sequences import build, files
from mmlca.sequences.covariates import AnyCovariates, align_steps, calendar_table
from mmlca.sequences.forms import PLAIN, Form
from mmlca.sequences.patterns import Patterns, distinct_rows, reduce_codes, reduce_steps

Labels: TypeAlias = pd.Series | pd.Categorical | Sequence[Hashable] | NDArray[Any]
"""One label per patient: a Series indexed by id, or values in the order of the patients."""


@dataclass(frozen=True, eq=False, repr=False)
class Sequences:
    """States of n patients at T equally spaced times.

    Build one with `from_frame`, `from_long`, `from_spells`, `from_lists` or
    `from_codes`; the plain constructor trusts its arguments. The arrays are
    read-only, and every method returns a new object.

    Two things look alike in a table and are kept apart here: a *missing* state
    (the patient was followed but nothing is known; code −1 before the
    sequence's length) and *void* (the sequence has ended; after its length).

    Parameters
    ----------
    codes : (n, T) int8
        Index into `states`; −1 is missing or void.
    states : tuple of str
        The state labels, in order.
    ids : pandas.Index
        One unique identifier per patient, integers or strings.
    weights : (n,) float64
        Non-negative case weights.
    lengths : (n,) int32
        Number of times each patient was followed.
    times : tuple of str
        A label for each time, for tables and axes.
    account : Account, optional
        How the sequences came about, for those that `ehr_prep.build_sequences` made: its
        parts are also `flow`, `issues`, `patients` and `settings`. A selection keeps its own
        patients and counts the others in the flow; `reweight` keeps the account; `concat`
        drops it, since each part has a flow of its own.
    absorbing : tuple of str
        States that nobody leaves, such as "dead"; see `absorb`.

    covariates : DataFrame, optional
        By id: the columns of a wide table that hold neither states nor weights, such as age. A
        selection keeps those of its patients; `concat` and files of `write` drop them.
    step_covariates : DataFrame, optional
        Of the steps from each window; see `with_step_covariates`. They are kept and dropped as
        `covariates` are.

    Examples
    --------
    >>> s = Sequences.from_lists([["TNFi", "TNFi", "JAK"], ["TNFi", None, "TNFi"], ["JAK"]])
    >>> s
    Sequences: 3 patients × 3 times (1 … 3), 2 states
      states    JAK, TNFi
      lengths   1 to 3, median 3
      missing   1 of 7 followed-up times (14.3 %)
      distinct  3 sequences, 0.0 % of patients repeat one of them
    """

    codes: NDArray[np.int8]
    states: tuple[str, ...]
    ids: pd.Index
    weights: NDArray[np.float64]
    lengths: NDArray[np.int32]
    times: tuple[str, ...]
    account: Account | None = None
    absorbing: tuple[str, ...] = ()
    covariates: pd.DataFrame | None = None
    step_covariates: pd.DataFrame | None = None

    # --- constructors -----------------------------------------------------------------

    # documented where their work is done, in `mmlca.sequences.build`
    from_codes = classmethod(build.from_codes)
    from_frame = classmethod(build.from_frame)
    from_long = classmethod(build.from_long)
    from_spells = classmethod(build.from_spells)
    from_lists = classmethod(build.from_lists)
    concat = classmethod(build.concat)

    # --- basics -----------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """Patients, times."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def n_states(self) -> int:
        return len(self.states)

    @cached_property
    def n_distinct(self) -> int:
        """How many different sequences there are."""
        return len(self.distinct()[0])

    def distinct(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The first row of each different sequence, and the number of each patient's sequence.

        Two sequences are the same if they agree in states, missing values and length.
        """
        return distinct_rows(self.codes, self.lengths)

    @cached_property
    def patterns(self) -> Patterns:
        """The distinct transition patterns with their weights, computed once."""
        table = reduce_codes(self.codes, self.n_states)
        return table if (self.weights == 1).all() else table.reweight(self.weights)

    def patterns_of(self, form: Form, finest: Form | None = None) -> Patterns:
        """The distinct patterns for chains of a form, computed once for each form.

        Forms other than plain leave out the steps whose context is not known where windows are
        missing. With `finest`, a form with further cut points, this one does, too, and leaves out
        the same steps.
        """
        if form == PLAIN and finest is None:
            return self.patterns
        key = form, finest or form
        if key not in self._patterns:
            table = reduce_steps(self.codes, self.lengths, self.n_states, *key)
            self._patterns[key] = table.reweight(self.weights)
        return self._patterns[key]

    @cached_property
    def _patterns(self) -> dict[tuple[Form, Form], Patterns]:
        return {}

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, key: Any) -> Sequences:
        """Patients by position: a number, slice, mask or array of positions."""
        rows = np.arange(len(self))[key]
        return self._take(np.atleast_1d(rows))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequences):
            return NotImplemented
        return (
            self.states == other.states
            and self.absorbing == other.absorbing
            and self.times == other.times
            and self.ids.equals(other.ids)
            and np.array_equal(self.codes, other.codes)
            and np.array_equal(self.lengths, other.lengths)
            and np.array_equal(self.weights, other.weights)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        n, n_times = self.shape
        followed = int(self.lengths.sum(dtype=np.int64))
        n_missing = followed - int((self.codes >= 0).sum())
        lines = [
            f"Sequences: {n:,} patients × {n_times:,} times "
            f"({self.times[0]} … {self.times[-1]}), {self.n_states} states",
            f"  states    {', '.join(self.states)}",
        ]
        if n:
            share = 100 * (1 - self.n_distinct / n)
            lines += [
                f"  lengths   {self.lengths.min():,} to {self.lengths.max():,}, "
                f"median {np.median(self.lengths):,.0f}",
                f"  missing   {n_missing:,} of {followed:,} followed-up times "
                f"({100 * n_missing / followed:.1f} %)",
                f"  distinct  {self.n_distinct:,} sequences, "
                f"{share:.1f} % of patients repeat one of them",
            ]
        if (self.weights != 1).any():
            lines.append(f"  weights   sum {self.weights.sum():,.6g}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The account in words and the first patients' states, for notebooks."""
        first = self[: min(5, len(self))].to_frame().to_html(na_rep="", border=0)
        return f"<pre>{html.escape(repr(self))}</pre>\n{first}"

    def select(self, which: ArrayLike | pd.Series) -> Sequences:
        """The patients chosen by a mask (one boolean per patient) or by their ids, in that order.

        A boolean Series is matched on its index if that holds the ids.
        """
        if isinstance(which, pd.Series) and which.dtype == bool and which.index.equals(self.ids):
            which = which.to_numpy()
        array = np.atleast_1d(np.asarray(which))
        if array.dtype == bool:
            if len(array) != len(self):
                raise InputError(
                    f"the mask has {len(array):,} values for {len(self):,} patients; "
                    "give one for each."
                )
            return self._take(np.flatnonzero(array))
        return self._take(self.positions(array))

    def positions(self, ids: Any) -> NDArray[np.intp]:
        """The row of each of these patients; unknown ids are an error."""
        wanted = pd.Index(ids)
        rows: NDArray[np.intp] = self.ids.get_indexer(wanted)
        if (rows < 0).any():
            raise InputError(
                f"{(rows < 0).sum():,} ids are not among the patients: {some(wanted[rows < 0])}."
            )
        return rows

    def reweight(self, weights: ArrayLike) -> Self:
        """The same patients with other weights (the codes are shared, not copied)."""
        checked = build.checked(
            type(self), self.codes, self.states, self.ids, weights, self.lengths, self.times
        )
        other = replace(self, weights=checked.weights)
        if "patterns" in self.__dict__:
            other.__dict__["patterns"] = self.patterns.reweight(other.weights)
        tables = self._patterns.items()
        other._patterns.update({key: table.reweight(other.weights) for key, table in tables})
        return other

    def absorb(self, *states: str) -> Self:
        """The same sequences with states that nobody leaves.

        `MixtureMarkov` gives steps out of them the probability 0.

        Examples
        --------
        >>> s = Sequences.from_lists([["TNFi", "dead", "dead"], ["TNFi", "TNFi", "TNFi"]])
        >>> s.absorb("dead").absorbing
        ('dead',)
        """
        unknown = [state for state in states if state not in self.states]
        if unknown:
            raise InputError(f"there is no state {some(unknown)}; there are {some(self.states)}.")
        for state in states:
            inside = self.codes == self.states.index(state)
            after = np.logical_or.accumulate(inside, axis=1)
            leaves = (after & ~inside & (self.codes >= 0)).any(axis=1)
            if leaves.any():
                raise InputError(
                    f"{leaves.sum():,} patients leave the state {state!r} (patients "
                    f"{some(self.ids[leaves])}), which is absorbing; correct these or leave it out."
                )
        return replace(self, absorbing=tuple(s for s in self.states if s in states))

    def with_step_covariates(self, table: AnyCovariates) -> Self:
        """The same sequences with covariates on which their steps may depend.

        `MixtureMarkov(transitions="age + line")` uses them.

        Parameters
        ----------
        table : DataFrame
            One row per patient, matched by a column "id" or an index of ids (a table with the plain
            index 0 … n − 1 is in the patients' order); or one row per patient and window, with the
            columns "id" and "time". The values of a window belong to the step from this window to
            the next.

        Examples
        --------
        >>> s = Sequences.from_lists([["TNFi", "TNFi", "JAK"], ["JAK", "JAK"]], ids=["a", "b"])
        >>> table = pd.DataFrame({"id": ["a", "a", "b"], "time": [1, 2, 1], "line": [1, 1, 2]})
        >>> s.with_step_covariates(table).step_covariates["line"].tolist()
        [1.0, 1.0, nan, 2.0, nan, nan]
        """
        return replace(self, step_covariates=align_steps(table, self.ids, self.times))

    def calendar_periods(
        self,
        cuts: Iterable[Any],
        *,
        index_dates: pd.Series | None = None,
        months: int | None = None,
    ) -> pd.DataFrame:
        """The calendar period in which each window begins, for `with_step_covariates`.

        Parameters
        ----------
        cuts : list of dates
            The first day of each period after the first.
        index_dates : Series by id, optional
            First day of the first window. Default: those of the account.
        months : int, optional
            Length of a window. Default: that of the account's rules.

        Returns
        -------
        DataFrame
            `id`, `time` and the categories of `period`, one row per patient and window.

        Examples
        --------
        >>> s = Sequences.from_lists([["TNFi", "JAK"], ["JAK", "JAK"]], ids=["a", "b"])
        >>> start = pd.Series(pd.to_datetime(["2014-11-01", "2015-02-01"]), ["a", "b"])
        >>> table = s.calendar_periods(["2015-01-01"], index_dates=start, months=3)
        >>> s.with_step_covariates(table).step_covariates["period"].tolist()
        ['before 2015', 'from 2015', 'from 2015', 'from 2015']
        """
        settings = {} if self.account is None else self.settings
        if index_dates is None:
            if self.account is None:
                raise InputError(
                    "these sequences do not know on which days they begin; give index_dates, or "
                    "make the sequences with ehr_prep.build_sequences."
                )
            index_dates = self.patients["index_date"]
        if months is None and not settings:
            raise InputError("give the length of a window, as in months=3.")
        days = None if months is not None else settings["days"]
        starts = pd.to_datetime(index_dates).reindex(self.ids)
        return calendar_table(starts, cuts, self.times, months or settings["months"], days)

    # --- tables -----------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """The wide table: ids as index, a categorical column for each time."""
        categories = pd.CategoricalDtype(list(self.states), ordered=True)
        columns = {
            label: pd.Categorical.from_codes(self.codes[:, t], dtype=categories)
            for t, label in enumerate(self.times)
        }
        return pd.DataFrame(columns, index=self.ids)

    # --- how they came about ----------------------------------------------------------

    @property
    def flow(self) -> pd.DataFrame:
        """Patients and records dropped, by reason; see `Account`."""
        return self.known_account().flow

    @property
    def issues(self) -> pd.DataFrame:
        """What was unusual in the records; see `Account`."""
        return self.known_account().issues

    @property
    def patients(self) -> pd.DataFrame:
        """One row per patient: index date, end of follow-up and more; see `Account`."""
        return self.known_account().patients

    @property
    def settings(self) -> dict[str, Any]:
        """The options with which the sequences were built; see `Account`."""
        return self.known_account().settings

    def known_account(self) -> Account:
        """The account, which sequences from records have."""
        if self.account is None:
            raise AttributeError(
                "these sequences have no account of how they came about; those that "
                "ehr_prep.build_sequences makes from records have one."
            )
        return self.account

    # --- files ------------------------------------------------------------------------

    write = files.write
    read = classmethod(files.read)
    write_all = files.write_all

    # --- inside -----------------------------------------------------------------------

    def _take(self, rows: NDArray[np.intp]) -> Sequences:
        return build.checked(
            type(self),
            np.ascontiguousarray(self.codes[rows]),
            self.states,
            self.ids[rows],
            self.weights[rows],
            self.lengths[rows],
            self.times,
            account=None if self.account is None else self.account.take(rows),
            absorbing=self.absorbing,
            covariates=None if self.covariates is None else self.covariates.iloc[rows],
            step_covariates=self._steps_of(rows),
        )

    def _steps_of(self, rows: NDArray[np.intp]) -> pd.DataFrame | None:
        """The covariates of the steps of some patients."""
        table = self.step_covariates
        if table is None:
            return None
        n_each = len(table) // max(len(self), 1)  # 1, or the number of windows
        places = (rows[:, None] * n_each + np.arange(n_each)).ravel()
        return table.iloc[places].reset_index(drop=True)


class Step(NamedTuple):
    """One row of a flow table: how many patients and records were dropped here, and why."""

    stage: str
    reason: str
    patients: int
    records: int


def flow_table(patients: int, records: int, steps: Sequence[Step]) -> pd.DataFrame:
    """What came in, what each step dropped, and what was left after it.

    Returns
    -------
    DataFrame
        `stage` (read, usable, eligible or sequences), `reason`, `patients` and `records`
        dropped, `patients_left` and `records_left`. The first row is the input.

    Examples
    --------
    >>> flow_table(3, 20, [Step("usable", "duplicate", 0, 2)]).records_left.to_list()
    [20, 18]
    """
    table = pd.DataFrame([Step("read", "in the input", 0, 0), *steps], columns=list(Step._fields))
    table["patients_left"] = patients - table["patients"].cumsum()
    table["records_left"] = records - table["records"].cumsum()
    return table


def add_steps(flow: pd.DataFrame, steps: Sequence[Step]) -> pd.DataFrame:
    """The same flow with further steps."""
    before = [Step(*row) for row in flow[list(Step._fields)].iloc[1:].itertuples(index=False)]
    start = flow.iloc[0]
    return flow_table(int(start["patients_left"]), int(start["records_left"]), [*before, *steps])


@dataclass(frozen=True, eq=False)
class Account:
    """Where sequences come from. `ehr_prep.build_sequences` writes it; see `Sequences.account`.

    Parameters
    ----------
    flow : DataFrame
        Patients and records that were dropped, by reason and in order: `stage`, `reason`,
        `patients`, `records`, `patients_left`, `records_left`. It adds up to the input.
    issues : DataFrame
        What was unusual in the records, how often, what was done about it, and up to five
        examples. Like `settings` it describes the whole cohort, also after a selection.
    patients : DataFrame
        One row per patient, in the order of the sequences: index date, end of follow-up, age
        at the index date where it is known, and what else the patients' table holds.
    n_records : (n,) int64
        Number of records of each patient that the sequence rests on.
    settings : dict
        Every option, the columns used, and how many windows were empty or tied.
    unmapped : DataFrame, optional
        Drug texts that the map does not know: `drug`, `records`, `patients`, `did_you_mean`. It
        is of the whole input.
    """

    flow: pd.DataFrame
    issues: pd.DataFrame
    patients: pd.DataFrame
    n_records: NDArray[np.int64]
    settings: dict[str, Any]
    unmapped: pd.DataFrame | None = None

    def take(self, rows: NDArray[np.intp]) -> Self:
        """The account of some of the patients; the flow counts the others as not selected."""
        n_records = self.n_records[rows]
        patients = self.patients.iloc[rows]
        if len(rows) == len(self.patients):
            return replace(self, patients=patients, n_records=n_records)
        n_records_dropped = int(self.n_records.sum() - n_records.sum())
        n_dropped = len(self.patients) - len(rows)
        step = Step("selected", "not selected", n_dropped, n_records_dropped)
        flow = add_steps(self.flow, [step])
        return replace(self, flow=flow, patients=patients, n_records=n_records)
