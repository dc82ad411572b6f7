"""How certain the effects of covariates on steps are: errors, tests, and predictions from them.

The free parameters are the coefficients of membership and the log-odds of `step_covariates`. Their
information is that of `mmlca.model.information`, with scores of the logits instead of cells: given
the class of a patient, a visit of a cell adds to the score of a coefficient its covariate times
(1 if the cell is the coefficient's answer, else 0, less the answer's probability).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from scipy.stats import chi2, norm

from font.errors import InputError
from mmlca.model.covariates import INTERCEPT, Rows, logit_information, make_rows
from mmlca.model.inference import Patients, covariance_of
from mmlca.model.information import FEW, Information, Kind
from mmlca.model.params import Floats, count_patients, forbidden_cells
from mmlca.model.step_covariates import (
    Block,
    Ints,
    StepMixture,
    StepParams,
    first_covariates,
    make_blocks,
    read_step_covariates,
    step_patterns,
)
from mmlca.sequences.checks import some
from mmlca.sequences.forms import bins_of

if TYPE_CHECKING:
    from mmlca.model.estimator import MixtureMarkov

Place = NDArray[np.intp]

_LEAST = -700.0  # log-odds whose exponential is still a number


class StepPoint:
    """Where the information is computed: patients, the fitted numbers, and which are free.

    `inside` has for each class and block the coefficients (A + P, m − 1) that the data inform, and
    `places` their numbers among all free parameters, or −1.
    """

    def __init__(self, model: MixtureMarkov, patients: Patients) -> None:
        data, _ = count_patients(patients.sequences)
        membership, groups = patients.matrix, patients.groups
        design, values = read_step_covariates(data, model.form, model.missing, model._step_design)
        patterns = step_patterns(data, model.form, values)
        prior = float(model.prior)
        zeros = forbidden_cells(model.zeros, data, model.form)
        blocks, _ = make_blocks(patterns, values.values, zeros, prior)
        if groups is not None:
            each: Floats | None = np.eye(len(model.group_weights_))[groups]
            shares = np.maximum(model.group_weights_.to_numpy(), 1e-12)
            coefficients = np.log(shares / shares[:, :1])
        elif membership is not None:
            each = model._design.standardised(membership)
            coefficients = np.linalg.solve(model._design.back, model.coefficients_.to_numpy())
        else:
            each = None
            shares = np.maximum(model.params_.weights, 1e-300)
            coefficients = np.log(shares / shares[0])[None]
        self.design, self.states, self.prior = design, model.states_, prior
        self.sequences = data
        self.rows: Rows = make_rows(patterns, data.weights, each)
        self.mixture = StepMixture(self.rows, values.values, blocks, prior, model.common_effects)
        self.blocks, self.common = blocks, model.common_effects
        self.chains: Floats = model.step_params_.vector
        self.coefficients: Floats = coefficients
        self.cells: Floats = self.mixture.cells(self.chains)
        with np.errstate(invalid="ignore"):
            self.posterior: Floats = softmax(self.rows.joint(self.cells, coefficients), axis=1)
        counted = self.rows.weights > 0
        if not np.isfinite(self.posterior[counted]).all():
            raise InputError("some patients are impossible under the model; give those of the fit.")
        self.posterior = np.nan_to_num(self.posterior)
        self.shares: Floats = np.exp(log_softmax(self.rows.design @ coefficients, axis=1))
        members = self.rows.by_pattern(self.posterior)
        self.expected: Floats = self.rows.visits.expected(self.cells, members)
        self._number()

    def _number(self) -> None:
        k, n_terms = len(self.chains), self.coefficients.shape[0]
        self.n_coefficients = n_terms * (k - 1)
        self.inside: list[list[NDArray[np.bool_]]] = []
        for expected in self.expected:
            each = []
            for block in self.blocks:
                sums = _by_context(block, expected[block.cells])
                sound = (sums[:, 1:] >= FEW) & (sums[:, :1] >= FEW)
                mask = block.free.copy()
                mask[: block.n_contexts] &= sound
                mask[block.slopes] &= sound.any(axis=0)
                each.append(mask)
            self.inside.append(each)
        if self.common:  # slopes of all classes
            for b, block in enumerate(self.blocks):
                any_class = np.any([each[b][block.slopes] for each in self.inside], axis=0)
                for each in self.inside:
                    each[b][block.slopes] = any_class
        count = self.n_coefficients
        self.places: list[list[Place]] = []
        for number, each in enumerate(self.inside):
            places = []
            for b, (block, mask) in enumerate(zip(self.blocks, each, strict=True)):
                place = np.full(mask.shape, -1, dtype=np.intp)
                own = mask.copy()
                if self.common and number:
                    own[block.slopes] = False
                    place[block.slopes] = self.places[0][b][block.slopes]
                place[own] = count + np.arange(own.sum())
                count += int(own.sum())
                places.append(place)
            self.places.append(places)
        self.size = count


def _by_context(block: Block, visits: Floats) -> Floats:
    """Sums (A, m) of visits (R, m) by intercept."""
    return np.array([np.bincount(block.context, x, block.n_contexts) for x in visits.T]).T


class _Slopes(NamedTuple):
    """What a visit of each cell (R · m) of a block adds to the scores of its free coefficients."""

    cells: NDArray[np.int64]
    table: Floats
    shares: Floats  # (R, m)
    place: Place


def _slopes_of(
    block: Block, design: Floats, table: Floats, cells: NDArray[Any], mask: Any, place: Place
) -> _Slopes:
    shares = softmax(design @ table, axis=1)
    column, answer = np.nonzero(mask)
    own = np.arange(shares.shape[1])[:, None] == answer + 1
    scores = design[:, None, column] * (own[None] - shares[:, answer + 1][:, None, :])
    return _Slopes(cells.ravel(), scores.reshape(shares.size, len(column)), shares, place[mask])


def information(point: StepPoint) -> Information:
    """Observed information and outer products of scores, as `mmlca.model.information` has them."""
    size, n_first, k_all = point.size, point.n_coefficients, len(point.chains)
    complete, missing, prior = (np.zeros((size, size)) for _ in range(3))
    rows = point.rows
    unit = float(rows.each.max(initial=max(point.prior, 1e-300)))
    weights = rows.weights / unit
    squares_of = rows.squares * (rows.each.max(initial=0.0) / unit) ** 2
    counts = rows.visits.patterns.token_counts.tocsc()
    scores = np.zeros((len(weights), size))
    scores[:, :n_first] = _logit_scores(rows.design, point.posterior - point.shares)
    for k in range(k_all):
        parts, places = [], []
        for b, block in enumerate(point.blocks):
            mask, place = point.inside[k][b], point.places[k][b]
            table = block.coefficients(point.chains[k])
            slopes = _slopes_of(block, block.design, table, block.cells, mask, place)
            visits = point.expected[k][block.cells].sum(axis=1, keepdims=True) * slopes.shares
            at = np.ix_(slopes.place, slopes.place)
            complete[at] += slopes.table.T @ (slopes.table * (visits.ravel() / unit)[:, None])
            parts.append(counts[:, slopes.cells] @ slopes.table)
            places.append(slopes.place)
            if point.prior:
                design, weight = block.imagined
                imagined = _slopes_of(block, design, table, np.empty(0, int), mask, place)
                number = point.prior / unit * weight * block.cells.shape[1]
                prior[at] += imagined.table.T @ (
                    imagined.table * (number * imagined.shares.ravel())[:, None]
                )
        here = np.concatenate(places)
        inner = np.hstack(parts)[rows.pattern]
        member = point.posterior[:, k]
        scores[:, here] += member[:, None] * inner
        weighted = (weights * member)[:, None] * inner
        missing[np.ix_(here, here)] += weighted.T @ inner
        if n_first:
            certain = np.broadcast_to(np.eye(k_all)[k], point.posterior.shape)
            logit = _logit_scores(rows.design, certain - point.shares)
            missing[:n_first, here] += logit.T @ weighted
            missing[:n_first, :n_first] += logit.T @ (logit * (weights * member)[:, None])
    missing[n_first:, :n_first] = missing[:n_first, n_first:].T
    if n_first:
        complete[:n_first, :n_first] = logit_information(rows.design, weights, point.shares[:, 1:])
    outer = scores.T @ (scores * weights[:, None])
    squares = scores.T @ (scores * squares_of[:, None])
    observed = complete + outer - missing
    return Information(observed, outer, squares, prior, np.diagonal(complete).copy(), unit)


def _logit_scores(design: Floats, residual: Floats) -> Floats:
    """Residuals of the classes but the first times the design, (R, (K − 1)·P)."""
    scores = residual[:, 1:, None] * design[:, None, :]
    return scores.reshape(len(design), -1)


# --- tables -----------------------------------------------------------------------------------


def coefficient_table(
    point: StepPoint, spread: Floats, lost: NDArray[np.bool_], level: float
) -> pd.DataFrame:
    """Coefficients of covariates as they were given, with errors and odds ratios."""
    form, back = point.mixture.spots.form, point.design.back
    labels = [*point.states, ""]
    records, weights = [], []
    for k in range(len(point.chains)):
        for b, block in enumerate(point.blocks):
            if block.part == "initial":
                continue
            table = block.coefficients(point.chains[k])[:, 1:]
            place, a = point.places[k][b], block.n_contexts
            slopes = table[block.slopes]
            names = point.design.columns if block.n_columns else [INTERCEPT]
            for answer in range(table.shape[1]):
                to = labels[block.answers[answer + 1]]
                for j, name in enumerate(names):
                    if j and point.common and k:
                        continue
                    for context in range(a if j == 0 else 1):
                        period, stay = _context(block, context, form) if j == 0 else ("", "")
                        own = table[context, answer] if j == 0 else slopes[j - 1, answer]
                        weight = np.zeros(point.size)
                        if j:
                            used = [(place[a + j - 1, answer], back[j, j])]
                            value = own * back[j, j]
                        else:
                            shift = back[0, 1:][: block.n_columns]
                            used = [(place[context, answer], 1.0)]
                            used += list(zip(place[a:, answer], shift, strict=True))
                            value = own + float(shift @ slopes[:, answer])
                        known = all(p >= 0 and not lost[p] for p, _ in used)
                        for p, w in used:
                            weight[p] += w if known else 0.0
                        records.append(
                            {
                                "class": "all" if j and point.common else k + 1,
                                "from": labels[block.state],
                                "to": to,
                                "stay": stay,
                                "period": period,
                                "term": name,
                                "estimate": value,
                                "se": 0.0 if known else np.nan,
                            }
                        )
                        weights.append(weight)
    table = pd.DataFrame(records)
    slopes = np.array(weights)
    table["se"] += np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", slopes, spread, slopes), 0))
    width = norm.ppf(0.5 + level / 2) * table["se"]
    table["z"] = table["estimate"] / table["se"]
    table["p"] = 2 * norm.sf(np.abs(table["z"]))
    table["low"], table["high"] = table["estimate"] - width, table["estimate"] + width
    with np.errstate(over="ignore"):
        for name, source in (("odds_ratio", "estimate"), ("or_low", "low"), ("or_high", "high")):
            table[name] = np.exp(table[source])
    return table


def _context(block: Block, context: int, form: Any) -> tuple[str, str]:
    """The period and the bin of time in state of an intercept, as labels."""
    if block.part == "leaving":
        period, bins = divmod(context, form.n_bins)
        return form.period_labels[period], form.bins[bins]
    return ("" if form.shared else form.period_labels[context]), ""


def term_tests(point: StepPoint, spread: Floats | None) -> pd.DataFrame:
    """Whether each covariate matters for leaving, and for destinations, in all classes together.

    Wald tests by the covariance of the free parameters, or else likelihood-ratio tests.
    """
    terms = point.design.term_of[1:]
    records = []
    parts = dict.fromkeys(block.part for block in point.blocks if block.n_columns)
    whole = None if spread is not None else _refit(point, point.blocks)
    for term in dict.fromkeys(terms):
        columns = np.flatnonzero([name == term for name in terms])
        for part in parts:
            values: dict[int, float] = {}
            for k, vector in enumerate(point.chains):
                for b, block in enumerate(point.blocks):
                    if block.part == part and block.n_columns:
                        place = point.places[k][b][block.slopes][columns].ravel()
                        slopes = block.coefficients(vector)[block.slopes, 1:][columns].ravel()
                        values |= {int(p): v for p, v in zip(place, slopes, strict=True) if p >= 0}
            where, effect = np.array(list(values), dtype=int), np.array(list(values.values()))
            if spread is not None:
                inverse = np.linalg.pinv(spread[np.ix_(where, where)], hermitian=True)
                statistic = float(effect @ inverse @ effect)
            else:
                without = [_without(x, columns) if x.part == part else x for x in point.blocks]
                assert whole is not None
                statistic = max(0.0, 2 * (whole - _refit(point, without)))
            df = len(where)
            p = float(chi2.sf(statistic, df)) if df else np.nan
            about = "leaving" if part == "leaving" else "destinations"
            records.append({"term": term, "about": about, "statistic": statistic, "df": df, "p": p})
    return pd.DataFrame(records, columns=["term", "about", "statistic", "df", "p"])


def _without(block: Block, columns: Ints) -> Block:
    """The same block with coefficients of zero for some columns."""
    free = block.free.copy()
    free[block.n_contexts + columns] = False
    return replace(block, free=free)


def _refit(point: StepPoint, blocks: list[Block]) -> float:
    """The penalised log-likelihood of the model with these coefficients free, the others zero."""
    mixture = StepMixture(point.rows, point.mixture.values, blocks, point.prior, point.common)
    chains = point.chains.copy()
    for block in blocks:
        slopes = block.numbers[block.slopes]
        chains[:, slopes[~block.free[block.slopes]]] = 0.0
    return mixture.run(chains, point.coefficients, 2_000, 1e-7, True).value


def marginal_predictions(
    point: StepPoint,
    at: pd.DataFrame,
    windows: int,
    states: list[int],
    spread: Floats,
    lost: NDArray[np.bool_],
    level: float,
) -> pd.DataFrame:
    """Probability of having left a state, by class, for patients with other covariates.

    `at` has the values that replace those of the patients.
    """
    sequences = point.sequences
    frame = first_covariates(sequences, point.mixture.spots.form)
    design, form = point.design, point.mixture.spots.form
    unknown = [name for name in at.columns if name not in {v.name for v in design.variables}]
    if unknown:
        raise InputError(
            f"the steps do not depend on {some(unknown)}; at may name "
            f"{some(v.name for v in design.variables)}."
        )
    averages = []
    for line in range(len(at)):
        changed = frame.copy()
        for name in at.columns:
            changed[name] = [at[name].iloc[line]] * len(frame)
        matrix = design.standardised(design.matrix(changed))[:, 1:]
        full = ~np.isnan(matrix).any(axis=1) & (sequences.weights > 0)
        if not full.any():
            raise InputError(
                f"no patient has all covariates besides those of at ({some(at.columns)}); give all."
            )
        rows, inverse = np.unique(matrix[full], axis=0, return_inverse=True)
        weight = np.bincount(inverse.reshape(-1), sequences.weights[full], len(rows))
        averages.append((rows, weight / weight.sum()))

    def predict(chains: NDArray[Any]) -> NDArray[Any]:
        """Left at all, and to each state, (rows of at, K, states, 1 + S)."""
        params = point.mixture.params(chains)
        return np.array([_average(params, form, *each, windows, states) for each in averages])

    estimate = predict(point.chains)
    slopes = np.zeros((point.size, *estimate.shape))
    step = 1e-30
    for k in range(len(point.chains)):
        for block, place in zip(point.blocks, point.places[k], strict=True):
            for (j, c), number in np.ndenumerate(place):
                if number < 0 or lost[number] or block.part == "initial":
                    continue
                moved = point.chains.astype(complex)
                moved[k, block.numbers[j, c]] += 1j * step
                slopes[number] += predict(moved).imag / step
    slopes = slopes.reshape(point.size, -1).T
    se = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", slopes, spread, slopes), 0))
    against = slopes - np.tile(slopes[: estimate[0].size], (len(at), 1))
    difference_se = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", against, spread, against), 0))
    flat = estimate.ravel()
    inside = np.clip(flat, 1e-300, 1 - 1e-16)
    logit, z = np.log(inside) - np.log1p(-inside), norm.ppf(0.5 + level / 2)
    width = np.minimum(z * se / (inside * (1 - inside)), 700)
    names = list(point.states)
    levels = [
        range(len(at)),
        range(1, len(point.chains) + 1),
        [names[i] for i in states],
        ["", *names],
    ]
    index = pd.MultiIndex.from_product(levels, names=["row", "class", "from", "to"]).to_frame(False)
    table = pd.concat([at.iloc[index["row"]].reset_index(drop=True), index], axis=1)
    table["probability"], table["se"] = flat, se
    table["low"], table["high"] = 1 / (1 + np.exp(width - logit)), 1 / (1 + np.exp(-width - logit))
    table["difference"] = (estimate - estimate[:1]).ravel()
    table["difference_low"] = table["difference"] - z * difference_se
    table["difference_high"] = table["difference"] + z * difference_se
    return table[table["from"] != table["to"]].drop(columns="row").reset_index(drop=True)


def _average(
    params: StepParams, form: Any, rows: Floats, weight: Floats, windows: int, states: list[int]
) -> NDArray[Any]:
    """The same for one set of covariate rows (Z, P) with weights, (K, states, 1 + S)."""
    parts = []
    for state in states:
        each = np.full(len(rows), state)
        still: Any = 1.0
        moved: Any = 0.0
        for w in range(1, windows + 1):
            period, bins = (
                int(bins_of(form.periods, np.array(w))),
                int(bins_of(form.stays, np.array(w))),
            )
            logits = params.leaving_logits(period, bins, each, rows)
            leave = 1 / (1 + np.exp(-np.where(logits.real < _LEAST, _LEAST, logits)))
            odds = params.destination_logits(0 if form.shared else period, each, rows)
            into = np.exp(odds - odds.real.max(axis=2, keepdims=True))
            into = into / into.sum(axis=2, keepdims=True)
            moved = moved + (still * leave)[..., None] * into
            still = still * (1 - leave)
        both = np.concatenate([(1 - still)[..., None], moved], axis=2)
        parts.append(np.einsum("krj,r->kj", both, weight))
    return np.stack(parts, axis=1)


def covariance_at(point: StepPoint, kind: Kind) -> tuple[Floats, NDArray[np.bool_]]:
    """The covariance of the free parameters, and which of them the data do not determine."""
    return covariance_of(information(point), point.posterior, point.rows.weights, kind)
