"""The study file: how it is read, checked and written."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import textwrap
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from ehr_prep.settings import MAPS, PRESETS, Reading, RecordColumns
from font.checks import one_of
from font.errors import InputError, option_name
from font.files import check_regular
from font.settings import AnySettings, Settings, about, explain
from mmlca.model.settings import ClassSettings
from mmlca.study.settings import (
    FILE_ROLES,
    MAP_ROLES,
    Place,
    Privacy,
    Published,
    Site,
    SiteFile,
    Study,
)

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.sequences.forms import Form

_RENAMED = {
    ("threads",): "n_jobs",
    ("model", "starts"): "model.n_init",
    ("classes", "starts"): "model.n_init",
    ("rules", "none_state"): "rules.off_treatment",
}


def read_study(
    path: str | os.PathLike[str],
    *,
    site: str | None = None,
    site_file: str | os.PathLike[str] | None = None,
    files: bool = True,
) -> Study:
    """Read and check a study file. Paths in it are relative to its folder.

    Parameters
    ----------
    path : the study file
    site : str, optional
        The study then has the files of that site alone and of all others the names, so that a
        hospital can use the study file of all hospitals.
    site_file : path, optional
        The file of a hospital whose study file does not say where its patients are; see
        `mmlca.study.settings.SiteFile`. It says which site this is.
    files : bool
        False: no file need exist.

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
    study = _read_settings(path, Study, "study file")
    study._agreed = _agreed_settings(study, path.parent)
    home = path
    if site_file is not None:
        home, place = Path(site_file), read_site_file(site_file)
        site = place.site if site is None else site
        study = _with_place(study, path, home, place)
    if site is not None and site not in study.sites:
        raise InputError(f"{path.name} has no site {site!r}; it has {', '.join(study.sites)}.")
    _check_lab(study, path, site)
    if not files:
        return study
    here = list(study.sites) if site is None else [site]
    for name in here:
        if study.sites[name].is_elsewhere:
            raise InputError(
                f"{path.name}: sites.{name} needs exactly one of records, sequences, omop and "
                "warehouse; where each hospital has its own patients, it names them in a file of "
                "its own: mmlca site run study.toml site.toml."
            )
    sites = {
        name: _resolved(home, name, part) if name in here else Site(key=part.key)
        for name, part in study.sites.items()
    }
    reading = _resolved_map(path, "records", study.records)
    concepts = _resolved_concepts(path, study.concepts)
    study = study.model_copy(update={"sites": sites, "records": reading, "concepts": concepts})
    study._folder = path.parent
    return study


def network_form(study: Study) -> Form:
    """The form of the chains of all hospitals that exchange files; plain if the file names none."""
    from mmlca.sequences.forms import PLAIN

    model = study.model
    if model.form == "compare":
        raise InputError(
            'the study file has [model] form = "compare", which needs all patients in one place: '
            'between hospitals all models have one form, so give "plain" or "given".'
        )
    named = model.form is None and bool(model.stays or model.periods)
    return study.given_form if named or model.form == "given" else PLAIN


def read_network_study(
    path: str | os.PathLike[str], site_file: str | os.PathLike[str] | None = None
) -> Study:
    """Read the study file of hospitals that exchange files, and perhaps that of one of them.

    No other file need be here. Settings that need all patients in one place are refused.
    """
    from font.clustering import ONLY_TABLES

    path = Path(path)
    study = read_study(path, site_file=site_file, files=False)
    method, steps = study.ensemble.method, study.ensemble.refine
    if method not in ONLY_TABLES:
        raise InputError(
            f'{path.name}: ensemble.method is "{method}", which clusters the labels of all '
            "patients and so needs them in one place; between hospitals, where only tables of "
            'labels leave, set method = "latent" or "kmeans-classes" under [ensemble].'
        )
    network_form(study)
    if steps == "held-out":
        raise InputError(
            f'{path.name}: ensemble.refine is "held-out", which needs all patients in one place; '
            'between hospitals give a number of steps, "converge" or "none".'
        )
    return study


def read_site_file(path: str | os.PathLike[str]) -> SiteFile:
    """Read and check the file of one hospital; of its paths only that of the key is resolved."""
    place = _read_settings(Path(path), SiteFile, "file of this hospital")
    if place.signing_key is None:
        return place
    return place.model_copy(update={"signing_key": Path(path).parent / place.signing_key})


