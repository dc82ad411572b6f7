"""The Markov chains of clusters at several sites: of those assigned, and of a mixture.

The clusters of an ensemble have no memberships of their own. They are replaced by those of the
mixture that EM reaches from the chains of the patients assigned to each cluster: the sites share
its chains, and each has its own proportions. The mixture's classes keep the order of the clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from font.probabilities import PRIOR_OF_ASSIGNED, probabilities
from mmlca.model import em
from mmlca.model.params import MarkovParams, forbidden_cells
from mmlca.sequences.patterns import Patterns
from mmlca.sequences.type import Sequences
from mmlca.tables.counts import cluster_steps
from mmlca.tables.groups import LabelsBySite, SequencesBySite, checked_sites
from mmlca.tables.matching import Membership, common_membership

_TOL, _MAX_ITER, _CONFIRM = 1e-3, 2_000, 1


def cluster_chains(sequences: SequencesBySite, clusters: LabelsBySite) -> MarkovParams:
    """The Markov chains of the clusters over all sites, in the order of their names."""
    sites = checked_sites(sequences, at_least=1)
    return _chains(sites, common_membership(sites, clusters, "clusters"))


def _chains(sites: Mapping[str, Sequences], members: Membership) -> MarkovParams:
    k = len(members.labels)
    steps = [cluster_steps(data, members.codes[site], k).steps for site, data in sites.items()]
    cells = probabilities(np.sum(steps, axis=0), PRIOR_OF_ASSIGNED)
    sizes = np.bincount(np.concatenate(list(members.codes.values())), minlength=k)
    share = np.maximum(sizes / sizes.sum(), 1e-6)
    return em.params_of(cells.reshape(k, -1), share / share.sum())


def open_cells(chains: MarkovParams, data: Sequences) -> MarkovParams:
    """The chains without what is impossible in these sequences, such as to leave death."""
    cells, s = em.cells_of(chains), data.n_states
    allowed = ~forbidden_cells(None, data).reshape(-1, s)
    rows = probabilities(cells.reshape(len(cells), -1, s), allowed=allowed)
    return em.params_of(rows.reshape(cells.shape), chains.weights)


class SharedMixture(NamedTuple):
    """Chains that all sites share, with each site's proportions, by maximum likelihood.

    `labels` are the K clusters; `data` are all sites' patients, one site after the other, `site`
    (n,) says which, and `patterns` are theirs by site; `run` is the fit, with the cells (K, C) and
    the proportions (sites, K), and `settings` are those of its EM.
    """

    labels: list[Any]
    data: Sequences
    site: NDArray[np.intp]
    patterns: Patterns
    run: em.Run
    settings: em.Settings

    @property
    def params(self) -> MarkovParams:
        """The chains, with the proportions of all patients together."""
        return em.params_of(self.run.cells, self.run.overall)


def shared_mixture(sequences: SequencesBySite, clusters: LabelsBySite) -> SharedMixture:
    """The mixture with shared chains that EM reaches from the chains of the clusters."""
    sites = checked_sites(sequences, at_least=1)
    members = common_membership(sites, clusters, "clusters")
    data = Sequences.concat(sites)
    site = np.repeat(np.arange(len(sites)), [len(part) for part in sites.values()])
    patterns = data.patterns.by_group(site, len(sites), data.weights)
    k = len(members.labels)
    sizes = np.array([np.bincount(members.codes[name], minlength=k) for name in sites])
    shares = probabilities(sizes, 0.5)
    zeros = forbidden_cells(None, data)
    settings = em.Settings(0.0, zeros, _MAX_ITER, _TOL, True, _CONFIRM)
    start = em.cells_of(open_cells(_chains(sites, members), data))
    run = em.run_em(patterns, start, shares, settings)
    return SharedMixture(members.labels, data, site, patterns, run, settings)


def cluster_memberships(
    sequences: SequencesBySite, clusters: LabelsBySite
) -> dict[str, pd.DataFrame]:
    """Probability of each cluster for each patient, under chains that all sites share.

    The chains are those of the mixture that EM reaches from the clusters, with the proportions of
    each site.

    Parameters
    ----------
    sequences : {site: Sequences}
    clusters : {site: cluster of each patient}

    Returns
    -------
    {site: DataFrame}
        Patients × clusters, with the clusters' names as columns.

    Notes
    -----
    One EM update instead of convergence leaves memberships that are too sure, and the effects of
    covariates on them too small.

    Examples
    --------
    >>> one = Sequences.from_lists([["A", "A", "A"]] * 30 + [["B", "B", "A"]] * 10)
    >>> p = cluster_memberships({"X": one}, {"X": np.repeat([1, 2], [30, 10])})["X"]
    >>> p.iloc[[0, -1]].round(2).to_numpy().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    mixture = shared_mixture(sequences, clusters)
    step = em.e_step(mixture.patterns, mixture.params, mixture.run.shares)
    rows = step.posterior[mixture.patterns.inverse]
    return {
        site: pd.DataFrame(rows[mixture.site == h], data.ids, mixture.labels)
        for h, (site, data) in enumerate(sequences.items())
    }
