"""Arguments and options that several commands share, each written once.

Where a study file may give a value, the option's own default is None, and the help says so.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import typer
from pydantic.fields import FieldInfo
from typer import Argument, Option

from ehr_prep.settings import MAPS, Reading, RecordColumns, Rules
from font.errors import InputError
from font.settings import Settings, about
from mmlca.model.settings import ClassSettings, FormSettings, ModelSettings
from mmlca.study.settings import Place

PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,  # plain help starts twice as fast
}


def _plain_file(value: Any) -> Any:
    """A file that was named on the command line, or several of them."""
    from font.files import check_regular

    for path in value if isinstance(value, (list, tuple)) else [value]:
        if path is not None:
            check_regular(path)
    return value


FILE: dict[str, Any] = {"exists": True, "dir_okay": False, "callback": _plain_file}


def from_study(other: object, *names: str, **settings: Any) -> Any:
    """An option whose default is in the study file, if there is one, and `other` if not."""
    return Option(*names, show_default=f"from the study file, else {other}", **settings)


# --- input ----------------------------------------------------------------------------

SequencesFile = Annotated[
    Path, Argument(metavar="SEQUENCES", help="Sequences, a .csv or .parquet file.", **FILE)
]
SequencesFiles = Annotated[
    list[Path],
    Argument(metavar="SEQUENCES", help="Sequences, one .csv or .parquet file per site.", **FILE),
]
Columns = Annotated[
    str | None,
    Option(help="Columns that hold the states, such as t1:t12.", show_default="all but the id"),
]
States = Annotated[
    str | None,
    Option(help="All states in their order, separated by commas.", show_default="as in the file"),
]
RecordsFiles = Annotated[
    list[Path] | None,
    Option(
        "--records",
        help="Medication records instead of sequences, one or several files; see `mmlca prep`.",
        **FILE,
    ),
]


def _drugs(value: str | None) -> str | None:
    if value is not None and value not in MAPS:
        if not Path(value).exists():
            raise InputError(
                f"--drugs is {value!r}, which is neither a drug map that is built in "
                f"({', '.join(MAPS)}) nor a file; correct the path."
            )
        _plain_file(Path(value))
    return value


DrugMap = Annotated[
    str | None,
    Option(
        "--drugs",
        metavar="NAME|FILE",
        help=f"Drug map: {', '.join(MAPS)}, or a .csv file of drug and class; with --omop also an "
        "Atlas file.",
        show_default="that of the preset",
        callback=_drugs,
    ),
]
DrugNames = Annotated[
    Path | None,
    Option(
        "--drug-names",
        help="What codes in the drug column stand for: a table of code and name, such as OMOP's "
        "concept.",
        **FILE,
    ),
]
FileColumn = Annotated[
    list[str] | None,
    Option(
        "--file-column",
        metavar="FILE:WHAT=COLUMN",
        help="Column of one of several files of records, such as b.csv:patient=PatNr.",
    ),
]
PatientsFile = Annotated[
    Path | None,
    Option("--patients", help="Patients' table that goes with the records.", **FILE),
]
StudyArgument = Annotated[Path, Argument(help="The study file.", metavar="STUDY_FILE", **FILE)]
SiteFile = Annotated[
    Path | None,
    Argument(
        help="What is this hospital's own: its files or database, its floor; it never leaves.",
        metavar="SITE_FILE",
        show_default="the study file says where the patients are",
        **FILE,
    ),
]
StudyFile = Annotated[
    Path | None,
    Option(help="Study file; other options override what it says.", metavar="FILE", **FILE),
]
StudyName = Annotated[
    str | None,
    Option(
        "--study",
        metavar="NAME",
        help="Name of the study, the same at all sites.",
        show_default="from the study file",
    ),
]
SiteName = Annotated[
    str | None,
    Option(
        "--site",
        metavar="NAME",
        help="Name of this hospital.",
        show_default="the only one in the study file",
    ),
]

KeysFile = Annotated[
    Path | None,
    Option(
        "--keys",
        help="Public keys of sites and centre, a .toml file; what they did not sign is refused.",
        show_default="from the study file",
        **FILE,
    ),
]

# --- analysis -------------------------------------------------------------------------

_SEED: dict[str, Any] = {"min": 0, "help": "The same seed gives the same result."}
_MODEL = {name: field.description for name, field in ModelSettings.model_fields.items()}
_N_JOBS: dict[str, Any] = {"min": 1, "help": "Number of threads; it does not change the result."}
_MIN_COUNT: dict[str, Any] = {"min": 1, "help": "Smallest patient count behind a shared number."}

Classes = Annotated[int, Option("--classes", "-k", min=1, help="Number of classes.")]
Seed = Annotated[int, Option("--seed", **_SEED)]
StudySeed = Annotated[int | None, from_study(1, "--seed", **_SEED)]
StudyNInit = Annotated[
    int | None,
    from_study(ModelSettings().n_init, "--n-init", min=1, help=_MODEL["n_init"]),
]
StudySearch = Annotated[
    Literal["default", "thorough"] | None,
    from_study(ModelSettings().search, "--search", help=_MODEL["search"]),
]
NJobs = Annotated[int, Option("--n-jobs", **_N_JOBS)]
StudyNJobs = Annotated[int | None, from_study(1, "--n-jobs", **_N_JOBS)]
StudyMinCount = Annotated[int | None, from_study(11, "--min-count", **_MIN_COUNT)]

Preset = Annotated[
    Literal["ra"] | None,
    Option("--preset", help="Rules and drugs of a known study; ra: rheumatoid arthritis."),
]

# --- output ---------------------------------------------------------------------------

Out = Annotated[Path, Option("--out", "-o", help="Folder for the results.", file_okay=False)]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print nothing but errors.")]
NoProgress = Annotated[bool, Option("--no-progress", help="Show no progress bar.")]
Json = Annotated[bool, Option("--json", help="Print the numbers as JSON and nothing else.")]


def chosen_map(drugs: str | None, preset: str | None) -> str | None:
    """The drug map that is named, or that of the preset."""
    return preset if drugs is None and preset in MAPS else drugs


def map_file(drugs: str | None) -> Path | None:
    """The file of a drug map, None for one that is built in."""
    return None if drugs is None or drugs in MAPS else Path(drugs)


def whole_numbers(text: str, option: str) -> list[int]:
    """The numbers that an option lists.

    >>> whole_numbers("1-4,6", "--classes")
    [1, 2, 3, 4, 6]
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([1-9]\d{0,3})(?:-(\d{1,4}))?\s*", part)
        run = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not run:
            raise InputError(
                f"{option} takes whole numbers from 1 such as 1-8 or 2,3,5; found {text!r}."
            )
        numbers += run
    return list(dict.fromkeys(numbers))


