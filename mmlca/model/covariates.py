"""Covariates of membership: the columns of a logit, and EM with that logit inside the mixture.

Numbers enter as they are, texts and categories as one column per level but the first. A formula
names columns, `a + b`, and their products, `a:b` or `a * b`; `C(a)` takes numbers as levels. The
rules are data (`Design`), so that a model file can hold them and `predict` applies the same ones.

In EM, patients with the same transition pattern and the same covariates are one *row*. Given the
row's covariates x, its classes have the probabilities softmax(x · B), with the first column of B
zero. The M-step of the chains is the usual one, that of B a few Newton steps.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.special import log_softmax, logsumexp

from font.errors import InputError, option
from font.probabilities import log_prior
from mmlca.model.em import (
    RunEnd,
    Settings,
    Visits,
    cells_of,
    params_of,
    row_probabilities,
    sum_by_pattern,
)
from mmlca.model.params import AnyParams, Floats
from mmlca.model.search import Fit, reassigned, start_row
from mmlca.sequences.checks import some
from mmlca.sequences.covariates import AnyCovariates, align
from mmlca.sequences.patterns import Patterns
from mmlca.sequences.type import Labels, Sequences

Covariates: TypeAlias = AnyCovariates | None
Groups: TypeAlias = Labels | None

INTERCEPT = "(Intercept)"
_MANY_LEVELS = 30
_COLLINEAR = 1e-8
_SEPARATED = 12.0  # log-odds between the smallest and the largest value of a column
_FORMULA = "columns joined by +, products a:b or a*b, and C(a) for numbers that are labels"
_CONFIRM = 3  # plain updates in a row that must pass the test of convergence
_NEWTON, _ENOUGH = 25, 1e-10  # most Newton steps, and gain per patient below which they end
_TRY, _FOLLOWED = 30, 3  # updates after a kick; runs that are followed to their end
_ROUNDS = 4  # most rounds of kicks, each from the best run so far
_SAME = 0.01  # two maxima this close count as the same
_LONGEST = 4.0  # longest Newton step, in log-odds per standard deviation


@dataclass(frozen=True)
class Variable:
    """A column of the covariates; `levels` (the first is the reference) if it is categorical."""

    name: str
    levels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Design:
    """How covariates become columns: variables, and terms as products of them.

    `shift` and `scale` (of each column but the intercept) standardise the columns inside the
    fit; coefficients are always those of the columns as they were given.
    """

    variables: tuple[Variable, ...]
    terms: tuple[tuple[str, ...], ...]
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns, the intercept first."""
        return [INTERCEPT, *(name for term in self.terms for name in self._names(term))]

    @cached_property
    def term_of(self) -> list[str]:
        """The term that each column belongs to."""
        return [INTERCEPT, *(":".join(term) for term in self.terms for _ in self._names(term))]

    def _names(self, term: tuple[str, ...]) -> list[str]:
        levels = {v.name: v.levels for v in self.variables}
        parts = [
            [name] if levels[name] is None else [f"{name}[{x}]" for x in (levels[name] or ())[1:]]
            for name in term
        ]
        return [":".join(names) for names in product(*parts)]

    def matrix(self, frame: pd.DataFrame) -> Floats:
        """The columns for covariates (n rows); NaN in rows where a value is missing."""
        parts = {v.name: self._part(v, frame) for v in self.variables}
        columns = [np.ones(len(frame))]
        for term in self.terms:
            for chosen in product(*(range(parts[name].shape[1]) for name in term)):
                columns.append(
                    np.prod([parts[n][:, i] for n, i in zip(term, chosen, strict=True)], axis=0)
                )
        return np.column_stack(columns)

    def _part(self, variable: Variable, frame: pd.DataFrame) -> Floats:
        if variable.name not in frame.columns:
            raise InputError(
                f"the covariates lack the column {variable.name}; found {some(frame.columns)}."
            )
        values = frame[variable.name]
        if variable.levels is None:
            return _numbers(variable.name, values)[:, None]
        texts = _texts(values)
        known = texts.isin(variable.levels) | texts.isna()
        if not known.all():
            raise InputError(
                f"the covariate {variable.name} has the levels {some(texts[~known].unique())}, "
                f"which the model does not know; it knows {some(variable.levels)}."
            )
        dummies = np.column_stack([(texts == level).to_numpy(float) for level in variable.levels])
        dummies[texts.isna().to_numpy()] = np.nan
        return dummies[:, 1:]

    def standardised(self, matrix: Floats) -> Floats:
        """Columns with mean 0 and variance 1, as the fit sees them."""
        result = matrix.copy()
        result[:, 1:] = (matrix[:, 1:] - np.array(self.shift)) / np.array(self.scale)
        return result

    @cached_property
    def back(self) -> Floats:
        """(P, P): coefficients of standardised columns → coefficients of the columns as given."""
        back = np.diag([1.0, *(1 / s for s in self.scale)])
        back[0, 1:] = -np.array(self.shift) / np.array(self.scale)
        return back

    def to_dict(self) -> dict[str, Any]:
        """As in a JSON file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Design:
        """The inverse of `to_dict`; refuses what does not fit together."""
        variables = tuple(Variable(**variable) for variable in stored["variables"])
        design = cls(**{**stored, "variables": variables})
        unknown = {name for term in design.terms for name in term} - {v.name for v in variables}
        if unknown or not len(design.columns) - 1 == len(design.shift) == len(design.scale):
            raise InputError("the covariates of the model do not fit together.")
        return design


# --- the patients of a fit, and others ----------------------------------------------------


def read_covariates(
    covariates: AnyCovariates, formula: str | None, data: Sequences, missing: str
) -> tuple[Design, Floats, NDArray[np.bool_]]:
    """The design that covariates give, its matrix (m, P), and which patients (n,) have all of them.

    `missing` says what happens to the others: "error" refuses them, "drop" warns.
    """
    frame = align(covariates, data.ids)
    known = complete(frame, formula)
    advice = f"fill them in, or leave these patients out with {option('missing', 'drop')}"
    _check_missing(known, data, missing if known.any() else "error", advice)
    if not known.all():
        warnings.warn(
            f"{_count_missing(known)} and are left out of the fit.",
            stacklevel=4,
        )
    frame = frame[known]
    design = learn(frame, formula, data.weights[known])
    return design, design.matrix(frame), known


def matrix_of(
    design: Design, covariates: AnyCovariates, data: Sequences, missing: str, advice: str
) -> tuple[Floats, NDArray[np.bool_]]:
    """The columns (n, P) of other patients' covariates, and which patients have all of them.

    Patients who lack any are refused with the `advice`, unless `missing` is "drop".
    """
    matrix = design.matrix(align(covariates, data.ids))
    known: NDArray[np.bool_] = np.asarray(~np.isnan(matrix).any(axis=1))
    _check_missing(known, data, missing, advice)
    return matrix, known


def _check_missing(known: NDArray[np.bool_], data: Sequences, missing: str, advice: str) -> None:
    """Refuse patients who lack covariates, if `missing` is "error"."""
    if missing == "error" and not known.all():
        lacking = _count_missing(known)
        raise InputError(f"{lacking} (patients {some(data.ids[~known])}); {advice}.")


def _count_missing(known: NDArray[np.bool_]) -> str:
    return f"{int((~known).sum()):,} of {len(known):,} patients lack covariates"


# --- from a table to a design -----------------------------------------------------------


def learn(
    frame: pd.DataFrame, formula: str | None, weights: Floats, of: str = "patients"
) -> Design:
    """The design of covariates that are complete, checked for what cannot be estimated.

    Each row is `of` one of the patients, or of the steps.
    """
    terms, labels = _parse_formula(formula, frame.columns)
    names = list(dict.fromkeys(name for term in terms for name in term))
    if not names:
        raise InputError("there are no covariates: the table has no columns besides the id.")
    variables = tuple(_learn_variable(name, frame[name], name in labels, of) for name in names)
    design = Design(variables, tuple(terms))
    counted = design.matrix(frame)[weights > 0]
    shift, scale = counted[:, 1:].mean(axis=0), counted[:, 1:].std(axis=0)
    flat = scale <= 1e-12 * np.maximum(1, np.abs(shift))
    if flat.any():
        same = [name for name, is_flat in zip(design.columns[1:], flat, strict=True) if is_flat]
        raise _same_for_all(some(same), of)
    design = Design(variables, tuple(terms), tuple(shift.tolist()), tuple(scale.tolist()))
    _check_rank(design, design.standardised(counted))
    return design


def _same_for_all(column: str, of: str) -> InputError:
    return InputError(
        f"the covariate column {column} is the same for all {of}, so that nothing can be "
        "learned from it; leave it out."
    )


def _check_rank(design: Design, matrix: Floats) -> None:
    triangle, order = qr(matrix, mode="r", pivoting=True)
    size = np.abs(np.diagonal(triangle))
    rank = int((size > _COLLINEAR * size[0]).sum())
    if rank == matrix.shape[1]:
        return
    extra, kept = int(order[rank]), order[:rank]
    shares = np.linalg.lstsq(matrix[:, kept], matrix[:, extra], rcond=None)[0]
    others = [design.columns[c] for c, b in zip(kept, shares, strict=True) if abs(b) > 1e-6]
    others = [name for name in others if name != INTERCEPT]
    raise InputError(
        f"the covariate column {design.columns[extra]} follows from {some(others)}, so that their "
        "effects cannot be separated; leave one of them out."
    )


def _learn_variable(name: str, values: pd.Series, is_label: bool, of: str) -> Variable:
    values = values.infer_objects()  # numbers that were mixed with None
    if isinstance(values.dtype, pd.CategoricalDtype):
        used = set(_texts(values))
        levels = [_text(x) for x in values.dtype.categories if _text(x) in used]
    elif is_label or not pd.api.types.is_numeric_dtype(values.dtype):
        if pd.api.types.is_datetime64_any_dtype(values.dtype):
            raise InputError(
                f"the covariate {name} holds dates; turn it into a number, such as age."
            )
        plain = pd.api.types.is_numeric_dtype(values.dtype)
        levels = [_text(x) for x in sorted(values.unique(), key=None if plain else str)]
    else:
        return Variable(name)
    if len(levels) < 2:
        raise _same_for_all(repr(name), of)
    if len(levels) > _MANY_LEVELS:
        raise InputError(
            f"the covariate {name} has {len(levels):,} different texts ({some(levels[:3])}, …), at "
            f"most {_MANY_LEVELS} can be compared; group them, or give numbers."
        )
    return Variable(name, tuple(levels))


def _parse_formula(
    formula: str | None, columns: Iterable[str]
) -> tuple[list[tuple[str, ...]], set[str]]:
    """Terms, and the variables that C() makes labels; without a formula each column is a term."""
    known = list(columns)
    if formula is None:
        return [(name,) for name in known], set()
    terms: list[tuple[str, ...]] = []
    labels: set[str] = set()
    quoted: list[str] = []

    def hide(match: re.Match[str]) -> str:
        quoted.append(match[1])
        return f"\x00{len(quoted) - 1}\x00"

    text = re.sub(r"`([^`]+)`", hide, formula.strip().removeprefix("~"))
    for part in text.split("+"):
        if part.strip() == "1":
            continue
        crossed = "*" in part
        names = []
        for factor in re.split(r"[:*]", part):
            name = factor.strip()
            label = re.fullmatch(r"C\((.*)\)", name)
            if label:
                name = label[1].strip()
            hidden = re.fullmatch("\x00(\\d+)\x00", name)
            if hidden:
                name = quoted[int(hidden[1])]
            if name not in known:
                raise InputError(
                    f"the formula {formula!r} names {name!r}, which is not a column of the "
                    f"covariates ({some(known)}); a formula may contain {_FORMULA}."
                )
            if label:
                labels.add(name)
            names.append(name)
        if len(set(names)) != len(names) or (crossed and ":" in part):
            raise InputError(f"the formula {formula!r} is invalid; it may contain {_FORMULA}.")
        sizes = range(1, len(names) + 1) if crossed else [len(names)]
        for size in sizes:
            known_terms = [set(term) for term in terms]
            terms += [t for t in combinations(names, size) if set(t) not in known_terms]
    return sorted(terms, key=len), labels


def _numbers(name: str, values: pd.Series) -> Floats:
    try:
        numbers = pd.to_numeric(values).to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError):
        texts = values[pd.to_numeric(values, errors="coerce").isna() & values.notna()]
        raise InputError(
            f"the covariate {name} is a number in the model, but holds {some(texts.unique())}."
        ) from None
    if np.isinf(numbers).any():
        raise InputError(
            f"the covariate {name} holds infinite numbers; correct them or leave it out."
        )
    return np.asarray(numbers, dtype=float)


def _texts(values: pd.Series) -> pd.Series:
    """Values as texts; missing ones stay missing. 1.0 and 1 are the same."""
    texts = [None if pd.isna(x) or x == "" else _text(x) for x in values]
    return pd.Series(texts, index=values.index, dtype=object)


def _text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def complete(frame: pd.DataFrame, formula: str | None) -> NDArray[np.bool_]:
    """Which patients lack no covariate that is used; an empty text is missing."""
    terms, _ = _parse_formula(formula, frame.columns)
    used = list(dict.fromkeys(name for term in terms for name in term))
    known = frame[used].notna() & (frame[used] != "")
    return np.asarray(known.all(axis=1), dtype=bool)


def separation(matrix: Floats, columns: list[str], coefficients: Floats) -> str:
    """A sentence on columns that separate a class without exception; empty if there is none."""
    effect = np.abs(coefficients) * np.ptp(matrix, axis=0)[:, None]
    separating = [columns[c] for c in np.flatnonzero((effect[1:] > _SEPARATED).any(axis=1)) + 1]
    if not separating:
        return ""
    return (
        f"the covariate column {some(separating)} separates classes almost without exception, so "
        "its odds ratios grow without bound and their intervals mean little; merge rare levels or "
        "leave it out."
    )


# --- EM with a logit ----------------------------------------------------------------------


class Rows(NamedTuple):
    """Distinct pairs of pattern and covariates: the data of a fit with a logit.

    `visits` are those of the patterns; `pattern` (R,); `design` (R, P), its first column ones;
    summed `weights`, and summed `squares` of weights as parts of the largest (R,); `inverse` and
    `each` (n,): the row and the weight of each patient.
    """

    visits: Visits
    pattern: NDArray[np.intp]
    design: Floats
    weights: Floats
    squares: Floats
    inverse: NDArray[np.intp]
    each: Floats

    def joint(self, cells: Floats, coefficients: Floats) -> Floats:
        """Log of class probability times likelihood, for each row and class (R, K)."""
        shares: Floats = log_softmax(self.design @ coefficients, axis=1)
        return shares + self.visits.logliks(cells)[self.pattern]

    def by_pattern(self, posterior: Floats) -> Floats:
        """Class probabilities of rows (R, K), weighted and summed by pattern (U, K)."""
        weighted = posterior * self.weights[:, None]
        return sum_by_pattern(self.pattern, weighted, len(self.visits.patterns))


def make_rows(patterns: Patterns, weights: Floats, design: Floats | None = None) -> Rows:
    """Rows of n patients with their own weights (n,) and design (n, P); by default all ones."""
    inverse = patterns.inverse.astype(np.intp)
    if design is None:
        u = len(patterns)
        number, pattern, kept = inverse, np.arange(u), np.ones((u, 1))
    else:
        keys = pd.DataFrame(np.column_stack([inverse, design]))
        number = keys.groupby(list(keys.columns), sort=True).ngroup().to_numpy()
        first = np.unique(number, return_index=True)[1]
        pattern, kept = inverse[first], design[first]
    parts = weights / weights.max(initial=1e-300)
    summed, squares = (
        np.bincount(number, w, len(pattern)).astype(float) for w in (weights, parts**2)
    )
    return Rows(Visits(patterns), pattern, kept, summed, squares, number, weights)


@dataclass(eq=False)
class MembershipRun(RunEnd):
    """A run with coefficients (P, K), the first column zero, and class probabilities (R, K)."""

    coefficients: Floats
    posterior: Floats

    @property
    def end(self) -> tuple[Floats, Floats]:
        """Where another run may go on."""
        return self.cells, self.coefficients


class _Step(NamedTuple):
    loglik: float
    value: float
    posterior: Floats


class Mixture:
    """The data of a fit with covariates, and one EM update.

    Chains are cells (K, C), or what a subclass has instead of them.
    """

    def __init__(self, rows: Rows, settings: Settings, zeros: NDArray[np.bool_]) -> None:
        self.rows, self.open = rows, ~(zeros | settings.zeros)
        self.prior = np.where(self.open, settings.prior, 0.0)

    # what the chains are

    def cells(self, chains: Floats) -> Floats:
        """The probabilities of the cells, (K, C)."""
        return chains

    def penalty(self, chains: Floats) -> float:
        """What the prior adds to the log-likelihood."""
        return log_prior(chains, self.prior)

    def estimate(self, expected: Floats, chains: Floats) -> Floats:
        """The M-step of the chains, from expected visits of cells (K, C)."""
        del chains
        return row_probabilities(expected, self.rows.visits.layout, self.prior, self.open)

    def inside(self, chains: Floats, last: Floats) -> Floats:
        """Extrapolated chains as valid ones; `last` are those before the extrapolation."""
        layout = self.rows.visits.layout
        cells = np.maximum(chains, 0.01 * last)
        sums = layout.sums(cells)[:, layout.row]
        return np.asarray(np.divide(cells, sums, out=cells, where=sums > 0))

    # EM

    def e_step(self, chains: Floats, coefficients: Floats) -> _Step:
        """Log-likelihood, penalised log-likelihood, and class probabilities of each row (R, K)."""
        joint = self.rows.joint(self.cells(chains), coefficients)
        logs = logsumexp(joint, axis=1)
        counted = self.rows.weights > 0
        loglik = float(self.rows.weights[counted] @ logs[counted])
        with np.errstate(invalid="ignore"):
            posterior = np.nan_to_num(np.exp(joint - logs[:, None]))
        return _Step(loglik, loglik + self.penalty(chains), posterior)

    def expected(self, chains: Floats, posterior: Floats) -> Floats:
        """Expected visits of cells (K, C), given class probabilities of rows (R, K)."""
        return self.rows.visits.expected(self.cells(chains), self.rows.by_pattern(posterior))

    def m_step(
        self, chains: Floats, coefficients: Floats, posterior: Floats
    ) -> tuple[Floats, Floats]:
        """New chains and coefficients."""
        new = self.estimate(self.expected(chains, posterior), chains)
        members = posterior * self.rows.weights[:, None]
        return new, fit_logit(self.rows.design, members, coefficients)

    def run(
        self, chains: Floats, coefficients: Floats, max_iter: int, tol: float, accelerate: bool
    ) -> MembershipRun:
        """EM from there; the path holds (log-likelihood, penalised) after 0, 1, … updates.

        Every two updates are followed by an extrapolation (SQUAREM), which counts as an update
        and is dropped where it would lower the penalised log-likelihood.
        """
        here = (chains, coefficients)
        step = self.e_step(*here)
        path = [(step.loglik, step.value)]
        history = [here]
        gain_before, n_passed, converged = np.inf, 0, False
        while len(path) <= max_iter and np.isfinite(step.value):
            here = self.m_step(*here, step.posterior)
            step = self.e_step(*here)
            path.append((step.loglik, step.value))
            history.append(here)
            gain = path[-1][1] - path[-2][1]
            small = gain <= 1e-14 * abs(step.value) or (
                gain < tol and gain * gain < tol * (gain_before - gain)
            )
            n_passed = n_passed + 1 if tol > 0 and small else 0
            gain_before = gain
            if n_passed > _CONFIRM:
                converged = True
                break
            if accelerate and len(history) == 3 and len(path) <= max_iter and not n_passed:
                chains, coefficients = _extrapolate(history)
                leap = self.inside(chains, history[2][0]), coefficients
                ahead = self.e_step(*leap)
                if ahead.value >= step.value:
                    here, step, gain_before = leap, ahead, np.inf
                    path.append((step.loglik, step.value))
            if len(history) >= 3:
                history = [here]
        return MembershipRun(here[0], np.array(path), converged, here[1], step.posterior)


def fit_logit(
    design: Floats,
    members: Floats,
    coefficients: Floats,
    free: NDArray[np.bool_] | None = None,
    most: int = _NEWTON,
) -> Floats:
    """Multinomial logit of weighted memberships (R, K) on a design (R, P), by Newton steps.

    Starts from `coefficients` (P, K), whose first column is zero and stays zero, as do those that
    are not `free` (P, K − 1); makes at most `most` steps. A step that
    would lower the likelihood is halved, and one that is too long is shortened, so that classes
    that a covariate separates perfectly lead to large numbers, not to an overflow.
    """
    total = members.sum(axis=1)
    n_terms, k = coefficients.shape
    if k == 1:
        return coefficients
    logs = log_shares(design @ coefficients)
    value = float((members * logs).sum())
    fixed = None if free is None else np.flatnonzero(~free.T)
    for _ in range(most):
        shares = np.exp(logs)
        gradient = (design.T @ (members - total[:, None] * shares)[:, 1:]).T.ravel()
        information = logit_information(design, total, shares[:, 1:])
        ridge = 1e-12 * np.trace(information) / len(information) + 1e-300
        if fixed is not None:
            gradient[fixed] = information[fixed] = information[:, fixed] = 0.0
            information[fixed, fixed] = 1.0
        step = np.linalg.solve(information + ridge * np.eye(len(information)), gradient).reshape(
            k - 1, n_terms
        )
        step *= min(1.0, _LONGEST / max(float(np.abs(step).max()), 1e-300))
        gain = 0.0
        for _ in range(30):
            trial = coefficients.copy()
            trial[:, 1:] += step.T
            trial_logs = log_shares(design @ trial)
            gain = float((members * trial_logs).sum()) - value
            if gain >= 0:
                coefficients, logs, value = trial, trial_logs, value + gain
                break
            step /= 2
        if gain <= _ENOUGH * max(float(total.sum()), 1e-300):
            break
    return coefficients


def log_shares(logits: Floats) -> Floats:
    """Log-probabilities of the few answers (last axis); many times as fast as `log_softmax`."""
    columns = range(1, logits.shape[-1])
    top = logits[..., 0]
    for j in columns:
        top = np.maximum(top, logits[..., j])
    moved = logits - top[..., None]
    sizes = np.exp(moved)
    total = sizes[..., 0]
    for j in columns:
        total = total + sizes[..., j]
    moved -= np.log(total)[..., None]
    return moved


def logit_information(design: Floats, total: Floats, shares: Floats) -> Floats:
    """Σ total · (diag π − ππᵀ) ⊗ xxᵀ over rows, for the shares π of all classes but the first."""
    k, p = shares.shape[1], design.shape[1]
    information = np.empty((k, p, k, p))
    for a in range(k):
        for b in range(a, k):
            factor = total * shares[:, a] * ((a == b) - shares[:, b])
            block = design.T @ (design * factor[:, None])
            information[a, :, b] = block
            information[b, :, a] = block.T
    return information.reshape(k * p, k * p)


def _extrapolate(history: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """The squared step from three successive points."""
    first = [one - zero for zero, one in zip(history[0], history[1], strict=True)]
    second = [
        two - 2 * one + zero
        for zero, one, two in zip(history[0], history[1], history[2], strict=True)
    ]
    length, bend = (np.sqrt(sum(float((x**2).sum()) for x in xs)) for xs in (first, second))
    step = min(-1.0, -length / bend) if bend > 0 else -1.0
    chains, coefficients = (
        zero - 2 * step * r + step * step * v
        for zero, r, v in zip(history[0], first, second, strict=True)
    )
    return chains, coefficients


# --- a fit: where to begin ---------------------------------------------------------------


def fit_membership(
    rows: Rows,
    first: AnyParams,
    settings: Settings,
    zeros: NDArray[np.bool_],
    n_kicks: int,
    rng: np.random.Generator,
) -> tuple[Fit, Floats]:
    """Fit chains and coefficients together, from parameters that were found without covariates.

    See `climb_and_kick`. Returns the fit, its `posterior` by row, and the coefficients (P, K) of
    the rows' design, the largest class the reference.
    """
    coefficients = np.zeros((rows.design.shape[1], first.n_classes))
    shares = np.maximum(first.weights, 1e-12)
    coefficients[0] = np.log(shares / shares[0])
    start = cells_of(first), coefficients
    ends, record = climb_and_kick(Mixture(rows, settings, zeros), start, settings, n_kicks, rng)
    return _finish(rows, ends, record)


def climb_and_kick(
    mixture: Mixture,
    start: tuple[Floats, Floats],
    settings: Settings,
    n_kicks: int,
    rng: np.random.Generator,
) -> tuple[list[MembershipRun], pd.DataFrame]:
    """Runs that were followed to their end, and the record of all.

    The first begins at `start`. Then `n_kicks` runs begin where a part of the rows got another
    class, and the best of them are followed; again from there if that was a gain.
    """
    run = mixture.run(*start, settings.max_iter, settings.tol, settings.accelerate)
    record = [start_row("without covariates" if n_kicks else "given", run)]
    ends = [run]
    for _ in range(_ROUNDS if n_kicks and run.coefficients.shape[1] > 1 else 0):
        best = max(ends, key=lambda one: one.value)
        if not np.isfinite(best.value):
            break
        kicked = [reassigned(best.posterior, [0.05, 0.15, 0.3], rng) for _ in range(n_kicks)]
        starts = [mixture.m_step(best.cells, best.coefficients, each) for each in kicked]
        tried = [mixture.run(*s, min(_TRY, settings.max_iter), 0.0, True) for s in starts]
        tried.sort(key=lambda one: -one.value)
        followed = [
            mixture.run(*one.end, settings.max_iter, settings.tol, True)
            for one in tried[:_FOLLOWED]
        ]
        record += [start_row("kick", one) for one in followed]
        record += [start_row("kick", one, "screened out") for one in tried[_FOLLOWED:]]
        ends = [best, *followed]
        if max(one.value for one in followed) < best.value + _SAME:
            break
    return ends, pd.DataFrame(record)


def best_of(
    rows: Rows, ends: list[MembershipRun]
) -> tuple[MembershipRun, int, Floats, NDArray[np.intp]]:
    """The best run, how many reached it, its average shares, and its classes by size."""
    best = max(ends, key=lambda one: one.value)
    n_there = sum(one.value > best.value - _SAME for one in ends)
    shares = np.exp(log_softmax(rows.design @ best.coefficients, axis=1))
    average = rows.weights @ shares / rows.weights.sum()
    return best, n_there, average, np.argsort(-average, kind="stable")


def _finish(rows: Rows, ends: list[MembershipRun], record: pd.DataFrame) -> tuple[Fit, Floats]:
    """The best run with its classes ordered by size; the largest is the reference."""
    best, n_there, average, order = best_of(rows, ends)
    expected = rows.visits.expected(best.cells, rows.by_pattern(best.posterior))[order]
    layout = rows.visits.layout
    fit = Fit(
        params_of(best.cells[order], average[order], layout),
        average[order][None],
        best.path,
        best.converged,
        best.posterior[:, order],
        layout.sums(expected) < 1e-6,
        record,
        n_there,
        len(ends),
    )
    return fit, best.coefficients[:, order] - best.coefficients[:, order[:1]]
