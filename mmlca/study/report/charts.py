"""Charts of the page as SVG: readable without scripts and on paper; a script adds values on hover.

Each chart draws the table of its item, with small numbers already hidden in it. A mark carries its
state, by which the script highlights all marks alike, and its value in words, before which the
script writes the site and group of its panel.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from mmlca.figures.canvas import group_name
from mmlca.figures.colours import MISSING, PALE
from mmlca.study.report.tables import unbroken
from mmlca.tables.clusters import percent_text
from mmlca.tables.disclosure import HIDDEN

_WIDTH, _HIGH = 220.0, 230.0
_HIDDEN = "#D9D9D9"
_LABELLED = 14.0  # lower blocks of treatment lines have no name beside them
_LETTER, _LINE = 4.9, 9.5  # how wide a letter of these names is on average, how high a line
_HAIR = 0.5  # thinner ribbons cannot be seen
SLIVER = 0.0075
"""Continuations of a path that fewer than this share of the patients take are one slice."""


def _tag(name: str, text: str = "", **attributes: Any) -> str:
    """An element; names of attributes end in an underscore where Python reserves them."""
    inside = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{inside}>{text}</{name}>" if text else f"<{name}{inside}/>"


def _plain(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def legend(colours: Mapping[str, str]) -> str:
    """One button per state, by which the script highlights it everywhere."""
    square = _tag("rect", width=10, height=10, fill="{}")
    swatch = _tag("svg", square, viewBox="0 0 10 10", aria_hidden="true")
    buttons = [
        f'<button type="button" class="key" data-state="{html.escape(name)}" aria-pressed="false">'
        f"{swatch.format(html.escape(str(shade)))} {html.escape(name)}</button>"
        for name, shade in colours.items()
    ]
    return f'<div class="keys" role="group" aria-label="States">{"".join(buttons)}</div>'


# --- panels -------------------------------------------------------------------------------


def _panels(
    table: pd.DataFrame, draw: Callable[[pd.DataFrame], tuple[str, list[str], float]]
) -> str:
    """One picture for each site and group: sites down, groups across; on a phone two a line.

    `draw` gives the number of patients in words, the marks, and the height of the picture.
    """
    keys = [name for name in ("site", "group") if name in table]
    parts: list[Any] = list(table.groupby(keys, sort=False, observed=True)) if keys else []
    n_columns = table["group"].nunique() if "group" in keys else 1
    pictures = []
    for key, part in parts or [((), table)]:
        named = dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=True))
        title = group_name(named)
        n, marks, height = draw(part)
        label = html.escape(f"{title}, {n}" if title else n)
        picture = _tag(
            "svg", "".join(marks), viewBox=f"0 0 {_WIDTH:g} {height:g}", class_="chart", role="img",
            aria_label=html.unescape(label),
        )  # fmt: skip
        group = html.escape(str(named.get("group", "")))
        pictures.append(
            f'<div class="panel" data-group="{group}"><p>'
            f'<button type="button" class="pick" data-group="{group}" aria-pressed="false">'
            f"{unbroken(title)}</button><span>{html.escape(n)}</span></p>{picture}</div>"
        )
    return f'<div class="panels columns-{min(n_columns, 6)}">{"".join(pictures)}</div>'


def _size(part: pd.DataFrame) -> str:
    """The size of a group in words, as far as it may be shown."""
    column, sign = ("rounded_size", "≈") if "rounded_size" in part else ("size", "=")
    known = part[column].dropna()
    return f"n {sign} {known.iloc[0]:,.0f}" if len(known) else ""


def _patients(count: float, share: float) -> str:
    """Patients and their share of a group; the share alone where the number may not be shown."""
    if np.isnan(count):
        return percent_text(share)
    return f"{count:,.0f} {'patient' if round(count) == 1 else 'patients'} ({percent_text(share)})"


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return _tag("text", html.escape(text), x=x, y=y, text_anchor=anchor)


# --- state distribution -------------------------------------------------------------------


def stacked_bars(table: pd.DataFrame, colours: Mapping[str, str], window: str) -> str:
    """`state_distribution`: one stack of shares per time. Hidden shares are one grey part.

    Where `at_least` has a lower bound of a share that may not be shown, the bar is as high as that.
    """
    bound = table["at_least"] if "at_least" in table else table["share"]
    table = table.assign(high=table["share"].fillna(bound))
    height = 170.0
    n_columns = table["group"].nunique() if "group" in table else 1

    def draw(part: pd.DataFrame) -> tuple[str, list[str], float]:
        marks: list[str] = []
        n_times = part["time"].nunique()
        step = _WIDTH / max(n_times, 1)
        wide = step * (0.92 if n_times <= 24 else 1.0)  # gaps between many bars would be stripes
        every = max(4 if n_columns <= 4 else 8, -(-n_times // 4))
        for t, (time, rows) in enumerate(part.groupby("time", sort=False, observed=True)):
            x, y, where = t * step, height, f"{window} {time}"
            for row in rows[rows["high"] > 0].to_dict("records"):
                high = height * row["high"]
                y -= high
                more = f"{where}: {row['state']} {percent_text(row['high'])}"
                if np.isnan(row["share"]):
                    more = f"{where}: {row['state']} at least {percent_text(row['high'])}"
                elif np.isfinite(row["count"]):
                    whole = "" if "rounded_size" in row else f" of {row['n']:,.0f}"
                    more += f" ({row['count']:,.0f}{whole})"
                marks.append(_bar(x, y, wide, high, colours[row["state"]], row["state"], more))
            if rows["high"].notna().any() and y > 0.5:
                marks.append(_bar(x, 0, wide, y, _HIDDEN, None, f"{where}: too few to show"))
            if t == 0 or (t + 1) % every == 0:
                place = "start" if t == 0 else "end" if t + 1 == n_times else "middle"
                at = {"start": x, "end": x + wide, "middle": x + wide / 2}[place]
                marks.append(_text(at, height + 13, str(time), place))
                observed = rows["n"].dropna()
                n = f"{observed.iloc[0]:,.0f}" if len(observed) else HIDDEN
                marks.append(_text(at, height + 24, n, place))
        if part["high"].isna().all():
            marks.append(_text(_WIDTH / 2, height / 2, "too few patients to show"))
        return _size(part), marks, height + 28

    return _panels(table, draw)


def _bar(
    x: float, y: float, width: float, height: float, fill: str, state: str | None, more: str
) -> str:
    return _tag(
        "rect", x=x, y=y, width=width, height=height, fill=fill, class_="mark", data_state=state,
        data_more=more,
    )  # fmt: skip


# --- treatment lines ----------------------------------------------------------------------


def sankey(table: pd.DataFrame, colours: Mapping[str, str]) -> str:
    """`treatment_paths` as blocks by line, and ribbons between them."""
    lines = int(table["line"].max())

    def draw(part: pd.DataFrame) -> tuple[str, list[str], float]:
        return _size(part), _flows(part, colours, lines), _HIGH + 18

    return _panels(table, draw)


def _flows(part: pd.DataFrame, colours: Mapping[str, str], lines: int) -> list[str]:
    """Marks of one panel; there is room for as many lines as any panel has."""
    order = {name: k for k, name in enumerate(colours)}
    n_lines, gap, bar = int(part["line"].max()), 5.0, 9.0
    scale = _HIGH - gap * len(order)
    step = (_WIDTH - bar) / max(lines - 1, 1)
    sizes = _sums(part, ["line", "state"]).set_index(["line", "state"])
    leaving: dict[tuple[int, str], float] = {}  # how far each block is used from its top
    blocks, ribbons, labels = [], [], []
    for line in range(1, n_lines + 1):
        x, y = (line - 1) * step, 0.0
        for name in sorted(sizes.loc[line].index, key=order.__getitem__):
            count, share = sizes.loc[(line, name)]
            leaving[line, name] = y
            more = f"line {line}: {name}, {_patients(count, share)}"
            high = max(share * scale, 0.5)
            blocks.append(_bar(x, y, bar, high, colours[name], name, more))
            if high >= _LABELLED and (line < lines or lines < 4):  # no room for four
                last = line == lines
                side, room = x if last else x + bar, step - bar - 6
                labels.append(_node_label(side, y + high / 2, high, name, room, last))
            y += high + gap
        place = "start" if line == 1 else "end" if line == lines else "middle"
        at = {"start": x, "end": x + bar, "middle": x + bar / 2}[place]
        blocks.append(_text(at, _HIGH + 13, f"line {line}", place))
    entering = dict(leaving)
    table = _sums(part[part["before"].notna()], ["line", "before", "state"])
    table = table.assign(i=table["before"].map(order), j=table["state"].map(order))
    for row in table.sort_values(["line", "i", "j"]).to_dict("records"):
        line, before, after, high = row["line"], row["before"], row["state"], row["share"] * scale
        start, end = leaving[line - 1, before], entering[line, after]
        leaving[line - 1, before] += high
        entering[line, after] += high
        if high < _HAIR:
            continue
        patients = _patients(row["count"], row["share"])
        more = f"line {line - 1} to {line}: {before} → {after}, {patients}"
        shade = colours[after if colours[after] in (PALE, MISSING) else before]
        ribbons.append(
            _tag(
                "path",
                d=_ribbon((line - 2) * step + bar, (line - 1) * step, start, end, high),
                fill=shade,
                fill_opacity=0.45,
                class_="mark",
                data_state=before,
                data_more=more,
            )
        )
    return ribbons + blocks + labels


def _sums(part: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Counts and shares of paths, added up; a sum of counts that may not be shown is NaN."""
    sums = part.groupby(by, sort=False)[["count", "share"]].sum(min_count=1)
    return sums.reset_index()


