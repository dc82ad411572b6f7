"""What all figures of sequences share: the grid of panels, axes, legends and notes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from font.checks import counted
from font.errors import InputError
from mmlca.figures.colours import INK, MISSING
from mmlca.sequences.type import Sequences
from mmlca.tables.disclosure import check_min_count, is_small, not_shown
from mmlca.tables.groups import (
    GroupInfo,
    Groups,
    Keys,
    SequencesBySite,
    group_info,
    group_infos,
    split,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

TEXT, SMALL = 7.0, 6.0
ONE_COLUMN, TWO_COLUMNS = 3.5, 7.2
MARKERS = "osD^vP*X"
_MAX_IN_LEGEND = 14
_MOST_TO_LEGEND = 0.45  # of a panel of the caller
_Table = TypeVar("_Table")


# --- panels ----------------------------------------------------------------------------


class Panel(NamedTuple):
    """One Axes, what to know about the patients to draw in it, and whether it begins a row."""

    ax: Axes
    info: GroupInfo
    first: bool

    def sized(self, table: pd.DataFrame | None) -> bool:
        """Whether the size of the group may be shown; it may if the table does not say."""
        rows = None if table is None or "size" not in table else self.rows(table)
        return rows is None or not len(rows) or bool(rows["size"].notna().any())

    def rows(self, table: pd.DataFrame, n: int | None = None) -> pd.DataFrame:
        """The rows of this panel's site and group, of which there should be n."""
        keys, mine = self.info.keys, np.ones(len(table), dtype=bool)
        for name in ("site", "group"):
            if (name in table) != (name in keys):
                there, wanted = ("a", "none") if name in table else ("no", "one")
                raise InputError(
                    f"the table has {there} column {name!r}, expected {wanted}; give the table of "
                    "the same sequences and groups."
                )
            if name in keys:
                mine &= (table[name] == keys[name]).to_numpy()
        if n is not None and mine.sum() != n:
            where = f" for {group_name(keys)}" if keys else ""
            raise InputError(
                f"the table has {mine.sum():,} rows{where}, expected {n:,}; give the table of the "
                "same sequences and groups."
            )
        return table[mine]


@dataclass
class Page:
    """The panels of a figure, the Axes or Figure that the caller gets, and the notes below it.

    In an Axes of the caller (`inside`) the legend stays within it, since what is beside it is
    the caller's. A figure that this module made (`own`) grows with its legend and its notes.
    """

    panels: list[Panel]
    whole: Axes | Figure
    width: float
    n_columns: int
    min_count: int
    inside: bool = False
    own: bool = False
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
        return list(dict.fromkeys(state for panel in self.panels for state in panel.info.states))

    @property
    def n_times(self) -> int:
        return max(len(panel.info.times) for panel in self.panels)

    def hidden(self, n: int, noun: str, others: int = 0) -> None:
        """Note that n things were of too few patients to show, and others would reveal them."""
        if n:
            self.notes.append(not_shown(n, noun, self.min_count, others))

    def left_out(self, few: int, empty: int) -> None:
        """Note how many groups had too few patients or none."""
        if empty:
            self.notes.append(f"{counted(empty, 'group', 'groups')} without patients left out")
        self.hidden(few, "group")

    def finish(
        self,
        xlabel: str,
        ylabel: str,
        colours: Mapping[str, Any] | None = None,
        grey: str = "",
    ) -> Axes | Figure:
        """Write labels, notes and the legend of states and of grey; return Axes or Figure."""
        from matplotlib.axes import Axes

        handles = _legend_handles(colours or {}, grey)
        entries = [SMALL * (0.55 * len(str(handle.get_label())) + 4) / 72 for handle in handles]
        entry = max(entries, default=SMALL * 4 / 72)  # inches
        beside = isinstance(self.whole, Axes) and bool(handles) and not self.inside
        wide = self.width / self.n_columns if isinstance(self.whole, Axes) else self.width
        if beside and self.own:
            self._grow(width=max(0.0, entry - 1.1))
        wide -= min(entry, 1.1) if beside else 0.0
        note = "; ".join(dict.fromkeys(self.notes))
        notes = even_lines(note[:1].upper() + note[1:], max(24, int(72 * wide / (0.52 * TEXT)) - 6))
        below = "\n".join([*([xlabel] if xlabel else []), *notes])
        n_wide = max(1, len(handles) if sum(entries) < self.width else int(self.width / entry))
        n_lines = -(-len(handles) // n_wide) if handles and not beside and not self.inside else 0
        if self.own:
            self._grow(height=(TEXT * 1.3 * max(len(notes) - 1, 0) + 9 * max(n_lines - 1, 0)) / 72)
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
                place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02)}
                if self.inside and self._make_room(entry):
                    place = {"loc": "upper right", "borderaxespad": 0.0}
                elif self.inside:
                    place, look["frameon"] = {"loc": "best"}, True
                self.whole.legend(handles=handles, **place, **look)
            return self.whole
        if below:
            self.whole.supxlabel(below, fontsize=TEXT)
        if ylabel:
            self.whole.supylabel(ylabel, fontsize=TEXT)
        if handles:
            self.whole.legend(handles=handles, loc="outside upper left", ncols=n_wide, **look)
        return self.whole

    def _make_room(self, entry: float) -> bool:
        """Extend the caller's Axes to the right, for a legend of this width in inches.

        Bars and pictures fill their panel: a legend on them would hide patients. It returns False
        where the legend is too large for that.
        """
        ax: Any = self.whole
        part = entry * ax.figure.dpi / ax.get_window_extent().width
        if part > _MOST_TO_LEGEND:
            return False
        (left, right), automatic = ax.get_xlim(), ax.get_autoscalex_on()
        if ax.spines["bottom"].get_bounds() is None:
            ax.spines["bottom"].set_bounds(left, right)
        ax.set_xlim(left, left + (right - left) / (1 - part), auto=automatic)
        return True

    def _grow(self, width: float = 0.0, height: float = 0.0) -> None:
        """Make the figure larger by some inches, for what surrounds the panels."""
        figure: Any = self.whole.figure
        wide, high = figure.get_size_inches()
        figure.set_size_inches(wide + width, high + height)


