"""What a hospital computes in the steps of a round, and what it refuses to answer.

Its fits (prior, number of classes, resamples, fewer classes where one is small); its sums and its
patients' clusters in a refinement; and which lists of models, ensembles and shared models it has no
part in.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from font.checks import some
from font.errors import InputError, option
from font.files import atomic_write
from font.probabilities import PRIOR_OF_SENT_FITS
from mmlca.sequences.forms import PLAIN, Form, layout_of

if TYPE_CHECKING:
    import pandas as pd

    from font.checks import Floats
    from font.exchange.messages.model import ModelFile
    from font.exchange.messages.refinement import SharedFile, Step
    from font.exchange.registry import ModelFamily
    from mmlca.federation.hospital import Hospital
    from mmlca.federation.ledger import Ledger, Release

FITS = "fits.json"
"""A site's own file with how its models were fitted, for its results; it stays at the site."""
NOTES = "refinement.json"
"""A site's own file for its checks of a refinement; it stays at the site."""
LEAST_SAME = 0.7  # of a site's patients that keep their cluster under the first shared model
MOST_FALL = 0.05  # of a site's log-likelihood from one step of a refinement to the next

# --- fits -------------------------------------------------------------------------------------

_STATES = 6  # up to which the prior holds
_HARDLY_ANY = 2.0  # expected patients below which a class is as good as empty
_SETTINGS = {  # of a family's fit, and what they are called at a hospital
    "n_init": "starts",
    "search": "search",
    "prior": "prior",
    "n_jobs": "n_jobs",
    "seed": "seed",
    **{part: part for part in PLAIN.time_parts},
}


def local_prior(n_states: int, form: Form = PLAIN) -> float:
    """Pseudo-count of each probability in the models that a site sends to others.

    Half a patient for up to six states; with more, as much less as a class has more
    probabilities, S·(S + 1) of them in a plain chain, so that the pseudo-patients of a class stay
    21. A chain that depends on time in state or on the period has its own number. A class whose
    patients take few of many states would otherwise be worth less than one without patients: with
    12 states, 961 patients and 4 classes (random chains, 12 windows) half a patient left a class
    empty in 13 of 20 fits and one below 11 patients in all 20, and the adjusted Rand index with
    the true classes was 0.430; with this prior none was below 11, and the index was 0.480 (0.446
    with 10⁻⁴).

    >>> local_prior(5), round(local_prior(12), 3), round(local_prior(5, Form((2, 4))), 3)
    (0.5, 0.135, 0.382)
    """
    layout = layout_of(form, n_states)
    n_cells = layout.n_cells - int(layout.closed.sum())
    return PRIOR_OF_SENT_FITS * min(1.0, _STATES * (_STATES + 1) / n_cells)


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
    if family.fit is None:
        raise InputError(f"a {family.name} is not fitted by this program; release a fitted one.")
    known = inspect.signature(family.fit).parameters
    defaults = {field.name: field.default for field in fields(hospital)}
    for name, attribute in _SETTINGS.items():
        value = getattr(hospital, attribute)
        if name not in known and value != defaults[attribute]:
            raise InputError(f"a {family.name} does not use {option(name, value)}; leave it out.")
    used = {name: getattr(hospital, said) for name, said in _SETTINGS.items() if name in known}
    return used | ({"min_patients": hospital.min_count} if "min_patients" in known else {})


def _fit_one(
    hospital: Hospital, family: ModelFamily, data: Any, n_classes: int, settings: dict[str, Any]
) -> Any:
    """A model with as many of the classes as have patients, or with `fewer_classes` enough."""
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


# --- the refinement ----------------------------------------------------------------------


@dataclass(frozen=True)
class Refinement:
    """What came of a step.

    Parameters
    ----------
    step : int
    sums : path of the file to send; None at the end
    clusters : table of the patients, from step 1 on
    loglik : {step: log-likelihood of this site's patients}
        Under each shared model so far; it stays here. The total of all sites does not fall, but for
        what rounding does; that of a single site may.
    """

    step: int
    sums: Path | None
    clusters: pd.DataFrame | None = field(repr=False)
    loglik: dict[int, float] = field(default_factory=dict)


def make_answer(
    hospital: Hospital, ledger: Ledger, kind: str, step: Step, keys: Mapping[str, str]
) -> bytes:
    """The file of a kind that answers a step: rounded, or with `keys` exact and masked."""
    from font.exchange.envelope import write_file
    from font.exchange.messages.refinement import Question, write_masked_sums
    from font.exchange.registry import message_of

    message, header = message_of(kind), hospital.header()
    if message.answer is None:
        raise InputError(
            f"the kind {kind!r} does not answer the centre's ensemble or shared file; `mmlca site "
            "--help` lists the commands for the others."
        )
    model, membership = step_memberships(hospital, step)
    draws = ledger.draws(kind)  # the same at all steps
    question = Question(
        step, model, hospital.sequences, membership, min_count=hospital.min_count, draws=draws
    )
    if keys:
        return write_masked_sums(None, question, ledger.mask_secret(), keys, header).data
    return write_file(None, kind, message.answer(question), header).data


