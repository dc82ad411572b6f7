"""Secure sums (extra `secure`): the centre learns what the sites' tables add up to, and no more.

Every site adds to its whole numbers one mask for each other site, and the two sites of a pair add
the same mask with opposite signs. Modulo 2⁶⁴ a masked number says nothing by itself, and in the sum
over all sites the masks cancel to the last digit. A pair agrees on its mask without a meeting:
X25519 makes a common secret of one site's private and the other's public key (*key* files, site →
all), HKDF with SHA-256 makes of it a key for this study, round, table and set of sites, and
ChaCha20 makes of that key the stream of masks. The sum is exact, since nothing was rounded at the
sites; the centre rounds it by `font.exchange.privacy` before anything of it goes to the sites.

At least three sites take part: of two, each could subtract its own part from the sum. If a site
drops out, the masks that the others share with it do not cancel, and the sum is noise; the others
can then answer once more as a smaller set, with other masks. The threat model is in the
documentation ("Secure sums").

The masks themselves are made in `font.exchange.masks`. Everything that writes, reads and adds
masked files is here, for cross-tables and for sums of a refinement, so that who checks what the
centre can read has one module to read.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from font.checks import Floats, some
from font.cross_tables import CrossTables
from font.errors import InputError
from font.exchange.files import ModelFile, list_fingerprint
from font.exchange.masks import MOST, Masked, check_set, mask, mask_key, unmask
from font.exchange.names import ALL_SITES
from font.exchange.parse import Path_, Source, name_of
from font.exchange.privacy import (
    EXACT,
    MIN_COUNT,
    Draws,
    SecretDraws,
    round_counts,
    round_total,
    shared_draws,
)
from font.exchange.registry import kind_of
from font.exchange.rules import later_models, masked_values
from font.exchange.schema import read_file, write_file
from font.exchange.signatures import Keys
from font.exchange.sums import (
    Rounds,
    SharedFile,
    Step,
    check_claim,
    exact_sums,
    n_statistics,
    write_shared,
)

# each site sends secret numbers along; their sum, which only the centre reads, seeds the rounding
_N_SEEDS, _SEED_BELOW = 8, 2**40


@dataclass(frozen=True, eq=False)
class MaskedFile:
    """A site's masked numbers.

    Parameters
    ----------
    study, site : str
    round : int
    what, of : str
        What the numbers are ("labels" or "sums"), and the fingerprint of what they were made with.
    keys : {site: public key}
        The set of sites whose masks are in the numbers.
    values : (n,) uint64
    fingerprint : str
        SHA-256 of the payload.
    min_count : int
    data : bytes
        The file, if it was written here.
    """

    study: str
    site: str
    round: int
    what: str
    of: str
    keys: dict[str, str]
    values: Masked = field(repr=False)
    fingerprint: str
    min_count: int
    data: bytes = field(repr=False, default=b"")


class MaskedTotal(NamedTuple):
    """What masked files add up to.

    Parameters
    ----------
    what, of : str
        As in `MaskedFile`.
    fingerprints : {site: SHA-256 of its payload}
        In the order of the sites' names.
    min_count : int
        The largest of the sites'.
    values : (n,) int64
        The exact sum.
    """

    what: str
    of: str
    fingerprints: dict[str, str]
    min_count: int
    values: NDArray[np.int64]


def add_masked(parts: Iterable[MaskedFile]) -> MaskedTotal:
    """The sum over all sites of a set, exact; all of them are needed.

    The files are added as they come, so that an iterator needs the memory of one.
    """
    first: MaskedFile | None = None
    total: Masked = np.zeros(0, dtype=np.uint64)
    prints: dict[str, str] = {}
    unit = 1
    for part in parts:
        if first is None:
            check_set(part.keys)
            # what the others are compared with, without the numbers
            first, total = replace(part, values=total, data=b""), np.zeros_like(part.values)
        if part.site in prints:
            raise InputError(f"the site {part.site!r} comes twice; give each site's file once.")
        _check_alike(part, first, len(total))
        total += part.values
        prints[part.site] = part.fingerprint
        unit = max(unit, part.min_count)
    if first is None:
        raise InputError("there are no masked files; each site makes one.")
    missing = sorted(set(first.keys) - set(prints))
    if missing:
        raise InputError(
            f"the masked files of {some(missing)} are missing, and without them the sum cannot be "
            "read; ask for them, or have all others answer again without these sites' key files."
        )
    if total.size and total.max() > MOST:
        raise InputError(
            "the masks do not cancel: a site changed its numbers or its key; have all sites answer "
            "again, in a new round of the study."
        )
    return MaskedTotal(
        first.what, first.of, dict(sorted(prints.items())), unit, total.astype(np.int64)
    )


def _check_alike(part: MaskedFile, first: MaskedFile, n: int) -> None:
    """Refuse a file for another set of sites than the first one, or of another table."""
    if part.keys != first.keys:
        raise InputError(
            f"{part.site!r} masked for the sites {some(sorted(part.keys))}, {first.site!r} for "
            f"{some(sorted(first.keys))} or with other keys; all need the same key files."
        )
    one = (part.study, part.round, part.what, part.of, len(part.values))
    if one != (first.study, first.round, first.what, first.of, n):
        raise InputError(
            f"{part.site!r} and {first.site!r} masked different tables (another study, round "
            "or list of models); have both answer the same request."
        )


# --- key files ---------------------------------------------------------------------------


def write_mask_key(
    path: Path_ | None,
    secret: bytes,
    *,
    study: str,
    site: str,
    round: int = 1,
    min_count: int = MIN_COUNT,
    software: str = "font",
    created: str | None = None,
    signing_key: Path_ | None = None,
) -> bytes:
    """Write a site's public key for masks; the arguments are those of `write_model`."""
    payload = {"public": mask_key(secret), "min_count": min_count}
    about: dict[str, Any] = {"study": study, "site": site, "round": round, "software": software}
    return write_file(path, "key", payload, created=created, signing_key=signing_key, **about)[1]


