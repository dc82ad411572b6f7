"""The data of a study: each site's sequences, by the rules of the study file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.checks import some

if TYPE_CHECKING:
    from mmlca.sequences import Sequences
    from mmlca.study.config import Study


def read_site(study: Study, site: str) -> Sequences:
    """The sequences of one site: built from its records, or read from its file.

    From records they are `ehr_prep.TreatmentSequences`, with their flow and patients.
    """
    from ehr_prep.build import build_sequences
    from ehr_prep.records import read_records
    from mmlca.sequences import Sequences

    if site not in study.sites:
        raise ValueError(f"the study has no site {site!r}; it has {', '.join(study.sites)}.")
    files = study.sites[site]
    try:
        if files.sequences is not None:
            return Sequences.read(files.sequences)
        records = read_records(files.records, patients=files.patients, **study.site_options(site))
        return build_sequences(records, **_rules(study))
    except (ValueError, TypeError) as error:
        raise ValueError(f"site {site}: {error}") from None


def read_sites(study: Study) -> dict[str, Sequences]:
    """All sites' sequences; they must have the same states."""
    data = {site: read_site(study, site) for site in study.sites}
    first, *others = data
    for other in others:
        a, b = data[first].states, data[other].states
        if a != b:
            raise ValueError(
                f"{first} has the states {', '.join(a)} and {other} has {', '.join(b)}; all sites "
                "need the same in the same order: use one drug map, or write the sequences anew "
                "with common states."
            )
    return data


def patients_of(study: Study, site: str, sequences: Sequences) -> pd.DataFrame:
    """What is known about the patients of a site, one row for each of its sequences."""
    from ehr_prep.patients import align_patients, read_patients

    dates = ["index_date", "follow_up_end", "birth_date"]
    known = getattr(sequences, "patients", None)
    if known is None:
        known = pd.DataFrame(index=sequences.ids)
        if (file := study.sites[site].patients) is not None:
            known, _ = align_patients(read_patients(file), sequences.ids)
    return known.drop(columns=dates, errors="ignore")


def read_truth(path: Path, sequences: Sequences) -> pd.Series:
    """The true classes of a made-up cohort: a file of patient ids and classes."""
    table = pd.read_csv(path, dtype=str)
    if "class" not in table.columns or len(table.columns) < 2:
        raise ValueError(f'{path.name} must have a column of ids and a column "class".')
    ids = next(name for name in table.columns if name != "class")
    found = table.set_index(ids)["class"].reindex(sequences.ids.astype(str))
    if found.isna().any():
        raise ValueError(
            f"{path.name} lacks {found.isna().sum():,} of the {len(sequences):,} patients "
            f"({some(found.index[found.isna()])})."
        )
    return found.set_axis(sequences.ids)


def _rules(study: Study) -> dict[str, Any]:
    return {name: getattr(study.rules, name) for name in type(study.rules).model_fields}
