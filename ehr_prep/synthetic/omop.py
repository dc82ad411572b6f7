"""A synthetic cohort as tables of an OMOP database: Parquet files in a folder, or a connection."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ehr_prep.drugs import RA_DRUGS
from ehr_prep.synthetic.ra import NOTE, SyntheticCohort, SyntheticSite, write_csv
from ehr_prep.values import NO_DATE, to_days
from font.files import atomic

if TYPE_CHECKING:
    import pyarrow as pa

_OWN = 2_000_000_000  # ids from here on are free for concepts of one's own
_NO_CONCEPT = (
    0,
    "No matching concept",
    "Metadata",
    "None",
    "Undefined",
    None,
    "No matching concept",
)
_DISEASE = (80809, "Rheumatoid arthritis", "Condition", "SNOMED", "Disorder", "S", "69896004")
_TEST = (
    3015183,
    "Erythrocyte sedimentation rate",
    "Measurement",
    "LOINC",
    "Lab Test",
    "S",
    "30341-2",
)
_FIXED = (
    _NO_CONCEPT,
    _DISEASE,
    _TEST,
    (8507, "MALE", "Gender", "Gender", "Gender", "S", "M"),
    (8532, "FEMALE", "Gender", "Gender", "Gender", "S", "F"),
    (8527, "White", "Race", "Race", "Race", "S", "5"),
    (8516, "Black or African American", "Race", "Race", "Race", "S", "3"),
    (8515, "Asian", "Race", "Race", "Race", "S", "2"),
)
_OPERATORS = {"<": 4171756, ">": 4172704}


def write_omop(cohort: SyntheticCohort | SyntheticSite, target: Any) -> dict[str, Any]:
    """Write a synthetic cohort as tables of the OMOP common data model 5.4. SYNTHETIC.

    Drug texts become concepts of their own with the ingredient above them; texts that the drug map
    does not know, such as misspelt ones, get concept 0. Unreadable dates stay empty.
    `person_source_value` has the patient id of the cohort; `person_id` counts from 1.

    Parameters
    ----------
    cohort : SyntheticCohort or one of its sites
    target : folder or Ibis connection
        A cohort goes to one folder, or one schema in lower case, for each site; in a folder the
        truth and SYNTHETIC.json are beside them, as `SyntheticCohort.write` has them. A single
        site goes to the folder itself, or to the connection's own schema.

    Returns
    -------
    dict
        {table: path or name}, for a cohort one of these per site.

    Examples
    --------
    >>> import tempfile
    >>> from ehr_prep import ra_cohort
    >>> written = write_omop(ra_cohort(1, 0.02)["VA"], tempfile.mkdtemp())
    >>> sorted(written)[:4]
    ['cdm_source', 'concept', 'concept_ancestor', 'concept_relationship']
    """
    if isinstance(cohort, SyntheticSite):
        return _write_site(cohort, target, None)
    if not isinstance(cohort, SyntheticCohort):
        raise TypeError(f"cohort must come from ra_cohort, found {type(cohort).__name__}.")
    if isinstance(target, (str, os.PathLike)):
        root = Path(target)
        for name, site in cohort.items():
            number = pd.Series(np.arange(1, len(site.patients) + 1), site.patients["patient_id"])
            truth = site.truth.reset_index(names="patient_id")
            truth["patient_id"] = truth["patient_id"].map(number)
            write_csv(root / "truth" / f"synthetic_{name}.csv", truth)
        cohort.write_note(root)
        return {n: _write_site(cohort[n], root / n, None) for n in cohort}
    return {name: _write_site(cohort[name], target, name.lower()) for name in cohort}


def omop_files(site: str) -> dict[str, str]:
    """What a study file beside the folders of `write_omop` says about a site."""
    truth = f"truth/synthetic_{site}.csv"
    return {"omop": f"parquet:{site}/", "labs": "ESR", "truth": truth}


def omop_tables(site: SyntheticSite) -> dict[str, pa.Table]:
    """The tables of one site, as `write_omop` writes them."""
    import pyarrow as pa

    ids = site.patients["patient_id"].to_numpy()
    number = {text: i for i, text in enumerate(ids, start=1)}
    concepts, of_text, ingredient_of = _drug_concepts(site.records["drug"])
    own = {i: i for pair in ingredient_of.items() for i in pair}
    links = [*ingredient_of.items(), *own.items()]
    end = to_days(site.records["end_date"])
    start = to_days(site.records["date"])
    who = site.records["patient_id"].map(number).to_numpy()
    lab_day = to_days(site.labs["date"])
    lab_who = site.labs["patient_id"].map(number).to_numpy()
    n = len(site.records)
    frames = {
        "cdm_source": {"cdm_source_name": [NOTE], "cdm_version": ["5.4"]},
        "concept": _concepts([*_FIXED, *concepts]),
        "concept_ancestor": {
            "ancestor_concept_id": _whole([b for _, b in links]),
            "descendant_concept_id": _whole([a for a, _ in links]),
            "min_levels_of_separation": _whole([int(a != b) for a, b in links]),
            "max_levels_of_separation": _whole([int(a != b) for a, b in links]),
        },
        "concept_relationship": {
            "concept_id_1": _whole(list(ingredient_of)),
            "concept_id_2": _whole(list(ingredient_of.values())),
            "relationship_id": np.array(["RxNorm has ing"] * len(ingredient_of), dtype=object),
        },
        "person": _persons(site.patients, number),
        "observation_period": _periods(site.patients, (who, start), (lab_who, lab_day)),
        "death": _deaths(site.patients),
        "drug_exposure": {
            "drug_exposure_id": np.arange(1, n + 1),
            "person_id": who,
            "drug_concept_id": site.records["drug"].map(of_text).to_numpy(np.int64),
            "drug_exposure_start_date": _dates(start),
            "drug_exposure_end_date": _dates(end),
            "drug_source_value": site.records["drug"].to_numpy(dtype=object),
        },
        "drug_era": {
            "drug_era_id": _whole([]),
            "person_id": _whole([]),
            "drug_concept_id": _whole([]),
            "drug_era_start_date": _dates(_whole([])),
            "drug_era_end_date": _dates(_whole([])),
        },
        "condition_occurrence": _conditions(len(number), (who, start)),
        "measurement": _measurements(site.labs, lab_who, lab_day),
    }
    return {
        table: pa.table({name: _arrow(values) for name, values in columns.items()})
        for table, columns in frames.items()
    }


# --- inside ----------------------------------------------------------------------------


def _write_site(site: SyntheticSite, target: Any, schema: str | None) -> dict[str, Any]:
    tables = omop_tables(site)
    if isinstance(target, (str, os.PathLike)):
        import pyarrow.parquet as pq

        folder = Path(target)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {name: folder / f"{name}.parquet" for name in tables}
        for name, table in tables.items():
            with atomic(paths[name]) as file:
                pq.write_table(table, file)
        return dict(paths)
    if not hasattr(target, "create_table"):
        raise TypeError(f"target must be a folder or an Ibis connection, found {target!r}.")
    if schema is not None:
        target.create_database(schema, force=True)
    for name, table in tables.items():
        target.create_table(name, table, database=schema, overwrite=True)
    return {name: name if schema is None else f"{schema}.{name}" for name in tables}


def _arrow(values: Any) -> Any:
    """A column: whole numbers, or texts, as they are; dates and numbers that may be missing."""
    import pyarrow as pa

    if isinstance(values, np.ma.MaskedArray):
        column = pa.array(values.data, mask=np.ma.getmaskarray(values))
        return column.cast(pa.date32()) if values.dtype == np.int32 else column
    is_whole = isinstance(values, np.ndarray) and values.dtype.kind == "i"
    return pa.array(values) if is_whole else pa.array(list(values), pa.string())


def _whole(values: list[int]) -> Any:
    return np.array(values, dtype=np.int64)


def _dates(days: Any) -> Any:
    """Days as a masked array of 32 bits, which `_arrow` makes dates."""
    days = np.asarray(days).astype(np.int32)
    return np.ma.masked_array(days, mask=days == NO_DATE)


def _concepts(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    names = ("concept_name", "domain_id", "vocabulary_id", "concept_class_id", "standard_concept")
    numbers, *texts = zip(*rows, strict=True)
    columns = dict(zip((*names, "concept_code"), texts, strict=True))
    return {"concept_id": _whole(list(numbers)), **columns}


def _drug_concepts(
    drugs: pd.Series,
) -> tuple[list[tuple[Any, ...]], dict[str, int], dict[int, int]]:
    """Concepts of all ingredients and texts, {text: concept} and {concept: ingredient}."""
    table = RA_DRUGS.table
    rows = table[table["vocabulary"] == "omop"]
    number = {i: int(d) for i, d in zip(rows["ingredient"], rows["drug"], strict=True)}
    codes = table[table["vocabulary"] == "rxcui"].set_index("ingredient")["drug"]
    concepts: list[tuple[Any, ...]] = [
        (concept, name, "Drug", "RxNorm", "Ingredient", "S", codes[name])
        for name, concept in number.items()
    ]
    texts = sorted(drugs.unique())
    classified = RA_DRUGS.classify(texts)
    known = set(drugs[~drugs.duplicated(keep=False)])  # a text seen once is a slip of the pen
    of_text, ingredient_of = {}, {}
    for i, (text, ingredient) in enumerate(zip(texts, classified["ingredient"], strict=True)):
        if ingredient is None and (text in known or RA_DRUGS.nearest(text) is not None):
            of_text[text] = 0
            continue
        of_text[text] = _OWN + i
        concepts.append((_OWN + i, text, "Drug", "RxNorm", "Clinical Drug", "S", f"SYN{i}"))
        if ingredient is not None:
            ingredient_of[_OWN + i] = number[ingredient]
    return concepts, of_text, ingredient_of


def _persons(patients: pd.DataFrame, number: Mapping[str, int]) -> dict[str, Any]:
    birth = pd.to_datetime(patients["birth_date"])
    genders, races = {"F": 8532, "M": 8507}, {row[1]: row[0] for row in _FIXED}
    return {
        "person_id": patients["patient_id"].map(number).to_numpy(),
        "gender_concept_id": patients["sex"].map(genders).fillna(0).to_numpy(np.int64),
        "year_of_birth": birth.dt.year.to_numpy(np.int64),
        "month_of_birth": birth.dt.month.to_numpy(np.int64),
        "day_of_birth": birth.dt.day.to_numpy(np.int64),
        "race_concept_id": patients["race"].map(races).fillna(0).to_numpy(np.int64),
        "person_source_value": patients["patient_id"].to_numpy(dtype=object),
        "gender_source_value": patients["sex"].to_numpy(dtype=object),
        "race_source_value": patients["race"].to_numpy(dtype=object),
    }


def _periods(patients: pd.DataFrame, *events: tuple[Any, Any]) -> dict[str, Any]:
    """From the first event to the end of follow-up."""
    last = to_days(patients["follow_up_end"])
    first = last.copy()
    for who, day in events:
        known = day != NO_DATE
        np.minimum.at(first, who[known] - 1, day[known])
    n = len(patients)
    return {
        "observation_period_id": np.arange(1, n + 1),
        "person_id": np.arange(1, n + 1),
        "observation_period_start_date": _dates(first),
        "observation_period_end_date": _dates(last),
        "period_type_concept_id": np.full(n, 32817),
    }


def _deaths(patients: pd.DataFrame) -> dict[str, Any]:
    day = np.full(len(patients), NO_DATE, dtype=np.int32)
    if "death_date" in patients:
        day = to_days(patients["death_date"])
    dead = np.flatnonzero(day != NO_DATE)
    return {"person_id": dead + 1, "death_date": _dates(day[dead])}


def _conditions(n: int, exposures: tuple[Any, Any]) -> dict[str, Any]:
    """Everybody has the disease, on record since the first drug record."""
    who, day = exposures
    first = np.full(n, np.iinfo(np.int32).max, dtype=np.int32)
    known = day != NO_DATE
    np.minimum.at(first, who[known] - 1, day[known])
    have = np.flatnonzero(first < np.iinfo(np.int32).max)
    return {
        "condition_occurrence_id": np.arange(1, len(have) + 1),
        "person_id": have + 1,
        "condition_concept_id": np.full(len(have), _DISEASE[0]),
        "condition_start_date": _dates(first[have]),
    }


def _measurements(labs: pd.DataFrame, who: Any, day: Any) -> dict[str, Any]:
    text = labs["value"].astype(str).str.strip()
    sign = text.str[:1].map(_OPERATORS)
    value = pd.to_numeric(text.str.lstrip("<>"), errors="coerce").to_numpy(float)
    n = len(labs)
    return {
        "measurement_id": np.arange(1, n + 1),
        "person_id": who,
        "measurement_concept_id": np.full(n, _TEST[0]),
        "measurement_date": _dates(day),
        "operator_concept_id": sign.fillna(0).to_numpy(np.int64),
        "value_as_number": np.ma.masked_invalid(value),
        "value_source_value": labs["value"].to_numpy(dtype=object),
    }
