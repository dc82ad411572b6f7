"""Local models that font brings along: K-means, Gaussian mixtures and latent class models.

The sums that refine K-means and Gaussian mixtures are a table (K, 1 + d + q): for each class the
patients, the sums of each column, and sums of products: of all pairs of columns (covariances "full"
and "tied", q = d(d + 1)/2), of each column with itself ("diag", q = d), or of all squares together
("spherical", and "equal" for K-means, whose classes share one variance; q = 1). Columns are counted
from an `origin` near the data, so that nothing is lost where values are large and spread little.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from font.checks import (
    Floats,
    Integers,
    case_weights,
    check_sums,
    class_parameters,
    memberships,
    one_of,
    some,
    whole_number,
)
from font.errors import InputError
from font.probabilities import PRIOR_OF_ITEMS, climb, log_prior, posterior, probabilities


class SklearnModel:
    """K-means or a Gaussian mixture of scikit-learn as a local model.

    Parameters
    ----------
    estimator : KMeans or GaussianMixture
        With the settings to fit with, or fitted already. The class parameters are the
        centres or means.

    Examples
    --------
    >>> from sklearn.mixture import GaussianMixture
    >>> data = np.array([[0.0], [0.2], [5.0], [5.2]])
    >>> model = SklearnModel(GaussianMixture(2, random_state=0)).fit(data)
    >>> np.sort(model.class_parameters_.ravel().round(1)).tolist()
    [0.1, 5.1]
    """

    def __init__(self, estimator: Any) -> None:
        one_of(type(estimator).__name__, _KNOWN, "the estimator")
        self.estimator = estimator
        self._origin: Floats | None = None  # where `statistics` counts from
        self._variance: float | None = None  # of K-means, shared by the classes

    @property
    def n_classes(self) -> int:
        settings = self.estimator.get_params()
        return int(settings.get("n_clusters", settings.get("n_components")))

    @property
    def class_parameters_(self) -> Floats:
        return class_parameters(self.estimator, type(self.estimator).__name__)

    def fit(self, data: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Fit the estimator; only K-means takes case weights."""
        array = np.asarray(data, dtype=float)
        if weights is None:
            self.estimator.fit(array)
        elif hasattr(self.estimator, "predict_proba"):
            raise InputError(
                f"scikit-learn's {type(self.estimator).__name__} takes no case weights; fit it "
                "without, or on a resample drawn with them."
            )
        else:
            self.estimator.fit(array, sample_weight=case_weights(weights, len(array)))
        return self

    def predict(self, data: ArrayLike) -> Integers:
        labels: Integers = self.estimator.predict(np.asarray(data, dtype=float))
        return labels

    def predict_proba(self, data: ArrayLike) -> Floats:
        """Class probabilities (n, K); K-means has none."""
        shares: Floats = self.estimator.predict_proba(np.asarray(data, dtype=float))
        return shares

    # --- sums over patients, for `font.refine` --------------------------------------------

    def statistics(self, data: ArrayLike, membership: ArrayLike) -> Floats:
        """Sums by class, (K, 1 + d + q): patients, sums of columns, sums of products of columns.

        Sums are taken from an origin near the class means; a model that `from_statistics` made
        keeps it.
        """
        points = self._points(data)
        table = memberships(membership, len(points), self.n_classes)
        return sums_by_class(points, table, self._form(), self._middle())

    def from_statistics(self, total: ArrayLike) -> Self:
        """The model that sums of all patients give, as many classes as rows; see `statistics`."""
        form, origin = self._form(), self._middle()
        d = len(origin)
        table = check_sums(total, 1 + d + n_products(form, d))
        floor = float(getattr(self.estimator, "reg_covar", 1e-12))
        fit = gaussians_from_sums(table, form, origin, floor)
        if form == "equal":
            model = type(self)(kmeans_at(fit.means))
            model._variance = float(fit.covariances)
        else:
            settings = self.estimator.get_params()
            del settings["n_components"]
            model = type(self)(mixture_of(fit, **settings))
        model._origin = origin
        return model

    def log_likelihoods(self, data: ArrayLike) -> Floats:
        """Log density of each patient in each class, (n, K).

        K-means is read as Gaussians that share one variance, equal in all directions.
        """
        points, form = self._points(data), self._form()
        if form == "equal":
            roots = np.asarray(1 / np.sqrt(self._shared_variance()))
            return log_densities(points, self.class_parameters_, roots, form)
        mixture = self.estimator
        return log_densities(points, mixture.means_, mixture.precisions_cholesky_, form)

    def _points(self, data: ArrayLike) -> Floats:
        points = np.asarray(data, dtype=float)
        d = self.class_parameters_.shape[1]
        if points.ndim != 2 or points.shape[1] != d or not np.isfinite(points).all():
            raise InputError(
                f"the model needs a table of patients × {d} finite numbers; found the shape "
                f"{points.shape}"
                + (" with missing or infinite values." if points.shape[1:] == (d,) else ".")
            )
        return points

    def _form(self) -> str:
        is_kmeans = type(self.estimator).__name__ == "KMeans"
        return "equal" if is_kmeans else str(self.estimator.covariance_type)

    def _middle(self) -> Floats:
        middle = self.class_parameters_.mean(axis=0) if self._origin is None else self._origin
        return np.asarray(middle)

    def _shared_variance(self) -> float:
        """Of K-means: from the sums it was made of, or from its fit."""
        if self._variance is not None:
            return self._variance
        labels = getattr(self.estimator, "labels_", ())
        variance = float(self.estimator.inertia_) / max(self.class_parameters_.shape[1], 1)
        if len(labels) <= self.n_classes or not variance > 0:
            raise InputError(
                "this K-means does not say how far its patients spread; make it with "
                "from_statistics, or fit it to more patients than classes."
            )
        return float(variance / len(labels))


