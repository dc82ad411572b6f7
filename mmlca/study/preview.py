"""A first look at the files of a study: what they hold, and the study file that follows."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from font.checks import some
from font.errors import InputError, Spell, option_name, spelled, spelling

if TYPE_CHECKING:
    from ehr_prep.records import Records
    from mmlca.sequences.type import Sequences

N_SHOWN = 10
"""Patients whose sequences a preview shows, without their ids."""

_COLUMNS = ("patient", "date", "drug", "end", "supply")
_WRITTEN = ("date_format", "encoding", "delimiter", "decimal")
_MAX_SITES = 50  # a column with more different values does not name sites


@dataclass(frozen=True, eq=False)
class Look:
    """What the files of one site hold.

    Parameters
    ----------
    settings : dict
        For `[sites.NAME]` of a study file.
    records, sequences
        None where `problems`, sentences, say why they cannot be read.
    """

    settings: dict[str, Any]
    records: Records | None = field(default=None, repr=False)
    sequences: Sequences | None = field(default=None, repr=False)
    problems: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        """Comments for the study file, which others may see: neither numbers nor examples."""
        if self.records is None:
            return []
        settings = self.records.settings
        written = [
            ", ".join(f"{what} {how}" for what, how in file.items()) for file in settings["files"]
        ]
        dates = [f"{role} as {chosen['text']}" for role, chosen in settings["dates"].items()]
        return [*written, *dates]

    def preview(self) -> str:
        """What was read, the flow so far, and some patients' sequences without their ids."""
        if self.records is None:
            return "\n".join(["  cannot be read:", *self.problems])
        from ehr_prep.build import follow_up_text

        drugs, unmapped = self.records.drugs, self.records.unmapped
        n_texts = int(drugs["class"].notna().sum())
        n_records = int(drugs.loc[drugs["class"].notna(), "records"].sum())
        lines = [
            str(self.records),
            f"  mapped    {n_texts:,} of {len(drugs):,} drug texts, "
            f"{100 * n_records / drugs['records'].sum():.1f} % of the records with a drug",
        ]
        if len(unmapped):
            first = unmapped.head(10).fillna({"did_you_mean": ""})
            lines.append(f"\nDrugs not in the map:\n{first.to_string(index=False)}")
        if self.sequences is None:
            return "\n".join([*lines, "\nNo sequences yet:", *self.problems])
        lines.append(f"\nFlow so far:\n{self.sequences.flow.to_string(index=False)}")
        lines.append(f"\n{follow_up_text(self.sequences.settings)}")
        shown = _sequences_in_words(self.sequences)
        lines.append(
            f"\n{len(shown)} of {len(self.sequences):,} patients, one per line (ids are not "
            "printed; these are single patients, so keep them inside the hospital):"
        )
        return "\n".join([*lines, *(f"  {line}" for line in shown)])


def look_at_sites(
    records: Mapping[str, Sequence[Path]],
    patients: Mapping[str, Sequence[Path]],
    labs: Mapping[str, Sequence[Path]],
    options: Mapping[str, Mapping[str, Any]],
    folder: Path,
    preset: str | None = None,
) -> dict[str, Look]:
    """Look at the files of each site.

    Parameters
    ----------
    records : {site: files}
        The site "" stands for files without a name: their sites are those of a column such as
        "site", else the files are sites by their own names.
    patients, labs : {site: files}
        The site "" stands for all sites.
    options : {name: {site: value}}
        Options of `read_records` such as `drugs` and `patient`; the site "" stands for all sites.
    folder : path
        Of the study file, to which its paths are relative.
    preset : str, optional
        Rules for the preview's sequences; see `ehr_prep.build_sequences`.
    """
    from ehr_prep.columns import check_by_file

    files: dict[str, tuple[list[Path], dict[str, str]]] = {}
    for site, paths in records.items():
        named = {site: (list(paths), {})} if site else _find_sites(paths)
        for name, rows in named.items():
            if name in files:
                raise InputError(f"the site {name!r} appears twice; name each site once.")
            files[name] = rows
    unknown = {*patients, *labs} - {*files, ""}
    if unknown:
        raise InputError(
            f"there are patients or labs of {', '.join(sorted(unknown))}, but records of "
            f"{', '.join(files)}; use the same names."
        )
    for name, by_site in options.items():
        if strange := [site for site in by_site if site and site not in files]:
            raise InputError(
                f"{option_name(name)} names the site {some(strange)}, but the records are of "
                f"{', '.join(files)}; use the same names."
            )
    by_file = dict(options.get("file_columns", {}).get("") or {})
    check_by_file(by_file, [path for paths, _ in files.values() for path in paths], _COLUMNS)
    looks = {}
    for name, (part, where) in files.items():
        tables = {
            role: list(every.get(name) or every.get("") or [])
            for role, every in (("patients", patients), ("labs", labs))
        }
        own = {o: _value_for_site(by_site, name) for o, by_site in options.items()}
        given = {o: value for o, value in own.items() if value is not None}
        if by_file:
            mine = {p: by_file[p] for p in by_file if any(path.match(p) for path in part)}
            given["file_columns"] = mine
        with spelled(_spell_for_site(name) if len(files) > 1 else spelling()):
            looks[name] = _look_at_site(part, tables, where, given, folder, preset)
    return looks


