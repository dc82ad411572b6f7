from __future__ import annotations

import itertools
import math
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mmlca.tables.settings import TableOneSettings
from mmlca.tables.table_one import table_one

PATIENTS = pd.DataFrame(
    {
        "age": [50.0, 60, 70, 41, np.nan, 30],
        "sex": ["F", "F", "M", "F", None, "M"],
        "diabetic": [True, False, False, False, True, False],
        "index_date": pd.to_datetime(["2010-01-01"] * 6),
    },
    index=pd.Index([1, 2, 3, 4, 5, 6], name="id"),
)
CLUSTERS = pd.Series([2, 2, 1, 1, 1], index=[5, 3, 1, 2, 4])


def cells(table: Any, column: Any) -> dict[tuple[str, str], str]:
    return table.to_frame()[column].to_dict()


def test_counts_means_categories_and_missing() -> None:
    table = table_one(PATIENTS, CLUSTERS)
    assert list(table.frame.columns) == ["1", "2", "all"]
    assert cells(table, "1") == {
        ("patients, n (%)", ""): "3 (60.0)",
        ("age, mean (SD)", ""): "50.3 (9.5)",
        ("age, mean (SD)", "missing"): "0 (0.0)",
        ("sex, n (%)", "F"): "3 (100.0)",
        ("sex, n (%)", "M"): "0 (0.0)",
        ("sex, n (%)", "missing"): "0 (0.0)",
        ("diabetic, n (%)", "False"): "2 (66.7)",
        ("diabetic, n (%)", "True"): "1 (33.3)",
    }
    assert cells(table, "2") == {
        ("patients, n (%)", ""): "2 (40.0)",
        ("age, mean (SD)", ""): "70.0 (–)",
        ("age, mean (SD)", "missing"): "1 (50.0)",
        ("sex, n (%)", "F"): "0 (0.0)",
        ("sex, n (%)", "M"): "1 (100.0)",
        ("sex, n (%)", "missing"): "1 (50.0)",
        ("diabetic, n (%)", "False"): "1 (50.0)",
        ("diabetic, n (%)", "True"): "1 (50.0)",
    }
    assert cells(table, "all")["patients, n (%)", ""] == "5 (100.0)"


def test_medians_chosen_variables_and_labels() -> None:
    table = table_one(PATIENTS, CLUSTERS, variables={"age": "Age (years)"}, continuous="median")
    assert cells(table, "1") == {
        ("patients, n (%)", ""): "3 (60.0)",
        ("Age (years), median [quartiles]", ""): "50.0 [45.5, 55.0]",
        ("Age (years), median [quartiles]", "missing"): "0 (0.0)",
    }


def test_sites_in_every_form_agree() -> None:
    two = pd.concat([PATIENTS.assign(site="MGB"), PATIENTS.assign(site="VA", age=40.0)])
    clusters = {"MGB": CLUSTERS, "VA": CLUSTERS.iloc[:3]}
    by_column = table_one(two.reset_index(), clusters)
    by_dict = table_one({"MGB": PATIENTS, "VA": PATIENTS.assign(age=40.0)}, clusters)
    pd.testing.assert_frame_equal(by_column.frame, by_dict.frame)
    assert by_dict.frame.columns.to_list() == [
        (site, cluster) for site in ("MGB", "VA") for cluster in ("1", "2", "all")
    ]
    alone = table_one(PATIENTS, CLUSTERS).frame
    assert by_dict.frame["MGB"].to_numpy().tolist() == alone.to_numpy().tolist()
    as_array = table_one(PATIENTS.loc[CLUSTERS.index], CLUSTERS.to_numpy())
    pd.testing.assert_frame_equal(as_array.frame, alone)
    text_ids = CLUSTERS.set_axis(CLUSTERS.index.astype(str))
    pd.testing.assert_frame_equal(table_one(PATIENTS, text_ids).frame, alone)


