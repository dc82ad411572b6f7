"""A site's part in a step of the refinement: its patients' clusters, and its sums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from font.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from font.checks import Floats
    from font.exchange.messages.refinement import Step
    from mmlca.federation.hospital import Hospital
    from mmlca.federation.ledger import Ledger

NOTES = "refinement.json"


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
    from font.files import atomic_write

    content = {"of": [hospital.study, hospital.round, origin], **notes._asdict()}
    atomic_write(hospital.folder / NOTES, json.dumps(content).encode(), private=True)
