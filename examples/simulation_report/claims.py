"""The claims made for FONT, each beside the numbers of a simulation study."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from font.checks import one_of
from font.errors import InputError
from font.simulation.replicate import MEASURES
from font.simulation.run import simulation_table

VERDICTS = ("better", "equal", "worse", "open")

_CLAIMS = (  # whom FONT is compared with, and what is to be shown
    ("FONT is better than one site's model", "local", "better"),
    ("FONT is better than k-FED", "k-FED", "better"),
    ("FONT is better than consensus", "consensus", "better"),
    ("FONT is at least as good as consensus", "consensus", "equal"),
    ("FONT is better than pooled K-means", "pooled", "better"),
    ("FONT is at least as good as pooled K-means", "pooled", "equal"),
    ("FONT is as good as the best local model", "best local", "equal"),
    ("Weights from the data are better than equal ones", "FONT equal", "better"),
)
_REFINEMENTS = {
    "FONT refined 0": "FONT with shared parameters and proportions by site",
    "FONT refined 1": "FONT refined with one round",
    "FONT refined converge": "FONT refined until nothing changes",
}


def simulation_claims(results: pd.DataFrame, *, margin: float = 0.01) -> pd.DataFrame:
    """The claims made for FONT, each beside the numbers of `run_simulation` and whether it holds.

    One row per claim about which the results say something: `claim`; `measured`, the mean of FONT
    (or of its refinement) over the scenarios and the other's, or a correlation by number of sites;
    the number of scenarios where it is `better`, `equal`, `worse` or where it is `open`; `verdict`;
    `against`, up to five of the scenarios that speak against the claim.
    """
    methods = set(results["method"])
    if "FONT" not in methods:
        raise InputError("the results hold no method 'FONT'; run the simulation with it.")
    rows = [
        _claim(compare_methods(results, "FONT", other, margin=margin), claim, other, wanted)
        for claim, other, wanted in _CLAIMS
        if other in methods
    ]
    rows += [
        _claim(
            _losses(results, other, margin),
            f"Outlying points cost FONT less than {name}",
            other,
            "better",
        )
        for other, name in (("pooled", "pooled K-means"), ("local", "one site's model"))
        if other in methods and {"imbalanced", "contaminated"} <= set(results["setting"])
    ]
    rows += [
        _claim(
            compare_methods(results, method, "FONT", margin=margin),
            f"{name} is better than FONT",
            "FONT",
            "better",
            method,
        )
        for method, name in _REFINEMENTS.items()
        if method in methods
    ]
    columns = ["claim", "measured", *VERDICTS, "verdict", "against"]
    table = pd.DataFrame(rows + _weight_claims(results, margin), columns=columns)
    return table.astype(dict.fromkeys(VERDICTS, "Int64"))


def _claim(
    table: pd.DataFrame, claim: str, other: str, wanted: str, method: str = "FONT"
) -> dict[str, Any]:
    """It holds where all scenarios support it, in part where only some do."""
    n = {verdict: int((table["verdict"] == verdict).sum()) for verdict in VERDICTS}
    supports = ("better", "equal") if wanted == "equal" else ("better",)
    support = sum(n[verdict] for verdict in supports)
    against = table[~table["verdict"].isin([*supports, "open"])]
    return {
        "claim": claim,
        "measured": f"{table[method].mean():.3f} : {table[other].mean():.3f}",
        **n,
        "verdict": _verdict(support, len(against), n["open"]),
        "against": _shown(against, other, method),
    }


def _verdict(support: int, against: int, undecided: int) -> str:
    n = support + against + undecided
    if support and against:
        return f"in part, in {support} of {n} scenarios"
    if support:
        return (
            "holds" if not undecided else f"holds in {support} of {n} scenarios, {undecided} open"
        )
    if against:
        return "does not hold" if not undecided else f"in none of {n} scenarios, {undecided} open"
    return "open"


def _shown(table: pd.DataFrame, other: str, method: str) -> str:
    """The scenarios in which the method does worst, with both means."""
    worst = (table[method] - table[other]).sort_values().index[:5]
    shown = [
        f"{' '.join(map(str, key if isinstance(key, tuple) else (key,)))} "
        f"({table.loc[[key], method].iloc[0]:.3f} : {table.loc[[key], other].iloc[0]:.3f})"
        for key in worst
    ]
    return ", ".join(shown) + (", …" if len(table) > 5 else "")


def _losses(results: pd.DataFrame, other: str, margin: float) -> pd.DataFrame:
    """What outlying points cost both methods: the index of imbalanced less contaminated sites."""
    table = simulation_table(results[results["method"].isin(["FONT", other])])
    clean, dirty = (table.xs(name, level="setting") for name in ("imbalanced", "contaminated"))
    lost = (clean - dirty).dropna(how="all")
    variance = (clean**2 + dirty**2).reindex(lost.index)
    frame = pd.DataFrame({name: lost[name, "mean"] for name in ("FONT", other)})
    gain = frame[other] - frame["FONT"]
    se = np.sqrt(variance["FONT", "se"] + variance[other, "se"])
    frame["verdict"] = judge(gain, se, margin)
    return frame


def _weight_claims(results: pd.DataFrame, margin: float) -> list[dict[str, Any]]:
    """Do the weights follow the models' accuracy, and more so with more sites?"""
    rows: list[dict[str, Any]] = []
    for measure, what in (("correlation", "ARI"), ("concordance", "cos(f_m, f_0)")):
        if measure not in results or results[measure].isna().all():
            continue
        table = simulation_table(results, measure)["FONT"].dropna(subset="mean")
        sure = int((table["mean"] > 2 * table["se"]).sum())
        against = int((table["mean"] < -2 * table["se"]).sum())
        rows.append(
            {
                "claim": f"The weights correlate with the models' {what}",
                "measured": f"{table['mean'].mean():.2f}",
                "verdict": _verdict(sure, against, len(table) - sure - against),
                "against": "",
            }
        )
        if table.index.get_level_values("n_sites").nunique() > 1:
            rows.append(_rise(table, f"… with {what} the more so, the more sites", margin))
    return rows