def step_memberships(hospital: Hospital, step: Step) -> tuple[Any, Floats]:
    """The model that sums a step's statistics, and the patients' memberships (n, K)."""
    import numpy as np

    from font.labels import label
    from font.refinement import one_class, site_memberships

    data = hospital.sequences
    if step.shared is not None:
        return step.shared.model, site_memberships(step.shared.model, data)
    assert step.ensemble is not None  # a step has one of the two
    models = {name: file.model for name, file in step.ensemble.models.items()}
    clusters = step.ensemble.ensemble.predict(label(models, data))
    everyone = one_class(next(iter(models.values())), data)
    return everyone, np.eye(step.n_clusters)[clusters.to_numpy()]


def refined_table(model: Any, sequences: Any) -> tuple[pd.DataFrame, float]:
    """Each patient's cluster, from 1, with its probability, and the site's log-likelihood."""
    from font.refinement import fewer, membership_table, site_memberships, site_step

    table = membership_table(site_memberships(model, sequences))
    ids = sequences.index if hasattr(sequences, "index") else sequences.ids
    table.index = ids.rename("id")
    table[["cluster", "runner_up"]] += 1
    return table, site_step(model, fewer(model, sequences)).loglik


class Notes(NamedTuple):
    """What a site keeps of a refinement for its own checks; it stays in the site's folder.

    Parameters
    ----------
    clusters : list of int
        The patients' clusters by the ensemble, with which the refinement began.
    loglik : {step: log-likelihood of the site's patients under the shared model}
    """

    clusters: list[int]
    loglik: dict[int, float]


def read_notes(hospital: Hospital, origin: str) -> Notes:
    """The notes of the refinement of an ensemble with this fingerprint; empty if there are none."""
    path = hospital.folder / NOTES
    if path.exists():
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["of"] == [hospital.study, hospital.round, origin]:
            logliks = {int(step): float(value) for step, value in content["loglik"].items()}
            return Notes(content["clusters"], logliks)
    return Notes([], {})


def write_notes(hospital: Hospital, origin: str, notes: Notes) -> None:
    """Keep the notes for the next step."""
    content = {"of": [hospital.study, hospital.round, origin], **notes._asdict()}
    atomic_write(hospital.folder / NOTES, json.dumps(content).encode(), private=True)


# --- what a site does not answer ---------------------------------------------------------


def check_agreed_models(files: Mapping[str, ModelFile], ledger: Ledger, agreed: str | None) -> None:
    """Label with the agreed list only: this site's own models, as it sent them, are part of it."""
    from font.exchange.messages.model import list_fingerprint, read_model

    last = ledger.released("model")
    if last is None and agreed is None and ledger.released("joins") is None:
        raise InputError(
            f"{ledger.site} has sent no model for round {ledger.round} of the study "
            f"{ledger.study!r} (there is no note of it in {ledger.path}); a site labels only with "
            "a list of models that its own are part of, or whose fingerprint it was given: fit "
            "first, in the same folder, or, to take part without a model, say which list the sites "
            "agreed on."
        )
    own = {}
    for data in last.files.values() if last is not None else ():
        model = read_model(data.encode())
        own[model.name] = model.fingerprint
    theirs = {name: file.fingerprint for name, file in files.items() if file.site == ledger.site}
    if theirs != own:
        wrong = sorted({name for name, _ in set(own.items()) ^ set(theirs.items())})
        raise InputError(
            f"the models of {ledger.site} in this list ({some(wrong)}) are not those that it sent; "
            "get the list that all sites agreed on."
        )
    if agreed is not None:
        whole = list_fingerprint(files)
        if len(agreed) < 12 or not whole.startswith(agreed):
            raise InputError(
                f"the list of {len(files)} models has the fingerprint {whole[:16]}…, not the "
                f"agreed {agreed!r}; get the files that all sites agreed on."
            )


def check_labelled_models(models: Mapping[str, ModelFile], ledger: Ledger) -> None:
    """Only models that this site labelled with may place its patients."""
    from font.exchange.envelope import read_file
    from font.exchange.messages.model import list_fingerprint

    last = ledger.released_either_way("labels")
    if last is None:
        raise InputError(
            f"this site has not labelled in round {ledger.round} of the study {ledger.study!r} "
            f"(there is no note of it in {ledger.path}); label first, or give an override that "
            "says in words why its patients should be placed all the same."
        )
    (labels,) = last.files.values()
    payload = read_file(labels.encode()).payload
    if "models" in payload:
        known = [part["fingerprint"] for part in payload["models"]]
        same = known == [model.fingerprint for model in models.values()]
    else:
        same = payload["of"] == list_fingerprint(models)
    if not same:
        raise InputError(
            "the ensemble has other models than those that this site labelled with; ask the "
            "centre which files it combined."
        )


