"""Mixtures of Markov chains in exchange files: counts go out, and receivers make them a model.

A model file has for each class the expected numbers of patients, of patients by first state, and of
steps from each state to each, every number rounded at random to a multiple of min_count. One
patient may make several steps in one cell of the last table. So a cell that fewer than min_count
different patients make is rounded as patients, to 0 or min_count, and multiplied by the
mean number of steps per patient in all such cells of the site.

Besides what all models have (`font.exchange.messages.model`), the content is:

=================== =========================================================================
format              "mmlca markov counts"
states              S state labels, in order
prior               pseudo-count that receivers add to every cell of first and steps; with
                    min_count 1, where nothing is rounded, that of the fit
first               patients by class and first state (K × S)
steps               steps by class, from and to (K × S × S); a cell that fewer than
                    min_count different patients make is 0 or min_count × steps_per_patient
steps_per_patient   mean number of steps per patient in such cells of the site
=================== =========================================================================

The sums of a refinement have for each cluster the patients, those who begin in each state, and the
steps from each state to each (1 + S + S × S).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from font.exchange.disclosure import Draws, round_counts, round_events, round_mean, unrounded
from font.exchange.fields import (
    MOST_CLASSES,
    MOST_STATES,
    Label,
    Number,
    One,
    Strict,
    enough_patients,
    first_misfit,
    misfit_of_patients,
    misfit_of_shape,
    patients_in_words,
    size,
)
from font.exchange.registry import ModelFamily
from font.probabilities import PRIOR_OF_ROUNDED_STEPS, probabilities
from mmlca.federation.steps import local_prior

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.patterns import Patterns
    from mmlca.sequences.type import Sequences

Floats = NDArray[np.float64]
Content = Mapping[str, Any]

FORMAT = "mmlca markov counts"
_DIGITS = 2  # decimals of the mean number of steps
_LEAST_PRIOR = 1e-9  # of an exact file whose model is of maximum likelihood

Amount = Annotated[Number, Field(ge=0, le=10**9)]  # whole where counts are rounded
Counts = Annotated[list[Amount], size(1, MOST_STATES)]
Steps = Annotated[list[Annotated[Number, Field(ge=0)]], size(1, MOST_STATES)]


class MarkovPart(Strict):
    """A mixture of Markov chains as counts."""

    format: Literal["mmlca markov counts"]
    version: One
    states: Annotated[list[Label], size(1, MOST_STATES)]
    prior: Annotated[Number, Field(gt=0)]
    patients: Annotated[list[Amount], size(1, MOST_CLASSES)]
    first: Annotated[list[Counts], size(1, MOST_CLASSES)]
    steps: Annotated[
        list[Annotated[list[Steps], size(0, MOST_STATES)]],
        size(1, MOST_CLASSES),
    ]
    steps_per_patient: Annotated[Number, Field(ge=1)]


class Expected(NamedTuple):
    """Expected counts of a model on data: patients (K,), first (K, S), steps and support (K, S, S).

    `support` is the number of different patients who make each step, and `membership` (U, K) the
    number of patients with each pattern in each class.
    """

    patients: Floats
    first: Floats
    steps: Floats
    support: Floats
    membership: Floats


def expected_counts(model: MixtureMarkov, sequences: Sequences) -> Expected:
    """What the E-step gives, by class.

    Steps inside gaps of missing quarters count where they are expected; support counts steps that
    were observed, by patients of positive weight, each once.
    """
    from mmlca.model.em import e_step

    patterns, s = sequences.patterns, len(sequences.states)
    last = e_step(patterns, model.params_)
    visits = last.visits.reshape(-1, s + 1, s)
    people = np.bincount(patterns.inverse[sequences.weights > 0], minlength=len(patterns))
    membership = last.posterior * people[:, None]
    support = _observed(patterns, membership).reshape(-1, s, s)
    return Expected(
        patterns.weights @ last.posterior, visits[:, s], visits[:, :s], support, membership
    )


def _seen(patterns: Patterns) -> Any:
    """Which steps each pattern has, (U, S·S), as a sparse array of 0 and 1."""
    from scipy import sparse

    s = patterns.n_states
    seen = sparse.csr_array(
        (np.ones(len(patterns.tokens)), patterns.cell[patterns.tokens], patterns.indptr),
        shape=(len(patterns), s * (s + 1) + len(patterns.gaps)),
    )
    return seen[:, : s * s]


def _observed(patterns: Patterns, membership: Floats) -> Floats:
    """How many different patients make each step, (K, S·S), from patterns' memberships (U, K)."""
    support: Floats = (_seen(patterns).T @ membership).T
    return support


