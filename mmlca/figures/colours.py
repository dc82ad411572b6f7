"""The colours of all figures: one for each state and each group, and of text on them.

Okabe & Ito's and Tol's colours can be distinguished by people with any kind of colour vision. The
first groups have none of the colours of the first states, so that a cluster is not taken for one.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any, TypeAlias, TypeVar

from font.errors import InputError
from mmlca.sequences.checks import some

T = TypeVar("T")
Colours: TypeAlias = Mapping[str, Any] | Sequence[Any]
INK, PALE, MISSING = "#333333", "#CFCFCF", "#E6E6E6"
_GROUPS = [
    "#332288",
    "#999933",
    "#882255",
    "#33BBEE",
    "#661100",
    "#777777",
    "#DDCC77",
    "#117733",
    "#AA4499",
    "#44AA99",
    "#6699CC",
    "#CC6677",
]
# lighter than the first colours: to the colour-blind, and in grey print, a middle grey is pink
_ABSENT = {"none": "#BBBBBB", "notreatment": "#BBBBBB", "missing": "#DDDDDD", "unknown": "#DDDDDD"}
_ORDER = [
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#56B4E9",
    "#F0E442",
    "#332288",
    "#882255",
    "#44AA99",
    "#999933",
    "#CC6677",
    "#117733",
    "#88CCEE",
    "#AA4499",
    "#DDCC77",
    "#661100",
    "#6699CC",
]


_OWN: ContextVar[Mapping[str, Any] | None] = ContextVar("own colours", default=None)


@contextmanager
def own_colours(colours: Mapping[str, Any] | None) -> Iterator[None]:
    """Colours of states for all figures drawn in the block, unless a figure is given others."""
    before = _OWN.set(colours)
    try:
        yield
    finally:
        _OWN.reset(before)


def draw_with(colours: Mapping[str, Any] | None, draw: Callable[[], T]) -> T:
    """What a function draws with one's own colours of states."""
    with own_colours(colours):
        return draw()


def state_colours(states: Iterable[str], colours: Colours | None = None) -> dict[str, Any]:
    """One colour per state, the same in every figure.

    The states take the colours of Okabe & Ito and of Tol in the order of `states`, and further
    ones after these; "none" and "missing" are grey, and states of `own_colours` have theirs.
    Records have the drug classes in the order of the drug map, so that a class has the same colour
    at every site that uses this map.

    Parameters
    ----------
    states : state labels, in order
    colours : {state: colour} or list of colours, optional
        These are taken as given, a list in the order of `states`. A dict may name states that do
        not occur, so that one serves all figures; a name that is nearly that of a state is
        taken for a slip and refused.

    Examples
    --------
    >>> state_colours(["TNFi", "JAK", "other", "none"], {"other": "black"})
    {'TNFi': '#0072B2', 'JAK': '#E69F00', 'other': 'black', 'none': '#BBBBBB'}
    """
    names = list(dict.fromkeys(states))
    own = {name: colour for name, colour in (_OWN.get() or {}).items() if name in names}
    chosen = own | _wanted(names, colours)
    for name in names:
        plain = "".join(c for c in name.lower() if c.isalnum())
        if name not in chosen and plain in _ABSENT:
            chosen[name] = _ABSENT[plain]
    taken = {str(chosen[name]).upper() for name in names if name in chosen}
    free = (colour for colour in _endless_colours() if colour not in taken)
    return {name: chosen[name] if name in chosen else next(free) for name in names}


def _wanted(states: list[str], colours: Colours | None) -> dict[str, Any]:
    """The caller's colours by state."""
    if colours is None:
        return {}
    if isinstance(colours, str):
        raise TypeError(
            f"colours must be a dict {{state: colour}} or a list of colours, found {colours!r}."
        )
    if not isinstance(colours, Mapping):
        given = list(colours)
        if len(given) < len(states):
            raise InputError(
                f"found {len(given)} colours for {len(states)} states ({some(states)}); give one "
                "for each, or a dict {state: colour}."
            )
        return dict(zip(states, given, strict=False))
    for name in colours:
        near = [state for state in states if state.casefold() == str(name).casefold()]
        near = near or get_close_matches(str(name), states, n=1, cutoff=0.75)
        if name not in states and near and near[0] not in colours:
            raise InputError(
                f"colours names {name!r}, which is not a state; did you mean {near[0]!r}?"
            )
    if colours and not set(colours) & set(states):
        raise InputError(
            f"colours names {some(list(map(str, colours)))}, none of the states {some(states)}; "
            "give a dict {state: colour}."
        )
    return dict(colours)


def _endless_colours() -> Iterator[str]:
    """The fixed palette, then hues by the golden ratio in four shades."""
    yield from _ORDER
    for i in range(1_000):
        shade, strength = ((0.35, 0.6), (0.55, 0.45), (0.72, 0.7), (0.45, 0.9))[i % 4]
        rgb = colorsys.hls_to_rgb(i * 0.618034 % 1, shade, strength)
        yield "#" + "".join(f"{round(255 * part):02X}" for part in rgb)


def group_colour(number: int) -> str:
    """The colour of a site, class or cluster by its position from 0; repeated after twelve."""
    return _GROUPS[number % len(_GROUPS)]


def text_colour(background: Any) -> str:
    """Black or white, whichever can be read on this colour."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(background)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