def _read_settings(path: Path, kind: type[AnySettings], what: str) -> AnySettings:
    if not path.is_file():
        raise InputError(f"there is no {what} {path}; `mmlca study init` writes one.")
    check_regular(path)
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path.name} is not UTF-8 text; save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path.name} cannot be read as TOML: {_not_toml(path, error)}") from None
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise InputError(f"{path.name}: {_one_sentence(error, settings, kind)}") from None


def _with_place(study: Study, path: Path, home: Path, place: SiteFile) -> Study:
    """The study in which one site has the patients that its own file names."""
    agreed = study.sites.get(place.site)
    if agreed is None:
        raise InputError(
            f"{home.name} is the file of {place.site!r}, but {path.name} has the sites "
            f"{', '.join(study.sites)}; write the name as the study file has it."
        )
    if not agreed.is_elsewhere:
        raise InputError(
            f"both {path.name} and {home.name} say where the patients of {place.site!r} are; take "
            "that out of the study file, which all hospitals share."
        )
    site = place.place().model_copy(update={"key": agreed.key})
    return study.model_copy(update={"sites": {**study.sites, place.site: site}})


def _check_lab(study: Study, path: Path, site: str | None) -> None:
    """A lab that no site has is a mistake, where all sites are known."""
    sites = study.sites.values()
    if site is not None or not study.outputs.lab or any(s.labs or s.is_elsewhere for s in sites):
        return
    raise InputError(
        f"{path.name}: outputs.lab is {study.outputs.lab!r}, but no site has labs; name "
        f'their files, as in [sites.{next(iter(study.sites))}] labs = "labs.csv".'
    )


# --- what hospitals agree on ---------------------------------------------------------------

_OWN = {"name", "n_jobs", "sensitivity", "published"}
_OWN_KEYS = {("centre", "key"), ("centre", "round"), ("outputs", "figures"), ("outputs", "dpi")}
_OWN_KEYS |= {("outputs", "formats"), ("outputs", "names")}
_MOST_LETTERS = 100  # of a value in the header of an exchange file


def _agreed_settings(study: Study, folder: Path) -> dict[str, dict[str, str]]:
    """All settings that decide what hospitals compute, as texts by section and key.

    Where the study file names another file, such as a drug map, its content counts as well, as far
    as it is here. The name and the round stand in the header; public keys are compared with
    signatures, and the rest of what is left out only changes how the page of the report looks.
    """
    agreed: dict[str, dict[str, str]] = {"": {"sites": _short(sorted(study.sites))}}
    for section, value in study.model_dump(mode="json", exclude={"sites"}).items():
        if section in _OWN:
            continue
        if not isinstance(value, dict):
            agreed[""][section] = _short(value)
            continue
        own = {key for part, key in _OWN_KEYS if part == section}
        agreed[section] = {key: _short(part) for key, part in value.items() if key not in own}
    for name, file in input_files(study.model_copy(update={"sites": {}}), folder).items():
        if file.is_file():
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            agreed.setdefault("content of", {})[name] = digest[:16]
    return agreed


