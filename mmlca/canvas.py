"""What all figures of sequences share: colours, the grid of panels, legends and notes."""

from __future__ import annotations

import colorsys
import textwrap
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmlca.describe import split
from mmlca.sequences import Sequences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

INK, PALE, MISSING = "#333333", "#BBBBBB", "#E6E6E6"
TEXT, SMALL = 7.0, 6.0
GROUP_COLOURS = (
    *("#332288", "#DDAA33", "#AA4499", "#117733", "#88CCEE", "#CC6677"),
    *("#44AA99", "#882255", "#999933", "#D55E00", "#0072B2", "#777777"),
)
_ONE_COLUMN, _TWO_COLUMNS = 3.5, 7.2
_MAX_IN_LEGEND = 14

_DRUG_CLASSES = {
    "tnfi": "#0072B2",
    "tnfinhibitor": "#0072B2",
    "ctla4ig": "#E69F00",
    "il6r": "#009E73",
    "il6rinhibitor": "#009E73",
    "jak": "#CC79A7",
    "jaki": "#CC79A7",
    "jakinhibitor": "#CC79A7",
    "anticd20": "#D55E00",
}
_ABSENT = {"none": "#999999", "notreatment": "#999999", "missing": "#CCCCCC", "unknown": "#CCCCCC"}
_ORDER = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442"),
    *("#332288", "#882255", "#44AA99", "#999933", "#CC6677", "#117733", "#88CCEE"),
    *("#AA4499", "#DDCC77", "#661100", "#6699CC"),
)


# --- colours ---------------------------------------------------------------------------


