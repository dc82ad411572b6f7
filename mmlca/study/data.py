"""The data of a study: each site's sequences, by the rules of the study file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mmlca.checks import some

if TYPE_CHECKING:
    from ehr_prep.records import Records
    from mmlca.sequences import Sequences
    from mmlca.study.analysis import Analysis
    from mmlca.study.config import Study


def read_site(study: Study, site: str) -> Sequences:
    """The sequences of one site: built from its records, or read from its file.

    From records they are `ehr_prep.TreatmentSequences`, with their flow and patients.
    """
    return build_site(study, site, read_source(study, site))


def read_source(study: Study, site: str) -> Records | Sequences:
    """The records of one site, or its sequences, as the files hold them."""
    from ehr_prep.records import read_records
    from mmlca.sequences import Sequences

    if site not in study.sites:
        raise ValueError(f"the study has no site {site!r}; it has {', '.join(study.sites)}.")
    files = study.sites[site]
    with _at(site):
        if files.sequences is not None:
            return Sequences.read(files.sequences)
        assert files.records is not None
        return read_records(files.records, patients=files.patients, **study.site_options(site))


def build_site(study: Study, site: str, source: Records | Sequences) -> Sequences:
    """The sequences of one site, by the rules of the study."""
    from ehr_prep.build import build_sequences
    from ehr_prep.records import Records

    if not isinstance(source, Records):
        return source
    with _at(site):
        rules = {name: getattr(study.rules, name) for name in type(study.rules).model_fields}
        return build_sequences(source, **rules)


def build_sites(study: Study, sources: Mapping[str, Records | Sequences]) -> dict[str, Sequences]:
    """All sites' sequences; they must have the same states, and enough patients to show."""
    data = {site: build_site(study, site, source) for site, source in sources.items()}
    (first, *others), low = data, study.privacy.min_count
    for other in others:
        a, b = data[first].states, data[other].states
        if a != b:
            raise ValueError(
                f"{first} has the states {', '.join(a)} and {other} has {', '.join(b)}; all sites "
                "need the same in the same order: use one drug map, or write the sequences anew "
                "with common states."
            )
    for site, part in data.items():
        if len(part) < low:
            raise ValueError(
                f"site {site} has {len(part)} eligible patients, fewer than privacy.min_count = "
                f"{low}; relax the rules, or leave the site out."
            )
    return data


@contextmanager
def _at(site: str) -> Iterator[None]:
    """Say at which site something is wrong."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(f"site {site}: {error}") from None


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


def agreement_with_truth(study: Study, found: Analysis) -> dict[str, float]:
    """Adjusted Rand index against the true classes, where a made-up cohort has them."""
    from font.metrics import agreement

    true = {
        site: read_truth(files.truth, found.sequences[site])
        for site, files in study.sites.items()
        if files.truth is not None
    }
    pairs: dict[str, tuple[Any, Any]] = {site: (true[site], found.clusters[site]) for site in true}
    if true and found.ensemble is not None:
        a, b = (np.concatenate([pair[i] for pair in pairs.values()]) for i in range(2))
        own = {f"{site}, own model": (true[site], found.local[site]) for site in true}
        pairs = {"all": (a, b), **pairs, **own}
    return {name: float(agreement(*pair)["ari"]) for name, pair in pairs.items()}