def markov_support(model: MixtureMarkov, sequences: Sequences, membership: Floats) -> Floats:
    """How many different patients contribute to each sum of `MixtureMarkov.statistics`."""
    sums = model.statistics(sequences, membership)[:, : 1 + len(sequences.states)]
    return np.hstack([sums, _observed(sequences.patterns, _people(sequences, membership))])


def markov_shares(model: MixtureMarkov, sequences: Sequences, membership: Floats) -> Floats:
    """The patients by first state, and each divided evenly among the different steps they make."""
    sums = model.statistics(sequences, membership)[:, : 1 + len(sequences.states)]
    seen = _seen(sequences.patterns)
    n_steps = np.maximum(seen.sum(axis=1), 1)  # different ones, of each pattern
    steps = (seen.T @ (_people(sequences, membership) / n_steps[:, None])).T
    return np.hstack([sums, steps])


def markov_blocks(content: Content) -> NDArray[np.intp]:
    """The patients, their first states, their steps."""
    s = len(content["states"])
    return np.repeat(np.arange(3), [1, s, s * s])


def _people(sequences: Sequences, membership: Floats) -> Floats:
    """The number of patients with each pattern in each class, (U, K), each counted once."""
    patterns, counted = sequences.patterns, sequences.weights > 0
    columns = [
        np.bincount(patterns.inverse, column * counted, minlength=len(patterns))
        for column in membership.T
    ]
    return np.stack(columns, axis=1)


def markov_content(
    model: MixtureMarkov, sequences: Sequences, min_count: int, draws: Draws
) -> dict[str, Any]:
    """A fitted model as a file holds it: rounded, or with `min_count` 1 as it was fitted.

    Receivers add the prior to every count, which helps small sites more than rounding harms them;
    0.5 did worse, 2 a little better than 1. See "what was tried" in the documentation.
    """
    expected = expected_counts(model, sequences)
    enough_patients(expected.patients, min_count)
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "states": list(model.states_),
        "prior": PRIOR_OF_ROUNDED_STEPS,
    }
    if min_count == 1:  # exact, so that receivers get the model that was fitted
        return content | {
            "prior": max(model.prior, _LEAST_PRIOR),
            "patients": expected.patients.tolist(),
            "first": expected.first.tolist(),
            "steps": expected.steps.tolist(),
            "steps_per_patient": 1.0,
        }
    few = expected.support < min_count
    mean = 1.0
    rare = (_seen(sequences.patterns) @ few.reshape(len(few), -1).T.astype(float)) > 0  # (U, K)
    if (expected.membership * rare).sum() >= min_count:  # fewer are one patient's habit
        mean = expected.steps[few].sum() / expected.support[few].sum()
    patients = round_counts(expected.patients, min_count, draws)
    first = round_counts(expected.first, min_count, draws)
    counted = np.where(few, expected.support, expected.steps)
    rounded = round_events(counted, expected.support, min_count, draws.random(counted.shape))
    mean = round_mean(float(mean), draws.random(1))
    steps = np.where(few, np.round(rounded * mean, _DIGITS), rounded)
    return content | {
        "patients": patients.tolist(),
        "first": first.tolist(),
        "steps": steps.tolist(),
        "steps_per_patient": mean,
    }


