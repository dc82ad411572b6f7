"""The items of the report on where the sequences come from, and the number of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from font.ensemble import site_of
from font.solve import RECORD
from mmlca.figures.models import plot_selection
from mmlca.model.criteria import CRITERIA
from mmlca.study.release import count_note, rounding_of
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.words import group_word, window_name
from mmlca.tables.course_tables import Courses
from mmlca.tables.rounding import EVERYONE, Rounding
from mmlca.tables.suppress import few_digits, hide, hides, is_small

if TYPE_CHECKING:
    from mmlca.sequences.type import Sequences
    from mmlca.study.analysis import Findings
    from mmlca.study.settings import Study


def data_items(study: Study, findings: Findings) -> Iterator[Item]:
    """Odd records and the flow of patients at each site; the numbers of classes compared."""
    from ehr_prep.plots import plot_flow

    min_count, note = study.privacy.min_count, count_note(study)
    data, choice = findings.analysis.sequences, findings.choice
    built = {site: part for site, part in data.items() if part.account is not None}
    rounding = rounding_of(study, findings.analysis.clusters)
    flows = {
        site: _shown_flow(part.flow, site, min_count, rounding) for site, part in built.items()
    }
    for site, part in built.items():
        if len(part.issues):
            yield Item(
                f"issues_{site}",
                "patients",
                f"Odd records at {site}",
                "Records that looked odd: what was odd, how many there were, and what was done "
                f"about them. The folder patients has examples. {note}".rstrip(),
                _shown_issues(part, flows[site], site, min_count, rounding),
            )
    for site, part in built.items():
        unmapped = part.account.unmapped if part.account is not None else None
        if unmapped is not None and len(unmapped):
            yield Item(
                f"unmapped_{site}",
                "patients",
                f"Drugs at {site} that the map does not know",
                "Drug texts without a class, the most frequent first, with a known name that the "
                "text resembles. Texts of few patients are one row; the folder patients has them. "
                f"{note}".rstrip(),
                _shown_unmapped(unmapped, site, min_count, rounding),
            )
    for site in built:
        yield Item(
            f"flow_{site}",
            "patients",
            f"Flow of patients at {site}",
            f"Patients and records from the files to the sequences at {site}: how many were left "
            f"out, and why. {note}".rstrip(),
            flows[site],
            draw=lambda flow=flows[site]: plot_flow(flow),  # type: ignore[misc]
            alt=f"Flow chart of the patients and records kept and left out at {site}.",
        )
    yield Item(
        "follow_up",
        "patients",
        "Who is observed to the end",
        f"Patients observed in the first {window_name(study)}, in the middle and in the last, by "
        f"{group_word(study)}; the share of the first who are observed in the last. Follow-up that "
        "ends sooner in one group than in another may be related to treatment. "
        f"{note}".rstrip(),
        follow_up_table(study, next(iter(findings.courses.values()))),
        Plain(shares=("share",), n_keys=2),
    )
    if choice is not None and choice["classes"].nunique() > 1:
        name = study.classes.criterion.upper()
        resampled = (
            "and each pseudo-site, a resample of its patients, "
            if len(data) > 1 and study.pseudo_sites.per_site and study.classes.stability
            else ""
        )
        together = (
            " They are blank where a class has too few patients to show."
            if hides(min_count)
            else ""
        )
        whose = (
            f"for each site {resampled}less the smallest of that site"
            if len(data) > 1
            else "less the smallest"
        )
        fits = shown_fits(choice, findings.analysis.n_patients(), min_count, rounding)
        yield Item(
            "selection",
            "classes",
            f"{name} by number of classes",
            f"{name} of models with different numbers of classes, {whose}; {study.model.n_init} "
            "starts per search. Smaller is better; filled marks show the choice. The table has "
            f"the sizes of all classes in percent.{together}",
            fits,
            Plain(shares=("smallest",)),
            lambda: plot_selection(fits, study.classes.criterion, chosen="chosen"),
            f"Line plot of {name} against the number of classes.",
        )

    if findings.suggested is not None:
        yield Item(
            "suggested",
            "classes",
            "Clusters suggested by models with more classes",
            "Models with as many classes as there are clusters tell no more groups apart, so that "
            "their ensemble suggests that number partly because it must. Models with more classes "
            "leave it free: the number of clusters that the spectrum of their ensemble suggests, "
            "how sure that is, and the thresholds between which it is the same (as shares of the "
            f"largest eigenvalue). {RECORD[findings.suggested['sure'].iloc[-1]]}",
            findings.suggested,
        )


def _shown_flow(
    flow: pd.DataFrame, site: str, min_count: int, rounding: Rounding | None
) -> pd.DataFrame:
    """The flow with small numbers pooled, or with all numbers rounded.

    Those who are left in the end are the patients of the site, and are rounded as these are.
    """
    from ehr_prep.flow import hide_flow

    if rounding is None:
        return hide_flow(flow, min_count)
    flow, left = flow.assign(site=site), {"patients_left": (), "records_left": ("records",)}
    rounded = {
        "patients": rounding.column(flow, "patients", ["reason"], "patients dropped"),
        "records": rounding.column(flow, "records", ["reason"], "records dropped"),
    }
    rounded |= {name: rounding.column(flow, name, [], *cell) for name, cell in left.items()}
    return flow.drop(columns="site").assign(**rounded).astype(dict.fromkeys(rounded, int))


def _shown_issues(
    data: Sequences, flow: pd.DataFrame, site: str, min_count: int, rounding: Rounding | None
) -> pd.DataFrame:
    """Invalid records by kind, without small numbers and those that the flow pools, or rounded."""
    table = data.issues.drop(columns="examples")
    if rounding is not None:
        n = rounding.column(table.assign(site=site), "n", ["issue"], "records dropped")
        return table.assign(n=n)
    pooled = table["issue"].isin(set(data.flow["reason"]) - set(flow["reason"]))
    table = hide(table, ["n"], ["n"], min_count)
    return table.assign(n=table["n"].mask(pooled))


def _shown_unmapped(
    table: pd.DataFrame, site: str, min_count: int, rounding: Rounding | None
) -> pd.DataFrame:
    """Drug texts without a class; those of few patients are one row."""
    from ehr_prep.unmapped import hide_unmapped, pool_rare

    if rounding is None:
        return hide_unmapped(table, min_count)
    table = pool_rare(table, min_count).assign(site=site)
    rounded = {
        name: rounding.column(table, name, ["drug"], "unmapped", name)
        for name in ("records", "patients")
    }
    return table.drop(columns="site").assign(**rounded)


def follow_up_table(study: Study, courses: Courses) -> pd.DataFrame:
    """Numbers observed at three times, from the table of states by time, which shows them all."""
    shown = courses.shown("distribution").drop_duplicates(["site", "group", "time"])
    n = shown.pivot(index=["site", "group"], columns="time", values="n")
    order = list(dict.fromkeys(zip(shown["site"], shown["group"], strict=True)))
    times = list(dict.fromkeys(shown["time"]))
    chosen = list(dict.fromkeys([times[0], times[(len(times) - 1) // 2], times[-1]]))
    n = n.reindex(order)[chosen]
    share = n[chosen[-1]] / n[chosen[0]].where(n[chosen[0]] > 0)
    n.columns = pd.Index([f"{window_name(study)} {time}" for time in chosen])
    return n.assign(share=share).reset_index()


# --- few digits --------------------------------------------------------------------------

_DECIMALS: dict[str, int] = {
    **dict.fromkeys(("loglik", "bic", "aic", "sabic", "caic", "icl"), 0),
    **dict.fromkeys(("entropy", "smallest", "jaccard", "distance"), 2),
    **dict.fromkeys(("norm", "debiased", "low", "high", "estimate", "difference"), 3),
}
_DIGITS = 3


def round_indices(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """A table whose indices have few digits: many digits of what rests on all patients tell counts.

    Whole numbers stay as they are; other numbers have at most three digits, and some columns fewer.

    >>> table = pd.DataFrame({"bic": [2232.53434203], "n": [260], "se": [0.123456]})
    >>> round_indices("models", table)
          bic    n     se
    0  2233.0  260  0.123
    """
    if name.startswith(("agreement", "weights", "suggested")):
        return table.round(3)
    table = table.round({column: n for column, n in _DECIMALS.items() if column in table})
    broken = table.select_dtypes("floating")
    return table.assign(**{c: few_digits(broken[c].to_numpy(), _DIGITS) for c in broken})


def shown_indices(study: Study, name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The same where the study hides small numbers, for the table and for the figure of it."""
    return round_indices(name, table) if hides(study.privacy.min_count) else table


