"""A site's part in the effects of covariates: what it sends of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

    from font.exchange.messages.shared import Step
    from mmlca.federation.hospital import Hospital
    from mmlca.federation.ledger import Ledger
    from mmlca.sequences.type import Sequences


def make_effects(
    hospital: Hospital,
    ledger: Ledger,
    data: Sequences,
    step: Step,
    covariates: pd.DataFrame,
    correction: Literal["BCH", "ML"] | None,
) -> bytes:
    """The file with the effects of covariates (one row per patient) on membership at the site."""
    from font.exchange.messages.effects import write_effects
    from mmlca.federation.refining import step_memberships
    from mmlca.tables.cluster_chains import cluster_memberships
    from mmlca.tables.cluster_effects import site_effects

    _, membership = step_memberships(hospital, step)
    clusters = membership.argmax(axis=1)
    if step.shared is None:  # hard clusters: the chains estimated in them give probabilities
        known = cluster_memberships({hospital.site: data}, {hospital.site: clusters})[hospital.site]
        membership = known.reindex(columns=range(step.n_clusters), fill_value=0.0).to_numpy()
    effects = site_effects(membership, clusters, covariates, hospital.min_count, correction)
    return write_effects(
        None,
        effects.table,
        effects.covariance,
        effects.columns,
        effects.clusters.tolist(),
        effects.variables,
        hospital.header(),
        of=step.fingerprint,
        min_count=hospital.min_count,
        draws=ledger.draws("effects"),
    ).data
