"""How many classes: fits for several K, at one site or many, and the vote."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from font.checks import listed, whole_number
from mmlca.model.checks import AnySequences, as_sequences
from mmlca.model.criteria import CRITERIA, Count, Criterion
from mmlca.model.estimator import MixtureMarkov
from mmlca.model.likelihood_ratio import bootstrap_lrt
from mmlca.model.params import Seed
from mmlca.sequences.type import Sequences

_PASSED_ON = ("prior", "zeros", "max_iter", "tol", "n_jobs")  # settings that tests share with fits


def select_n_classes(
    sequences: AnySequences | Mapping[str, Sequences],
    ks: Iterable[int] = range(1, 9),
    seed: Seed = None,
    *,
    criterion: Criterion = "bic",
    n: Count = "sequences",
    blrt: int = 0,
    progress: Callable[[str, int], None] | None = None,
    fitted: Callable[[str, int, MixtureMarkov], None] | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Fit each K at each site and compare.

    Parameters
    ----------
    sequences : Sequences or {site: Sequences}
    ks : numbers of classes to try
    seed : int or Generator, optional
        Every fit uses the same one, so that adding a site or a K changes no other fit, and
        each fit is that of `MixtureMarkov(K, seed=seed)`.
    criterion : the one that chooses; smaller is better for all of them
    n : what BIC, SABIC, CAIC and ICL count (see `MixtureMarkov.bic`)
    blrt : int
        Simulations of the bootstrap likelihood-ratio test of each K against K − 1, at most; 0: no
        test. See `bootstrap_lrt`.
    progress : called with site and K before each fit
    fitted : called with site, K and the model after each fit, for those who need the models
    **settings : passed to `MixtureMarkov`

    Returns
    -------
    DataFrame
        One row per site and K: `loglik`, `parameters`, `aic`, `bic`, `sabic`, `caic`, `icl`,
        `entropy` (entropy R² of Ramaswamy et al. 1993), `posterior` (mean probability of a
        patient's own class), `smallest` (share of the smallest class), `sizes` (shares of all
        classes in percent), with `blrt` also `blrt_p` and its Monte-Carlo error `blrt_error` (NaN
        for K = 1), `replicated` and `searches` (so many of the independent searches reached the
        maximum, see `MixtureMarkov`), `converged`, and `chosen`, true for the best K of the site.
        `vote` gives the sites' majority; it also stands in `.attrs["n_classes"]`.
        `compare_criteria` says in words where the criteria disagree.

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
    whole_number(blrt, 0, "blrt")
    tried = sorted({int(k) for k in ks})
    if not tried or tried[0] < 1:
        raise ValueError(f"ks must be whole numbers of at least 1, found {tried}.")
    several = isinstance(sequences, Mapping)
    sites = sequences if isinstance(sequences, Mapping) else {"": as_sequences(sequences)}
    if not sites:
        raise ValueError("there are no sites to compare: the mapping is empty.")
    if not isinstance(seed, (int, np.integer)):
        seed = int(np.random.default_rng(seed).integers(2**63))
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
        for k in sorted(set(tried) - set(left_out)):
            if progress is not None:
                progress(str(site), k)
            test = None
            if blrt and k > 1:
                kept = {name: settings[name] for name in _PASSED_ON if name in settings}
                test = bootstrap_lrt(data, k, blrt, seed, **kept)
            with warnings.catch_warnings():
                # the table says so in its columns "replicated" and "converged"
                warnings.filterwarnings("ignore", "the best of|EM stopped")
                model = MixtureMarkov(k, seed=seed, **settings).fit(data)
            if fitted is not None:
                fitted(str(site), k, model)
            row = {"site": site, **_row(model, k, n)}
            if blrt:
                row["blrt_p"] = np.nan if test is None else test.p_value
                row["blrt_error"] = np.nan if test is None else test.mc_error
            rows.append(row)
    table = pd.DataFrame(rows)
    if not len(table):
        raise ValueError(f"none of K = {tried} can be fitted to so few different sequences.")
    last = ["replicated", "searches", "converged"]
    table = table[[name for name in table.columns if name not in last] + last]
    table["chosen"] = table.index.isin(table.groupby("site", sort=False)[criterion].idxmin())
    table.attrs["n_classes"] = vote(table)
    return table if several else table.drop(columns="site")


def vote(table: pd.DataFrame) -> int:
    """The number of classes that most sites chose; of equals, the smaller one."""
    counts = table.loc[table["chosen"], "classes"].value_counts()
    return int(counts.index[counts == counts.max()].min())


def compare_criteria(table: pd.DataFrame) -> str:
    """What each criterion chooses, in a sentence per site.

    Parameters
    ----------
    table : DataFrame
        From `select_n_classes`.

    Examples
    --------
    >>> compare_criteria(pd.DataFrame({"classes": [1, 2, 3], "bic": [9.0, 7.0, 8.0],
    ...                                "aic": [9.0, 7.0, 6.0]}))
    'BIC chooses 2 classes, AIC 3, the largest number tried: try more.'
    """
    if "site" not in table.columns:
        return _sentence(table)
    parts = table.groupby("site", sort=False)
    return " ".join(f"{site}: {_sentence(rows)}" for site, rows in parts)


def _sentence(table: pd.DataFrame) -> str:
    choices: dict[int, list[str]] = {}
    for name in CRITERIA:
        if name in table.columns:
            best = int(table.loc[table[name].idxmin(), "classes"])
            choices.setdefault(best, []).append(name.upper())
    if "blrt_p" in table.columns:
        choices.setdefault(_by_tests(table), []).append("the bootstrap test")
    most = int(table["classes"].max())
    edge = ", the largest number tried: try more" if most in choices and len(table) > 1 else ""
    if len(choices) == 1:
        number = next(iter(choices))
        return f"All criteria choose {number} class{'es' * (number > 1)}{edge}."
    parts: list[str] = []
    for number, names in sorted(choices.items()):
        verb = f" choose{'s' * (len(names) == 1)}" if not parts else ""
        noun = f" class{'es' * (number > 1)}" if not parts else ""
        parts.append(f"{listed(names)}{verb} {number}{noun}{edge if number == most else ''}")
    return f"{', '.join(parts)}."


def _by_tests(table: pd.DataFrame) -> int:
    """The last number before the first that is not better than one less, at the level 0.05."""
    for k, p in zip(table["classes"], table["blrt_p"], strict=True):
        if k > 1 and not p <= 0.05:
            return int(k) - 1
    return int(table["classes"].max())


def _row(model: MixtureMarkov, k: int, n: Count) -> dict[str, Any]:
    return {
        "classes": k,
        "loglik": model.loglik_,
        "parameters": model.n_parameters_,
        "aic": model.aic(),
        "bic": model.bic(n),
        "sabic": model.sabic(n),
        "caic": model.caic(n),
        "icl": model.icl(n),
        "entropy": model.entropy(),
        "posterior": model.average_posterior(),
        "smallest": float(model.params_.weights.min()),
        "sizes": " / ".join(f"{100 * share:.1f}" for share in model.params_.weights),
        "replicated": model.n_replicated_,
        "searches": model.n_searches_,
        "converged": model.converged_,
    }