def shown_fits(
    table: pd.DataFrame,
    patients: Mapping[str, float],
    min_count: int,
    rounding: Rounding | None = None,
) -> pd.DataFrame:
    """Fits, with few digits and without the shares of classes where the smallest has few patients.

    The shares of all classes add up, so that they show together or not at all. Criteria are those
    of the log-likelihood and the entropy as they are shown, and with a `rounding` of the rounded
    numbers of patients: several criteria that are each rounded by themselves would reveal more
    digits together.
    """
    hidden = hides(min_count)
    if "sizes" in table:
        texts = [_percents(shares, 0 if hidden else 1) for shares in table["sizes"]]
        table = table.assign(sizes=texts)
    if not hidden:
        return table
    names = table["model" if "model" in table else "site"]
    n = names.map(patients).astype(float)
    few = is_small((table["smallest"] * n).round(6), min_count)
    if "sizes" in table:
        table = table.assign(sizes=table["sizes"].mask(few))
    if rounding is None:
        table = _of_shown_likelihood(table, n, n, lambda count, name: count)
    else:
        pairs = zip(n, names, strict=True)
        shown = pd.Series([_rounded_size(rounding, *pair) for pair in pairs], n.index)
        table = table.assign(patients=shown) if "patients" in table else table
        table = _of_shown_likelihood(table, n, shown, partial(_rounded_times, rounding))
    return round_indices("", table.assign(smallest=table["smallest"].mask(few)))