def title_lines(text: str, letters: int) -> str:
    """A title in lines of at most `letters` letters; arrows stay with the states before them.

    >>> title_lines("2: mixed: TNFi → anti-CD20, TNFi", 22)
    '2: mixed: TNFi →\\nanti-CD20, TNFi'
    """
    together = text.replace(" →", "\u00a0→").replace("→ …", "→\u00a0…")
    lines = textwrap.wrap(together, letters, break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ")


def even_lines(text: str, letters: int) -> list[str]:
    """Lines of at most `letters` letters and of about the same length, so that no word is alone.

    >>> even_lines("one two three four five", 20)
    ['one two three', 'four five']
    """
    n_lines = len(textwrap.wrap(text, letters))
    longest = max(map(len, text.split()), default=letters)
    while letters > longest and len(textwrap.wrap(text, letters - 1)) == n_lines:
        letters -= 1
    return textwrap.wrap(text, letters)


def infos_and_table(
    sequences: Sequences | SequencesBySite | list[GroupInfo],
    groups: Groups,
    min_count: int,
    table: _Table | None,
    compute: Callable[[Sequences | SequencesBySite, Groups], _Table],
) -> tuple[list[GroupInfo], _Table]:
    """What a figure draws: its groups, and their table, computed if it is not given.

    A list of groups in place of the sequences comes with its table.
    """
    if isinstance(sequences, list):
        if not all(isinstance(info, GroupInfo) for info in sequences):
            raise TypeError(
                "found a list where sequences are needed; a list in their place must hold "
                "GroupInfo objects, with a table to draw."
            )
        if table is None:
            raise InputError(
                "a list of GroupInfo has no patients to compute a table from; give it as table=."
            )
        if groups is not None:
            raise InputError("a list of GroupInfo already names the groups; leave out groups.")
        return sequences, table
    check_sequences(sequences)
    infos = group_infos(sequences, groups)
    choose_groups(infos, min_count)  # a table is computed only if there is something to draw
    return infos, compute(sequences, groups) if table is None else table


def split_patients(
    sequences: Sequences | SequencesBySite, groups: Groups
) -> list[tuple[GroupInfo, Sequences]]:
    """Each group and its patients of positive weight, for figures that draw more than a table."""
    check_sequences(sequences)
    return [
        (group_info(keys, data), data if (data.weights > 0).all() else data[data.weights > 0])
        for keys, data in split(sequences, groups)
    ]


def patients_of(info: GroupInfo, patients: list[tuple[GroupInfo, Sequences]]) -> Sequences:
    """Those of one group, from `split_patients`."""
    return next(data for other, data in patients if other is info)


def lay_out(
    infos: list[GroupInfo],
    min_count: int,
    ax: Axes | None,
    figure: Figure | None,
    height: float = 1.75,
    beside: float = 0.0,
    table: pd.DataFrame | None = None,
    most: int = 4,
) -> Page:
    """Panels for sites × groups: rows and columns, or at most `most` in a row if only one of them.

    Groups without patients, and those of fewer than `min_count`, are left out and noted.
    `height` is that of a row, and `beside` what labels take from the width, in inches; a new
    figure is wider where they would take most of it. Titles say how many patients there are: those
    that were given, or what the `table` that is drawn has as `size` or `rounded_size` of the group.
    """
    if ax is not None and figure is not None:
        raise InputError("both ax and figure were given; give one of them.")
    shown, few, empty = choose_groups(infos, min_count)
    simple = not infos[0].keys
    if ax is not None and len(shown) > 1:
        raise InputError(
            f"one Axes cannot hold {len(shown)} panels (sites × groups); pass figure= or "
            "neither, or draw one group at a time."
        )
    places, shape = _places([info.keys for info in shown], most)
    grid, whole = _surface(ax, figure, simple, shape, height, beside)
    root = whole if whole is not grid[0, 0] else whole.figure
    share = 1 / shape[1] if whole is root else max(whole.get_position().width, 0.1)
    page = Page(
        [],
        whole,
        max(root.bbox.width / root.dpi - beside, 1.0),
        max(1, round(1 / share)),
        min_count=min_count,
        inside=ax is not None,
        own=ax is None and figure is None,
    )
    for info, (row, column) in zip(shown, places, strict=True):
        style(grid[row, column])
        first = column == min(c for r, c in places if r == row)
        panel = Panel(grid[row, column], info, first)
        title = _title(panel, page.title_letters, table)
        grid[row, column].set_title(title, fontsize=TEXT, color=INK)
        page.panels.append(panel)
    unsized = sum(not panel.sized(table) for panel in page.panels)
    if unsized:
        sizes = "size of 1 group" if unsized == 1 else f"sizes of {unsized} groups"
        page.notes.append(f"{sizes} not shown, because that of a smaller one would follow")
    for row, column in set(np.ndindex(grid.shape)) - set(places):
        grid[row, column].set_axis_off()
    page.left_out(few, empty)
    return page


def _surface(
    ax: Axes | None,
    figure: Any,
    simple: bool,
    shape: tuple[int, int],
    height: float,
    beside: float,
) -> tuple[Any, Any]:
    """The Axes by row and column, and the Axes or Figure that the caller gets."""
    n_rows, n_columns = shape
    if ax is None and figure is None:
        import matplotlib.pyplot as plt

        width = ONE_COLUMN if n_columns == 1 else max(TWO_COLUMNS, 1.4 * n_columns)
        size = (width + max(0.0, beside - 1.4), n_rows * height + 0.75 + 0.3 * simple)
        figure = plt.figure(figsize=size, layout="constrained")
        if simple:
            ax = figure.subplots()
    if ax is not None:
        return np.array([[ax]], dtype=object), ax
    if figure.get_layout_engine() is None:
        figure.figure.set_layout_engine("constrained")  # a subfigure has its parent's
    return figure.subplots(n_rows, n_columns, squeeze=False), figure


def choose_groups(infos: list[GroupInfo], min_count: int) -> tuple[list[GroupInfo], int, int]:
    """The groups to draw, and how many have too few patients or none."""
    check_min_count(min_count)
    sizes = np.array([info.n for info in infos], dtype=int)
    small = is_small(sizes, min_count)
    shown = [info for info, hide in zip(infos, small | (sizes == 0), strict=True) if not hide]
    if not shown:
        if not sizes.any():
            raise InputError("there is nothing to draw: there are no patients; select some.")
        raise InputError(
            f"there is nothing to draw: every group has fewer than min_count = {min_count} "
            "patients; join groups, or lower min_count."
        )
    return shown, int(small.sum()), int((sizes == 0).sum())


def check_sequences(sequences: Any) -> None:
    """Refuse what is neither sequences nor a dict of them."""
    parts = sequences.values() if isinstance(sequences, Mapping) else [sequences]
    for part in parts:
        if isinstance(part, pd.DataFrame):
            raise TypeError(
                "found a DataFrame where sequences are needed; make them with "
                "Sequences.from_frame or from_long."
            )
        if not isinstance(part, Sequences):
            raise TypeError(
                f"found {type(part).__name__} where sequences are needed, or a dict {{site: "
                "sequences}; give the sequences first, and a model as groups."
            )


def _places(keys: list[Keys], most: int) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Row and column of each panel, and the shape of the grid: rows as equally long as can be."""
    if "site" in keys[0] and "group" in keys[0]:
        sites = list(dict.fromkeys(key["site"] for key in keys))
        groups = list(dict.fromkeys(key["group"] for key in keys))
        if all(isinstance(group, (int, float, np.number)) for group in groups):
            groups = sorted(groups)  # type: ignore[type-var]
        places = [(sites.index(key["site"]), groups.index(key["group"])) for key in keys]
        return places, (len(sites), len(groups))
    n_rows, n_columns = grid_shape(len(keys), most)
    return [divmod(i, n_columns) for i in range(len(keys))], (n_rows, n_columns)


def grid_shape(n: int, most: int) -> tuple[int, int]:
    """Rows and columns for n panels with at most `most` in a row, as equal as can be.

    >>> grid_shape(9, 4), grid_shape(5, 4), grid_shape(4, 4)
    ((3, 3), (2, 3), (1, 4))
    """
    n_rows = -(-n // most)
    return n_rows, -(-n // n_rows)


def panel_grid(
    n: int, most: int, size: Callable[[int], tuple[float, float]], **shared: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with n panels in rows of at most `most`; places without a panel stay empty.

    It has the `size` for its number of rows, in inches.
    """
    import matplotlib.pyplot as plt

    n_rows, n_columns = grid_shape(n, most)
    figure = plt.figure(figsize=size(n_rows), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False, **shared).ravel()
    for empty in grid[n:]:
        empty.set_axis_off()
    return figure, list(grid[:n])


def begins_row(ax: Any) -> bool:
    """Whether a panel is the first of its row, or alone, so that its axis has names."""
    place = ax.get_subplotspec()
    return place is None or bool(place.is_first_col())


def legend_of_all(figure: Any, panels: Sequence[Any], **look: Any) -> None:
    """One legend for all panels, outside them, above unless `loc` says otherwise."""
    handles = {
        text: handle
        for ax in panels
        for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if handles:
        fitting = legend_columns(figure.bbox.width / figure.dpi, handles)
        look = {"loc": "outside upper left", "ncols": fitting, **look}
        look["ncols"] = min(look["ncols"], fitting)
        figure.legend(list(handles.values()), list(handles), frameon=False, fontsize=SMALL, **look)


def _title(panel: Panel, letters: int, table: pd.DataFrame | None) -> str:
    """The name of a panel's group, and its size as far as it may be shown."""
    info = panel.info
    name, n = title_lines(group_name(info.keys), letters), f"n = {info.n:,}"
    if not np.isclose(info.weight, info.n, rtol=1e-9):
        n += f" (weight {info.weight:,.0f})"
    for column, sign in (("size", "="), ("rounded_size", "≈")):
        if table is not None and column in table:
            sizes = panel.rows(table)[column].dropna()
            n = f"n {sign} {sizes.iloc[0]:,.0f}" if len(sizes) else ""
    return "\n".join(part for part in (name, n) if part)


def group_name(keys: Keys) -> str:
    """The name of a panel, such as "MGB, group 2"."""
    parts = [str(keys["site"])] if "site" in keys else []
    if "group" in keys:
        parts.append(named(keys["group"], "group" if parts else "Group"))
    return ", ".join(parts)


def named(label: Any, noun: str) -> str:
    """A name as it is, and a number after what it counts: "Class 2"."""
    return f"{noun} {label}" if isinstance(label, (int, float, np.number)) else str(label)


# --- pieces of a panel -----------------------------------------------------------------


def new_axes(ax: Axes | None, height: float = 2.6, names: Collection[str] = ()) -> Axes:
    """The caller's Axes, or a new one as wide as a journal column, styled.

    It is wider where long `names` at its left would take most of the column.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        size = (ONE_COLUMN + extra_width(names), height)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    style(ax)
    return ax


def extra_width(names: Collection[str], room: float = 1.2) -> float:
    """Inches that the longest of some names takes beyond the room that a figure has for them."""
    return max(0.0, max(map(len, names), default=0) * 0.58 * SMALL / 72 - room)


def legend_columns(width: float, names: Collection[str]) -> int:
    """How many entries of a legend fit beside each other into a width in inches."""
    entry = SMALL * (0.55 * max(map(len, names), default=0) + 5) / 72
    return max(1, min(len(names), int(width / entry)))


def legend_over(ax: Axes, own: bool, **look: Any) -> None:
    """The legend of lines that fill their panel, above them, where it covers none.

    In a figure that this module made (`own`) it is above the Axes and the figure grows with it.
    In an Axes of the caller the axis is extended above what it shows now, as far as there is room.
    """
    names = ax.get_legend_handles_labels()[1]
    figure: Any = ax.figure
    wide = figure.bbox.width / figure.dpi * max(ax.get_position().width, 0.1) - 0.2
    n_columns = legend_columns(wide, [*names, ""])  # the sample of a line is longer than a patch
    height = (1.45 * SMALL * -(-len(names) // n_columns) + 4) / 72
    look = {"fontsize": SMALL, "frameon": False, "ncols": n_columns, **look}
    if own:
        wide, high = figure.get_size_inches()
        figure.set_size_inches(wide, high + height)
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), **look)
        return
    part = height * figure.dpi / ax.get_window_extent().height
    if part > _MOST_TO_LEGEND:
        ax.legend(loc="best", **(look | {"frameon": True, "ncols": 1}))
        return
    low, high = ax.get_ylim()
    ticks = [tick for tick in ax.get_yticks() if low <= tick <= high]
    ax.set_yticks(ticks)
    ax.spines["left"].set_bounds(low, high)
    ax.set_ylim(low, low + (high - low) / (1 - part))
    ax.legend(loc="upper center", borderaxespad=0.0, **look)


def ratio_axis(ax: Axes) -> None:
    """A logarithmic axis of ratios below, with round numbers that do not touch."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = ax.get_xlim()
    steps = (1.0, 2.0, 5.0) if high < 60 * low else (1.0,)
    few = high < 8 * low  # then steps of the same size are more, and still apart
    even = MaxNLocator(7, steps=[1, 2, 5, 10])
    ax.xaxis.set_major_locator(even if few else LogLocator(subs=steps, numticks=7))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _ratio_text(x)))


