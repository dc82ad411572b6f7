"""The settings of tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from font.settings import Settings, setting
from mmlca.model.settings import Columns, Text


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
