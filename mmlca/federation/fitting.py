"""A site's own fits: the number of classes, the resamples, and fewer classes where one is small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmlca.federation.hospital import Hospital
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences


def fit_models(
    hospital: Hospital, data: Sequences
) -> tuple[dict[str, tuple[MixtureMarkov, Sequences]], dict[int, float]]:
    """The site's models with the patients behind them, and BIC by number of classes."""
    from ehr_prep.bootstrap import pseudo_sites
    from mmlca.model.selection import select_n_classes, vote

    bic, n_classes = {}, hospital.n_classes
    settings: dict[str, Any] = {
        "n_init": hospital.starts,
        "search": hospital.search,
        "prior": hospital.prior,
        "n_jobs": hospital.n_jobs,
        "seed": hospital.seed,
    }
    if hospital.candidates:
        table = select_n_classes(
            data,
            hospital.candidates,
            criterion=hospital.criterion,  # type: ignore[arg-type]
            **settings,
        )
        bic = dict(zip(table["classes"], table["bic"], strict=True))
        n_classes = vote(table) if n_classes is None else n_classes
    if n_classes is None:
        raise ValueError("the number of classes is missing; give it, or candidates to try.")
    parts = {hospital.site: data}
    if hospital.pseudo_sites:
        parts = pseudo_sites(
            parts,
            n_per_site=hospital.pseudo_sites,
            fraction=hospital.fraction,
            seed=hospital.seed,
        )
    fewest = hospital.min_count if hospital.fewer_classes else 0
    fits = {
        name: (_fit_one(part, n_classes, fewest, settings), part) for name, part in parts.items()
    }
    return fits, bic


def _fit_one(
    data: Sequences, n_classes: int, fewest: int, settings: dict[str, Any]
) -> MixtureMarkov:
    """A model with as many of the classes as leave each at least `fewest` patients."""
    from mmlca.federation.markov_kind import expected_counts
    from mmlca.model.estimator import MixtureMarkov

    model = MixtureMarkov(n_classes, **settings).fit(data)
    # counted as the model file counts them: the prior makes the model's weights a little more even
    if n_classes > 1 and expected_counts(model, data).patients.min() < fewest:
        return _fit_one(data, n_classes - 1, fewest, settings)
    return model
