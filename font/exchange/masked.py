"""Secure sums (extra `secure`): the centre learns what the sites' tables add up to, and no more.

Every site adds to its whole numbers one mask for each other site, and the two sites of a pair add
the same mask with opposite signs. Modulo 2⁶⁴ a masked number says nothing by itself, and in the sum
over all sites the masks cancel to the last digit. A pair agrees on its mask without a meeting:
X25519 makes a common secret of one site's private and the other's public key (*key* files, site →
all), HKDF with SHA-256 makes of it a key for this study, round, table and set of sites, and
ChaCha20 makes of that key the stream of masks. The sum is exact, since nothing was rounded at the
sites; the centre rounds it by `font.exchange.disclosure` before anything of it goes to the sites.

At least three sites take part: of two, each could subtract its own part from the sum. If a site
drops out, the masks that the others share with it do not cancel, and the sum is noise; the others
can then answer again, one time, as a smaller set with other masks. The threat model is in the
documentation ("Secure sums").

What all masked messages have in common is here; the modules of the messages *labels* and *sums* say
which numbers are masked and how their sum is rounded. The payload of both is:

=================== =========================================================================
of                  what the numbers were made with, see the message
min_count           the unit to which the centre rounds the sum; of several, the largest
sites               list of {site, key} in order of the names: the set whose masks cancel
values              whole numbers modulo 2⁶⁴, 8 bytes each, lowest first, in base64, exact, plus
                    this site's masks
=================== =========================================================================

The mask of two sites is the ChaCha20 key stream (nonce 0, read as little-endian 64-bit numbers) of
the key that HKDF-SHA256 makes of their X25519 secret, with a fixed line, the SHA-256 of the JSON
list [study, round, kind, of, sites with keys] and the two names as info; the site whose name comes
first adds it, the other subtracts it.

The payload of the *key* message, site → all, is:

=================== =========================================================================
public              the site's X25519 public key, 64 hexadecimal digits; the private one comes
                    from the site's ledger and is another in each study and round
min_count           the least unit that the site accepts for the rounded sum
=================== =========================================================================
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from font.checks import some
from font.errors import InputError
from font.exchange.disclosure import MIN_COUNT
from font.exchange.envelope import Header, Sent, read_file, write_file
from font.exchange.fields import (
    FILE_LIMIT,
    MOST_SITES,
    Hash,
    Least,
    Path_,
    Site,
    Source,
    Strict,
    misfit,
    name_of,
    size,
)
from font.exchange.registry import Message, unmasked

# --- masks of pairs of sites ------------------------------------------------------------------


LEAST_SITES = 3
MOST = 10**15  # no number to mask and no sum is larger: what is was masked otherwise

Masked = NDArray[np.uint64]


def mask_key(secret: bytes) -> str:
    """The public key, 64 hexadecimal digits, that belongs to a site's 32 secret bytes."""
    return _private(secret).public_key().public_bytes_raw().hex()  # type: ignore[no-any-return]


def mask(
    values: ArrayLike, secret: bytes, site: str, keys: Mapping[str, str], context: Sequence[Any]
) -> Masked:
    """Whole numbers from 0 to 10¹⁵ with the masks of all pairs of sites that `site` is part of.

    `keys` are the public keys of the whole set, this site among it. `context` is what the masks are
    for: the study, the round, the table. Each context and each set of sites has masks of its own;
    with one context a site must never mask two different tables.

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
    if numbers.size and (numbers.min() < 0 or numbers.max() > MOST):
        raise InputError(
            f"numbers to mask lie between 0 and {MOST:,}; found {numbers.min()} to {numbers.max()}."
        )
    check_set(keys)
    if keys.get(site) != mask_key(secret):
        raise InputError(
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


def check_set(keys: Mapping[str, str]) -> None:
    """Refuse sets that are too small, or in which two sites have one key."""
    if len(keys) < LEAST_SITES:
        raise InputError(
            f"a secure sum needs at least {LEAST_SITES} sites, found {len(keys)} "
            f"({some(keys)}): from a sum of two each could work out the other's table; exchange "
            "rounded tables instead."
        )
    if len(set(keys.values())) != len(keys):
        raise InputError(
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
        raise InputError(
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
        raise InputError(f"a secret has 32 bytes; found {len(secret)}.")
    return X25519PrivateKey.from_private_bytes(secret)


# --- files of masked numbers ------------------------------------------------------------------


class MaskKey(Strict):
    """A site of the set whose masks are in a masked file."""

    site: Site
    key: Hash


class MaskedPayload(Strict):
    """A site's numbers under masks, whole numbers modulo 2⁶⁴."""

    of: Hash
    min_count: Least
    sites: Annotated[list[MaskKey], size(3, MOST_SITES)]
    values: Annotated[str, Field(min_length=12, max_length=FILE_LIMIT)]


