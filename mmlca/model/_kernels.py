"""Compiled loops of EM: plain functions on arrays that were checked before they get here.

`em` is the loop; E-step, M-step and extrapolation are in this file too, since compiled code is
allowed in files of this name only, and all of it shares one layout of arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmlca.sequences._compiled import entry, inner

Floats = NDArray[np.float64]
Ints = NDArray[np.int32] | NDArray[np.int64]

# A chain has C cells: row r of its probabilities are those from bounds[r] to bounds[r + 1]. A plain
# chain with S states has S + 1 rows of S: row i < S are the transitions from state i, row S is the
# initial distribution; only plain chains have gaps (`mmlca.sequences.forms`). Classes come in
# lanes of four, so that the processor treats four at a time: `chance` (L, C + G + H, 4) holds, for
# class 4l + m in [l, :, m], its cells, below them the probability of each of G gaps, and from row
# `first` = C + G on its share of each of H groups of patients (one where there are no groups).
# Lanes that stand for no class have share 0. What is `expected` has the same layout: visits of
# cells and gaps, and members. `table` is the tuple (n_states, indptr, tokens, cell, times, gaps,
# weights, starts, bounds) of a pattern table, in which the patterns of group h are those from
# starts[h] to starts[h + 1]. `scratch` are arrays to work in: powers (L, V, 4) of the V tokens,
# their visits (V + 1, 4), joint probabilities (L, B, 4) of a block of at most B = BLOCK patterns,
# and rows of states (5, S + 1, S).

BLOCK = 2048
_ONE = np.uint64(1)
_TINY = 1e-250
_GROWTH = 1.0 + 1e-3  # a cell that rises by this factor in an update is not at its maximum

# Compiling is what the first fit waits for, so the code is plain: loops are written out, since an
# assignment between arrays brings its error messages with it, and so are assignments to several
# names and the larger of two numbers, which are calls to numba.


@inner
def _copy(source: Floats, target: Floats) -> None:
    """Copy parameters, or what is expected of them, (L, C + G + H, 4)."""
    for g in range(source.shape[0]):
        for c in range(source.shape[1]):
            for m in range(4):
                target[g, c, m] = source[g, c, m]


@inner
def _take_rows(first: int, chance: Floats, g: int, m: int, rows: Floats) -> bool:
    """Copy a class's cells into rows[0] (S + 1, S); returns whether it has a share of any group."""
    n_states = rows.shape[2]
    for i in range(n_states + 1):
        for j in range(n_states):
            rows[0, i, j] = chance[g, i * n_states + j, m]
    share = 0.0
    for h in range(first, chance.shape[1]):
        share += chance[g, h, m]
    return share > 0.0


@inner
def _gap_chances(n_states: int, gaps: Ints, chance: Floats, rows: Floats) -> None:
    """Fill the rows of `chance` below the plain cells: (T^{g+1})_ij for each gap, each class."""
    if len(gaps) == 0:
        return
    n_cells = n_states * (n_states + 1)
    for g in range(len(chance)):
        for m in range(4):
            if not _take_rows(n_cells + len(gaps), chance, g, m, rows):
                continue
            now = 1  # rows[1] and rows[2] are the present power and the next, by turns
            e = 0
            for i in range(n_states + 1):
                for j in range(n_states):
                    rows[now, i, j] = rows[0, i, j]
            for length in range(1, gaps[-1, 1] + 1):  # the gaps are sorted by length
                then = now
                now = 3 - now
                for i in range(n_states + 1):
                    for j in range(n_states):
                        rows[now, i, j] = 0.0
                    for h in range(n_states):
                        for j in range(n_states):
                            rows[now, i, j] += rows[then, i, h] * rows[0, h, j]
                while e < len(gaps) and gaps[e, 1] == length:
                    chance[g, n_cells + e, m] = rows[now, gaps[e, 0], gaps[e, 2]]
                    e += 1


