"""The rules that give windows their states, checked against the classes of the drug map."""

from __future__ import annotations

from ehr_prep.settings import Rules
from font.checks import some
from font.errors import InputError
from font.spelling import option, option_name

DEAD = "dead"
OTHER = "other combination"
MOST_CLASSES = 62
"""Classes that a `Sets.classes` can hold: one bit each of an int64, without its last two."""


def check_rules(rules: Rules, classes: tuple[str, ...]) -> None:
    """Refuse names of states that are taken, and combinations that do not exist."""
    taken = {"off_treatment": rules.off_treatment} if rules.has_off else {}
    if rules.death == "state" and DEAD in (*classes, *taken.values()):
        raise InputError(
            f"{option('death', 'state')} adds the state {DEAD!r}, which is a class of the drug map "
            "or the name of the state off treatment already; rename that."
        )
    for name, state in taken.items():
        if state in classes:
            raise InputError(
                f"{option(name, state)} is a class of the drug map; choose another name."
            )
    if rules.combine:
        if len(classes) > MOST_CLASSES:
            raise InputError(
                f"combinations of more than {MOST_CLASSES} classes cannot be told apart, the drug "
                f"map has {len(classes)}; map drugs to fewer classes."
            )
        joined = [name for name in classes if "+" in name]
        if joined:
            raise InputError(
                f"the classes {some(joined)} have a + in their names, which joins the classes of a "
                "combination; rename them in the drug map."
            )
        named_combinations(rules, classes)
    elif rules.combinations is not None:
        raise InputError(
            f"{option('combinations')} belongs to {option('states', 'combinations')}; give both."
        )


def named_combinations(rules: Rules, classes: tuple[str, ...]) -> dict[int, str]:
    """{set of classes: name} of the combinations that the rules name, in the states' order."""
    number = {name: i for i, name in enumerate(classes)}
    sets = {}
    for text in rules.combinations or ():
        parts = [part.strip() for part in str(text).split("+")]
        unknown = [part for part in parts if part not in number]
        if unknown or len(set(parts)) < 2:
            raise InputError(
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
