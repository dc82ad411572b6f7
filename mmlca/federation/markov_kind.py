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

The BIC of a site's vote counts the parameters of first states and steps that at least min_count of
its patients make, so that nobody's own step changes the count.

Chains that depend on time in state or on the period have the steps by context instead. Time in
state has B bins and time since the start P periods, numbered from the earliest on. The cells of
these tables are rounded as those of steps are, except that all cells of few patients share one
draw, as in the sums of a refinement: a patient who stays in a rare state is in the cells of several
bins, and one who leaves it in that of a destination too, and what these reveal must not add up.

=================== =========================================================================
format              "mmlca markov counts by context"
states, prior, first, steps_per_patient
                    as above; the prior is added to every cell of first, staying, leaving and
                    destinations, except from a state to itself
form                {stays, periods, shared}: the cut points of time in state and of time since
                    the start, in windows, and "destinations" if the periods share these, or null
staying, leaving    steps that stay in the state or leave it, by class, period, bin and state
                    (K × P × B × S)
destinations        steps to another state, by class, period, from and to (K × P × S × S, or
                    K × 1 × S × S if they are shared); 0 from a state to itself
=================== =========================================================================

The sums of a refinement have for each cluster the patients, those who begin in each state, then for
each period, bin and state the steps that stay and those that leave, and then the destinations
(1 + S + 2 × P × B × S + P × S × S, or S × S if they are shared).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
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
from mmlca.sequences.checks import MAX_TIMES
from mmlca.sequences.forms import PLAIN, Form, Layout, layout_of, make_form

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.patterns import Patterns
    from mmlca.sequences.type import Sequences

Floats = NDArray[np.float64]
Content = Mapping[str, Any]

FORMAT, FORMAT_BY_CONTEXT = "mmlca markov counts", "mmlca markov counts by context"
_DIGITS = 2  # decimals of the mean number of steps
_LEAST_PRIOR = 1e-9  # of an exact file whose model is of maximum likelihood
_MOST_CUTS = 100

Amount = Annotated[Number, Field(ge=0, le=10**9)]  # whole where counts are rounded
Counts = Annotated[list[Amount], size(1, MOST_STATES)]
Steps = Annotated[list[Annotated[Number, Field(ge=0)]], size(1, MOST_STATES)]
Cuts = Annotated[list[Annotated[int, Field(ge=2, le=MAX_TIMES)]], size(0, _MOST_CUTS)]
Square = Annotated[list[Steps], size(0, MOST_STATES)]


class ChainsPart(Strict):
    """What mixtures of all forms have."""

    version: One
    states: Annotated[list[Label], size(1, MOST_STATES)]
    prior: Annotated[Number, Field(gt=0)]
    patients: Annotated[list[Amount], size(1, MOST_CLASSES)]
    first: Annotated[list[Counts], size(1, MOST_CLASSES)]
    steps_per_patient: Annotated[Number, Field(ge=1)]


class MarkovPart(ChainsPart):
    """A mixture of plain Markov chains as counts."""

    format: Literal["mmlca markov counts"]
    steps: Annotated[list[Square], size(1, MOST_CLASSES)]


class FormPart(Strict):
    """Which parts the chains have; see `mmlca.sequences.forms.Form`."""

    stays: Cuts
    periods: Cuts
    shared: Literal["destinations"] | None


Contexts = Annotated[
    list[Annotated[list[Annotated[list[Steps], size(1, _MOST_CUTS + 1)]], size(1, _MOST_CUTS + 1)]],
    size(1, MOST_CLASSES),
]


class ContextPart(ChainsPart):
    """A mixture of chains that depend on time in state or on the period, as counts."""

    format: Literal["mmlca markov counts by context"]
    form: FormPart
    staying: Contexts
    leaving: Contexts
    destinations: Annotated[
        list[Annotated[list[Square], size(1, _MOST_CUTS + 1)]], size(1, MOST_CLASSES)
    ]


# --- the cells of a chain as the tables of a file ---------------------------------------------


def layout_in(content: Content) -> Layout:
    """The cells of the chains in a file."""
    return layout_of(_form_in(content), len(content["states"]))


def _form_in(content: Content) -> Form:
    return make_form(**content["form"]) if "form" in content else PLAIN


