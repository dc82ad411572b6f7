"""The command that turns one site's medication records into sequences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mmlca.cli.display import note, say, working, wrote
from mmlca.cli.options import (
    FILE,
    DrugNames,
    DrugsFile,
    FileColumn,
    Preset,
    Quiet,
    by_file,
    roles,
    rule,
)

if TYPE_CHECKING:
    from ehr_prep.records import Records
    from ehr_prep.warehouse import WarehouseRecords


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
            help="OMOP database in place of records, such as postgresql://host/database, "
            "duckdb:///file.duckdb or parquet:folder/; without a password.",
        ),
    ] = None,
    warehouse: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database that is not OMOP in place of records, such as claims; a URL likewise.",
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
    drugs: DrugsFile = None,
    drug_names: DrugNames = None,
    patient_column: Annotated[
        str | None, typer.Option(help="Column of the patient id.", show_default="by its name")
    ] = None,
    date_column: Annotated[
        str | None, typer.Option(help="Column of the date.", show_default="by its name")
    ] = None,
    drug_column: Annotated[
        str | None, typer.Option(help="Column of the drug.", show_default="by its name")
    ] = None,
    end_column: Annotated[
        str | None,
        typer.Option(help="Column of the last day covered.", show_default="by its name, if any"),
    ] = None,
    supply_column: Annotated[
        str | None,
        typer.Option(help="Column of the days supplied.", show_default="by its name, if any"),
    ] = None,
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
    date_format: Annotated[
        str | None,
        typer.Option(help="Format of dates, such as %d/%m/%Y.", show_default="as the dates show"),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="Encoding of the files, such as latin-1.", show_default="as they show"),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(help="Sign between two fields, or the word tab.", show_default="as they show"),
    ] = None,
    decimal: Annotated[
        str | None,
        typer.Option(help="Decimal sign of supplies, . or ,", show_default="as they show"),
    ] = None,
    default_supply: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[DRUG=]DAYS",
            help="Days covered by a record without an end or supply; repeat it for classes or "
            "ingredients, as in metformin=90.",
        ),
    ] = None,
    observation: Annotated[
        Path | None,
        typer.Option(help="Observation periods: patient, start and end, one or more each.", **FILE),
    ] = None,
    preset: Preset = None,
    since: Annotated[
        str | None,
        rule("any day", help="Patients whose first treatment is on or after this day."),
    ] = None,
    follow_up: Annotated[
        str | None,
        rule(
            "whatever is known",
            help="Where follow-up ends: patients (their table), observation, last_record or a day.",
        ),
    ] = None,
    data_cut: Annotated[
        str | None, rule("none", help="End of the data: nothing after this day counts.")
    ] = None,
    months: Annotated[int | None, rule(3, min=1, help="Length of a window in months.")] = None,
    windows: Annotated[int | None, rule(16, min=1, help="Largest number of windows.")] = None,
    window_states: Annotated[
        Literal["most_frequent", "combinations"] | None,
        rule("most_frequent", "--states", help="Single classes, or also combinations (A+B)."),
    ] = None,
    by: Annotated[
        Literal["records", "days"] | None,
        rule("records", help="What decides the state of a window: the most records or days."),
    ] = None,
    ties: Annotated[
        Literal["first", "latest", "previous"] | None,
        rule("first", help="Which class a window takes where two have as many."),
    ] = None,
    gap_days: Annotated[
        int | None, rule(30, min=0, help="Longest gap between supplies of one treatment.")
    ] = None,
    combination_days: Annotated[
        int | None, rule(30, min=1, help="Days that two classes are together in a combination.")
    ] = None,
    max_combinations: Annotated[
        int | None, rule(10, min=1, help="Most frequent combinations that are states.")
    ] = None,
    combination: Annotated[
        list[str] | None,
        typer.Option(help="Combination that is a state, such as A+B; repeat it for each."),
    ] = None,
    impute: Annotated[
        Literal["carry_forward_max", "carry_forward_supplied", "carry_forward", "missing"] | None,
        rule("carry_forward_max", help="State of a window without records."),
    ] = None,
    max_carry: Annotated[
        int | None, rule(2, min=0, help="Windows carried forward at most (carry_forward_max).")
    ] = None,
    off_treatment: Annotated[
        str | None, rule("none", help="State after that; missing: leave it missing.")
    ] = None,
    death: Annotated[
        Literal["end", "state"] | None,
        rule("end", help="Death ends follow-up, or is an absorbing state."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat odd records as errors.")] = False,
    quiet: Quiet = False,
) -> None:
    """Turn medication records into treatment sequences.

    Prints and writes a flow table that accounts for every record and patient dropped, and the
    drugs that the map does not know.
    """
    from ehr_prep.build import build_sequences
    from ehr_prep.claims import read_warehouse
    from ehr_prep.cohort import follow_up_text
    from ehr_prep.drugs import RA_DRUGS, drug_map
    from ehr_prep.omop import read_omop
    from ehr_prep.records import read_records
    from ehr_prep.unmapped import unmapped_caution
    from font.files import keep_inputs, private_folder
    from mmlca.sequences.files import holds_sequences

    for_files = {
        **{"--patients": patients, "--observation": observation, "--labs": labs},
        **{"--drug-names": drug_names, "--date-format": date_format, "--encoding": encoding},
        **{"--delimiter": delimiter, "--decimal": decimal, "--labs-column": labs_column or None},
        **{"--strict": strict or None, "--file-column": file_column or None},
    }
    for_columns = {
        **{"--patient-column": patient_column, "--date-column": date_column},
        **{"--drug-column": drug_column, "--end-column": end_column},
        **{"--supply-column": supply_column, "--patients-column": patients_column or None},
        "--observation-column": observation_column or None,
        "--default-supply": default_supply or None,
    }
    for_omop = {"--condition": condition, "--cohort": cohort}
    for_tables = {"--patients-table": patients_table, "--observation-table": observation_table}
    for_databases = {"--schema": schema, "--table": table}
    records = records or []
    if sum([bool(records), omop is not None, warehouse is not None]) != 1:
        raise ValueError(
            "give either a file of records, --omop URL or --warehouse URL, one of the three."
        )
    wrong: dict[str, Any]
    if omop is not None:
        wrong, kind = {**for_files, **for_columns, **for_tables}, "--omop"
    elif warehouse is not None:
        wrong, kind = {**for_files, **for_omop}, "--warehouse"
    else:
        wrong, kind = {**for_omop, **for_tables, **for_databases}, "a file of records"
    if extra := [name for name, value in wrong.items() if value is not None]:
        raise ValueError(f"{extra[0]} does not go with {kind}; leave it out.")
    for path in records:
        if holds_sequences(path):
            raise ValueError(f"{path} holds sequences already; go on with `mmlca select` or `fit`.")
    endings = (".flow.csv", ".issues.csv", ".settings.json", ".unmapped.csv")
    beside = [out.with_suffix(end) for end in endings]
    keep_inputs([out, *beside], [*records, patients, labs, drugs, drug_names, observation])
    rules: dict[str, Any] = {
        "preset": preset,
        "first_on_or_after": since,
        "follow_up": follow_up,
        "data_cut": data_cut,
        "months": months,
        "max_windows": windows,
        "states": window_states,
        "by": by,
        "ties": ties,
        "gap_days": gap_days,
        "combination_days": combination_days,
        "max_combinations": max_combinations,
        "combinations": combination or None,
        "impute": impute,
        "max_carry": max_carry,
        "off_treatment": off_treatment,
        "death": death,
    }
    with working("Reading", quiet=quiet):
        read: Records | WarehouseRecords
        if omop is not None:
            entry = None if condition is None else condition.split(",")
            read = read_omop(
                omop,
                schema,
                RA_DRUGS if drugs is None else drugs,
                None if entry is None else [int(c) if c.strip().isdecimal() else c for c in entry],
                cohort,
                table=table or "drug_exposure",
            )
        elif warehouse is not None:
            read = read_warehouse(
                warehouse,
                table,
                schema,
                RA_DRUGS if drugs is None else drug_map(drugs),
                patient=patient_column,
                date=date_column,
                drug=drug_column,
                end=end_column,
                supply=supply_column,
                patients=patients_table,
                observation=observation_table,
                patients_columns=roles(patients_column, "--patients-column"),
                observation_columns=roles(observation_column, "--observation-column"),
                default_supply=_supplies(default_supply),
            )
        else:
            read = read_records(
                records if len(records) > 1 else records[0],
                RA_DRUGS if drugs is None else drug_map(drugs),
                patient=patient_column,
                date=date_column,
                drug=drug_column,
                end=end_column,
                supply=supply_column,
                date_format=date_format,
                encoding=encoding,
                delimiter=delimiter,
                decimal=decimal,
                patients=patients,
                labs=labs,
                patients_columns=roles(patients_column, "--patients-column"),
                labs_columns=roles(labs_column, "--labs-column"),
                observation_columns=roles(observation_column, "--observation-column"),
                file_columns=by_file(file_column),
                drug_names=drug_names,
                default_supply=_supplies(default_supply),
                observation=observation,
                strict=strict,
            )
        built = build_sequences(read, **{k: v for k, v in rules.items() if v is not None})
    private_folder(out.parent)
    written = built.write_all(out)
    lines = [f"{read}\n", built.flow.to_string(index=False), f"\n{follow_up_text(built.settings)}"]
    if "reduced" in built.settings:
        lines.append(f"\nThe records were counted {built.settings['reduced']}.")
    if len(built.issues):
        lines.append(f"\nOdd records:\n{built.issues.to_string(index=False)}")
    if len(read.unmapped):
        first = read.unmapped.head(10).fillna({"did_you_mean": ""})
        lines.append(f"\nDrugs not in the map:\n{first.to_string(index=False)}")
    say(quiet, *lines, f"\n{built}\n", wrote(written))
    lost = read.settings["unmapped"]["lost"]
    if caution := unmapped_caution(read.unmapped, lost, str(out.with_suffix(".unmapped.csv"))):
        note(quiet, caution)


def _supplies(texts: list[str] | None) -> int | dict[str, int] | None:
    """What --default-supply says: one number for all drugs, or one for each named.

    >>> _supplies(["30"]), _supplies(["metformin=90", "insulin=30"])
    (30, {'metformin': 90, 'insulin': 30})
    """
    named = {}
    for text in texts or []:
        drug, _, days = text.rpartition("=")
        if not days.strip().isdecimal() or (not drug.strip() and len(texts or []) > 1):
            raise ValueError(
                "--default-supply takes one number of days, or a number for each class or "
                f"ingredient, as in metformin=90; found {text!r}."
            )
        named[drug.strip()] = int(days)
    return named.get("", named or None)
