"""How many classes: fits for several K, at one site or many, and the vote."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd

from mmlca.model import MixtureMarkov, as_sequences
from mmlca.sequences import Sequences

CRITERIA = ("bic", "aic", "sabic", "icl")


def select_n_classes(
    sequences: Sequences | Mapping[str, Sequences] | Any,
    ks: Iterable[int] = range(1, 9),
    seed: int | np.random.Generator | None = None,
    *,
    criterion: Literal["bic", "aic", "sabic", "icl"] = "bic",
    n: Literal["sequences", "timepoints"] = "sequences",
    progress: Callable[[str, int], None] | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Fit each K at each site and compare.

    Parameters
    ----------
    sequences : Sequences or {site: Sequences}
    ks : numbers of classes to try
    seed : int or Generator, optional
        Every fit draws from a stream of its own, so adding a site or a K changes no other fit.
    criterion : the one that chooses; smaller is better for all of them
    n : what BIC, SABIC and ICL count (see `MixtureMarkov.bic`)
    progress : called with site and K before each fit
    **settings : passed to `MixtureMarkov`

    Returns
    -------
    DataFrame
        One row a site and K: `loglik`, `parameters`, `aic`, `bic`, `sabic`, `icl`, `entropy`
        (entropy R² of Ramaswamy et al. 1993), `smallest` (share of the smallest class),
        `replicated` (followed starts that reached the maximum), `converged`, and `chosen`, true
        for the best K of the site. `vote` gives the sites' majority; it also stands in
        `.attrs["n_classes"]`.

    Examples
    --------
    >>> from mmlca import MarkovParams, simulate
    >>> two = MarkovParams([0.5, 0.5], [[1, 0], [0, 1]], [[[0.9, 0.1], [0.5, 0.5]],
    ...                                                   [[0.5, 0.5], [0.1, 0.9]]])
    >>> data, _ = simulate(two, 400, 12, seed=1)
    >>> table = select_n_classes(data, range(1, 4), seed=1)
    >>> vote(table)
    2
    """
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}, found {criterion!r}.")
    tried = sorted({int(k) for k in ks})
    if not tried or tried[0] < 1:
        raise ValueError(f"ks must be whole numbers of at least 1, found {tried}.")
    several = isinstance(sequences, Mapping)
    sites = sequences if isinstance(sequences, Mapping) else {"": as_sequences(sequences)}
    if not sites:
        raise ValueError("there are no sites to compare.")
    root = np.random.default_rng(seed).integers(2**63)
    rows = []
    for site, data in sites.items():
        most = int((data.patterns.weights > 0).sum())
        left_out = [k for k in tried if k > most]
        if left_out:
            warnings.warn(
                f"{f'site {site}' if several else 'the data'} has only {most} distinct transition "
                f"patterns; K = {', '.join(map(str, left_out))} cannot be fitted.",
                stacklevel=2,
            )
        for k in (k for k in tried if k <= most):
            if progress is not None:
                progress(str(site), k)
            stream = np.random.default_rng([root, k, *str(site).encode()])
            rows.append({"site": site} | _fit_row(data, k, n, settings, stream))
    table = pd.DataFrame(rows)
    if not len(table):
        raise ValueError(f"none of K = {tried} can be fitted to so few different sequences.")
    table["chosen"] = table.index.isin(table.groupby("site", sort=False)[criterion].idxmin())
    table.attrs["n_classes"] = vote(table)
    return table if several else table.drop(columns="site")


def vote(table: pd.DataFrame) -> int:
    """The number of classes that most sites chose; of equals, the smaller one."""
    counts = table.loc[table["chosen"], "classes"].value_counts()
    return int(counts.index[counts == counts.max()].min())


def _fit_row(
    data: Sequences, k: int, n: Any, settings: Mapping[str, Any], rng: np.random.Generator
) -> dict[str, Any]:
    with warnings.catch_warnings():
        # the table says so in its columns "replicated" and "converged"
        warnings.filterwarnings("ignore", "the best of|EM stopped")
        model = MixtureMarkov(k, seed=rng, **settings).fit(data)
    return {
        "classes": k,
        "loglik": model.loglik_,
        "parameters": model.n_parameters_,
        "aic": model.aic(),
        "bic": model.bic(n),
        "sabic": model.sabic(n),
        "icl": model.icl(n),
        "entropy": model.entropy(),
        "smallest": float(model.params_.weights.min()),
        "replicated": model.n_replicated_,
        "converged": model.converged_,
    }