def _short(value: Any) -> str:
    """A value as a study file has it; a hash of one that is long."""
    text = "none" if value is None else to_toml(value)
    if len(text) <= _MOST_LETTERS and text.isprintable():
        return text
    return f"something else (SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def write_study_file(
    path: str | os.PathLike[str],
    sites: Sequence[str] | Mapping[str, Mapping[str, Any]] = ("hospital_1", "hospital_2"),
    *,
    name: str = "Treatment courses",
    seed: int = 1,
    synthetic: bool = False,
    preset: str | None = None,
    records: Mapping[str, Any] | None = None,
    candidates: Sequence[int] = ClassSettings().candidates,
    stability: bool = True,
    network: bool = False,
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
    network : bool
        For hospitals that exchange files: of the sites it has the names only, and what is a site's
        own stands in another file (`write_site_file`).
    notes : {site: lines}, optional
        Comments for each site.
    """
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
        settings |= _OF_PRESETS.get(preset, {})
    least = 1 if synthetic else Privacy().min_count  # made-up patients need no protection
    settings["privacy"] = {"min_count": max(least, site_floor() or 0)}
    if synthetic:
        settings["published"] = _PUBLISHED
    if network:
        settings["sites"] = {site: {} for site in sites}
        settings |= {"pseudo_sites": {"per_site": 0}, "ensemble": {"method": "latent"}}
        settings["privacy"]["release"] = (
            "public" if settings["privacy"]["min_count"] > 1 else "inside"
        )
    _write_checked(Path(path), settings, Study, _lines_of_study(settings, notes or {}, network))


def write_site_file(
    path: str | os.PathLike[str],
    site: str,
    settings: Mapping[str, Any] | None = None,
    *,
    notes: Sequence[str] = (),
) -> None:
    """Write what is one hospital's own in a study between hospitals, with comments.

    Parameters
    ----------
    path : path
    site : str
        Its name in the study file.
    settings : dict, optional
        As for `write_study_file`; default: files that are to be named.
    notes : lines, optional
        Comments.
    """
    values = dict(_to_be_named(site, False) if settings is None else settings)
    lines = _lines_of_site_file(site, values, notes)
    _write_checked(Path(path), {"site": site, **values}, SiteFile, lines)


def _write_checked(
    path: Path, settings: Mapping[str, Any], kind: type[Settings], lines: Iterator[str]
) -> None:
    from mmlca.sequences.files import atomic

    try:
        kind.model_validate(settings)
    except ValidationError as error:
        raise InputError(_one_sentence(error, settings, kind)) from None
    with atomic(path) as file:
        file.write("\n".join([*lines, ""]).encode())


def settings_table() -> pd.DataFrame:
    """Every setting of a study file: its section, key, default and meaning.

    Examples
    --------
    >>> settings_table().query("key == 'max_carry' and section == 'rules'")["default"].item()
    '2'
    """
    import pandas as pd

    rows = []
    sections: dict[str, Any] = {"": Study, "sites.NAME": Site, "site file": SiteFile}
    for key, field in Study.model_fields.items():
        if _is_section(field):
            sections[key] = _kind(field)
            columns = sections[key].model_fields.get("columns")
            if columns is not None and _is_section(columns):
                sections[f"{key}.columns"] = _kind(columns)
    for section, kind in sections.items():
        repeated = set(Reading.model_fields) if section == "sites.NAME" else set()
        repeated |= set(Place.model_fields) if kind is SiteFile else set()
        for key, field in kind.model_fields.items():
            if (
                field.description
                and key not in repeated
                and (section != "records" or key not in RecordColumns.model_fields)
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
_NETWORK_HEAD = """# A study between hospitals: what all of them agree on. All have this same file;
# what is a hospital's own stands in its site file. A turn is one command:
#     mmlca site run study.toml site.toml    (at a hospital)
#     mmlca centre run study.toml            (at the centre)
# Lines that begin with # are comments; most of them show a setting with an example.
"""
_NETWORK_SITES = """
# --- hospitals -------------------------------------------------------------------------
# A section for each, in which its public key may stand (`mmlca site keys` makes one)."""
_SITE_FILE_HEAD = """# What is this hospital's own in a study between hospitals; it stays here.
# Paths are relative to this file. Any setting of [records] may be given here too."""
_PUBLISHED = {"source": "published study"} | {
    name: about(field, "example")
    for name, field in Published.model_fields.items()
    if about(field, "example") is not None
}
_OF_PRESETS: dict[str, dict[str, Any]] = {
    "ra": {"outputs": {"lab_label": "ESR (mm/h)"}, "model": {"form": "plain"}}
}
"""Settings that belong to a preset beside its rules."""
_WIDTH = 29  # where comments begin
_LONGEST = 110


def _lines_of_study(
    settings: Mapping[str, Any], notes: Mapping[str, Sequence[str]], network: bool
) -> Iterator[str]:
    """The lines of a study file: every setting, those with an example only as comments."""
    yield _NETWORK_HEAD if network else _HEAD
    plain = {n: f for n, f in Study.model_fields.items() if not _is_section(f) and n != "concepts"}
    for key in plain:
        if key not in ("sites", "synthetic") or settings.get(key) is True:
            yield from _line(key, plain[key], settings)
    yield _NETWORK_SITES if network else _SITES
    for site, values in settings["sites"].items():
        yield f"\n[sites.{_key(site)}]"
        if network:
            yield from _line("key", Site.model_fields["key"], {})
        else:
            yield from (f"# {note}" for note in notes.get(site, ()))
            yield from _place_lines(Site, values, f"sites.{_key(site)}.")
    yield "\n# Drug classes of OMOP databases: concept ids, ATC codes or files of Atlas."
    yield "# [concepts]"
    yield '# TNFi = [1119119, "L04AB*", "tnfi.json"]'
    for key, field in Study.model_fields.items():
        if _is_section(field) and not (network and key == "sensitivity"):  # of one place
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


