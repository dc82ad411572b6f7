"""Tables that describe sequences, weighted and by group.

Each function takes one `Sequences` or a dict {site: Sequences}, and `groups`: for each
patient a label, as a Series indexed by id, as an array in the patients' order, or, for a
dict of sites, as a dict of these. The tables are tidy: a column "site" and a column "group"
come first where they apply.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmlca.checks import need_columns, numbers_for, some
from mmlca.sequences import Sequences


def state_distribution(
    sequences: Sequences | Mapping[str, Sequences], groups: Any = None
) -> pd.DataFrame:
    """Share of each state at each time, among those observed then (TraMineR's seqstatd).

    Returns
    -------
    DataFrame
        time, state, `count` (weighted patients in the state), `n` (weighted patients
        observed) and `share` = count / n, NaN where nobody is observed.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A"], ["A", "B"], ["B"]])
    >>> state_distribution(s).query("time == '1'")[["state", "count", "n", "share"]]
      state  count    n     share
    0     A    2.0  3.0  0.666667
    1     B    1.0  3.0  0.333333
    """
    return _by_group(sequences, groups, _state_distribution)


def _state_distribution(s: Sequences) -> pd.DataFrame:
    count = _counts_by_time(s)
    n = count.sum(axis=1, keepdims=True)
    share = np.divide(count, n, out=np.full_like(count, np.nan), where=n > 0)
    return pd.DataFrame(
        {
            "time": _ordered(np.repeat(np.arange(s.shape[1]), s.n_states), s.times),
            "state": _ordered(np.tile(np.arange(s.n_states), s.shape[1]), s.states),
            "count": count.ravel(),
            "n": np.broadcast_to(n, count.shape).ravel(),
            "share": share.ravel(),
        }
    )


def modal_states(
    sequences: Sequences | Mapping[str, Sequences], groups: Any = None
) -> pd.DataFrame:
    """The most frequent state at each time, and how frequent it is (TraMineR's seqmodst).

    Of states that are equally frequent the first in order is taken.

    Returns
    -------
    DataFrame
        time, `state` (missing where nobody is observed), `count` (weighted patients in it),
        `n` (weighted patients observed) and `share` = count / n.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A"], ["A", "B"], ["B", "B"]])
    >>> modal_states(s)[["time", "state", "count", "n"]]
      time state  count    n
    0    1     A    2.0  3.0
    1    2     B    2.0  3.0
    """
    return _by_group(sequences, groups, _modal_states)


def _modal_states(s: Sequences) -> pd.DataFrame:
    by_time = _counts_by_time(s)
    n, count = by_time.sum(axis=1), by_time.max(axis=1)
    return pd.DataFrame(
        {
            "time": _ordered(np.arange(s.shape[1]), s.times),
            "state": _ordered(np.where(n > 0, by_time.argmax(axis=1), -1), s.states),
            "count": count,
            "n": n,
            "share": np.divide(count, n, out=np.full_like(n, np.nan), where=n > 0),
        }
    )


def sequence_frequencies(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    top: int | None = 10,
    *,
    min_count: int = 0,
) -> pd.DataFrame:
    """The most frequent sequences, written as spells (TraMineR's seqtab).

    A missing stretch is written "?". Ties keep the order of the codes. Sequences that fewer
    than `min_count` patients have are left out; the shares stay those of all patients.

    Returns
    -------
    DataFrame
        rank, sequence, `count` (weighted patients), `share` and `cumulative` share.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "B"], ["A", "A", "B"], ["A", None, "A"]])
    >>> sequence_frequencies(s)[["sequence", "count"]]
              sequence  count
    0        A×2 → B×1    2.0
    1  A×1 → ?×1 → A×1    1.0
    """
    return _by_group(sequences, groups, lambda s: _sequence_frequencies(s, top, min_count))


def _sequence_frequencies(s: Sequences, top: int | None, min_count: int) -> pd.DataFrame:
    found = frequent(s, top, min_count)
    return pd.DataFrame(
        {
            "rank": np.arange(1, len(found.rows) + 1),
            "sequence": [spell_text(s, int(row)) for row in found.rows],
            "count": found.weight,
            "share": found.share,
            "cumulative": np.cumsum(found.share),
        }
    )


class Frequent(NamedTuple):
    """The most frequent sequences: a patient's row, weight and share of each.

    `n_distinct` is how many there are in all, `n_rare` how many too few patients have.
    """

    rows: NDArray[np.intp]
    weight: NDArray[np.float64]
    share: NDArray[np.float64]
    n_distinct: int
    n_rare: int


def frequent(s: Sequences, top: int | None, min_count: int = 0) -> Frequent:
    """The distinct sequences by falling weight, without those of fewer than `min_count`."""
    if top is not None and top < 1:
        raise ValueError(f"top must be at least 1, or None for all; found {top}.")
    first, number = s.distinct()
    weight = np.bincount(number, weights=s.weights, minlength=len(first)).astype(float)
    common = np.bincount(number, weights=s.weights > 0, minlength=len(first)) >= min_count
    by_codes = np.lexsort([*s.codes[first].T[::-1], -weight])
    chosen = by_codes[common[by_codes]][:top]
    total = weight.sum()
    share = weight[chosen] / total if total > 0 else np.full(len(chosen), np.nan)
    return Frequent(first[chosen], weight[chosen], share, len(first), int((~common).sum()))


def spell_text(sequences: Sequences, row: int) -> str:
    """One patient's sequence as spells, such as "TNFi×9 → CTLA4-Ig×7"."""
    codes = sequences.codes[row, : sequences.lengths[row]]
    start = np.flatnonzero(np.diff(codes, prepend=np.int8(-2)))
    run = np.diff(np.append(start, len(codes)))
    names = [sequences.states[c] if c >= 0 else "?" for c in codes[start]]
    return " → ".join(f"{name}×{r}" for name, r in zip(names, run, strict=True))