class MaskKey(NamedTuple):
    """A site and its public key for masks."""

    site: str
    public: str


def read_mask_key(
    source: Source,
    *,
    study: str | None = None,
    min_count: int = 1,
    round: int | None = None,
    keys: Keys = None,
) -> MaskKey:
    """Read a site's key file (or its bytes); the arguments are those of `read_model`."""
    file = read_file(source, study=study, kind="key", min_count=min_count, round=round, keys=keys)
    return MaskKey(file.site, file.payload["public"])


def read_mask_keys(sources: Iterable[Source], **rules: Any) -> dict[str, str]:
    """The public keys of a set of sites from their key files, in the order of their names.

    `rules` are those of `read_mask_key`.
    """
    public: dict[str, str] = {}
    for source in sources:
        key = read_mask_key(source, **rules)
        if key.site in public:
            raise InputError(
                f"the key of {key.site!r} comes twice ({name_of(source)} is the second); give "
                "each once."
            )
        public[key.site] = key.public
    check_set(public)
    return dict(sorted(public.items()))


# --- masked files ------------------------------------------------------------------------


def write_masked(
    path: Path_ | None,
    values: ArrayLike,
    secret: bytes,
    keys: Mapping[str, str],
    *,
    what: str,
    of: str,
    study: str,
    site: str,
    round: int = 1,
    min_count: int = MIN_COUNT,
    software: str = "font",
    created: str | None = None,
    signing_key: Path_ | None = None,
) -> MaskedFile:
    """Mask a site's numbers and write them.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    values, secret, keys
        As in `mask`.
    what, of : str
        What the numbers are, and the fingerprint of what they were made with.
    study, site, round, software, created, signing_key
        As in `write_model`.
    min_count : int
        The sum will be rounded to multiples of it, or of another site's if that is larger.
    """
    masked = mask(values, secret, site, keys, [study, round, what, of])
    payload = {
        "what": what,
        "of": of,
        "min_count": min_count,
        "sites": [{"site": name, "key": key} for name, key in sorted(keys.items())],
        "values": base64.b64encode(masked.astype("<u8").tobytes()).decode(),
    }
    about: dict[str, Any] = {"study": study, "site": site, "round": round, "software": software}
    file, sent = write_file(
        path, "masked", payload, created=created, signing_key=signing_key, **about
    )
    return _masked(file, sent)