def _shapes(content: Content) -> dict[str, tuple[int, ...]]:
    """The tables of steps in a file, and the shape that each must have."""
    k, s, form = len(content["patients"]), len(content["states"]), _form_in(content)
    if form == PLAIN:
        return {"steps": (k, s, s)}
    contexts = (k, form.n_periods, form.n_bins, s)
    return {
        "staying": contexts,
        "leaving": contexts,
        "destinations": (k, form.n_destinations, s, s),
    }


def _tables_of(steps: Floats, layout: Layout) -> dict[str, Any]:
    """Steps by cell (K, C − S) as the tables of a file, with the form if it is not plain."""
    k, s, form = len(steps), layout.n_states, layout.form
    if layout.is_plain:
        return {"steps": steps.reshape(k, s, s).tolist()}
    begin, contexts = layout.first_destination, (k, form.n_periods, form.n_bins, s)
    return {
        "form": form.time_parts | {"stays": list(form.stays), "periods": list(form.periods)},
        "staying": steps[:, 0:begin:2].reshape(contexts).tolist(),
        "leaving": steps[:, 1:begin:2].reshape(contexts).tolist(),
        "destinations": steps[:, begin:].reshape(k, form.n_destinations, s, s).tolist(),
    }


def _steps_in(content: Content) -> Floats:
    """The tables of a file as steps by cell (K, C − S), the inverse of `_tables_of`."""
    tables = [np.array(content[name], dtype=float) for name in _shapes(content)]
    if len(tables) == 3:
        tables = [np.stack(tables[:2], axis=-1), tables[2]]
    return np.hstack([table.reshape(len(table), -1) for table in tables])


# --- what is counted --------------------------------------------------------------------------


class Expected(NamedTuple):
    """Expected counts of a model on data.

    Patients (K,), first states (K, S), and steps and support (K, C − S) by cell, in the order of
    `mmlca.sequences.forms.Layout`. `support` is the number of different patients who make each
    step, and `membership` (U, K) the number of patients with each pattern in each class.
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
    from mmlca.model.forms import need_no_step_covariates

    need_no_step_covariates(model.params_, "exchange file")
    patterns = sequences.patterns_of(model.form)
    last, begin = e_step(patterns, model.params_), patterns.layout.initial.start
    people = np.bincount(patterns.inverse[sequences.weights > 0], minlength=len(patterns))
    membership = last.posterior * people[:, None]
    return Expected(
        patterns.weights @ last.posterior,
        last.visits[:, begin:],
        last.visits[:, :begin],
        _observed(patterns, membership),
        membership,
    )


def _seen(patterns: Patterns) -> Any:
    """Which steps each pattern has, (U, C − S), as a sparse array of 0 and 1."""
    from scipy import sparse

    seen = sparse.csr_array(
        (np.ones(len(patterns.tokens)), patterns.cell[patterns.tokens], patterns.indptr),
        shape=(len(patterns), patterns.n_cells + len(patterns.gaps)),
    )
    return seen[:, : patterns.layout.initial.start]


def _observed(patterns: Patterns, membership: Floats) -> Floats:
    """How many different patients make each step, (K, C − S), from patterns' memberships (U, K)."""
    support: Floats = (_seen(patterns).T @ membership).T
    return support


def markov_support(model: MixtureMarkov, sequences: Sequences, membership: Floats) -> Floats:
    """How many different patients contribute to each sum of `MixtureMarkov.statistics`."""
    sums = model.statistics(sequences, membership)[:, : 1 + len(sequences.states)]
    patterns = sequences.patterns_of(model.form)
    return np.hstack([sums, _observed(patterns, _people(patterns, sequences, membership))])


def markov_shares(model: MixtureMarkov, sequences: Sequences, membership: Floats) -> Floats:
    """The patients by first state, and each divided evenly among the different steps they make.

    In each block of steps, see `markov_blocks`.
    """
    sums = model.statistics(sequences, membership)[:, : 1 + len(sequences.states)]
    patterns = sequences.patterns_of(model.form)
    seen, people = _seen(patterns), _people(patterns, sequences, membership)
    parts, blocks = [sums], _step_blocks(patterns.layout)
    for block in range(blocks.max() + 1):
        own = seen[:, blocks == block]
        n_steps = np.maximum(own.sum(axis=1), 1)  # different ones, of each pattern
        parts.append((own.T @ (people / n_steps[:, None])).T)
    return np.hstack(parts)