def _node_label(x: float, y: float, high: float, name: str, room: float, last: bool) -> str:
    """The name of a block beside it, on as many lines as the block is high; cut where it must be.

    `x` is the side of the block where the name stands, `y` its middle.
    """
    at, anchor = (x - 3, "end") if last else (x + 3, "start")
    letters, n_lines = int(room / _LETTER), max(int(high / _LINE), 1)
    parts = textwrap.wrap(name.replace("+", "+ "), letters, break_long_words=False)
    lines = [part.replace("+ ", "+") for part in parts]
    if len(lines) > n_lines:
        lines = [*lines[: n_lines - 1], f"{lines[n_lines - 1]}…"]
    lines = [one if len(one) <= letters + 1 else f"{one[: letters - 1]}…" for one in lines]
    top = y + 3 - _LINE * (len(lines) - 1) / 2
    return "".join(
        _tag("text", html.escape(line), x=at, y=top + _LINE * k, text_anchor=anchor, class_="node")
        for k, line in enumerate(lines)
    )


def _ribbon(x0: float, x1: float, start: float, end: float, high: float) -> str:
    bend = (x1 - x0) * 0.45
    return (
        f"M{x0:.1f},{start:.1f}C{x0 + bend:.1f},{start:.1f} {x1 - bend:.1f},{end:.1f} "
        f"{x1:.1f},{end:.1f}V{end + high:.1f}C{x1 - bend:.1f},{end + high:.1f} "
        f"{x0 + bend:.1f},{start + high:.1f} {x0:.1f},{start + high:.1f}Z"
    )


