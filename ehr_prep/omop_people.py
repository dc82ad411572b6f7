"""The persons of an OMOP database: birth, sex and race, observation, death."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ehr_prep.databases.connect import Database
from ehr_prep.dates import NO_DATE, to_dates
from ehr_prep.patients import Observation, align_patients, read_observation
from ehr_prep.screen import Issue
from ehr_prep.warehouse import days_since_1970, islands

# standard concepts, where a database keeps no names of them
_PEOPLE = {
    **{8507: "MALE", 8532: "FEMALE"},
    **{8527: "White", 8516: "Black or African American", 8515: "Asian"},
}


def person_table(database: Database) -> Any:
    """One row per person: day of birth, and the concepts and texts of sex and race."""
    import ibis

    kinds = ("gender", "race")
    optional = ("month_of_birth", "day_of_birth", "birth_datetime")
    sources = tuple(f"{kind}_source_value" for kind in kinds)
    person = database.table(
        "person",
        *("person_id", "year_of_birth"),
        *(f"{kind}_concept_id" for kind in kinds),
        optional=(*optional, *sources),
    )
    one = ibis.literal(1, "int32")
    month, day = (
        person[c].cast("int32").fill_null(one) if c in person.columns else one for c in optional[:2]
    )
    year = person.year_of_birth.cast("int32")
    year = year.between(1800, 2200).ifelse(year, ibis.null("int32"))
    birth = days_since_1970(ibis.date(year, month.clip(1, 12), one)) + day.clip(1, 31) - 1
    if "birth_datetime" in person.columns:
        birth = ibis.coalesce(days_since_1970(person.birth_datetime), birth)
    columns = {c: person[c] for c in person.columns if c.endswith(("concept_id", "source_value"))}
    return person.select(who=person.person_id, birth=birth.cast("int32"), **columns)


def follow_up_table(database: Database, person: Any, exits: Any = None) -> tuple[Any, Any]:
    """One row per person: the last day of observation and of life; and the observation periods.

    Parameters
    ----------
    exits : Ibis table `who`, `exit`, optional
        The last day in the cohort, which also ends observation.
    """
    table = person.select("who")
    periods, deaths = _periods(database, exits), _deaths(database)
    if deaths is not None:
        table = _outer_join(table, deaths)
    if periods is not None:
        table = with_ends(table, periods)
    elif exits is not None:
        table = _outer_join(table, exits.rename(follow_up_end="exit"))
    return table, periods


def with_ends(people: Any, periods: Any) -> Any:
    """The table of people with `observed_until`, the last day of their last period."""
    ends = periods.group_by("who").aggregate(observed_until=periods.stop.max())
    return ends if people is None else _outer_join(people, ends)


def fetch_people(
    database: Database, parts: Mapping[str, Any], periods: Any
) -> tuple[pd.DataFrame, Observation | None, list[Issue]]:
    """The patients' table, the observation periods, and what is odd about them."""
    ours = parts["usable"].select("who").distinct()
    person = person_table(database).left_join(parts["people"], "who").drop("who_right")
    persons = database.fetch(person.semi_join(ours, "who"), "persons with a usable record")
    kinds = {"gender": "sex", "race": "race"}
    names = _person_names(database, persons, kinds)
    table = pd.DataFrame(index=pd.Index(persons["who"], name="id"))
    dates = {"death_date": "death", "birth_date": "birth", "follow_up_end": "follow_up_end"}
    for name, column in dates.items():
        if column in persons:
            table[name] = as_dates(persons[column])
    for kind, column in kinds.items():
        concept = persons[f"{kind}_concept_id"].map(names).to_numpy(dtype=object)
        source = f"{kind}_source_value"
        stated = persons[source].to_numpy(dtype=object) if source in persons else concept
        values = np.where(pd.isna(concept), stated, concept)
        table[column] = pd.Series(values, index=table.index, dtype=object)
    aligned, absent = align_patients(table, parts["ids"])
    no_birth = ~absent & aligned["birth_date"].isna().to_numpy()
    odd = [
        Issue("patient not in the table person", int(absent.sum()), "kept", ""),
        Issue("person without a year of birth", int(no_birth.sum()), "kept", ""),
    ]
    return aligned, None if periods is None else fetch_periods(database, parts, periods), odd


def fetch_periods(database: Database, parts: Mapping[str, Any], periods: Any) -> Observation:
    """The observation periods of the patients with a usable record."""
    ours = parts["usable"].select("who").distinct()
    mine = database.fetch(periods.semi_join(ours, "who"), "observation periods")
    spells = pd.DataFrame(
        {
            "patient_id": mine["who"],
            "observation_start": as_dates(mine["begin"]),
            "observation_end": as_dates(mine["stop"]),
        }
    )
    return read_observation(spells, parts["ids"])[0]


# --- inside ----------------------------------------------------------------------------


def _outer_join(people: Any, more: Any) -> Any:
    """Both tables by `who`: somebody may be missing from one of them, such as from person."""
    import ibis

    both = people.outer_join(more, "who")
    return both.mutate(who=ibis.coalesce(both.who, both.who_right)).drop("who_right")


def _periods(database: Database, exits: Any) -> Any:
    """Observation periods in order and apart, up to the exit from the cohort."""
    import ibis

    table = database.has("observation_period")
    if table is None:
        return None
    table = table.select(
        who=table.person_id,
        begin=days_since_1970(table.observation_period_start_date),
        stop=days_since_1970(table.observation_period_end_date),
    )
    if exits is not None:
        table = table.left_join(exits, "who").drop("who_right")
        cut = table.exit.isnull().ifelse(table.stop, ibis.least(table.stop, table.exit))
        table = table.mutate(stop=cut).drop("exit")
    table = table.filter(table.begin <= table.stop)
    return islands(table, ["who"], 0)


def _deaths(database: Database) -> Any:
    table = database.has("death")
    if table is None:
        return None
    table = table.select(who=table.person_id, day=days_since_1970(table.death_date))
    return table.group_by("who").aggregate(death=table.day.min())


def _person_names(
    database: Database, persons: pd.DataFrame, kinds: Mapping[str, str]
) -> dict[int, str]:
    used = {int(c) for k in kinds for c in persons[f"{k}_concept_id"].dropna().unique()} - {0}
    concept = database.table("concept", "concept_id", "concept_name")
    found = database.fetch(
        concept.filter(concept.concept_id.isin(sorted(used))), "names of persons' concepts"
    )
    return _PEOPLE | dict(zip(found["concept_id"], found["concept_name"], strict=True))


def as_dates(days: pd.Series) -> Any:
    """Days since 1970-01-01, some of them missing, as dates."""
    return to_dates(days.fillna(NO_DATE).to_numpy().astype(np.int32))
