"""What several commands share: options, each written once, progress, notes and messages.

Where a study file may give a value, the option's own default is None, and the help says so.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
import signal
import threading
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_type_hints

import typer
from pydantic.fields import FieldInfo
from typer import Argument, Option

from ehr_prep.settings import MAPS, Reading, RecordColumns, Rules
from font.errors import InputError
from font.settings import Settings, about
from mmlca.model.settings import ClassSettings, FormSettings, ModelSettings
from mmlca.study.settings import WRONG_SOURCE, Place, Privacy, Site, Study

if TYPE_CHECKING:
    import pandas as pd

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


STUDY_FILE = "from the study file, else {}"


def from_study(other: object, *names: str, **settings: Any) -> Any:
    """An option whose default is in the study file, if there is one, and `other` if not."""
    return Option(*names, show_default=STUDY_FILE.format(other), **settings)


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
StudyArgument = Annotated[Path, Argument(help="The study file.", metavar="STUDY_FILE", **FILE)]
SiteFileArgument = Annotated[
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
KeysFile = Annotated[
    Path | None,
    Option(
        "--keys",
        help="Public keys of sites and centre, a .toml file; what they did not sign is refused.",
        show_default="from the study file",
        **FILE,
    ),
]

NetworkFolder = Annotated[
    Path, Option(file_okay=False, help="Folder with inbox, outbox and private; keep it.")
]

# --- analysis -------------------------------------------------------------------------

_SEED: dict[str, Any] = {"min": 0, "help": "The same seed gives the same result."}
_N_JOBS: dict[str, Any] = {"min": 1, "help": "Number of threads; it does not change the result."}
_MIN_COUNT: dict[str, Any] = {"min": 1, "help": "Smallest patient count behind a shared number."}

Classes = Annotated[int, Option("--classes", "-k", min=1, help="Number of classes.")]
Seed = Annotated[int, Option("--seed", **_SEED)]
StudySeed = Annotated[int | None, from_study(1, "--seed", **_SEED)]
NJobs = Annotated[int, Option("--n-jobs", **_N_JOBS)]
StudyNJobs = Annotated[int | None, from_study(1, "--n-jobs", **_N_JOBS)]
StudyMinCount = Annotated[int | None, from_study(Privacy().min_count, "--min-count", **_MIN_COUNT)]

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


class Group(NamedTuple):
    """Options made from settings: all of `kind`, or those named.

    `otherwise` says in the help where the value of an option that is not given comes from, unless
    it is the default of the setting. `per_site`: each may be given for one site, as in
    --date-column MGB=Datum.
    """

    kind: type[Settings]
    names: Collection[str] = ()
    otherwise: str | None = None
    per_site: bool = False


RuleOptions = Annotated[dict[str, Any], Group(Rules, otherwise="{}, or that of the preset")]
ReadingOptions = Annotated[
    dict[str, Any],
    Group(Reading, Reading.model_fields.keys() - {"drugs", "drug_names"}),  # these are files
]
DatabaseOptions = Annotated[
    dict[str, Any],
    Group(Place, {"omop", "warehouse", *WRONG_SOURCE["files"]} - {"condition"}),
]
ModelOptions = Annotated[dict[str, Any], Group(ModelSettings)]
FormOptions = Annotated[dict[str, Any], Group(FormSettings)]
StudyModelOptions = Annotated[dict[str, Any], Group(ModelSettings, otherwise=STUDY_FILE)]
StudyFormOptions = Annotated[dict[str, Any], Group(FormSettings, otherwise=STUDY_FILE)]
CriterionOptions = Annotated[dict[str, Any], Group(ClassSettings, ("criterion", "count"))]
SiteReading = Annotated[
    dict[str, list[str]],
    Group(
        Reading,
        (*RecordColumns.model_fields, "date_format", "encoding", "delimiter", "decimal"),
        otherwise="as the files show",
        per_site=True,
    ),
]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of each group instead of the group, for typer.

    A group is a `Group` or a dataclass whose fields are options.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        (group,) = getattr(hints[name], "__metadata__", None) or [hints[name]]
        if is_dataclass(group):
            types = get_type_hints(group, include_extras=True)
            options = [_parameter(f.name, types[f.name], f.default) for f in fields(group)]
            make = typing.cast(Callable[..., Any], group)
        elif isinstance(group, Group):
            options, make = _options_in(group), _given
        else:
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


def _options_in(group: Group) -> list[inspect.Parameter]:
    known = group.kind.model_fields.items()
    chosen = {n: field for n, field in known if n in group.names or not group.names}
    return [
        _parameter(
            name, _annotation(group, name, field), None if group.otherwise else field.default
        )
        for name, field in chosen.items()
    ]


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [])}


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _annotation(group: Group, name: str, field: FieldInfo) -> Any:
    """What typer needs to know of a setting; pydantic checks the value in any case."""
    default, example = field.default, about(field, "example")
    more: dict[str, Any] = {"help": field.description or "", "show_default": default is not None}
    if group.otherwise and (default is not None or group.per_site):
        more["show_default"] = group.otherwise.format(default)
    kinds = _kinds(field.annotation)
    plain = {int, float, bool, *(kind for kind in kinds if typing.get_origin(kind) is Literal)}
    kind: Any = next(iter(kinds)) if len(kinds) == 1 and kinds <= plain else str
    if default is None and example is not None and not (example is True or group.per_site):
        shown = example[0] if isinstance(example, list | tuple) else example
        more["help"] += f" Example: {shown}"
    if group.per_site:
        kind, more["metavar"] = list[str], "[SITE=]TEXT"
    elif kinds == {tuple[int, ...]}:
        kind, more["metavar"], more["help"] = str, "N,N,…", field.description
    elif any(typing.get_origin(kind) in (tuple, dict) for kind in kinds):
        kind, more["metavar"] = list[str], "[DRUG=]DAYS" if int in kinds else None
        more["help"] += "; repeat it for others."
    if kind in (int, float):
        more["min"] = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    option = about(field, "option") or f"--{(field.alias or name).replace('_', '-')}"
    return Annotated[(kind | None, Option(option, **more))]


def _kinds(annotation: Any) -> set[Any]:
    """The types of a union, without None and what is beside them."""
    if typing.get_origin(annotation) is Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if isinstance(annotation, type) or typing.get_origin(annotation) in (tuple, dict, Literal):
        return {annotation} - {NoneType}
    return set().union(*map(_kinds, typing.get_args(annotation)))


# --- the study between hospitals ------------------------------------------------------


def agreed_study(name: str | None, study_file: Path | None) -> Study | None:
    """The study of --study-file; None where --study names it, since one of the two must."""
    from mmlca.study.study_file import read_study

    if name is not None and study_file is not None:
        raise InputError(
            f"found both --study {name} and --study-file {study_file}; the file names the study, "
            "so give one of them."
        )
    if study_file is not None:
        return read_study(study_file, files=False)
    if name is None:
        raise InputError("the study has no name; give --study NAME or --study-file FILE.")
    if Path(name).is_file():
        raise InputError(f"--study takes a name, found the file {name}; give it as --study-file.")
    return None


def known_keys(path: Path | None, agreed: Study | None) -> dict[str, str] | None:
    """Public keys from the study file, then those from --keys; None if there are neither."""
    from font.exchange.signatures import read_keys

    keys = {} if agreed is None else agreed.public_keys()
    return (keys | ({} if path is None else read_keys(path))) or None


def listed_sites(text: str | None) -> list[str]:
    """The sites of an option such as --expect MGB,VA."""
    return [site.strip() for site in (text or "").split(",") if site.strip()]


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
    sections = {
        "rules": Rules.model_fields,
        "records": Reading.model_fields,
        "sites.NAME": Site.model_fields,
    }
    return next((f"{section}.{name}" for section, keys in sections.items() if name in keys), name)


def _assignments(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


# --- what commands show ---------------------------------------------------------------

STOPPED = "stopped before the end; run the command again."
RESUMES = "stopped; the same command continues after the last finished step."
Show = Callable[[str, float | None], None]


@contextmanager
def working(text: str, *, quiet: bool = False, resumes: bool = False) -> Iterator[Show]:
    """A progress bar on standard error, if that is a terminal.

    Yields a function `show(text, share)`; a share of None stands for an unknown end. Warnings
    become notes when the work is done. `resumes`: the same command continues after Ctrl-C.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bar = Progress(
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    task = bar.add_task(text, total=None)

    def show(text: str, share: float | None) -> None:
        bar.update(
            task, description=text, completed=share or 0.0, total=None if share is None else 1.0
        )

    with _noting_interrupts() as noted:
        try:
            with bar, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                yield show
        except (KeyboardInterrupt, Exception) as error:
            if isinstance(error, KeyboardInterrupt) or noted:
                raise KeyboardInterrupt(RESUMES if resumes else STOPPED) from None
            raise
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        note(quiet, message)


@contextmanager
def _noting_interrupts() -> Iterator[list[int]]:
    """Keeps a list to which Ctrl-C adds: a compiled module that it interrupts while it is imported
    raises another error than KeyboardInterrupt.
    """
    noted: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    usual = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if usual:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield noted
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def note(quiet: bool, text: str) -> None:
    if not quiet:
        typer.echo(f"note: {text}", err=True)


def say(quiet: bool, *lines: str) -> None:
    if lines and not quiet:
        typer.echo("\n".join(lines))


def wrote(paths: Sequence[Path]) -> str:
    folder = paths[0].parent
    place = "this folder" if folder == Path() else folder
    return f"Wrote {', '.join(path.name for path in paths)} to {place}."


def write_table(table: pd.DataFrame, path: Path, *, private: bool = False) -> Path:
    from font.files import atomic_write, csv_text

    atomic_write(path, csv_text(table).encode(), private=private)
    return path