def transition_rates(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any = None,
    *,
    lag: int = 1,
    counts: bool = False,
) -> pd.DataFrame:
    """Empirical transition rates between states `lag` times apart (TraMineR's seqtrate).

    Only pairs with both states observed count. A state that is never left has no rate (NaN).

    Returns
    -------
    DataFrame
        `from`, and one column a state (the state gone to): rates whose rows sum to 1, or
        with `counts=True` weighted numbers of transitions.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "B"], ["A", "B", "B"]])
    >>> transition_rates(s)
      from    A    B
    0    A  0.333333  0.666667
    1    B  0.000000  1.000000
    """
    if lag < 1:
        raise ValueError(f"lag must be at least 1, found {lag}.")
    return _by_group(sequences, groups, lambda s: _transition_rates(s, lag, counts))


def _transition_rates(s: Sequences, lag: int, counts: bool) -> pd.DataFrame:
    before, after = s.codes[:, :-lag], s.codes[:, lag:]
    seen = (before >= 0) & (after >= 0)
    cell = before[seen].astype(np.intp) * s.n_states + after[seen]
    weight = np.broadcast_to(s.weights[:, None], seen.shape)[seen]
    table = np.bincount(cell, weights=weight, minlength=s.n_states**2).astype(float)
    table = table.reshape(s.n_states, s.n_states)
    if not counts:
        total = table.sum(axis=1, keepdims=True)
        table = np.divide(table, total, out=np.full_like(table, np.nan), where=total > 0)
    frame = pd.DataFrame(table, columns=list(s.states))
    frame.insert(0, "from", _ordered(np.arange(s.n_states), s.states), allow_duplicates=True)
    return frame


def time_in_state(
    sequences: Sequences | Mapping[str, Sequences], groups: Any = None
) -> pd.DataFrame:
    """Mean number of times spent in each state (TraMineR's seqmeant).

    Returns
    -------
    DataFrame
        state, `mean` (weighted mean over patients of the times in the state) and `share`
        of all observed times.
    """
    return _by_group(sequences, groups, _time_in_state)


def _time_in_state(s: Sequences) -> pd.DataFrame:
    total = _counts_by_time(s).sum(axis=0)
    n, observed = s.weights.sum(), total.sum()
    return pd.DataFrame(
        {
            "state": _ordered(np.arange(s.n_states), s.states),
            "mean": total / n if n > 0 else np.nan,
            "share": total / observed if observed > 0 else np.nan,
        }
    )


