"""The mixed model agrees with a dense textbook version, and unusual input has a clear answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from threadpoolctl import threadpool_limits

import ehr_prep
from ehr_prep.analysis import trend
from ehr_prep.synthetic.ra import parameters
from mmlca.tables.lab_trends import KNOTS
from mmlca.tables.mixed_model import natural_spline

START = np.datetime64("2012-06-01", "D")
AT = np.array(KNOTS)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The matrices are small: on a busy machine, threads would wait for each other."""
    with threadpool_limits(1):
        yield


def simulate(
    seed: int, n: int = 30, mean_labs: float = 6, sd: float = 0.5, slope: float = 0.0
) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """Labs of two groups: the second is half a unit higher on the log scale, both decline."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(n), 1 + rng.poisson(mean_labs, n))
    day = rng.integers(-365, 1095, len(who))
    level, own = rng.normal(0, sd, n)[who], rng.normal(0, slope, n)[who]
    years = day / 365.25
    y = 3 + 0.5 * (who % 2) - 0.1 * years + level + own * years + rng.normal(0, 0.3, len(who))
    labs = pd.DataFrame(
        {"patient_id": who, "date": START + day * np.timedelta64(1, "D"), "value": np.exp(y)}
    )
    labs["date"] = labs["date"].astype("datetime64[s]")
    groups = pd.Series(np.array(["low", "high"])[np.arange(n) % 2], index=range(n))
    return labs, groups, pd.Series(START.astype("datetime64[s]"), index=range(n))


def design(labs: pd.DataFrame, groups: pd.Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    years = (labs["date"].to_numpy().astype("datetime64[D]") - START).astype(float) / 365.25
    basis, kind = natural_spline(years, AT), groups.loc[labs["patient_id"]].to_numpy()
    x = np.hstack([basis * (kind == g)[:, None] for g in sorted(groups.unique())])
    return np.log(labs["value"].to_numpy()), x, labs["patient_id"].to_numpy()


def dense(y: np.ndarray, x: np.ndarray, who: np.ndarray) -> dict[str, Any]:
    """REML with the whole covariance matrix, both variances free, and a looped sandwich."""
    same = (who[:, None] == who).astype(float)

    def parts(log_sd: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        between, within = np.exp(2 * log_sd)
        v = between * same + within * np.eye(len(y))
        vi = np.linalg.inv(v)
        a = x.T @ vi @ x
        beta = np.linalg.solve(a, x.T @ vi @ y)
        r = y - x @ beta
        cost = np.linalg.slogdet(v)[1] + np.linalg.slogdet(a)[1] + r @ vi @ r
        return beta, vi, a, cost + (len(y) - x.shape[1]) * np.log(2 * np.pi)

    found = optimize.minimize(
        lambda s: parts(s)[3], np.log([0.4, 0.4]), method="Nelder-Mead", options={"xatol": 1e-7}
    )
    beta, vi, a, cost = parts(found.x)
    r, meat = y - x @ beta, np.zeros_like(a)
    half = x.shape[1] // 2
    for patient in np.unique(who):
        mine = who == patient
        score = x[mine].T @ vi[np.ix_(mine, mine)] @ r[mine]
        group = slice(0, half) if x[mine][0, :half].any() else slice(half, None)
        n_group = len(np.unique(who[x[:, group].any(axis=1)]))
        meat += np.outer(score, score) * n_group / (n_group - 1)
    inverse = np.linalg.inv(a)
    return {
        "beta": beta,
        "error": np.sqrt(np.diag(inverse @ meat @ inverse)),
        "sd": np.exp(found.x),
        "loglik": -cost / 2,
    }


# --- the model --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_agrees_with_a_dense_fit(seed: int) -> None:
    labs, groups, starts = simulate(seed)
    result, oracle = trend(labs, groups, starts), dense(*design(labs, groups))
    row = result.variances.iloc[0]
    np.testing.assert_allclose(row[["between", "within"]].astype(float), oracle["sd"], rtol=1e-4)
    assert row["loglik"] == pytest.approx(oracle["loglik"], abs=1e-6)
    np.testing.assert_allclose(result.coefficients["estimate"], oracle["beta"], rtol=1e-5)
    np.testing.assert_allclose(result.coefficients["error"], oracle["error"], rtol=1e-4)


def test_it_agrees_with_statsmodels() -> None:
    models = pytest.importorskip("statsmodels.api")
    labs, groups, starts = simulate(4, n=60)
    y, x, who = design(labs, groups)
    theirs = models.MixedLM(y, x, groups=who).fit(reml=True)
    ours = trend(labs, groups, starts)
    np.testing.assert_allclose(ours.coefficients["estimate"], theirs.fe_params, rtol=1e-4)
    assert ours.variances["within"][0] ** 2 == pytest.approx(theirs.scale, rel=1e-3)
    assert ours.variances["between"][0] ** 2 == pytest.approx(theirs.cov_re.item(), rel=1e-3)


def test_the_spline_is_natural_and_contains_straight_lines() -> None:
    years = np.linspace(-1, 3, 4001)
    basis = natural_spline(years, AT)
    np.testing.assert_allclose(basis @ (2 - 3 * AT), 2 - 3 * years, atol=1e-12)
    bend = np.diff(basis, n=2, axis=0) / 0.001**2
    assert np.abs(bend[[0, -1]]).max() < 0.01 * np.abs(bend).max()
    assert np.linalg.matrix_rank(basis) == len(AT)


def test_curves_pass_through_the_coefficients_in_the_units_of_the_lab() -> None:
    labs, groups, starts = simulate(5, n=200)
    result = trend(labs, groups, starts)
    knots = result.curves[np.isin(result.curves["years"].round(9), AT)]
    at = result.coefficients.merge(knots.round({"years": 9}), on=["group", "years"])
    assert len(at) == 2 * len(AT)
    np.testing.assert_allclose(at["estimate_y"], np.exp(at["estimate_x"]))
    np.testing.assert_allclose(at["high"], np.exp(at["estimate_x"] + 1.959964 * at["error"]))
    plain = trend(labs, groups, starts, log=False)
    shift = trend(labs.assign(value=labs["value"] + 1e6), groups, starts, log=False)
    np.testing.assert_allclose(shift.curves["estimate"] - 1e6, plain.curves["estimate"], atol=1e-3)


def test_the_bands_cover_even_if_patients_differ_in_slope() -> None:
    covered = []
    for seed in range(40):
        result = trend(*simulate(seed, n=120, slope=0.2))
        truth = np.exp(3 + 0.5 * (result.curves["group"] == "high") - 0.1 * result.curves["years"])
        covered.append((result.curves["low"].le(truth) & truth.le(result.curves["high"])).mean())
    assert 0.90 < np.mean(covered) < 0.98


def held_whole(seeds: range, n: int, bands: Any) -> float:
    """The share of groups whose whole curve lies inside its band; patients differ in slope."""
    held = []
    for seed in seeds:
        curves = trend(*simulate(seed, n=n, slope=0.2), bands=bands).curves
        truth = np.exp(3 + 0.5 * (curves["group"] == "high") - 0.1 * curves["years"])
        inside = curves["low"].le(truth) & truth.le(curves["high"])
        held += list(inside.groupby(curves["group"]).all())
    return float(np.mean(held))


def test_simultaneous_bands_hold_whole_curves_where_pointwise_ones_do_not() -> None:
    assert held_whole(range(25), 120, "pointwise") < 0.85
    assert held_whole(range(25), 120, "simultaneous") > 0.87


@pytest.mark.slow
@pytest.mark.parametrize("n", [60, 400])
def test_simultaneous_bands_hold_whole_curves_in_95_of_100_studies(n: int) -> None:
    """600 curves at each size: the standard error of the share is 0.009."""
    assert 0.91 < held_whole(range(300), n, "simultaneous") < 0.98
    assert held_whole(range(100), n, "pointwise") < 0.8


def test_no_curve_goes_beyond_the_values_of_its_group() -> None:
    """A group observed for 1.7 years once had a curve to 3 years, from 0 to infinity there."""
    labs, groups, starts = simulate(16, n=120)
    years = (labs["date"] - starts.iloc[0]).dt.days / 365.25
    short = labs["patient_id"].map(groups) == "low"
    cut = labs[~short | (years < 1.7)]
    result = trend(cut, groups, starts, min_count=11)
    numbers = result.curves[["estimate", "low", "high"]].to_numpy()
    assert ((numbers > 5) & (numbers < 80)).all()  # the values are about 10 to 40
    ends = result.support.set_index("group")
    assert ends.loc["low", "end"] <= 1.7
    assert ends.loc["high", "end"] > 2.9
    last = result.curves.groupby("group")["years"].max()
    assert (last == ends["end"].loc[last.index]).all()
    lasts = years[short & (years < 1.7)].groupby(cut["patient_id"]).max()
    assert (lasts > ends.loc["low", "end"] - 1 / 12).sum() >= 11
    knots = result.coefficients.groupby("group")["years"].max()
    assert knots.to_dict() == {"high": 3.0, "low": 1.6}  # few values lie beyond 1.6 years
    assert "fewer than 11 patients of the group have earlier or later values" in result.caption()
    beyond = result.counts.set_index("reason").loc["where few patients of the group have values"]
    assert beyond["group"] == "low"


def test_one_late_value_does_not_prolong_a_curve() -> None:
    labs, groups, starts = simulate(17, n=80)
    years = (labs["date"] - starts.iloc[0]).dt.days / 365.25
    late = labs.head(1).assign(date=starts.iloc[0] + pd.Timedelta(days=1000))
    for limit, end in ((1.5, 1.6), (0.2, 0.3)):
        result = trend(pd.concat([labs[years < limit], late]), groups, starts)
        assert result.curves["years"].max() <= min(limit + 1 / 12, end)
        assert result.curves["high"].max() < 100


def test_the_lab_is_called_as_its_table_calls_it() -> None:
    """Every disease's lab was once titled "ESR (mm/h)"."""
    labs, groups, starts = simulate(18)
    assert trend(labs, groups, starts).label == "Laboratory value"
    named = labs.assign(test="HbA1c")
    assert trend(named, groups, starts).label == "HbA1c"
    assert trend(named.assign(unit="%"), groups, starts).label == "HbA1c (%)"
    mixed = named.assign(unit=np.where(labs["patient_id"] % 2, "%", "mmol/mol"))
    assert trend(mixed, groups, starts).label == "HbA1c"
    figure = ehr_prep.plot_trend(trend(named, groups, starts))
    assert figure.axes[0].get_ylabel() == "HbA1c, geometric mean (log scale)"


