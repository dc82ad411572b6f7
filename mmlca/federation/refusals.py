"""What a site does not answer: lists of models, ensembles and shared models that it has no part in.

Each function raises an `InputError`, or does nothing. The ledger says what the site
sent before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from font.errors import InputError

if TYPE_CHECKING:
    from font.checks import Floats
    from font.exchange.messages.model import ModelFile
    from font.exchange.messages.refinement import SharedFile
    from mmlca.federation.ledger import Ledger, Release

LEAST_SAME = 0.7  # of a site's patients that keep their cluster under the first shared model
MOST_FALL = 0.05  # of a site's log-likelihood from one step of a refinement to the next


def refuse_foreign_models(
    files: Mapping[str, ModelFile], ledger: Ledger, agreed: str | None
) -> None:
    """Label with the agreed list only: this site's own models, as it sent them, are part of it."""
    from font.checks import some
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


def refuse_other_models(models: Mapping[str, ModelFile], ledger: Ledger) -> None:
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


def refuse_other_way(entry: str, ledger: Ledger) -> None:
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


def refuse_foreign_sums(shared: SharedFile, ledger: Ledger) -> None:
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


def refuse_contradiction(before: Sequence[int], now: Sequence[int]) -> None:
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


def refuse_fall(before: float | None, now: float, step: int) -> None:
    """Refuse a shared model under which this site's patients are far less likely than before."""
    if before is not None and now < before - MOST_FALL * abs(before):
        raise InputError(
            f"under the shared model of step {step} the log-likelihood of this site's patients "
            f"falls from {before:,.1f} to {now:,.1f}, which honest sums do not do; nothing "
            "was written: ask the centre what it added up, or give an override that says in words "
            "why to go on."
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
