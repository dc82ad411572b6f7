"""Compiled loops of EM: plain functions on arrays that were checked before they get here.

`em` is the loop; E-step, M-step and extrapolation stand beside it, since compiled code may live
in files of this name only and they share one layout. That is why this file is a long one.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

import mmlca.sequences._compiled  # noqa: F401 - readies the cache

# A chain with S states has S + 1 rows of probabilities: row i < S are the transitions from
# state i, row S is the initial distribution; together C = S·(S + 1) cells. Classes come in
# lanes of four, so that the processor treats four at a time: `chance` (L, C + G, 4) holds, for
# class 4l + m in [l, :, m], its cells and below them the probability of each of G gaps;
# `share` (H, L, 4) holds the classes' proportions in each of H groups of patients, one group where
# none are told apart. Lanes that stand for no class have share 0. `table` is the tuple (n_states,
# indptr, tokens, cell, times, gaps, weights, starts) of a pattern table, in which the patterns of
# group h are those from starts[h] to starts[h + 1].

_ONE = np.uint64(1)
_TINY = 1e-250
_BLOCK = 2048
_GROWTH = 1.0 + 1e-3  # a cell that rises by this factor in an update is not at its maximum

# Compiling is what the first fit waits for. Loops are written out, since an assignment between
# arrays brings its error messages with it; divisions do not check for zero; and what only other
# loops call has neither an entry from Python nor a file in the cache.
_entry = njit(cache=True, nogil=True, error_model="numpy")
_inner = njit(  # type: ignore[call-overload]  # numba's stubs lack the last two
    nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)


@_inner
def _copy(
    cells: NDArray[np.float64],
    shares: NDArray[np.float64],
    to_cells: NDArray[np.float64],
    to_shares: NDArray[np.float64],
) -> None:
    """Copy cells (L, C + G, 4) and shares (H, L, 4), or what is expected of them."""
    for g in range(cells.shape[0]):
        for c in range(cells.shape[1]):
            for m in range(4):
                to_cells[g, c, m] = cells[g, c, m]
    for h in range(shares.shape[0]):
        for g in range(shares.shape[1]):
            for m in range(4):
                to_shares[h, g, m] = shares[h, g, m]


@_inner
def _rows_of(chance: NDArray[np.float64], g: int, m: int, rows: NDArray[np.float64]) -> None:
    """Copy a class's cells into rows of states (S + 1, S): the loops over gaps want them dense."""
    n_states = rows.shape[1]
    for i in range(n_states + 1):
        for j in range(n_states):
            rows[i, j] = chance[g, i * n_states + j, m]


@_entry
def gap_chances(
    n_states: int,
    gaps: NDArray[np.int64],
    share: NDArray[np.float64],
    chance: NDArray[np.float64],
) -> None:
    """Fill the rows of `chance` below the plain cells: (T^{g+1})_ij for each gap, each class."""
    if len(gaps) == 0:
        return
    n_cells = n_states * (n_states + 1)
    rows = np.empty((n_states + 1, n_states))
    power = np.empty((2, n_states + 1, n_states))  # the present one and the next, by turns
    for g in range(len(chance)):
        for m in range(4):
            if share[g, m] == 0.0:
                continue
            _rows_of(chance, g, m, rows)
            now, e = 0, 0
            for i in range(n_states + 1):
                for j in range(n_states):
                    power[now, i, j] = rows[i, j]
            for length in range(1, gaps[-1, 1] + 1):  # the gaps are sorted by length
                then, now = now, 1 - now
                for i in range(n_states + 1):
                    for j in range(n_states):
                        power[now, i, j] = 0.0
                    for h in range(n_states):
                        for j in range(n_states):
                            power[now, i, j] += power[then, i, h] * rows[h, j]
                while e < len(gaps) and gaps[e, 1] == length:
                    chance[g, n_cells + e, m] = power[now, gaps[e, 0], gaps[e, 2]]
                    e += 1


