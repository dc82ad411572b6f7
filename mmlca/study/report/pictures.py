"""Figures as files."""

from __future__ import annotations

from collections.abc import Callable, Collection
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pictures = dict[str, bytes]
"""The files of one figure by format."""


def to_pictures(draw: Callable[[], Any], dpi: int, formats: Collection[str] = ("png",)) -> Pictures:
    """The picture in each format; settings and open figures of a caller have no part in it."""
    import matplotlib.pyplot as plt

    look: dict[Any, Any] = {"text.parse_math": False, "svg.hashsalt": "mmlca"}
    look |= {"pdf.fonttype": 42}  # fonts that can be edited, which journals ask for
    look |= {"font.size": 7, "axes.titlesize": 7, "xtick.labelsize": 6, "ytick.labelsize": 6}
    about = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    pictures = {}
    with plt.style.context(["default", look]), plt.ioff():  # a state may be called "$x^$"
        drawn = draw()
        figure: Figure = drawn if hasattr(drawn, "savefig") else drawn.figure
        figure.set_dpi(dpi)
        _place(figure)
        for name in formats:
            buffer = BytesIO()
            figure.savefig(buffer, dpi=dpi, format=name, metadata=about[name])
            pictures[name] = buffer.getvalue()
        plt.close(figure)
    return pictures


def _place(figure: Figure) -> None:
    """Lay a figure out once and for all; else each saving draws it a second time to do so."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def draw_figure(draw: Callable[[], Any], dpi: int, formats: Collection[str]) -> Pictures:
    """The pictures of `to_pictures` and the one for the page."""
    pictures = to_pictures(draw, dpi, formats)
    return pictures | {"webp": for_page(pictures["png"])}


def for_page(content: bytes) -> bytes:
    """A PNG file as a WebP file of 96 colours without loss: enough for a figure, and small."""
    from PIL import Image

    buffer = BytesIO()
    with Image.open(BytesIO(content)) as picture:
        few = picture.convert("RGB").quantize(96, Image.Quantize.MAXCOVERAGE, kmeans=1)
        few.convert("RGB").save(buffer, "webp", lossless=True, quality=30, method=1)
    return buffer.getvalue()
