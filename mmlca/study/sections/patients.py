"""Where the sequences come from: records, drugs that have no class, flow and follow-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ehr_prep.drugs import unmapped_caution
from mmlca.figures.flow import plot_flow
from mmlca.sequences.checks import listed
from mmlca.study.release import count_note
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.results.registry import whole_numbers
from mmlca.study.results.site import stacked
from mmlca.study.sections.section import NOT_DONE, Section
from mmlca.study.words import group_word, period, sentences, window_name, windows_name
from mmlca.tables.clusters import percent_text
from mmlca.tables.course_tables import Courses
from mmlca.tables.disclosure import hides, is_small

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

_FOLLOW_UP = "Who is observed to the end"
_MANY_LEFT = 0.05


# --- tables and figures -------------------------------------------------------------------


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """Invalid records, unmapped drugs and the flow of patients at each site; end of follow-up."""
    note, by_files = count_note(study), findings.combined.by_files
    of_records = {
        site: result.tables for site, result in findings.results.items() if result.from_records
    }
    for site, tables in of_records.items():
        if len(tables["issues"]):
            yield Item(
                f"issues_{site}",
                f"Invalid or unusual records at {site}",
                sentences(
                    "What was invalid or unusual, how many records were affected, and how they "
                    "were handled.",
                    "" if by_files else "The folder patients has examples.",
                ),
                tables["issues"],
                note=note,
            )
    for site, tables in of_records.items():
        if len(tables["unmapped"]):
            yield Item(
                f"unmapped_{site}",
                f"Drugs at {site} that are not in the drug map",
                "Drug texts without a class, the most frequent first, each with the known name "
                "that it resembles, if any. Texts that concern few patients are combined in one "
                f"row; {'unmapped.csv of the hospital' if by_files else 'the folder patients'} "
                "lists them.",
                tables["unmapped"],
                note=note,
            )
    for site, tables in of_records.items():
        yield _flow(site, tables["flow"], note)
    yield Item(
        "follow_up",
        _FOLLOW_UP,
        f"Patients observed in the first {window_name(study)}, halfway through and in the last, by "
        f"{group_word(study)}, and the last number as a share of the first. If follow-up ends "
        "sooner in one group than in another, its end may be related to treatment.",
        follow_up_table(study, findings.courses[findings.view].tables),
        Plain(shares=("share",), n_keys=2),
        note=note,
    )


def _flow(site: str, flow: pd.DataFrame, note: str) -> Item:
    flow = whole_numbers(flow, "flow")
    return Item(
        f"flow_{site}",
        f"Flow of patients at {site}",
        f"Patients and records from the files to the sequences at {site}: how many were left "
        "out, and why.",
        flow,
        draw=lambda: plot_flow(flow),
        alt=f"Flow chart of the patients and records kept and left out at {site}.",
        note=note,
    )


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


# --- methods ------------------------------------------------------------------------------


def methods(study: Study, findings: Findings) -> list[str]:
    """Who was included, what the states are, and when follow-up ended."""
    rules, window, states = study.rules, window_name(study), listed(findings.states)
    accounts = stacked(findings.results, "account")
    if not study.from_records:
        return [f"We analysed sequences of the states {states}."]
    since = rules.first_on_or_after
    when = "at any time" if since is None else f"on or after {since.isoformat()}"
    most = {"records": "was recorded most often", "days": "covered most days"}[rules.by]
    state = f"In each {window}, a patient's state was the drug class ({states}) that {most}."
    if rules.states != "most_frequent":
        state = _combinations(study, states, most)
    return [
        f"We included patients whose first treatment was {when} and followed them from that day "
        f"for up to {rules.max_windows} {windows_name(study)}.",
        state,
        _ties(study),
        f"In a {window} without a record, {_empty_windows(study)}.",
        *_supply(study),
        *_follow_up(study, accounts),
        *_deaths(study, accounts),
    ]


def _combinations(study: Study, states: str, most: str) -> str:
    rules, window = study.rules, window_name(study)
    others = (
        "all other combinations share one state"
        if rules.combinations is not None
        else f"of those taken by at least {rules.min_combination_patients} patients, the "
        f"{rules.max_combinations} most frequent are states of their own; all others share one"
    )
    return (
        f"Supplies of a drug class that were at most {rules.gap_days} days apart were joined. The "
        f"states were {states}: classes used together for at least {rules.combination_days} days "
        f"of a {window} formed a combination ({others}); otherwise, a patient's state was the "
        f"class that {most} in the {window}."
    )


def _ties(study: Study) -> str:
    """Which of several classes that count equally was the state."""
    window = window_name(study)
    tied, counted = {
        "records": ("were recorded equally often", "recorded"),
        "days": ("covered equally many days", "taken"),
    }[study.rules.by]
    winner = {
        "first": f"the one {counted} first in the {window}",
        "latest": f"the one {counted} last in the {window}",
        "previous": f"the one that was the state of the {window} before, or otherwise the one "
        f"{counted} first",
    }[study.rules.ties]
    return (
        f"If several classes {tied}, the state was {winner}; if that was the same day, the one "
        "with the longer supply, then the one taken before, then the first in alphabetical order."
    )


def _empty_windows(study: Study) -> str:
    """What became of windows without a record, as the end of a sentence."""
    rules = study.rules
    missing = "the state was missing and was summed over in the likelihood"
    off = (
        missing
        if rules.off_treatment == "missing"
        else f"the state was “{rules.off_treatment}” (off treatment)"
    )
    return {
        "carry_forward": "the last state was carried forward",
        "carry_forward_supplied": "the last state was carried forward until "
        f"{rules.gap_days} days after the end of its supply; after that, {off}",
        "carry_forward_max": f"the last state was carried forward at most {rules.max_carry} times; "
        f"after that, {off}",
        "missing": missing,
    }[rules.impute]


def _supply(study: Study) -> list[str]:
    supply = study.records.default_supply
    if supply is None:
        return []
    if isinstance(supply, int):
        covered = f"{supply} days"
    else:
        covered = listed([f"{n} days of {name}" for name, n in supply.items()])
    return [f"A record without an end date or a supply was assumed to cover {covered}."]


def _follow_up(study: Study, accounts: pd.DataFrame) -> list[str]:
    """How follow-up ended at each site, as the accounts of the sequences say."""
    kinds = accounts.groupby("follow_up_by", sort=False)["site"].agg(list)
    window, cut = window_name(study), study.rules.data_cut
    latest = "" if cut is None else f", and no later than {cut.isoformat()}"
    how = {
        "patients": "on the date in the patients' table (for patients without one, with their last "
        f"record of any kind){latest}",
        "observation": f"with the last observation period{latest}; records outside observation "
        f"periods were dropped, and a {window} without a record was missing if less than half of "
        "it was observed",
        "last_record": f"with a patient's last record of any kind{latest}, since no other end of "
        "follow-up was known",
        "date": f"for all patients on {study.rules.follow_up}{latest}",
    }
    if len(kinds) == 1:
        return [f"Follow-up ended {how[kinds.index[0]]}."]
    return [f"At {listed(sites)}, follow-up ended {how[kind]}." for kind, sites in kinds.items()]


def _deaths(study: Study, accounts: pd.DataFrame) -> list[str]:
    known = accounts[accounts["deaths_known"]]
    if not len(known):
        return ["Dates of death were not known."] if len(accounts) else []
    sites = known["site"].tolist()
    if study.rules.death == "end":
        where = "" if len(known) == len(accounts) else f" at {listed(sites)}, where it was known"
        return [f"Death ended follow-up{where}."]
    ends = known["data_end"].tolist()
    days = [f"{day} at {site}" for site, day in zip(sites, ends, strict=True)]
    if len(set(ends)) == 1:
        days = [str(ends[0])]
    return [
        f"The state of a {window_name(study)} that began after a patient's death was “dead”, which "
        "the model cannot leave. Patients who died were counted until the end of the data "
        f"({listed(days)}), as were living patients who were followed until then."
    ]


# --- cautions and answers -----------------------------------------------------------------


def cautions(study: Study, findings: Findings) -> list[str]:
    """What the patients are, and what the records do not show."""
    notes = []
    if study.synthetic:
        notes.append(
            "The patients are synthetic: the numbers show what the method does, and nothing about "
            "any hospital."
        )
    return [
        *notes,
        *_about_drugs(findings),
        *_about_deaths(study, findings),
        *_about_windows(study, findings),
    ]


def _about_drugs(findings: Findings) -> list[str]:
    """Sites where many records are of drugs that the map does not know."""
    notes = []
    for site, lost in stacked(findings.results, "account")[["site", "unmapped"]].to_numpy():
        table = findings.results[site].tables["unmapped"]
        if note := unmapped_caution(table, lost, f"tables/unmapped_{site}.csv"):
            notes.append(f"At {site}, {note[0].lower()}{note[1:]}")
    return notes


def _about_deaths(study: Study, findings: Findings) -> list[str]:
    """Where death is a state: sites whose living patients leave before the end of the data."""
    accounts = stacked(findings.results, "account").set_index("site")
    patients = stacked(findings.results, "about").set_index("site")["patients"]
    parts = []
    for site, left in accounts["left_alive"].dropna().items():
        n = patients[site]
        if left > _MANY_LEFT * n and not is_small([left, n - left], study.privacy.min_count).any():
            parts.append(f"{percent_text(left / n)} at {site}")
    if not parts:
        return []
    return [
        f"Of all patients, {listed(parts)} left alive before the end of the data, whereas patients "
        "who died are counted until then, so the shares of the dead are larger than the risk of "
        "death. Kaplan–Meier curves (outcomes.event) are not affected."
    ]


def _about_windows(study: Study, findings: Findings) -> list[str]:
    """How many windows had no record or several classes, at all sites in one sentence."""
    shares = []
    for row in stacked(findings.results, "account").to_dict("records"):
        if total := row["followed_up"]:
            per_patient = len(findings.results[row["site"]].tables["times"])
            kinds = ("without_record", "several_classes", "tied")
            parts = [_window_share(row[kind], total, per_patient, study) for kind in kinds]
            shares.append([f"{part} at {row['site']}" for part in parts])
    if not shares:
        return []
    empty, several, tied = (listed(list(part)) for part in zip(*shares, strict=True))
    done = "filled in" if study.rules.impute != "missing" else "left missing"
    return [
        f"Of the {windows_name(study)}, {empty} had no record and were {done}; {several} had two "
        f"or more drug classes; in {tied}, several classes were recorded equally often."
    ]


def _window_share(windows: float, every: float, per_patient: int, study: Study) -> str:
    """A share of all windows in words; a bound where the windows could be those of few patients."""
    most = study.privacy.min_count * per_patient
    if hides(study.privacy.min_count) and is_small(windows, most):
        return f"less than {np.ceil(100 * min(most / every, 1)):.0f} %"
    return percent_text(min(windows / every, 1))


def answers(study: Study, findings: Findings) -> dict[str, str]:
    """Time, missing values, and what RECORD-PE asks about the data."""
    window, windows, several = window_name(study), windows_name(study), len(findings.sites) > 1
    flow = f"flow of patients{' at each site' if several else ''}"
    ended = f"end of follow-up by {group_word(study)}{' and site' if several else ''}"
    missing = f"no {window} is missing between the first and the last"
    if stacked(findings.results, "about")["gaps"].any():
        missing = "missing states are summed over in the likelihood"
    return {
        "1": f"one {window}, for up to {period(study, len(findings.times))}",
        "2": f"does not apply: time is counted in {windows} from each patient's first treatment",
        "3a": "methods: assumed to be missing at random, which these data cannot test",
        "3b": f"{ended}: the table “{_FOLLOW_UP}”; other variables: {NOT_DONE}",
        "3c": f"methods; {missing}",
        "4.a": "methods: a cohort followed from the first treatment",
        "6.1": f"methods, and the {flow}",
        "7.1": "methods; the drug map is in the settings or in the file that they name",
        "7.1.c": f"methods: {windows}, and how those without a record were handled; why they have "
        f"this length: {NOT_DONE}",
        "7.1.g": "methods: the state of a window",
        "12.2": f"{flow}, and the tables of invalid or unusual records",
        "13.1": flow,
    }


SECTION = Section("patients", "Patients and records", items, methods, cautions, answers)