def entropy_by_time(
    sequences: Sequences | Mapping[str, Sequences], groups: Any = None
) -> pd.DataFrame:
    """Entropy of the state distribution at each time, between 0 (all alike) and 1 (even).

    Shannon's −Σ p log p divided by the log of the number of states.

    Returns
    -------
    DataFrame
        time, `n` (weighted patients observed), `entropy` (NaN where nobody is observed).
    """
    return _by_group(sequences, groups, _entropy_by_time)


def _entropy_by_time(s: Sequences) -> pd.DataFrame:
    count = _counts_by_time(s)
    n = count.sum(axis=1)
    share = np.divide(count, n[:, None], out=np.zeros_like(count), where=n[:, None] > 0)
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    entropy = -(share * logs).sum(axis=1) / np.log(max(s.n_states, 2))
    return pd.DataFrame(
        {
            "time": _ordered(np.arange(s.shape[1]), s.times),
            "n": n,
            "entropy": np.where(n > 0, np.abs(entropy), np.nan),
        }
    )


def treatment_lines(
    sequences: Sequences | Mapping[str, Sequences], groups: Any = None, *, max_lines: int = 4
) -> pd.DataFrame:
    """How patients move from one treatment line to the next.

    A line is a run of one state; a change of state begins the next line, so A A B A has
    three. Missing states are passed over: A ? A is one line.

    Returns
    -------
    DataFrame
        `line`, `from` (the state of that line), `to` (the state of the next line, missing if
        there was none during follow-up), `count` (weighted patients), `patients` and `share`
        (of those who had `from` as this line). Lines 1 to `max_lines` − 1, and only what
        happened.

    Examples
    --------
    >>> s = Sequences.from_lists([["A", "A", "B"], ["A", "A", "A"], ["A", None, "B"]])
    >>> treatment_lines(s)[["line", "from", "to", "patients"]]
       line from   to  patients
    0     1    A    B         2
    1     1    A  NaN         1
    2     2    B  NaN         2
    """
    if max_lines < 2:
        raise ValueError(f"max_lines must be at least 2, found {max_lines}.")
    return _by_group(sequences, groups, lambda s: _treatment_lines(s, max_lines))


