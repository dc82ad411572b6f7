"""The study file: how it is read, checked and written."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import textwrap
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from font.checks import one_of
from font.errors import InputError, option_name
from font.files import check_regular
from font.settings import Settings, about, explain
from mmlca.study.settings import Privacy, Site, Study

if TYPE_CHECKING:
    import pandas as pd

_RENAMED = {
    ("threads",): "n_jobs",
    ("model", "starts"): "model.n_init",
    ("classes", "starts"): "model.n_init",
    ("rules", "none_state"): "rules.off_treatment",
}


def read_study(
    path: str | os.PathLike[str], *, site: str | None = None, files: bool = True
) -> Study:
    """Read and check a study file. Paths in it are relative to its folder.

    With `site` the study has that site alone, and only that site's files must exist, so that a
    hospital can use the study file of all hospitals. With `files=False` no file need exist.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("id,1,2\\n1,TNFi,JAK\\n")
    >>> _ = (folder / "study.toml").write_text(
    ...     'name = "Trial"\\n[sites.MGB]\\nsequences = "a.csv"\\n[rules]\\nmonth = 6\\n')
    >>> read_study(folder / "study.toml")
    Traceback (most recent call last):
    font.errors.InputError: study.toml: rules.month is not known; did you mean rules.months?
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no study file {path}; `mmlca study init` writes one.")
    check_regular(path)
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path.name} is not UTF-8 text; save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path.name} cannot be read as TOML: {_not_toml(path, error)}") from None
    try:
        study = Study.model_validate(settings)
    except ValidationError as error:
        raise InputError(f"{path.name}: {_one_sentence(error, settings)}") from None
    if site is not None and site not in study.sites:
        raise InputError(f"{path.name} has no site {site!r}; it has {', '.join(study.sites)}.")
    if site is None and study.outputs.lab and not any(s.labs for s in study.sites.values()):
        raise InputError(
            f"{path.name}: outputs.lab is {study.outputs.lab!r}, but no site has labs; name "
            f'their files, as in [sites.{next(iter(study.sites))}] labs = "labs.csv".'
        )
    if not files:
        return study
    kept = study.sites if site is None else {site: study.sites[site]}
    sites = {name: resolved(path, name, part) for name, part in kept.items()}
    reading = resolved_map(path, "records", study.records)
    concepts = resolved_concepts(path, study.concepts)
    changed = {"sites": sites, "records": reading, "concepts": concepts}
    study = study.model_copy(update=changed)
    study._folder = path.parent
    return study


