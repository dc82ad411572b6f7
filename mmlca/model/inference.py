"""How sure the parameters are: standard errors, intervals, and tests of covariates."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import chi2, norm
from sklearn.utils.validation import check_is_fitted

from font.errors import InputError, ReportWarning
from mmlca.model import em
from mmlca.model.checks import AnySequences, count_patients, forbidden_cells, in_states
from mmlca.model.covariates import AnyCovariates, Design, align
from mmlca.model.criteria import OVERLAP, entropy_r_squared
from mmlca.model.expected import Floats, Visits
from mmlca.model.information import (
    Kind,
    Point,
    conditional_covariance,
    covariance,
    information,
    point_of,
)
from mmlca.model.intervals import group_table, interval_table
from mmlca.model.membership import Mixture, make_rows
from mmlca.model.params import MarkovParams
from mmlca.sequences.checks import some
from mmlca.sequences.type import Labels, Sequences


class OverlapWarning(ReportWarning):
    """Classes overlap so much that standard errors may be too small."""


class Inference:
    """What a fitted mixture says about its own precision."""

    params_: MarkovParams
    states_: tuple[str, ...]
    coefficients_: pd.DataFrame
    prior: float
    zeros: Iterable[tuple[Any, Any]] | None
    missing: str
    _design: Design | None
    group_weights_: pd.DataFrame
    _fitted_to: tuple[Sequences, Floats | None, Labels | None]  # patients, covariates, groups

    def standard_errors(
        self,
        sequences: AnySequences,
        covariates: AnyCovariates | None = None,
        groups: Labels | None = None,
        *,
        information: Kind = "sandwich",
        level: float = 0.95,
    ) -> pd.DataFrame:
        """Standard errors and intervals of all probabilities.

        Intervals are symmetric on the logit scale, so that they stay between 0 and 1. A
        probability on the boundary (fewer than half an expected visit, or all visits of its row)
        has no standard error; its interval is the exact one for "never" or "always" in as many
        visits as its row has. One that the data do not determine has none either, and the interval
        from 0 to 1. The prior counts as in the fit: for every row of the chains and for the class
        proportions, in each group if there are groups.

        All this is a normal approximation. Where classes overlap (entropy R² below 0.7) and
        patients are few, intervals are too narrow, and a warning says so; `mmlca.bootstrap` is
        better there.

        Parameters
        ----------
        sequences : those of the fit, with the same weights
        covariates, groups : those of the fit, if there were any
        information : "sandwich", "observed" or "opg"
            "observed" is the curvature of the log-likelihood (Louis 1982), "opg" sums the outer
            products of the patterns' scores, and "sandwich" puts the latter between two inverses
            of the former. "sandwich" covers best where classes overlap, and also holds where
            weights are not counts of patients or the chains are not quite Markov.
        level : of the intervals

        Returns
        -------
        DataFrame
            One row per probability: `parameter` ("weight", "initial" or "transition"), `class`,
            `from`, `to`, `estimate`, `se`, `low`, `high`, `boundary`, and a `note` where
            there is no standard error. After a fit with groups the class proportions of each
            follow as "group weight", with the group in `from`.

        Examples
        --------
        >>> from mmlca import MarkovParams, MixtureMarkov, simulate
        >>> two = MarkovParams([0.5, 0.5], [[1, 0], [0, 1]], [[[0.9, 0.1], [0.5, 0.5]],
        ...                                                   [[0.5, 0.5], [0.1, 0.9]]])
        >>> sequences, _ = simulate(two, 500, 12, seed=1)
        >>> table = MixtureMarkov(2, seed=1).fit(sequences).standard_errors(sequences)
        >>> table.loc[table["parameter"] == "weight", ["estimate", "se"]].round(2).values.tolist()
        [[0.52, 0.02], [0.48, 0.02]]
        """
        check_is_fitted(self)
        _check(information, level)
        point, _ = self._point(sequences, covariates, groups)
        data = in_states(sequences, self.states_)
        return self._intervals_at(point, data, information, level)

    def _own_intervals(self) -> pd.DataFrame:
        """The intervals for the patients of the fit, which the model still holds."""
        data, matrix, groups = self._fitted_to
        return self._intervals_at(self._point_of(data, matrix, groups), data, "sandwich", 0.95)

    def _intervals_at(
        self, point: Point, data: Sequences, information: Kind, level: float
    ) -> pd.DataFrame:
        spread, lost = self._covariance(point, information)
        zero = point.cells == 0  # with a prior only what is forbidden is zero
        if not self.prior:
            zero &= forbidden_cells(self.zeros, data)
        table = interval_table(point, spread, lost, zero, self.params_, self.states_, level)
        if not len(self.group_weights_):
            return table
        return pd.concat(
            [table, group_table(point, spread, lost, self.group_weights_, level)],
            ignore_index=True,
        )

    def coefficient_table(
        self,
        sequences: AnySequences,
        covariates: AnyCovariates,
        *,
        information: Kind = "sandwich",
        conditional: bool = False,
        level: float = 0.95,
    ) -> pd.DataFrame:
        """Effects of covariates on membership, with standard errors and odds ratios.

        Parameters
        ----------
        sequences, covariates : those of the fit
        information : as in `standard_errors`
            Other programs report "observed".
        conditional : bool
            Take the classes as known, as some programs do; such standard errors are too small.
        level : of the intervals

        Returns
        -------
        DataFrame
            One row per class but the first and term: `term`, `class`, `estimate` (log-odds against
            the first class), `se`, `z`, `p`, `low`, `high`, `odds_ratio`, `or_low`, `or_high`.
        """
        check_is_fitted(self)
        _check(information, level)
        point, design = self._point(sequences, covariates)
        spread, lost, names = self._coefficient_covariance(point, design, information, conditional)
        estimate = self.coefficients_.to_numpy()[:, 1:].T.ravel()
        se = np.where(lost, np.nan, np.sqrt(np.diagonal(spread)))
        z = estimate / se
        width = norm.ppf(0.5 + level / 2) * se
        table = pd.DataFrame(
            {
                "term": names * (self.params_.n_classes - 1),
                "class": np.repeat(np.arange(2, self.params_.n_classes + 1), len(names)),
                "estimate": estimate,
                "se": se,
                "z": z,
                "p": 2 * norm.sf(np.abs(z)),
                "low": estimate - width,
                "high": estimate + width,
            }
        )
        with np.errstate(over="ignore"):
            for name, source in (
                ("odds_ratio", "estimate"),
                ("or_low", "low"),
                ("or_high", "high"),
            ):
                table[name] = np.exp(table[source])
        return table

    def coefficient_covariance(
        self,
        sequences: AnySequences,
        covariates: AnyCovariates,
        *,
        information: Kind = "sandwich",
    ) -> pd.DataFrame:
        """Covariance of the coefficients, (class, term) × (class, term), classes from 2.

        Parameters
        ----------
        sequences, covariates : those of the fit
        information : as in `coefficient_table`
        """
        check_is_fitted(self)
        _check(information, 0.95)
        point, design = self._point(sequences, covariates)
        spread, _, names = self._coefficient_covariance(point, design, information, False)
        classes = range(2, self.params_.n_classes + 1)
        index = pd.MultiIndex.from_product([classes, names], names=["class", "term"])
        return pd.DataFrame(spread, index, index)

    def term_tests(
        self,
        sequences: AnySequences,
        covariates: AnyCovariates,
        *,
        test: Literal["wald", "lr"] = "wald",
        information: Kind = "sandwich",
    ) -> pd.DataFrame:
        """Whether each covariate matters at all, over all classes and levels together.

        Parameters
        ----------
        sequences, covariates : those of the fit
        test : "wald" or "lr"
            Wald tests need this fit alone. Likelihood-ratio tests fit the model again without
            each term, from the present chains on, and are the better ones in small samples.
        information : as in `standard_errors`, for Wald tests

        Returns
        -------
        DataFrame
            One row per term: `term`, `statistic`, `df`, `p`.
        """
        check_is_fitted(self)
        _check(information, 0.95)
        if test not in ("wald", "lr"):
            raise InputError(f'test must be "wald" or "lr", found {test!r}.')
        point, design = self._point(sequences, covariates)
        k = self.params_.n_classes
        terms = list(dict.fromkeys(design.term_of[1:]))
        spread = np.empty((0, 0))
        if test == "wald":
            spread, _, _ = self._coefficient_covariance(point, design, information, False)
        rows = []
        for term in terms:
            columns = np.flatnonzero([name == term for name in design.term_of])
            if test == "wald":
                place = (columns + len(design.columns) * np.arange(k - 1)[:, None]).ravel()
                effect = self.coefficients_.to_numpy()[columns, 1:].T.ravel()
                statistic = float(effect @ np.linalg.pinv(spread[np.ix_(place, place)]) @ effect)
            else:
                statistic = self._likelihood_ratio(point, columns)
            df = len(columns) * (k - 1)
            rows.append(
                {"term": term, "statistic": statistic, "df": df, "p": float(chi2.sf(statistic, df))}
            )
        return pd.DataFrame(rows, columns=["term", "statistic", "df", "p"])

    # --- inside ---------------------------------------------------------------------------

    def _point(
        self,
        sequences: AnySequences,
        covariates: AnyCovariates | None,
        groups: Labels | None = None,
    ) -> tuple[Point, Design]:
        """Data and parameters, and the design of the covariates; without any, an intercept."""
        data = in_states(sequences, self.states_)
        self._check_covariates(covariates)  # type: ignore[attr-defined]
        known = self.group_weights_.index
        if len(known) and groups is None:
            raise InputError(
                f"the model was fitted with the groups {some(known)}; give those of these patients."
            )
        if groups is not None and not len(known):
            raise InputError("the model was fitted without groups; leave them out here too.")
        if self._design is None or covariates is None:
            return self._point_of(data, None, groups), Design((), ())
        data, matrix = _complete_rows(self._design, align(covariates, data), data, self.missing)
        return self._point_of(data, matrix, None), self._design

    def _point_of(self, data: Sequences, matrix: Floats | None, groups: Labels | None) -> Point:
        """The point of data in this model's states, with the columns of their covariates."""
        data, _ = count_patients(data)
        if groups is not None:
            number = self._group_numbers(data, groups)  # type: ignore[attr-defined]
            each = np.eye(len(self.group_weights_))[number]  # an intercept for each group
            rows = make_rows(data.patterns, data.weights, each)
            shares = np.maximum(self.group_weights_.to_numpy(), 1e-12)
            coefficients = np.log(shares / shares[:, :1])
        elif matrix is None or self._design is None:
            rows = make_rows(data.patterns, data.weights)
            shares = np.maximum(self.params_.weights, 1e-300)
            coefficients = np.log(shares / shares[0])[None]
        else:
            design = self._design
            rows = make_rows(data.patterns, data.weights, design.standardised(matrix))
            coefficients = np.linalg.solve(design.back, self.coefficients_.to_numpy())
        visits = Visits(data.patterns)
        prior = float(self.prior)
        of_classes = prior if matrix is None else 0.0  # coefficients of covariates have none
        point = point_of(visits, rows, self.params_, coefficients, prior, of_classes)
        if not np.isfinite(point.posterior[rows.weights > 0]).all():
            raise InputError("some patients are impossible under the model; give those of the fit.")
        return point

    def _covariance(self, point: Point, kind: Kind) -> tuple[Floats, NDArray[np.bool_]]:
        clarity = entropy_r_squared(point.posterior, point.rows.weights)
        if clarity < OVERLAP:
            warnings.warn(
                f"the classes overlap (entropy R² {clarity:.2f}, below {OVERLAP:g}), so that "
                "intervals from standard errors may be too narrow; those of the bootstrap are "
                "safer (mmlca.bootstrap, or --bootstrap 500 of `mmlca fit`).",
                OverlapWarning,
                stacklevel=4,
            )
        spread, lost = covariance(information(point), kind)
        if lost.any():
            warnings.warn(
                f"the data do not determine {int(lost.sum())} of {point.size} parameters, which "
                "get no standard error; ask for fewer classes or covariates.",
                ReportWarning,
                stacklevel=4,
            )
        return spread, lost

    def _coefficient_covariance(
        self, point: Point, design: Design, kind: Kind, conditional: bool
    ) -> tuple[Floats, NDArray[np.bool_], list[str]]:
        """Of the coefficients as reported, by class and term; which are lost; terms' names."""
        n = point.n_coefficients
        if conditional:
            spread, lost = conditional_covariance(point), np.zeros(n, dtype=bool)
        else:
            whole, all_lost = self._covariance(point, kind)
            spread, lost = whole[:n, :n], all_lost[:n]
        back = np.kron(np.eye(self.params_.n_classes - 1), design.back)
        return back @ spread @ back.T, lost, design.columns

    def _likelihood_ratio(self, point: Point, columns: NDArray[np.intp]) -> float:
        """Twice the log-likelihood that is lost without some columns of the design."""
        settings = em.Settings(float(self.prior), np.zeros(0, dtype=bool), 2_000, 1e-7, True)
        kept = np.setdiff1d(np.arange(len(point.coefficients)), columns)
        values = []
        for used in (np.arange(len(point.coefficients)), kept):
            rows = point.rows._replace(design=point.rows.design[:, used])
            fixed = settings._replace(zeros=np.zeros(point.cells.shape[1], dtype=bool))
            run = Mixture(point.visits, rows, fixed, point.cells == 0).run(
                point.cells, point.coefficients[used], fixed.max_iter, fixed.tol, True
            )
            values.append(run.value)
        return max(0.0, 2 * (values[0] - values[1]))


def _check(kind: str, level: float) -> None:
    if kind not in get_args(Kind):
        raise InputError(f"information must be one of {', '.join(get_args(Kind))}, found {kind!r}.")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, such as 0.95, found {level!r}.")


def _complete_rows(
    design: Design, frame: pd.DataFrame, data: Sequences, missing: str
) -> tuple[Sequences, Floats]:
    """The patients who lack no covariate, as in the fit, and their columns."""
    matrix = design.matrix(frame)
    known = ~np.isnan(matrix).any(axis=1)
    if known.all():
        return data, matrix
    if missing == "error":
        raise InputError(
            f"{int((~known).sum()):,} of {len(data):,} patients lack covariates (patients "
            f"{some(data.ids[~known])}); give the patients of the fit."
        )
    return data[known], matrix[known]