def test_one_lab_each_is_ordinary_least_squares() -> None:
    labs, groups, starts = simulate(6, n=200)
    labs = labs.drop_duplicates("patient_id")
    y, x, _ = design(labs, groups)
    result = trend(labs, groups, starts)
    np.testing.assert_allclose(
        result.coefficients["estimate"], np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-8
    )
    assert result.variances["between"][0] == 0


def test_it_finds_the_truth_of_the_synthetic_cohort() -> None:
    cohort = ehr_prep.ra_cohort(seed=1, scale=0.4)
    parts = {site: (data.labs, data.truth["class"], data.truth) for site, data in cohort.items()}
    labs, groups, starts = ({s: p[i] for s, p in parts.items()} for i in range(3))
    result = trend(labs, groups, starts, test="ESR")
    esr = parameters()["esr"]
    for (site, group), curve in result.curves.groupby(["site", "group"]):
        mean = np.interp(curve["years"], esr["years"], esr["log_mean"][group])
        truth = np.exp(mean + (0.1 if site == "VA" else 0))
        assert (curve["estimate"] / truth - 1).abs().mean() < 0.12
    ordered = result.curves[result.curves["site"] == "VA"]["group"].unique()
    assert list(ordered) == list(cohort["VA"].truth["class"].cat.categories)
    assert result.variances["within"].between(0.42, 0.50).all()
    assert result.counts["labs"].sum() == sum(len(table) for table in labs.values())