def markov_model(content: Content) -> MixtureMarkov:
    """The model that a file's counts stand for, ready to predict."""
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.model.params import MarkovParams

    patients = np.array(content["patients"], dtype=float)
    prior = float(content["prior"])
    params = MarkovParams(
        probabilities(patients),
        probabilities(content["first"], prior),
        probabilities(content["steps"], prior),
    )
    model = MixtureMarkov(len(patients), prior=prior)
    model._set_params_(params, tuple(content["states"]))
    model.n_sequences_ = float(patients.sum())
    return model


def _fit(
    sequences: Sequences,
    n_classes: int,
    *,
    n_init: int,
    search: Any,
    prior: float | None,
    n_jobs: int,
    seed: int,
) -> MixtureMarkov:
    from mmlca.model.estimator import MixtureMarkov

    model = MixtureMarkov(
        n_classes,
        n_init=n_init,
        search=search,
        prior=local_prior(sequences.n_states) if prior is None else prior,
        n_jobs=n_jobs,
        seed=seed,
    )
    return model.fit(sequences)


def _compare(
    sequences: Sequences,
    numbers: Iterable[int],
    criterion: Any,
    *,
    prior: float | None,
    **settings: Any,
) -> pd.DataFrame:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.model.selection import candidates, fit_quietly
    from mmlca.study.results.models import comparison

    settings["prior"] = local_prior(sequences.n_states) if prior is None else prior
    fits = {
        (site, k): fit_quietly(MixtureMarkov(k, **settings), sequences)
        for site, k in candidates({"": sequences}, numbers, criterion)
    }
    return comparison(fits, criterion, "sequences")


def _find_misfit(content: Content, min_count: int) -> str | None:
    k, s = len(content["patients"]), len(content["states"])
    wrong = first_misfit(
        misfit_of_patients(content, min_count),
        misfit_of_shape(content["first"], "first states", (k, s)),
        misfit_of_shape(content["steps"], "steps", (k, s, s)),
    )
    if wrong is not None:
        return wrong
    wrong = unrounded(content["first"], min_count)
    if wrong is not None:
        return f"its first states have {wrong}"
    steps = np.array(content["steps"], dtype=float)
    few = np.abs(steps - round(min_count * content["steps_per_patient"], _DIGITS)) < 1e-9
    wrong = unrounded(np.where(few, 0, steps), min_count)
    return None if wrong is None else f"its steps have {wrong}"


def _explain(content: Content) -> tuple[list[str], list[str]]:
    states = ", ".join(content["states"])
    contains = [
        f"for each of {len(content['patients'])} classes: how many patients begin in each of the "
        f"{len(content['states'])} states ({states}), and how many steps go from each state to "
        "each, all rounded at random",
        patients_in_words(content),
        f"the mean number of steps per patient ({content['steps_per_patient']:g}) in cells to "
        f"which few patients contribute, and the pseudo-count ({content['prior']:g}) with which "
        "receivers turn counts into probabilities",
    ]
    return contains, ["about how common each course of treatment is at the site"]


MARKOV = ModelFamily(
    name="mixture of Markov chains",
    schema=MarkovPart,
    variables=lambda content: tuple(content["states"]),
    find_misfit=_find_misfit,
    recognises=lambda model: type(model).__name__ == "MixtureMarkov" and hasattr(model, "params_"),
    write=markov_content,
    read=markov_model,
    # counted as the model file counts them: the prior makes the weights a little more even
    sizes=lambda model, sequences: expected_counts(model, sequences).patients,
    fit=_fit,
    compare=_compare,
    data="sequences",
    explain=_explain,
    support=markov_support,
    shares=markov_shares,
    blocks=markov_blocks,
    n_statistics=lambda content: 1 + len(content["states"]) * (len(content["states"]) + 1),
)
