"""The colours of font's figures: one per cluster, in every figure, and of text on them.

They are those of the groups in mmlca's figures. Tol's colours can be told apart by people with
any kind of colour vision.
"""

from __future__ import annotations

INK, PALE, GRID, ACCENT = "#333333", "#BBBBBB", "#E6E6E6", "#D55E00"
CLUSTER_COLOURS = (
    *("#332288", "#999933", "#882255", "#33BBEE", "#661100", "#777777"),
    *("#DDCC77", "#117733", "#AA4499", "#44AA99", "#6699CC", "#CC6677"),
)


def cluster_colour(cluster: int) -> str:
    """The colour of a cluster (0 … K − 1); repeated after twelve."""
    return CLUSTER_COLOURS[cluster % len(CLUSTER_COLOURS)]


def text_on(colour: str) -> str:
    """Black or white, whichever can be read on the colour, by its luminance."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else "white"