# --- inside ----------------------------------------------------------------------------


def _value_for_site(by_site: Mapping[str, Any], site: str) -> Any:
    """An option's value for a site; columns by role are those of all sites and its own."""
    own, every = by_site.get(site), by_site.get("")
    if isinstance(own, dict) and isinstance(every, dict):
        return every | own
    return every if own is None else own


def _spell_for_site(site: str) -> Spell:
    """Advice about one of several sites: options that name the site, as `study init` takes them."""
    spell = spelling()

    def spell_for_site(name: str, value: object) -> str:
        if name in (*_COLUMNS, *_WRITTEN) and value is not None:
            return spell(name, f"{site}={value}")
        if name in ("patients_columns", "labs_columns") and isinstance(value, dict):
            return spell(name, {f"{site}={role}": column for role, column in value.items()})
        return spell(name, value)

    return spell_for_site


def _find_sites(files: Sequence[Path]) -> dict[str, tuple[list[Path], dict[str, str]]]:
    """Sites of files without a name, with the rows that are theirs."""
    from ehr_prep.files import read_table
    from ehr_prep.values import factorize

    sites: dict[str, tuple[list[Path], dict[str, str]]] = {}
    for path in files:
        frame, roles, *_ = read_table(path, {"site": None}, ())
        values = [] if "site" not in roles else list(factorize(frame[roles["site"]])[1])
        if 1 < len(values) <= _MAX_SITES:
            names = sorted(str(value).strip() for value in values)
            sites |= {name: ([path], {str(roles["site"]): name}) for name in names}
        else:
            sites[path.name.split(".")[0]] = ([path], {})
    return sites


def _look_at_site(
    files: list[Path],
    tables: Mapping[str, list[Path]],
    where: dict[str, str],
    options: Mapping[str, Any],
    folder: Path,
    preset: str | None,
) -> Look:
    from ehr_prep.build import build_sequences
    from ehr_prep.records import read_records

    settings: dict[str, Any] = {
        role: _paths(paths, folder)
        for role, paths in (("records", files), *tables.items())
        if paths
    }
    lab_columns = options.get("labs_columns")
    given = {name: value for name, value in options.items() if name != "labs_columns"}
    if where:
        settings["where"] = given["where"] = where
    source = files if len(files) > 1 else files[0]
    try:
        settings |= _detected_text_format([*files, *tables["patients"], *tables["labs"]])
        settings |= {name: given[name] for name in _WRITTEN if name in given}
        read = read_records(source, patients=tables["patients"] or None, **given)
        settings |= _detected_settings(read)
        if tables["labs"]:
            settings |= _detected_lab_columns(tables["labs"], where, lab_columns)
    except InputError as error:
        return Look(settings, problems=_problems(str(error), source, tables, options, where))
    try:
        return Look(settings, read, build_sequences(read, preset=preset))
    except InputError as error:
        return Look(settings, read, problems=(str(error),))


