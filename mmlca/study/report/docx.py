"""Table 1 and the methods as a Word document (extra `docx`)."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmlca.tables.table_one import TableOne


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
