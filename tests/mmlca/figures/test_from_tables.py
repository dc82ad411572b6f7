"""Figures drawn from tables alone are those drawn from the sequences, pixel for pixel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from released import courses_by_group

import mmlca
from mmlca import Sequences
from mmlca.tables.describe import frequency_spells
from mmlca.tables.groups import group_infos
from mmlca.tables.representatives import representative_spells

mpl.use("Agg")

NAMES = ("state_distribution", "transitions", "lines", "frequencies", "representatives")


def courses(n: int, states: list[str], n_times: int, seed: int, **more: Any) -> Sequences:
    """Courses that many patients share, with unknown states and different lengths."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(rng.choice(len(states), n, p=[0.6, 0.3, 0.1])[:, None], n_times, axis=1)
    codes[rng.random(n) < 0.3, n_times // 2 :] = len(states) - 1
    codes[rng.random(n) < 0.1, 1] = -1
    codes[rng.random(n) < 0.2, -1] = -1
    return Sequences.from_codes(codes, states, **more)


DATA = {
    "north": courses(300, ["TNFi", "JAK", "dead"], 6, 1).absorb("dead"),
    "south": courses(200, ["JAK", "IL6R", "dead"], 8, 2),
}
GROUPS = {
    site: pd.Series(np.where(np.arange(len(data)) < 8, "few", "abc"), data.ids).mask(
        np.arange(len(data)) % 3 == 0, "other"
    )
    for site, data in DATA.items()
}
WEIGHTED = courses(300, ["TNFi", "JAK", "dead"], 6, 3, weights=np.arange(300) % 3 / 2)
CASES: dict[str, tuple[Any, Any]] = {
    "sites and groups": (DATA, GROUPS),
    "everyone": (DATA["north"], None),
    "weights": (WEIGHTED, np.arange(300) % 2),
}


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def pixels(name: str, *arguments: Any, **options: Any) -> bytes:
    whole = getattr(mmlca, f"plot_{name}")(*arguments, **options)
    figure = whole if hasattr(whole, "savefig") else whole.figure
    figure.set_layout_engine("none")  # takes most of the time, and follows from what is drawn
    figure.canvas.draw()
    return bytes(figure.canvas.buffer_rgba())


def tables(name: str, sequences: Any, groups: Any, min_count: int) -> dict[str, pd.DataFrame]:
    """The arguments `table` and `spells` of a figure, as a caller computes them."""
    if name == "frequencies":
        least = max(5, min_count)
        return {
            "table": mmlca.sequence_frequencies(sequences, groups, 30, min_count=least),
            "spells": frequency_spells(sequences, groups, 30, min_count=least),
        }
    if name == "representatives":
        return {
            "table": mmlca.representative_sequences(sequences, groups, min_count=min_count),
            "spells": representative_spells(sequences, groups, min_count=min_count),
        }
    if name == "lines":
        return {"table": mmlca.treatment_paths(sequences, groups, min_count=min_count)}
    if name == "transitions":
        return {"table": mmlca.transition_counts(sequences, groups)}
    return {"table": mmlca.state_distribution(sequences, groups)}


@pytest.mark.parametrize("min_count", [0, 11])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_tables_alone_give_the_figure_of_the_sequences(
    name: str, case: str, min_count: int
) -> None:
    sequences, groups = CASES[case]
    infos, given = group_infos(sequences, groups), tables(name, sequences, groups, min_count)
    own = pixels(name, sequences, groups, min_count=min_count)
    assert pixels(name, infos, **given, min_count=min_count) == own


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_tables_of_a_release_alone_give_the_figure_of_the_sequences(
    name: str, public: bool
) -> None:
    """With the sizes that a release shows, exact or rounded."""
    release = courses_by_group(DATA, GROUPS, 11, b"secret" if public else None)
    every: dict[str, dict[str, pd.DataFrame]] = {
        "state_distribution": {"table": release.tables.distribution},
        "transitions": {"table": release.tables.transitions},
        "lines": {"table": release.tables.paths},
        "frequencies": {"table": release.frequencies, "spells": release.spells["frequent"]},
        "representatives": {
            "table": release.representatives,
            "spells": release.spells["representative"],
        },
    }
    given = {
        argument: table[table["site"].isin(list(DATA))] for argument, table in every[name].items()
    }
    if public and name != "lines":
        assert "patients" not in given["table"]
    own = pixels(name, DATA, GROUPS, **given, min_count=11)
    assert pixels(name, group_infos(DATA, GROUPS), **given, min_count=11) == own


def test_the_spells_of_courses_are_those_of_the_texts() -> None:
    s = Sequences.from_lists([["A", "A", None, "B"]] * 3 + [["B", "B"]] * 2 + [["A"]])
    spells = frequency_spells(s)
    spells["state"] = spells["state"].where(spells["state"].notna(), "?")
    assert spells.to_numpy().tolist() == [
        [1, "A", 2], [1, "?", 1], [1, "B", 1], [2, "B", 2], [3, "A", 1],
    ]  # fmt: skip
    texts = (spells["state"] + "×" + spells["windows"].astype(str)).groupby(spells["rank"])
    table = mmlca.sequence_frequencies(s)
    assert texts.agg(" → ".join).tolist() == table["sequence"].tolist()
    two = representative_spells(s, n=2, shared_by=2)
    assert two["windows"].tolist() == [2, 1, 1, 2]


def test_infos_count_patients_of_positive_weight() -> None:
    (info,) = group_infos({"x": WEIGHTED})
    assert info.keys == {"site": "x"}
    assert (info.n, info.weight) == (200, WEIGHTED.weights.sum())
    assert (info.states, info.times) == (WEIGHTED.states, WEIGHTED.times)
    assert group_infos(DATA)[0].absorbing == ("dead",)


@pytest.mark.parametrize("name", NAMES)
def test_infos_without_a_table_or_with_groups_get_one_sentence(name: str) -> None:
    plot, infos = getattr(mmlca, f"plot_{name}"), group_infos(DATA, GROUPS)
    given = tables(name, DATA, GROUPS, 0)
    with pytest.raises(mmlca.InputError, match=r"no patients to compute a table from; give it as"):
        plot(infos)
    with pytest.raises(mmlca.InputError, match=r"already names the groups; leave out groups\.$"):
        plot(infos, GROUPS, **given)
    with pytest.raises(TypeError, match="a list in their place must hold GroupInfo objects"):
        plot([DATA["north"]], **given)


@pytest.mark.parametrize("name", ["index", "time_in_state", "entropy"])
def test_figures_of_patients_need_them(name: str) -> None:
    with pytest.raises(TypeError, match="found list where sequences are needed"):
        getattr(mmlca, f"plot_{name}")(group_infos(DATA))


@pytest.mark.parametrize("name", ["frequencies", "representatives"])
def test_tables_of_courses_that_do_not_belong_together_are_refused(name: str) -> None:
    plot, infos = getattr(mmlca, f"plot_{name}"), group_infos(DATA, GROUPS)
    given = tables(name, DATA, GROUPS, 0)
    table, spells = given["table"], given["spells"]
    with pytest.raises(mmlca.InputError, match="table= was given without spells=; give both"):
        plot(DATA, GROUPS, table=table)
    with pytest.raises(mmlca.InputError, match="spells= was given without table=; give both"):
        plot(infos, spells=spells)
    for wrong in (
        {"table": table, "spells": spells[spells["rank"] != 2]},
        {"table": table[table["rank"] != 1], "spells": spells},
    ):
        with pytest.raises(mmlca.InputError, match="ranks of the courses must be 1 to"):
            plot(infos, **wrong)
    with pytest.raises(mmlca.InputError, match="the spells have the states 'X', which the pat"):
        plot(infos, table=table, spells=spells.replace({"state": {"JAK": "X"}}))
    with pytest.raises(mmlca.InputError, match=r"the table has a column 'site', expected none; gi"):
        plot(group_infos(DATA["north"]), **given)


def test_courses_of_few_patients_in_a_table_are_not_drawn() -> None:
    """A table made without a threshold would show them."""
    given = tables("frequencies", DATA["north"], None, 0)
    with pytest.raises(mmlca.InputError, match="courses of fewer than 11 patients, which the fig"):
        mmlca.plot_frequencies(DATA["north"], **given, min_count=11)


@pytest.mark.parametrize("name", ["state_distribution", "transitions"])
def test_exact_tables_without_numbers_of_patients_are_refused(name: str) -> None:
    table = tables(name, DATA, None, 0)["table"].drop(columns="patients")
    with pytest.raises(mmlca.InputError, match="the table has no column 'patients'; it has"):
        getattr(mmlca, f"plot_{name}")(DATA, table=table)