# --- sunburst -----------------------------------------------------------------------------


def sunburst(table: pd.DataFrame, colours: Mapping[str, str]) -> str:
    """`treatment_paths` as rings: the first line inside, each continuation outside its path."""
    ring = (_WIDTH / 2 - 4) / (int(table["line"].max()) + 0.6)  # as wide in all panels

    def draw(part: pd.DataFrame) -> tuple[str, list[str], float]:
        used: dict[str, float] = {}  # how far the arc of a path is taken by its continuations
        slices = []
        for one in _without_slivers(part):
            turn, parent = one["share"], one["parent"]
            start = used.setdefault(parent, 0.0)
            used[parent] += turn
            used[one["path"]] = start
            inner = ring * (one["line"] - 0.4)
            slices.append(
                _tag(
                    "path",
                    d=_arc(_WIDTH / 2, _WIDTH / 2, inner, inner + ring, start, turn),
                    fill=colours.get(one["state"], MISSING),
                    class_="mark slice",
                    data_state=one["state"],
                    data_more=f"{one['path']}, {_patients(one['count'], turn)}",
                )
            )
        return _size(part), slices, _WIDTH

    return _panels(table, draw)


def _without_slivers(part: pd.DataFrame) -> list[dict[Any, Any]]:
    """The paths of a panel; of those too small to see, the continuations of one path are one."""
    small = part["share"] < SLIVER
    several = part["parent"].where(small).map(part.loc[small, "parent"].value_counts()) > 1
    paths, left_out = [], set()
    for one, merged in zip(part.to_dict("records"), several, strict=True):
        if one["parent"] in left_out:
            left_out.add(one["path"])
        elif merged:
            left_out.add(one["path"])
            rest = part[several & (part["parent"] == one["parent"])]
            if one["path"] == rest["path"].iloc[-1]:
                name = f"{len(rest)} rarer paths"
                path = f"{one['parent']} → {name}" if one["parent"] else name
                sums = rest[["count", "share"]].sum(min_count=1).to_dict()
                paths.append(one | {"path": path, "state": None, **sums})
        else:
            paths.append(one)
    return paths


def _arc(x: float, y: float, inner: float, outer: float, start: float, turn: float) -> str:
    """The outline of a ring's part; angles are shares of a turn, from the top clockwise."""
    turn = min(turn, 0.999)  # a whole ring would begin where it ends
    a, b = (2 * math.pi * value - math.pi / 2 for value in (start, start + turn))
    large = int(turn > 0.5)

    def at(radius: float, angle: float) -> str:
        return f"{x + radius * math.cos(angle):.1f},{y + radius * math.sin(angle):.1f}"

    return (
        f"M{at(outer, a)}A{outer:.1f},{outer:.1f} 0 {large} 1 {at(outer, b)}"
        f"L{at(inner, b)}A{inner:.1f},{inner:.1f} 0 {large} 0 {at(inner, a)}Z"
    )