def markov_blocks(content: Content) -> NDArray[np.intp]:
    """The patients, their first states, their steps; of chains by context the steps that stay or
    leave, then the destinations."""
    s = len(content["states"])
    return np.concatenate([np.repeat([0, 1], [1, s]), 2 + _step_blocks(layout_in(content))])


def _step_blocks(layout: Layout) -> NDArray[np.intp]:
    """The block of each cell of steps, (C − S,), from 0."""
    cells = np.arange(layout.initial.start)
    return np.zeros_like(cells) if layout.is_plain else (cells >= layout.first_destination) * 1


def _people(patterns: Patterns, sequences: Sequences, membership: Floats) -> Floats:
    """The number of patients with each pattern in each class, (U, K), each counted once."""
    counted = sequences.weights > 0
    columns = [
        np.bincount(patterns.inverse, column * counted, minlength=len(patterns))
        for column in membership.T
    ]
    return np.stack(columns, axis=1)


# --- writing and reading ----------------------------------------------------------------------


def markov_content(
    model: MixtureMarkov, sequences: Sequences, min_count: int, draws: Draws
) -> dict[str, Any]:
    """A fitted model as a file holds it: rounded, or with `min_count` 1 as it was fitted.

    Receivers add the prior to every count, which helps small sites more than rounding harms them;
    0.5 did worse, 2 a little better than 1. See "what was tried" in the documentation.
    """
    expected, layout = expected_counts(model, sequences), layout_of(model.form, len(model.states_))
    enough_patients(expected.patients, min_count)
    content: dict[str, Any] = {
        "format": FORMAT if layout.is_plain else FORMAT_BY_CONTEXT,
        "version": 1,
        "states": list(model.states_),
        "prior": PRIOR_OF_ROUNDED_STEPS,
    }
    if min_count == 1:  # exact, so that receivers get the model that was fitted
        return content | {
            "prior": max(model.prior, _LEAST_PRIOR),
            "patients": expected.patients.tolist(),
            "first": expected.first.tolist(),
            **_tables_of(expected.steps, layout),
            "steps_per_patient": 1.0,
        }
    few = expected.support < min_count
    mean = 1.0
    rare = (_seen(sequences.patterns_of(model.form)) @ few.T.astype(float)) > 0  # (U, K)
    if (expected.membership * rare).sum() >= min_count:  # fewer are one patient's habit
        mean = expected.steps[few].sum() / expected.support[few].sum()
    patients = round_counts(expected.patients, min_count, draws)
    first = round_counts(expected.first, min_count, draws)
    counted = np.where(few, expected.support, expected.steps)
    uniform = draws.random(counted.shape)
    if not layout.is_plain:  # who stays long is in several cells of a state
        uniform = np.where(few, draws.random(1), uniform)
    rounded = round_events(counted, expected.support, min_count, uniform)
    mean = round_mean(float(mean), draws.random(1))
    steps = np.where(few, np.round(rounded * mean, _DIGITS), rounded)
    return content | {
        "patients": patients.tolist(),
        "first": first.tolist(),
        **_tables_of(steps, layout),
        "steps_per_patient": mean,
    }


def markov_model(content: Content) -> MixtureMarkov:
    """The model that a file's counts stand for, ready to predict."""
    from mmlca.model.em import params_of, row_probabilities
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.model.params import zero_cells

    states = tuple(content["states"])
    patients, layout = np.array(content["patients"], dtype=float), layout_in(content)
    prior = float(content["prior"])
    cells = np.hstack([_steps_in(content), np.array(content["first"], dtype=float)])
    cells = row_probabilities(cells, layout, prior, ~zero_cells(None, states, layout.form))
    model = MixtureMarkov(len(patients), prior=prior, **content.get("form", {}))
    model._set_params_(params_of(cells, probabilities(patients), layout), states)
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
    min_patients: int,
    stays: Any = None,
    periods: Any = None,
    shared: Any = None,
) -> MixtureMarkov:
    from mmlca.model.estimator import MixtureMarkov

    form = make_form(stays, periods, shared)
    model = MixtureMarkov(
        n_classes,
        n_init=n_init,
        search=search,
        prior=local_prior(sequences.n_states, form) if prior is None else prior,
        n_jobs=n_jobs,
        seed=seed,
        min_patients=min_patients,
        **form._asdict(),
    )
    return model.fit(sequences)