def read_masked(
    source: Source,
    *,
    study: str | None = None,
    min_count: int = 1,
    round: int | None = None,
    keys: Keys = None,
) -> MaskedFile:
    """Read a site's masked file (or its bytes); the arguments are those of `read_model`."""
    rules: dict[str, Any] = {"study": study, "min_count": min_count, "round": round, "keys": keys}
    return _masked(read_file(source, kind="masked", **rules))


# --- cross-tables of labels --------------------------------------------------------------


def masked_labels(
    path: Path_ | None,
    tables: CrossTables,
    models: Mapping[str, ModelFile],
    secret: bytes,
    keys: Mapping[str, str],
    **about: Any,
) -> MaskedFile:
    """Write a site's exact cross-tables of labels, masked.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    tables : CrossTables
        Of this site alone, exact.
    models : {name: ModelFile}
        Those that labelled, as `read_models` gives them.
    secret, keys
        As in `mask`.
    about
        study, round, min_count, software, created, signing_key, as in `write_labels`.
    """
    if len(tables.tables) != 1 or tables.models != tuple(models):
        raise InputError(
            "masked are the tables of one site, made with just the models given; label again."
        )
    ((site, exact),) = tables.tables.items()
    whole = np.rint(exact[_sent_cells(tables.n_classes)]).astype(np.int64)
    return write_masked(
        *(path, whole, secret, keys),
        what="labels",
        of=list_fingerprint(models),
        site=str(site),
        **about,
    )


def sum_of_labels(parts: Iterable[MaskedFile], models: Mapping[str, ModelFile]) -> CrossTables:
    """All sites' cross-tables together, rounded; no site's own can be read from them.

    Parameters
    ----------
    parts : MaskedFile of every site of the set, such as an iterator that reads one after the other
    models : {name: ModelFile}
        Those that all sites labelled with.

    Returns
    -------
    CrossTables
        With the sum as the table of one site, "all sites". The same files are rounded alike every
        time, with draws that only those can repeat who have all of them.
    """
    total = add_masked(parts)
    if total.what != "labels" or total.of != list_fingerprint(models):
        raise InputError(
            "the masked files were made with other models than these; have the sites label again "
            "with the model files that all sites use."
        )
    sizes = tuple(model.n_classes for model in models.values())
    sent = _sent_cells(sizes)
    if len(total.values) != sent.sum():
        raise InputError(
            f"the masked files have {len(total.values):,} numbers in place of {sent.sum():,}; have "
            "the sites label again."
        )
    exact = np.zeros(sent.shape)
    exact[sent] = total.values
    exact += np.triu(exact, 1).T
    _refuse_torn(exact, sizes)
    seed = hashlib.sha256("".join(total.fingerprints.values()).encode()).digest()
    offsets = np.cumsum([0, *sizes])
    draws = shared_draws(exact, offsets, SecretDraws(seed, "labels"))
    rounded = round_counts(exact, total.min_count, draws)
    return CrossTables(tuple(models), sizes, {ALL_SITES: rounded.astype(float)})


# --- sums of a refinement ----------------------------------------------------------------


def masked_sums(
    path: Path_ | None,
    before: Step,
    model: Any,
    data: Any,
    membership: NDArray[Any],
    secret: bytes,
    keys: Mapping[str, str],
    *,
    draws: Draws,
    site: str,
    **about: Any,
) -> MaskedFile:
    """Write a site's exact sums by cluster, masked, and the patients who stand behind each.

    These are counted twice: each patient once in every cell that is his, and divided among them.

    Parameters
    ----------
    path, before, model, data, membership
        As in `font.exchange.sums.write_sums`. Each step has another file that it answers, and so
        other masks.
    secret, keys
        As in `mask`.
    draws : Draws
        The same at all steps, from a secret of this site: its part of the seed with which the
        centre rounds the sum. The centre learns only the sum of all sites' parts.
    site : str
    about
        study, round, min_count, software, created, signing_key, as in `write_masked`.
    """
    parts = np.floor(draws.random(_N_SEEDS) * _SEED_BELOW)
    tables = [*exact_sums(before, model, data, membership)]
    tables.append(_refined_kind(before).shares(model, data, membership))
    scaled = [np.rint(EXACT * table).ravel() for table in tables]
    numbers = np.concatenate([*scaled, parts]).astype(np.int64)
    return write_masked(
        *(path, numbers, secret, keys), what="sums", of=before.fingerprint, site=site, **about
    )


