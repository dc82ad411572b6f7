"""Options that the commands of a site share, and the hospital that they describe.

Each group of options is a dataclass that `mmlca.cli.options.with_groups` spells out for typer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from font.errors import InputError, spelled
from mmlca.cli.data import read_sequences
from mmlca.cli.display import say
from mmlca.cli.options import (
    FILE,
    Columns,
    DrugMap,
    PatientsFile,
    Preset,
    RecordsFiles,
    SiteName,
    States,
    StudyFile,
    StudyMinCount,
    StudyName,
    as_key,
    as_option,
    chosen_map,
    map_file,
)

if TYPE_CHECKING:
    import pandas as pd

    from font.exchange.registry import ModelFamily
    from mmlca.federation.hospital import Hospital
    from mmlca.sequences.type import Sequences

SiteSequences = Annotated[
    Path | None,
    typer.Option(
        "--sequences",
        help="This site's sequences, a .csv or .parquet file.",
        show_default="from the study file",
        **FILE,
    ),
]
SiteFolder = Annotated[
    Path,
    typer.Option(
        file_okay=False, help="This site's folder, with the ledger of what left; keep it."
    ),
]
SiteOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder for the files.", show_default="in the folder"),
]
Floor = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="MMLCA_FLOOR",
        help="Smallest --min-count that this site accepts; no study file changes it.",
    ),
]
Override = Annotated[
    str | None,
    typer.Option(
        help="Reason for sending something different for the same study and round, in words.",
        show_default="refused",
    ),
]
Secure = Annotated[
    bool,
    typer.Option(
        "--secure", help="Send exact numbers under masks, of which the centre reads only the sum."
    ),
]
Without = Annotated[
    str | None,
    typer.Option(
        metavar="SITES",
        help="Sites that dropped out of a secure sum, as you have confirmed with them; answer "
        "again without them.",
        show_default="none",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Home:
    """Which site of which study this is."""

    study: StudyName = None
    site: SiteName = None
    study_file: StudyFile = None
    folder: SiteFolder = Path()
    override: Override = None


@dataclass(frozen=True, kw_only=True)
class Release:
    """How counts are rounded before they leave."""

    min_count: StudyMinCount = None
    floor: Floor = 11


@dataclass(frozen=True, kw_only=True)
class Patients:
    """Where the site's patients are, unless the study file or --sequences says so."""

    records: RecordsFiles = None
    patients: PatientsFile = None
    drugs: DrugMap = None
    preset: Preset = None
    columns: Columns = None
    states: States = None


def open_hospital(
    home: Home, sequences: Any, release: Release | None = None, **options: Any
) -> Hospital:
    """This site, from the study file or from the options; those that are None are left out."""
    from font.checks import some
    from font.files import check_regular
    from mmlca.federation.hospital import Hospital
    from mmlca.study.study_file import read_study

    name = study_name(home.study, home.study_file)
    options |= {"folder": home.folder, "override": home.override, "sequences": sequences}
    if release is not None:
        options |= {"min_count": release.min_count, "floor": release.floor}
    settings = {key: value for key, value in options.items() if value is not None}
    if home.study_file is not None:
        sites = list(read_study(home.study_file, files=False).sites)
        for path in study_inputs(home.study_file):
            if path.exists():  # those of other sites may be absent
                check_regular(path)
        if home.site is None and len(sites) > 1:
            raise InputError(
                f"{home.study_file} has the sites {some(sites)}; choose one with --site."
            )
        with spelled(as_key):
            return Hospital.from_study(home.study_file, home.site, **settings)
    if home.site is None:
        raise InputError("the name of this hospital is missing; give it with --site.")
    if sequences is None:
        raise InputError("there are no patients; give sequences, --records or --study-file.")
    return Hospital(study=name, site=home.site, **settings)


def study_name(study: str | None, study_file: Path | None) -> str:
    """The study's name from --study; "" where --study-file gives it."""
    if study is not None and study_file is not None:
        raise InputError(
            f"found both --study {study} and --study-file {study_file}; the file names the study, "
            "so give one of them."
        )
    if study is None and study_file is None:
        raise InputError("the study has no name; give --study NAME or --study-file FILE.")
    if study is not None and Path(study).is_file():
        raise InputError(f"--study takes a name, found the file {study}; give it as --study-file.")
    return study or ""