_KNOWN = ("KMeans", "GaussianMixture")


def kmeans_at(centres: Floats) -> Any:
    """A K-means that has these centres, (K, d)."""
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal centres are for the sender to worry about
        estimator = KMeans(len(centres), init=centres, n_init=1, max_iter=1).fit(centres)
    estimator.cluster_centers_ = centres
    return estimator


def mixture_of(fit: Gaussians, covariance_type: str, **settings: Any) -> Any:
    """A Gaussian mixture that has these parameters."""
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(len(fit.means), covariance_type=covariance_type, **settings)
    mixture.weights_, mixture.means_, mixture.covariances_ = fit
    mixture.precisions_cholesky_ = precisions(fit.covariances, covariance_type)
    mixture.n_features_in_ = fit.means.shape[1]
    return mixture


def wrap(model: Any) -> Any:
    """A bare estimator of scikit-learn as a local model; anything else as it is."""
    bare = type(model).__name__ in _KNOWN and type(model).__module__.startswith("sklearn.")
    return SklearnModel(model) if bare else model


# --- sums over patients and Gaussian likelihoods ----------------------------------------------


class Gaussians(NamedTuple):
    """Proportions (K,), means (K, d), and covariances: (K, d, d), (d, d), (K, d), (K,) or ()."""

    weights: Floats
    means: Floats
    covariances: Floats