# --- what comes in ----------------------------------------------------------------------


def test_what_is_no_number_is_dropped_and_counted(tmp_path: Path) -> None:
    labs, groups, starts = simulate(7, n=60)
    clean = trend(labs, groups, starts)
    labs = labs.assign(value=labs["value"].map(repr), date=labs["date"].dt.strftime("%Y-%m-%d"))
    odd = ["<2", "> 130", "≤5", "hemolyzed", "", None, "0", "-3", "inf"]
    extra = pd.DataFrame({"patient_id": 0, "date": "2012-07-01", "value": odd})
    others = pd.DataFrame(
        {
            "patient_id": [999, 0, 0, 0],
            "date": ["2012-07-01", "someday", "2019-01-01", "2010-01-01"],
            "value": "12",
        }
    )
    table = pd.concat([labs, extra, others], ignore_index=True)
    table.to_csv(tmp_path / "labs.csv", index=False)
    for source in (table, tmp_path / "labs.csv"):
        result = trend(source, groups, starts)
        dropped = result.counts[result.counts["reason"] != "used"].set_index("reason")["labs"]
        assert dropped.to_dict() == {
            "date missing or unreadable": 1,
            "outside the years studied": 2,
            "value missing": 2,
            "below or above a limit": 3,
            "not a number": 2,
            "not positive, has no logarithm": 2,
            "patient without a group or an index date": 1,
        }
        assert result.counts["labs"].sum() == len(table)
        pd.testing.assert_frame_equal(result.curves, clean.curves)
        assert result.censored.to_dict("records") == [{"site": "", "patients": 1, "labs": 3}]
        assert "3 values given only as a limit (such as <2 or >130) were left out" in (
            result.caption()
        )
    assert "limit" not in clean.caption()