def write_study_file(
    path: str | os.PathLike[str],
    sites: Sequence[str] | Mapping[str, Mapping[str, Any]] = ("hospital_1", "hospital_2"),
    *,
    name: str = "Treatment courses",
    seed: int = 1,
    synthetic: bool = False,
    preset: str | None = None,
    records: Mapping[str, Any] | None = None,
    candidates: Sequence[int] = tuple(range(1, 9)),
    stability: bool = True,
    notes: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write a commented study file that lists every setting with its default.

    Parameters
    ----------
    path : path
    sites : names, or {name: settings}
        Settings as a study file has them under `[sites.NAME]`; default: two sites and files that
        are to be named.
    name, seed, synthetic
        See `Study`.
    preset : str, optional
        Write the rules and drugs of that name, such as "ra"; see `ehr_prep.PRESETS`.
    records : dict, optional
        Settings under `[records]`, which hold for all sites.
    candidates : list of int
        Numbers of classes to try.
    stability : bool
        Try them at the resamples of the sites too.
    notes : {site: lines}, optional
        Comments for each site.
    """
    from ehr_prep.settings import MAPS, PRESETS
    from mmlca.sequences.files import atomic
    from mmlca.study.release import site_floor

    if not isinstance(sites, Mapping):
        sites = {site: _to_be_named(site, synthetic) for site in sites}
    if preset is not None:
        one_of(preset, PRESETS, option_name("preset"))
    settings: dict[str, Any] = {"name": name, "seed": seed, "synthetic": synthetic, "sites": sites}
    settings |= {"records": dict(records or {}), "classes": {"candidates": list(candidates)}}
    settings["classes"]["stability"] = stability
    if preset in MAPS:
        settings["records"].setdefault("drugs", preset)
    if preset is not None:
        settings["rules"] = PRESETS[preset].model_dump(exclude_unset=True)
        settings["outputs"] = _PRESET_OUTPUTS.get(preset, {})
    least = 1 if synthetic else Privacy().min_count  # made-up patients need no protection
    settings["privacy"] = {"min_count": max(least, site_floor() or 0)}
    if synthetic:
        settings["published"] = _PUBLISHED
    try:
        Study.model_validate(settings)
    except ValidationError as error:
        raise InputError(_one_sentence(error, settings)) from None
    with atomic(Path(path)) as file:
        file.write("\n".join([*_lines_of_study(settings, notes or {}), ""]).encode())


def settings_table() -> pd.DataFrame:
    """Every setting of a study file: its section, key, default and meaning.

    Examples
    --------
    >>> settings_table().query("key == 'max_carry' and section == 'rules'")["default"].item()
    '2'
    """
    import pandas as pd

    rows = []
    sections: dict[str, Any] = {"": Study, "sites.NAME": Site}
    for key, field in Study.model_fields.items():
        if _is_section(field):
            sections[key] = _kind(field)
            columns = sections[key].model_fields.get("columns")
            if columns is not None and _is_section(columns):
                sections[f"{key}.columns"] = _kind(columns)
    for section, kind in sections.items():
        repeated = _reading_keys() if section == "sites.NAME" else set()
        for key, field in kind.model_fields.items():
            if (
                field.description
                and key not in repeated
                and (section != "records" or key not in _column_keys())
            ):
                default = field.get_default(call_default_factory=True)
                shown = "" if field.is_required() or default in (None, {}) else to_toml(default)
                rows.append((section, field.alias or key, shown, field.description))
    return pd.DataFrame(rows, columns=["section", "key", "default", "meaning"])


# --- writing ---------------------------------------------------------------------------

_HEAD = """# A study: its data, its rules and its results. Run it with
#     mmlca study run study.toml --out results
# Lines that begin with # are comments; most of them show a setting with an example.
"""
_SITES = """
# --- data, by site ---------------------------------------------------------------------
# Paths are relative to this file. A site has records, sequences made by `mmlca prep`, or a
# database. Any setting of [records] may be given here too, for this site alone, and columns in
# [sites.NAME.records_columns], [sites.NAME.patients_columns] and so on; those of one of several
# files of records in [sites.NAME.file_columns."b.csv"]."""
_PUBLISHED = {
    "source": "published study",
    "transition_ensemble": 0.403,
    "transition_local": 1.083,
    "initial_ensemble": 0.505,
    "initial_local": 0.515,
}
_PRESET_OUTPUTS = {"ra": {"lab_label": "ESR (mm/h)"}}
"""Settings under `[outputs]` that belong to a preset."""
_WIDTH = 29  # where comments begin
_LONGEST = 110


def _lines_of_study(
    settings: Mapping[str, Any], notes: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """The lines of a study file: every setting, those with an example only as comments."""
    yield _HEAD
    plain = {n: f for n, f in Study.model_fields.items() if not _is_section(f) and n != "concepts"}
    for key in plain:
        if key not in ("sites", "synthetic") or settings.get(key) is True:
            yield from _line(key, plain[key], settings)
    yield _SITES
    for site, values in settings["sites"].items():
        yield from _site_lines(site, values, notes.get(site, ()))
    yield "\n# Drug classes of OMOP databases: concept ids, ATC codes or files of Atlas."
    yield "# [concepts]"
    yield '# TNFi = [1119119, "L04AB*", "tnfi.json"]'
    for key, field in Study.model_fields.items():
        if _is_section(field):
            kind = _kind(field)
            off = "# " if key == "published" and key not in settings else ""
            lines = list(_section_lines(kind, settings.get(key, {})))
            yield f"\n# {_first_sentence(kind)}"
            if lines:
                yield f"{off}[{key}]"
            yield from (line if not off or line.startswith("#") else off + line for line in lines)
            columns = kind.model_fields.get("columns")
            if columns is not None and _is_section(columns):
                yield f"[{key}.columns]"
                yield from _section_lines(_kind(columns), {})


def _site_lines(site: str, values: Mapping[str, Any], notes: Sequence[str]) -> Iterator[str]:
    tables = {key: value for key, value in values.items() if key.endswith("_columns")}
    yield f"\n[sites.{_key(site)}]"
    yield from (f"# {note}" for note in notes)
    database = "omop" in values or "warehouse" in values
    unfit = {"truth", "warehouse", "table", "patients_table", "observation_table"}
    unfit |= {"condition", "cohort", "cdm_schema"} if not database else {"omop", "observation"}
    unfit |= {name for name in Site.model_fields if name.endswith("_columns")}
    own = {n: f for n, f in Site.model_fields.items() if n not in _reading_keys()}
    for key, value in values.items():
        if key in _reading_keys():
            yield f"{key} = {to_toml(value)}"
    for key, field in own.items():
        name = field.alias or key
        if name in values and name not in tables:
            yield from _line(name, field, values)
        elif key not in unfit:
            yield from _line(name, field, {})
    for table, columns in tables.items():
        files = columns if table == "file_columns" else {None: columns}
        for file, roles in files.items():
            more = "" if file is None else f".{to_toml(file)}"
            yield f"\n[sites.{_key(site)}.{table}{more}]"
            yield from (f"{role} = {to_toml(column)}" for role, column in roles.items())


def _reading_keys() -> set[str]:
    from ehr_prep.settings import Reading

    return set(Reading.model_fields)


def _column_keys() -> set[str]:
    """Columns of the records, which may stand in `[records]` and in `[records.columns]`."""
    from ehr_prep.settings import RecordColumns

    return set(RecordColumns.model_fields)


def _section_lines(kind: type[Settings], values: Mapping[str, Any]) -> Iterator[str]:
    doubled = _column_keys() if "columns" in kind.model_fields else set()
    for key, field in kind.model_fields.items():
        if key not in doubled and not _is_section(field):
            yield from _line(key, field, values)


def _line(key: str, field: Any, values: Mapping[str, Any]) -> Iterator[str]:
    """A setting with its help; without a value it is a comment with an example."""
    value = values.get(key, field.get_default(call_default_factory=True))
    text, example = field.description or "", about(field, "example")
    if key in values or not (value is None or (example is not None and not value)):
        line = f"{key} = {to_toml(value)}"
    else:
        line = f"# {key} = {to_toml(example)}"
    if choices := _choices(field.annotation):
        text += f" One of {', '.join(map(to_toml, choices))}."
    whole = f"{line.ljust(_WIDTH - 1)} # {text}"
    if len(whole) <= _LONGEST:
        yield whole
    else:
        yield from (f"# {part}" for part in textwrap.wrap(text, _LONGEST - 2))
        yield line


def _choices(annotation: Any) -> tuple[str, ...]:
    """The texts that a setting may be, if it may be nothing else."""
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
    return choices if len(choices) > 1 else ()


def _key(name: str) -> str:
    """A key as TOML writes it, in quotation marks only where it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else to_toml(name)


def _is_section(field: Any) -> bool:
    return _kind(field) is not None


def _kind(field: Any) -> Any:
    """The settings class of a section, or None."""
    if typing.get_origin(field.annotation) is dict:
        return None
    for part in (field.annotation, *typing.get_args(field.annotation)):
        if isinstance(part, type) and issubclass(part, Settings):
            default = field.get_default(call_default_factory=True)
            return part if default is None else type(default)
    return None


def _first_sentence(kind: type[Settings]) -> str:
    return str(kind.__doc__).split("\n\n")[0].replace("\n", " ").strip()


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings as a study file has them, without comments.

    >>> print(settings_text({"name": "RA", "rules": {"months": 3, "ties": "first"}}))
    name = "RA"
    <BLANKLINE>
    [rules]
    months = 3
    ties = "first"
    """
    return "\n".join(_plain_lines(settings, ())).strip("\n")


def _plain_lines(part: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    own = {k: v for k, v in part.items() if not isinstance(v, Mapping) and v is not None}
    if path and own:
        yield f"\n[{'.'.join(path)}]"
    yield from (f"{_key(name)} = {to_toml(value)}" for name, value in own.items())
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from _plain_lines(value, (*path, _key(name)))


def to_toml(value: Any) -> str:
    """A value as a study file writes it.

    >>> to_toml({"site": "MGB"}), to_toml((2, 6)), to_toml(dt.date(2008, 1, 1))
    ('{ "site" = "MGB" }', '[2, 6]', '2008-01-01')
    """
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{to_toml(key)} = {to_toml(part)}" for key, part in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, Path):
        return to_toml(value.as_posix())
    return json.dumps(value, ensure_ascii=False)


def _one_sentence(error: ValidationError, settings: Mapping[str, Any]) -> str:
    """What is wrong with a study file, as one sentence without passwords."""
    from ehr_prep.databases.connect import hide_secrets

    place = tuple(str(part) for part in error.errors(include_url=False)[0]["loc"])
    if place in _RENAMED:
        return f"{'.'.join(place)} is now called {_RENAMED[place]}; use that instead."
    return hide_secrets(explain(error, settings, Study))


# --- inside ----------------------------------------------------------------------------


def _to_be_named(site: str, synthetic: bool) -> dict[str, str]:
    files = {role: f"{site}/{role}.csv" for role in ("records", "patients", "labs")}
    files["records"] = f"{site}/medications.csv"
    return files | ({"truth": f"truth/synthetic_{site}.csv"} if synthetic else {})


def _not_toml(path: Path, error: tomllib.TOMLDecodeError) -> str:
    """What is wrong, with the line at fault."""
    place = re.search(r"at line (\d+)", str(error))
    if place is None:
        return f"{error}."
    line = path.read_text(encoding="utf-8").splitlines()[int(place[1]) - 1].strip()
    quotes = "; texts need quotation marks" if "Invalid value" in str(error) else ""
    return f"{error}, in {line!r}{quotes}."


# --- paths --------------------------------------------------------------------------------


def expand(folder: Path, files: Any) -> list[Path]:
    """The files that a key of a study file names; those of a pattern must exist."""
    from ehr_prep.files import files_of

    parts = files if isinstance(files, tuple) else (files,)
    return [path for part in parts for path in files_of(folder / part)]


def resolved(path: Path, name: str, site: Site) -> Site:
    files: dict[str, Any] = {}
    if site.database is not None:
        from ehr_prep.databases.connect import resolve_url

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
    except InputError as error:
        raise InputError(f"{path.name}: {key}: {error}") from None
    for file in found:
        if not file.is_file():
            called = os.path.relpath(file, path.parent)
            raise InputError(
                f"{path.name}: {key} is {called!r}, and the folder of {path.name} has no such "
                "file; correct the path."
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
    from ehr_prep.settings import MAPS

    if part.drug_names is not None:
        names = _existing(path, f"{key}.drug_names", part.drug_names)
        part = part.model_copy(update={"drug_names": names})
    if part.drugs is None or part.drugs in MAPS:
        return part
    drugs = path.parent / part.drugs
    if not drugs.is_file():
        raise InputError(
            f"{path.name}: {key}.drugs is {part.drugs!r}, which is neither a built-in drug map "
            f"({', '.join(MAPS)}) nor a file in the folder of {path.name}; correct the path."
        )
    return part.model_copy(update={"drugs": str(drugs)})