def random_patients() -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 300)
    frame = pd.DataFrame(
        {
            "x": rng.normal(group / 20, 1),
            "c": rng.choice(["a", "b", "c"], 300),
            "flat": 7,
            "tied": rng.integers(0, 3, 300),
        }
    )
    return frame, pd.Series(group, index=frame.index)


def test_p_values_are_those_of_scipy() -> None:
    frame, group = random_patients()
    table = table_one(frame, group, columns=["p"]).frame["p"]
    samples = [frame["x"][group == g] for g in range(3)]
    assert table["x, mean (SD)"].iat[0] == f"{stats.f_oneway(*samples).pvalue:.3f}"
    counts = pd.crosstab(group, frame["c"])
    expected = stats.chi2_contingency(counts, correction=False).pvalue
    assert table["c, n (%)"].to_list() == [f"{expected:.3f}", "", ""]
    assert table["flat, n (%)"].to_list() == ["–"]
    table = table_one(frame, group, columns=["p"], continuous="median").frame["p"]
    tied = [frame["tied"][group == g] for g in range(3)]
    assert table["tied, median [quartiles]"].iat[0] == f"{stats.kruskal(*tied).pvalue:.3f}"
    far = frame.assign(x=frame["x"] + 100 * group)
    assert table_one(far, group, columns=["p"]).frame["p"]["x, mean (SD)"].iat[0] == "<0.001"


def exact_p(table: np.ndarray) -> float:
    """All tables with the same margins, weighted by their probability if patients are shuffled."""
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    expected = np.outer(rows, columns) / table.sum()

    def statistic(counts: np.ndarray) -> float:
        return float(((counts - expected) ** 2 / expected).sum())

    possible = [
        np.array([first, columns - first])
        for first in itertools.product(*(range(c + 1) for c in columns))
        if sum(first) == rows[0]
    ]
    chance = [float(np.prod([math.comb(c, f) for c, f in zip(columns, t[0])])) for t in possible]  # noqa: B905
    extreme = [statistic(t) >= statistic(table) - 1e-9 for t in possible]
    return float(np.dot(chance, extreme) / sum(chance))


@pytest.mark.parametrize("counts", [[[4, 1], [0, 5]], [[3, 0, 2], [1, 6, 3]], [[1, 1], [9, 30]]])
def test_small_expected_counts_take_permutations_and_are_marked(counts: list[list[int]]) -> None:
    table = np.array(counts)
    frame = pd.DataFrame(
        [(g, f"level {v}") for (g, v), n in np.ndenumerate(table) for _ in range(n)],
        columns=["group", "level"],
    )
    result = table_one(frame[["level"]], frame["group"], columns=["p"])
    text = result.frame["p"]["level, n (%)"].iat[0]
    assert text.endswith("†")
    exact = exact_p(table)
    assert float(text[:-1]) == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 9_999))
    assert result.notes[0] == "p: analysis of variance; chi-squared test for categories."
    assert result.notes[1].startswith("† Some expected counts are below 5: permutation test")
    assert text == table_one(frame[["level"]], frame["group"], columns=["p"]).frame["p"].iat[1]
    assert r"\dag{}" in result.to_latex()


def test_large_expected_counts_are_not_marked() -> None:
    frame, group = random_patients()
    result = table_one(frame[["c"]], group, columns=["p"], continuous="median")
    assert result.notes == ("p: Kruskal–Wallis test; chi-squared test for categories.",)
    assert table_one(frame[["x"]], group, columns=["smd"]).notes[0].startswith("SMD: standardised")


def test_standardised_differences_by_hand() -> None:
    frame = pd.DataFrame({"x": [1.0, 3, 2, 6, 5, 5.5], "b": list("yynyyn"), "c": list("uvwuvu")})
    group = pd.Series([1, 1, 1, 2, 2, 2])
    table = table_one(frame, group, columns=["smd"]).frame["SMD"]
    assert table["x, mean (SD)"].iat[0] == f"{3.5 / np.sqrt((1 + 0.25) / 2):.3f}"
    assert table["b, n (%)"].iat[0] == "0.000"
    # two levels: |p − q| over the root of the mean of p(1 − p) and q(1 − q)
    frame["b"] = list("yynnnn")
    p, q = 2 / 3, 0.0
    assert table_one(frame, group, columns=["smd"]).frame["SMD"]["b, n (%)"].iat[0] == (
        f"{(p - q) / np.sqrt((p * (1 - p) + q * (1 - q)) / 2):.3f}"
    )
    frame["b"] = list("yyynnn")  # no spread in either cluster
    assert table_one(frame, group, columns=["smd"]).frame["SMD"]["b, n (%)"].iat[0] == "–"


