"""When states are left: the probability of leaving by time in state and period."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pandas as pd

from mmlca.figures.leaving import plot_leaving_table
from mmlca.model.forms import leaving_words
from mmlca.sequences.forms import PLAIN
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.sections.section import Section
from mmlca.study.words import sentences, window_name, windows_name
from mmlca.tables.disclosure import hidden_note, hides

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

_COLUMNS = ["class", "state", "stay", "period", "leaving", "se", "low", "high"]


def leaving_by_site(findings: Findings) -> dict[str, pd.DataFrame]:
    """The probabilities of leaving of each site's own model, where any may be shown.

    Rows of `parameters`: one for each class, state, time in state and period, in this order.
    """
    parameters = findings.fits.parameters
    if parameters is None:
        return {}
    rows = parameters[parameters["parameter"] == "leave"]
    return {
        str(site): table.drop(columns="site").astype({"class": int}).reset_index(drop=True)
        for site, table in rows.groupby("site", sort=False)
        if table["estimate"].notna().any()
    }


# --- in words -----------------------------------------------------------------------------


def leaving_sentences(study: Study, findings: Findings, site: str) -> dict[int, str]:
    """How often each class of a site leaves the state that most of its patients begin in.

    Classes of which too few patients begin in any state, or leave it, are left out.
    """
    parameters = findings.fits.parameters
    assert parameters is not None
    here = parameters[parameters["site"] == site]
    windows = window_name(study), windows_name(study)
    texts = {}
    for k in sorted(here["class"].astype(int).unique()):
        rows = here[here["class"] == k]
        first = rows[rows["parameter"] == "initial"].dropna(subset="estimate")
        if not len(first):
            continue
        state = first.loc[first["estimate"].idxmax(), "to"]
        leave = rows[(rows["parameter"] == "leave") & (rows["from"] == state)]
        periods, bins = (list(dict.fromkeys(leave[name])) for name in ("period", "stay"))
        shares = leave["estimate"].to_numpy().reshape(len(periods), len(bins))
        if text := leaving_words(str(state), bins, periods, shares, windows):
            texts[int(k)] = text
    return texts


def largest_class(study: Study, findings: Findings) -> list[str]:
    """What the largest class of each site that has such a sentence does, for the summary."""
    parts = []
    for site in leaving_by_site(findings):
        texts = leaving_sentences(study, findings, site)
        k = 1  # classes are ordered by size
        if k not in texts:
            continue
        at = f" at {site}" if len(findings.sites) > 1 else ""
        parts.append(f"{texts[k]} ({findings.class_names[site][k]}{at})")
    if not parts:
        return []
    largest = "the largest class" if len(findings.sites) == 1 else "the largest class of each site"
    return [f"In {largest}, {'; '.join(parts)}."]


# --- figures ------------------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """The probabilities of leaving of each site's own model."""
    for site, table in leaving_by_site(findings).items():
        yield _leaving(study, findings, site, table, findings.class_names[site])


def _leaving(
    study: Study, findings: Findings, site: str, table: pd.DataFrame, names: Mapping[int, str]
) -> Item:
    window, windows = window_name(study), windows_name(study)
    whose = f"the own model of {site}" if len(study.sites) > 1 else "the model"
    by = [
        f"how many {windows} a patient has been in it" if (table["stay"] != "").any() else "",
        f"the {windows} since the start" if (table["period"] != "").any() else "",
    ]
    said = [
        f"{names[k][:1].upper()}{names[k][1:]}: {text}."
        for k, text in leaving_sentences(study, findings, site).items()
    ]
    few = (
        f"Missing are probabilities where fewer than {study.privacy.min_count} patients leave, or "
        "stay."
    )
    shown = table.rename(columns={"from": "state", "estimate": "leaving"})
    return Item(
        f"leaving_{site}",
        f"When states are left, {site}",
        sentences(
            f"Probability of leaving a state in the next {window} in each class of {whose}, by "
            f"{' and by '.join(filter(None, by))}, with 95 % limits. It reads like a hazard curve: "
            "a line that falls means that patients who have stayed for longer are less likely to "
            "leave.",
            *said,
            few if hides(study.privacy.min_count) else "",
        ),
        shown.assign(**{"class": shown["class"].map(names)})[_COLUMNS],
        Plain(shares=("leaving", "low", "high"), n_keys=4, left_out="leaving"),
        lambda: plot_leaving_table(table, names=names, windows=windows),
        f"Lines of the probability of leaving each state by time in it, for each class at {site}.",
        note=hidden_note(study.privacy.min_count),
    )


# --- methods, cautions and answers --------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """What the chains depend on, where they are not plain."""
    form = study.given_form
    if findings.fits.form == PLAIN.title or findings.fits.form != form.title:
        return []
    windows, text = windows_name(study), []
    if form.stays:
        text.append(
            "The probability of leaving a state depended on the class and on how long the patient "
            f"had been in it ({', '.join(form.bins)} {windows}); the next state of those who leave "
            "did not depend on that time."
        )
    if form.periods:
        what = "The probability of leaving a state" if form.shared else "All probabilities of steps"
        text.append(
            f"{what} differed between periods of follow-up ({', '.join(form.period_labels)} "
            f"{windows})."
        )
    return text


def cautions(study: Study, findings: Findings) -> list[str]:
    """What is still computed with plain chains, where the models have others."""
    if findings.fits.form == PLAIN.title or len(findings.sites) == 1:
        return []
    return [
        "The differences between sites, and the test of shared courses, are about the transitions "
        "between states, whatever the time in state; they do not say whether sites differ in when "
        "a state is left."
    ]


SECTION = Section("leaving", "When states are left", items, methods, cautions)
