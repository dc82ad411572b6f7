"""Records in a database are checked there: which can be used, and what is odd about them.

The steps are those of `read_records`, written once as Ibis expressions for every engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.databases.connect import Database
from ehr_prep.dates import day_text
from ehr_prep.readers import encode_ids
from ehr_prep.screen import MAX_DAYS, Issue
from ehr_prep.warehouse import batches_of, between, days_since_1970, position_of
from font.checks import some
from font.errors import InputError
from mmlca.sequences.account import Step, flow_table

_UNMAPPED = "drug not in the map"


class Source(NamedTuple):
    """Records as an Ibis table, before anything was checked.

    Parameters
    ----------
    table : Ibis table
        `who`, `date`, `drug`; where they exist: `end` and `supply`; `end_unread`, whether the end
        is a text that is no date; `default`, the days covered without an end or a supply; `birth`,
        the day of birth; `entry`, the first day that counts, where patients enter by a condition
        or a cohort. Both are days since 1970-01-01.
    people : Ibis table or None
        `who`, and where they exist `follow_up_end`, `observed_until` and `death`, as days.
    periods : Ibis table or None
        Observation periods: `who`, `begin`, `stop`, as days, in order and apart.
    """

    table: Any
    people: Any = None
    periods: Any = None


def scan(
    database: Database,
    source: Source,
    state_of: Mapping[Any, int],
    texts: Mapping[str, Any],
    *,
    span: tuple[int, int],
    duplicates: str = "drop",
    entry: str | None = None,
) -> dict[str, Any]:
    """Check the records where they are, and fetch one row per patient.

    Parameters
    ----------
    state_of : {drug: row of members}
        Of the drugs that the map knows, as the table spells them.
    texts : see `WarehouseRecords`: members, states, drug_map, drugs
    entry : str, optional
        What patients enter by, for the flow.

    Returns
    -------
    Keyword arguments of `WarehouseRecords`; and `n_kept`, the number of usable records with
    repetitions.
    """
    reasons, screened = _screen(source, state_of, span, entry)
    columns = source.table.columns
    has_end = not {"end", "supply", "default"}.isdisjoint(columns)
    screened = screened.mutate(last=_last_day(screened, columns)) if has_end else screened
    n_all, steps, per_patient = _count(database, reasons, screened)
    usable = screened.filter(screened.reason == 0)
    odd_dates = [(i, s) for i, s in enumerate(steps) if s.reason.startswith("date") and s.records]
    issues = [_odd_dates(database, screened, number, step) for number, step in odd_dates]
    issues += _odd_ends(database, usable, columns)
    if not len(per_patient):
        raise InputError(_nothing_usable(database, n_all[1], steps, texts["drugs"]))
    keys, ids = _sorted_ids(per_patient["who"])
    per_patient = per_patient.iloc[keys]
    raw = per_patient["who"].to_numpy()
    columns = ("who", "date", "day", "drug", "code")
    usable = usable.select(*columns, last=usable["last"] if has_end else usable.day)
    rows = usable.distinct() if duplicates == "drop" else usable
    n_kept = per_patient["kept"].to_numpy().astype(np.int64)
    if duplicates == "drop":
        n_each = _count_distinct(database, rows, raw, n_kept)
        again = int(n_kept.sum() - n_each.sum())
        steps.append(Step("usable", "repeats another record", 0, again))
        issues.append(Issue("repeats another record", again, "dropped", ""))
    else:
        n_each = n_kept
    unmapped = screened.filter(screened.reason == reasons.index(_UNMAPPED) + 1)
    seen = screened.filter(screened.reason.isin([0, reasons.index(_UNMAPPED) + 1]))
    seen = seen.group_by("who").aggregate(first_seen=seen.day.min(), last_seen=seen.day.max())
    return {
        "database": database,
        "n_kept": int(n_kept.sum()),
        "usable": usable,
        "rows": rows,
        "people": source.people,
        "keys": raw,
        "ids": ids,
        "indptr": np.concatenate([[0], np.cumsum(n_each)]),
        "first": per_patient["first"].to_numpy().astype(np.int32),
        "has_end": has_end,
        "first_seen": per_patient["first_seen"].to_numpy().astype(np.int32),
        "last_seen": per_patient["last_seen"].to_numpy().astype(np.int32),
        "seen": seen,
        "unmapped": unmapped,
        "flow": flow_table(*n_all, steps),
        "issues": issues,
        **texts,
    }


# --- inside ----------------------------------------------------------------------------


def _screen(
    source: Source, state_of: Mapping[Any, int], span: tuple[int, int], entry: str | None
) -> tuple[list[str], Any]:
    """The reasons in order, and the records with their day, class and first reason (0: usable)."""
    import ibis

    table, periods = source.table, source.periods

    by_code: dict[int, list[Any]] = {}
    for drug, code in state_of.items():
        by_code.setdefault(code, []).append(drug)
    pairs = [
        (table.drug.isin(drugs), ibis.literal(code, "int8")) for code, drugs in by_code.items()
    ]
    code = ibis.cases(*pairs, else_=ibis.literal(-1, "int8")) if pairs else ibis.literal(-1, "int8")
    date = table.date.date() if table.date.type().is_timestamp() else table.date
    table = table.mutate(date=date, day=days_since_1970(date), code=code)
    if periods is not None:
        inside = [table.day >= periods.begin, table.day <= periods.stop]
        table = table.left_join(periods, [table.who == periods.who, *inside])
        table = table.drop("who_right")
    no_drug = table.drug.isnull()
    if table.drug.type().is_string():
        no_drug |= table.drug.strip() == ""
    tests = {
        "no patient id": table.who.isnull(),
        "no drug": no_drug,
        "date missing or unreadable": table.day.isnull(),
        f"date before {day_text(span[0])}": table.day < span[0],
        f"date after {day_text(span[1])}": table.day > span[1],
    }
    if "birth" in table.columns:
        tests["date before birth"] = table.day < table.birth
    if periods is not None:
        tests["outside the observation periods"] = table.begin.isnull()
    tests[_UNMAPPED] = table.code < 0
    if entry is not None:
        tests[f"patient without {entry}"] = table.entry.isnull()
        tests[f"before {entry}"] = table.day < table.entry
    pairs = [
        (test.fill_null(False), ibis.literal(number, "int8"))
        for number, test in enumerate(tests.values(), start=1)
    ]
    return list(tests), table.mutate(reason=ibis.cases(*pairs, else_=ibis.literal(0, "int8")))


def _last_day(table: Any, columns: tuple[str, ...]) -> Any:
    """The last day each record covers: its end, else by its supply, else by the default."""
    import ibis

    last = table.day + table.default - 1 if "default" in columns else table.day
    if "supply" in columns:
        possible = (table.supply >= 1) & (table.supply <= MAX_DAYS)
        supplied = table.day + table.supply.ceil().cast("int32") - 1
        last = ibis.cases((possible.fill_null(False), supplied), else_=last)
    if "end" in columns:
        end = days_since_1970(table.end)
        possible = (end >= table.day) & (end - table.day < MAX_DAYS)
        last = ibis.cases((possible.fill_null(False), end), else_=last)
    return last.cast("int32")


def _count(
    database: Database, reasons: list[str], screened: Any
) -> tuple[tuple[int, int], list[Step], pd.DataFrame]:
    """Patients and records in all, what each reason dropped, and the patients who stay."""
    kept = screened.reason == 0
    unmapped = reasons.index(_UNMAPPED) + 1
    shows = kept | (screened.reason == unmapped)
    named = screened.filter(screened.who.notnull())
    each = named.group_by("who").aggregate(
        kept=kept.sum().cast("int64"),
        leaves_at=screened.reason.max(),
        first=screened.day.min(where=kept),
        first_seen=screened.day.min(where=shows),
        last_seen=screened.day.max(where=shows),
    )
    by_reason = database.fetch(
        screened.group_by("reason").aggregate(records=screened.count()), "records by reason"
    )
    leaving = each.mutate(leaves_at=(each.kept > 0).ifelse(0, each.leaves_at))
    by_patient = database.fetch(
        leaving.group_by("leaves_at").aggregate(patients=leaving.count()), "patients by reason"
    )
    records = dict(zip(by_reason["reason"], by_reason["records"], strict=True))
    patients = dict(zip(by_patient["leaves_at"], by_patient["patients"], strict=True))
    totals = int(sum(patients.values())), int(sum(records.values()))
    if not totals[1]:
        raise InputError(f"{database.name} has no drug records: the table is empty.")
    steps = [Step("usable", "wrong number of fields", 0, 0)]
    steps += [
        Step("usable", reason, int(patients.get(i, 0)), int(records.get(i, 0)))
        for i, reason in enumerate(reasons, start=1)
    ]
    staying = database.fetch(
        each.filter(each.kept > 0).drop("leaves_at"), "one row per patient with a usable record"
    )
    return totals, steps, staying


def _count_distinct(
    database: Database, rows: Any, keys: NDArray[Any], n_kept: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The records of each patient without repetitions, a batch of patients at a time."""
    counts = np.zeros(len(keys), dtype=np.int64)
    for low, high, single in batches_of(keys, n_kept):
        part = rows if single else between(rows, keys, low, high)
        each = part.group_by("who").aggregate(n=part.count())
        found = database.fetch(each, "records of each patient, without repetitions")
        counts[position_of(keys, found["who"])] = found["n"]
    return counts


