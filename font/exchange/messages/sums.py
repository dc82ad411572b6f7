"""The *sums* message, site → centre: sums by cluster for a step of the refinement.

A sums file answers an ensemble file (step 0: sums by the ensemble's clusters) or a shared file
(step r: sums by memberships under the shared model of step r − 1). `font.refinement` is the same in
one process. Sums are whole numbers that stand for value × scale, so that they can be added exactly,
also modulo 2⁶⁴. The payload is:

=================== =========================================================================
step                0: by the ensemble's clusters; r: by memberships under the shared model of
                    step r − 1
of                  SHA-256 of the payload that the sums answer: of the ensemble or shared file
min_count           the unit of the sums
format              family of the models, as in model.format, of those whose statistics are counts,
                    such as latent class models
per_patient         mean number of events per patient in sums to which few patients contribute
scale               100; with min_count 1, where nothing is rounded, 1,000,000
sums                K × P: for each cluster the patients, then the statistics of the family, for
                    latent class models those who gave each answer; a sum to which fewer than
                    min_count different patients contribute is 0 or min_count × per_patient
=================== =========================================================================

The *masked sums* message takes its place in secure sums, see `font.exchange.masked`: exact sums
under masks. `of` is as above. The values are the sums by cluster (K × P) in millionths, then in
millionths how many patients contribute to each, then the same with each patient divided among the
sums of a block that are his, then 8 secret numbers of the site, whose sum seeds the centre's
rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from font.checks import Floats, some, whole_number
from font.errors import InputError
from font.exchange.disclosure import (
    EXACT,
    SecretDraws,
    hints_of_counts,
    round_sums,
    round_total,
    rounding_in_words,
    unrounded_sums,
)
from font.exchange.envelope import read_file, write_file
from font.exchange.fields import Hash, Least, Number, StepNumber, Strict, SumsTable, Text, misfit
from font.exchange.header import Header
from font.exchange.masked import (
    MaskedFile,
    MaskedPayload,
    add_masked,
    check_masked,
    explain_masked,
    write_masked,
)
from font.exchange.messages.shared import (
    Question,
    Rounds,
    SharedFile,
    Step,
    check_claim,
    check_members,
    check_rounds,
    sums_of,
    sums_table,
    write_shared,
)
from font.exchange.parse import Path_, Source
from font.exchange.registry import Message, ModelFamily, family_of
from font.labels import capped_site


class SumsPayload(Strict):
    """A site's sums by cluster, for a refinement."""

    step: StepNumber
    of: Hash
    min_count: Least
    format: Text
    per_patient: Annotated[Number, Field(ge=1)]
    scale: Least
    sums: SumsTable


@dataclass(frozen=True, eq=False)
class SumsFile:
    """A site's sums, rounded.

    Parameters
    ----------
    site : str
    payload : dict
    data : bytes
        The file, if it was written here.
    """

    site: str
    payload: dict[str, Any] = field(repr=False)
    data: bytes = field(repr=False, default=b"")

    @property
    def step(self) -> int:
        """0: by the ensemble's clusters; r: by memberships under the model of step r − 1."""
        return int(self.payload["step"])

    @property
    def of(self) -> str:
        """SHA-256 of the payload of the file that it answers."""
        return str(self.payload["of"])

    @property
    def sums(self) -> Floats:
        """Sums by cluster (K, P), as `statistics` of the models' family gives them."""
        return sums_of(self.payload)


def write_sums(path: Path_ | None, question: Question, header: Header) -> SumsFile:
    """Write a site's sums by cluster, rounded at random; without a path only the bytes are made."""
    file, sent = write_file(path, "sums", answer(question), header)
    return SumsFile(file.site, file.payload, sent)


def answer(question: Question) -> dict[str, Any]:
    """The payload with which a site answers an ensemble or shared file."""
    before, min_count = question.step, whole_number(question.min_count, 1, "min_count")
    rounded = round_sums(*exact_sums(question), min_count, question.draws)
    return {
        "step": before.step,
        "of": before.fingerprint,
        "min_count": min_count,
        "format": before.content["format"],
        "per_patient": rounded.per_patient,
        "scale": rounded.scale,
        "sums": rounded.values.tolist(),
    }


