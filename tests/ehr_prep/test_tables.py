from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ehr_prep import table_one

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
    table = table_one(frame, group, compare="p").frame["p"]
    samples = [frame["x"][group == g] for g in range(3)]
    assert table["x, mean (SD)"].iat[0] == f"{stats.f_oneway(*samples).pvalue:.3f}"
    counts = pd.crosstab(group, frame["c"])
    expected = stats.chi2_contingency(counts, correction=False).pvalue
    assert table["c, n (%)"].to_list() == [f"{expected:.3f}", "", ""]
    assert table["flat, n (%)"].to_list() == ["–"]
    table = table_one(frame, group, compare="p", continuous="median").frame["p"]
    tied = [frame["tied"][group == g] for g in range(3)]
    assert table["tied, median [quartiles]"].iat[0] == f"{stats.kruskal(*tied).pvalue:.3f}"
    far = frame.assign(x=frame["x"] + 100 * group)
    assert table_one(far, group, compare="p").frame["p"]["x, mean (SD)"].iat[0] == "<0.001"


def test_standardised_differences_by_hand() -> None:
    frame = pd.DataFrame({"x": [1.0, 3, 2, 6, 5, 5.5], "b": list("yynyyn"), "c": list("uvwuvu")})
    group = pd.Series([1, 1, 1, 2, 2, 2])
    table = table_one(frame, group, compare="smd").frame["SMD"]
    assert table["x, mean (SD)"].iat[0] == f"{3.5 / np.sqrt((1 + 0.25) / 2):.3f}"
    assert table["b, n (%)"].iat[0] == "0.000"
    # two levels: |p − q| over the root of the mean of p(1 − p) and q(1 − q)
    frame["b"] = list("yynnnn")
    p, q = 2 / 3, 0.0
    assert table_one(frame, group, compare="smd").frame["SMD"]["b, n (%)"].iat[0] == (
        f"{(p - q) / np.sqrt((p * (1 - p) + q * (1 - q)) / 2):.3f}"
    )
    frame["b"] = list("yyynnn")  # no spread in either cluster
    assert table_one(frame, group, compare="smd").frame["SMD"]["b, n (%)"].iat[0] == "–"


def test_three_clusters_average_over_pairs() -> None:
    frame = pd.DataFrame({"x": [0.0, 2, 1, 3, 4, 6]})
    group = pd.Series([1, 1, 2, 2, 3, 3])
    spread = np.sqrt(2)
    expected = np.mean([1, 4, 3]) / spread
    table = table_one(frame, group, compare="smd").frame["SMD"]
    assert table["x, mean (SD)"].iat[0] == f"{expected:.3f}"


def test_markdown_latex_and_html() -> None:
    frame = PATIENTS.assign(sex=["a|b", "a|b", "c&d_<e>", "a|b", None, "f"])
    table = table_one({"M&G": frame}, {"M&G": CLUSTERS})
    lines = table.to_markdown().splitlines()
    assert lines[0] == "|  | M&G 1 | M&G 2 | M&G all |"
    assert lines[2] == "| patients, n (%) | 3 (60.0) | 2 (40.0) | 5 (100.0) |"
    assert r"| &nbsp;&nbsp;a\|b | 3 (100.0) | 0 (0.0) | 3 (75.0) |" in lines
    assert str(table) == table.to_markdown()
    latex = table.to_latex()
    assert latex.startswith("\\begin{tabular}{lrrr}\n\\toprule\n & M\\&G 1 & ")
    assert r"\quad c\&d\_$<$e> & 0 (0.0) & 1 (100.0) & 1 (25.0) \\" in latex
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
        (PATIENTS, CLUSTERS, {"compare": "t"}, "compare must be"),
        (PATIENTS, CLUSTERS, {"continuous": "mode"}, "continuous must be"),
        ({"VA": PATIENTS}, {"MGB": CLUSTERS}, {}, "patients has no site 'MGB'"),
        (
            pd.DataFrame({"note": [f"n{i}" for i in range(40)]}),
            np.ones(40),
            {},
            "'note' has 40 different values",
        ),
    ],
)
def test_bad_input(patients: Any, clusters: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table_one(patients, clusters, **options)


def test_patients_by_site_need_clusters_by_site() -> None:
    with pytest.raises(TypeError, match="by site"):
        table_one({"MGB": PATIENTS}, CLUSTERS)


def test_descriptions_stand_below_the_table_in_every_format() -> None:
    patients = pd.DataFrame({"age": [50, 60, 70, 41]}, index=[1, 2, 3, 4])
    clusters = pd.Series([0, 0, 1, 1], index=[1, 2, 3, 4])
    texts = {0: "50 %: stay on TNFi & more", 1: "50 %: <b>switch</b>"}
    table = table_one(patients, clusters, descriptions=texts)
    assert table.to_markdown().endswith("\n1: 50 %: <b>switch</b>")
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
    frame = table_one(patients, clusters, min_count=5).to_frame()
    assert frame["2"].to_list() == ["<5", "–", "<5", "<5"]
    assert frame["1"].to_list() == ["11 (78.6)", "45.0 (3.3)", "11 (100.0)", "0 (0.0)"]
    assert frame["all"].to_list()[-1] == "<5"