class MaskedFile(Sent):
    """A site's masked numbers: "masked labels" or "masked sums"."""

    @property
    def of(self) -> str:
        """The fingerprint of what the numbers were made with."""
        return str(self.payload["of"])

    @property
    def min_count(self) -> int:
        return int(self.payload["min_count"])

    @property
    def keys(self) -> dict[str, str]:
        """The public keys of the set of sites whose masks are in the numbers."""
        return {row["site"]: row["key"] for row in self.payload["sites"]}

    @cached_property
    def values(self) -> Masked:
        """The numbers with their masks, (n,)."""
        return _decode(self.payload["values"])

    @property
    def topic(self) -> list[Any]:
        """What the masks are for, see `mask`."""
        return [self.study, self.file.round, self.file.kind, self.of]

    def numbers(self, secret: bytes) -> NDArray[np.int64]:
        """The numbers without the masks, for the site that masked them."""
        none = np.zeros(len(self.values), dtype=np.int64)
        masks = mask(none, secret, self.site, self.keys, self.topic)
        return (self.values - masks).astype(np.int64)


class MaskedTotal(NamedTuple):
    """What masked files add up to, exactly; `min_count` is the largest of the sites'.

    `fingerprints` are by site, in the order of the names.
    """

    kind: str
    of: str
    fingerprints: dict[str, str]
    min_count: int
    values: NDArray[np.int64]

    def check(self, kind: str, of: str, n: int) -> None:
        """Refuse a sum of another kind or length, or for another file or list of models."""
        if (self.kind, self.of) != (kind, of):
            raise InputError(
                f"the masked files of {some(self.fingerprints)} were made with other models than "
                "these, or answer another file; have them answer again with the files that all use."
            )
        if len(self.values) != n:
            raise InputError(
                f"the masked files have {len(self.values):,} numbers instead of {n:,}; have the "
                "sites answer again."
            )


def add_masked(parts: Iterable[MaskedFile]) -> MaskedTotal:
    """The sum over all sites of a set, exact; all of them are needed, and taken one by one."""
    first, keys, topic = "", dict[str, str](), list[Any]()
    total: Masked = np.zeros(0, dtype=np.uint64)
    prints: dict[str, str] = {}
    unit = 1
    for part in parts:
        if not prints:
            check_set(part.keys)
            first, keys, topic = part.site, part.keys, part.topic
            total = np.zeros_like(part.values)
        if part.site in prints:
            raise InputError(f"the site {part.site!r} comes twice; give each site's file once.")
        if part.keys != keys:
            raise InputError(
                f"{part.site!r} masked for the sites {some(sorted(part.keys))}, {first!r} for "
                f"{some(sorted(keys))} or with other keys; all need the same key files."
            )
        if (part.topic, len(part.values)) != (topic, len(total)):
            raise InputError(
                f"{part.site!r} and {first!r} masked different tables (another study, round "
                "or list of models); have both answer the same request."
            )
        total += part.values
        prints[part.site] = part.fingerprint
        unit = max(unit, part.min_count)
    if not prints:
        raise InputError("there are no masked files; each site makes one.")
    missing = sorted(set(keys) - set(prints))
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
    _, _, kind, of = topic
    return MaskedTotal(kind, of, dict(sorted(prints.items())), unit, total.astype(np.int64))