@inner
def _spread_gaps(n_states: int, gaps: Ints, chance: Floats, expected: Floats, rows: Floats) -> None:
    """Turn expected visits of gaps into expected visits of the cells passed on the way.

    With R_g the visits of gaps of length g divided by their chance, θ the (S + 1, S) cells and
    T its first S rows, these are θ ∘ (Y_0 + F_1), where Y_m = R_m + Y_{m+1} Tᵀ and
    F_m = θᵀ Y_m + Tᵀ F_{m+1}: one sweep from the longest gap down. θ is rows[0]; the present Y
    and the next are rows[1] and rows[2] by turns; two rows further down is F, of S rows.
    """
    if len(gaps) == 0:
        return
    n_cells = n_states * (n_states + 1)
    for g in range(len(chance)):
        for m in range(4):
            if not _take_rows(n_cells + len(gaps), chance, g, m, rows):
                continue
            now = 1
            e = len(gaps) - 1
            for i in range(n_states + 1):
                for j in range(n_states):
                    rows[now, i, j] = 0.0
                    rows[now + 2, i, j] = 0.0
            for length in range(gaps[-1, 1], -1, -1):
                then = now
                now = 3 - now
                for i in range(n_states + 1):
                    for b in range(n_states):
                        total = 0.0
                        for j in range(n_states):
                            total += rows[then, i, j] * rows[0, b, j]
                        rows[now, i, b] = total
                        rows[now + 2, i, b] = rows[then + 2, i, b]
                while e >= 0 and gaps[e, 1] == length:
                    visits = expected[g, n_cells + e, m]
                    likely = chance[g, n_cells + e, m]
                    if visits > 0.0 and likely > 0.0:  # weights of 1e300 beside 1e-300 underflow
                        rows[now, gaps[e, 0], gaps[e, 2]] += visits / likely
                    e -= 1
                if length > 0:
                    for a in range(n_states):
                        for b in range(n_states):
                            total = rows[0, n_states, a] * rows[now, n_states, b]
                            for h in range(n_states):
                                total += rows[0, h, a] * (rows[now, h, b] + rows[then + 2, h, b])
                            rows[now + 2, a, b] = total
            for i in range(n_states + 1):
                for b in range(n_states):
                    through = rows[now, i, b]
                    if i < n_states:
                        through += rows[now + 2, i, b]
                    expected[g, i * n_states + b, m] += rows[0, i, b] * through


@inner
def _raise_powers(cell: Ints, times: Ints, chance: Floats, powers: Floats) -> None:
    """powers[v] = chance[cell[v]]^times[v]; the tokens of one cell follow each other."""
    for v in range(len(cell)):
        c = cell[v]
        more = times[v]
        goes_on = v > 0 and c == cell[v - 1]
        if goes_on:
            more -= times[v - 1]
        for m in range(4):
            power = powers[v - 1, m] if goes_on else 1.0
            if more > 64:
                power *= chance[c, m] ** more
            else:
                for _ in range(more):
                    power *= chance[c, m]
            powers[v, m] = power


@inner
def _multiply(
    begin: int, end: int, indptr: Ints, tokens: Ints, powers: Floats, share: Floats, joint: Floats
) -> None:
    """Joint probability of class and pattern, for the patterns from `begin` to `end`."""
    m = np.uint64(indptr[begin])
    for u in range(begin, end):
        a = share[0]
        b = share[1]
        c = share[2]
        d = share[3]
        stop = np.uint64(indptr[u + 1])
        while m < stop:
            v = np.uint64(tokens[m])
            a *= powers[v, 0]
            b *= powers[v, 1]
            c *= powers[v, 2]
            d *= powers[v, 3]
            m += _ONE
        r = u - begin
        joint[r, 0] = a
        joint[r, 1] = b
        joint[r, 2] = c
        joint[r, 3] = d


@inner
def _scatter(
    begin: int, end: int, indptr: Ints, tokens: Ints, joint: Floats, visits: Floats
) -> None:
    """Each pattern's responsibilities, summed by token and, in the last row, over all patterns."""
    for t in range(len(visits)):
        for k in range(4):
            visits[t, k] = 0.0
    m0 = 0.0
    m1 = 0.0
    m2 = 0.0
    m3 = 0.0
    m = np.uint64(indptr[begin])
    for u in range(begin, end):
        r = u - begin
        a = joint[r, 0]
        b = joint[r, 1]
        c = joint[r, 2]
        d = joint[r, 3]
        m0 += a
        m1 += b
        m2 += c
        m3 += d
        stop = np.uint64(indptr[u + 1])
        while m < stop:
            v = np.uint64(tokens[m])
            visits[v, 0] += a
            visits[v, 1] += b
            visits[v, 2] += c
            visits[v, 3] += d
            m += _ONE
    last = len(visits) - 1
    visits[last, 0] = m0
    visits[last, 1] = m1
    visits[last, 2] = m2
    visits[last, 3] = m3


