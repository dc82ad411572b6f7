"""The settings of tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from font.errors import InputError
from font.settings import Settings, setting
from mmlca.model.settings import Columns, Text

START, SITE = "index_year", "site"
"""Strata that are in no patients' table: the year of the first treatment, and the hospital."""


class TableOneSettings(Settings):
    """Table 1: its rows, and its columns beside those of the clusters."""

    variables: Columns | dict[Text, Text] | None = setting(
        None,
        "Columns of the patients' table, or labels by column; default: all but dates. Numbers with "
        "more than two values are continuous, everything else is a category.",
        example=["age", "sex", "race"],
    )
    columns: Annotated[tuple[Literal["all", "p", "smd"], ...], Field(strict=False)] = setting(
        ("all",),
        "Columns after those of the clusters: all patients; p: p-values (analysis of variance, or "
        "Kruskal–Wallis for medians; chi-squared for categories); smd: standardised mean "
        "difference, averaged over all pairs of clusters.",
    )
    continuous: Literal["mean", "median"] = setting(
        "mean", "Continuous variables: mean (SD), or median [quartiles]."
    )


class StrataSettings(Settings):
    """Medication, classes and Table 1 by sex, age group, calendar year or another column."""

    columns: Columns = setting(
        (),
        "Columns of the patients' tables; index_year: the year of the first treatment; site: the "
        "hospital.",
        example=["sex", "age", "index_year"],
    )
    cut_points: dict[Text, Annotated[tuple[float, ...], Field(min_length=1, strict=False)]] = (
        setting(
            {},
            "Where strata of numbers begin: [40, 65] gives below 40, 40 to below 65, 65 and over.",
            example={"age": [40, 65], "index_year": [2015]},
        )
    )

    @model_validator(mode="after")
    def _cut_points_of_columns(self) -> StrataSettings:
        twice = [name for name in dict.fromkeys(self.columns) if self.columns.count(name) > 1]
        if twice:
            raise InputError(f"has {twice[0]!r} twice in columns; name each only once")
        for name, points in self.cut_points.items():
            if name not in self.columns:
                raise InputError(f"has cut_points of {name!r}, which is not among its columns")
            if any(a >= b for a, b in zip(points, points[1:], strict=False)):
                raise InputError(f"has cut_points of {name!r} that do not increase")
        if SITE in self.cut_points:
            raise InputError("has cut_points of 'site', which is not a number")
        if any(year != round(year) for year in self.cut_points.get(START, ())):
            raise InputError("has cut_points of 'index_year' that are not whole years")
        return self