def check_same_way(entry: str, ledger: Ledger) -> None:
    """What was sent rounded is not sent masked as well, nor the other way round.

    `entry` is that of the ledger: "labels", "masked labels", "sums 1", "masked sums 1".
    """
    from font.exchange.registry import masked, unmasked

    plain = unmasked(entry)
    other, way = (masked(entry), "with") if entry == plain else (plain, "without")
    if ledger.released(other) is not None:
        raise InputError(
            f"{ledger.site} has sent its {plain} in round {ledger.round} of the study "
            f"{ledger.study!r} {way} secure sums; a round takes one of the two ways, so go on as "
            "before, or begin a new round."
        )


def check_own_sums_included(shared: SharedFile, ledger: Ledger) -> None:
    """Only a shared model that this site's own sums are part of."""
    from font.exchange.envelope import read_file

    first, last = (_sent_sums(step, ledger) for step in (0, shared.step))
    (text,) = first.files.values()
    if read_file(text.encode()).payload["of"] != shared.payload["ensemble"]:
        raise InputError(
            "the shared model was refined from another ensemble than the one that this site "
            "answered; ask the centre which file it began with."
        )
    (text,) = last.files.values()
    answered = read_file(text.encode()).payload["of"]
    least = _least_total(text.encode(), ledger)
    total = shared.total
    if (
        answered != shared.payload["of"]
        or last.site not in shared.sites
        or total.shape[0] * total.shape[1] != least.size
    ):
        raise InputError(
            f"the shared model of step {shared.step} was made without the sums that this site "
            "sent; ask the centre for the file that they are part of."
        )
    own = float(least.reshape(total.shape)[:, 0].sum())
    capped = len(shared.sites) > 2 and own > 0  # see `font.labels.capped_site`
    counted = min(1.0, float(total[:, 0].sum()) / 2 / own) if capped else 1.0
    if (total.ravel() < counted * least - 1 / shared.payload["scale"]).any():
        raise InputError(
            f"the shared model of step {shared.step} has smaller sums than this site alone "
            "sent, so it is not their total; ask the centre to write it again."
        )


def check_clusters_kept(before: Sequence[int], now: Sequence[int]) -> None:
    """Refuse a first shared model that gives many of this site's patients another cluster.

    Among honest sites the first model moves few patients, since it describes the clusters that the
    ensemble gave them. One site that makes up its sums moves many.
    """
    same = sum(a == b for a, b in zip(before, now, strict=True)) / max(len(now), 1)
    if same < LEAST_SAME:
        raise InputError(
            f"under the first shared model {1 - same:.0%} of this site's patients have another "
            f"cluster than in the ensemble, and honest sums move less than {1 - LEAST_SAME:.0%}; "
            "nothing was written: ask the centre what it added up, or give an override that says "
            "in words why to go on."
        )


def check_likelihood_kept(before: float | None, now: float, step: int) -> None:
    """Refuse a shared model under which this site's patients are far less likely than before."""
    if before is not None and now < before - MOST_FALL * abs(before):
        raise InputError(
            f"under the shared model of step {step} the log-likelihood of this site's patients "
            f"falls from {before:,.1f} to {now:,.1f}, which honest sums do not do; nothing "
            "was written: ask the centre what it added up, or give an override that says in words "
            "why to go on."
        )


def check_agreed_steps(step: Step, agreed: int | str) -> None:
    """Send sums as often as the sites agreed on.

    The centre chooses the shared model of each step. All steps round with the same draws, so one
    that shifts memberships a little from step to step finds out where a sum changes to the next
    multiple, and with dozens of steps an exact number.
    """
    if agreed == "converge" or (step.shared is not None and step.shared.last):
        return
    if step.step > (-1 if agreed == "none" else int(agreed)):
        said = f'"{agreed}"' if isinstance(agreed, str) else agreed
        raise InputError(
            f"the centre asks for sums of step {step.step} of a refinement, and the sites agreed "
            f"on [ensemble] refine = {said}: each step tells the centre more. Nothing was written: "
            "ask the centre which study file it uses, or give an override that says in words why "
            "to go on."
        )


def _sent_sums(step: int, ledger: Ledger) -> Release:
    """What this site sent in a step, rounded or masked."""
    release = ledger.released_either_way(f"sums {step}")
    if release is None:
        raise InputError(
            f"this site sent no sums of step {step} in round {ledger.round} of the study "
            f"{ledger.study!r} (there is no note of it in {ledger.path}); begin with `mmlca site "
            "refine` on the ensemble file."
        )
    return release


def _least_total(sent: bytes, ledger: Ledger) -> Floats:
    """What the total of all sites is at least, (K·P,), given what this site sent.

    Rounded sums simply add up. The total of masked ones is rounded by the centre: it lies at most
    one unit lower, and may be anything where few patients contribute to it.
    """
    import numpy as np

    from font.exchange.envelope import read_file
    from font.exchange.masked import read_masked
    from font.exchange.messages.refinement import own_sums, read_sums

    if read_file(sent).kind == "sums":
        return read_sums(sent).sums.ravel()
    part = read_masked(sent)
    sums, support = own_sums(part, ledger.mask_secret())
    unit = max(part.min_count, 1)
    return np.where(support >= unit, np.maximum(sums - unit, 0.0), 0.0)
