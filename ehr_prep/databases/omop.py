"""Records and persons from a database in the OMOP common data model, versions 5.3 and 5.4."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.databases.concepts import ConceptSets, Resolved, concepts_of, read_sets, resolve
from ehr_prep.databases.connect import Database
from ehr_prep.databases.warehouse import (
    Entry,
    Exposures,
    days_since_1970,
    fetch_records,
    see_patients,
)
from ehr_prep.drugs import Drugs, Texts, look_up
from ehr_prep.patients import Observation, align_patients, read_observation
from ehr_prep.records import Records
from ehr_prep.screen import Checks, Others
from ehr_prep.settings import Reading
from ehr_prep.values import NO_DATE, Issue, one_day, to_dates, to_days
from font.checks import one_of, some
from font.errors import InputError
from font.settings import change
from mmlca.sequences.checks import match_ids

Labs: TypeAlias = str | Sequence[str] | Mapping[str, Sequence[int]]

TESTS = {
    "ESR": ("4537-7", "30341-2", "18184-2"),
    "CRP": ("1988-5", "30522-7", "71426-1"),
}
"""LOINC codes of the tests that `labs` knows by name."""

_CONCEPTS_OF_TESTS = {"ESR": (3013707, 3015183), "CRP": (3020460, 3010156)}
_LIMITS = {4171756: "<", 4171754: "<", 4172704: ">", 4171755: ">"}
_TABLES = {
    "drug_exposure": ("drug_exposure_start_date", "drug_exposure_end_date", "days_supply"),
    "drug_era": ("drug_era_start_date", "drug_era_end_date", None),
}


def read_omop(
    connection: Any,
    schema: str | None = None,
    drugs: Drugs | ConceptSets | None = None,
    condition: int | str | os.PathLike[str] | Sequence[int | str] | None = None,
    cohort: str | int | None = None,
    labs: Labs | None = None,
    *,
    table: str = "drug_exposure",
    earliest: Any = "1901-01-01",
    latest: Any = None,
    duplicates: str = "drop",
) -> Records:
    """Read drug records, patients and labs from an OMOP database, without changing anything there.

    Drug concepts become classes through `concept_ancestor`; where that table is empty, through
    `concept_relationship`, and by their names. `.settings["concepts"]` says how many records each
    way mapped, how many have concept 0, and how many stay unmapped. The patients' table has
    birth date (a missing month or day counts as the first), sex and race by concept name, and the
    day of death. Only records of drugs with a class are fetched, and what other tables hold about
    their patients; `.explain()` has the SQL.

    Parameters
    ----------
    connection : Ibis connection or URL
        "postgresql://host/database", "duckdb:///file.duckdb", "parquet:folder/", "csv:folder/" or
        "spark://host:port". A URL holds no password: the driver takes it from the environment
        (PGPASSWORD) or from its own file (~/.pgpass).
    schema : str, optional
        Where the tables are.
    drugs : drug map or {class: concepts}
        Needed; see `drug_map`. Concepts of a class are ids, ATC codes or prefixes ("L04AB*"), or
        the name of a file that Atlas exported; descendants are included, but for those that Atlas
        excludes.
    condition : concept id, ids or Atlas file, optional
        Patients enter with the first record of this condition or of one below it: those without
        are left out, and so are drug records before it.
    cohort : str or int, optional
        Patients enter with a row of a cohort table (`subject_id`, `cohort_start_date`,
        `cohort_end_date`) and are followed up to its end: "table", "schema.table", "table:7" for
        one definition in it, or 7 for that in the table cohort. Of several rows the first counts.
    labs : "ESR", "CRP", a list of them, or {name: concept ids}, optional
        Measurements, as `.labs`: `patient_id`, `date`, `test`, `value`.
    table : "drug_exposure" or "drug_era"
    earliest, latest, duplicates
        As in `read_records`.

    Examples
    --------
    >>> import ehr_prep, tempfile
    >>> cohort = ehr_prep.ra_cohort(seed=1, scale=0.02)
    >>> folder = tempfile.mkdtemp()
    >>> _ = ehr_prep.synthetic.write_omop(cohort["MGB"], folder)
    >>> records = read_omop(f"parquet:{folder}", drugs="ra", labs="ESR")
    >>> ehr_prep.build_sequences(records).states[:2]
    ('TNFi', 'CTLA4-Ig')
    """
    one_of(table, _TABLES, "table")
    reading = change(Reading(), {"latest": latest, "duplicates": duplicates})
    if condition is not None and cohort is not None:
        raise InputError("patients enter by a condition or by a cohort; give one of the two.")
    span = one_day(earliest, "earliest"), one_day(reading.latest or dt.date.today(), "latest")
    database = Database(connection, schema)
    entry = _entry(database, condition, cohort)
    rows, day = _rows(database, table)
    used = _used(database, rows, table)
    resolved = resolve(database, drugs, used)
    texts, text_of = _texts(resolved, used)
    exposures = Exposures(rows, day, text_of, texts, rows.drug == 0, entry)
    seen = see_patients(database, exposures, span)
    patients, exits, entered = exposures.patients(), None, None
    if entry is not None and seen.entry is not None:
        entered = entry.name, seen.entry["entry"].to_numpy().astype(np.int32)
        exits = seen.entry["exit"].dropna() if "exit" in seen.entry else None
    people, periods, issues = _people(database, patients, seen.ids, exits)
    tests = None
    if labs is not None:
        tests = _labs(database, patients, seen.ids, seen.others, labs, span)
    checks = Checks(
        database.name,
        seen.ids,
        texts,
        resolved.drugs,
        span,
        people,
        periods,
        entered,
        reading=reading,
        suggest=False,
    )
    settings = {
        "columns": {
            "patient": "person_id",
            "date": _TABLES[table][0],
            "drug": "drug_concept_id",
        },
        "patients": "person",
        "labs": None if labs is None else "measurement",
        "table": table,
        "concepts": resolved.records,
        "entry": "the first drug record" if entry is None else entry.name,
    }
    records = fetch_records(database, exposures, seen, checks, issues, settings)
    if tests is None:
        return records
    tests = tests[tests["patient_id"].isin(records.ids)].reset_index(drop=True)
    return replace(records, labs=tests)


# --- tables of the model -----------------------------------------------------------------


def _rows(database: Database, name: str) -> tuple[Any, Any]:
    """The drug records as `Exposures` has them, and their day."""
    start, end, supply = _TABLES[name]
    optional = (end,) if supply is None else (end, supply)
    drugs = database.table(name, "person_id", "drug_concept_id", start, optional=optional)
    columns = {"patient": drugs.person_id, "date": drugs[start], "drug": drugs.drug_concept_id}
    columns |= {
        role: drugs[column]
        for role, column in (("end", end), ("supply", supply))
        if column is not None and column in drugs.columns
    }
    rows = drugs.select(**columns)
    return rows, days_since_1970(rows.date)


def _entry(database: Database, condition: Any, cohort: str | int | None) -> Entry | None:
    if condition is not None:
        wanted = [condition] if isinstance(condition, (int, str, os.PathLike)) else list(condition)
        _, items = read_sets({"condition": wanted})
        if all(i.excluded for i in items):
            raise InputError(
                f"the condition must be concept ids or an Atlas file; found {condition!r}."
            )
        concepts = concepts_of(database, items)
        table = database.table(
            "condition_occurrence", "person_id", "condition_concept_id", "condition_start_date"
        )
        table = table.filter(table.condition_concept_id.isin(concepts))
        table = table.select(who=table.person_id, day=days_since_1970(table.condition_start_date))
        first = table.group_by("who").aggregate(entry=table.day.min())
        return Entry("the condition", first)
    if cohort is None:
        return None
    text = f"cohort:{cohort}" if isinstance(cohort, int) else cohort
    name, _, definition = text.partition(":")
    place, _, name = name.rpartition(".")
    other = database if not place else database.within(place)
    columns = ("subject_id", "cohort_start_date", "cohort_end_date")
    table = other.table(name, *columns, optional=("cohort_definition_id",))
    if definition:
        if "cohort_definition_id" not in table.columns or not definition.isdecimal():
            raise InputError(
                f"the cohort table {name} has no definition {definition!r}: that is a whole number "
                "in its column cohort_definition_id; leave it out, or correct it."
            )
        table = table.filter(table.cohort_definition_id == int(definition))
    table = table.select(
        who=table.subject_id,
        entry=days_since_1970(table.cohort_start_date),
        exit=days_since_1970(table.cohort_end_date),
    )
    first = table.group_by("who").aggregate(entry=table.entry.min())
    rows = table.join(first, ["who", "entry"])
    rows = rows.group_by(["who", "entry"]).aggregate(exit=rows.exit.max())
    return Entry("the cohort", rows)


def _used(database: Database, rows: Any, table: str) -> dict[int, int]:
    """{drug concept: records}; a record without a concept counts as concept 0."""
    concepts = rows.group_by("drug").aggregate(n=rows.count())
    found = database.fetch(concepts, "records by drug concept")
    if not len(found):
        raise InputError(
            f"the table {table} of {database.name} has no rows; check the schema, or read the "
            "other one of drug_exposure and drug_era."
        )
    used = found[found["drug"].notna()]
    return {int(c): int(n) for c, n in zip(used["drug"], used["n"], strict=True)}


def _texts(resolved: Resolved, used: Mapping[int, int]) -> tuple[Texts, dict[int, int]]:
    """The concepts as drug texts, and {concept: row label of its text}."""
    concepts = sorted(used)
    labels = pd.Series([resolved.labels[c] for c in concepts], dtype=object)
    texts = look_up(labels, resolved.drugs)
    table = texts.table.assign(records=[used[c] for c in concepts])
    # a concept that the vocabulary knows is another drug; only 0 is one that nobody knows
    return texts._replace(table=table), {concept: i for i, concept in enumerate(concepts)}


def _labs(
    database: Database,
    patients: Any,
    ids: pd.Index,
    others: Others,
    labs: Labs,
    span: tuple[int, int],
) -> pd.DataFrame:
    """Measurements of our patients; they also show that a patient was still followed."""
    tests = _tests(database, labs)
    name_of = {concept: name for name, concepts in tests.items() for concept in concepts}
    table = database.table(
        "measurement",
        "person_id",
        "measurement_concept_id",
        "measurement_date",
        "value_as_number",
        optional=("operator_concept_id",),
    )
    table = table.filter(table.measurement_concept_id.isin(sorted(name_of)))
    table = table.rename(who="person_id")
    found = _fetch_of(database, table, patients, "laboratory values")
    who, day = match_ids(pd.Index(found["who"]), ids), to_days(found["measurement_date"])
    usable = (who >= 0) & (day >= span[0]) & (day <= span[1])
    others.widen(who[usable], day[usable])
    value = found["value_as_number"].astype(float).astype(object)
    if "operator_concept_id" in found:
        sign = found["operator_concept_id"].map(_LIMITS)
        limit = sign.notna() & found["value_as_number"].notna()
        value[limit] = [f"{s}{v:g}" for s, v in zip(sign[limit], value[limit], strict=True)]
    result = pd.DataFrame(
        {
            "patient_id": ids[who],
            "date": to_dates(day),
            "test": found["measurement_concept_id"].map(name_of).astype(object),
            "value": value,
        }
    )
    return result[who >= 0].sort_values(
        ["patient_id", "date", "test"], kind="stable", ignore_index=True
    )


def _tests(database: Database, labs: Labs) -> dict[str, list[int]]:
    if isinstance(labs, Mapping):
        return {str(name): [int(c) for c in concepts] for name, concepts in labs.items()}
    names = [labs] if isinstance(labs, str) else list(labs)
    unknown = [name for name in names if name not in TESTS]
    if unknown:
        raise InputError(
            f"labs knows {some(TESTS)} by name, found {some(unknown)}; give the concept ids of "
            'others, as in {"ferritin": [3001122]}.'
        )
    concept = database.table("concept", "concept_id", "concept_code", "vocabulary_id")
    codes = [code for name in names for code in TESTS[name]]
    part = concept.filter((concept.vocabulary_id == "LOINC") & concept.concept_code.isin(codes))
    found = database.fetch(part, "concepts of the laboratory tests")
    ids = {name: list(_CONCEPTS_OF_TESTS[name]) for name in names}
    for row in found.itertuples(index=False):
        name = next(name for name in names if row.concept_code in TESTS[name])
        ids[name].append(int(row.concept_id))
    return ids


def _fetch_of(database: Database, table: Any, patients: Any, purpose: str) -> pd.DataFrame:
    """The rows of a table, by its column `who`, of the patients with a drug of a class."""
    return database.fetch(table.semi_join(patients, "who"), purpose)


# --- persons: birth, sex and race, observation, death -----------------------------------------


# standard concepts, where a database keeps no names of them
_PEOPLE = {
    **{8507: "MALE", 8532: "FEMALE"},
    **{8527: "White", 8516: "Black or African American", 8515: "Asian"},
}
_KINDS = {"gender": "sex", "race": "race"}


def _people(
    database: Database, patients: Any, ids: pd.Index, exits: pd.Series | None
) -> tuple[pd.DataFrame, Observation | None, list[Issue]]:
    """The patients' table and the observation periods of `ids`, and what is unusual about them.

    `exits` are the last days in a cohort by id, which end observation.
    """
    table = _persons(database, patients)
    deaths = database.has("death")
    if deaths is not None:
        deaths = deaths.select(who=deaths.person_id, date=deaths.death_date)
        rows = _fetch_of(database, deaths, patients, "deaths")
        first = pd.Series(to_days(rows["date"]), index=rows["who"])
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
    rows = _fetch_of(database, person.rename(who="person_id"), patients, "persons")
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
    month, day = (
        rows.get(name, pd.Series(1, index=rows.index)).fillna(1).clip(1, most)
        for name, most in (("month_of_birth", 12), ("day_of_birth", 31))
    )
    year = rows["year_of_birth"].astype(float)
    year = year.where(year.between(1800, 2200))
    first = pd.to_datetime(pd.DataFrame({"year": year, "month": month, "day": 1}), errors="coerce")
    birth = to_days(first + pd.to_timedelta(day - 1, unit="D"))
    if "birth_datetime" in rows:
        exact = to_days(rows["birth_datetime"])
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
    rows = _fetch_of(database, table, patients, "observation periods")
    begin, stop = to_days(rows["begin"]), to_days(rows["stop"])
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
