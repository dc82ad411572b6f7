"""The results of sites: their tables have the columns that the specification says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mmlca.sequences.type import Sequences
from mmlca.study.results.registry import PARTS, TABLES
from mmlca.study.results.site import Column, SiteResults, stacked, typed


def test_no_two_parts_make_a_table_of_the_same_name() -> None:
    assert len(TABLES) == sum(len(part.tables) for part in PARTS)


def test_every_column_says_what_it_is() -> None:
    for name, columns in TABLES.items():
        assert all(column.meaning for column in columns.values()), name


def test_a_table_gets_its_types_also_if_it_is_empty_or_lacks_values() -> None:
    columns = {"a": Column("text", "…"), "n": Column("count", "…"), "yes": Column("flag", "…")}
    table = pd.DataFrame({"yes": [True, False], "a": ["x", np.nan], "n": [1, None]})
    frame = typed(table, columns)
    assert list(frame) == ["a", "n", "yes"]
    assert frame["a"].tolist() == ["x", None]
    assert frame.dtypes[["n", "yes"]].tolist() == [np.dtype(float), np.dtype(bool)]
    assert len(typed(table.iloc[:0], columns)) == 0


def test_tables_of_sites_are_stacked_in_the_order_of_the_sites() -> None:
    tables = {name: typed(pd.DataFrame(columns=list(c)), c) for name, c in TABLES.items()}
    states = {site: pd.DataFrame({"state": [site.lower()], "final": [False]}) for site in "BA"}
    results = {
        site: SiteResults(site, 1, tables | {"states": part}) for site, part in states.items()
    }
    table = stacked(results, "states")
    assert table.to_numpy().tolist() == [["B", "b", False], ["A", "a", False]]
    assert stacked(results, "times").empty


@pytest.mark.parametrize("name", ["states", "times"])
def test_states_and_windows_keep_their_order(name: str) -> None:
    from mmlca.study.results.about import DATA
    from mmlca.study.results.site import SitePatients

    data = Sequences.from_lists([["b", "a"], ["a"]], states=["b", "a"])
    patients = SitePatients("A", data, {}, pd.DataFrame(), pd.DataFrame())
    study: Any = SimpleNamespace(sites={"A": SimpleNamespace(labs=None)})
    table = DATA.results(study, patients)[name]
    assert table.iloc[:, 0].tolist() == (["b", "a"] if name == "states" else ["1", "2"])
