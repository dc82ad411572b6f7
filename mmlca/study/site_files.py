"""The part of a study file that says where each site's files are, and how they are read."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
File = Annotated[Path, Field(strict=False)]
Files = File | Annotated[tuple[File, ...], Field(min_length=1, strict=False)]
"""One file or several; a path may be a pattern such as "2019/*.csv"."""
Key = Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]
Day = Annotated[dt.date, Field(strict=False)]


# what belongs to files, what an OMOP database says itself, and what belongs to databases
_FILES_ONLY = (
    *("columns", "patients", "observation", "drug_names", "date_format", "encoding", "delimiter"),
    *("decimal", "strict", "labs_columns", "file_columns"),
)
_NOT_OMOP = (
    *("patient", "date", "drug", "end", "supply", "default_supply", "where"),
    *("records_columns", "patients_columns", "observation_columns"),
)
_OMOP_ONLY = ("condition", "cohort")
_WAREHOUSE_ONLY = ("patients_table", "observation_table")
_WRONG = {
    "omop": (*_FILES_ONLY, *_NOT_OMOP, *_WAREHOUSE_ONLY),
    "warehouse": (*_FILES_ONLY, *_OMOP_ONLY, "labs"),
    "files": (*_OMOP_ONLY, *_WAREHOUSE_ONLY, "cdm_schema", "table"),
}


class Part(BaseModel):
    """A section of a study file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RecordColumns(Part):
    """Which column of the records is what."""

    patient: Text | None = None
    date: Text | None = None
    drug: Text | None = None
    end: Text | None = None
    supply: Text | None = None


class PatientColumns(Part):
    """Which column of the patients' table is what; see `ehr_prep.read_patients`."""

    patient: Text | None = None
    follow_up_end: Text | None = None
    birth_date: Text | None = None
    death_date: Text | None = None


class LabColumns(Part):
    """Which column of the labs is what; see `ehr_prep.read_labs`."""

    patient: Text | None = None
    date: Text | None = None
    value: Text | None = None
    test: Text | None = None
    unit: Text | None = None


class ObservationColumns(Part):
    """Which column of the observation periods is what."""

    patient: Text | None = None
    observation_start: Text | None = None
    observation_end: Text | None = None


class Patients(Part):
    """How patients' tables are read."""

    columns: PatientColumns = PatientColumns()


class ObservationPeriods(Part):
    """How tables of observation periods are read."""

    columns: ObservationColumns = ObservationColumns()


class Labs(Part):
    """How tables of labs are read."""

    columns: LabColumns = LabColumns()


class Reading(RecordColumns):
    """How the files of a site are read; see `ehr_prep.read_records`."""

    drugs: Text | None = None
    drug_names: Files | None = None
    date_format: Text | None = None
    encoding: Text | None = None
    delimiter: Text | None = None
    decimal: Literal[".", ","] | None = None
    duplicates: Literal["drop", "keep"] | None = None
    latest: Day | None = None
    default_supply: Count | dict[Text, Count] | None = None
    strict: bool | None = None

    def options(self) -> dict[str, Any]:
        """The settings that are given, by name, as `ehr_prep.read_records` takes them."""
        options = {name: getattr(self, name) for name in Reading.model_fields}
        return {n: v for n, v in options.items() if v is not None and (n, v) != ("drugs", "ra")}


class AllReading(Reading):
    """How the files of all sites are read; `columns` are those of the records."""

    columns: RecordColumns = RecordColumns()

    def options(self) -> dict[str, Any]:
        return {**super().options(), **self.columns.model_dump(exclude_none=True)}


