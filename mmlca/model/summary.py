"""A fitted mixture in words and tables: each patient's class, and one row per class."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from mmlca.model.params import MarkovParams

_MOST = 500  # free parameters up to which a summary computes intervals


class Summary:
    """Tables of a fitted mixture with these attributes."""

    params_: MarkovParams
    states_: tuple[str, ...]
    loglik_: float
    n_parameters_: int
    weights_: pd.Series
    group_weights_: pd.DataFrame
    _pattern_posterior: NDArray[np.float64]
    _inverse: NDArray[Any]
    _ids: pd.Index
    _patient_weights: NDArray[np.float64]
    _own_intervals: Callable[[], pd.DataFrame]

    @property
    def posterior_(self) -> pd.DataFrame:
        """Each patient's class, its probability, and how far the next best class is behind."""
        check_is_fitted(self)
        if not hasattr(self, "_pattern_posterior"):
            raise AttributeError(
                "a loaded model does not carry its patients; use predict or predict_proba."
            )
        ordered = np.sort(self._pattern_posterior, axis=1)
        second = ordered[:, -2] if ordered.shape[1] > 1 else np.zeros(len(ordered))
        table = pd.DataFrame(
            {
                "class": self._pattern_posterior.argmax(axis=1) + 1,
                "probability": ordered[:, -1],
                "margin": ordered[:, -1] - second,
            }
        )
        return table.take(self._inverse).set_axis(self._ids).reset_index()

    def average_posterior(self) -> float:
        """Mean probability of the patients' own class, weighted; near 1 where classes are clear."""
        table = self.posterior_
        counted = self._patient_weights > 0
        return float(
            np.average(table["probability"][counted], weights=self._patient_weights[counted])
        )

    def _repr_html_(self) -> str:
        """The summary of a fitted model, for notebooks."""
        if not hasattr(self, "posterior_"):
            return f"<pre>{html.escape(repr(self))}</pre>"
        head = f"<p>{self.params_.n_classes} classes, log-likelihood {self.loglik_:,.2f}.</p>"
        table = self.summary()
        if (table["patients"] % 1 == 0).all():
            table["patients"] = table["patients"].astype(int)
        return f"{head}\n{table.to_html(border=0, float_format='{:.3f}'.format)}"

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        """What notebooks ask for first; scikit-learn's shows the settings only."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def summary(self) -> pd.DataFrame:
        """One row per class: its size, its patients' certainty, how it starts, stays and moves.

        `patients` counts those whose most probable class this is, `certainty` is their mean
        probability of it; after a fit with groups `weight in …` is the share of the class in each
        group; `stays` and `mostly moves to` are steps from the most frequent first state. `low`
        and `high` are the limits of 95 % intervals, see `standard_errors`; with more than 500
        parameters they would take long and are left out.
        """
        table = self.posterior_.assign(patients=self._patient_weights)
        table["sure"] = table["probability"] * table["patients"]
        sums = table.groupby("class")[["patients", "sure"]].sum()
        sums = sums.reindex(self.weights_.index, fill_value=0.0)
        p, each = self.params_, np.arange(self.params_.n_classes)
        first = p.initial.argmax(axis=1)
        moves = p.transition[each, first]
        stays = moves[each, first]
        moves[each, first] = 0
        target = moves.argmax(axis=1)
        groups = {f"weight in {name}": row for name, row in self.group_weights_.iterrows()}
        return pd.DataFrame(
            {
                "weight": p.weights,
                **self._limits("weight", each),
                **groups,
                "patients": sums["patients"],
                "certainty": sums["sure"] / sums["patients"],
                "starts with": [
                    f"{self.states_[i]} ({p.initial[k, i]:.2f})" for k, i in enumerate(first)
                ],
                "stays": stays,
                **self._limits("stays", first),
                "mostly moves to": [
                    f"{self.states_[j]} ({moves[k, j]:.3f})" if moves[k, j] > 0 else "–"
                    for k, j in enumerate(target)
                ],
            },
            index=self.weights_.index,
        )

    def _limits(self, name: str, first: NDArray[np.intp]) -> dict[str, NDArray[np.float64]]:
        """Interval limits of the weights, or of the steps from each class's first state to it."""
        if self.n_parameters_ > _MOST or not hasattr(self, "_fitted_to"):
            return {}
        if not hasattr(self, "_intervals"):
            with warnings.catch_warnings():  # the table of intervals says so in its notes
                warnings.filterwarnings("ignore", "the data do not determine")
                self._intervals = self._own_intervals()
        k, s = self.params_.n_classes, self.params_.n_states
        rows = np.arange(k)
        if name == "stays":
            rows = k + k * s + rows * s * s + first * s + first
        return {f"{name} {end}": self._intervals[end].to_numpy()[rows] for end in ("low", "high")}
