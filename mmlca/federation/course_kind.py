"""Latent classes of the time course in exchange files: patients by class, window and state.

A window is an item of a latent class model and the states are its answers, so that nearly
everything is as for font's latent class models (`font.exchange.families`). What differs is the data
(sequences instead of a table of columns), and that states which few patients are in may be sent:
their names are the study's vocabulary and not what a patient answered, and their counts are
rounded at random like all others. A class and state has one draw for all windows: who stays in a
state is counted in many windows, and with a draw in each of them the average of the rounded counts
would come near the exact one.

=================== =========================================================================
format              "mmlca time course"
items               list of {item, categories}: the windows, with the same states in each
answers             patients by class and state, window after window (K rows)
prior               pseudo-count that receivers add to every state
=================== =========================================================================

The sums of a refinement have for each cluster the patients, then those in each state, window after
window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from font.exchange.disclosure import Draws, round_counts
from font.exchange.families import LATENT_CLASS, LatentClassPart
from font.exchange.fields import enough_patients, patients_in_words
from font.probabilities import PRIOR_OF_ITEMS, PRIOR_OF_ROUNDED_ANSWERS

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.model.course import CourseClasses
    from mmlca.sequences.type import Sequences

Floats = NDArray[np.float64]
Content = Mapping[str, Any]


class TimeCoursePart(LatentClassPart):
    """Latent classes of the time course as counts."""

    format: Literal["mmlca time course"]  # type: ignore[assignment]


def _fit(
    sequences: Sequences, n_classes: int, *, n_init: int, search: Any, seed: int
) -> CourseClasses:
    from mmlca.model.course import CourseClasses

    prior = PRIOR_OF_ITEMS / sequences.n_states
    model = CourseClasses(n_classes, n_init=n_init, search=search, prior=prior, seed=seed)
    return model.fit(sequences)


def _compare(
    sequences: Sequences,
    numbers: Iterable[int],
    criterion: Any,
    *,
    n_init: int,
    search: Any,
    seed: int,
) -> pd.DataFrame:
    """The criteria count the parameters of all states: that one occurs may show one patient."""
    import pandas as pd

    settings = {"n_init": n_init, "search": search, "seed": seed}
    fits = {k: _fit(sequences, k, **settings) for k in numbers}
    rows = [{"classes": k, **model.criteria(all_cells=True)} for k, model in fits.items()]
    table = pd.DataFrame(rows)
    return table.assign(chosen=table.index == table[criterion].idxmin())


def _totals(model: CourseClasses, sequences: Sequences) -> Floats:
    """Expected patients by class, then by class, window and state."""
    return model.statistics(sequences, model.predict_proba(sequences))


def _write(
    model: CourseClasses, sequences: Sequences, min_count: int, draws: Draws
) -> dict[str, Any]:
    totals = _totals(model, sequences)
    sizes = enough_patients(totals[:, 0], min_count)
    n_states, n_windows = len(model.states_), len(model.times_)
    patients = round_counts(sizes, min_count, draws)
    each_state = draws.random((len(totals), n_states))
    answers = round_counts(totals[:, 1:], min_count, np.tile(each_state, (1, n_windows)))
    return {
        "format": "mmlca time course",
        "version": 1,
        "items": [{"item": time, "categories": list(model.states_)} for time in model.times_],
        "prior": PRIOR_OF_ROUNDED_ANSWERS,
        "patients": patients.tolist(),
        "answers": answers.tolist(),
    }


def _read(content: Content) -> CourseClasses:
    from mmlca.model.course import CourseClasses

    items = LATENT_CLASS.read(content)
    states = tuple(content["items"][0]["categories"])
    model = CourseClasses.of(items, states, tuple(items.categories_), prior=content["prior"])
    items.prior = content["prior"] * len(states)
    model.n_sequences_ = float(sum(content["patients"]))
    return model


def _find_misfit(content: Content, min_count: int) -> str | None:
    wrong = LATENT_CLASS.find_misfit(content, min_count)
    if wrong is not None:
        return wrong
    windows = [part["item"] for part in content["items"]]
    states = [part["categories"] for part in content["items"]]
    if len(set(windows)) != len(windows):
        return "it names a window twice"
    if any(other != states[0] for other in states) or not isinstance(states[0][0], str):
        return "its windows do not all have the same states"
    return None


def _explain(content: Content) -> tuple[list[str], list[str]]:
    windows = [part["item"] for part in content["items"]]
    states = content["items"][0]["categories"]
    contains = [
        f"how many patients of each of {len(content['patients'])} classes are in each of the "
        f"{len(states)} states ({', '.join(states)}) in each of the {len(windows)} windows "
        f"{windows[0]} to {windows[-1]}, rounded at random",
        patients_in_words(content),
        f"the pseudo-count ({content['prior']:g}) with which receivers turn counts into "
        "probabilities",
    ]
    return contains, ["about how common each state is at the site in each window and class"]


def _support(model: CourseClasses, sequences: Sequences, membership: Floats) -> Floats:
    """How many different patients contribute to each sum: each is in one state in a window."""
    each_once = sequences.reweight((sequences.weights > 0).astype(float))
    return model.statistics(each_once, membership)


TIME_COURSE = replace(
    LATENT_CLASS,
    name="time-course model",
    schema=TimeCoursePart,
    variables=lambda content: tuple(content["items"][0]["categories"]),
    find_misfit=_find_misfit,
    recognises=lambda model: type(model).__name__ == "CourseClasses" and hasattr(model, "items_"),
    write=_write,
    read=_read,
    sizes=lambda model, sequences: _totals(model, sequences)[:, 0],
    fit=_fit,
    compare=_compare,
    data="sequences",
    explain=_explain,
    support=_support,
    shares=_support,
)
