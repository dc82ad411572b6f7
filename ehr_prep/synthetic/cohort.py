"""Synthetic cohorts: made-up records of made-up patients, by site, as tables and as files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from font.files import atomic_write

NOTE = "SYNTHETIC: made-up records of made-up patients, not data of any hospital."


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticSite:
    """One site of a synthetic cohort; `synthetic` is always true.

    Parameters
    ----------
    records : DataFrame
        `patient_id`, `date`, `end_date`, `drug`, all text, as in an export.
    patients : DataFrame
        `patient_id`, `birth_date`, `sex`, `race`, `follow_up_end`.
    labs : DataFrame
        `patient_id`, `date`, `test` (ESR, in mm/h), `value`, all text.
    truth : DataFrame
        By patient_id, for those eligible: `class`, `subtype` (of those with several drugs),
        `index_date`, and the true state of each quarter, "q1" to "q16".
    """

    records: pd.DataFrame
    patients: pd.DataFrame
    labs: pd.DataFrame
    truth: pd.DataFrame
    synthetic: bool = field(default=True, init=False)

    def __repr__(self) -> str:
        return (
            f"SyntheticSite: {len(self.truth):,} eligible of {len(self.patients):,} made-up "
            f"patients, {len(self.records):,} records, {len(self.labs):,} labs"
        )


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticCohort(Mapping[str, SyntheticSite]):
    """Sites by name, as in a dict; `synthetic` is always true. Made by `ra_cohort`."""

    sites: dict[str, SyntheticSite]
    settings: dict[str, Any]
    synthetic: bool = field(default=True, init=False)

    def __getitem__(self, site: str) -> SyntheticSite:
        return self.sites[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __repr__(self) -> str:
        lines = [f"{site}: {data!r}" for site, data in self.sites.items()]
        return "\n".join([f"SyntheticCohort, seed {self.settings['seed']}", *lines])

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write {site}/medications.csv, patients.csv and labs.csv; returns the paths.

        The truth goes to truth/synthetic_{site}.csv, apart from what an analysis reads.
        SYNTHETIC.json says that all of it is made up, with the settings. Each file appears
        whole or not at all.
        """
        root, tables = Path(folder), {}
        for site, data in self.sites.items():
            tables[root / site / "medications.csv"] = data.records
            tables[root / site / "patients.csv"] = data.patients
            tables[root / site / "labs.csv"] = data.labs
            tables[root / "truth" / f"synthetic_{site}.csv"] = data.truth.reset_index()
        for path, table in tables.items():
            write_csv(path, table)
        self.write_note(root)
        return [*tables, root / "SYNTHETIC.json"]

    def write_note(self, folder: Path) -> None:
        """SYNTHETIC.json, which says that everything beside it is made up."""
        about = json.dumps({"note": NOTE, **self.settings}, indent=2, ensure_ascii=False)
        atomic_write(folder / "SYNTHETIC.json", f"{about}\n".encode())


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a table of a synthetic cohort, wholly or not at all."""
    text = table.to_csv(index=False, lineterminator="\n", date_format="%Y-%m-%d")
    atomic_write(path, text.encode())