# --- groups of options that a command names as one argument ---------------------------

RuleOptions = Annotated[dict[str, Any], Rules]
ReadingOptions = Annotated[dict[str, Any], Reading, ("drugs", "drug_names")]
"""Those of `Reading` but the drug map, which several commands share as files."""
DatabaseOptions = Annotated[
    dict[str, Any],
    Place,
    Place.model_fields.keys()
    - {"omop", "warehouse", "cdm_schema", "cohort", "table", "patients_table", "observation_table"},
]
ModelOptions = Annotated[dict[str, Any], ModelSettings]
FormOptions = Annotated[dict[str, Any], FormSettings]
CriterionOptions = Annotated[dict[str, Any], ClassSettings, ("number", "candidates", "stability")]


class PerSite(NamedTuple):
    """Settings of `Reading` that may be given for one site, as in --date-column MGB=Datum."""

    names: tuple[str, ...]


SiteReading = Annotated[
    dict[str, list[str]],
    PerSite((*RecordColumns.model_fields, "date_format", "encoding", "delimiter", "decimal")),
]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of each group instead of the group, for typer."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        options, make = _options_in(hints[name])
        if make is None:
            hint = hints[name]
            parameters.append(parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY))
            continue
        groups[name] = make, [option.name for option in options]
        parameters += options

    @wraps(command)
    def whole(**values: Any) -> None:
        for name, (make, options) in groups.items():
            values[name] = make(**{option: values.pop(option) for option in options})
        command(**values)

    whole.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    whole.__annotations__ = {p.name: p.annotation for p in parameters}
    return whole