def _ratio_text(ratio: float) -> str:
    """Such as "0.5" and "1,000", and powers of ten where these would be long."""
    if ratio > 0 and not 1e-3 <= ratio <= 1e4:
        return f"$10^{{{np.log10(ratio):.0f}}}$"
    return f"{ratio:,.0f}" if ratio >= 1000 else f"{ratio:g}"


def style(ax: Axes) -> None:
    ax.tick_params(labelsize=SMALL, length=2, width=0.5, pad=1.5, colors=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_linewidth(0.5)
    ax.set_axisbelow(True)


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
    if np.ndim(width) == 0 and width == 1:
        bars.set_antialiased(False)  # else adjoining bars show a seam
    ax.add_collection(bars, autolim=False)
    return bars


def cell_text(
    ax: Axes, x: float, y: float, text: str, colour: str, size: float = SMALL - 1, **look: Any
) -> None:
    """A text in a cell of a map. The layout passes over it, which is quicker: it lies inside."""
    written = ax.text(x, y, text, ha="center", va="center", fontsize=size, color=colour, **look)
    written.set_in_layout(False)


def decimal_text(value: float) -> str:
    """Two decimals without the leading 0, with a real minus: "−.12", ".05", "0", "1"."""
    text = f"{abs(value):.2f}"
    if text == "0.00":
        return "0"
    text = "1" if text == "1.00" else text.removeprefix("0")
    return f"−{text}" if value < 0 else text


def time_axis(
    ax: Axes,
    labels: Sequence[str],
    n_times: int,
    points: float,
    below: list[str] | None = None,
) -> None:
    """Ticks at the first of the times and about four more, with texts below them."""
    step = max(1, -(-len(labels) // 4))
    widest = max(len(text) for text in [*labels, *(below or [])])
    while step < len(labels) and points * step / n_times < 0.62 * SMALL * widest:
        step *= 2
    at = [0, *range(step - 1, len(labels), step)] if step > 1 else list(range(len(labels)))
    if len(at) > 1 and points * (at[1] - at[0]) / n_times < 0.6 * SMALL * widest:
        del at[1]
    at = list(dict.fromkeys(at))
    text = [labels[t] if below is None else f"{labels[t]}\n{below[t]}" for t in at]
    ax.set_xticks([t + 1 for t in at], text)
    ax.set_xlim(0.5, n_times + 0.5)


def percent_axis(ax: Axes, first: bool) -> None:
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"] if first else [""] * 5)


def keep_drawn(colours: Mapping[str, Any], drawn: Collection[str]) -> dict[str, Any]:
    """The colours of what was drawn: a legend names nothing that does not occur."""
    return {name: shade for name, shade in colours.items() if name in drawn}


def _legend_handles(colours: Mapping[str, Any], grey: str) -> list[Any]:
    from matplotlib.patches import Patch

    names = list(colours)
    handles = [Patch(facecolor=colours[name], label=name) for name in names[:_MAX_IN_LEGEND]]
    if len(names) > _MAX_IN_LEGEND:
        more = len(names) - _MAX_IN_LEGEND
        handles.append(Patch(facecolor="none", label=f"and {more} more"))
    if grey:
        handles.append(Patch(facecolor=MISSING, label=grey))
    return handles