@_entry
def spread_gaps(
    n_states: int,
    gaps: NDArray[np.int64],
    share: NDArray[np.float64],
    chance: NDArray[np.float64],
    expected: NDArray[np.float64],
) -> None:
    """Turn expected visits of gaps into expected visits of the cells passed on the way.

    With R_g the visits of gaps of length g divided by their chance, θ the (S + 1, S) cells and
    T its first S rows, these are θ ∘ (Y_0 + F_1), where Y_m = R_m + Y_{m+1} Tᵀ and
    F_m = θᵀ Y_m + Tᵀ F_{m+1}: one sweep from the longest gap down.
    """
    if len(gaps) == 0:
        return
    n_cells = n_states * (n_states + 1)
    rows = np.empty((n_states + 1, n_states))
    behind = np.empty((2, n_states + 1, n_states))  # the present one and the next, by turns
    inner = np.empty((2, n_states + 1, n_states))  # the last row stays unused
    for g in range(len(chance)):
        for m in range(4):
            if share[g, m] == 0.0:
                continue
            _rows_of(chance, g, m, rows)
            now, e = 0, len(gaps) - 1
            for i in range(n_states + 1):
                for j in range(n_states):
                    behind[now, i, j] = inner[now, i, j] = 0.0
            for length in range(gaps[-1, 1], -1, -1):
                then, now = now, 1 - now
                for i in range(n_states + 1):
                    for b in range(n_states):
                        total = 0.0
                        for j in range(n_states):
                            total += behind[then, i, j] * rows[b, j]
                        behind[now, i, b] = total
                        inner[now, i, b] = inner[then, i, b]
                while e >= 0 and gaps[e, 1] == length:
                    visits, likely = expected[g, n_cells + e, m], chance[g, n_cells + e, m]
                    if visits > 0.0 and likely > 0.0:  # weights of 1e300 beside 1e-300 underflow
                        behind[now, gaps[e, 0], gaps[e, 2]] += visits / likely
                    e -= 1
                if length > 0:
                    for a in range(n_states):
                        for b in range(n_states):
                            total = rows[n_states, a] * behind[now, n_states, b]
                            for h in range(n_states):
                                total += rows[h, a] * (behind[now, h, b] + inner[then, h, b])
                            inner[now, a, b] = total
            for i in range(n_states + 1):
                for b in range(n_states):
                    through = behind[now, i, b]
                    if i < n_states:
                        through += inner[now, i, b]
                    expected[g, i * n_states + b, m] += rows[i, b] * through


@_inner
def _raise_powers(
    cell: NDArray[np.int32],
    times: NDArray[np.int32],
    chance: NDArray[np.float64],
    powers: NDArray[np.float64],
) -> None:
    """powers[v] = chance[cell[v]]^times[v]; the tokens of one cell follow each other."""
    for v in range(len(cell)):
        c = cell[v]
        a = b = c_ = d = 1.0
        more = times[v]
        if v > 0 and c == cell[v - 1]:
            more -= times[v - 1]
            a, b, c_, d = powers[v - 1, 0], powers[v - 1, 1], powers[v - 1, 2], powers[v - 1, 3]
        w, x, y, z = chance[c, 0], chance[c, 1], chance[c, 2], chance[c, 3]
        if more > 64:
            a, b, c_, d = a * w**more, b * x**more, c_ * y**more, d * z**more
        else:
            for _ in range(more):
                a, b, c_, d = a * w, b * x, c_ * y, d * z
        powers[v, 0], powers[v, 1], powers[v, 2], powers[v, 3] = a, b, c_, d


@_inner
def _multiply(
    begin: int,
    end: int,
    indptr: NDArray[np.int64],
    tokens: NDArray[np.int32],
    powers: NDArray[np.float64],
    share: NDArray[np.float64],
    joint: NDArray[np.float64],
) -> None:
    """Joint probability of class and pattern, for the patterns from `begin` to `end`."""
    m = np.uint64(indptr[begin])
    for u in range(begin, end):
        a, b, c, d = share[0], share[1], share[2], share[3]
        stop = np.uint64(indptr[u + 1])
        while m < stop:
            v = np.uint64(tokens[m])
            a *= powers[v, 0]
            b *= powers[v, 1]
            c *= powers[v, 2]
            d *= powers[v, 3]
            m += _ONE
        r = u - begin
        joint[r, 0], joint[r, 1], joint[r, 2], joint[r, 3] = a, b, c, d