def state_colours(
    states: Iterable[str], colours: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One colour a state, the same in every figure.

    The drug classes of rheumatoid arthritis have fixed colours however they are spelled
    (CTLA4-Ig, CTLA4_Ig); "none" and "missing" are grey; other states take the colours of
    Okabe & Ito and of Tol in the order of `states`, and further ones after these.

    Parameters
    ----------
    states : state labels, in order
    colours : {state: colour}, optional
        These are taken as given. It may name states that do not occur, so that one dict
        serves all figures.

    Examples
    --------
    >>> state_colours(["TNFi", "JAK_inhibitor", "other", "none"], {"other": "black"})
    {'TNFi': '#0072B2', 'JAK_inhibitor': '#CC79A7', 'other': 'black', 'none': '#999999'}
    """
    names = list(dict.fromkeys(states))
    plain = {name: "".join(c for c in name.lower() if c.isalnum()) for name in names}
    given = dict(colours or {})
    chosen: dict[str, Any] = {}
    for name in names:
        known = _DRUG_CLASSES.get(plain[name]) or _ABSENT.get(plain[name])
        if name in given or known:
            chosen[name] = given.get(name, known)
    taken = {str(colour).upper() for colour in chosen.values()}
    if any(key in _DRUG_CLASSES for key in plain.values()):
        taken |= set(_DRUG_CLASSES.values())
    free = (colour for colour in _endless_colours() if colour not in taken)
    return {name: chosen[name] if name in chosen else next(free) for name in names}


def _endless_colours() -> Iterator[str]:
    """The fixed palette, then hues by the golden ratio in four shades."""
    yield from _ORDER
    for i in range(1_000):
        shade, strength = ((0.35, 0.6), (0.55, 0.45), (0.72, 0.7), (0.45, 0.9))[i % 4]
        rgb = colorsys.hls_to_rgb(i * 0.618034 % 1, shade, strength)
        yield "#" + "".join(f"{round(255 * part):02X}" for part in rgb)


# --- panels ----------------------------------------------------------------------------


class Panel(NamedTuple):
    """One Axes, the patients to draw in it, and whether it is the first of its row."""

    ax: Axes
    data: Sequences
    first: bool


@dataclass
class Page:
    """The panels of a figure, what it gives back, and what is said below it."""

    panels: list[Panel]
    whole: Axes | Figure
    width: float
    n_columns: int
    min_count: int
    notes: list[str] = field(default_factory=list)

    @property
    def panel_points(self) -> float:
        """Rough width of a panel in points."""
        return 72 * self.width / self.n_columns * 0.75

    @property
    def title_letters(self) -> int:
        """How many letters of a title fit above a panel."""
        return max(12, int(72 * self.width / self.n_columns * 0.95 / (0.55 * TEXT)))

    @property
    def states(self) -> list[str]:
        """All states of all panels, in order."""
        return list(dict.fromkeys(state for panel in self.panels for state in panel.data.states))

    @property
    def n_times(self) -> int:
        return max(panel.data.shape[1] for panel in self.panels)

    def hidden(self, n: int, what: str) -> None:
        """Note that n things were of too few patients to show."""
        if n:
            noun = what if n == 1 else f"{what}{'es' if what.endswith('s') else 's'}"
            self.notes.append(f"{n:,} {noun} of fewer than {self.min_count} patients not shown")

    def left_out(self, few: int, empty: int) -> None:
        """Note how many groups had too few patients or none."""
        if empty:
            self.notes.append(f"{empty} group{'s' * (empty > 1)} without patients left out")
        self.hidden(few, "group")

    def finish(
        self,
        xlabel: str,
        ylabel: str,
        colours: Mapping[str, Any] | None = None,
        missing: bool = False,
    ) -> Axes | Figure:
        """Write the labels, the notes and the legend of states; give back Axes or Figure."""
        from matplotlib.axes import Axes

        wrap = int(72 * self.width / (0.52 * TEXT)) - 8
        notes = textwrap.wrap("; ".join(dict.fromkeys(self.notes)), wrap)
        below = "\n".join([*([xlabel] if xlabel else []), *notes])
        handles = _legend_handles(colours or {}, missing)
        look: dict[str, Any] = {
            "frameon": False,
            "fontsize": SMALL,
            "handlelength": 1.1,
            "handleheight": 1.0,
        }
        if isinstance(self.whole, Axes):
            self.whole.set_xlabel(below, fontsize=TEXT)
            self.whole.set_ylabel(ylabel, fontsize=TEXT)
            if handles:
                self.whole.legend(
                    handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.02), **look
                )
            return self.whole
        if below:
            self.whole.supxlabel(below, fontsize=TEXT)
        if ylabel:
            self.whole.supylabel(ylabel, fontsize=TEXT)
        if handles:
            longest = max(len(str(handle.get_label())) for handle in handles)
            fit = int(72 * self.width / (SMALL * (0.55 * longest + 4)))
            self.whole.legend(
                handles=handles,
                loc="outside upper center",
                ncols=max(1, min(len(handles), fit)),
                **look,
            )
        return self.whole


def lay_out(
    sequences: Sequences | Mapping[str, Sequences],
    groups: Any,
    min_count: int,
    ax: Axes | None,
    figure: Figure | None,
    height: float = 1.75,
) -> Page:
    """Panels for sites × groups: rows and columns, or wrapped at four if only one of them.

    Groups without patients, and those of fewer than `min_count`, are left out and noted.
    """
    if ax is not None and figure is not None:
        raise ValueError("both ax and figure were given; give one of them.")
    shown, few, empty = enough(sequences, groups, min_count)
    simple = isinstance(sequences, Sequences) and groups is None
    if ax is not None and len(shown) > 1:
        raise ValueError(
            f"one Axes cannot hold {len(shown)} panels (sites × groups); pass figure= or "
            "neither, or draw one group at a time."
        )
    places, shape = _places([keys for keys, _ in shown])
    grid, whole = _surface(ax, figure, simple, shape, height)
    root = whole if whole is not grid[0, 0] else whole.figure
    share = 1 / shape[1] if whole is root else max(whole.get_position().width, 0.1)
    page = Page([], whole, root.bbox.width / root.dpi, max(1, round(1 / share)), min_count)
    for (keys, data), (row, column) in zip(shown, places, strict=True):
        style(grid[row, column])
        title = _title(keys, data, page.title_letters)
        grid[row, column].set_title(title, fontsize=TEXT, color=INK)
        first = column == min(c for r, c in places if r == row)
        page.panels.append(Panel(grid[row, column], data, first))
    for row, column in set(np.ndindex(grid.shape)) - set(places):
        grid[row, column].set_axis_off()
    page.left_out(few, empty)
    return page


def _surface(
    ax: Axes | None, figure: Any, simple: bool, shape: tuple[int, int], height: float
) -> tuple[Any, Any]:
    """The Axes by row and column, and the Axes or Figure that the caller gets."""
    n_rows, n_columns = shape
    if ax is None and figure is None:
        import matplotlib.pyplot as plt

        width = _ONE_COLUMN if n_columns == 1 else max(_TWO_COLUMNS, 1.4 * n_columns)
        size = (width, n_rows * height + 0.75 + 0.3 * simple)
        figure = plt.figure(figsize=size, layout="constrained")
        if simple:
            ax = figure.subplots()
    if ax is not None:
        return np.array([[ax]], dtype=object), ax
    if figure.get_layout_engine() is None:
        figure.figure.set_layout_engine("constrained")  # a subfigure has its parent's
    return figure.subplots(n_rows, n_columns, squeeze=False), figure


Keys = dict[str, Hashable]


def enough(
    sequences: Sequences | Mapping[str, Sequences], groups: Any, min_count: int
) -> tuple[list[tuple[Keys, Sequences]], int, int]:
    """The groups to draw, and how many have too few patients or none.

    Patients of weight 0 do not count.
    """
    if min_count < 0:
        raise ValueError(f"min_count must be 0 or more, found {min_count}.")
    parts = [(keys, _counted(data)) for keys, data in split(sequences, groups)]
    sizes = [len(data) for _, data in parts]
    shown = [part for part, n in zip(parts, sizes, strict=True) if n >= max(min_count, 1)]
    if not shown:
        largest = max(sizes, default=0)
        raise ValueError(
            f"there is nothing to draw: the largest group has {largest:,} patients and "
            f"min_count is {min_count}."
        )
    empty = sizes.count(0)
    return shown, len(parts) - len(shown) - empty, empty


def _counted(data: Sequences) -> Sequences:
    return data if (data.weights > 0).all() else data[data.weights > 0]


def _places(keys: list[Keys]) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Row and column of each panel, and the shape of the grid."""
    if "site" in keys[0] and "group" in keys[0]:
        sites = list(dict.fromkeys(key["site"] for key in keys))
        groups = list(dict.fromkeys(key["group"] for key in keys))
        if all(isinstance(group, (int, float, np.number)) for group in groups):
            groups = sorted(groups)  # type: ignore[type-var]
        places = [(sites.index(key["site"]), groups.index(key["group"])) for key in keys]
        return places, (len(sites), len(groups))
    n_columns = min(len(keys), 4)
    places = [divmod(i, n_columns) for i in range(len(keys))]
    return places, (-(-len(keys) // n_columns), n_columns)


def _title(keys: Keys, data: Sequences, letters: int) -> str:
    n = f"n = {len(data):,}"
    if (data.weights != 1).any():
        n += f" (weight {data.weights.sum():,.0f})"
    return f"{textwrap.fill(group_name(keys), letters)}\n{n}" if keys else n


def group_name(keys: Keys) -> str:
    """ "MGB, group 2": a number alone would not say what it is."""
    parts = [str(keys["site"])] if "site" in keys else []
    if "group" in keys:
        group = keys["group"]
        number = isinstance(group, (int, float, np.number))
        parts.append(f"group {group}" if number else str(group))
    return ", ".join(parts)


# --- pieces of a panel -----------------------------------------------------------------


def new_axes(ax: Axes | None, height: float = 2.6) -> Axes:
    """The given Axes, or a new one of one journal column, styled."""
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(_ONE_COLUMN, height), layout="constrained")
    style(ax)
    return ax


def style(ax: Axes) -> None:
    ax.tick_params(labelsize=SMALL, length=2, width=0.5, pad=1.5, colors=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_linewidth(0.5)


def rectangles(
    ax: Axes, left: ArrayLike, bottom: ArrayLike, width: ArrayLike, height: ArrayLike, colour: Any
) -> PolyCollection:
    """Many bars as one artist, which stays quick; the caller sets the limits."""
    from matplotlib.collections import PolyCollection

    x, y, w, h = np.broadcast_arrays(*np.atleast_1d(left, bottom, width, height))
    corners = np.stack(
        [np.stack([x, x + w, x + w, x], axis=-1), np.stack([y, y, y + h, y + h], axis=-1)], axis=-1
    )
    bars = PolyCollection(list(corners), facecolors=colour, edgecolors="none", linewidths=0)
    ax.add_collection(bars, autolim=False)
    return bars


def time_axis(
    ax: Axes, data: Sequences, n_times: int, points: float, n: NDArray[np.float64] | None = None
) -> None:
    """Ticks at the first time and about four more, with n under them."""
    labels = data.times
    step = max(1, -(-len(labels) // 4))
    widest = max([len(label) for label in labels] + ([] if n is None else _widths(n)))
    while step < len(labels) and points * step / n_times < 0.62 * SMALL * widest:
        step *= 2
    at = [0, *range(step - 1, len(labels), step)] if step > 1 else list(range(len(labels)))
    if len(at) > 1 and points * (at[1] - at[0]) / n_times < 0.6 * SMALL * widest:
        del at[1]
    at = list(dict.fromkeys(at))
    text = [labels[t] if n is None else f"{labels[t]}\n{_number(n[t])}" for t in at]
    ax.set_xticks([t + 1 for t in at], text)
    ax.set_xlim(0.5, n_times + 0.5)


def _widths(n: NDArray[np.float64]) -> list[int]:
    return [len(_number(value)) for value in n]


def _number(n: float) -> str:
    """A number of patients; a dash for one that is not to be shown."""
    return f"{n:,.0f}" if np.isfinite(n) else "–"


def percent_axis(ax: Axes, first: bool) -> None:
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"] if first else [""] * 5)


def too_few(data: Sequences, min_count: int) -> NDArray[np.bool_]:
    """Times at which some patients are observed, but fewer than `min_count`."""
    seen = (data.codes >= 0).sum(axis=0)
    few: NDArray[np.bool_] = (seen > 0) & (seen < min_count)
    return few


def _legend_handles(colours: Mapping[str, Any], missing: bool) -> list[Any]:
    from matplotlib.patches import Patch

    names = list(colours)
    handles = [Patch(facecolor=colours[name], label=name) for name in names[:_MAX_IN_LEGEND]]
    if len(names) > _MAX_IN_LEGEND:
        more = len(names) - _MAX_IN_LEGEND
        handles.append(Patch(facecolor="none", label=f"and {more} more"))
    if missing:
        handles.append(Patch(facecolor=MISSING, label="not known"))
    return handles
