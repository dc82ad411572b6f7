"""A site's own fits: prior, number of classes, resamples, and fewer classes where one is small."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from font.errors import InputError
from font.probabilities import PRIOR_OF_SENT_FITS

if TYPE_CHECKING:
    from mmlca.federation.hospital import Hospital
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences

_STATES = 6  # up to which the prior holds
_NOBODY = 2.0  # expected patients below which a class is as good as empty


def local_prior(n_states: int) -> float:
    """Pseudo-count of each probability in the models that a site sends to others.

    Half a patient for up to six states; with more, as much less as a class has more
    probabilities, S·(S + 1) of them, so that the pseudo-patients of a class stay 21. A class whose
    patients take few of many states would otherwise be worth less than one without patients: with
    12 states, 961 patients and 4 classes (random chains, 12 windows) half a patient left a class
    empty in 13 of 20 fits and one below 11 patients in all 20, and the adjusted Rand index with
    the true classes was 0.430; with this prior none was below 11, and the index was 0.480 (0.446
    with 10⁻⁴).

    >>> local_prior(5), round(local_prior(12), 3)
    (0.5, 0.135)
    """
    return PRIOR_OF_SENT_FITS * min(1.0, _STATES * (_STATES + 1) / (n_states * (n_states + 1)))


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
        "prior": hospital.used_prior,
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
        raise InputError("the number of classes is missing; give it, or candidates to try.")
    parts = {hospital.site: data}
    if hospital.pseudo_sites:
        parts = pseudo_sites(
            parts,
            n_per_site=hospital.pseudo_sites,
            fraction=hospital.fraction,
            seed=hospital.seed,
        )
    fits = {
        name: (_fit_one(hospital, part, n_classes, settings), part) for name, part in parts.items()
    }
    return fits, bic


def _fit_one(
    hospital: Hospital, data: Sequences, n_classes: int, settings: dict[str, Any]
) -> MixtureMarkov:
    """A model with as many of the classes as have patients, or with `fewer_classes` enough."""
    from font.spelling import option
    from mmlca.federation.markov_kind import expected_counts
    from mmlca.model.estimator import MixtureMarkov

    model = MixtureMarkov(n_classes, **settings).fit(data)
    # counted as the model file counts them: the prior makes the model's weights a little more even
    smallest = expected_counts(model, data).patients.min()
    if smallest >= hospital.min_count or n_classes == 1:
        return model
    if not hospital.fewer_classes:
        fewer = option("n_classes", n_classes - 1)
        if smallest >= _NOBODY:
            raise InputError(
                f"the smallest of {n_classes} classes has fewer than {hospital.min_count} "
                f"patients, so that the model may not leave; ask for fewer ({fewer}), or let the "
                f"fit find how many it can have ({option('fewer_classes', True)})."
            )
        warnings.warn(
            f"one of {n_classes} classes was left with hardly any patients, and the model was "
            f"fitted with {n_classes - 1}; ask all sites for fewer ({fewer}), or lower the prior, "
            f"which is {settings['prior']:.3g} (`prior` under [model] of the study file).",
            stacklevel=2,
        )
    return _fit_one(hospital, data, n_classes - 1, settings)