@_inner
def _scatter(
    begin: int,
    end: int,
    indptr: NDArray[np.int64],
    tokens: NDArray[np.int32],
    joint: NDArray[np.float64],
    visits: NDArray[np.float64],
) -> None:
    """Add each pattern's responsibilities to its tokens and, in the last row, to the classes."""
    m = np.uint64(indptr[begin])
    m0 = m1 = m2 = m3 = 0.0
    for u in range(begin, end):
        r = u - begin
        a, b, c, d = joint[r, 0], joint[r, 1], joint[r, 2], joint[r, 3]
        m0, m1, m2, m3 = m0 + a, m1 + b, m2 + c, m3 + d
        stop = np.uint64(indptr[u + 1])
        while m < stop:
            v = np.uint64(tokens[m])
            visits[v, 0] += a
            visits[v, 1] += b
            visits[v, 2] += c
            visits[v, 3] += d
            m += _ONE
    last = len(visits) - 1
    visits[last, 0], visits[last, 1], visits[last, 2], visits[last, 3] = m0, m1, m2, m3


@_inner
def _log_joint(
    u: int,
    indptr: NDArray[np.int64],
    tokens: NDArray[np.int32],
    powered: tuple[NDArray[np.int32], NDArray[np.int32]],
    chance: NDArray[np.float64],
    share: NDArray[np.float64],
    joint: NDArray[np.float64],
) -> float:
    """Class probabilities of pattern u by log-sum-exp, in `joint`; returns its log-likelihood.

    `powered` are the cell and the exponent of each token.
    """
    cell, times = powered
    top = -np.inf
    for g in range(len(share)):
        for m in range(4):
            log_joint = -np.inf
            if share[g, m] > 0.0:
                log_joint = np.log(share[g, m])
                for t in range(indptr[u], indptr[u + 1]):
                    p = chance[g, cell[tokens[t]], m]
                    log_joint += times[tokens[t]] * (np.log(p) if p > 0.0 else -np.inf)
            joint[g, m] = log_joint
            top = max(top, log_joint)
    total = 0.0
    for g in range(len(share)):
        for m in range(4):
            joint[g, m] = np.exp(joint[g, m] - top) if top > -np.inf else share[g, m]
            total += joint[g, m]
    for g in range(len(share)):
        for m in range(4):
            joint[g, m] /= total
    return float(top + np.log(total))


