"""What the page shows: the items of the report, and the report as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mmlca.study.cache import plain_records
from mmlca.study.headline import Number, numbers_table
from mmlca.study.report.tables import Layout, Plain


@dataclass(frozen=True, eq=False)
class Item:
    """One table or figure of the report.

    Parameters
    ----------
    name : str
        Of its files, without folder and ending.
    title, caption : str
    table : DataFrame
        What is written to the CSV file; small numbers are hidden in it.
    layout : Layout
        How the page shows the table.
    draw : function, optional
        Draws the figure and returns a Figure or an Axes; None for a table alone.
    alt : str
        The figure in words, for those who do not see it.
    view : "ensemble", "local", "refined" or None
        The membership it shows, where the report can switch between several.
    note : str
        What is hidden or rounded; it ends the caption.
    section : str
        The key of its section; the registry of sections fills it in.
    """

    name: str
    title: str
    caption: str
    table: pd.DataFrame
    layout: Layout = Plain()  # noqa: RUF009 (frozen)
    draw: Callable[[], Any] | None = None
    alt: str = ""
    view: str | None = None
    note: str = ""
    section: str = ""

    @property
    def data_file(self) -> str:
        return f"{'tables' if self.draw is None else 'figures'}/{self.name}.csv"

    @property
    def picture_file(self) -> str:
        return f"figures/{self.name}.png"

    def plain(self, pictured: bool) -> dict[str, Any]:
        """What `results.json` says about it."""
        text = {"section": self.section, "title": self.title, "caption": self.caption}
        if not pictured:
            return {**text, "kind": "table", "file": self.data_file, "view": self.view}
        files = {"file": self.picture_file, "data": self.data_file}
        return {**text, "kind": "figure", **files, "alt": self.alt, "view": self.view}


@dataclass(frozen=True, eq=False)
class Report:
    """Everything that the page shows, before it is rendered.

    `groups` is "clusters" or "classes"; without `figures` the figures' tables are shown instead.
    `results` and `diagnostics` are the titles of sections by key: those that answer clinical
    questions, and those that follow cautions and methods.
    """

    study: str
    synthetic: bool
    sites: list[str]
    n_clusters: int
    states: list[str]
    views: list[str | None]
    min_count: int
    release: str
    statement: str
    published: str | None
    groups: str
    figures: bool
    summary: list[str]
    methods: str
    careful: list[str]
    numbers: list[Number]
    items: list[Item]
    results: dict[str, str]
    diagnostics: dict[str, str]

    def pictured(self, item: Item) -> bool:
        """Whether an item is shown as a figure."""
        return self.figures and item.draw is not None

    def sections(self) -> Iterator[tuple[str, str, list[Item]]]:
        """The sections that have items: key, title and items."""
        for name, title in {**self.results, **self.diagnostics}.items():
            items = [item for item in self.items if item.section == name]
            if items:
                yield name, title.replace("Clusters", self.groups.capitalize()), items

    def plain(self) -> dict[str, Any]:
        """The content of `results.json`."""
        apart = ("items", "groups", "figures", "results", "diagnostics")
        return {k: v for k, v in vars(self).items() if k not in apart} | {
            "numbers": plain_records(numbers_table(self.numbers)),
            "sections": [
                {
                    "id": name,
                    "title": title,
                    "items": [item.plain(self.pictured(item)) for item in items],
                }
                for name, title, items in self.sections()
            ],
        }