def _treatment_lines(s: Sequences, max_lines: int) -> pd.DataFrame:
    lines = line_codes(s, max_lines).astype(np.intp)
    size = s.n_states + 1
    parts = []
    for k in range(max_lines - 1):
        there = lines[:, k] >= 0
        cell = lines[there, k] * size + lines[there, k + 1] % size
        count = np.bincount(cell, weights=s.weights[there], minlength=s.n_states * size)
        patients = np.bincount(cell[s.weights[there] > 0], minlength=s.n_states * size)
        seen = np.flatnonzero(patients)
        before, after = np.divmod(seen, size)
        total = np.bincount(before, weights=count[seen], minlength=s.n_states)[before]
        parts.append(
            pd.DataFrame(
                {
                    "line": np.full(len(seen), k + 1),
                    "from": _ordered(before, s.states),
                    "to": _ordered(np.where(after < s.n_states, after, -1), s.states),
                    "count": count[seen].astype(float),
                    "patients": patients[seen],
                    "share": np.divide(
                        count[seen], total, out=np.full(len(seen), np.nan), where=total > 0
                    ),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def line_codes(s: Sequences, max_lines: int) -> NDArray[np.int8]:
    """The state of each patient's lines 1 … max_lines, (n, max_lines); −1 after the last."""
    lines = np.full((len(s), max_lines), -1, dtype=np.int8)
    number = np.zeros(len(s), dtype=np.intp)
    current = np.full(len(s), -1, dtype=np.int8)
    for t in range(s.shape[1]):
        state = s.codes[:, t]
        new = np.flatnonzero((state >= 0) & (state != current) & (number < max_lines))
        lines[new, number[new]] = state[new]
        number[new] += 1
        current = np.where(state >= 0, state, current)
    return lines


def certainty_by_class(model: Any, weights: Any = None) -> pd.DataFrame:
    """How certain the patients' class membership is, class by class.

    Parameters
    ----------
    model : fitted MixtureMarkov, or a table like its `posterior_` (class, probability)
    weights : (n,), optional
        Case weights of the patients.

    Returns
    -------
    DataFrame
        class, `patients`, `mean` of the probability of the patients' own class, its `q05`,
        `q25`, `median`, `q75` and `q95`, and `sure`, the share of patients above 0.8.

    Examples
    --------
    >>> table = pd.DataFrame({"class": [0, 0, 1], "probability": [0.9, 0.7, 1.0]})
    >>> certainty_by_class(table)[["class", "patients", "mean", "sure"]]
       class  patients  mean  sure
    0      0         2   0.8   0.5
    1      1         1   1.0   1.0
    """
    posterior = getattr(model, "posterior_", model)
    need_columns(posterior, ["class", "probability"])
    if not len(posterior):
        raise ValueError("there are no patients to describe.")
    n = len(posterior)
    weight = pd.Series(np.ones(n) if weights is None else numbers_for(weights, n, "weights"))
    by_class = (
        posterior["probability"].reset_index(drop=True).groupby(posterior["class"].to_numpy())
    )
    rows = []
    for label, p in by_class:
        w = weight[p.index].to_numpy()
        if w.sum() > 0:
            cuts = np.quantile(p, [0.05, 0.25, 0.5, 0.75, 0.95], weights=w, method="inverted_cdf")
            sure = float(np.average(p > 0.8, weights=w))
            rows.append([label, int((w > 0).sum()), np.average(p, weights=w), *cuts, sure])
    names = ["class", "patients", "mean", "q05", "q25", "median", "q75", "q95", "sure"]
    return pd.DataFrame(rows, columns=names)


# --- inside ----------------------------------------------------------------------------


def _counts_by_time(s: Sequences) -> NDArray[np.float64]:
    """Weighted number of patients in each state at each time, (T, S)."""
    table = np.empty((s.shape[1], s.n_states))
    for t in range(s.shape[1]):
        seen = s.codes[:, t] >= 0
        table[t] = np.bincount(s.codes[seen, t], weights=s.weights[seen], minlength=s.n_states)
    return table


def _ordered(codes: NDArray[np.intp], labels: tuple[str, ...]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, list(labels), ordered=True)


def _by_group(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any,
    table: Callable[[Sequences], pd.DataFrame],
) -> pd.DataFrame:
    parts = []
    for keys, part in split(sequences, groups):
        frame = table(part)
        for position, (name, value) in enumerate(keys.items()):
            frame.insert(position, name, [value] * len(frame), allow_duplicates=True)
        parts.append(frame)
    if not parts:
        raise ValueError("there are no patients to describe.")
    return parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)


def split(
    sequences: Sequences | Mapping[str, Sequences], groups: Any = None
) -> Iterator[tuple[dict[str, Hashable], Sequences]]:
    """Each site's and group's patients, with {"site": …, "group": …} as far as they apply."""
    if isinstance(sequences, Mapping):
        if groups is not None and not isinstance(groups, Mapping):
            raise TypeError("sequences come by site, so groups must be a dict {site: groups} too.")
        absent = [site for site in sequences if groups is not None and site not in groups]
        if absent:
            raise ValueError(f"groups are missing for the sites {some(absent)}.")
        for site, part in sequences.items():
            for keys, subset in split(part, None if groups is None else groups[site]):
                yield {"site": site, **keys}, subset
    elif groups is None:
        yield {}, sequences
    else:
        labels = _group_labels(sequences, groups)
        levels = (
            labels.cat.categories
            if isinstance(labels.dtype, pd.CategoricalDtype)
            else np.sort(labels.unique())
        )
        for level in levels:
            yield {"group": level}, sequences[(labels == level).to_numpy()]


def _group_labels(sequences: Sequences, groups: Any) -> pd.Series:
    if isinstance(groups, pd.Series):
        groups = groups.reindex(sequences.ids)
    labels = pd.Series(groups)
    if len(labels) != len(sequences):
        raise ValueError(
            f"found {len(labels):,} groups for {len(sequences):,} patients; give one for each, "
            "or a Series indexed by id."
        )
    if labels.isna().any():
        raise ValueError(
            f"{labels.isna().sum():,} patients have no group (patients "
            f"{some(sequences.ids[labels.isna().to_numpy()])})."
        )
    return labels