@_entry
def e_step(
    table: tuple,  # type: ignore[type-arg]
    chance: NDArray[np.float64],
    share: NDArray[np.float64],
    expected: NDArray[np.float64],
    members: NDArray[np.float64],
    posterior: NDArray[np.float64],
    logs: NDArray[np.float64],
) -> float:
    """Log-likelihood; fills expected visits (L, C + G, 4) and members (H, L, 4) of each class.

    `posterior` (L, U, 4) receives the class probabilities of each pattern and `logs` (U,) its
    log-likelihood; both may have U = 0 where they are not wanted. Where
    a product of chances nearly underflows it is computed again with logarithms. Sums run in
    blocks, so that rounding errors do not grow with the number of patterns.
    """
    n_states, indptr, tokens, cell, times, gaps, weights, starts = table
    n_groups, n_lanes, n_tokens = len(share), share.shape[1], len(cell)
    powered, keep = (cell, times), len(logs) > 0
    live = np.zeros((n_lanes, 4))
    for h in range(n_groups):
        for g in range(n_lanes):
            for m in range(4):
                live[g, m] += share[h, g, m]
    gap_chances(n_states, gaps, live, chance)
    powers = np.empty((n_lanes, n_tokens, 4))
    visits = np.empty((n_tokens + 1, 4))
    joint = np.empty((n_lanes, min(_BLOCK, len(weights)), 4))
    one = np.empty((n_lanes, 4))
    expected[:] = 0.0
    members[:] = 0.0
    for g in range(n_lanes):
        _raise_powers(cell, times, chance[g], powers[g])
    log_likelihood = 0.0
    for h in range(n_groups):
        for begin in range(starts[h], starts[h + 1], _BLOCK):
            end = min(begin + _BLOCK, starts[h + 1])
            for g in range(n_lanes):
                _multiply(begin, end, indptr, tokens, powers[g], share[h, g], joint[g])
            block_likelihood = 0.0
            product = 1.0  # of probabilities of weight 1: one logarithm serves several patterns
            for r in range(end - begin):
                weight = weights[begin + r]
                total = 0.0
                for g in range(n_lanes):
                    total += (joint[g, r, 0] + joint[g, r, 1]) + (joint[g, r, 2] + joint[g, r, 3])
                if total > _TINY:
                    if weight == 1.0:
                        product *= total
                        if product < 1e-50:
                            block_likelihood += np.log(product)
                            product = 1.0
                    elif weight > 0.0:
                        block_likelihood += weight * np.log(total)
                    if keep:
                        logs[begin + r] = np.log(total)
                else:
                    u = begin + r
                    log_total = _log_joint(u, indptr, tokens, powered, chance, share[h], one)
                    for g in range(n_lanes):
                        for m in range(4):
                            joint[g, r, m] = one[g, m]
                    total = 1.0
                    if weight > 0.0:
                        block_likelihood += weight * log_total
                    if keep:
                        logs[begin + r] = log_total
                if keep:
                    for g in range(n_lanes):
                        for m in range(4):
                            posterior[g, begin + r, m] = joint[g, r, m] / total
                factor = weight / total
                for g in range(n_lanes):
                    for m in range(4):
                        joint[g, r, m] *= factor
            log_likelihood += block_likelihood + np.log(product)
            for g in range(n_lanes):
                visits[:] = 0.0
                _scatter(begin, end, indptr, tokens, joint[g], visits)
                for v in range(n_tokens):
                    for m in range(4):
                        expected[g, cell[v], m] += times[v] * visits[v, m]
                for m in range(4):
                    members[h, g, m] += visits[n_tokens, m]
    spread_gaps(n_states, gaps, live, chance, expected)
    return log_likelihood


@_inner
def m_step(
    n_states: int,
    expected: NDArray[np.float64],
    members: NDArray[np.float64],
    prior: NDArray[np.float64],
    chance: NDArray[np.float64],
    share: NDArray[np.float64],
) -> None:
    """New parameters from expected visits and members.

    `prior` (L, C + 1, 4) holds pseudo-counts of the cells and, last, of the classes; −1 marks a
    cell that must stay zero, or a lane without a class. A row that is never visited becomes even
    over its other cells.
    """
    last = n_states * (n_states + 1)
    for h in range(len(share)):
        total = 0.0
        for g in range(len(chance)):
            for m in range(4):
                if prior[g, last, m] >= 0.0:
                    total += members[h, g, m] + prior[g, last, m]
        if total == 0.0:  # nobody weighs anything in this group
            continue
        for g in range(len(chance)):
            for m in range(4):
                if prior[g, last, m] >= 0.0:
                    share[h, g, m] = (members[h, g, m] + prior[g, last, m]) / total
    for g in range(len(chance)):
        for m in range(4):
            if prior[g, last, m] < 0.0:
                continue
            for i in range(n_states + 1):
                row_total = 0.0
                n_open = 0
                for c in range(i * n_states, (i + 1) * n_states):
                    chance[g, c, m] = 0.0
                    if prior[g, c, m] >= 0.0:
                        visits = expected[g, c, m] + prior[g, c, m]
                        chance[g, c, m] = visits
                        row_total += visits
                        n_open += 1
                for c in range(i * n_states, (i + 1) * n_states):
                    if row_total > 0.0:
                        chance[g, c, m] /= row_total
                    elif prior[g, c, m] >= 0.0:
                        chance[g, c, m] = 1.0 / n_open