def own_sums(part: MaskedFile, secret: bytes) -> tuple[Floats, Floats]:
    """The sums and the support (n,) that a site masked itself."""
    context = [part.study, part.round, part.what, part.of]
    numbers = unmask(part.values, secret, part.site, part.keys, context)
    sums, support, _ = numbers[:-_N_SEEDS].reshape(3, -1) / EXACT
    return sums, support


def share_masked(
    before: Step,
    parts: Iterable[MaskedFile],
    *,
    study: str,
    rounds: Rounds = 1,
    path: Path_ | None = None,
    **about: Any,
) -> SharedFile:
    """The centre's part of a step: the exact sum of all sites, rounded once, as a shared model.

    Parameters
    ----------
    before : Step
        The file that the masked sums answer.
    parts : MaskedFile of every site of the set, such as an iterator that reads one after the other
    study, rounds, path, about
        As in `font.exchange.sums.share`.

    Notes
    -----
    All steps are rounded with the same draws, as long as the same sites take part, so that what
    several steps tell does not add up. Nobody but the centre can repeat them.
    """
    total = add_masked(parts)
    sites = list(total.fingerprints)
    if total.what != "sums" or total.of != before.fingerprint:
        raise InputError(
            f"the masked files of {some(sites)} answer another file than "
            f"the one given (step {before.step} is due); have these sites run `mmlca site refine "
            "--secure` with it."
        )
    shape = (before.n_clusters, n_statistics(before.content))
    n_numbers = 3 * shape[0] * shape[1] + _N_SEEDS
    if len(total.values) != n_numbers:
        raise InputError(
            f"the masked files have {len(total.values):,} numbers in place of {n_numbers:,}; have "
            "the sites run `mmlca site refine --secure` again."
        )
    sums, support, shares = total.values[:-_N_SEEDS].reshape(3, *shape) / EXACT
    check_claim(before, sites, float(sums[:, 0].sum()), unit=0)
    seed = hashlib.sha256(total.values[-_N_SEEDS:].tobytes()).digest()
    blocks = _refined_kind(before).blocks(before.content)
    draws = SecretDraws(seed, "sums")
    rounded = round_total(sums, support, shares, blocks, total.min_count, draws)
    return write_shared(
        *(path, before, rounded.values.astype(object), rounded.scale),
        sites=sites,
        min_count=total.min_count,
        study=study,
        rounds=rounds,
        **about,
    )


# --- inside ------------------------------------------------------------------------------


def _refined_kind(before: Step) -> Any:
    """The kind of model of a step, if its sums can be masked."""
    kind = kind_of(before.content["format"])
    if kind.shares is None or kind.blocks is None:
        raise InputError(f"a {kind.name} cannot be refined with secure sums.")
    return kind


def _sent_cells(sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Which cells of S are sent: the sizes of classes, and the pairs of models once."""
    sent = later_models(sizes)
    np.fill_diagonal(sent, True)
    return sent


def _refuse_torn(exact: NDArray[np.float64], sizes: Sequence[int]) -> None:
    """Exact tables fit together: each pair of models counts every patient of a class once."""
    by_model = np.add.reduceat(exact, np.cumsum([0, *sizes])[:-1], axis=1)
    if (by_model != np.diag(exact)[:, None]).any():
        raise InputError(
            "the sum of the masked tables does not fit together: a site changed its numbers or its "
            "key; have all sites answer again, in a new round of the study."
        )


def _masked(file: Any, data: bytes = b"") -> MaskedFile:
    part = file.payload
    return MaskedFile(
        *(file.study, file.site, file.round, part["what"], part["of"]),
        {row["site"]: row["key"] for row in part["sites"]},
        masked_values(part["values"]),
        *(file.sha256, part["min_count"], data),
    )