def test_three_clusters_average_over_pairs() -> None:
    frame = pd.DataFrame({"x": [0.0, 2, 1, 3, 4, 6]})
    group = pd.Series([1, 1, 2, 2, 3, 3])
    spread = np.sqrt(2)
    expected = np.mean([1, 4, 3]) / spread
    table = table_one(frame, group, columns=["smd"]).frame["SMD"]
    assert table["x, mean (SD)"].iat[0] == f"{expected:.3f}"


def test_markdown_latex_and_html() -> None:
    frame = PATIENTS.assign(sex=["a|b", "a|b", "c&d_<e>", "a|b", None, "f"])
    table = table_one({"M&G": frame}, {"M&G": CLUSTERS})
    lines = table.to_markdown().splitlines()
    assert lines[0] == "|  | M&G 1 | M&G 2 | M&G all |"
    assert lines[2] == "| patients, n (%) | 3 (60.0) | 2 (40.0) | 5 (100.0) |"
    assert "| \u00a0\u00a0a\\|b | 3 (100.0) | 0 (0.0) | 3 (75.0) |" in lines
    assert str(table) == table.to_markdown()
    latex = table.to_latex()
    assert latex.startswith("\\begin{tabular}{lrrr}\n\\toprule\n & M\\&G 1 & ")
    assert r"~~c\&d\_$<$e> & 0 (0.0) & 1 (100.0) & 1 (25.0) \\" in latex
    assert r"patients, n (\%) & 3 (60.0)" in latex

    class Texts(HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_data(self, data: str) -> None:
            self.found.append(data.strip())

    parser = Texts()
    parser.feed(table.to_html())
    assert {"M&G 1", "c&d_<e>", "3 (60.0)"} <= set(parser.found)


@pytest.mark.parametrize(
    ("patients", "clusters", "options", "message"),
    [
        (PATIENTS, pd.Series([1], index=[99]), {}, "1 ids with a cluster are not among"),
        (PATIENTS, [1, 2], {}, "found 2 clusters for 6"),
        (PATIENTS, [None] * 6, {}, "none of the patients has a cluster"),
        (PATIENTS, CLUSTERS, {"variables": ["weight"]}, "no column 'weight'"),
        (PATIENTS, CLUSTERS, {"columns": ["t"]}, "columns"),
        (PATIENTS, CLUSTERS, {"continuous": "mode"}, "continuous is 'mode' and should be"),
        ({"VA": PATIENTS}, {"MGB": CLUSTERS}, {}, "patients has no site 'MGB'"),
        (
            pd.DataFrame({"note": [f"n{i}" for i in range(40)]}),
            np.ones(40),
            {},
            "'note' of the patients' table has 40 different values; group them",
        ),
    ],
)
def test_bad_input(patients: Any, clusters: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table_one(patients, clusters, **options)


def test_patients_by_site_need_clusters_by_site() -> None:
    with pytest.raises(TypeError, match="by site"):
        table_one({"MGB": PATIENTS}, CLUSTERS)


def test_markdown_runs_nothing_that_a_level_is_called() -> None:
    """Markdown passes HTML on to the browser."""
    patients = pd.DataFrame({"<img src=x>": ["<script>", "a|b", "c\nd", "e"]}, index=[1, 2, 3, 4])
    text = table_one(patients, pd.Series([0, 0, 1, 1], index=[1, 2, 3, 4])).to_markdown()
    assert "&lt;script>" in text
    assert "<" not in text
    assert all(line.startswith("| ") for line in text.splitlines() if line)


def test_descriptions_are_below_the_table_in_every_format() -> None:
    patients = pd.DataFrame({"age": [50, 60, 70, 41]}, index=[1, 2, 3, 4])
    clusters = pd.Series([0, 0, 1, 1], index=[1, 2, 3, 4])
    texts = {0: "50 %: stay on TNFi & more", 1: "50 %: <b>switch</b>"}
    table = table_one(patients, clusters, descriptions=texts)
    assert table.to_markdown().endswith("\n1: 50 %: &lt;b>switch&lt;/b>")
    assert "<p>1: 50 %: &lt;b&gt;switch&lt;/b&gt;</p>" in table.to_html()
    assert r"\par 0: 50 \%: stay on TNFi \& more" in table.to_latex()
    assert len(table.to_frame()) == 2
    with pytest.raises(ValueError, match="descriptions names 7, but the clusters are '0', '1'"):
        table_one(patients, clusters, descriptions={7: "x"})


def test_small_counts_do_not_show() -> None:
    patients = pd.DataFrame(
        {"age": list(range(40, 54)), "sex": ["F"] * 12 + ["M"] * 2}, index=range(14)
    )
    clusters = pd.Series([1] * 11 + [2] * 3, index=range(14))
    table = table_one(patients, clusters, min_count=5)
    (note,) = table.notes
    assert note.startswith("Numbers based on fewer than 5 patients, and those that would")
    frame = table.to_frame()
    assert frame["2"].to_list() == ["–", "–", "–", "–"]
    assert frame["1"].to_list() == ["–", "–", "–", "0"]
    assert frame["all"].to_list() == ["14 (100.0)", "46.5 (4.2)", "–", "–"]
    nothing_small = table_one(patients, clusters, min_count=1).to_frame()
    pd.testing.assert_frame_equal(nothing_small, table_one(patients, clusters).to_frame())


# --- attacks on small numbers ----------------------------------------------------------


def shown_count(text: str) -> float:
    return float(text.split(" ")[0].replace(",", "")) if text[0].isdigit() else np.nan


def follows_by_subtraction(grid: np.ndarray) -> np.ndarray:
    """Which blanks of a table with totals in its last row and column the shown numbers give.

    Whoever has pencil and paper fills in a line with one blank, and looks again.
    """
    filled = grid.copy()
    while True:
        before = np.isnan(filled).sum()
        for lines in (filled, filled.T):
            for line in lines:
                if np.isnan(line).sum() == 1:
                    others = np.nansum(line[:-1])
                    line[np.isnan(line)] = others if np.isnan(line[-1]) else line[-1] - others
        if np.isnan(filled).sum() == before:
            return np.isnan(grid) & ~np.isnan(filled)


@pytest.fixture(scope="module")
def cohort() -> tuple[pd.DataFrame, pd.Series]:
    """200 patients in clusters of 100, 75 and 25; only one of the 25 is a man, of age 93."""
    rng = np.random.default_rng(3)
    clusters = pd.Series(np.repeat([1, 2, 3], [100, 75, 25]))
    age = rng.integers(40, 80, 200).astype(float)
    sex = rng.choice(["F", "M"], 200)
    age[175:199], sex[175:199], sex[199] = np.nan, "F", "M"
    age[199] = 93
    smoker = rng.choice(["no", "yes", None], 200, p=[0.8, 0.18, 0.02])
    return pd.DataFrame({"age": age, "sex": sex, "smoker": smoker}), clusters


def test_no_small_count_of_table_one_follows_by_subtraction(
    cohort: tuple[pd.DataFrame, pd.Series],
) -> None:
    frame = table_one(*cohort, min_count=11).to_frame()
    exact = table_one(*cohort).to_frame()
    for title in ("sex, n (%)", "smoker, n (%)"):
        rows = [*frame.index[frame.index.get_level_values(0) == title], ("patients, n (%)", "")]
        grid = frame.loc[rows].map(shown_count).to_numpy()
        true = exact.loc[rows].map(shown_count).to_numpy()
        small = (true > 0) & (true < 11)
        assert small.any()
        assert np.isnan(grid[small]).all()
        assert not follows_by_subtraction(grid).any()
        np.testing.assert_array_equal(grid[~np.isnan(grid)], true[~np.isnan(grid)])


def test_a_hidden_mean_does_not_follow_from_the_others(
    cohort: tuple[pd.DataFrame, pd.Series],
) -> None:
    means = table_one(*cohort, min_count=11).to_frame().loc[("age, mean (SD)", "")]
    assert means["3"] == "–"
    assert (means == "–").sum() == 2
    assert (table_one(*cohort).to_frame().loc[("age, mean (SD)", "")] != "–").all()


def test_shares_do_not_reveal_how_many_values_are_missing(
    cohort: tuple[pd.DataFrame, pd.Series],
) -> None:
    frame = table_one(*cohort, min_count=11).to_frame().xs("smoker, n (%)")
    hidden = frame.loc["missing"] == "–"
    assert hidden.any()
    assert not frame.loc[:, hidden].map(lambda text: "(" in text).any(axis=None)


def test_sizes_do_not_follow_from_those_of_all_sites() -> None:
    """Site B has 3 of the 103 patients of cluster 2; the sums over sites are known."""
    sizes = {"A": [200, 100, 80], "B": [150, 3, 60], "C": [90, 70, 40]}
    clusters = {site: np.repeat([1, 2, 3], n) for site, n in sizes.items()}
    patients = {site: pd.DataFrame({"age": np.arange(len(c))}) for site, c in clusters.items()}
    frame = table_one(patients, clusters, min_count=11).to_frame()
    shown = frame.loc[("patients, n (%)", "")].map(shown_count).unstack()
    shown = shown.loc[list("ABC"), ["1", "2", "3", "all"]]
    grid = np.vstack([shown, [440, 173, 180, 793]])
    assert np.isnan(grid[1, 1])
    assert not follows_by_subtraction(grid).any()


def test_comparisons_are_coarse_where_numbers_are_hidden(
    cohort: tuple[pd.DataFrame, pd.Series],
) -> None:
    for compare, allowed in (("p", ("<0.001", "<0.01", "<0.05", "≥0.05")), ("smd", None)):
        frame = table_one(*cohort, columns=[compare], min_count=11).to_frame()
        text = frame[compare.replace("smd", "SMD")][("sex, n (%)", "F")].strip("†")
        assert text in allowed if allowed else len(text.split(".")[1]) == 1


def test_columns_beside_the_clusters_are_chosen_in_order() -> None:
    frame, group = random_patients()
    chosen = table_one(frame[["x"]], group, columns=["smd", "p"])
    assert list(chosen.frame.columns) == ["0", "1", "2", "SMD", "p"]
    everything = table_one(frame[["x"]], group, columns=["all", "smd", "p"])
    pd.testing.assert_frame_equal(everything.frame.drop(columns="all"), chosen.frame)
    assert [note.split(":")[0] for note in chosen.notes] == ["SMD", "p"]
    assert chosen.legend.startswith("Number (%) or mean (SD). SMD: standardised mean difference")
    settings = TableOneSettings(continuous="median", variables={"x": "Score"})
    assert table_one(frame, group, settings).frame.index[1] == ("Score, median [quartiles]", "")
    with pytest.raises(ValueError, match="'all', 'p' or 'smd'"):
        table_one(frame, group, columns=["all", "median"])


def test_a_column_that_one_site_lacks_is_missing_there() -> None:
    patients = {
        "A": pd.DataFrame({"age": [50, 60], "smoker": ["yes", "no"]}, index=[1, 2]),
        "B": pd.DataFrame({"age": [40, 70]}, index=[1, 2]),
    }
    clusters = {site: pd.Series([1, 1], index=[1, 2]) for site in patients}
    text = str(table_one(patients, clusters))
    assert "2 (100.0)" in next(line for line in text.splitlines() if "missing" in line)