@_inner
def log_prior(
    prior: NDArray[np.float64], chance: NDArray[np.float64], share: NDArray[np.float64]
) -> float:
    """The penalty: Σ pseudo-count · log probability, each row's factors under one logarithm."""
    total = 0.0
    last = prior.shape[1] - 1
    for g in range(len(chance)):
        for m in range(4):
            if prior[g, last, m] > 0.0:
                for h in range(len(share)):
                    total += prior[g, last, m] * np.log(share[h, g, m])
            product = 1.0
            for c in range(last):
                if prior[g, c, m] > 0.0:
                    product *= chance[g, c, m]
                    if product < 1e-100 or c + 1 == last or prior[g, c + 1, m] != prior[g, c, m]:
                        total += prior[g, c, m] * np.log(product)
                        product = 1.0
    return total


@_entry
def em(
    table: tuple,  # type: ignore[type-arg]
    prior: NDArray[np.float64],
    chance: NDArray[np.float64],
    share: NDArray[np.float64],
    max_iter: int,
    tol: float,
    accelerate: bool,
    n_confirm: int,
    path: NDArray[np.float64],
) -> tuple[int, bool]:
    """EM from `chance` and `share`, improved in place; returns the updates made and if converged.

    `path` (max_iter + 1, 2) receives log-likelihood and penalised log-likelihood of the
    parameters after 0, 1, … updates. With `accelerate`, every two updates are followed by an
    extrapolation (SQUAREM, Varadhan & Roland 2008, scheme S3), counted as an update; where it
    would lower the penalised log-likelihood it is dropped, so the path always rises.

    Convergence is judged by plain updates alone: the last gain and, going by the ratio of the
    last two, all gains to come must be below `tol`, and no cell may grow (`_grows`).
    Extrapolation then pauses, and the run ends when `n_confirm` more plain updates in a row have
    passed the same test. While only the cells that grow stand against it, the extrapolation
    raises them (`_lift`).
    """
    n_states = table[0]
    n_lanes = len(chance)
    expected, expected_kept = np.empty_like(chance), np.empty_like(chance)
    members, members_kept = np.empty_like(share), np.empty_like(share)
    none, no_logs = np.empty((n_lanes, 0, 4)), np.empty(0)
    chances = np.empty((3, *chance.shape))
    shares = np.empty((3, *share.shape))
    n_done, n_plain, n_passed, leapt, gain_before = -1, 0, 0, False, 0.0
    while True:
        likelihood = e_step(table, chance, share, expected, members, none, no_logs)
        value = likelihood + log_prior(prior, chance, share)
        if leapt and not value >= path[n_done, 1]:
            _copy(chances[2], shares[2], chance, share)
            _copy(expected_kept, members_kept, expected, members)
        else:
            n_done += 1
            path[n_done, 0] = likelihood
            path[n_done, 1] = value
            if not np.isfinite(value):
                return n_done, False
            gain, grows = 0.0, False
            if n_done > 0 and not leapt:
                gain = value - path[n_done - 1, 1]
                noise = 1e-14 * abs(value)
                # the gains to come, gain · ratio / (1 − ratio) with ratio = gain / gain_before
                small = gain <= noise or (gain < tol and gain * gain < tol * (gain_before - gain))
                grows = small and _grows(n_states, prior, chances[n_plain - 1], chance)
                n_passed = n_passed + 1 if tol > 0.0 and small and not grows else 0
                if n_passed > n_confirm:
                    return n_done, True
            gain_before = gain
            if n_done == max_iter:
                return n_done, False
            if accelerate and n_plain == 2 and not leapt and n_passed == 0:
                _copy(chance, share, chances[2], shares[2])
                _copy(expected, members, expected_kept, members_kept)
                if grows:
                    _lift(n_states, prior, expected, chances[1], chance)
                else:
                    _extrapolate(n_states, chances, shares, chance, share)
                leapt = True
                continue
        if n_plain == 2:
            n_plain = 0
        leapt = False
        _copy(chance, share, chances[n_plain], shares[n_plain])
        n_plain += 1
        m_step(n_states, expected, members, prior, chance, share)