@inner
def _log_joint(
    begin: int,
    end: int,
    tokens: Ints,
    powered: tuple[Ints, Ints],
    chance: Floats,
    group: int,
    r: int,
    joint: Floats,
) -> float:
    """Class probabilities of a pattern by log-sum-exp, in joint[:, r]; returns its log-likelihood.

    The pattern's tokens are those from `begin` to `end`; `powered` are the cell and the exponent
    of each token; `group` is the row of `chance` that holds the shares.
    """
    cell, times = powered
    top = -np.inf
    for g in range(len(chance)):
        for m in range(4):
            log_joint = -np.inf
            if chance[g, group, m] > 0.0:
                log_joint = np.log(chance[g, group, m])
                for t in range(begin, end):
                    p = chance[g, cell[tokens[t]], m]
                    log_joint += times[tokens[t]] * (np.log(p) if p > 0.0 else -np.inf)
            joint[g, r, m] = log_joint
            if log_joint > top:
                top = log_joint
    total = 0.0
    for g in range(len(chance)):
        for m in range(4):
            one = np.exp(joint[g, r, m] - top) if top > -np.inf else chance[g, group, m]
            joint[g, r, m] = one
            total += one
    for g in range(len(chance)):
        for m in range(4):
            joint[g, r, m] /= total
    return float(top + np.log(total))


@inner
def _e_step(
    table: tuple,  # type: ignore[type-arg]
    scratch: tuple,  # type: ignore[type-arg]
    chance: Floats,
    expected: Floats,
    posterior: Floats,
    logs: Floats,
) -> float:
    """Log-likelihood; fills what is expected of each class.

    `posterior` (L, U, 4) receives the class probabilities of each pattern and `logs` (U,) its
    log-likelihood; both may have U = 0 where they are not wanted. Where
    a product of chances nearly underflows it is computed again with logarithms. Sums run in
    blocks, so that rounding errors do not grow with the number of patterns.
    """
    n_states, indptr, tokens, cell, times, gaps, weights, starts, bounds = table
    powers, visits, joint, rows = scratch
    powered = (cell, times)
    n_lanes = len(chance)
    n_tokens = len(cell)
    keep = len(logs) > 0
    first = bounds[-1] + len(gaps)
    _gap_chances(n_states, gaps, chance, rows)
    for g in range(n_lanes):
        _raise_powers(cell, times, chance[g], powers[g])
        for c in range(expected.shape[1]):
            for m in range(4):
                expected[g, c, m] = 0.0
    log_likelihood = 0.0
    for h in range(len(starts) - 1):
        group = first + h
        for begin in range(starts[h], starts[h + 1], BLOCK):
            end = starts[h + 1]
            if end > begin + BLOCK:
                end = begin + BLOCK
            for g in range(n_lanes):
                _multiply(begin, end, indptr, tokens, powers[g], chance[g, group], joint[g])
            block_likelihood = 0.0
            product = 1.0  # of probabilities of weight 1: one logarithm serves several patterns
            for r in range(end - begin):
                u = begin + r
                weight = weights[u]
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
                        logs[u] = np.log(total)
                else:
                    log_total = _log_joint(
                        indptr[u], indptr[u + 1], tokens, powered, chance, group, r, joint
                    )
                    total = 1.0
                    if weight > 0.0:
                        block_likelihood += weight * log_total
                    if keep:
                        logs[u] = log_total
                if keep:
                    for g in range(n_lanes):
                        for m in range(4):
                            posterior[g, u, m] = joint[g, r, m] / total
                factor = weight / total
                for g in range(n_lanes):
                    for m in range(4):
                        joint[g, r, m] *= factor
            log_likelihood += block_likelihood + np.log(product)
            for g in range(n_lanes):
                _scatter(begin, end, indptr, tokens, joint[g], visits)
                for v in range(n_tokens):
                    for m in range(4):
                        expected[g, cell[v], m] += times[v] * visits[v, m]
                for m in range(4):
                    expected[g, group, m] += visits[n_tokens, m]
    _spread_gaps(n_states, gaps, chance, expected, rows)
    return log_likelihood


