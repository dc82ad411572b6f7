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
then answer again as a smaller set, with other masks. The threat model is in the documentation
("Secure sums").
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from font.checks import some
from font.cross_tables import CrossTables
from font.exchange.files import ModelFile, list_fingerprint
from font.exchange.names import ALL_SITES
from font.exchange.parse import Path_, Source, name_of
from font.exchange.privacy import MIN_COUNT, SecretDraws, round_counts, shared_draws
from font.exchange.rules import masked_values
from font.exchange.schema import read_file, write_file
from font.exchange.signatures import Keys

LEAST_SITES = 3
_MOST = 10**15  # no sum of tables is larger: what is was masked otherwise

Masked = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class MaskedFile:
    """A site's masked numbers.

    Parameters
    ----------
    study, site : str
    round : int
    what, of : str
        What the numbers are ("labels"), and the fingerprint of what they were made with.
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


def mask_key(secret: bytes) -> str:
    """The public key, 64 hexadecimal digits, that belongs to a site's 32 secret bytes.

    Examples
    --------
    >>> len(mask_key(bytes(range(32))))
    64
    """
    return _private(secret).public_key().public_bytes_raw().hex()  # type: ignore[no-any-return]


def mask(
    values: ArrayLike, secret: bytes, site: str, keys: Mapping[str, str], context: Sequence[Any]
) -> Masked:
    """Whole numbers with the masks of all pairs of sites that `site` is part of.

    Parameters
    ----------
    values : (n,) whole numbers from 0 to 10¹⁵
    secret : bytes
        The site's 32 secret bytes.
    site : str
    keys : {site: public key}
        Of the whole set, this site among it; at least three.
    context : list of texts and numbers
        What the masks are for: the study, the round, the table. Each context and each set of sites
        has masks of its own; with one context a site must never mask two different tables.

    Examples
    --------
    >>> secrets = {site: bytes([i]) * 32 for i, site in enumerate(["a", "b", "c"], 1)}
    >>> keys = {site: mask_key(secret) for site, secret in secrets.items()}
    >>> masked = [mask([7, 0], s, site, keys, ["study", 1]) for site, s in secrets.items()]
    >>> sum(masked[1:], masked[0]).tolist()
    [21, 0]
    """
    numbers = np.asarray(values)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise TypeError(
            f"masks go over a list of whole numbers; found {numbers.ndim} dimensions of "
            f"{numbers.dtype}."
        )
    if numbers.size and (numbers.min() < 0 or numbers.max() > _MOST):
        raise ValueError(
            f"numbers to mask lie between 0 and {_MOST:,}; found {numbers.min()} to "
            f"{numbers.max()}."
        )
    _check_set(keys)
    if keys.get(site) != mask_key(secret):
        raise ValueError(
            f"the key of {site!r} in the list is {'missing' if site not in keys else 'another'}, "
            "so its masks would not cancel; give the key file that this site sent."
        )
    topic = json.dumps([*context, sorted(keys.items())], ensure_ascii=False).encode()
    result = numbers.astype(np.uint64)
    for other in sorted(set(keys) - {site}):
        stream = _stream(secret, site, other, keys[other], topic, len(result))
        if site < other:
            result += stream
        else:
            result -= stream
    return result


def add_masked(parts: Iterable[MaskedFile]) -> NDArray[np.int64]:
    """The sum over all sites of a set, exact; all of them are needed."""
    files = list(parts)
    if not files:
        raise ValueError("there are no masked files; each site makes one.")
    first = files[0]
    names = [part.site for part in files]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the sites {some(twice)} come twice; give each site's file once.")
    _check_set(first.keys)
    for part in files[1:]:
        if part.keys != first.keys:
            raise ValueError(
                f"{part.site!r} masked for the sites {some(sorted(part.keys))}, {first.site!r} for "
                f"{some(sorted(first.keys))} or with other keys; all need the same key files."
            )
        one = (part.study, part.round, part.what, part.of, len(part.values))
        if one != (first.study, first.round, first.what, first.of, len(first.values)):
            raise ValueError(
                f"{part.site!r} and {first.site!r} masked different tables (another study, round "
                "or list of models); have both answer the same request."
            )
    missing = sorted(set(first.keys) - set(names))
    if missing:
        raise ValueError(
            f"the masked files of {some(missing)} are missing, and without them the sum cannot be "
            "read; ask for them, or have all others answer again without these sites' key files."
        )
    total = np.zeros(len(first.values), dtype=np.uint64)
    for part in files:
        total += part.values
    if total.size and total.max() > _MOST:
        raise ValueError(
            "the masks do not cancel: a site changed its numbers or its key; have all sites answer "
            "again, in a new round of the study."
        )
    return total.astype(np.int64)


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


def read_mask_keys(
    sources: Iterable[Source],
    *,
    study: str | None = None,
    min_count: int = 1,
    round: int | None = None,
    keys: Keys = None,
) -> dict[str, str]:
    """The public keys of a set of sites from their key files, in the order of their names."""
    found: dict[str, str] = {}
    for source in sources:
        file = read_file(
            source, study=study, kind="key", min_count=min_count, round=round, keys=keys
        )
        if file.site in found:
            raise ValueError(
                f"the key of {file.site!r} comes twice ({name_of(source)} is the second); give "
                "each once."
            )
        found[file.site] = file.payload["public"]
    _check_set(found)
    return dict(sorted(found.items()))


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
        raise ValueError(
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
    parts : list of MaskedFile, of every site of the set
    models : {name: ModelFile}
        Those that all sites labelled with.

    Returns
    -------
    CrossTables
        With the sum as the table of one site, "all sites". The same files are rounded alike every
        time, with draws that only those can repeat who have all of them.
    """
    files = sorted(parts, key=lambda part: part.site)
    total = add_masked(files)
    if files[0].what != "labels" or files[0].of != list_fingerprint(models):
        raise ValueError(
            "the masked files were made with other models than these; have the sites label again "
            "with the model files that all sites use."
        )
    sizes = tuple(model.n_classes for model in models.values())
    sent = _sent_cells(sizes)
    if len(total) != sent.sum():
        raise ValueError(
            f"the masked files have {len(total):,} numbers in place of {sent.sum():,}; have the "
            "sites label again."
        )
    exact = np.zeros(sent.shape)
    exact[sent] = total
    exact += np.triu(exact, 1).T
    _refuse_torn(exact, sizes)
    seed = hashlib.sha256("".join(part.fingerprint for part in files).encode()).digest()
    offsets = np.cumsum([0, *sizes])
    draws = shared_draws(exact, offsets, SecretDraws(seed, "labels"))
    rounded = round_counts(exact, max(part.min_count for part in files), draws)
    return CrossTables(tuple(models), sizes, {ALL_SITES: rounded.astype(float)})