def _problems(
    first: str,
    source: Any,
    tables: Mapping[str, list[Path]],
    options: Mapping[str, Any],
    where: dict[str, str],
) -> tuple[str, ...]:
    """Everything that keeps the tables of a site from being read, each table on its own."""
    from ehr_prep.columns import named_roles
    from ehr_prep.patients import PATIENT_ROLES, load_patients
    from ehr_prep.records import read_records

    not_records = ("patients_columns", "labs_columns")
    for_records = {name: value for name, value in options.items() if name not in not_records}
    if where:
        for_records["where"] = where
    reading = {n: options[n] for n in ("encoding", "delimiter", "date_format") if n in options}

    def read_people() -> None:
        named = named_roles(options.get("patients_columns"), PATIENT_ROLES, "patients")
        load_patients(tables["patients"], named, about="patients", where=where, **reading)

    attempts: list[Callable[[], Any]] = [lambda: read_records(source, **for_records)]
    if tables["patients"]:
        attempts.append(read_people)
    if tables["labs"]:
        attempts.append(
            lambda: _detected_lab_columns(tables["labs"], where, options.get("labs_columns"))
        )
    problems = []
    for attempt in attempts:
        try:
            attempt()
        except InputError as error:
            problems.append(str(error))
    return tuple(problems) or (first,)


def _paths(paths: list[Path], folder: Path) -> str | list[str]:
    relative = [Path(os.path.relpath(path, folder)).as_posix() for path in paths]
    return relative if len(relative) > 1 else relative[0]


def _detected_settings(read: Records) -> dict[str, Any]:
    """Settings that say what was detected, where the default would not do."""
    seen: dict[str, Any] = {}
    formats = {chosen["text"] for chosen in read.settings["dates"].values()}
    if len(formats) == 1 and formats != {"%Y-%m-%d"}:
        (seen["date_format"],) = formats
    if by_file := read.settings["file_columns"]:
        seen["file_columns"] = by_file
    else:
        seen["records_columns"] = dict(read.settings["columns"])
    people = {
        role: column
        for role, column in read.settings["patients_columns"].items()
        if role != "others" and column is not None
    }
    return seen | ({"patients_columns": people} if people else {})


def _detected_text_format(files: list[Path]) -> dict[str, str]:
    """How the text files of a site are written, where all are alike and the default would not do.

    A file of plain ASCII can be read in any of these encodings.
    """
    from ehr_prep.files import is_text
    from font.sniff import DELIMITERS, sniff

    formats = [sniff(path) for path in files if is_text(path)]
    encodings = {text.encoding for text in formats if not text.plain}
    delimiters = {DELIMITERS[text.delimiter] for text in formats}
    seen = {}
    if len(encodings) == 1 and encodings != {"utf-8"}:
        (seen["encoding"],) = encodings
    if len(delimiters) == 1 and delimiters != {"comma"}:
        (seen["delimiter"],) = delimiters
    return seen


def _detected_lab_columns(
    files: list[Path], where: dict[str, str], columns: Mapping[str, str] | None
) -> dict[str, Any]:
    from ehr_prep.columns import named_roles
    from ehr_prep.files import read_table
    from ehr_prep.patients import LAB_ROLES

    named = dict.fromkeys(LAB_ROLES) | named_roles(columns, LAB_ROLES, "labs")
    needed = ("patient", "date", "value")
    _, roles, *_ = read_table(files, named, needed, about="labs", where=where)
    return {"labs_columns": {role: str(column) for role, column in roles.items()}}


def _sequences_in_words(sequences: Sequences) -> list[str]:
    """Some patients, spread over all of them, such as "TNFi × 5, JAK × 3"."""
    rows = np.unique(np.linspace(0, len(sequences) - 1, N_SHOWN).round().astype(int))
    lines = []
    for row in rows:
        codes = sequences.codes[row, : sequences.lengths[row]]
        states = [sequences.states[code] if code >= 0 else "missing" for code in codes]
        runs = [(state, len(list(run))) for state, run in itertools.groupby(states)]
        lines.append(", ".join(f"{state} × {n}" if n > 1 else state for state, n in runs))
    return lines