@inner
def _m_step(bounds: Ints, first: int, expected: Floats, prior: Floats, chance: Floats) -> None:
    """New parameters from what is expected.

    `prior` (L, C + 1, 4) holds pseudo-counts of the cells and, last, of the classes; −1 marks a
    cell that must stay zero, or a lane without a class. A row that is never visited becomes even
    over its other cells.
    """
    last = bounds[-1]
    for h in range(first, chance.shape[1]):
        total = 0.0
        for g in range(len(chance)):
            for m in range(4):
                if prior[g, last, m] >= 0.0:
                    total += expected[g, h, m] + prior[g, last, m]
        if total == 0.0:  # nobody weighs anything in this group
            continue
        for g in range(len(chance)):
            for m in range(4):
                if prior[g, last, m] >= 0.0:
                    chance[g, h, m] = (expected[g, h, m] + prior[g, last, m]) / total
    for g in range(len(chance)):
        for m in range(4):
            if prior[g, last, m] < 0.0:
                continue
            for i in range(len(bounds) - 1):
                row_total = 0.0
                n_open = 0
                for c in range(bounds[i], bounds[i + 1]):
                    chance[g, c, m] = 0.0
                    if prior[g, c, m] >= 0.0:
                        visits = expected[g, c, m] + prior[g, c, m]
                        chance[g, c, m] = visits
                        row_total += visits
                        n_open += 1
                for c in range(bounds[i], bounds[i + 1]):
                    if row_total > 0.0:
                        chance[g, c, m] /= row_total
                    elif prior[g, c, m] >= 0.0:
                        chance[g, c, m] = 1.0 / n_open


@inner
def _log_prior(first: int, prior: Floats, chance: Floats) -> float:
    """The penalty: Σ pseudo-count · log probability, each row's factors under one logarithm."""
    total = 0.0
    last = prior.shape[1] - 1
    for g in range(len(chance)):
        for m in range(4):
            if prior[g, last, m] > 0.0:
                for h in range(first, chance.shape[1]):
                    total += prior[g, last, m] * np.log(chance[g, h, m])
            product = 1.0
            for c in range(last):
                if prior[g, c, m] > 0.0:
                    product *= chance[g, c, m]
                    if product < 1e-100 or c + 1 == last or prior[g, c + 1, m] != prior[g, c, m]:
                        total += prior[g, c, m] * np.log(product)
                        product = 1.0
    return total


