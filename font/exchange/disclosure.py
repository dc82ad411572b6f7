"""What may leave a site: tables of counts, each rounded at random to a multiple of `min_count`.

This is the one rule, for every file. A count c leaves as the multiple of m = `min_count` below it
or above it, the upper one with the probability that makes the average right: with m = 11 a single
patient shows as 0 ten times out of eleven and as 11 once. So no count below m shows its own value,
nor do differences of counts, and a patient more or less changes a published number with the
probability 1/m only. The draws are made once, from a secret that stays in the site's ledger:
whoever asks again gets the same file, so that nothing can be averaged.

What is not a count (means and covariances of Gaussian mixtures, centres of K-means) is based on at
least m patients and is written with a stated precision.

What someone who knows every other patient of the site could still work out from a file, and what no
file can prevent, is in `font.exchange.envelope`.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from font.checks import Floats, whole_number
from font.errors import InputError
from font.settings import MIN_COUNT as MIN_COUNT  # the messages have it from here

_MODELS_PER_UNIT, _MOST_UNITS = 5, 8
_SCALE, EXACT = 100, 1_000_000  # sums leave as whole numbers of so many parts


class Draws(Protocol):
    """A source of uniform random numbers; a numpy `Generator` is one."""

    def random(self, size: Any) -> Any:
        """Numbers between 0 and 1 in an array of this shape."""


class SecretDraws:
    """Uniform numbers that only the holder of a key can repeat.

    They are the output of SHAKE-256 for the key (32 secret bytes, new ones if not given), the topic
    and the number of the call. Two sources with the same key and topic draw the same numbers; in a
    longer array the first ones are the same.
    """

    def __init__(self, key: bytes | None = None, topic: str = "") -> None:
        self._start = hashlib.sha256((key or secrets.token_bytes(32)) + topic.encode()).digest()
        self._n_calls = 0

    def random(self, size: Any) -> Floats:
        shape = (size,) if np.ndim(size) == 0 else tuple(size)
        seed = self._start + self._n_calls.to_bytes(8)
        self._n_calls += 1
        words = np.frombuffer(hashlib.shake_256(seed).digest(8 * math.prod(shape)), dtype="<u8")
        return (words >> np.uint64(11)).astype(float).reshape(shape) / 2**53


def round_counts(counts: ArrayLike, min_count: int, draws: Draws | Floats) -> NDArray[np.int64]:
    """Counts rounded at random, without bias, to multiples of m = `min_count`.

    c becomes ⌊c/m⌋·m or one m more, the latter with the probability c/m − ⌊c/m⌋. Expected numbers
    of patients need not be whole. `draws` may be an array of uniform numbers of the counts' shape.
    With `min_count` 1 whole numbers stay as they are.

    >>> round_counts([0, 11, 1234], 11, np.random.default_rng(1)).tolist()
    [0, 11, 1243]
    """
    unit = whole_number(min_count, 1, "min_count")
    values = np.asarray(counts, dtype=float) / unit
    if not (np.isfinite(values) & (values >= 0)).all():
        raise InputError("counts must be finite numbers of 0 or more.")
    below = np.floor(values)
    uniform = draws if isinstance(draws, np.ndarray) else draws.random(values.shape)
    up = uniform < values - below
    rounded: NDArray[np.int64] = unit * (below.astype(np.int64) + up)
    return rounded


def round_events(
    events: Floats, support: Floats, min_count: int, uniform: Floats
) -> NDArray[np.int64]:
    """Numbers of events, of which one patient may have many, rounded at random.

    The unit is `min_count` times the mean number of events per patient of the cell, as a whole
    number: a patient who stays in one state for three years gives a cell twelve events, and with
    the unit 11 these would show whatever the draw. *What was tried* in the documentation has what
    was measured. `support` is how many different patients contribute to each cell.

    >>> draws = SecretDraws(b"k" * 32).random(2)
    >>> round_events(np.array([500.0, 80.0]), np.array([80.0, 80.0]), 11, draws).tolist()
    [462, 77]
    """
    often = np.maximum(np.ceil(events / np.maximum(support, 1.0) - 1e-9), 1.0)
    return often.astype(np.int64) * round_counts(events / often, min_count, uniform)


def round_mean(mean: float, draw: Floats) -> float:
    """A mean number of events per patient, rounded at random to a multiple of one half, from 1."""
    return max(float(round_counts([2 * mean], 1, draw)[0]) / 2, 1.0)


class RoundedSums(NamedTuple):
    """Whole numbers (K, P) that stand for values/scale, and the mean number of events per patient
    in cells to which few contribute."""

    values: NDArray[np.int64]
    scale: int
    per_patient: float


def round_sums(sums: Floats, support: Floats, min_count: int, draws: Draws) -> RoundedSums:
    """Sums over patients by cluster (K, P), rounded at random to multiples of `min_count`.

    `support` is how many different patients contribute to each. A cell to which fewer than
    `min_count` contribute is rounded as patients, to 0 or `min_count`, and multiplied by the mean
    number of events per patient in all such cells, if at least `min_count` different patients
    surely contribute to these together; that mean is rounded at random as well, to a multiple of
    one half. Other cells are rounded by `round_events`. Those of few patients share one draw:
    whoever is alone in a cluster contributes to many of them, and they show together or not at all.
    The draws are asked for in the same order whatever the sums are, so that the same source gives
    each cell the same draw at every step of a refinement. With `min_count` 1 nothing is rounded but
    to six decimals.

    >>> exact = np.array([[200.0, 7.0, 4.0]])
    >>> round_sums(exact, exact, 11, SecretDraws(b"k" * 32)).values.tolist()[0][0] in (19800, 20900)
    True
    """
    if min_count == 1:
        return RoundedSums(np.rint(sums * EXACT).astype(np.int64), EXACT, 1.0)
    few = support < min_count
    mean = 1.0
    # One patient may stand in many cells of a cluster: the fullest has at least so many different
    # ones, and nobody counts twice over all clusters. With fewer it is one patient's habit.
    if np.where(few, support, 0.0).max(axis=1).sum() >= min_count:
        mean = float(sums[few].sum() / support[few].sum())
    each, one = draws.random(sums.shape), draws.random(1)
    mean = round_mean(mean, one)
    uniform = np.where(few, one[0], each)
    rounded = round_events(np.where(few, support, sums), support, min_count, uniform)
    values = np.where(few, np.rint(rounded * mean * _SCALE), rounded * _SCALE)
    return RoundedSums(values.astype(np.int64), _SCALE, mean)


def round_total(
    sums: Floats,
    support: Floats,
    shares: Floats,
    blocks: NDArray[np.intp],
    min_count: int,
    draws: Draws,
) -> RoundedSums:
    """The exact sums of all sites together, rounded at random before they are broadcast.

    A cell to which at least `min_count` patients contribute is rounded as by `round_sums`. The
    others are not shown one by one: those of a cluster's block (such as all steps between states)
    are one number, their patients, to which each patient adds at most 1 however many of the cells
    are his (`shares` are memberships divided evenly among them, `blocks` the block of each column,
    from 0). It is rounded, multiplied by the mean number of events per patient in such cells of all
    clusters, if at least `min_count` patients surely contribute to these, and spread evenly over
    those of the cells to which at least `min_count` patients of all clusters contribute together
    (over all, if there are none). The mean is rounded at random as well, to a multiple of one half.
    One draw serves all of this, and the draws are asked for in the same order whatever the sums
    are.

    >>> sums = np.array([[200.0, 190.0, 6.0, 4.0], [90.0, 0.0, 40.0, 50.0]])
    >>> blocks = np.array([0, 1, 1, 1])
    >>> shown = round_total(sums, sums, sums, blocks, 11, SecretDraws(b"k" * 32)).values[0]
    >>> shown[2:].tolist() in ([0, 0], [550, 550])
    True
    """
    if min_count == 1:
        return RoundedSums(np.rint(sums * EXACT).astype(np.int64), EXACT, 1.0)
    few = support < min_count
    common = support.sum(axis=0) >= min_count
    each, one = draws.random(sums.shape), draws.random(1)
    values = _SCALE * round_events(np.where(few, 0.0, sums), support, min_count, each).astype(float)
    for block in range(int(blocks.max()) + 1):
        rare = few & (blocks == block)
        mean = 1.0
        if shares[rare].sum() >= min_count:
            mean = round_mean(float(sums[rare].sum() / shares[rare].sum()), one)
        for cluster in np.flatnonzero(rare.any(axis=1)):
            cells = np.flatnonzero(rare[cluster])
            patients = round_counts([shares[cluster, cells].sum()], min_count, one)[0]
            shown = cells[common[cells]] if common[cells].any() else cells
            values[cluster, shown] = _SCALE * mean * patients / len(shown)
    return RoundedSums(np.rint(values).astype(np.int64), _SCALE, 1.0)


def unrounded_sums(
    values: NDArray[np.int64], scale: int, per_patient: float, min_count: int
) -> str | None:
    """What in a table of sums from a file was not rounded by the rule; None if all was."""
    if min_count == 1:
        return None
    if scale != _SCALE:
        return f"the scale {scale} instead of {_SCALE}"
    few = values == round(min_count * per_patient * _SCALE)
    unusual = ~few & (values % (min_count * _SCALE) != 0)
    if not unusual.any():
        return None
    first = values[unusual].flat[0] / scale
    return f"the sum {first:g}, not a multiple of its min_count {min_count}"


def label_unit(min_count: int, n_models: int) -> int:
    """The unit of cross-tables of labels: `min_count`, or more where many models label.

    A patient is in a cell of every pair of models, so that many models together reveal more about
    one patient than few. The unit is `min_count` for up to five models, twice that for up to ten
    and so on, eight times at most. *What was tried* in the documentation has what was measured.

    >>> [label_unit(11, n) for n in (1, 5, 6, 20, 300)], label_unit(1, 20)
    ([11, 11, 22, 44, 88], 1)
    """
    unit = whole_number(min_count, 1, "min_count")
    return unit if unit == 1 else unit * min(-(-n_models // _MODELS_PER_UNIT), _MOST_UNITS)


def shared_draws(tables: Floats, offsets: NDArray[np.intp], draws: Draws) -> Floats:
    """Draws for cross-tables of labels, alike for cells that count nearly the same patients.

    A group of three patients that all models distinguish from the others is in M·(M + 1)/2 cells.
    With a draw for each of them the average of what is written would be three; so all get one draw.
    Classes are grouped by the class of one model, that with the most, in which most of their
    patients are, and the cells of two groups share their draw.

    Parameters
    ----------
    tables : (ΣK, ΣK)
        Exact counts S = ZᵀZ.
    offsets : (M + 1,)
        Where each model's classes begin.
    """
    first = int(np.argmax(np.diff(offsets)))
    rows = slice(offsets[first], offsets[first + 1])
    group = tables[rows].argmax(axis=0)
    upper = np.triu(draws.random((rows.stop - rows.start,) * 2))
    symmetric = upper + np.triu(upper, 1).T
    return np.asarray(symmetric[group[:, None], group])


def unrounded(counts: ArrayLike, min_count: int) -> str | None:
    """What in a table of counts from a file was not rounded by the rule; None if all was.

    With `min_count` 1 expected numbers of patients leave as they are.
    """
    if min_count == 1:
        return None
    values = np.asarray(counts)
    exact = values[values % min_count != 0]
    if not exact.size:
        return None
    return f"the count {exact.flat[0]:g}, not a multiple of its min_count {min_count}"


def precision(values: Floats) -> float:
    """A power of ten of about a hundredth of the range of the values, to write means with."""
    span = float(np.ptp(values)) or float(np.abs(values).max())
    return 10.0 ** math.floor(math.log10(span / 100)) if span > 0 else 1.0


# --- the rule in words ------------------------------------------------------------------------


def rounding_in_words(unit: int) -> str:
    """What a file says of the counts in it."""
    return f"no other counts; every count is rounded at random, up or down, to a multiple of {unit}"


def hints_of_counts(unit: int) -> list[str]:
    """What counts that are rounded to multiples of a unit still reveal."""
    return [
        f"never the size of a group of fewer than {unit}: a count of 0 may stand for up to "
        f"{unit - 1} patients, and a count of {unit} for a single one",
        "to someone who knows every other patient of the site: with each count a slight hint "
        "whether a certain patient is among them, since one more patient changes what is written "
        f"in 1 of {unit} cases",
    ]