def write_masked(
    path: Path_ | None,
    kind: str,
    values: ArrayLike,
    secret: bytes,
    keys: Mapping[str, str],
    header: Header,
    *,
    of: str,
    min_count: int,
) -> MaskedFile:
    """Mask a site's numbers and write them; `of` is the fingerprint of what they were made with.

    The sum will be rounded to multiples of `min_count`, or of another site's if that is larger.
    """
    values = mask(values, secret, header.site, keys, [header.study, header.round, kind, of])
    payload = {
        "of": of,
        "min_count": min_count,
        "sites": [{"site": name, "key": key} for name, key in sorted(keys.items())],
        "values": base64.b64encode(values.astype("<u8").tobytes()).decode(),
    }
    return MaskedFile(write_file(path, kind, payload, header))


def read_masked(
    source: Source, header: Header | None = None, *, kind: str | None = None, min_count: int = 1
) -> MaskedFile:
    """Read a site's masked file (or its bytes); the arguments are those of `read_file`."""
    file = read_file(source, header, kind=kind, min_count=min_count)
    if unmasked(file.kind) == file.kind:
        raise InputError(f"the {file.kind} file of {file.site!r} is not masked; give masked files.")
    return MaskedFile(file)


def _decode(text: str) -> NDArray[np.uint64]:
    data = base64.b64decode(text.encode("ascii"), validate=True)
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)


def check_masked(payload: Mapping[str, Any], site: str, origin: str) -> None:
    """Refuse a payload whose set of sites or numbers do not fit."""
    names = [row["site"] for row in payload["sites"]]
    if names != sorted(set(names)):
        raise misfit(origin, f"the sites {some(names)} come with repeats or not in order")
    if site not in names:
        raise misfit(origin, f"{site!r} is not one of the sites {some(names)} of its masks")
    try:
        _decode(payload["values"])
    except ValueError:
        raise misfit(origin, "its values are not 64-bit numbers in base64") from None


def explain_masked(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What a masked file contains and reveals."""
    sites, unit = [row["site"] for row in payload["sites"]], payload["min_count"]
    contains = [
        f"{len(_decode(payload['values'])):,} numbers under masks; every one looks like a number "
        "drawn at random",
        f"the names and public keys of the {len(sites)} sites whose masks cancel in the sum: "
        f"{', '.join(sites)}",
    ]
    reveals = [
        "by itself nothing about patients",
        "together with the files of all these sites: the exact sum of their tables, to the centre; "
        f"what the centre sends on is rounded at random to multiples of at least {unit}",
        "this site's own table, to whoever has the files and the private keys of all other sites",
    ]
    return contains, reveals


# --- key files --------------------------------------------------------------------------------


class KeyPayload(Strict):
    """A site's public key for the masks of secure sums."""

    public: Hash
    min_count: Least


def write_mask_key(
    path: Path_ | None, secret: bytes, header: Header, *, min_count: int = MIN_COUNT
) -> bytes:
    """Write the public key that belongs to a site's 32 secret bytes."""
    payload = {"public": mask_key(secret), "min_count": min_count}
    return write_file(path, "key", payload, header).data


def read_mask_key(
    source: Source, header: Header | None = None, *, min_count: int = 1
) -> tuple[str, str]:
    """A site and its public key for masks; the arguments are those of `read_file`."""
    file = read_file(source, header, kind="key", min_count=min_count)
    return file.site, str(file.payload["public"])


def read_mask_keys(
    sources: Iterable[Source], header: Header | None = None, *, min_count: int = 1
) -> dict[str, str]:
    """The public keys of a set of sites from their key files, in the order of their names."""
    public: dict[str, str] = {}
    for source in sources:
        site, key = read_mask_key(source, header, min_count=min_count)
        if site in public:
            raise InputError(
                f"the key of {site!r} comes twice ({name_of(source)} is the second); give each "
                "once."
            )
        public[site] = key
    check_set(public)
    return dict(sorted(public.items()))


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    return [f"the site's public key for the masks of secure sums, {payload['public']}"], [
        "nothing about patients; it lets other sites hide their tables under masks that cancel "
        "with this site's"
    ]


KEY = Message(payload=KeyPayload, explain=_explain, receiver="all")
