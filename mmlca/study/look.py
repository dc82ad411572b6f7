"""A first look at the files of a study: what they hold, and the study file that follows."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ehr_prep.records import Records
    from mmlca.sequences.type import Sequences

N_SHOWN = 10
"""Patients whose sequences a preview shows, without their ids."""

_MAX_SITES = 50  # a column with more different values does not name sites


@dataclass(frozen=True, eq=False)
class Look:
    """What the files of one site hold.

    Parameters
    ----------
    settings : dict
        For `[sites.NAME]` of a study file.
    records, sequences
        None where `problem`, a sentence, says why they cannot be read.
    """

    settings: dict[str, Any]
    records: Records | None = field(default=None, repr=False)
    sequences: Sequences | None = field(default=None, repr=False)
    problem: str | None = None

    def notes(self) -> list[str]:
        """Comments for the study file, which others may see: neither numbers nor examples."""
        if self.records is None:
            return ["cannot be read yet: `mmlca study run` says what to mend"]
        settings = self.records.settings
        written = [
            ", ".join(f"{what} {how}" for what, how in file.items()) for file in settings["files"]
        ]
        dates = [f"{role} as {chosen['text']}" for role, chosen in settings["dates"].items()]
        return [*written, *dates]

    def preview(self) -> str:
        """What was read, the flow so far, and some patients' sequences without their ids."""
        if self.records is None:
            return f"  cannot be read yet: {self.problem}"
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
            return "\n".join([*lines, f"\nNo sequences yet: {self.problem}"])
        lines.append(f"\nFlow so far:\n{self.sequences.flow.to_string(index=False)}")
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
    shared: Mapping[str, Any],
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
    shared : dict
        Options of `read_records` for all sites, such as `drugs`.
    folder : path
        Of the study file, to which its paths are relative.
    preset : str, optional
        Rules for the preview's sequences; see `ehr_prep.build_sequences`.
    """
    looks: dict[str, Look] = {}
    for site, files in records.items():
        named = {site: (list(files), {})} if site else _sites_in(files)
        for name, (part, where) in named.items():
            if name in looks:
                raise ValueError(f"the site {name!r} appears twice; name each site once.")
            tables = {
                role: list(tables.get(name) or tables.get("") or [])
                for role, tables in (("patients", patients), ("labs", labs))
            }
            looks[name] = _look(part, tables, where, shared, folder, preset)
    unknown = {*patients, *labs} - {*looks, ""}
    if unknown:
        raise ValueError(
            f"there are patients or labs of {', '.join(sorted(unknown))}, but records of "
            f"{', '.join(looks)}; use the same names."
        )
    return looks


# --- inside ----------------------------------------------------------------------------


def _sites_in(files: Sequence[Path]) -> dict[str, tuple[list[Path], dict[str, str]]]:
    """Sites of files without a name, with the rows that are theirs."""
    from ehr_prep.readers import factorize, read_table

    sites: dict[str, tuple[list[Path], dict[str, str]]] = {}
    for path in files:
        frame, roles, _, _ = read_table(path, {"site": None}, ())
        values = [] if "site" not in roles else list(factorize(frame[roles["site"]])[1])
        if 1 < len(values) <= _MAX_SITES:
            names = sorted(str(value).strip() for value in values)
            sites |= {name: ([path], {str(roles["site"]): name}) for name in names}
        else:
            sites[path.name.split(".")[0]] = ([path], {})
    return sites


def _look(
    files: list[Path],
    tables: Mapping[str, list[Path]],
    where: dict[str, str],
    shared: Mapping[str, Any],
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
    options: dict[str, Any] = {**shared, "patients": tables["patients"] or None}
    if where:
        settings["where"] = options["where"] = where
    try:
        settings |= _written([*files, *tables["patients"], *tables["labs"]])
        read = read_records(files if len(files) > 1 else files[0], **options)
        settings |= _seen(read)
        if tables["labs"]:
            settings |= _seen_labs(tables["labs"], where)
    except ValueError as error:
        return Look(settings, problem=str(error))
    try:
        return Look(settings, read, build_sequences(read, preset=preset))
    except ValueError as error:
        return Look(settings, read, problem=str(error))


def _paths(paths: list[Path], folder: Path) -> str | list[str]:
    relative = [Path(os.path.relpath(path, folder)).as_posix() for path in paths]
    return relative if len(relative) > 1 else relative[0]


def _seen(read: Records) -> dict[str, Any]:
    """Settings that say what was detected, where the default would not do."""
    seen: dict[str, Any] = {}
    formats = {chosen["text"] for chosen in read.settings["dates"].values()}
    if len(formats) == 1 and formats != {"%Y-%m-%d"}:
        (seen["date_format"],) = formats
    return {**seen, "records_columns": dict(read.settings["columns"])}


def _written(files: list[Path]) -> dict[str, str]:
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


def _seen_labs(files: list[Path], where: dict[str, str]) -> dict[str, Any]:
    from ehr_prep.lab_files import LAB_ROLES
    from ehr_prep.readers import read_table

    named, needed = dict.fromkeys(LAB_ROLES), ("patient", "date", "value")
    _, roles, _, _ = read_table(files, named, needed, about="labs", where=where)
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