# --- inside ------------------------------------------------------------------------------


def _sent_cells(sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Which cells of S are sent: the sizes of classes, and the pairs of models once."""
    model = np.repeat(np.arange(len(sizes)), sizes)
    sent: NDArray[np.bool_] = model[:, None] < model
    np.fill_diagonal(sent, True)
    return sent


def _refuse_torn(exact: NDArray[np.float64], sizes: Sequence[int]) -> None:
    """Exact tables fit together: each pair of models counts every patient of a class once."""
    by_model = np.add.reduceat(exact, np.cumsum([0, *sizes])[:-1], axis=1)
    if (by_model != np.diag(exact)[:, None]).any():
        raise ValueError(
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


def _check_set(keys: Mapping[str, str]) -> None:
    if len(keys) < LEAST_SITES:
        raise ValueError(
            f"a secure sum needs at least {LEAST_SITES} sites, found {len(keys)} "
            f"({some(keys)}): from a sum of two each could work out the other's table; exchange "
            "rounded tables instead."
        )
    if len(set(keys.values())) != len(keys):
        raise ValueError(
            f"two of the sites {some(keys)} have the same key; each makes its own in a folder of "
            "its own."
        )


def _stream(secret: bytes, site: str, other: str, key: str, topic: bytes, n: int) -> Masked:
    """The mask that two sites share, n numbers; the same from either side."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        common = _private(secret).exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
    except ValueError:
        raise ValueError(
            f"the key of {other!r} is not a public key that masks can be made with; ask for its "
            "key file."
        ) from None
    pair = json.dumps(sorted([site, other]), ensure_ascii=False).encode()
    info = b"font secure sum\n" + hashlib.sha256(topic).digest() + pair
    whole = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(common)
    cipher = Cipher(ChaCha20(whole, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * n)), dtype="<u8").astype(np.uint64, copy=False)


def _private(secret: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError as error:
        raise ImportError(
            "secure sums need the package cryptography; install it with: pip install "
            "'mmlca[secure]'."
        ) from error
    if len(secret) != 32:
        raise ValueError(f"a secret has 32 bytes; found {len(secret)}.")
    return X25519PrivateKey.from_private_bytes(secret)
