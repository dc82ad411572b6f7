"""The parts of a site's results: one line for each, and the specification of all tables."""

from __future__ import annotations

from mmlca.study.results import (
    about,
    certainty,
    courses,
    effects,
    fit,
    inference,
    labs,
    models,
    overlaps,
    steps,
    survival,
    table_one,
)
from mmlca.study.results.part import Columns, Part

PARTS: tuple[Part, ...] = (
    about.PART,
    certainty.PART,
    overlaps.PART,
    steps.PART,
    courses.PART,
    table_one.PART,
    models.PART,
    inference.PART,
    fit.PART,
    effects.PART,
    survival.PART,
    labs.PART,
)

TABLES: dict[str, Columns] = {
    name: columns for part in PARTS for name, columns in part.tables.items()
}

FOR_HEADLINE: tuple[Part, ...] = (
    about.PART,
    certainty.PART,
    overlaps.PART,
    steps.PART,
)
"""The parts that the headline numbers need."""