def n_products(form: str, d: int) -> int:
    """How many sums of products a class has."""
    return {"full": d * (d + 1) // 2, "tied": d * (d + 1) // 2, "diag": d}.get(form, 1)


def sums_by_class(points: Floats, membership: Floats, form: str, origin: Floats) -> Floats:
    """The table (K, 1 + d + q) for points (n, d) and memberships (n, K)."""
    centred = points - origin
    if form in ("full", "tied"):
        first, second = np.triu_indices(points.shape[1])
        products = centred[:, first] * centred[:, second]
    else:
        products = centred**2
        if form != "diag":
            products = products.sum(axis=1, keepdims=True)
    weighted = membership.T
    return np.hstack([weighted.sum(axis=1)[:, None], weighted @ centred, weighted @ products])


def gaussians_from_sums(total: Floats, form: str, origin: Floats, floor: float) -> Gaussians:
    """The maximum of the likelihood; `floor` is added to every variance."""
    d = len(origin)
    people = np.maximum(total[:, 0], 10 * np.finfo(float).eps)
    means, products = total[:, 1 : 1 + d] / people[:, None], total[:, 1 + d :]
    if form in ("full", "tied"):
        first, second = np.triu_indices(d)
        own = products - people[:, None] * means[:, first] * means[:, second]
        own = own.sum(axis=0)[None] / people.sum() if form == "tied" else own / people[:, None]
        spread = np.empty((len(own), d, d))
        spread[:, first, second] = spread[:, second, first] = own
        spread[:, np.arange(d), np.arange(d)] += floor
        spread = spread[0] if form == "tied" else spread
    elif form == "diag":
        spread = np.maximum(products / people[:, None] - means**2, 0.0) + floor
    else:
        left = products[:, 0] - people * (means**2).sum(axis=1)
        spread = left / (d * people) if form == "spherical" else left.sum() / (d * people.sum())
        spread = np.maximum(spread, 0.0) + floor
    return Gaussians(total[:, 0] / people.sum(), means + origin, np.asarray(spread))


def precisions(covariances: Floats, form: str) -> Floats:
    """The inverse of the Cholesky factor, as scikit-learn computes it."""
    from scipy.linalg import cholesky, solve_triangular

    if form not in ("full", "tied"):
        return np.asarray(1.0 / np.sqrt(covariances))
    matrices = covariances if form == "full" else covariances[None]
    even = np.eye(matrices.shape[-1])
    out = [solve_triangular(cholesky(c, lower=True), even, lower=True).T for c in matrices]
    return np.array(out) if form == "full" else np.asarray(out[0])


def log_densities(points: Floats, means: Floats, roots: Floats, form: str) -> Floats:
    """Log density of each point in each class, (n, K), from `precisions`."""
    n, d = points.shape
    logs = np.empty((n, len(means)))
    for k, mean in enumerate(means):
        root = roots if form in ("tied", "equal") else roots[k]
        scaled = (points - mean) @ root if np.ndim(root) == 2 else (points - mean) * root
        diagonal = np.diag(root) if np.ndim(root) == 2 else np.broadcast_to(root, d)
        logs[:, k] = np.log(diagonal).sum() - 0.5 * (
            d * np.log(2 * np.pi) + (scaled**2).sum(axis=1)
        )
    return logs


# --- latent class models ----------------------------------------------------------------------


class _Fit(NamedTuple):
    """Proportions (G, K), item probabilities (K, C), class probabilities of each pattern (U, K)."""

    weights: Floats
    items: Floats
    responsibility: Floats


class _Table(NamedTuple):
    """The U patterns of a fit: one-hot answers (U, C), people (U,), group of each (U,), G groups.

    `answers` is sparse where it is large.
    """

    answers: Any
    case: Floats
    group: NDArray[np.intp]
    n_groups: int


_SHORT = 25  # updates of every start, before the best starts are followed
_SAME = 1e-5  # of log posterior per person: what two starts that end in one maximum may differ by
_DENSE = 20_000  # cells up to which one-hot answers are quicker as a plain array


class LatentClass:
    """A latent class model: items independent given the class.

    The answers x of a person have the probability Σ_k π_k ∏_j p_kj(x_j); a missing answer
    drops out of the product. EM runs on the distinct answer patterns, so its cost does not
    depend on the number of people. Classes are ordered by decreasing size.

    Parameters
    ----------
    n_classes : int
    n_init : int
        Random starts. Each makes a short run; the best quarter, at least two, is followed to the
        end.
    search : "default" or "thorough"
        A thorough search follows every start to the end.
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
    group_weights_ : DataFrame
        After a fit with groups the class proportions of each, group × class; else without rows.
    class_parameters_ : (K, C) probabilities of all categories, item after item
    categories_ : {item: list of categories}
        A categorical column has its own categories; another column has the answers that occur.
    n_parameters_ : int
        Free parameters of the answers that occur, as `bic` counts them.
    loglik_ : float
    converged_ : bool
    starts_ : DataFrame
        Every start: its log posterior at the end, whether it was followed, and whether it settled.
    n_replicated_, n_searches_ : int
        So many of the starts that were followed reached the maximum.

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
        search: Literal["default", "thorough"] = "default",
        prior: float = PRIOR_OF_ITEMS,
        tol: float = 1e-8,
        max_iter: int = 1000,
        seed: int | np.random.Generator | None = 0,
    ) -> None:
        self.n_classes = whole_number(n_classes, 1, "n_classes")
        self.n_init = whole_number(n_init, 1, "n_init")
        self.max_iter = whole_number(max_iter, 1, "max_iter")
        one_of(search, ("default", "thorough"), "search")
        self.search, self.prior, self.tol, self.seed = search, prior, tol, seed

    def fit(
        self,
        data: ArrayLike | pd.DataFrame,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Estimate the model from answers (people × items); NaN and None are missing.

        With `groups`, one label per person, the classes are shared, while every group has class
        proportions of its own.
        """
        frame = _frame(data)
        if frame.empty:
            raise InputError(f"found answers of shape {frame.shape}; people and items are needed.")
        self.categories_ = {item: _categories(frame[item]) for item in frame.columns}
        bare = [item for item, values in self.categories_.items() if not values]
        if bare:
            raise InputError(f"nobody answered the items {some(bare)}; leave them out.")
        answers, number = self._distinct(frame)
        group, names = np.zeros(len(frame), dtype=np.intp), pd.Index([], name="group")
        if groups is not None:
            group, found = pd.factorize(np.asarray(groups), sort=True)
            names = pd.Index(found, name="group")
            if len(group) != len(frame) or (group < 0).any():
                raise InputError(f"groups must be {len(frame):,} labels without missing ones.")
        n_groups = max(len(names), 1)
        pairs, number = np.unique(number * n_groups + group, return_inverse=True)
        case = np.bincount(number, weights=case_weights(weights, len(frame)), minlength=len(pairs))
        if case.sum() == 0:
            raise InputError("all case weights are 0; at least one person must count.")
        pattern, group = np.divmod(pairs, n_groups)
        table = _Table(answers[pattern], case.astype(float), group, n_groups)
        best = self._search(table)
        people = np.bincount(group, case, minlength=n_groups)
        shares = probabilities(people) @ best.weights
        order = np.argsort(-shares, kind="stable")
        self.weights_ = shares[order]
        self.class_parameters_ = best.items[order]
        self.group_weights_ = pd.DataFrame(
            best.weights[: len(names), order], index=names, columns=range(self.n_classes)
        )
        _, each = posterior(
            _log_joint(table.answers, best.weights[:, order][group], self.class_parameters_)
        )
        self.loglik_ = float(case @ each)
        occurring = np.add.reduceat(
            table.answers.T @ table.case > 0, np.cumsum([0, *self._sizes()[:-1]]), dtype=int
        )
        self.n_parameters_ = n_groups * (self.n_classes - 1) + self.n_classes * int(
            np.maximum(occurring - 1, 0).sum()
        )
        return self

    def predict_proba(
        self, data: ArrayLike | pd.DataFrame, groups: ArrayLike | None = None
    ) -> Floats:
        """Class probabilities (n, K), with the proportions of each person's group if given."""
        return self._memberships(data, groups)[0]

    def score_samples(
        self, data: ArrayLike | pd.DataFrame, groups: ArrayLike | None = None
    ) -> Floats:
        """Log-likelihood of each person's answers, (n,)."""
        return self._memberships(data, groups)[1]

    def predict(self, data: ArrayLike | pd.DataFrame, groups: ArrayLike | None = None) -> Integers:
        """The most probable class of each person."""
        return np.asarray(np.argmax(self.predict_proba(data, groups), axis=1))

    def _memberships(
        self, data: ArrayLike | pd.DataFrame, groups: ArrayLike | None
    ) -> tuple[Floats, Floats]:
        answers, number = self._distinct(_frame(data))
        if groups is None:
            table, each = posterior(_log_joint(answers, self.weights_, self.class_parameters_))
            return table[number], each[number]
        names = pd.Index(np.asarray(groups))
        group = self.group_weights_.index.get_indexer(names)
        if len(group) != len(number) or (group < 0).any():
            raise InputError(
                f"groups must be {len(number):,} labels among those of the fit "
                f"({some(self.group_weights_.index)}); found {some(names[group < 0].unique())}."
            )
        shares = self.group_weights_.to_numpy()[group]
        return posterior((answers @ _log(self.class_parameters_).T)[number] + _log(shares))

    def statistics(
        self,
        data: ArrayLike | pd.DataFrame,
        membership: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> Floats:
        """Sums by class, (K, 1 + C): the people, then those who gave each answer."""
        frame = _frame(data)
        table = memberships(membership, len(frame), self.n_classes)
        if weights is not None:
            table = table * case_weights(weights, len(frame))[:, None]
        answers, number = self._distinct(frame)
        by_row = np.stack(
            [np.bincount(number, column, minlength=answers.shape[0]) for column in table.T], axis=1
        )
        return np.hstack([table.sum(axis=0)[:, None], (answers.T @ by_row).T])

    def from_statistics(self, total: ArrayLike) -> Self:
        """The model that sums of all people give, as many classes as rows; see `statistics`."""
        table = check_sums(total, 1 + self.class_parameters_.shape[1], counts=True)
        sizes, prior = self._item_prior()
        return type(self).of(
            self.categories_,
            probabilities(table[:, 0]),
            probabilities(table[:, 1:], prior, sizes=sizes),
            n_init=self.n_init,
            search=self.search,
            prior=self.prior,
            tol=self.tol,
            max_iter=self.max_iter,
            seed=self.seed,
        )

    def log_likelihoods(self, data: ArrayLike | pd.DataFrame) -> Floats:
        """Log-likelihood of each person's answers in each class, (n, K)."""
        answers, number = self._distinct(_frame(data))
        logs: Floats = answers @ _log(self.class_parameters_).T
        return logs[number]

    def log_penalty(self) -> float:
        """What the prior adds to the log-likelihood."""
        return log_prior(self.class_parameters_, self._item_prior()[1])

    def bic(self, n: int) -> float:
        """Schwarz's criterion for n people: −2 log L + p log n."""
        return float(-2 * self.loglik_ + self.n_parameters_ * np.log(n))

    @classmethod
    def of(
        cls,
        categories: dict[Any, list[Any]],
        weights: Floats,
        probabilities: Floats,
        **settings: Any,
    ) -> Self:
        """The model with these categories, proportions (K,) and probabilities (K, C)."""
        model = cls(len(weights), **settings)
        model.categories_, model.weights_ = categories, weights
        model.class_parameters_ = probabilities
        model.loglik_, model.converged_ = float("nan"), False
        return model

    # --- inside -------------------------------------------------------------------------

    def _search(self, table: _Table) -> _Fit:
        """The best of all starts: short runs, of which the best are followed until they settle."""
        update, tol = self._update(table), self.tol * float(table.case.sum())
        rng, none = np.random.default_rng(self.seed), np.empty(0)
        starts = [
            _Fit(none, none, rng.dirichlet(np.ones(self.n_classes), size=len(table.case)))
            for _ in range(self.n_init)
        ]
        runs = [climb(update, start, min(_SHORT, self.max_iter), tol=tol) for start in starts]
        n_followed = self.n_init if self.search == "thorough" else max(2, -(-self.n_init // 4))
        followed = np.argsort([-run[1] for run in runs], kind="stable")[:n_followed]
        for i in followed:
            state, _, settled = runs[i]
            if not settled and self.max_iter > _SHORT:
                runs[i] = climb(update, state, self.max_iter - _SHORT, tol=tol)
        scores = np.array([runs[i][1] for i in followed])
        best: _Fit
        best, value, self.converged_ = runs[followed[scores.argmax()]]
        self.starts_ = pd.DataFrame(
            {
                "start": np.arange(1, self.n_init + 1),
                "log_posterior": [run[1] for run in runs],
                "followed": np.isin(np.arange(self.n_init), followed),
                "converged": [run[2] for run in runs],
            }
        )
        self.n_searches_ = len(followed)
        self.n_replicated_ = int((value - scores <= _SAME * table.case.sum()).sum())
        return best

    def _update(self, table: _Table) -> Callable[[_Fit], tuple[_Fit, float]]:
        """An M step and the E step after it, on the patterns of a fit."""
        answers, case, group, n_groups = table
        by_answer, by_group = answers.T, np.eye(n_groups)[:, group]
        sizes, prior = self._item_prior()

        def update(fit: _Fit) -> tuple[_Fit, float]:
            weighted = fit.responsibility * case[:, None]
            items = probabilities((by_answer @ weighted).T, prior, sizes=sizes)
            weights = probabilities(by_group @ weighted)
            responsibility, each = posterior(_log_joint(answers, weights[group], items))
            score = float(case @ each) + log_prior(items, prior)
            return _Fit(weights, items, responsibility), score

        return update

    def _sizes(self) -> list[int]:
        """The number of categories of each item."""
        return [len(values) for values in self.categories_.values()]

    def _item_prior(self) -> tuple[list[int], Floats]:
        """The number of categories of each item, and the pseudo-count of each category, (C,)."""
        sizes = self._sizes()
        return sizes, np.repeat(self.prior / np.array(sizes), sizes)

    def _distinct(self, frame: pd.DataFrame) -> tuple[Any, NDArray[np.intp]]:
        """One-hot answers of the distinct patterns (U, C), and the pattern of each person (n,)."""
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
            columns.append(codes)
        rows, number = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
        return _one_hot(rows, self._sizes()), number.ravel()


def _categories(column: pd.Series) -> list[Any]:
    """The possible answers: those that a categorical column declares, or those that occur."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return list(column.cat.categories.tolist())
    return list(np.sort(pd.unique(column.dropna())).tolist())


def _one_hot(codes: NDArray[np.intp], sizes: Sequence[int]) -> Any:
    """Codes (U, J), −1 where missing, as (U, C) zeros and ones; sparse where there are many."""
    from scipy import sparse

    row, item = np.nonzero(codes >= 0)
    column = np.cumsum([0, *sizes[:-1]])[item] + codes[row, item]
    shape = len(codes), sum(sizes)
    table = sparse.csr_array((np.ones(len(row)), (row, column)), shape=shape)
    return table.toarray() if np.prod(shape) <= _DENSE else table


def _frame(data: ArrayLike | pd.DataFrame) -> pd.DataFrame:
    if isinstance(data, pd.DataFrame):
        return data
    array = np.asarray(data)
    if array.ndim != 2:
        raise InputError(f"answers must be a table, people × items; found {array.ndim} dimensions.")
    return pd.DataFrame(array)


def _log_joint(answers: Any, weights: Floats, items: Floats) -> Floats:
    """log π_k + Σ_j log p_kj(x_j), (U, K)."""
    joint: Floats = answers @ _log(items).T + _log(weights)
    return joint


def _log(values: Floats) -> Floats:
    """Logarithm that stays finite, since 0 · log 0 must be 0."""
    logs: Floats = np.log(np.maximum(values, 1e-300))
    return logs
