"""How many clusters there are: what the spectrum of the ensemble says, and the sites' vote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from font.checks import some
from font.errors import InputError

# How often the true number was suggested by an ensemble of models with 1 to 3 classes more
RECORD = {
    "clear": "In simulated studies of small sites such models were right in all 18 clear cases.",
    "fair": "In simulated studies of small sites such models were right in 47 of 48 fair cases.",
    "doubtful": "In simulated studies of small sites such models were right in only 55 of 94 "
    "doubtful cases.",
}


class SpectrumChoice(NamedTuple):
    """Number of clusters read off a spectrum, and how sure that is.

    Parameters
    ----------
    n_clusters : 1 + the number of eigenvalues above a tenth of the largest
    low, high : the same number results from any threshold between these shares of the largest
    sure : "clear" if the tenth may be halved and doubled, "fair" if it may be divided and
        multiplied by √2, else "doubtful"
    """

    n_clusters: int
    low: float
    high: float
    sure: str


def read_spectrum(values: Iterable[float], threshold: float = 0.1) -> SpectrumChoice:
    """The number of clusters from the eigenvalues of −HD̃H.

    K well-separated clusters give K − 1 large eigenvalues; the rest is noise. Local models with K
    classes each partly impose the number K, so that what models with 1 to 3 classes more suggest
    is the better evidence (`suggest_n_clusters`).

    How often the number suggested was the true one, by local models with as many classes as
    that, with more, and with all of the latter in one ensemble:

    ======================================  =====  =====  =====  =====  ========
    simulated sites                         K      K + 1  K + 2  K + 3  together
    ======================================  =====  =====  =====  =====  ========
    5 or 10 small sites, RA-like chains     0.93   0.94   0.91   0.91   0.93
    5 or 10 small sites, random chains      0.65   0.40   0.26   0.16   0.58
    5 or 10 sites, Gaussian mixtures        0.94   0.94   0.93   0.94
    ======================================  =====  =====  =====  =====  ========

    Chains: K = 4, 5 sites of 50 to 500 or 10 of 50 to 150 patients, prior 0.5, 80 studies each;
    mixtures: K = 5, sites of 50 to 500, 270 studies. For chains all models together were right
    in 18 of 18 cases that were "clear", 47 of 48 that were "fair", and 55 of 94 "doubtful" ones:
    that word says more than the number of classes does.

    Examples
    --------
    >>> read_spectrum([10.0, 6.0, 3.0, 0.2, 0.1])
    SpectrumChoice(n_clusters=4, low=0.02, high=0.3, sure='clear')
    """
    array = np.sort(np.array(list(values), dtype=float))[::-1]
    if not array.size or array[0] <= 0:
        return SpectrumChoice(1, 0.0, 1.0, "clear")
    share = array / array[0]
    n_above = int((share > threshold).sum())
    low = max(float(share[n_above]), 0.0) if n_above < len(share) else 0.0
    high = float(share[n_above - 1])
    room = min(high / threshold, threshold / low if low > 0 else np.inf)
    sure = "clear" if room >= 2 else "fair" if room >= np.sqrt(2) else "doubtful"
    return SpectrumChoice(1 + n_above, low, high, sure)


def vote(
    choices: Mapping[Any, int] | Iterable[int], patients: Mapping[Any, float] | None = None
) -> int:
    """The number of clusters that most sites chose for themselves; of equals, the larger one.

    A site with few patients sees fewer classes than there are. So a vote can count as the site's
    patients, but never more than the votes of all others together. Of equals it is the larger one
    because a cluster too few hides a group, while one too many can be seen to be empty or alike.

    Parameters
    ----------
    choices : {site: number}, or numbers that count alike
    patients : {site: number of patients}, optional

    Examples
    --------
    >>> vote({"MGB": 4, "VA": 5, "BWH": 4})
    4
    >>> vote({"MGB": 4, "VA": 3, "BWH": 1}, {"MGB": 900, "VA": 700, "BWH": 100})
    4
    """
    named = dict(choices) if isinstance(choices, Mapping) else dict(enumerate(choices))
    if not named:
        raise InputError("nobody voted: give at least one site's number of clusters.")
    bad = [
        v
        for v in named.values()
        if isinstance(v, bool) or not isinstance(v, (int, np.integer)) or v < 1
    ]
    if bad:
        raise InputError(f"votes must be whole numbers of at least 1; found {some(bad)}.")
    weights = {site: 1.0 if patients is None else float(patients[site]) for site in named}
    total = sum(weights.values())
    votes: dict[int, float] = {}
    for site, number in named.items():
        others = total - weights[site]
        counts = min(weights[site], others) if others > 0 else weights[site]
        votes[int(number)] = votes.get(int(number), 0.0) + counts
    return max(votes, key=lambda k: (votes[k], k))
