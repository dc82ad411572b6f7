"""Latent class analysis of categorical items, by EM on distinct answer patterns."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import case_weights, check_sums, memberships, some, whole_number
from font.errors import InputError
from font.labels import distinct_rows
from font.probabilities import PRIOR_OF_ITEMS, climb, log_prior, posterior, probabilities


class _Fit(NamedTuple):
    """Weights (K,), item probabilities (K, C), class probabilities of each pattern (U, K)."""

    weights: NDArray[np.float64]
    items: NDArray[np.float64]
    responsibility: NDArray[np.float64]


class LatentClass:
    """A latent class model: items independent given the class.

    The answers x of a person have the probability Σ_k π_k ∏_j p_kj(x_j); a missing answer
    drops out of the product. EM runs on the distinct answer patterns, so its cost does not
    depend on the number of people. Classes are ordered by decreasing size.

    Parameters
    ----------
    n_classes : int
    n_init : int
        Random starts; the best is kept.
    prior : float
        Dirichlet prior: this many imaginary answers, spread evenly over the categories of
        each item in each class. 0 is maximum likelihood.
    tol : float
        EM stops when the log posterior of a person rises by less on average.
    max_iter : int
    seed : int

    Attributes
    ----------
    weights_ : (K,) class proportions
    class_parameters_ : (K, C) probabilities of all categories, item after item
    categories_ : {item: list of categories}
    loglik_ : float
    converged_ : bool

    Examples
    --------
    >>> answers = pd.DataFrame({"q1": list("yyynnn"), "q2": list("yyynnn"), "q3": list("yynnny")})
    >>> model = LatentClass(2, seed=1).fit(answers)
    >>> sorted(model.predict(answers).tolist())
    [0, 0, 0, 1, 1, 1]
    """

    def __init__(
        self,
        n_classes: int,
        *,
        n_init: int = 20,
        prior: float = PRIOR_OF_ITEMS,
        tol: float = 1e-8,
        max_iter: int = 1000,
        seed: int = 0,
    ) -> None:
        self.n_classes = whole_number(n_classes, 1, "n_classes")
        self.n_init = whole_number(n_init, 1, "n_init")
        self.max_iter = whole_number(max_iter, 1, "max_iter")
        self.prior, self.tol, self.seed = prior, tol, seed

    def fit(self, data: ArrayLike | pd.DataFrame, weights: ArrayLike | None = None) -> Self:
        """Estimate the model from answers (people × items); NaN and None are missing."""
        frame = _frame(data)
        if frame.empty:
            raise InputError(f"found answers of shape {frame.shape}; people and items are needed.")
        self.categories_ = {
            item: np.sort(pd.unique(frame[item].dropna())).tolist() for item in frame.columns
        }
        bare = [item for item, values in self.categories_.items() if not values]
        if bare:
            raise InputError(f"nobody answered the items {some(bare)}; leave them out.")
        rows, number = distinct_rows(self._codes(frame))
        case = np.bincount(
            number, weights=case_weights(weights, len(frame)), minlength=len(rows)
        ).astype(float)
        if case.sum() == 0:
            raise InputError("all case weights are 0; at least one person must count.")
        answers = self._one_hot(rows)
        rng = np.random.default_rng(self.seed)
        runs = [self._em(answers, case, rng) for _ in range(self.n_init)]
        best, _, self.converged_ = max(runs, key=lambda run: run[1])
        order = np.argsort(-best.weights, kind="stable")
        self.weights_ = best.weights[order]
        self.class_parameters_ = best.items[order]
        _, each = posterior(_log_joint(answers, self.weights_, self.class_parameters_))
        self.loglik_ = float(case @ each)
        return self

    def predict_proba(self, data: ArrayLike | pd.DataFrame) -> NDArray[np.float64]:
        """Class probabilities (n, K)."""
        rows, number = distinct_rows(self._codes(_frame(data)))
        joint = _log_joint(self._one_hot(rows), self.weights_, self.class_parameters_)
        return posterior(joint)[0][number]

    def predict(self, data: ArrayLike | pd.DataFrame) -> NDArray[np.integer[Any]]:
        """The most probable class of each person."""
        return np.asarray(np.argmax(self.predict_proba(data), axis=1))

    def statistics(
        self, data: ArrayLike | pd.DataFrame, membership: ArrayLike
    ) -> NDArray[np.float64]:
        """Sums by class, (K, 1 + C): the people, then those who gave each answer."""
        frame = _frame(data)
        table = memberships(membership, len(frame), self.n_classes)
        rows, number = distinct_rows(self._codes(frame))
        by_row = np.stack(
            [np.bincount(number, column, minlength=len(rows)) for column in table.T], axis=1
        )
        return np.hstack([table.sum(axis=0)[:, None], by_row.T @ self._one_hot(rows)])

    def from_statistics(self, total: ArrayLike) -> Self:
        """The model that sums of all people give, as many classes as rows; see `statistics`."""
        table = check_sums(total, 1 + self.class_parameters_.shape[1], counts=True)
        sizes, prior = self._item_prior()
        return type(self).of(
            self.categories_,
            probabilities(table[:, 0]),
            probabilities(table[:, 1:], prior, sizes=sizes),
            n_init=self.n_init,
            prior=self.prior,
            tol=self.tol,
            max_iter=self.max_iter,
            seed=self.seed,
        )

    def log_likelihoods(self, data: ArrayLike | pd.DataFrame) -> NDArray[np.float64]:
        """Log-likelihood of each person's answers in each class, (n, K)."""
        rows, number = distinct_rows(self._codes(_frame(data)))
        logs: NDArray[np.float64] = self._one_hot(rows) @ _log(self.class_parameters_).T
        return logs[number]

    def log_penalty(self) -> float:
        """What the prior adds to the log-likelihood."""
        return log_prior(self.class_parameters_, self._item_prior()[1])

    def bic(self, n: int) -> float:
        """Schwarz's criterion for n people: −2 log L + p log n."""
        n_free = sum(len(values) - 1 for values in self.categories_.values())
        n_parameters = self.n_classes - 1 + self.n_classes * n_free
        return float(-2 * self.loglik_ + n_parameters * np.log(n))

    @classmethod
    def of(
        cls,
        categories: dict[Any, list[Any]],
        weights: NDArray[np.float64],
        probabilities: NDArray[np.float64],
        **settings: Any,
    ) -> Self:
        """The model with these categories, proportions (K,) and probabilities (K, C)."""
        model = cls(len(weights), **settings)
        model.categories_, model.weights_ = categories, weights
        model.class_parameters_ = probabilities
        model.loglik_, model.converged_ = float("nan"), False
        return model

    # --- inside -------------------------------------------------------------------------

    def _em(
        self,
        answers: NDArray[np.float64],
        case: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> tuple[_Fit, float, bool]:
        """One start: E and M steps on the (U, C) one-hot answers until the posterior settles."""
        sizes, prior = self._item_prior()

        def update(fit: _Fit) -> tuple[_Fit, float]:
            weighted = fit.responsibility * case[:, None]
            items = probabilities(weighted.T @ answers, prior, sizes=sizes)
            weights = probabilities(weighted.sum(axis=0))
            joint = _log_joint(answers, weights, items)
            responsibility, each = posterior(joint)
            score = float(case @ each) + log_prior(items, prior)
            return _Fit(weights, items, responsibility), score

        none = np.empty(0)
        start = _Fit(none, none, rng.dirichlet(np.ones(self.n_classes), size=len(case)))
        return climb(update, start, self.max_iter, tol=self.tol * case.sum())

    def _item_prior(self) -> tuple[list[int], NDArray[np.float64]]:
        """The number of categories of each item, and the pseudo-count of each category, (C,)."""
        sizes = [len(values) for values in self.categories_.values()]
        return sizes, np.repeat(self.prior / np.array(sizes), sizes)

    def _codes(self, frame: pd.DataFrame) -> list[NDArray[np.integer[Any]]]:
        """A column of numbers an item: 0 is missing, then the categories in order."""
        if list(frame.columns) != list(self.categories_):
            raise InputError(
                f"the answers have the items {some(frame.columns)}, the model "
                f"{some(self.categories_)}; give the same items in the same order."
            )
        columns = []
        for item, values in self.categories_.items():
            codes = pd.Index(values).get_indexer(pd.Index(frame[item]))
            unknown = (codes < 0) & frame[item].notna().to_numpy()
            if unknown.any():
                raise InputError(
                    f"the item {item!r} has the answers {some(pd.unique(frame[item][unknown]))}, "
                    f"the model knows {some(values)}; recode them or mark them as missing."
                )
            columns.append(codes + 1)
        return columns

    def _one_hot(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        parts = [
            rows[:, [j]] == np.arange(1, len(values) + 1)
            for j, values in enumerate(self.categories_.values())
        ]
        return np.concatenate(parts, axis=1).astype(float)


def _frame(data: ArrayLike | pd.DataFrame) -> pd.DataFrame:
    if isinstance(data, pd.DataFrame):
        return data
    array = np.asarray(data)
    if array.ndim != 2:
        raise InputError(f"answers must be a table, people × items; found {array.ndim} dimensions.")
    return pd.DataFrame(array)


def _log_joint(
    answers: NDArray[np.float64], weights: NDArray[np.float64], items: NDArray[np.float64]
) -> NDArray[np.float64]:
    """log π_k + Σ_j log p_kj(x_j), (U, K)."""
    joint: NDArray[np.float64] = answers @ _log(items).T + _log(weights)
    return joint


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithm that stays finite, since 0 · log 0 must be 0."""
    logs: NDArray[np.float64] = np.log(np.maximum(values, 1e-300))
    return logs