def test_curves_are_geometric_means_and_the_caption_says_so() -> None:
    """With the same labs of everyone on the knots, the curve is the geometric mean by day."""
    rng = np.random.default_rng(3)
    days = np.array([-365, -100, 0, 100, 400, 800])
    values = rng.lognormal(3, 0.5, (40, len(days)))
    labs = pd.DataFrame(
        {
            "patient_id": np.repeat(np.arange(40), len(days)),
            "date": np.tile(np.datetime64("2012-01-01", "s") + days * np.timedelta64(1, "D"), 40),
            "value": values.ravel(),
        }
    )
    starts = pd.Series(np.datetime64("2012-01-01", "s"), index=range(40))
    groups, knots = pd.Series("all", index=range(40)), days / 365.25
    result = trend(labs, groups, starts, knots=knots)
    np.testing.assert_allclose(
        np.exp(result.coefficients["estimate"]), np.exp(np.log(values).mean(axis=0)), rtol=1e-8
    )
    assert result.caption().startswith("Geometric means by group from a linear mixed model of the")
    for words in (
        "95 % bands from the sandwich estimator with patients as",
        "The bands are pointwise",
        "later treatment",
    ):
        assert words in result.caption()
    whole = trend(labs, groups, starts, knots=knots, bands="simultaneous")
    assert "they contain the whole curve of a group in 95 % of studies" in whole.caption()
    assert (whole.curves["high"] > result.curves["high"]).all()
    plain = trend(labs, groups, starts, knots=knots, log=False)
    np.testing.assert_allclose(plain.coefficients["estimate"], values.mean(axis=0), rtol=1e-8)
    assert plain.caption().startswith("Means by group from a linear mixed model of the value")


