"""The command that turns one site's medication records into sequences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from font.errors import InputError, option_name
from font.settings import change
from mmlca.cli.display import note, say, working, wrote
from mmlca.cli.groups import ReadingOptions, RuleOptions, with_groups
from mmlca.cli.options import (
    FILE,
    DrugMap,
    DrugNames,
    FileColumn,
    Preset,
    Quiet,
    by_file,
    chosen_map,
    map_file,
    roles,
)

if TYPE_CHECKING:
    from ehr_prep.records import Records


@with_groups
def prep(
    *,
    records: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RECORDS",
            help="Medication records, one or several files: .csv (also .gz or .zst), .parquet or "
            ".xlsx; none with --omop or --warehouse.",
            **FILE,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", dir_okay=False, help="File for the sequences, .csv or .parquet."
        ),
    ],
    omop: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="OMOP database instead of records, such as postgresql://host/database, "
            "duckdb:///file.duckdb or parquet:folder/; without a password.",
        ),
    ] = None,
    warehouse: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database that is not OMOP instead of records, such as claims; a URL likewise.",
        ),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="Schema of the tables of the database.")
    ] = None,
    condition: Annotated[
        str | None,
        typer.Option(help="Concept ids, such as 80809, or Atlas file of the entry (OMOP)."),
    ] = None,
    cohort: Annotated[
        str | None,
        typer.Option(help="Cohort table of the entry, such as results.cohort:7 (OMOP)."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="Table of the records: drug_exposure or drug_era of OMOP, any other with "
            "--warehouse.",
            show_default="drug_exposure, or the only table",
        ),
    ] = None,
    patients_table: Annotated[
        str | None, typer.Option(help="Table of the patients (--warehouse).")
    ] = None,
    observation_table: Annotated[
        str | None, typer.Option(help="Table of the observation periods (--warehouse).")
    ] = None,
    patients: Annotated[
        Path | None,
        typer.Option(help="Patients' table: end of follow-up, date of birth, …", **FILE),
    ] = None,
    labs: Annotated[
        Path | None,
        typer.Option(help="Lab tests, which show that a patient was still followed.", **FILE),
    ] = None,
    drugs: DrugMap = None,
    drug_names: DrugNames = None,
    reading: ReadingOptions,
    file_column: FileColumn = None,
    patients_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=COLUMN",
            help="Column of the patients' table, such as birth_date=Geb; repeat it for others.",
        ),
    ] = None,
    labs_column: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT=COLUMN", help="Column of the labs, such as date=Datum."),
    ] = None,
    observation_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=COLUMN",
            help="Column of the observation periods: patient, observation_start, observation_end.",
        ),
    ] = None,
    observation: Annotated[
        Path | None,
        typer.Option(help="Observation periods: patient, start and end, one or more each.", **FILE),
    ] = None,
    preset: Preset = None,
    rules: RuleOptions,
    quiet: Quiet = False,
) -> None:
    """Turn medication records into treatment sequences.

    Prints and writes a flow table that accounts for every record and patient dropped, and the
    drugs that the map does not know.
    """
    from ehr_prep.build import build_sequences
    from ehr_prep.cohort import follow_up_text
    from ehr_prep.databases.claims import read_warehouse
    from ehr_prep.databases.omop import read_omop
    from ehr_prep.drug_texts import unmapped_caution
    from ehr_prep.records import read_records
    from ehr_prep.settings import Reading, RecordColumns
    from font.files import keep_inputs, private_folder
    from mmlca.sequences.files import holds_sequences

    options = change(Reading(), reading).options()
    columns = RecordColumns.model_fields.keys() | {"default_supply"}
    tables: dict[str, Any] = {
        "patients_columns": roles(patients_column, "--patients-column"),
        "observation_columns": roles(observation_column, "--observation-column"),
    }
    for_files: dict[str, Any] = {"patients": patients, "observation": observation, "labs": labs}
    for_files |= {
        "drug_names": drug_names,
        "labs_columns": labs_column,
        "file_columns": file_column,
    }
    for_files |= {name: value for name, value in options.items() if name not in columns}
    for_columns = {name: value for name, value in options.items() if name in columns} | tables
    for_omop = {"condition": condition, "cohort": cohort}
    for_tables = {"patients_table": patients_table, "observation_table": observation_table}
    for_databases = {"schema": schema, "table": table}
    records = records or []
    if sum([bool(records), omop is not None, warehouse is not None]) != 1:
        raise InputError("give exactly one of a file of records, --omop URL and --warehouse URL.")
    wrong: dict[str, Any]
    if omop is not None:
        wrong, kind = {**for_files, **for_columns, **for_tables}, "--omop"
    elif warehouse is not None:
        wrong, kind = {**for_files, **for_omop}, "--warehouse"
    else:
        wrong, kind = {**for_omop, **for_tables, **for_databases}, "a file of records"
    if extra := [name for name, value in wrong.items() if value]:
        raise InputError(f"{option_name(extra[0])} does not go with {kind}; leave it out.")
    for path in records:
        if holds_sequences(path):
            raise InputError(f"{path} holds sequences already; go on with `mmlca select` or `fit`.")
    endings = (".flow.csv", ".issues.csv", ".settings.json", ".unmapped.csv")
    beside = [out.with_suffix(end) for end in endings]
    keep_inputs(
        [out, *beside], [*records, patients, labs, map_file(drugs), drug_names, observation]
    )
    known = chosen_map(drugs, preset)
    with working("Reading", quiet=quiet):
        read: Records
        if omop is not None:
            entry = None if condition is None else condition.split(",")
            read = read_omop(
                omop,
                schema,
                known,
                None if entry is None else [int(c) if c.strip().isdecimal() else c for c in entry],
                cohort,
                table=table or "drug_exposure",
            )
        elif warehouse is not None:
            read = read_warehouse(
                warehouse,
                table,
                schema,
                known,
                patients=patients_table,
                observation=observation_table,
                **tables,
                **options,
            )
        else:
            read = read_records(
                records if len(records) > 1 else records[0],
                known,
                patients=patients,
                labs=labs,
                labs_columns=roles(labs_column, "--labs-column"),
                file_columns=by_file(file_column),
                drug_names=drug_names,
                observation=observation,
                **tables,
                **options,
            )
        built = build_sequences(read, preset=preset, **rules)
    private_folder(out.parent)
    written = built.write_all(out)
    lines = [f"{read}\n", built.flow.to_string(index=False), f"\n{follow_up_text(built.settings)}"]
    if len(built.issues):
        lines.append(f"\nUnusual records:\n{built.issues.to_string(index=False)}")
    if len(read.unmapped):
        first = read.unmapped.head(10).fillna({"did_you_mean": ""})
        lines.append(f"\nDrugs not in the map:\n{first.to_string(index=False)}")
    say(quiet, *lines, f"\n{built}\n", wrote(written))
    lost = read.settings["unmapped"]["lost"]
    if caution := unmapped_caution(read.unmapped, lost, str(out.with_suffix(".unmapped.csv"))):
        note(quiet, caution)
