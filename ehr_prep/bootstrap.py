"""Pseudo-sites: resamples of a site, as weights on the same sequences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from font.checks import whole_number
from font.errors import InputError
from mmlca.sequences.type import Sequences


def pseudo_sites(
    sequences_by_site: Mapping[str, Sequences],
    n_per_site: int = 4,
    fraction: float = 0.8,
    seed: int | np.random.Generator | None = None,
) -> dict[str, Sequences]:
    """Resample every site with replacement, `n_per_site` times.

    A pseudo-site has all the patients of its site, with the number of times that each was
    drawn as weight: nothing is copied, and the distinct patterns are computed once per site.

    Parameters
    ----------
    sequences_by_site : dict {site: Sequences}
    n_per_site : int
    fraction : float
        How many patients are drawn, as a share of the site's (of its summed weights, if
        it has weights; then patients are drawn in proportion to them).
    seed : int or numpy Generator

    Returns
    -------
    dict
        {"MGB/1": Sequences, "MGB/2": …}

    Examples
    --------
    >>> site = Sequences.from_lists([["TNFi", "JAK"]] * 5)
    >>> {name: float(s.weights.sum()) for name, s in pseudo_sites({"MGB": site}, 2, seed=1).items()}
    {'MGB/1': 4.0, 'MGB/2': 4.0}
    """
    if not isinstance(sequences_by_site, Mapping):
        raise TypeError(
            "sequences must come by site, as a dict {site: Sequences}; found "
            f"{type(sequences_by_site).__name__}."
        )
    whole_number(n_per_site, 1, "n_per_site")
    if not fraction > 0 or not np.isfinite(fraction):
        raise InputError(f"fraction must be more than 0, found {fraction!r}.")
    rng = np.random.default_rng(seed)
    resamples: dict[str, Sequences] = {}
    for site, sequences in sequences_by_site.items():
        total = sequences.weights.sum()
        n_drawn = round(fraction * total)
        if n_drawn < 1:
            raise InputError(
                f"{fraction:g} of the {total:g} patients of {site!r} is less than one; "
                "choose a larger fraction."
            )
        _ = sequences.patterns  # computed here, reused by every reweight
        for number in range(1, n_per_site + 1):
            drawn = rng.multinomial(n_drawn, sequences.weights / total)
            resamples[f"{site}/{number}"] = sequences.reweight(drawn)
    return resamples
