"""Norms of the differences between sites in words, with what they do and do not show."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mmlca.sequences.checks import listed
from mmlca.tables.norms import KINDS

_KIND_NAMES = ("transitions", "transitions by occupancy", "first states")


def summary_of_pair(norms: pd.DataFrame) -> str:
    """The norms of one pair of sites, what the ensemble's are lower than, and the cautions."""
    pair = norms["sites"].iloc[0]
    lines = [f"Differences between the sites, {pair}: norms averaged over clusters."]
    if norms["low"].notna().any():
        lines[0] += (
            " In brackets: without what sampling adds, with its 95 % interval, as if the clusters "
            "were known. Whether the sites differ is tested by shared_chain_test."
        )
    for name, rows in norms.groupby("membership", sort=False):
        texts = [
            f"{_KIND_NAMES[i]} {_norm_text(row)}" for i, (_, row) in enumerate(rows.iterrows())
        ]
        lines.append(f"  {name}: {'; '.join(texts)}")
    for i in range(2):
        lines += _ensemble_against_others(norms.iloc[i :: len(KINDS)], _KIND_NAMES[i])
    return "\n".join([*lines, *cautions_of_pairs([norms])])


def cautions_of_pairs(pairs: list[pd.DataFrame]) -> list[str]:
    """Two sentences about the norms of all pairs of sites."""
    left_out = sorted({int(norms["rows_left_out"].iloc[0]) for norms in pairs})
    number = " to ".join(map(str, sorted({left_out[0], left_out[-1]})))
    noun, verb = ("row", "is") if left_out == [1] else ("rows", "are")
    each = " of each pair" if len(pairs) > 1 else ""
    rounded = any((norms["rounding"] > 0).any() for norms in pairs)
    who = "few patients leave" if rounded else "nobody leaves"
    rows = (
        f"; {number} {noun} (cluster and state) that {who} at one of the sites{each} {verb} not in "
        "the ensemble's"
    )
    return [
        _about_common_rules(pairs),
        f"The plain norm is dominated by rarely visited states{rows if left_out[-1] else ''}.",
    ]


def _norm_text(row: pd.Series) -> str:
    if np.isnan(row["low"]):
        return "not known" if np.isnan(row["norm"]) else f"{row['norm']:.3f}"
    return f"{row['norm']:.3f} [{row['debiased']:.3f}, {row['low']:.3f} to {row['high']:.3f}]"


def p_text(p_value: float, n_boot: int) -> str:
    """A p-value by simulation in words; the smallest possible one is an upper bound.

    Examples
    --------
    >>> p_text(0.3756, 1000), p_text(1 / 1001, 1000)
    ('p = 0.38', 'p ≤ 0.001')
    """
    smallest = 1 / (n_boot + 1)
    return f"p ≤ {smallest:.1g}" if p_value <= smallest else f"p = {p_value:.2g}"


def _ensemble_against_others(rows: pd.DataFrame, kind: str) -> list[str]:
    """What the ensemble's norm is lower and not lower than."""
    own, others = rows["norm"].iloc[0], rows.iloc[1:].dropna(subset="norm")
    if np.isnan(own):
        return []
    lower = others.loc[own < others["norm"], "membership"].to_list()
    not_lower = others.loc[~(own < others["norm"]), "membership"].to_list()
    parts = [f"less than with {listed(lower)} (as a common rule often makes them)"] if lower else []
    parts += [f"no less than with {listed(not_lower)}"] if not_lower else []
    return [f"With the ensemble, {kind} differ {'; '.join(parts)}."] if parts else []


_MOST_PAIRS = 3


def _about_common_rules(pairs: list[pd.DataFrame]) -> str:
    text = "A common rule often lowers the difference, because it divides the sites in the same way"
    shown, holds = list[str](), True
    for norms in pairs:
        norm = norms.iloc[:: len(KINDS)].set_index("membership")["norm"]
        everywhere = norm[norm.index.str.endswith(" everywhere")]
        if "local" in norm.index and len(everywhere):
            values = listed([f"{name} {value:.3f}" for name, value in everywhere.items()])
            pair = f"{norms['sites'].iloc[0]}: " if len(pairs) > 1 else ""
            shown.append(f"{pair}{values}, local {norm['local']:.3f}")
            holds = holds and bool((everywhere < norm["local"]).all())
    text += "" if holds else ", though not every one does"
    if shown:
        more = f"; and {len(shown) - _MOST_PAIRS} more pairs" if len(shown) > _MOST_PAIRS else ""
        text += f" (here {'; '.join(shown[:_MOST_PAIRS])}{more})"
    return f"{text}; a lower norm alone does not show that the clusters are better."