def read_keys_file(path: Path | None, study_file: Path | None) -> dict[str, str] | None:
    """Public keys from the study file, then those from --keys; None if there are neither."""
    from font.exchange.signatures import read_keys
    from mmlca.study.study_file import read_study

    keys = {} if study_file is None else read_study(study_file, files=False).public_keys()
    return (keys | ({} if path is None else read_keys(path))) or None


def study_inputs(study_file: Path | None) -> list[Path]:
    """The study file and the files that it names, of all sites."""
    from mmlca.study.study_file import input_files, read_study

    if study_file is None:
        return []
    named = input_files(read_study(study_file, files=False), study_file.parent)
    return [study_file, *named.values()]


def all_inputs(home: Home, patients: Patients, *files: Path | None) -> list[Path | None]:
    """Every file that a command reads: none of them may be overwritten."""
    own = [*(patients.records or []), patients.patients, map_file(patients.drugs)]
    return [*files, *own, *study_inputs(home.study_file)]


def site_data(
    sequences: Path | None,
    patients: Patients,
    exchange_file: Path | None = None,
    *,
    family: str | None = None,
    quiet: bool = False,
) -> Sequences | pd.DataFrame | None:
    """The site's patients as the options name them; None leaves them to the study file.

    Families of models that look at the columns of a table read one: those columns that the models
    in an exchange file need, or all, if `family` names the one to fit. Records become sequences as
    `mmlca prep` makes them, and the rules are printed.
    """
    records = patients.records
    if sequences is not None and records:
        raise InputError(f"found both sequences ({sequences}) and --records; give one.")
    own = ("patients", "drugs", "preset")
    for name in own:
        if getattr(patients, name) is not None and not records:
            raise InputError(f"--{name} goes with --records; give both, or neither.")
    if records:
        from ehr_prep.build import build_sequences
        from ehr_prep.records import read_records

        def spell(name: str, value: object) -> str:
            called = as_option(name, value)
            return called if name in own else f"`mmlca prep {called}`"

        with spelled(spell):
            read = read_records(
                records if len(records) > 1 else records[0],
                chosen_map(patients.drugs, patients.preset),
                patients=patients.patients,
            )
            built = build_sequences(read, preset=patients.preset)
        say(quiet, _rules_text(built.settings))
        return built
    if sequences is None:
        return None
    from font.exchange.registry import family_named

    model = None if exchange_file is None else _model_in(exchange_file)
    if model is not None and model.family.data == "table":
        return _table(sequences, model.columns)
    if family is not None and family_named(family).data == "table":
        return _table(sequences)
    return read_sequences(sequences, patients.columns, patients.states)


_RULES = (
    "first_on_or_after",
    "months",
    "max_windows",
    "by",
    "ties",
    "impute",
    "max_carry",
    "death",
)


def _rules_text(settings: dict[str, Any]) -> str:
    """The rules by which records became sequences, as a sentence to print."""
    preset = settings["preset"]
    whose = "the defaults of `mmlca prep`" if preset is None else f"those of --preset {preset}"
    values = ", ".join(f"{name} = {settings[name]}" for name in _RULES)
    return f"Rules for the sequences: {whose} ({values}); for other rules run `mmlca prep` first."


def no_patients() -> pd.DataFrame:
    """An empty table, where no patients are needed."""
    import pandas as pd

    return pd.DataFrame()


class _ModelIn(NamedTuple):
    """The family of the first model in an exchange file, and what it looks at."""

    family: ModelFamily
    columns: list[str]


def _model_in(path: Path) -> _ModelIn | None:
    from font.exchange.envelope import read_file
    from font.exchange.registry import family_of

    payload = read_file(path).payload
    content = (payload["models"][0] if "models" in payload else payload).get("model")
    if content is None:
        return None
    family = family_of(content["format"])
    return _ModelIn(family, list(family.variables(content)))


def _table(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """The columns of a table by patient; all of them if none are named."""
    from font.checks import some
    from mmlca.sequences.files import read_table

    table = read_table(path)
    lacking = [name for name in ["id", *(columns or [])] if name not in table.columns]
    if lacking:
        raise InputError(
            f"{path} lacks the columns {some(lacking)}; add them or correct the names."
        )
    table = table.set_index("id")
    return table if columns is None else table[columns]
