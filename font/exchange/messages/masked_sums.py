"""The *masked sums* message, site → centre: exact sums by cluster under masks.

It takes the place of a sums file in secure sums, see `font.exchange.masked`. `of` is the SHA-256 of
the payload that the sums answer. The values are the sums by cluster (K × P) in millionths, then in
millionths how many patients contribute to each, then the same with each patient divided among the
sums of a block that are his, then 8 secret numbers of the site, whose sum seeds the centre's
rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from font.checks import Floats, some
from font.errors import InputError
from font.exchange.disclosure import EXACT, SecretDraws, round_total
from font.exchange.header import Header
from font.exchange.masked import (
    MaskedFile,
    MaskedPayload,
    add_masked,
    check_length,
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
    write_shared,
)
from font.exchange.messages.sums import exact_sums
from font.exchange.parse import Path_
from font.exchange.registry import Message, ModelFamily

KIND = "masked sums"
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
    return write_masked(path, KIND, numbers, secret, keys, header, of=of, min_count=min_count)


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
        As in `font.exchange.messages.sums.share`.

    Notes
    -----
    All steps are rounded with the same draws, as long as the same sites take part, so that what
    several steps reveal does not add up. Nobody but the centre can repeat them.
    """
    total = add_masked(parts)
    sites = list(total.fingerprints)
    if total.kind != KIND or total.of != before.fingerprint:
        raise InputError(
            f"the masked files of {some(sites)} answer another file than "
            f"the one given (step {before.step} is due); have these sites run `mmlca site refine "
            "--secure` with it."
        )
    n_clusters, width = before.shape
    check_length(total, 3 * n_clusters * width + _N_SEEDS, "mmlca site refine --secure")
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


MESSAGE = Message(payload=MaskedPayload, explain=explain_masked, check=check_masked)
