"""The rules that give windows their states, checked."""

from __future__ import annotations

from typing import Any, NamedTuple

from font.checks import one_of, some, whole_number
from font.spelling import option, option_name

STATES = ("most_frequent", "combinations")
TIES = ("first", "latest", "previous")
IMPUTE = ("carry_forward", "carry_forward_supplied", "carry_forward_max", "missing")
DEATH = ("end", "state")
DEAD = "dead"
OTHER = "other combination"
MOST_CLASSES = 62
"""Classes that a `Sets.classes` can hold: one bit each of an int64, without its last two."""


class StateRules(NamedTuple):
    """How windows get their states; see `ehr_prep.build_sequences` for each."""

    states: str = "most_frequent"
    by: str = "records"
    ties: str = "first"
    gap_days: int = 30
    combination_days: int = 30
    max_combinations: int = 10
    combinations: tuple[str, ...] | None = None
    impute: str = "carry_forward_max"
    max_carry: int = 2
    off_treatment: str = "none"
    death: str = "end"

    @property
    def combine(self) -> bool:
        return self.states == "combinations"

    @property
    def has_off(self) -> bool:
        """Whether a patient can be in the state `off_treatment`."""
        stops = self.impute in ("carry_forward_supplied", "carry_forward_max")
        return stops and self.off_treatment != "missing"


def check_rules(rules: StateRules, classes: tuple[str, ...]) -> None:
    """Refuse values that a rule cannot have, and names that are taken."""
    choices = {"states": STATES, "by": ("records", "days"), "ties": TIES}
    for name, allowed in {**choices, "impute": IMPUTE, "death": DEATH}.items():
        one_of(getattr(rules, name), allowed, option_name(name))
    smallest = {"gap_days": 0, "combination_days": 1, "max_combinations": 1, "max_carry": 0}
    for name, value in smallest.items():
        whole_number(getattr(rules, name), value, option_name(name))
    if not isinstance(rules.off_treatment, str) or not rules.off_treatment.strip():
        raise ValueError(
            f"{option_name('off_treatment')} must be the name of a state or 'missing', found "
            f"{rules.off_treatment!r}."
        )
    taken = {"off_treatment": rules.off_treatment} if rules.has_off else {}
    if rules.death == "state" and DEAD in (*classes, *taken.values()):
        raise ValueError(
            f"{option('death', 'state')} adds the state {DEAD!r}, which is a class of the drug map "
            "or the name of the state off treatment already; rename that."
        )
    for name, state in taken.items():
        if state in classes:
            raise ValueError(
                f"{option(name, state)} is a class of the drug map; choose another name."
            )
    if rules.combine:
        if len(classes) > MOST_CLASSES:
            raise ValueError(
                f"combinations of more than {MOST_CLASSES} classes cannot be told apart, the drug "
                f"map has {len(classes)}; map drugs to fewer classes."
            )
        joined = [name for name in classes if "+" in name]
        if joined:
            raise ValueError(
                f"the classes {some(joined)} have a + in their names, which joins the classes of a "
                "combination; rename them in the drug map."
            )
        named_combinations(rules, classes)
    elif rules.combinations is not None:
        raise ValueError(
            f"{option('combinations')} belongs to {option('states', 'combinations')}; give both."
        )


def named_combinations(rules: StateRules, classes: tuple[str, ...]) -> dict[int, str]:
    """{set of classes: name} of the combinations that the rules name, in the states' order."""
    number = {name: i for i, name in enumerate(classes)}
    sets = {}
    for text in rules.combinations or ():
        parts = [part.strip() for part in str(text).split("+")]
        unknown = [part for part in parts if part not in number]
        if unknown or len(set(parts)) < 2:
            raise ValueError(
                f"{option_name('combinations')} names {text!r}, which is not made of two or more "
                f"of the classes {some(classes)}; write them as in {'+'.join(classes[:2])!r}."
            )
        key = sum(1 << number[part] for part in set(parts))
        sets[key] = set_name(key, classes)
    return sets


def set_name(key: int, classes: tuple[str, ...]) -> str:
    """The classes of a set, in the states' order.

    >>> set_name(5, ("A", "B", "C"))
    'A+C'
    """
    return "+".join(name for i, name in enumerate(classes) if key >> i & 1)


def as_rules(options: dict[str, Any]) -> StateRules:
    """The rules among the options of `build_sequences`."""
    values = {name: options[name] for name in StateRules._fields}
    named = values["combinations"]
    if named is not None:
        if isinstance(named, str):
            raise TypeError(
                f"combinations must be a list of names such as ['A+B'], found {named!r}."
            )
        values["combinations"] = tuple(str(name) for name in named)
    return StateRules(**values)