class Site(Reading):
    """The files or the database of one hospital. Its reading options override `[records]`.

    With `omop`, the URL of a database, `labs` are tests of its table measurement: "ESR,CRP".
    `warehouse` is the URL of one that is not OMOP; see `ehr_prep.read_warehouse`.
    """

    model_config = ConfigDict(populate_by_name=True)

    records: Files | None = None
    sequences: File | None = None
    omop: Text | None = None
    warehouse: Text | None = None
    cdm_schema: Annotated[Text | None, Field(alias="schema")] = None
    condition: Count | tuple[Count, ...] | Text | None = None
    cohort: Count | Text | None = None
    table: Text | None = None
    patients_table: Text | None = None
    observation_table: Text | None = None
    columns: Text | None = None
    patients: Files | None = None
    labs: Files | None = None
    observation: Files | None = None
    truth: File | None = None
    key: Key | None = None
    where: dict[Text, Text] = {}
    records_columns: RecordColumns = RecordColumns()
    file_columns: dict[Text, RecordColumns] = {}
    patients_columns: PatientColumns = PatientColumns()
    observation_columns: ObservationColumns = ObservationColumns()
    labs_columns: LabColumns = LabColumns()

    def options(self) -> dict[str, Any]:
        options = {**super().options(), **self.records_columns.model_dump(exclude_none=True)}
        if self.file_columns:
            options["file_columns"] = {
                file: columns.model_dump(exclude_none=True)
                for file, columns in self.file_columns.items()
            }
        return options

    @property
    def database(self) -> str | None:
        """The URL of the site's database, None if it has files."""
        return self.omop or self.warehouse

    @model_validator(mode="after")
    def _one_source(self) -> Site:
        sources = (self.records, self.sequences, self.omop, self.warehouse)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("needs either records, sequences, omop or warehouse, one of the four")
        kind = "omop" if self.omop else "warehouse" if self.warehouse else "files"
        fields = type(self).model_fields
        if extra := [n for n in _WRONG[kind] if getattr(self, n) != fields[n].default]:
            name = extra[0].removeprefix("cdm_")
            reason = f"which does not go with {kind}"
            if kind == "files":
                reason = "which belongs to databases (omop or warehouse)"
            raise ValueError(f"has {name}, {reason}")
        if self.omop is not None and self.table not in (None, "drug_exposure", "drug_era"):
            raise ValueError(f'has table = "{self.table}"; omop has drug_exposure and drug_era')
        if (url := self.database) is not None:
            from ehr_prep.databases import check_url

            check_url(url)
        if self.columns is not None and self.sequences is None:
            raise ValueError("has columns, which belong to sequences")
        return self


# --- paths --------------------------------------------------------------------------------


def expand(folder: Path, files: Any) -> list[Path]:
    """The files that a key of a study file names; those of a pattern must exist."""
    from ehr_prep.files import files_of

    parts = files if isinstance(files, tuple) else (files,)
    return [path for part in parts for path in files_of(folder / part)]


def resolved(path: Path, name: str, site: Site) -> Site:
    files: dict[str, Any] = {}
    if site.database is not None:
        from ehr_prep.databases import resolve_url

        kind = "omop" if site.omop is not None else "warehouse"
        files[kind] = resolve_url(site.database, path.parent)
        if isinstance(site.condition, str):
            files["condition"] = str(path.parent / site.condition)
    for role in ("records", "sequences", "patients", "labs", "observation", "truth"):
        if role == "labs" and site.omop is not None:
            continue  # the names of tests
        if (given := getattr(site, role)) is not None:
            files[role] = _existing(path, f"sites.{name}.{role}", given)
    resolved: Site = resolved_map(path, f"sites.{name}", site.model_copy(update=files))
    return resolved


def _existing(path: Path, key: str, given: Any) -> Any:
    try:
        found = expand(path.parent, given)
    except ValueError as error:
        raise ValueError(f"{path.name}: {key}: {error}") from None
    for file in found:
        if not file.is_file():
            called = os.path.relpath(file, path.parent)
            raise ValueError(
                f"{path.name}: {key} is {called!r}, and the folder of {path.name} has no such "
                "file; mend the path."
            )
    return found[0] if len(found) == 1 else tuple(found)


def resolved_concepts(
    path: Path, concepts: dict[str, list[int | str]] | None
) -> dict[str, list[int | str]] | None:
    """Concept sets, with files of Atlas relative to the study file."""
    if concepts is None:
        return None
    return {
        state: [
            str(path.parent / str(part)) if str(part).lower().endswith(".json") else part
            for part in parts
        ]
        for state, parts in concepts.items()
    }


def resolved_map(path: Path, key: str, part: Any) -> Any:
    if part.drug_names is not None:
        names = _existing(path, f"{key}.drug_names", part.drug_names)
        part = part.model_copy(update={"drug_names": names})
    if part.drugs in (None, "ra"):
        return part
    drugs = path.parent / part.drugs
    if not drugs.is_file():
        raise ValueError(
            f'{path.name}: {key}.drugs is {part.drugs!r}, which is neither "ra" nor a file in the '
            f"folder of {path.name}; mend the path."
        )
    return part.model_copy(update={"drugs": str(drugs)})
