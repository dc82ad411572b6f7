"""Synthetic cohorts with planted groups, to see which method finds them.

Patients of a group go through *phases*: a state with a stay of random length (gamma-distributed
quarters, so that leaving depends on the time already spent) and the phases that may follow. Groups
stop early, switch along different branches, use drugs intermittently, or die. Everything is made
up: the groups are patterns that occur in the literature of these diseases, their numbers are not
estimates of anything.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.checks import one_of, whole_number
from mmlca.sequences.type import Sequences

DEAD = "dead"


class Phase(NamedTuple):
    """A state, its stay in quarters (mean and shape of a gamma distribution), and what follows.

    `then` has the probability of each following phase, by the position among the group's phases;
    what is left to 1 stays in this phase for good.
    """

    state: str
    mean: float = 1.0
    shape: float = 1.0
    then: tuple[tuple[int, float], ...] = ()


class Group(NamedTuple):
    """A planted group: name, share of the patients, phases, probability of death per quarter.

    Patients begin in the phases with a `start`, by position and probability.
    """

    name: str
    share: float
    phases: tuple[Phase, ...]
    start: tuple[tuple[int, float], ...] = ((0, 1.0),)
    death: float = 0.0


class Disease(NamedTuple):
    """The groups of a cohort, and the number of quarters."""

    quarters: int
    groups: tuple[Group, ...]


DISEASES = {
    "antidepressants": Disease(
        12,
        (
            Group("early stoppers", 0.30, (Phase("SSRI", 1.4, 1.5, ((1, 1.0),)), Phase("none"))),
            Group("persisters", 0.25, (Phase("SSRI", 24.0, 3.0, ((1, 1.0),)), Phase("none"))),
            Group(
                "switchers",
                0.20,
                (
                    Phase("SSRI", 2.5, 4.0, ((1, 0.6), (2, 0.4))),
                    Phase("SNRI", 14.0, 2.0, ((3, 1.0),)),
                    Phase("other", 10.0, 2.0, ((3, 1.0),)),
                    Phase("none"),
                ),
            ),
            Group(
                "intermittent users",
                0.15,
                (Phase("SSRI", 2.2, 3.0, ((1, 1.0),)), Phase("none", 2.2, 3.0, ((0, 1.0),))),
            ),
            Group(
                "treatment-resistant",
                0.10,
                (
                    Phase("SSRI", 1.5, 4.0, ((1, 0.7), (2, 0.3))),
                    Phase("SNRI", 1.8, 4.0, ((2, 1.0),)),
                    Phase("combination", 12.0, 3.0, ((1, 0.5), (3, 0.5))),
                    Phase("other", 6.0, 2.0, ((2, 1.0),)),
                ),
            ),
        ),
    ),
    "HIV": Disease(
        16,
        (
            Group(
                "stable from the start",
                0.40,
                (Phase("INSTI"), Phase("NNRTI", 40.0, 2.0, ((0, 1.0),))),
                start=((0, 0.8), (1, 0.2)),
                death=0.002,
            ),
            Group(
                "switched to INSTI",
                0.30,
                (
                    Phase("INSTI"),
                    Phase("NNRTI", 7.0, 6.0, ((0, 1.0),)),
                    Phase("PI", 5.0, 5.0, ((0, 0.8), (1, 0.2))),
                ),
                start=((1, 0.6), (2, 0.4)),
                death=0.002,
            ),
            Group(
                "interrupted",
                0.20,
                (
                    Phase("INSTI", 3.0, 3.0, ((2, 1.0),)),
                    Phase("NNRTI", 3.0, 3.0, ((2, 1.0),)),
                    Phase("none", 2.0, 2.0, ((0, 0.7), (1, 0.3))),
                ),
                start=((0, 0.6), (1, 0.4)),
                death=0.006,
            ),
            Group(
                "late presenters",
                0.10,
                (Phase("PI", 8.0, 2.0, ((1, 0.6), (2, 0.4))), Phase("INSTI"), Phase("none")),
                death=0.05,
            ),
        ),
    ),
    "myeloma": Disease(
        12,
        (
            Group(
                "transplant, maintenance",
                0.35,
                (
                    Phase("VRd", 1.7, 12.0, ((1, 1.0),)),
                    Phase("none", 1.0, 6.0, ((2, 1.0),)),
                    Phase("lenalidomide", 12.0, 3.0, ((3, 1.0),)),
                    Phase("daratumumab", 5.0, 2.0, ((4, 1.0),)),
                    Phase("other"),
                ),
                death=0.008,
            ),
            Group(
                "continuous",
                0.25,
                (
                    Phase("VRd", 2.5, 8.0, ((1, 1.0),)),
                    Phase("lenalidomide", 8.0, 3.0, ((2, 0.7), (3, 0.3))),
                    Phase("daratumumab", 6.0, 2.0, ((3, 1.0),)),
                    Phase("none", 3.0, 2.0, ((2, 1.0),)),
                ),
                death=0.015,
            ),
            Group(
                "fixed duration",
                0.25,
                (
                    Phase("VRd", 3.0, 8.0, ((1, 1.0),)),
                    Phase("none", 9.0, 3.0, ((2, 1.0),)),
                    Phase("daratumumab", 5.0, 2.0, ((1, 1.0),)),
                ),
                death=0.015,
            ),
            Group(
                "rapid progressors",
                0.15,
                (
                    Phase("VRd", 1.8, 3.0, ((1, 0.8), (2, 0.2))),
                    Phase("daratumumab", 2.0, 2.0, ((2, 1.0),)),
                    Phase("other", 1.8, 2.0, ((1, 0.3), (3, 0.2))),
                    Phase("none"),
                ),
                death=0.10,
            ),
        ),
    ),
}


def planted_cohort(
    disease: str, n: int = 2000, seed: int | np.random.Generator | None = None
) -> tuple[Sequences, pd.Series]:
    """Sequences of a made-up cohort, and the planted group of each patient.

    A quarter has the state of its middle. Two in five patients were included late: their follow-up
    ends after 4 quarters up to all of them, each equally likely. Of the quarters after the first
    3 % are not known; those at the end of follow-up shorten it. Death is a state, in which patients
    stay to the end of their follow-up.

    Parameters
    ----------
    disease : "antidepressants", "HIV" or "myeloma"
    n : number of patients
    seed : int or Generator, optional

    Examples
    --------
    >>> sequences, groups = planted_cohort("HIV", 500, seed=1)
    >>> sequences.states
    ('INSTI', 'NNRTI', 'PI', 'dead', 'none')
    >>> groups.value_counts().index[0]
    'stable from the start'
    """
    one_of(disease, DISEASES, "disease")
    whole_number(n, 1, "n")
    rng = np.random.default_rng(seed)
    quarters, groups = DISEASES[disease]
    member = rng.choice(len(groups), size=n, p=[group.share for group in groups])
    states = sorted({p.state for g in groups for p in g.phases})
    if any(group.death for group in groups):
        states = sorted([*states, DEAD])
    codes = np.stack([_course(groups[k], quarters, states, rng) for k in member])
    late = rng.random(n) < 0.4
    lengths = np.where(late, rng.integers(4, quarters + 1, n), quarters)
    codes[(rng.random(codes.shape) < 0.03) & (np.arange(quarters) > 0)] = -1
    codes[np.arange(quarters) >= lengths[:, None]] = -1
    if DEAD in states:  # a missing quarter between death and its last quarter is known
        dead = states.index(DEAD)
        after = np.logical_or.accumulate(codes == dead, axis=1)
        codes[after & (np.arange(quarters) < lengths[:, None])] = dead
    sequences = Sequences.from_codes(codes.astype(np.int8), states)
    if DEAD in states:
        sequences = sequences.absorb(DEAD)
    names = np.array([group.name for group in groups])
    return sequences, pd.Series(names[member], index=sequences.ids, name="group")


def _course(
    group: Group, quarters: int, states: list[str], rng: np.random.Generator
) -> NDArray[np.intp]:
    """One patient's state in the middle of each quarter."""
    middles = np.arange(quarters) + 0.5
    codes = np.empty(quarters, dtype=np.intp)
    begins, phase = 0.0, _next(group.start, rng)
    while phase is not None and begins < quarters:
        now = group.phases[phase]
        codes[middles >= begins] = states.index(now.state)
        begins += rng.gamma(now.shape, now.mean / now.shape)
        phase = _next(now.then, rng)
    if group.death:
        codes[middles >= rng.geometric(group.death)] = states.index(DEAD)
    return codes


def _next(choices: tuple[tuple[int, float], ...], rng: np.random.Generator) -> int | None:
    """A phase by its probability; None if the present one goes on."""
    chance = rng.random()
    for phase, probability in choices:
        if chance < probability:
            return phase
        chance -= probability
    return None
