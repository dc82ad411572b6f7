"""Counts of a public release: right on average, drawn once, and of no help to an attack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from released import courses_by_group
from study_attack import System, count_of

import ehr_prep
import mmlca
from mmlca.tables.disclosure import Rounding, is_small

M = 11
SECRET = b"s" * 32


def one_group(n: int, name: Any = 1, site: str = "x") -> Rounding:
    return Rounding(SECRET, M, {site: pd.Series(name, [f"p{i}" for i in range(n)])})


@given(st.integers(0, 500), st.binary(min_size=1, max_size=8))
def test_a_count_becomes_one_of_the_multiples_beside_it(count: int, secret: bytes) -> None:
    rounding = Rounding(secret, M, {"x": pd.Series(1, range(30))})
    shown, u = rounding(count, "x", 1), rounding.uniform(rounding.key("x", 1))
    assert shown == np.floor((count + u * M) / M) * M
    assert abs(shown - count) < M
    assert count % M or shown == count


def test_rounding_is_right_on_average() -> None:
    ids, n = pd.Series(1, range(12)), 2000
    drawn = [Rounding(i.to_bytes(2), M, {"x": ids})(3, "x", 1) for i in range(n)]
    assert abs(np.mean(drawn) - 3) < 4 * M * np.sqrt(3 / 11 * 8 / 11 / n)


def test_a_unit_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="min_count must be at least 2 to round to it, found 1"):
        Rounding(SECRET, 1, {})


# --- names ------------------------------------------------------------------------------------


def test_neither_labels_nor_sites_nor_order_draw_again() -> None:
    """Two roundings of the same patients could be averaged: "RA", "ra ", "MGB2" …"""
    plain = one_group(70)
    others = [one_group(70, "2: TNFi persisters"), one_group(70, 1, "MGB2"), one_group(70, 0)]
    shuffled = pd.Series("a", [f"p{i}" for i in reversed(range(70))])
    others.append(Rounding(SECRET, M, {"x": shuffled}))
    assert {other.key() for other in others} == {plain.key()}
    assert Rounding(b"t" * 32, M, {"x": shuffled}).key() != plain.key()


def test_another_name_of_a_group_or_a_state_gives_the_same_tables() -> None:
    states = np.random.default_rng(1).choice(["A", "B", "C"], (200, 5))
    renamed = np.where(states == "B", "anti-B", states)
    tables = []
    for rows, group in ((states, "1: A persisters"), (renamed, "own class 1: differs")):
        data = {"x": mmlca.Sequences.from_lists(rows.tolist())}
        groups = {"x": pd.Series(group, index=data["x"].ids)}
        table = courses_by_group(data, groups, M, SECRET).tables.distribution
        state = table["state"].astype(str).str.removeprefix("anti-")
        tables.append(
            dict(zip(zip(table["time"], state, strict=True), table["count"], strict=True))
        )
    assert tables[0] == tables[1]


def test_one_patient_fewer_draws_again_in_one_run_of_as_many_as_there_are_patients() -> None:
    ids = [f"p{i}" for i in range(60)]
    whole = Rounding(SECRET, M, {"x": pd.Series(1, ids)}).key("x", 1)
    changed = sum(
        Rounding(SECRET, M, {"x": pd.Series(1, ids).drop(one)}).key("x", 1) != whole for one in ids
    )
    assert changed == 1


def quarters(n_small: int, n_times: int) -> pd.DataFrame:
    """Shown numbers in a state that `n_small` of 80 patients never leave."""
    rows = [["B"] * n_times] * n_small + [["A"] * n_times] * (80 - n_small)
    data = {"x": mmlca.Sequences.from_lists(rows)}
    groups = {"x": pd.Series(1, index=data["x"].ids)}
    table = courses_by_group(data, groups, M, SECRET).tables.shown("distribution")
    return table[table["state"] == "B"]


@pytest.mark.parametrize("n_times", [16, 40])
def test_a_small_group_that_does_not_change_is_shown_alike_in_all_quarters(n_times: int) -> None:
    """Draws by quarter revealed it exactly in 42 % of cases after 16, and in 62 % after 40."""
    for n_small in range(1, 11):
        assert quarters(n_small, n_times)["count"].nunique() == 1


N_ALL = 80
Cells = dict[tuple[str, ...], float]


def course_cells(n_small: int, n_times: int, secret: bytes | None) -> Cells:
    """All counts of the tables of courses where `n_small` of 80 patients are in B, always.

    Steps are given as patients: who stays makes one less than there are times.
    """
    rows = [["B"] * n_times] * n_small + [["A"] * n_times] * (N_ALL - n_small)
    data = {"x": mmlca.Sequences.from_lists(rows, states=["A", "B"])}
    groups = {"x": pd.Series(1, index=data["x"].ids)}
    tables = courses_by_group(data, groups, M, secret).tables
    cells: Cells = {}
    for row in tables.distribution.itertuples(index=False):
        cells["n", str(row.time)] = row.n
        cells["state", str(row.state), str(row.time)] = row.count
    steps = tables.transitions.rename(columns={"from": "before"})
    for row in steps.itertuples(index=False):
        each = n_times - 1 if row.count > M else 1
        n = row.patients if secret is None else row.count / each
        cells["step", str(row.before), str(row.to)] = n
    return cells


def likelihood(shown: Cells, exact: Cells, n_small: int, by_time: bool) -> float:
    """The probability of everything that is shown, if these were the true numbers.

    Counts of a draw must all be rounded as they are by one number u. The draw of the whole group
    is that of the part with the smallest hash: of B with the probability n/80. With `by_time` the
    rule is the one that was: a draw for each quarter.
    """
    ranges: dict[tuple[str, ...], tuple[float, float]] = {}
    for cell, value in shown.items():
        low, high = (value - exact[cell]) / M, (value - exact[cell]) / M + 1
        draw = cell if by_time else cell[: 1 + (cell[0] == "state")]
        if cell[0] == "step":  # of those who are in the state
            draw = ("state", cell[1]) if cell[1] == cell[2] else cell
        before = ranges.get(draw, (0.0, 1.0))
        ranges[draw] = max(low, before[0]), min(high, before[1])

    def width(*draws: tuple[str, ...]) -> float:
        low, high = (f(ranges[d][i] for d in draws) for i, f in enumerate((max, min)))
        return max(high - low, 0.0)

    if by_time:
        return float(np.prod([width(draw) for draw in ranges]))
    a, b, everyone = ("state", "A"), ("state", "B"), ("n",)
    others = np.prod([width(draw) for draw in ranges if draw not in (a, b, everyone)])
    of_b = n_small / N_ALL
    return float(
        others * (of_b * width(b, everyone) * width(a) + (1 - of_b) * width(a, everyone) * width(b))
    )


def shares_read_exactly(n_times: int, by_time: bool, trials: int) -> float:
    """How often the likeliest of 1 to 10 is the number of those who are in B."""
    rng, right = np.random.default_rng(1), []
    exact = {n: course_cells(n, n_times, None) for n in range(1, M)}
    for n in np.tile(np.arange(1, M), trials):
        if by_time:
            shown = {
                cell: M * np.floor(count / M + rng.random())
                for cell, count in exact[n].items()
                if cell[0] != "step"
            }
        else:
            shown = course_cells(int(n), n_times, rng.bytes(32))
        chances = [likelihood(shown, exact[k], k, by_time) for k in range(1, M)]
        best = np.flatnonzero(np.isclose(np.divide(chances, max(chances)), 1))
        right.append(np.mean([k + 1 == n for k in best]))
    return float(np.mean(right))


@pytest.mark.slow
@pytest.mark.parametrize(("n_times", "before"), [(16, 0.4), (40, 0.6)])
def test_the_likelihood_of_all_quarters_and_steps_reveals_no_more_than_one_count(
    n_times: int, before: float
) -> None:
    """The best guess from one count is right in 2 of 11 cases; draws by quarter gave it away."""
    assert shares_read_exactly(n_times, by_time=True, trials=40) > before
    assert shares_read_exactly(n_times, by_time=False, trials=20) < 0.25


def reruns(n_small: int, secret: bytes, rng: np.random.Generator) -> list[tuple[float, int]]:
    """What 13 nearly identical runs show of a small count, and whom of 120 patients each lacks.

    Each has other names of the site and the group; names are no part of a draw.
    """
    shown = []
    for run in range(13):
        lacking = int(rng.integers(120))
        site, group = ("MGB", "mgb", "MGB2", "mgb ")[run % 4], f"{run}: RA{' ' * run}"
        few = pd.Series(group, range(n_small)).drop(lacking, errors="ignore")
        shown.append((Rounding(secret, M, {site: few})(len(few), site, group), lacking))
    return shown


def chance_of_reruns(runs: list[tuple[float, int]], n_small: int, n: int, fresh: bool) -> float:
    """The probability of what the runs show, if the small group had n patients instead of its own.

    A reader is taken to know who is lacking in each run, and whether they are of the group. All
    runs with the patient of the smallest hash share a draw; whoever is lacking may be that patient.
    """

    def width(some: list[tuple[float, int]]) -> float:
        counts = [(value, n - (lacking < n_small)) for value, lacking in some]
        low = max([0.0, *((value - c) / M for value, c in counts)])
        return max(min([1.0, *((value - c) / M + 1 for value, c in counts)]) - low, 0.0)

    if fresh:
        return float(np.prod([width([run]) for run in runs]))
    suspects = {lacking for _, lacking in runs if lacking < n_small}
    chance = max(n - len(suspects), 0) / n * width(runs)
    for one in suspects:
        parts = [[run for run in runs if (run[1] == one) == is_in] for is_in in (True, False)]
        chance += width(parts[0]) * width(parts[1]) / n
    return chance


def errors_of_reruns(fresh: bool, trials: int) -> tuple[float, float, float]:
    """Mean errors of one count, of its mean over all runs, and of the likeliest number.

    With `fresh` every run draws anew, as it once did.
    """
    rng, errors = np.random.default_rng(2), []
    for trial in range(trials):
        n = 1 + trial % 10
        runs = reruns(n, rng.bytes(32), rng)
        if fresh:
            counts = [n - (lacking < n) for _, lacking in runs]
            drawn = [M * np.floor(c / M + rng.random()) for c in counts]
            runs = [(value, lacking) for value, (_, lacking) in zip(drawn, runs, strict=True)]
        chances = [chance_of_reruns(runs, n, k, fresh) for k in range(1, M)]
        likely = np.average(np.arange(1, M), weights=chances)
        averaged = np.mean([value for value, _ in runs])
        errors.append((abs(runs[0][0] - n), abs(averaged - n), abs(likely - n)))
    one, averaged, likely = np.mean(errors, axis=0)
    return float(one), float(averaged), float(likely)


def test_the_likelihood_of_13_reruns_reveals_no_more_than_that_of_one() -> None:
    """The best use of one count is about 2 off on average; 13 fresh draws brought that to 1."""
    one, averaged, likely = errors_of_reruns(fresh=True, trials=500)
    assert one > 3.2
    assert averaged < 1.4
    assert likely < 1.2
    one, averaged, likely = errors_of_reruns(fresh=False, trials=500)
    assert averaged > 0.9 * one
    assert likely > 1.9


def test_averages_over_runs_that_differ_by_one_patient_reveal_no_more() -> None:
    """13 such runs once brought the error of a small count from 3.7 to 1.0."""
    rng, errors = np.random.default_rng(1), []
    for trial in range(100):
        n, shown = int(rng.integers(1, 11)), []
        for _ in range(13):  # without another one of 120 patients each
            few = pd.Series(1, range(n)).drop(rng.integers(120), errors="ignore")
            rounding = Rounding(bytes([trial]) * 8, M, {"x": few})
            shown.append(rounding(len(few), "x", 1))
        errors.append((shown[0] - n, np.mean(shown) - n))
    one, averaged = np.abs(errors).mean(axis=0)
    assert averaged > 0.9 * one


# --- sums -------------------------------------------------------------------------------------

PARTS = st.lists(st.integers(0, 25), min_size=2, max_size=5)


@given(PARTS, st.binary(min_size=1, max_size=8))
def test_a_total_never_reveals_that_all_its_parts_were_rounded_in_one_direction(
    parts: list[int], secret: bytes
) -> None:
    groups = pd.Series(np.repeat(np.arange(len(parts)), parts))
    rounding = Rounding(secret, M, {"x": groups})
    total = rounding(sum(parts), "x")
    shown = [rounding.part(n, rounding.key("x", k), total) for k, n in enumerate(parts)]
    assert all(abs(n - part) < M for n, part in zip(shown, parts, strict=True))
    assert max(shown) <= total
    assert abs(total - sum(shown)) <= M * (len(parts) - 1)


def people(seed: int) -> tuple[dict[str, pd.DataFrame], dict[str, pd.Series]]:
    """Three small sites with small levels, also of variables with two levels."""
    rng = np.random.default_rng(seed)
    tables, clusters = {}, {}
    for site, n in (("A", 90), ("B", 150), ("C", 60)):
        ids = [f"{site}{i}" for i in range(n)]
        clusters[site] = pd.Series(rng.choice(["1", "2", "3"], n, p=[0.6, 0.25, 0.15]), ids)
        tables[site] = pd.DataFrame(
            {
                "sex": rng.choice(["F", "M"], n, p=[0.8, 0.2]),
                "race": rng.choice(["a", "b", "c", "d"], n, p=[0.8, 0.1, 0.07, 0.03]),
            },
            index=ids,
        )
    return tables, clusters


def level_count(shown: pd.DataFrame, name: str, level: str, column: tuple[str, str]) -> float:
    """A count of a rounded Table 1, which does not name the levels of which it shows nobody."""
    row = (f"{name}, n (%)", level)
    return count_of(shown.at[row, column]) if row in shown.index else 0.0


def rounded_sizes(clusters: dict[str, pd.Series], rounding: Rounding) -> pd.DataFrame:
    """Sizes by site and cluster with totals, each rounded by itself: more than a report shows."""
    labels = pd.concat(clusters, names=["site"]).rename("cluster").reset_index()
    sizes = pd.crosstab(labels["site"], labels["cluster"], margins=True, margins_name="all")
    cells = [[rounding(sizes.at[s, k], s, k) for k in sizes] for s in sizes.index]
    return pd.DataFrame(cells, sizes.index, sizes.columns)


def table_one_attack(
    tables: dict[str, pd.DataFrame], clusters: dict[str, pd.Series], secret: bytes
) -> tuple[System, dict[tuple[str, ...], int]]:
    """What a rounded Table 1 and the sizes at all sites reveal, and its small counts."""
    rounding = Rounding(secret, M, clusters)
    shown = ehr_prep.table_one(tables, clusters, min_count=M, rounding=rounding).frame
    sizes, system = rounded_sizes(clusters, rounding), System()
    for site in sizes.index:
        for group in sizes:
            n = sizes.at[site, group]
            system.unknown(("n", site, group), n - M + 1, n + M - 1)
    sites, groups = list(clusters), [group for group in sizes if group != "all"]
    for site in [*sites, "all"]:
        system.add([("n", site, group) for group in groups], ("n", site, "all"))
    for group in [*groups, "all"]:
        system.add([("n", site, group) for site in sites], ("n", "all", group))
    small = {}
    for name in ("sex", "race"):
        levels = sorted({level for frame in tables.values() for level in frame[name]})
        for site in sites:
            for group in [*groups, "all"]:
                for level in levels:
                    n = level_count(shown, name, level, (site, group))
                    system.unknown((name, site, level, group), n - M + 1, n + M - 1)
                system.add([(name, site, level, group) for level in levels], ("n", site, group))
            for level in levels:
                parts = [(name, site, level, group) for group in groups]
                system.add(parts, (name, site, level, "all"))
            counts = pd.crosstab(tables[site][name], clusters[site])
            small |= {
                (name, site, level, group): counts.at[level, group]
                for level in counts.index
                for group in counts
                if is_small(counts.at[level, group], M)
            }
    return system, small


@pytest.mark.parametrize("seed", range(3))
def test_no_small_number_of_a_rounded_table_one_has_fewer_than_ten_values(seed: int) -> None:
    """With draws by name alone 1 of 80 had nine, and 1 of 500 fewer."""
    system, small = table_one_attack(*people(seed), bytes([seed]) * 32)
    assert len(small) > 10
    for name, n in small.items():
        low, high = system.range_of(name)
        assert low - 1e-6 <= n <= high + 1e-6
        assert high - low > M - 2 - 1e-6, name


def with_draws(
    system: System, tables: dict[str, pd.DataFrame], clusters: dict[str, pd.Series], secret: bytes
) -> None:
    """Add what a reader knows of the draws: all of a whole are one of those of its parts."""
    rounding = Rounding(secret, M, clusters)
    shown = ehr_prep.table_one(tables, clusters, min_count=M, rounding=rounding).frame
    sizes = rounded_sizes(clusters, rounding)
    sites, groups = list(clusters), [group for group in sizes if group != "all"]
    for site in sizes.index:
        for group in sizes:
            system.drawn(("n", site, group), sizes.at[site, group], ("n", site, group))
    for site in [*sites, "all"]:
        parts = [(("n", site, group), ("n", site, group)) for group in groups]
        system.one_of(("n", site, "all"), parts)
    for group in [*groups, "all"]:
        parts = [(("n", site, group), ("n", site, group)) for site in sites]
        system.one_of(("n", "all", group), parts)
    for name in ("sex", "race"):
        levels = sorted({level for frame in tables.values() for level in frame[name]})
        for site in sites:
            for group in [*groups, "all"]:
                names = [(name, site, level, group) for level in levels]
                for cell in names:
                    n = level_count(shown, name, cell[2], (site, group))
                    whole = [sizes.at[site, group]]
                    if group != "all":
                        whole.append(level_count(shown, name, cell[2], (site, "all")))
                    system.drawn(cell, n, cell, clipped=n in whole)
                system.one_of(("n", site, group), [(cell, cell) for cell in names])
            for level in levels:
                parts = [((name, site, level, g), (name, site, level, g)) for g in groups]
                if tables[site][name].eq(level).any():
                    system.one_of((name, site, level, "all"), parts)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whole_numbers_and_known_draws_leave_small_numbers_open(seed: int) -> None:
    """An integer programme of a reader who knows the rule by which draws are named."""
    tables, clusters = people(seed)
    secret = bytes([seed]) * 32
    system, small = table_one_attack(tables, clusters, secret)
    with_draws(system, tables, clusters, secret)
    for name, n in small.items():
        low, high = system.whole_range_of(name)
        assert low <= n <= high
        assert high - low >= M - 2, name


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_no_small_number_of_many_rounded_tables_has_fewer_than_ten_values(seed: int) -> None:
    system, small = table_one_attack(*people(100 + seed), bytes([7, seed]) * 16)
    widths = [high - low for low, high in map(system.range_of, small)]
    assert min(widths) > M - 2 - 1e-6


def test_a_rounded_table_one_shows_all_counts_and_no_mean_of_few() -> None:
    tables, clusters = people(5)
    for site, frame in tables.items():
        few = clusters[site].eq("3") & (clusters[site].eq("3").cumsum() > 5)
        frame["age"] = np.where(few, np.nan, 50.0 + np.arange(len(frame)) % 30)
    rounding = Rounding(SECRET, M, clusters)
    table = ehr_prep.table_one(tables, clusters, min_count=M, rounding=rounding)
    counts = table.frame.drop(index=("age, mean (SD)", ""))
    assert (counts.map(count_of) % M == 0).all(axis=None)
    assert (table.frame.xs("age, mean (SD)").xs("3", axis=1, level=1).loc[""] == "–").all()
    assert "rounded at random to multiples of 11" in table.notes[-1]
    sizes = rounded_sizes(clusters, rounding)
    for site, group in table.frame.columns:
        shown = count_of(table.frame.at[("patients, n (%)", ""), (site, group)])
        assert shown == sizes.at[site, group]
    exact = ehr_prep.table_one(tables, clusters, min_count=M, rounding=rounding, columns=["p"])
    assert set(exact.frame.xs("p", axis=1, level=1).to_numpy().ravel()) <= {
        "", "–", "<0.001", "<0.01", "<0.05", "≥0.05", "<0.01†", "<0.05†", "≥0.05†", "<0.001†",
    }  # fmt: skip