def _rise(table: pd.DataFrame, claim: str, margin: float) -> dict[str, Any]:
    """From the fewest to the most sites, in each setting and at each level of the third axis."""
    mean, error = (table[part].unstack("n_sites").sort_index(axis=1) for part in ("mean", "se"))
    rise = mean.iloc[:, -1] - mean.iloc[:, 0]
    judged = judge(rise, np.sqrt(error.iloc[:, -1] ** 2 + error.iloc[:, 0] ** 2), margin)
    n = {verdict: int((judged == verdict).sum()) for verdict in VERDICTS}
    falls = [
        f"{' '.join(map(str, row))} ({mean.loc[row].iloc[0]:.2f} → {mean.loc[row].iloc[-1]:.2f})"
        for row in rise[np.isin(judged, ["worse", "equal"])].sort_values().index[:5]
    ]
    return {
        "claim": claim,
        "measured": " → ".join(f"{value:.2f}" for value in mean.mean()),
        **n,
        "verdict": _verdict(n["better"], n["worse"] + n["equal"], n["open"]),
        "against": ", ".join(falls),
    }


# --- comparisons ------------------------------------------------------------------------------


def compare_methods(
    results: pd.DataFrame, method: str, other: str, *, margin: float = 0.01
) -> pd.DataFrame:
    """Where one method beats another: differences of the adjusted Rand index on the same data.

    One row per scenario: the two means, `difference` with its standard error `se`, and `verdict`:
    "equal" if difference ± 2 se lies within ± `margin`, else "better" or "worse" if it lies on one
    side of 0, else "open": the replicates are too few to decide.
    """
    if method == other:
        raise InputError(f"two different methods are needed; found {method!r} twice.")
    for name in (method, other):
        one_of(name, dict.fromkeys(results["method"]), "the methods to compare")
    scenario = [name for name in results if name not in (*MEASURES, "replicate", "method")]
    pairs = results[results["method"].isin([method, other])]
    wide = pairs.set_index([*scenario, "replicate", "method"])["ari"].unstack("method")
    wide["difference"] = wide[method] - wide[other]
    groups = wide.groupby(level=list(range(len(scenario))), sort=False, dropna=False)
    table: pd.DataFrame = groups[[method, other, "difference"]].mean()
    table["se"] = groups["difference"].sem(ddof=1)
    table["verdict"] = judge(table["difference"], table["se"], margin)
    table["difference"] = table["difference"].round(12)
    return table.reindex(pd.MultiIndex.from_frame(results[scenario].drop_duplicates()))


def judge(difference: pd.Series, se: pd.Series, margin: float) -> Any:
    """What differences with these standard errors say, one of VERDICTS each."""
    size, room = difference.abs(), 2 * se.fillna(np.inf)
    sign = np.where(difference > 0, "better", "worse")
    return np.where(size + room <= margin, "equal", np.where(size > room, sign, "open"))
