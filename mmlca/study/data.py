"""The data of a study: each site's sequences, by the rules of the study file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def _rules(study: Study) -> dict[str, Any]:
    return {name: getattr(study.rules, name) for name in type(study.rules).model_fields}
