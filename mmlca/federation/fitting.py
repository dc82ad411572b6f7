"""A site's own fits: prior, number of classes, resamples, and fewer classes where one is small."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from font.errors import InputError
from font.files import atomic_write
from font.probabilities import PRIOR_OF_SENT_FITS

if TYPE_CHECKING:
    import pandas as pd

    from font.exchange.registry import ModelFamily
    from mmlca.federation.hospital import Hospital

_STATES = 6  # up to which the prior holds
_HARDLY_ANY = 2.0  # expected patients below which a class is as good as empty
_SETTINGS = {  # of a family's fit, and what they are called at a hospital
    "n_init": "starts",
    "search": "search",
    "prior": "prior",
    "n_jobs": "n_jobs",
    "seed": "seed",
}


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
    hospital: Hospital, family: ModelFamily, data: Any
) -> tuple[dict[str, tuple[Any, Any]], dict[int, float]]:
    """The site's models with the patients they were fitted to, and BIC by number of classes."""
    settings, n_classes = _settings(hospital, family), hospital.n_classes
    bic: dict[int, float] = {}
    choice = None
    if hospital.candidates:
        if family.compare is None:
            raise InputError(
                f"numbers of classes of a {family.name} cannot be compared; give one number."
            )
        choice = family.compare(data, hospital.candidates, hospital.criterion, **settings)
        bic = dict(zip(choice["classes"], choice["bic"], strict=True))
        if n_classes is None:
            n_classes = int(choice.loc[choice["chosen"], "classes"].item())
    if n_classes is None:
        raise InputError("the number of classes is missing; give it, or candidates to try.")
    parts = {hospital.site: data}
    if hospital.pseudo_sites:
        from ehr_prep.build import pseudo_sites

        if family.data != "sequences":
            raise InputError(
                f"resamples are drawn of treatment sequences, not of the table of a {family.name}."
            )
        parts = pseudo_sites(
            parts,
            n_per_site=hospital.pseudo_sites,
            fraction=hospital.fraction,
            seed=hospital.seed,
        )
    fits = {
        name: (_fit_one(hospital, family, part, n_classes, settings), part)
        for name, part in parts.items()
    }
    _note_fits(hospital, data, {name: model for name, (model, _) in fits.items()}, choice)
    return fits, bic


# --- what the report says of the fits ------------------------------------------------------

FITS = "fits.json"
"""A site's own file with how its models were fitted, for its results; it stays at the site."""


def _note_fits(
    hospital: Hospital, data: Any, models: Mapping[str, Any], choice: pd.DataFrame | None
) -> None:
    """Keep how the models that are sent were fitted, and the comparison of numbers of classes."""
    from font.labels import label
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.study.cache import plain_records
    from mmlca.study.results.models import fit_table

    if not all(isinstance(model, MixtureMarkov) for model in models.values()):
        return
    tables = {"models": fit_table(models, label(dict(models), data))}
    if choice is not None:
        tables["selection"] = choice.assign(model=hospital.site)
    content = {name: plain_records(table) for name, table in tables.items()}
    atomic_write(hospital.folder / FITS, json.dumps(content).encode(), private=True)


def noted_fits(hospital: Hospital) -> dict[str, pd.DataFrame]:
    """The tables "models" and "selection" of the site's fits, as far as it has made any."""
    import pandas as pd

    path = hospital.folder / FITS
    if not path.exists():
        return {}
    return {name: pd.DataFrame(rows) for name, rows in json.loads(path.read_bytes()).items()}


def _settings(hospital: Hospital, family: ModelFamily) -> dict[str, Any]:
    """The settings that the family's fit takes; others must not have been changed."""
    from font.errors import option

    if family.fit is None:
        raise InputError(f"a {family.name} is not fitted by this program; release a fitted one.")
    known = inspect.signature(family.fit).parameters
    defaults = {field.name: field.default for field in fields(hospital)}
    for name, attribute in _SETTINGS.items():
        value = getattr(hospital, attribute)
        if name not in known and value != defaults[attribute]:
            raise InputError(f"a {family.name} does not use {option(name, value)}; leave it out.")
    return {name: getattr(hospital, said) for name, said in _SETTINGS.items() if name in known}


def _fit_one(
    hospital: Hospital, family: ModelFamily, data: Any, n_classes: int, settings: dict[str, Any]
) -> Any:
    """A model with as many of the classes as have patients, or with `fewer_classes` enough."""
    from font.errors import option

    assert family.fit is not None  # `_settings` has checked it
    model = family.fit(data, n_classes, **settings)
    smallest = family.sizes(model, data).min()
    if smallest >= hospital.min_count or n_classes == 1:
        return model
    if not hospital.fewer_classes:
        fewer = option("n_classes", n_classes - 1)
        if smallest >= _HARDLY_ANY:
            raise InputError(
                f"the smallest of {n_classes} classes has fewer than {hospital.min_count} "
                f"patients, so that the model may not leave; ask for fewer ({fewer}), or let the "
                f"fit find how many it can have ({option('fewer_classes', True)})."
            )
        lower = (
            f", or lower the prior, which is {hospital.used_prior:.3g} (`prior` under [model] of "
            "the study file)"
            if "prior" in settings
            else ""
        )
        warnings.warn(
            f"one of {n_classes} classes was left with hardly any patients, and the model was "
            f"fitted with {n_classes - 1}; ask all sites for fewer ({fewer}){lower}.",
            stacklevel=2,
        )
    return _fit_one(hospital, family, data, n_classes - 1, settings)