def test_small_groups_have_no_curve_and_small_numbers_no_value() -> None:
    labs, groups, starts = simulate(7, n=60)
    few = pd.Series(np.where(np.arange(60) < 5, "few", "many"), index=groups.index)
    odd = labs.head(1).assign(value="<2")
    labs = pd.concat([labs.astype({"value": object}), odd])
    with pytest.warns(UserWarning, match="no curve for 'few'.*, of at least 11 patients"):
        result = trend(labs, few, starts, min_count=11)
    assert list(result.curves["group"].unique()) == ["many"]
    counts = result.counts.set_index(["group", "reason"])
    hidden = counts.loc[("few", "group with too few labs or patients for a curve")]
    assert hidden[["patients", "labs"]].isna().all()
    assert counts.loc[("many", "used"), "patients"] == 55
    assert "Some values given only as a limit" in result.caption()
    assert "fewer than 11 patients" in result.caption()
    assert result.caption().endswith("are not shown.")


def test_sequences_give_the_index_dates() -> None:
    data = ehr_prep.ra_cohort(seed=1, scale=0.1)["VA"]
    built = ehr_prep.build_sequences(
        ehr_prep.read_records(data.records, drugs="ra", patients=data.patients, labs=data.labs)
    )
    result = trend(data.labs, data.truth["class"], built)
    direct = trend(data.labs, data.truth["class"], data.truth["index_date"])
    pd.testing.assert_frame_equal(result.curves, direct.curves)


def test_a_table_of_several_tests_needs_a_choice() -> None:
    labs, groups, starts = simulate(8)
    both = pd.concat([labs.assign(test="ESR"), labs.assign(test="CRP", value=1.0)])
    with pytest.raises(ValueError, match=r"several tests \('ESR', 'CRP'\); say which"):
        trend(both, groups, starts)
    pd.testing.assert_frame_equal(
        trend(both, groups, starts, test="esr").curves, trend(labs, groups, starts).curves
    )
    with pytest.raises(ValueError, match="no column that names the test"):
        trend(labs, groups, starts, test="ESR")


def test_one_group_one_patient_and_constant_values() -> None:
    labs, groups, starts = simulate(9)
    single = trend(labs, groups.map(lambda _: "all"), starts)
    assert list(single.curves["group"].unique()) == ["all"]
    one = simulate(10, n=1, mean_labs=40)
    alone = trend(*one)
    y, x, _ = design(one[0], one[1])
    np.testing.assert_allclose(
        alone.coefficients["estimate"], np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-7
    )
    assert alone.curves["low"].isna().all(), "one patient says nothing about others"
    same = trend(labs.assign(value=20.0), groups, starts)
    np.testing.assert_allclose(same.curves[["estimate", "low", "high"]], 20, rtol=1e-4)


def test_a_group_without_labs_is_named_and_the_others_stay() -> None:
    labs, groups, starts = simulate(11)
    more = pd.concat([groups, pd.Series(["none", "few"], index=[100, 101])])
    when = pd.concat([starts, pd.Series(starts.iloc[0], index=[100, 101])])
    few = labs.head(3).assign(patient_id=101)
    with pytest.warns(UserWarning, match="no curve for 'few', 'none': a group needs more labs"):
        result = trend(pd.concat([labs, few]), more, when)
    pd.testing.assert_frame_equal(result.curves, trend(labs, groups, starts).curves)
    counts = result.counts.set_index(["group", "reason"])["labs"]
    assert counts["none", "used"] == 0
    assert counts["few", "group with too few labs or patients for a curve"] == 3