def option_names(kind: type[Settings]) -> dict[str, str]:
    """{name of a setting: option of a command} of settings whose options have other names."""
    named = {name: about(field, "option") for name, field in kind.model_fields.items()}
    return {name: option for name, option in named.items() if option is not None}


def _options_in(group: Any) -> tuple[list[inspect.Parameter], Callable[..., Any] | None]:
    """The options of a group and what makes the group of their values; None for other types."""
    if is_dataclass(group):
        types = get_type_hints(group, include_extras=True)
        options = [_parameter(f.name, types[f.name], f.default) for f in fields(group)]
        return options, typing.cast(Callable[..., Any], group)
    kind, *left_out = getattr(group, "__metadata__", None) or [None]
    if isinstance(kind, PerSite):
        return [_parameter(name, _per_site(name), None) for name in kind.names], _given
    if not (isinstance(kind, type) and issubclass(kind, Settings)):
        return [], None
    options = [
        _parameter(name, _annotation(kind, name, field), None if kind is Rules else field.default)
        for name, field in kind.model_fields.items()
        if not left_out or name not in left_out[0]
    ]
    return options, _given


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [])}


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _option(name: str, field: FieldInfo) -> str:
    return about(field, "option") or f"--{(field.alias or name).replace('_', '-')}"


def _per_site(name: str) -> Any:
    field = Reading.model_fields[name]
    option = typer.Option(
        _option(name, field),
        metavar="[SITE=]TEXT",
        help=field.description,
        show_default="as the files show",
    )
    return Annotated[(list[str] | None, option)]


def _annotation(kind: type[Settings], name: str, field: FieldInfo) -> Any:
    """What typer needs to know of a setting; pydantic checks the value in any case."""
    option = _option(name, field)
    default, example = field.default, about(field, "example")
    shown: Any = default is not None
    if kind is Rules and shown:
        shown = f"{default}, or that of the preset"
    text = field.description or ""
    if default is None and example is not None and not isinstance(example, bool):
        text = f"{text} Example: {_example(example)}"
    more: dict[str, Any] = {"help": text, "show_default": shown}
    kinds = _kinds(field.annotation)
    least = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    if kinds == {int}:
        return Annotated[(int | None, typer.Option(option, min=least, **more))]
    if kinds == {bool}:
        return Annotated[(bool | None, typer.Option(option, **more))]
    if all(typing.get_origin(kind) is Literal for kind in kinds):
        (choices,) = kinds
        return Annotated[(choices | None, typer.Option(option, **more))]
    if kinds == {tuple[int, ...]}:
        more["help"] = field.description  # which has an example of several numbers
        return Annotated[(str | None, typer.Option(option, metavar="N,N,…", **more))]
    if any(typing.get_origin(kind) in (tuple, dict) for kind in kinds):
        metavar = "[DRUG=]DAYS" if int in kinds else None
        more["help"] = f"{text}; repeat it for others."
        return Annotated[(list[str] | None, typer.Option(option, metavar=metavar, **more))]
    if kinds == {float}:
        return Annotated[(float | None, typer.Option(option, min=least, **more))]
    return Annotated[(str | None, typer.Option(option, **more))]


def _example(value: Any) -> str:
    return str(value[0] if isinstance(value, list | tuple) else value)


def _kinds(annotation: Any) -> set[Any]:
    """The types of a union, without None and what is beside them."""
    if typing.get_origin(annotation) is Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if isinstance(annotation, type) or typing.get_origin(annotation) in (tuple, dict, Literal):
        return {annotation} - {NoneType}
    return set().union(*map(_kinds, typing.get_args(annotation)))


# --- advice in messages ---------------------------------------------------------------

_CALLED = {
    **option_names(Reading),
    **option_names(Rules),
    "patients_columns": "--patients-column",
    "labs_columns": "--labs-column",
    "observation_columns": "--observation-column",
    "file_columns": "--file-column",
    "n_classes": "--classes",
    "n_clusters": "--clusters",
}


