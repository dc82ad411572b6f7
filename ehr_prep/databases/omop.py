"""Records from a database in the OMOP common data model, versions 5.3 and 5.4."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from ehr_prep.database_scan import Source, scan
from ehr_prep.databases.concepts import ConceptSets, Resolved, concepts_of, read_sets, resolve
from ehr_prep.databases.connect import Database
from ehr_prep.dates import day_text, one_day
from ehr_prep.drug_texts import look_up
from ehr_prep.drugs import Drugs
from ehr_prep.omop_people import as_dates, fetch_people, follow_up_table, person_table
from ehr_prep.screen import issue_table
from ehr_prep.warehouse import WarehouseRecords, days_since_1970, position_of
from font.checks import one_of, some
from font.errors import InputError

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
    reduce: str = "auto",
) -> WarehouseRecords:
    """Read drug records, patients and labs from an OMOP database, without changing anything there.

    Drug concepts become classes through `concept_ancestor`; where that table is empty, through
    `concept_relationship`, and by their names. `.settings["concepts"]` says how many records each
    way mapped, how many have concept 0, and how many stay unmapped. The patients' table has
    birth date (a missing month or day counts as the first), sex and race by concept name, the last
    day of observation and the day of death. The records stay in the database until they are needed.

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
    reduce : "auto", "memory" or "database"
        Where `build_sequences` counts records per window: in the database, or here after fetching
        all usable records, which is faster while they fit. "auto": here up to 20 million. The
        result is the same; `.settings["reduced"]` of the sequences says which it was.

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
    one_of(duplicates, ("drop", "keep"), "duplicates")
    one_of(reduce, ("auto", "memory", "database"), "reduce")
    if condition is not None and cohort is not None:
        raise InputError("patients enter by a condition or by a cohort; give one of the two.")
    span = one_day(earliest, "earliest"), one_day(latest or dt.date.today(), "latest")
    database = Database(connection, schema)
    entry = _entry(database, condition, cohort)
    source, concepts = _source(database, table, entry)
    used = _used(database, concepts, table)
    resolved = resolve(database, drugs, used)
    texts, state_of = _texts(resolved, used)
    parts = scan(
        database,
        source,
        state_of,
        texts,
        span=span,
        duplicates=duplicates,
        entry=None if entry is None else entry.name,
    )
    unmapped, lost = _unmapped(database, parts, resolved)
    people, observation, odd = fetch_people(database, parts, source.periods)
    tests = None if labs is None else _labs(database, parts, labs, span)
    issues = issue_table([*parts.pop("issues"), *odd])
    del parts["n_kept"]
    return WarehouseRecords(
        **{**parts, "unmapped": unmapped},
        patients=people,
        observation=observation,
        labs=tests,
        reduce=reduce,
        issues=issues,
        settings={
            "source": database.name,
            "files": [],
            "columns": {
                "patient": "person_id",
                "date": _TABLES[table][0],
                "drug": "drug_concept_id",
            },
            "drugs": resolved.drugs.ingredients,
            "dates": {},
            "earliest": day_text(span[0]),
            "latest": day_text(span[1]),
            "duplicates": duplicates,
            "patients": "person",
            "labs": None if labs is None else "measurement",
            "table": table,
            "concepts": resolved.records,
            "unmapped": {
                "texts": len(unmapped),
                "records": int(unmapped["records"].sum()),
                "lost": lost,
            },
            "entry": "the first drug record" if entry is None else entry.name,
        },
    )


# --- tables of the model -----------------------------------------------------------------


class _Entry(NamedTuple):
    """Who enters and when: an Ibis table `who`, `entry` and perhaps `exit`, as days."""

    name: str
    table: Any


def _source(database: Database, name: str, entry: _Entry | None) -> tuple[Source, Any]:
    """The drug records with what decides whether they count, and their concepts."""
    start, end, supply = _TABLES[name]
    optional = (end,) if supply is None else (end, supply)
    drugs = database.table(name, "person_id", "drug_concept_id", start, optional=optional)
    columns = {"who": drugs.person_id, "date": drugs[start], "drug": drugs.drug_concept_id}
    if end in drugs.columns:
        columns["end"] = drugs[end]
    if supply in drugs.columns:
        columns["supply"] = drugs[supply].cast("float64")
    records = drugs.select(**columns)
    concepts = records.group_by("drug").aggregate(n=records.count())
    person = person_table(database)
    births = person.select(person.who, person.birth)
    records = records.left_join(births, "who").drop("who_right")
    if entry is not None:
        days = entry.table.select("who", "entry")
        records = records.left_join(days, "who").drop("who_right")
    ends = entry is not None and "exit" in entry.table.columns
    exits = entry.table.select("who", "exit") if entry is not None and ends else None
    return Source(records, *follow_up_table(database, person, exits)), concepts