@pytest.mark.filterwarnings("ignore:no curve for")
def test_nothing_usable_is_one_sentence() -> None:
    labs, groups, starts = simulate(12)
    with pytest.raises(ValueError, match=r"no lab can be used: .*value missing \(\d+\)"):
        trend(labs.assign(value=np.nan), groups, starts)
    with pytest.raises(ValueError, match=r"no lab can be used: .*without a group"):
        trend(labs, groups.set_axis(groups.index + 1000), starts)
    with pytest.raises(ValueError, match="no lab can be used"):
        trend(labs.head(0), groups, starts)


def test_wrong_arguments_are_refused() -> None:
    labs, groups, starts = simulate(13)
    twice = pd.concat([groups, groups.head(1)])
    cases: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (ValueError, "each patient only once; 0 occur", (labs, twice, starts), {}),
        (TypeError, "groups must be a Series", (labs, [1, 2], starts), {}),
        (ValueError, "'A' is not in 'B'", ({"A": labs}, {"B": groups}, {"A": starts}), {}),
        (ValueError, "'A' is not in Series", ({"A": labs}, groups, starts), {}),
        (ValueError, 'a column "index_date"', (labs, groups, groups.to_frame("g")), {}),
        (ValueError, "increasing numbers", (labs, groups, starts), {"knots": [0, 0, 1]}),
        (ValueError, "'pointwise', 'simultaneous'", (labs, groups, starts), {"bands": "both"}),
        (ValueError, "looks like the value", (labs.drop(columns="value"), groups, starts), {}),
    ]
    for error, message, arguments, options in cases:
        with pytest.raises(error, match=message):
            trend(*arguments, **options)


# --- the figure -------------------------------------------------------------------------


def test_the_figure_shows_the_tables() -> None:
    import matplotlib.pyplot as plt

    labs, groups, starts = simulate(14, n=60)
    site = {"A": labs, "B": labs}
    result = trend(site, dict.fromkeys(site, groups), dict.fromkeys(site, starts))
    figure = ehr_prep.plot_trend(result)
    n = f"60 patients with {len(labs):,} values"
    assert [ax.get_title() for ax in figure.axes] == [f"A\n{n}", f"B\n{n}"]
    ax = figure.axes[0]
    high, low = (line for line in ax.lines if not line.get_label().startswith("_"))
    assert (high.get_color(), low.get_color()) == ("#332288", "#999933")
    assert high.get_linestyle() != low.get_linestyle()
    drawn = result.curves.query("site == 'A' and group == 'high'")
    np.testing.assert_allclose(high.get_ydata(), drawn["estimate"])
    band = ax.collections[0].get_paths()[0].get_extents()
    assert band.y0 == pytest.approx(drawn["low"].min())
    assert band.y1 == pytest.approx(drawn["high"].max())
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["high", "low"]
    assert ax.get_yscale() == "log"
    assert ax.get_ylabel().startswith("Laboratory value, ")
    assert any(list(line.get_xdata()) == [0, 0] for line in ax.lines)
    figure.canvas.draw()
    ticks = [t.get_text() for t in ax.get_yticklabels()]
    assert len(ticks) >= 3
    assert all(float(text) < 100 for text in ticks)
    plt.close(figure)


def test_an_own_label_is_the_name_of_the_axis() -> None:
    import matplotlib.pyplot as plt

    figure = ehr_prep.plot_trend(trend(*simulate(15)), label="CRP (mg/L)")
    assert figure.axes[0].get_ylabel() == "CRP (mg/L), geometric mean (log scale)"
    plt.close(figure)


def test_a_figure_of_something_else_says_what_it_draws() -> None:
    table = pd.DataFrame({"years": [0.0]})
    with pytest.raises(TypeError, match=r"found DataFrame, expected what ehr_prep.trend returns"):
        ehr_prep.plot_trend(table)
    with pytest.raises(ValueError, match="the table has no column 'stage', 'reason'"):
        ehr_prep.plot_flow(table)
    with pytest.raises(TypeError, match="found dict, expected a flow table, sequences or records"):
        ehr_prep.plot_flow({})