def _lines_of_site_file(
    site: str, values: Mapping[str, Any], notes: Sequence[str]
) -> Iterator[str]:
    yield _SITE_FILE_HEAD
    own = {n: f for n, f in SiteFile.model_fields.items() if n not in Place.model_fields}
    for name, field in own.items():
        yield from _line(name, field, {"site": site})
    yield "\n# Where the patients are."
    yield from (f"# {note}" for note in notes)
    yield from _place_lines(Place, values, "")


def _place_lines(kind: type[Place], values: Mapping[str, Any], section: str) -> Iterator[str]:
    """The settings of a site's files or database; `section` begins the names of its tables."""
    tables = {key: value for key, value in values.items() if key.endswith("_columns")}
    database = "omop" in values or "warehouse" in values
    unfit = {"truth", "warehouse", "table", "patients_table", "observation_table"}
    unfit |= {"condition", "cohort", "cdm_schema"} if not database else {"omop", "observation"}
    unfit |= {name for name in kind.model_fields if name.endswith("_columns")}
    own = {n: f for n, f in kind.model_fields.items() if n not in Reading.model_fields}
    for key, value in values.items():
        if key in Reading.model_fields:
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
            yield f"\n[{section}{table}{more}]"
            yield from (f"{role} = {to_toml(column)}" for role, column in roles.items())


def _section_lines(kind: type[Settings], values: Mapping[str, Any]) -> Iterator[str]:
    for key, field in kind.model_fields.items():
        # columns of the records may also stand in [records.columns]
        doubled = "columns" in kind.model_fields and key in RecordColumns.model_fields
        if not doubled and not _is_section(field):
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


def _one_sentence(
    error: ValidationError, settings: Mapping[str, Any], kind: type[Settings] = Study
) -> str:
    """What is wrong with a study file, as one sentence without passwords."""
    from ehr_prep.databases.connect import hide_secrets

    place = tuple(str(part) for part in error.errors(include_url=False)[0]["loc"])
    if place in _RENAMED:
        return f"{'.'.join(place)} is now called {_RENAMED[place]}; use that instead."
    return hide_secrets(explain(error, settings, kind))


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


def _expand(folder: Path, files: Any) -> list[Path]:
    """The files that a key of a study file names; those of a pattern must exist."""
    from ehr_prep.files import files_of

    parts = files if isinstance(files, tuple) else (files,)
    return [path for part in parts for path in files_of(folder / part)]


def input_files(study: Study, folder: Path = Path()) -> dict[str, Path]:
    """Every file that a study reads, by site and role; patterns without a file are left out.

    `folder` is that of the study file, where `read_study` has not resolved the paths.
    """
    parts: dict[str, Any] = {**study.sites, "records": study.records}
    files = {}
    for place, part in parts.items():
        for role in (*FILE_ROLES, *MAP_ROLES):
            given = getattr(part, role, None)
            tests = role == "labs" and getattr(part, "omop", None) is not None
            if given is None or tests or (role == "drugs" and given in MAPS):
                continue
            paths = []
            with suppress(InputError):
                paths = _expand(folder, given)
            for path in paths:
                more = f" ({path.name})" if len(paths) > 1 else ""
                files[f"{place}.{role}{more}"] = path
        condition = getattr(part, "condition", None)
        if isinstance(condition, str):  # a file of Atlas
            files[f"{place}.condition"] = folder / condition
    for state, concepts in (study.concepts or {}).items():
        for concept in concepts:
            if str(concept).lower().endswith(".json"):
                files[f"concepts.{state} ({Path(str(concept)).name})"] = folder / str(concept)
    return files


def _resolved(path: Path, name: str, site: Site) -> Site:
    files: dict[str, Any] = {}
    if site.database is not None:
        from ehr_prep.databases.connect import resolve_url

        kind = "omop" if site.omop is not None else "warehouse"
        files[kind] = resolve_url(site.database, path.parent)
        if isinstance(site.condition, str):
            files["condition"] = str(path.parent / site.condition)
    for role in FILE_ROLES:
        if role == "labs" and site.omop is not None:
            continue  # the names of tests
        if (given := getattr(site, role)) is not None:
            files[role] = _existing(path, f"sites.{name}.{role}", given)
    resolved: Site = _resolved_map(path, f"sites.{name}", site.model_copy(update=files))
    return resolved


def _existing(path: Path, key: str, given: Any) -> Any:
    try:
        found = _expand(path.parent, given)
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


def _resolved_concepts(
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


def _resolved_map(path: Path, key: str, part: Any) -> Any:
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
