"""Heat maps of transitions between states: as counted, and as estimated by a model.

They follow the rules of `mmlca.figures.distribution`: an Axes for one panel, a Figure for
sites × groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.errors import InputError
from mmlca.figures.canvas import (
    ONE_COLUMN,
    SMALL,
    TEXT,
    TWO_COLUMNS,
    Page,
    Panel,
    begins_row,
    cell_text,
    decimal_text,
    infos_and_table,
    lay_out,
    panel_grid,
    title_lines,
)
from mmlca.figures.colours import INK, MISSING, text_colour
from mmlca.model.forms import need_plain
from mmlca.model.inference import check_chains
from mmlca.sequences.checks import need_columns
from mmlca.sequences.type import Sequences
from mmlca.tables.describe import transition_counts
from mmlca.tables.disclosure import HIDDEN, bounded_parts, is_small
from mmlca.tables.groups import GroupInfo, Groups, SequencesBySite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mmlca.model.estimator import MixtureMarkov

Floats = NDArray[np.float64]


# --- heat map --------------------------------------------------------------------------


def plot_transitions(
    sequences: Sequences | SequencesBySite | list[GroupInfo] | MixtureMarkov,
    groups: Groups = None,
    *,
    lag: int = 1,
    min_support: int = 20,
    errors: pd.DataFrame | None = None,
    table: pd.DataFrame | None = None,
    min_count: int = 0,
    ax: Axes | None = None,
    figure: Figure | None = None,
) -> Axes | Figure:
    """Transition rates as a heat map, with their values. Draws `transition_counts`.

    At the right of each row is the number of transitions it is based on, with a star if it is below
    `min_support`; a state that nothing follows is grey.

    For a fitted model instead of sequences a new figure shows the *estimated* matrices, one panel
    per class with its first states in the row above, and `errors` their intervals; probabilities
    that are blank in these are grey.

    Parameters
    ----------
    sequences, groups, lag : as in `transition_counts`; or a fitted `MixtureMarkov` alone
        Or a list of `GroupInfo` with their table.
    min_support : rows of fewer transitions have a star
    errors : DataFrame, optional
        What `model.standard_errors(sequences)` returned: the limits of each probability are
        written below it.
    table : DataFrame, optional
        What `transition_counts` returned for the same sequences, groups and lag.
    min_count : groups, and rates of fewer patients, are not shown
    ax, figure : where to draw, optional
    """
    if not isinstance(sequences, (Sequences, Mapping, list, pd.DataFrame)):
        if groups is not None or table is not None:
            raise InputError(
                "groups and table belong to sequences, and a model has classes of its own; give "
                "the model alone, or the sequences with the model as groups."
            )
        if lag != 1 or min_count:
            raise InputError(
                "lag and min_count belong to sequences: a model holds probabilities of one step "
                "and no numbers of patients; give the sequences with the model as groups."
            )
        if ax is not None or figure is not None:
            raise InputError("ax and figure belong to sequences; a model gets a figure of its own.")
        return _plot_model(sequences, errors)
    if errors is not None:
        raise InputError("errors belong to a model: give the fitted model instead of sequences.")
    infos, table = infos_and_table(
        sequences, groups, min_count, table, partial(transition_counts, lag=lag)
    )
    beside, height, most = _label_room(infos)
    page = lay_out(
        infos, min_count, ax, figure, height=height, beside=beside, table=table, most=most
    )
    image: Any = None
    n_small = n_hidden = 0
    for panel in page.panels:
        heat = _Heat(panel, table, min_count)
        n_small += int(heat.small.sum())
        n_hidden += int((heat.hidden & ~heat.bounded).sum())
        image = _draw_heat(panel, heat, min_support, page)
    page.hidden(n_small, "rate", n_hidden - n_small)
    if _room(page, page.panels[0]):
        page.notes.insert(0, f"right: number of transitions (*: fewer than {min_support})")
    colour_bar(image, [panel.ax for panel in page.panels], "Rate")
    return page.finish("To", "From")


def _label_room(infos: list[GroupInfo]) -> tuple[float, float, int]:
    """Inches that names of states and the scale take beside the panels; height of a panel.

    The last is how many panels there may be in a row, so that the values fit into their cells.
    """
    states = {state for info in infos for state in info.states}
    longest = max(map(len, states), default=0) * 0.55 * SMALL / 72
    height = max(1.9, 0.5 + 0.1 * min(len(states), 25) + longest)
    points = 72 * (max(TWO_COLUMNS, TWO_COLUMNS + longest - 0.8) - longest - 0.6)
    fitting = [most for most in (4, 3, 2) if _fits(points / most * 0.75, len(states))]
    return longest + 0.6, height, max(fitting, default=4)


def _fits(points: float, n_states: int) -> bool:
    """Whether the values fit into the cells of a map in a panel of this width in points."""
    return points * 0.7 / max(n_states, 1) > 2.2 * (SMALL - 1)


def colour_bar(image: Any, axes: list[Axes], label: str, beyond: bool = False) -> Any:
    """The scale of a heat map, beside all its panels and at most an inch and a half long.

    It ends in points where there are values `beyond` it.
    """
    figure = axes[0].figure
    beside = 0.02 if figure.get_layout_engine() is not None else 0.15  # room for numbers of steps
    places = [ax.get_window_extent() for ax in axes]
    high = (max(place.y1 for place in places) - min(place.y0 for place in places)) / figure.dpi
    bar = figure.colorbar(
        image, ax=axes, shrink=min(0.6, 1.5 / max(high, 0.1)), aspect=18, pad=beside,
        extend="both" if beyond else "neither",
    )  # fmt: skip
    bar.ax.tick_params(labelsize=SMALL, length=2, width=0.5)
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize=SMALL)
    return bar


class _Heat:
    """A panel's rates (S, S), NaN where hidden or never left, and n of each row.

    `hidden` are all rates that are not shown, `small` those based on few patients; instead of
    those that are `bounded` a lower bound is shown.
    """

    def __init__(self, panel: Panel, table: pd.DataFrame, min_count: int) -> None:
        size = len(panel.info.states)
        rows = panel.rows(table, size * size)
        self.n = rows["n"].to_numpy(dtype=float).reshape(size, size)[:, 0]
        count = rows["count"].to_numpy(dtype=float).reshape(size, size)
        if "rounded_size" in rows:  # rounded counts, which may all be shown
            self.small = np.zeros((size, size), dtype=bool)
        else:
            need_columns(rows, ["patients", "n_patients"])
            small = is_small(rows[["patients", "n_patients"]], min_count).any(axis=1)
            self.small = small.reshape(size, size)
        parts = bounded_parts(count, min_count, self.small)
        self.hidden_n = parts.hidden_total | (not panel.sized(table))
        self.hidden = parts.hidden | parts.hidden_total[:, None]
        self.bounded = np.isfinite(parts.at_least)
        rate = rows["rate"].to_numpy(dtype=float).reshape(size, size)
        bound = parts.at_least / np.maximum(self.n, 1)[:, None]
        self.rate = np.where(self.hidden, bound, rate)

    def text(self, i: int, j: int) -> str:
        """The rate in a cell; "≥.97" for a bound, and nothing for a state that is never left."""
        if self.hidden[i, j] and not self.bounded[i, j]:
            return HIDDEN
        rate = rate_text(self.rate[i, j]) if np.isfinite(self.rate[i, j]) else ""
        return f"≥{rate}".replace("≥>", ">") if self.bounded[i, j] else rate


def _room(page: Page, panel: Panel) -> bool:
    """Whether the values fit into the cells of the map."""
    return _fits(page.panel_points, len(panel.info.states))


def _draw_heat(panel: Panel, heat: _Heat, min_support: int, page: Page) -> Any:
    import matplotlib as mpl

    ax, rate, size = panel.ax, heat.rate, len(heat.rate)
    shades = mpl.colormaps["Blues"].with_extremes(bad=MISSING)
    image = ax.imshow(rate, cmap=shades, vmin=0, vmax=1, aspect="auto")
    if _room(page, panel):
        for i in range(size):
            for j in range(size):
                if text := heat.text(i, j):
                    ink = text_colour(shades(rate[i, j])) if np.isfinite(rate[i, j]) else INK
                    cell_text(ax, j, i, text, ink)
            weak = 0 < heat.n[i] < min_support
            n = HIDDEN if heat.hidden_n[i] else f"{heat.n[i]:,.0f}{'*' if weak else ''}"
            ax.text(size - 0.4, i, n, va="center", fontsize=SMALL - 1, color=INK)
    names = panel.info.states
    named = panel.first or names != page.panels[0].info.states
    _name_states(ax, names, names, named)
    return image


def _name_states(ax: Axes, columns: Sequence[str], rows: Sequence[str], first: bool) -> None:
    """The states at the edges of a map, those of the rows at the `first` map only."""
    every = max(1, len(columns) // 25)
    turn = 90 if max(map(len, columns)) > 3 else 0
    ax.set_xticks(range(0, len(columns), every), columns[::every], rotation=turn)
    ax.set_yticks(range(0, len(rows), every), rows[::every] if first else [])
    ax.tick_params(length=0, labelsize=SMALL)
    ax.spines[:].set_visible(False)


def rate_text(rate: float) -> str:
    """Two decimals without the leading zero; rates near 0 and 1 as "<.01" and ">.99"."""
    if rate in (0, 1):
        return f"{rate:.0f}"
    if rate < 0.005:
        return "<.01"
    if rate > 0.995:
        return ">.99"
    return f"{rate:.2f}"[1:]


# --- estimated matrices ----------------------------------------------------------------


def _plot_model(model: MixtureMarkov, errors: pd.DataFrame | None) -> Figure:
    check_chains(model, "plot_transitions without sequences")
    if not hasattr(model, "params_"):
        advice = " that is not fitted; call its fit first" if hasattr(model, "fit") else ""
        raise TypeError(
            f"plot_transitions draws Sequences or a fitted model, found {type(model).__name__}"
            f"{advice}."
        )
    params = need_plain(model.params_, "plot_transitions draws plain chains alone")
    states = list(model.states_)
    value = np.concatenate([params.initial[:, None], params.transition], axis=1)
    shares, limits = np.asarray(params.weights), None
    if errors is not None:
        limits = _limits(errors, len(shares), states)
        if "estimate" in errors:
            value = np.where(np.isnan(_cells(errors, "estimate", value, states)), np.nan, value)
            shares = _class_shares(errors)
    names = [f"Class {k + 1}" for k in range(len(shares))]
    return _draw_estimates(value, shares, limits, states, names)


def plot_estimate_table(
    errors: pd.DataFrame, states: Sequence[str], *, names: Sequence[str]
) -> Figure:
    """Matrices as `plot_transitions(model)` draws them, from a table of estimates alone.

    The table is that of `MixtureMarkov.standard_errors`, whose values may be missing; `names` are
    those of the classes. Of chains that are not plain it has the next states of those who leave
    instead of all transitions, with a panel for each class and period.
    """
    shares, states = _class_shares(errors), list(states)
    blank = np.full((len(shares), len(states) + 1, len(states)), np.nan)
    destinations = errors["parameter"] == "destination"
    if not destinations.any():
        value = _cells(errors, "estimate", blank, states)
        return _draw_estimates(value, shares, _limits(errors, len(shares), states), states, names)
    periods = list(dict.fromkeys(errors.loc[destinations, "period"]))
    parts = [errors[~destinations | (errors["period"] == period)] for period in periods]
    values, limits = (
        np.stack(cells, axis=1).reshape(-1, *cells[0].shape[1:])
        for cells in (
            [_cells(part, "estimate", blank, states) for part in parts],
            [_limits(part, len(shares), states) for part in parts],
        )
    )
    titles = [f"{name}, windows {p}" if p else name for name in names for p in periods]
    return _draw_estimates(
        values, np.repeat(shares, len(periods)), limits, states, titles, leavers=True
    )


def _draw_estimates(
    values: Floats,
    shares: Floats,
    limits: Floats | None,
    states: list[str],
    names: Sequence[str],
    *,
    leavers: bool = False,
) -> Figure:
    """First states and transitions (K, S + 1, S), shares (K,) and limits (K, S + 1, S, 2).

    Transitions of `leavers` leave their state, so that its cell is empty.
    """
    import matplotlib as mpl

    size = len(states)
    figure, axes = _panels(len(values), states, 7 if limits is None else 15)
    shades = mpl.colormaps["Blues"].with_extremes(bad=MISSING)
    image: Any = None
    for k, panel in enumerate(axes):
        image = panel.imshow(values[k], cmap=shades, vmin=0, vmax=1, aspect="auto")
        for (i, j), rate in np.ndenumerate(values[k]) if size <= 12 else ():
            text = rate_text(rate) if np.isfinite(rate) else "–"
            text = "" if leavers and i == j + 1 else text
            if limits is not None and np.isfinite(limits[k, i, j]).all():
                text += "\n" + "–".join(map(decimal_text, limits[k, i, j]))
            less = 1 if limits is None else 1.5
            cell_text(panel, j, i, text, text_colour(shades(rate)), SMALL - less, linespacing=0.95)
        panel.axhline(0.5, color="white", linewidth=2)
        size_text = "" if np.isnan(shares[k]) else f" ({100 * shares[k]:.0f} %)"
        panel.set_title(title_lines(f"{names[k]}{size_text}", 26), fontsize=TEXT, color=INK)
        _name_states(panel, states, ["first", *states], begins_row(panel))
    colour_bar(image, axes, "Estimated probability")
    note = "To, of those who leave" if leavers else "To"
    note += "" if limits is None else " (below each probability: 95 % limits)"
    figure.supxlabel(note, fontsize=TEXT)
    figure.supylabel("From", fontsize=TEXT)
    return figure


def _panels(n: int, states: list[str], letters: int) -> tuple[Figure, list[Axes]]:
    """One Axes per class; as many in a row as leave each cell the points that `letters` need."""
    longest = max(map(len, states)) * 0.55 * SMALL / 72
    wide = (ONE_COLUMN + 0.6 if n == 1 else TWO_COLUMNS) + max(0.0, longest - 0.8)
    cells = 72 * (wide - longest - 0.9) * 0.97 / len(states)  # points of a cell with one column
    fitting = [most for most in (4, 3, 2) if cells / most >= letters * 1.15]
    row = 0.5 + 0.17 * (min(len(states), 25) + 1) * (1.3 if letters > 7 else 1) + longest
    return panel_grid(
        n, max(fitting, default=2), lambda n_rows: (wide, n_rows * max(2.1, row) + 0.5)
    )


def _cells(errors: pd.DataFrame, column: str, start: Floats, states: list[str]) -> Floats:
    """A column of the table by class, state before (the first row: none) and state, (K, S + 1, S).

    Cells that the table does not have keep the values of `start`.
    """
    code, cells = {state: i for i, state in enumerate(states)}, start.copy()
    shown = errors["parameter"].isin(["initial", "transition", "destination"])
    for row in errors[shown].to_dict("records"):
        before = 0 if row["parameter"] == "initial" else 1 + code[row["from"]]
        cells[int(row["class"]) - 1, before, code[row["to"]]] = row[column]
    return cells


def _limits(errors: pd.DataFrame, n_classes: int, states: list[str]) -> Floats:
    blank = np.full((n_classes, len(states) + 1, len(states)), np.nan)
    low, high = (_cells(errors, name, blank, states) for name in ("low", "high"))
    limits: Floats = np.stack([low, high], axis=-1)
    return limits


def _class_shares(errors: pd.DataFrame) -> Floats:
    weights = errors[errors["parameter"] == "weight"].sort_values("class")
    shares: Floats = weights["estimate"].to_numpy(dtype=float)
    return shares