def _rounded_size(rounding: Rounding, n: float, name: str) -> float:
    """The number of patients of a site, or of a resample of it, rounded."""
    site = str(site_of(name))
    return rounding(n, site) if name == site else rounding(n, site, EVERYONE, "resample")


def _rounded_times(rounding: Rounding, count: float, name: str) -> float:
    """The number of observed states of a site, or of a resample of it, rounded."""
    return rounding(count, str(site_of(name)), EVERYONE, "time points", name)


def _of_shown_likelihood(
    table: pd.DataFrame,
    n: pd.Series,
    shown: pd.Series,
    shown_times: Callable[[float, str], float],
) -> pd.DataFrame:
    """Criteria of numbers that are shown beside them: they give no further digit of any of these.

    These are the rounded log-likelihood and entropy, and the numbers of patients (n, as `shown`) or
    of observed states (as `shown_times` gives them) that the criteria count.
    """
    if "loglik" not in table:
        return table
    loglik, p = table["loglik"].round(_DECIMALS["loglik"]), table["parameters"].astype(float)
    exact = np.exp((table["bic"] + 2 * table["loglik"]) / p.where(p > 0)).fillna(n)
    names = table["model" if "model" in table else "site"]
    counted = pd.Series(
        [
            size if abs(count - patients) < 0.5 else shown_times(count, name)
            for count, patients, size, name in zip(exact, n, shown, names, strict=True)
        ],
        table.index,
    ).clip(lower=1)
    bic = -2 * loglik + p * np.log(counted)
    entropy = (1 - table["entropy"].round(_DECIMALS["entropy"])) * shown * np.log(table["classes"])
    criteria = {
        "aic": -2 * loglik + 2 * p,
        "bic": bic,
        "sabic": -2 * loglik + p * np.log((counted + 2) / 24),
        "caic": bic + p,
        "icl": bic + 2 * entropy,
    }
    return table.assign(loglik=loglik, **{c: criteria[c] for c in CRITERIA if c in table})


def _percents(shares: list[float], digits: int) -> str:
    return " / ".join(f"{100 * share:.{digits}f}" for share in shares)
