"""Files beside the page: pictures of figures, and a Word document (extra `docx`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mmlca.tables.table_one import TableOne


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


def to_docx(title: str, table: TableOne, methods: str) -> bytes:
    """A document with Table 1, its notes and the methods, for co-authors to edit.

    Raises
    ------
    ImportError
        If python-docx is not installed.
    """
    try:
        from docx import Document
        from docx.enum.section import WD_ORIENT
        from docx.shared import Pt
    except ImportError:
        raise ImportError(
            "a Word document needs python-docx; install it with pip install 'mmlca[docx]', or "
            'take "docx" out of outputs.formats.'
        ) from None
    document = Document()
    page = document.sections[0]
    page.orientation = WD_ORIENT.LANDSCAPE
    page.page_width, page.page_height = page.page_height, page.page_width
    document.add_heading(title, level=1)
    document.add_heading("Table 1", level=2)
    lines = table.lines()
    grid = document.add_table(rows=1, cols=lines.shape[1], style="Light List")
    for row, values in enumerate([list(lines.columns), *lines.to_numpy().tolist()]):
        cells = (grid.rows[0] if row == 0 else grid.add_row()).cells
        for cell, value in zip(cells, values, strict=True):
            cell.text = str(value)
            for run in cell.paragraphs[0].runs:
                run.font.size = Pt(8)
    for note in table.notes:
        document.add_paragraph(note)
    document.add_heading("Methods", level=2)
    for paragraph in methods.split("\n\n"):
        document.add_paragraph(paragraph)
    buffer = BytesIO()
    document.save(buffer)
    return buffer.getvalue()