def exact_sums(question: Question) -> tuple[Floats, Floats]:
    """A site's sums by cluster and how many patients contribute to each, (K, P), unrounded."""
    family = question.step.family
    if family.support is None:
        raise InputError(
            f"a {family.name} cannot be refined by exchanging files: its sums are not counts, and "
            "nothing but rounded counts may leave."
        )
    model, data, membership = question.model, question.data, question.membership
    return model.statistics(data, membership), family.support(model, data, membership)


def read_sums(source: Source, header: Header | None = None, *, min_count: int = 1) -> SumsFile:
    """Read a site's sums file (or its bytes); the arguments are those of `read_file`."""
    file = read_file(source, header, kind="sums", min_count=min_count)
    return SumsFile(file.site, file.payload)


# --- the centre's part ---------------------------------------------------------------------


def share(
    before: Step,
    parts: Iterable[SumsFile],
    header: Header,
    *,
    rounds: Rounds = 1,
    path: Path_ | None = None,
) -> SharedFile:
    """The centre's part of a step: add all sites' sums and write the shared model.

    Parameters
    ----------
    before : Step
        The file that the sums answer: the ensemble, or the shared file of the step before.
    parts : list of SumsFile, one of each site
    header : Header
        The centre's.
    rounds : int or "converge"
        The step after which the refinement ends; "converge" ends it when no parameter changes by
        0.001 any more, or at step 50.
    path : where to write the file, optional

    Notes
    -----
    A site's sums may count no more patients than it labelled, and of three or more sites none
    counts for more than all the others together, as in `combine`: larger sums are scaled down. So a
    site that makes up its sums can outweigh the others neither by their size nor alone.
    """
    check_rounds(rounds)
    sums = sorted(parts, key=lambda part: part.site)
    check_parts(before, sums)
    scales = {part.payload["scale"] for part in sums}
    if len(scales) > 1:
        raise InputError(
            f"the sites' sums have different scales ({some(sorted(scales))}); use the same "
            "release of mmlca and the same min_count at all sites."
        )
    largest, factor = capped_site([float(part.sums[:, 0].sum()) for part in sums])
    tables = [np.array(part.payload["sums"], dtype=object) for part in sums]
    tables[largest] = np.rint(tables[largest].astype(float) * factor).astype(np.int64)
    return write_shared(
        path,
        before,
        np.sum(tables, axis=0),
        scales.pop(),
        header,
        sites=[part.site for part in sums],
        min_count=min(part.payload["min_count"] for part in sums),
        rounds=rounds,
    )


def check_parts(before: Step, parts: Sequence[SumsFile]) -> None:
    """Refuse sums that do not answer the file, or do not fit it."""
    if not parts:
        raise InputError("there is no sums file; each site makes one with `mmlca site refine`.")
    names = [part.site for part in parts]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"the sites {some(twice)} sent sums twice; give each site's file once.")
    other = [part.site for part in parts if part.of != before.fingerprint]
    if other:
        steps = sorted({part.step for part in parts if part.of != before.fingerprint})
        raise InputError(
            f"the sums of {some(other)} (step {some(steps)}) answer another file than the one "
            f"given, for which step {before.step} is due; give the file that they answer, or have "
            "these sites run `mmlca site refine` with this one."
        )
    check_members(before, names)
    for part in parts:
        if part.sums.shape != before.shape or part.payload["format"] != before.content["format"]:
            raise InputError(
                f"the sums of {part.site!r} are a table of {part.sums.shape} of the family "
                f"{part.payload['format']!r}, where {before.shape} of "
                f"{before.content['format']!r} is needed; have the site run `mmlca site refine` "
                "with the file given."
            )
    for part in parts:
        check_claim(before, [part.site], float(part.sums[:, 0].sum()), part.payload["min_count"])


def _check(payload: Mapping[str, Any], site: str, origin: str) -> None:
    try:
        family_of(payload["format"])
    except InputError as error:
        raise InputError(f"{origin}: {error}") from None
    sums = sums_table(payload, origin)
    unit, scale = payload["min_count"], payload["scale"]
    wrong = unrounded_sums(sums, scale, payload["per_patient"], unit)
    if wrong is not None:
        raise misfit(origin, f"it has {wrong}")


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    rows, unit = payload["sums"], payload["min_count"]
    contains = [
        f"step {payload['step']} of a refinement: for each of {len(rows)} clusters {len(rows[0])} "
        "sums over the site's patients, from which all sites' clusters are estimated anew",
        f"the mean number of events per patient ({payload['per_patient']:g}) in sums to which few "
        "patients contribute",
        rounding_in_words(unit)
        if unit > 1
        else "every sum as it is, not rounded, since min_count is 1",
    ]
    reveals = [
        "about how many patients of the site are in each cluster, and what they do",
        *(hints_of_counts(unit) if unit > 1 else ["the exact sums"]),
        "all steps of a refinement round with the same draws, so that several reveal little more "
        "than one",
    ]
    return contains, reveals