def _compare(
    sequences: Sequences,
    numbers: Iterable[int],
    criterion: Any,
    *,
    prior: float | None,
    stays: Any = None,
    periods: Any = None,
    shared: Any = None,
    **settings: Any,
) -> pd.DataFrame:
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.model.selection import candidates, fit_quietly
    from mmlca.study.results.models import comparison

    form = make_form(stays, periods, shared)
    settings["prior"] = local_prior(sequences.n_states, form) if prior is None else prior
    fits = {
        (site, k): fit_quietly(MixtureMarkov(k, **settings, **form._asdict()), sequences)
        for site, k in candidates({"": sequences}, numbers, criterion)
    }
    return comparison(fits, criterion, "sequences")


# --- what does not fit together, and what a file says -----------------------------------------


def _find_misfit(content: Content, min_count: int) -> str | None:
    wrong = _misfit_of_form(content["form"]) if "form" in content else None
    if wrong is not None:
        return wrong
    k, s = len(content["patients"]), len(content["states"])
    wrong = first_misfit(
        misfit_of_patients(content, min_count),
        misfit_of_shape(content["first"], "first states", (k, s)),
        *(misfit_of_shape(content[name], name, shape) for name, shape in _shapes(content).items()),
    )
    if wrong is not None:
        return wrong
    if np.array(content.get("destinations", [[[[0]]]])).diagonal(axis1=2, axis2=3).any():
        return "its destinations lead from a state to itself"
    wrong = unrounded(content["first"], min_count)
    if wrong is not None:
        return f"its first states have {wrong}"
    steps = _steps_in(content)
    few = np.abs(steps - round(min_count * content["steps_per_patient"], _DIGITS)) < 1e-9
    wrong = unrounded(np.where(few, 0, steps), min_count)
    return None if wrong is None else f"its steps have {wrong}"


def _misfit_of_form(form: Content) -> str | None:
    """What is wrong with the form in a file, if anything."""
    for name in ("stays", "periods"):
        if any(a >= b for a, b in pairwise(form[name])):
            return f"the {name} of its form do not increase"
    if not form["stays"] and not form["periods"]:
        return "its form has neither stays nor periods"
    if form["shared"] and not form["periods"]:
        return "the periods of its form share destinations, but there are none"
    return None


def _explain(content: Content) -> tuple[list[str], list[str]]:
    states, form = ", ".join(content["states"]), _form_in(content)
    steps = "how many steps go from each state to each"
    if form != PLAIN:
        steps = (
            f"how many steps stay in each state and how many leave it, {form.title}, and where "
            "those who leave go" + (" by period" if form.n_destinations > 1 else "")
        )
    contains = [
        f"for each of {len(content['patients'])} classes: how many patients begin in each of the "
        f"{len(content['states'])} states ({states}), and {steps}, all rounded at random",
        patients_in_words(content),
        f"the mean number of steps per patient ({content['steps_per_patient']:g}) in cells to "
        f"which few patients contribute, and the pseudo-count ({content['prior']:g}) with which "
        "receivers turn counts into probabilities",
    ]
    reveals = ["about how common each course of treatment is at the site"]
    if form.stays:
        reveals.append("about how long patients stay in each state")
    if form.periods:
        reveals.append("about when patients leave each state")
    return contains, reveals


def _recognises(model: Any, plain: bool) -> bool:
    is_mixture = type(model).__name__ == "MixtureMarkov" and hasattr(model, "params_")
    return is_mixture and (model.params_.form == PLAIN) == plain


MARKOV = ModelFamily(
    name="mixture of Markov chains",
    schema=MarkovPart,
    variables=lambda content: tuple(content["states"]),
    find_misfit=_find_misfit,
    recognises=lambda model: _recognises(model, plain=True),
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
    n_statistics=lambda content: 1 + layout_in(content).n_cells,
)
MARKOV_BY_CONTEXT = replace(
    MARKOV, schema=ContextPart, recognises=lambda model: _recognises(model, plain=False)
)