@entry
def em(
    table: tuple,  # type: ignore[type-arg]
    scratch: tuple,  # type: ignore[type-arg]
    prior: Floats,
    chances: Floats,
    visits: Floats,
    limits: tuple[int, float, bool, int],
    path: Floats,
    classes: tuple[Floats, Floats],
) -> tuple[int, bool]:
    """EM from the parameters chances[3]; returns the updates made and if converged.

    The last parameters are chances[3] again, and what is expected of them is visits[0]; the rest
    of `chances` (4, L, C + G + H, 4) and `visits` (2, L, C + G + H, 4) is room for those before.
    `limits` are max_iter, tol, accelerate and n_confirm. With max_iter 0 there is an E-step and
    no more. `classes` are `posterior` and `logs` of `_e_step`.

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
    gaps, bounds = table[5], table[8]
    max_iter, tol, accelerate, n_confirm = limits
    posterior, logs = classes
    first = bounds[-1] + len(gaps)
    chance = chances[3]
    expected = visits[0]
    n_done = -1
    n_plain = 0
    n_passed = 0
    leapt = False
    gain_before = 0.0
    while True:
        likelihood = _e_step(table, scratch, chance, expected, posterior, logs)
        value = likelihood + _log_prior(first, prior, chance)
        if leapt and not value >= path[n_done, 1]:
            _copy(chances[2], chance)
            _copy(visits[1], expected)
        else:
            n_done += 1
            path[n_done, 0] = likelihood
            path[n_done, 1] = value
            if not np.isfinite(value):
                return n_done, False
            gain = 0.0
            grows = False
            if n_done > 0 and not leapt:
                gain = value - path[n_done - 1, 1]
                noise = 1e-14 * abs(value)
                # the gains to come, gain · ratio / (1 − ratio) with ratio = gain / gain_before
                small = gain <= noise or (gain < tol and gain * gain < tol * (gain_before - gain))
                grows = small and _grows(bounds[-1], prior, chances[n_plain - 1], chance)
                n_passed = n_passed + 1 if tol > 0.0 and small and not grows else 0
                if n_passed > n_confirm:
                    return n_done, True
            gain_before = gain
            if n_done == max_iter:
                return n_done, False
            if accelerate and n_plain == 2 and not leapt and n_passed == 0:
                _copy(chance, chances[2])
                _copy(expected, visits[1])
                if grows:
                    _lift(bounds, prior, expected, chances[1], chance)
                else:
                    _extrapolate(bounds, first, chances)
                leapt = True
                continue
        if n_plain == 2:
            n_plain = 0
        leapt = False
        _copy(chance, chances[n_plain])
        n_plain += 1
        _m_step(bounds, first, expected, prior, chance)


@inner
def _grows(n_cells: int, prior: Floats, before: Floats, after: Floats) -> bool:
    """Whether an update raised any probability by more than a small part of itself.

    At a maximum no cell grows: those above zero stay, those at zero shrink. A tiny cell that
    grows is a plateau: it takes long to matter, and then the log-likelihood rises.
    """
    for g in range(len(before)):
        for c in range(n_cells):
            for m in range(4):
                if prior[g, c, m] >= 0.0 and after[g, c, m] > _GROWTH * before[g, c, m]:
                    return True
    return False


@inner
def _lift(bounds: Ints, prior: Floats, expected: Floats, before: Floats, after: Floats) -> None:
    """Off a plateau: raise the cells that grow, and normalise their rows.

    A cell that one patient needs and that grows by the factor r, in a row of n visits, has its
    maximum at (1 − 1/r) / n; half of this is safe for all.
    """
    for g in range(len(before)):
        for m in range(4):
            for i in range(len(bounds) - 1):
                visits = 0.0
                total = 0.0
                for c in range(bounds[i], bounds[i + 1]):
                    visits += expected[g, c, m]
                for c in range(bounds[i], bounds[i + 1]):
                    now = after[g, c, m]
                    then = before[g, c, m]
                    if prior[g, c, m] >= 0.0 and now > _GROWTH * then:
                        safe = 0.5 * (1.0 - then / now) / (visits if visits > 1.0 else 1.0)
                        now = safe if safe > now else now
                        after[g, c, m] = now
                    total += now
                if total == 0.0:  # all of its cells are forbidden
                    continue
                for c in range(bounds[i], bounds[i + 1]):
                    after[g, c, m] /= total


@inner
def _extrapolate(bounds: Ints, first: int, chances: Floats) -> None:
    """The squared step from three successive parameter sets, chances[0] to chances[2].

    θ₀ − 2αr + α²v with r = θ₁ − θ₀, v = θ₂ − 2θ₁ + θ₀ and α = −‖r‖ / ‖v‖, made positive and
    normalised; in chances[3].
    """
    r = 0.0
    v = 0.0
    for g in range(chances.shape[1]):
        for m in range(4):
            for k in range(2):  # first the shares, then the cells
                begin = first if k == 0 else 0
                end = chances.shape[2] if k == 0 else bounds[-1]
                for c in range(begin, end):
                    zero = chances[0, g, c, m]
                    one = chances[1, g, c, m]
                    two = chances[2, g, c, m]
                    r += (one - zero) ** 2
                    v += (two - 2.0 * one + zero) ** 2
    step = -np.sqrt(r / v) if v > 0.0 and r > v else -1.0
    for g in range(chances.shape[1]):
        for m in range(4):
            for i in range(len(bounds) - 1):
                total = 0.0
                for c in range(bounds[i], bounds[i + 1]):
                    total += _leap(chances, g, c, m, step)
                if total == 0.0:  # all of its cells are forbidden
                    continue
                for c in range(bounds[i], bounds[i + 1]):
                    chances[3, g, c, m] /= total
    for h in range(first, chances.shape[2]):
        total = 0.0
        for g in range(chances.shape[1]):
            for m in range(4):
                total += _leap(chances, g, h, m, step)
        for g in range(chances.shape[1]):
            for m in range(4):
                chances[3, g, h, m] /= total


@inner
def _leap(chances: Floats, g: int, c: int, m: int, step: float) -> float:
    """One probability after the squared step, which it returns."""
    zero = chances[0, g, c, m]
    one = chances[1, g, c, m]
    two = chances[2, g, c, m]
    far = zero - 2.0 * step * (one - zero) + step * step * (two - 2.0 * one + zero)
    if not far > 0.01 * two:
        far = 0.01 * two
    chances[3, g, c, m] = far
    return float(far)