def _entry(database: Database, condition: Any, cohort: str | int | None) -> _Entry | None:
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
        return _Entry("the condition", first)
    if cohort is None:
        return None
    name, _, definition = ("cohort", "", str(cohort)) if isinstance(cohort, int) else _cut(cohort)
    place, _, name = name.rpartition(".")
    other = database if not place else database.within(place)
    columns = ("subject_id", "cohort_start_date", "cohort_end_date")
    table = other.table(name, *columns, optional=("cohort_definition_id",))
    if definition:
        if "cohort_definition_id" not in table.columns or not definition.isdecimal():
            raise InputError(
                f"the cohort table {name} has no definition {definition!r}: that is a whole number "
                "in its column cohort_definition_id; leave it out, or mend it."
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
    return _Entry("the cohort", rows)


def _cut(cohort: str) -> tuple[str, str, str]:
    return cohort.partition(":")


def _used(database: Database, concepts: Any, table: str) -> dict[int, int]:
    """{drug concept: records}; a record without a concept counts as concept 0."""
    found = database.fetch(concepts, "records by drug concept")
    if not len(found):
        raise InputError(
            f"the table {table} of {database.name} has no rows; check the schema, or read the "
            "other one of drug_exposure and drug_era."
        )
    used = found[found["drug"].notna()]
    return {int(c): int(n) for c, n in zip(used["drug"], used["n"], strict=True)}


def _texts(resolved: Resolved, used: Mapping[int, int]) -> tuple[dict[str, Any], dict[int, int]]:
    """What `Records` tells of the drugs, and {concept: row of members}."""
    concepts = sorted(used)
    labels = pd.Series([resolved.labels[c] for c in concepts], dtype=object)
    texts = look_up(labels, resolved.drugs)
    table = texts.table.assign(records=[used[c] for c in concepts])
    codes = dict(zip(concepts, texts.state_of[:-1].tolist(), strict=True))
    known = {
        "members": texts.members,
        "states": resolved.drugs.states,
        "drug_map": resolved.drugs,
        "drugs": table,
    }
    return known, {concept: code for concept, code in codes.items() if code >= 0}


def _unmapped(
    database: Database, parts: Mapping[str, Any], resolved: Resolved
) -> tuple[pd.DataFrame, float]:
    """Concepts without a class, the most frequent first, and the share of lost records.

    A concept without a class is another drug; what may be lost are records with concept 0, here as
    a share of the records of patients with a known drug.
    """
    rows = parts["unmapped"]
    each = rows.group_by("drug").aggregate(records=rows.count(), patients=rows.who.nunique())
    found = database.fetch(each, "records and patients of each unmapped concept")
    drug = [resolved.labels[int(c)] for c in found["drug"]]
    table = found.assign(drug=pd.Series(drug, dtype=object), did_you_mean=None)
    table = table.astype({"did_you_mean": object})
    table = table.sort_values(["records", "drug"], ascending=[False, True], ignore_index=True)
    if not resolved.records["concept 0"]:
        return table, 0.0
    zero = rows.filter(rows.drug == 0).semi_join(parts["usable"], "who")
    n_lost = database.fetch(zero.aggregate(n=zero.count()), "records with concept 0")["n"].iloc[0]
    return table, round(int(n_lost) / (int(n_lost) + parts["n_kept"]), 6)


def _labs(
    database: Database, parts: dict[str, Any], labs: Labs, span: tuple[int, int]
) -> pd.DataFrame:
    """Measurements of our patients; they also show that a patient was still followed."""
    tests = _tests(database, labs)
    name_of = {concept: name for name, concepts in tests.items() for concept in concepts}
    table = database.table(
        *("measurement", "person_id", "measurement_concept_id", "measurement_date"),
        "value_as_number",
        optional=("operator_concept_id",),
    )
    table = table.filter(table.measurement_concept_id.isin(sorted(name_of)))
    operator = {c: table[c] for c in ("operator_concept_id",) if c in table.columns}
    table = table.select(
        who=table.person_id,
        day=days_since_1970(table.measurement_date),
        test=table.measurement_concept_id,
        value=table.value_as_number.cast("float64"),
        **operator,
    )
    ours = parts["usable"].select("who").distinct()
    found = database.fetch(table.semi_join(ours, "who"), "laboratory values")
    seen = parts["seen"]
    days = table.filter(table.day.between(*span))
    every = days.group_by("who").aggregate(first_seen=days.day.min(), last_seen=days.day.max())
    both = seen.select("who", "first_seen", "last_seen").union(every)
    parts["seen"] = both.group_by("who").aggregate(
        first_seen=both.first_seen.min(), last_seen=both.last_seen.max()
    )
    who = position_of(parts["keys"], found["who"])
    usable = found["day"].between(*span).to_numpy()
    day = found["day"].fillna(0).to_numpy().astype(np.int32)[usable]
    np.minimum.at(parts["first_seen"], who[usable], day)
    np.maximum.at(parts["last_seen"], who[usable], day)
    value = found["value"].astype(object)
    if operator:
        sign = found["operator_concept_id"].map(_LIMITS)
        limit = sign.notna() & found["value"].notna()
        value[limit] = [
            f"{s}{v:g}" for s, v in zip(sign[limit], found["value"][limit], strict=True)
        ]
    result = pd.DataFrame(
        {
            "patient_id": parts["ids"][who],
            "date": as_dates(found["day"]),
            "test": found["test"].map(name_of).astype(object),
            "value": value,
        }
    )
    return result.sort_values(["patient_id", "date", "test"], kind="stable", ignore_index=True)


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
