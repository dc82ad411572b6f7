"""Masks that cancel in a sum: whole numbers modulo 2⁶⁴, one stream for each pair of sites.

See `font.exchange.masked` for what they are used for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from font.checks import some
from font.errors import InputError

LEAST_SITES = 3
MOST = 10**15  # no number to mask and no sum is larger: what is was masked otherwise

Masked = NDArray[np.uint64]


def mask_key(secret: bytes) -> str:
    """The public key, 64 hexadecimal digits, that belongs to a site's 32 secret bytes.

    Examples
    --------
    >>> len(mask_key(bytes(range(32))))
    64
    """
    return _private(secret).public_key().public_bytes_raw().hex()  # type: ignore[no-any-return]


def unmask(
    values: Masked, secret: bytes, site: str, keys: Mapping[str, str], context: Sequence[Any]
) -> NDArray[np.int64]:
    """The numbers that `site` masked, which it alone can read; the arguments are as in `mask`."""
    masks = mask(np.zeros(len(values), dtype=np.int64), secret, site, keys, context)
    return (values - masks).astype(np.int64)


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