def roles(texts: list[str] | None, option: str) -> dict[str, str] | None:
    """What options such as --patients-column birth_date=Geb name, by role.

    >>> roles(["patient=PatNr", "birth_date=Geb"], "--patients-column")
    {'patient': 'PatNr', 'birth_date': 'Geb'}
    """
    named = {}
    for text in texts or []:
        role, sign, column = text.partition("=")
        if not (role.strip() and sign and column):
            raise InputError(
                f"{option} takes what a column is and its name, as in "
                f"patient=PatNr; found {text!r}."
            )
        named[role.strip()] = column
    return named or None


def by_file(texts: list[str] | None) -> dict[str, dict[str, str]] | None:
    """What --file-column b.csv:patient=PatNr names, by file and role.

    >>> by_file(["b.csv:patient=PatNr", "b.csv:date=Tag"])
    {'b.csv': {'patient': 'PatNr', 'date': 'Tag'}}
    """
    named: dict[str, dict[str, str]] = {}
    for text in texts or []:
        place, _, column = text.partition("=")
        file, sign, role = place.rpartition(":")
        if not (file.strip() and sign and role.strip() and column):
            raise InputError(
                "--file-column takes a file, what a column is and its name, as in "
                f"b.csv:patient=PatNr; found {text!r}."
            )
        named.setdefault(file.strip(), {})[role.strip()] = column
    return named or None


def as_option(name: str, value: object) -> str:
    """A Python argument as an option of a command; see `font.errors`.

    >>> as_option("date_format", "%d %m %Y")
    "--date-format '%d %m %Y'"
    >>> as_option("file_columns", {"b.csv": {"patient": "PatNr", "date": "Tag"}})
    '--file-column b.csv:patient=PatNr --file-column b.csv:date=Tag'
    """
    called = _CALLED.get(name, f"--{name.replace('_', '-')}")
    if isinstance(value, dict):
        pairs = {
            f"{part}:{role}": column
            for part, columns in value.items()
            if isinstance(columns, dict)
            for role, column in columns.items()
        }
        each = (f"{role}={column}" for role, column in (pairs or value).items())
        return " ".join(f"{called} {shlex.quote(text)}" for text in each)
    return called if value is None or value is True else f"{called} {shlex.quote(str(value))}"


def as_key(name: str, value: object) -> str:
    """A Python argument as a key of a study file.

    >>> as_key("patients_columns", {"birth_date": "Geb"})
    '[patients.columns] birth_date = "Geb"'
    >>> as_key("file_columns", {"b.csv": {"patient": "PatNr"}})
    '[sites.NAME.file_columns."b.csv"] patient = "PatNr"'
    """
    if name == "file_columns":
        files = value if isinstance(value, dict) else {}
        tables = {f'[sites.NAME.file_columns."{f}"]': columns for f, columns in files.items()}
        return (
            " ".join(" ".join([table, *_assignments(columns)]) for table, columns in tables.items())
            or "[sites.NAME.file_columns]"
        )
    if name.endswith("_columns"):
        table = f"[{name.removesuffix('_columns')}.columns]"
        return " ".join([table, *_assignments(value if isinstance(value, dict) else {})])
    if name in RecordColumns.model_fields:
        return as_key("records_columns", {name: value}) if value else f"[records.columns] {name}"
    called = {"test": "outputs.lab", "variables": "table_one.variables"}.get(name) or _section(name)
    return called if value is None else f"{called} = {json.dumps(value, ensure_ascii=False)}"


def _section(name: str) -> str:
    """A key of a study file with its section, where it has one.

    >>> _section("death"), _section("default_supply"), _section("patients")
    ('rules.death', 'records.default_supply', 'sites.NAME.patients')
    """
    from ehr_prep.settings import Reading, Rules
    from mmlca.study.settings import Site

    sections = {
        "rules": Rules.model_fields,
        "records": Reading.model_fields,
        "sites.NAME": Site.model_fields,
    }
    return next((f"{section}.{name}" for section, keys in sections.items() if name in keys), name)


def _assignments(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


def listed_sites(text: str | None) -> list[str]:
    """The sites of an option such as --expect MGB,VA."""
    return [site.strip() for site in (text or "").split(",") if site.strip()]