def _sorted_ids(who: pd.Series) -> tuple[NDArray[np.intp], pd.Index]:
    """The order of the patients, and their ids as `read_records` would have them."""
    position, ids, _ = encode_ids(who)
    if len(ids) < len(who) or (position < 0).any():
        order = np.argsort(position, kind="stable")
        same = np.flatnonzero(np.diff(position[order]) == 0)
        twice = who.iloc[order[np.unique([same, same + 1])]]
        raise InputError(
            f"several ids of the database are blank or mean the same patient ({some(twice)}); "
            "make them alike there."
        )
    return np.argsort(position), ids


def _odd_dates(database: Database, screened: Any, number: int, step: Step) -> Issue:
    """Dates that cannot be, for one reason, with up to five examples."""
    part = screened.filter(screened.reason == number).select("who", "day")
    part = part.order_by(["who", "day"]).limit(5)
    rows = database.fetch(part, "examples of impossible dates")
    examples = [
        f"{who}: {'no date' if pd.isna(day) else day_text(int(day))}"
        for who, day in rows.itertuples(index=False)
    ]
    return Issue(step.reason, step.records, "dropped", "; ".join(examples))


def _odd_ends(database: Database, usable: Any, columns: tuple[str, ...]) -> list[Issue]:
    """Ends and supplies that cannot be, counted."""
    tests = {}
    if "supply" in columns:
        possible = (usable.supply >= 1) & (usable.supply <= MAX_DAYS)
        odd = ~possible & usable.supply.notnull()
        tests["impossible supply"] = odd, "supply ignored"
    if "end" in columns:
        end = days_since_1970(usable.end)
        tests["end before start"] = end < usable.day, "end ignored"
        tests[f"end covers more than {MAX_DAYS} days"] = end - usable.day >= MAX_DAYS, "end ignored"
    if "end_unread" in columns:
        tests["end unreadable"] = usable.end_unread, "end ignored"
    if "default" in columns:
        silent = _silent(usable, columns)
        tests["no end or supply"] = silent, "covered by the default supply"
    if not tests:
        return []
    sums = {f"n{i}": test.sum() for i, (test, _) in enumerate(tests.values())}
    counted = database.fetch(usable.aggregate(**sums), "impossible ends and supplies").iloc[0]
    return [
        Issue(issue, int(n) if pd.notna(n) else 0, action, "")
        for (issue, (_, action)), n in zip(tests.items(), counted, strict=True)
    ]


def _silent(table: Any, columns: tuple[str, ...]) -> Any:
    """Which records have neither a possible supply nor a possible end."""
    import ibis

    silent = ibis.literal(True)
    if "supply" in columns:
        silent &= ~table.supply.between(1, MAX_DAYS).fill_null(False)
    if "end" in columns:
        covered = days_since_1970(table.end) - table.day
        silent &= ~((covered >= 0) & (covered < MAX_DAYS)).fill_null(False)
    return silent


def _nothing_usable(database: Database, n: int, steps: list[Step], drugs: pd.DataFrame) -> str:
    reasons = ", ".join(f"{step.reason} ({step.records:,})" for step in steps if step.records)
    unknown = drugs[drugs["class"].isna()].sort_values("records", ascending=False)
    advice = (
        f"; the drugs are {some(unknown['drug'])}: give another drug map" if len(unknown) else ""
    )
    return f"no record of {database.name} is usable; {n:,} were dropped: {reasons}{advice}."