@_inner
def _grows(
    n_states: int,
    prior: NDArray[np.float64],
    before: NDArray[np.float64],
    after: NDArray[np.float64],
) -> bool:
    """Whether an update raised any probability by more than a small part of itself.

    At a maximum no cell grows: those above zero stay, those at zero shrink. A tiny cell that
    grows is a plateau: it takes long to matter, and then the log-likelihood rises.
    """
    for g in range(len(before)):
        for c in range(n_states * (n_states + 1)):
            for m in range(4):
                if prior[g, c, m] >= 0.0 and after[g, c, m] > _GROWTH * before[g, c, m]:
                    return True
    return False


@_inner
def _lift(
    n_states: int,
    prior: NDArray[np.float64],
    expected: NDArray[np.float64],
    before: NDArray[np.float64],
    after: NDArray[np.float64],
) -> None:
    """Off a plateau: raise the cells that grow, and normalise their rows.

    A cell that one patient needs and that grows by the factor r, in a row of n visits, has its
    maximum at (1 − 1/r) / n; half of this is safe for all.
    """
    for g in range(len(before)):
        for m in range(4):
            for i in range(n_states + 1):
                visits = total = 0.0
                for c in range(i * n_states, (i + 1) * n_states):
                    visits += expected[g, c, m]
                for c in range(i * n_states, (i + 1) * n_states):
                    now, then = after[g, c, m], before[g, c, m]
                    if prior[g, c, m] >= 0.0 and now > _GROWTH * then:
                        now = max(now, 0.5 * (1.0 - then / now) / max(visits, 1.0))
                        after[g, c, m] = now
                    total += now
                for c in range(i * n_states, (i + 1) * n_states):
                    after[g, c, m] /= total


@_inner
def _extrapolate(
    n_states: int,
    chances: NDArray[np.float64],
    shares: NDArray[np.float64],
    chance: NDArray[np.float64],
    share: NDArray[np.float64],
) -> None:
    """The squared step from three successive parameter sets (3, L, C + G, 4) and (3, H, L, 4).

    θ₀ − 2αr + α²v with r = θ₁ − θ₀, v = θ₂ − 2θ₁ + θ₀ and α = −‖r‖ / ‖v‖, made positive and
    normalised.
    """
    n_cells = n_states * (n_states + 1)
    r = v = 0.0
    for g in range(len(chance)):
        for m in range(4):
            for h in range(len(share)):
                zero, one, two = shares[0, h, g, m], shares[1, h, g, m], shares[2, h, g, m]
                r += (one - zero) ** 2
                v += (two - 2.0 * one + zero) ** 2
            for c in range(n_cells):
                zero, one, two = chances[0, g, c, m], chances[1, g, c, m], chances[2, g, c, m]
                r += (one - zero) ** 2
                v += (two - 2.0 * one + zero) ** 2
    step = min(-1.0, -np.sqrt(r / v)) if v > 0.0 else -1.0
    for g in range(len(chance)):
        for m in range(4):
            for i in range(n_states + 1):
                total = 0.0
                for c in range(i * n_states, (i + 1) * n_states):
                    zero, one, two = chances[0, g, c, m], chances[1, g, c, m], chances[2, g, c, m]
                    far = _leap(zero, one, two, step)
                    chance[g, c, m] = far
                    total += far
                for c in range(i * n_states, (i + 1) * n_states):
                    chance[g, c, m] /= total
    for h in range(len(share)):
        total = 0.0
        for g in range(len(chance)):
            for m in range(4):
                far = _leap(shares[0, h, g, m], shares[1, h, g, m], shares[2, h, g, m], step)
                share[h, g, m] = far
                total += far
        for g in range(len(chance)):
            for m in range(4):
                share[h, g, m] /= total


@_inner
def _leap(zero: float, one: float, two: float, step: float) -> float:
    far = zero - 2.0 * step * (one - zero) + step * step * (two - 2.0 * one + zero)
    return max(far, 0.01 * two)
