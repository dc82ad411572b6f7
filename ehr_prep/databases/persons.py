"""The persons of an OMOP database: birth, sex and race, observation, death."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.databases.connect import Database
from ehr_prep.databases.fetch import days_of, fetch_of_patients
from ehr_prep.dates import NO_DATE, to_dates
from ehr_prep.patients import Observation, align_patients, read_observation
from ehr_prep.screen import Issue

# standard concepts, where a database keeps no names of them
_PEOPLE = {
    **{8507: "MALE", 8532: "FEMALE"},
    **{8527: "White", 8516: "Black or African American", 8515: "Asian"},
}
_KINDS = {"gender": "sex", "race": "race"}


def fetch_people(
    database: Database, patients: Any, ids: pd.Index, exits: pd.Series | None
) -> tuple[pd.DataFrame, Observation | None, list[Issue]]:
    """The patients' table and the observation periods of `ids`, and what is unusual about them.

    Parameters
    ----------
    patients : Ibis table `who`
        The patients with a drug record of a class.
    exits : Series of days by id, optional
        The last day in a cohort, which ends observation.
    """
    table = _persons(database, patients)
    deaths = database.has("death")
    if deaths is not None:
        deaths = deaths.select(who=deaths.person_id, date=deaths.death_date)
        rows = fetch_of_patients(database, deaths, patients, "deaths")
        first = pd.Series(days_of(rows["date"]), index=rows["who"])
        first = first[first != NO_DATE].groupby(level=0).min()
        table.insert(0, "death_date", _dates(first.reindex(table.index)))
    periods, issues = _periods(database, patients, ids, exits)
    if periods is None and exits is not None:
        end = _dates(exits.reindex(table.index))
        table.insert(table.columns.get_loc("birth_date") + 1, "follow_up_end", end)
    aligned, absent = align_patients(table, ids)
    no_birth = ~absent & aligned["birth_date"].isna().to_numpy()
    issues += [
        Issue("patient not in the table person", int(absent.sum()), "kept", ""),
        Issue("person without a year of birth", int(no_birth.sum()), "kept", ""),
    ]
    return aligned, periods, issues


# --- inside ----------------------------------------------------------------------------


def _persons(database: Database, patients: Any) -> pd.DataFrame:
    """Birth date, sex and race by id; the names of concepts, or what the source said."""
    sources = tuple(f"{kind}_source_value" for kind in _KINDS)
    person = database.table(
        "person",
        "person_id",
        "year_of_birth",
        *(f"{kind}_concept_id" for kind in _KINDS),
        optional=("month_of_birth", "day_of_birth", "birth_datetime", *sources),
    )
    rows = fetch_of_patients(database, person.rename(who="person_id"), patients, "persons")
    names = _person_names(database, rows)
    table = pd.DataFrame(index=pd.Index(rows["who"], name="id"))
    table["birth_date"] = to_dates(_births(rows))
    for kind, column in _KINDS.items():
        concept = rows[f"{kind}_concept_id"].map(names).to_numpy(dtype=object)
        source = f"{kind}_source_value"
        stated = rows[source].to_numpy(dtype=object) if source in rows else concept
        values = np.where(pd.isna(concept), stated, concept)
        table[column] = pd.Series(values, index=table.index, dtype=object)
    return table


def _births(rows: pd.DataFrame) -> NDArray[np.int32]:
    """Days of birth; a missing month or day counts as the first, an impossible year as none."""
    parts = {"month_of_birth": 12, "day_of_birth": 31}
    month, day = (
        rows[name].fillna(1).clip(1, most).to_numpy(np.int64)
        if name in rows
        else np.ones(len(rows), dtype=np.int64)
        for name, most in parts.items()
    )
    year = rows["year_of_birth"].astype(float)
    known = year.between(1800, 2200).to_numpy()
    months = (year.where(known, 1970).to_numpy(np.int64) - 1970) * 12 + month - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    birth = np.where(known, first + day - 1, NO_DATE).astype(np.int32)
    if "birth_datetime" in rows:
        exact = days_of(rows["birth_datetime"])
        birth = np.where(exact == NO_DATE, birth, exact)
    return birth


def _person_names(database: Database, rows: pd.DataFrame) -> Mapping[int, str]:
    used = {int(c) for k in _KINDS for c in rows[f"{k}_concept_id"].dropna().unique()} - {0}
    concept = database.table("concept", "concept_id", "concept_name")
    found = database.fetch(
        concept.filter(concept.concept_id.isin(sorted(used))), "names of persons' concepts"
    )
    return _PEOPLE | dict(zip(found["concept_id"], found["concept_name"], strict=True))


def _periods(
    database: Database, patients: Any, ids: pd.Index, exits: pd.Series | None
) -> tuple[Observation | None, list[Issue]]:
    """Observation periods, up to the exit from the cohort."""
    table = database.has("observation_period")
    if table is None:
        return None, []
    table = table.select(
        who=table.person_id,
        begin=table.observation_period_start_date,
        stop=table.observation_period_end_date,
    )
    rows = fetch_of_patients(database, table, patients, "observation periods")
    begin, stop = days_of(rows["begin"]), days_of(rows["stop"])
    if exits is not None:
        until = exits.reindex(rows["who"]).fillna(np.iinfo(np.int32).max).to_numpy(np.int64)
        inside = begin <= until
        rows, begin, stop = rows[inside], begin[inside], np.minimum(stop, until)[inside]
    spells = pd.DataFrame(
        {
            "patient_id": rows["who"].to_numpy(),
            "observation_start": to_dates(begin),
            "observation_end": to_dates(stop.astype(np.int32)),
        }
    )
    return read_observation(spells, ids)


def _dates(days: pd.Series) -> Any:
    """Days since 1970-01-01, some of them missing, as dates."""
    return to_dates(days.fillna(NO_DATE).to_numpy().astype(np.int32))