MESSAGE = Message(payload=SumsPayload, explain=_explain, check=_check, answer=answer)


# --- under masks ------------------------------------------------------------------------------

_MASKED = "masked sums"
# each site sends secret numbers along; their sum, which only the centre reads, seeds the rounding
_N_SEEDS, _SEED_BELOW = 8, 2**40


def write_masked_sums(
    path: Path_ | None,
    question: Question,
    secret: bytes,
    keys: Mapping[str, str],
    header: Header,
) -> MaskedFile:
    """Write a site's exact sums by cluster, masked, and how many patients contribute to each.

    These are counted twice: each patient once in every cell that is his, and divided among them.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    question : Question
        Each step has another file that it answers, and so other masks. The draws must be the same
        at all steps, from a secret of this site: they are its part of the seed with which the
        centre rounds the sum. The centre learns only the sum of all sites' parts.
    secret, keys
        As in `font.exchange.masked.mask`.
    header : Header
    """
    shares, _ = _shares_and_blocks(question.step.family)
    parts = np.floor(question.draws.random(_N_SEEDS) * _SEED_BELOW)
    divided = shares(question.model, question.data, question.membership)
    scaled = [np.rint(EXACT * table).ravel() for table in (*exact_sums(question), divided)]
    numbers = np.concatenate([*scaled, parts]).astype(np.int64)
    of, min_count = question.step.fingerprint, question.min_count
    return write_masked(path, _MASKED, numbers, secret, keys, header, of=of, min_count=min_count)


def own_sums(part: MaskedFile, secret: bytes) -> tuple[Floats, Floats]:
    """The sums and the support (n,) that a site masked itself."""
    sums, support, _ = _tables(part.numbers(secret))
    return sums, support


def share_masked(
    before: Step,
    parts: Iterable[MaskedFile],
    header: Header,
    *,
    rounds: Rounds = 1,
    path: Path_ | None = None,
) -> SharedFile:
    """The centre's part of a step: the exact sum of all sites, rounded once, as a shared model.

    Parameters
    ----------
    before : Step
        The file that the masked sums answer.
    parts : MaskedFile of every site of the set, such as an iterator that reads one after the other
    header, rounds, path
        As in `share`.

    Notes
    -----
    All steps are rounded with the same draws, as long as the same sites take part, so that what
    several steps reveal does not add up. Nobody but the centre can repeat them.
    """
    n_clusters, width = before.shape
    total = add_masked(parts)
    total.check(_MASKED, before.fingerprint, 3 * n_clusters * width + _N_SEEDS)
    sites = list(total.fingerprints)
    sums, support, shares = _tables(total.values).reshape(3, n_clusters, width)
    check_claim(before, sites, float(sums[:, 0].sum()), unit=0)
    seed = hashlib.sha256(total.values[-_N_SEEDS:].tobytes()).digest()
    _, blocks = _shares_and_blocks(before.family)
    draws, unit = SecretDraws(seed, "sums"), total.min_count
    rounded = round_total(sums, support, shares, blocks(before.content), unit, draws)
    return write_shared(
        path,
        before,
        rounded.values.astype(object),
        rounded.scale,
        header,
        sites=sites,
        min_count=unit,
        rounds=rounds,
    )


def _tables(numbers: NDArray[np.int64]) -> Floats:
    """Sums, support and shares (3, K·P) of the numbers in a masked file."""
    return np.asarray(numbers[:-_N_SEEDS].reshape(3, -1) / EXACT)


def _shares_and_blocks(family: ModelFamily) -> tuple[Any, Any]:
    """The two functions of a family without which its sums cannot be masked."""
    if family.shares is None or family.blocks is None:
        raise InputError(f"a {family.name} cannot be refined with secure sums.")
    return family.shares, family.blocks


MASKED = Message(payload=MaskedPayload, explain=explain_masked, check=check_masked)
