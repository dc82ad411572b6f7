"""Signatures of exchange files (extra `secure`): who wrote a file, and that nobody changed it.

A site makes a pair of keys once (`mmlca site keys`, or `make_keys`). The private key stays in the
site's folder and signs every file that leaves; the public key, 64 digits, goes to the others by
another way than the files, such as the telephone or the contract. Whoever knows public keys *pins*
them: in the study file (`key` of a site, or of the centre under `[centre]`), in a file of keys, or
as the argument `keys`. Once any key is pinned, every file must be signed with the pinned key of its
sender. That is the site that the file names, and the centre for ensembles and shared models,
whatever name these give. So a file in an invented name is refused like any other forgery, and a
list of models or a set of sites for a secure sum has no member whose key is not pinned. Where no
key is pinned, files are read signed or not; a signature that does not match its own file is refused
in any case.

The signature is Ed25519 (RFC 8032) over a fixed line and the canonical JSON of all fields but the
payload and the signature itself. Among them is the payload's SHA-256, which the reader has compared
with the payload by then, so that study, round, kind, site, date and every number are covered. The
same file and key give the same signature, so that a file that is written again is the same to the
byte. A signature says nothing about patients.

What a signature does not do: it does not hide a file's content, and it does not make an honest file
of a dishonest site.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from font.checks import some
from font.errors import InputError
from font.exchange.fields import Path_, check_site, parse
from font.files import atomic_write, check_regular

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE, PUBLIC_FILE = "signing.key", "signing.pub"
Keys = Mapping[str, str] | None
"""Public keys by site; the centre's as "centre"."""

_FIRST_LINE = b"font exchange file, signed\n"
_DIGITS = re.compile("[0-9a-f]{64}")


def make_keys(folder: Path_) -> str:
    """Make a site's pair of keys in its folder, and return the public one.

    The private key, `signing.key`, is for its owner's eyes alone; `signing.pub` may be given to
    anyone. Keys that exist are not replaced.
    """
    ed25519, serialization = _library()
    path = Path(folder) / KEY_FILE
    if path.exists() or path.is_symlink():
        raise InputError(
            f"{path} exists; others may know its public key, so move it away before you make "
            "another one."
        )
    private = ed25519.Ed25519PrivateKey.generate()
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    atomic_write(path, pem, private=True)
    public = _digits(private)
    atomic_write(Path(folder) / PUBLIC_FILE, f"{public}\n".encode())
    return public


def public_key(path: Path_) -> str:
    """The public key, 64 digits, that belongs to a private one."""
    return _digits(_private(path))


def sign(envelope: Mapping[str, Any], path: Path_) -> dict[str, str]:
    """The field `signature` for a file's other fields, with the private key at `path`."""
    private = _private(path)
    return {"key": _digits(private), "value": private.sign(_signed_part(envelope)).hex()}


def sign_file(data: bytes, path: Path_) -> bytes:
    """An exchange file of this site with its signature, instead of an earlier one."""
    content = parse(data, "the file to sign")
    content["signature"] = sign(content, path)
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def verify(envelope: Mapping[str, Any], site: str, keys: Keys, origin: str) -> None:
    """Refuse a file whose signature is not its own, or not that of its sender's pinned key.

    `site` is the site that the file names, or "centre" for messages that only the centre sends. It
    is known that the checksum fits the payload.
    """
    signature = envelope.get("signature")
    known = check_keys(keys)
    pinned = known.get(site)
    if known and pinned is None:
        raise InputError(
            f"{origin} comes from {site!r}, whose key is not among the known ones ({some(known)}); "
            f"where keys are known, every sender needs one: add the key of {site!r} if it belongs "
            "to the study."
        )
    if signature is None:
        if pinned is not None:
            raise InputError(
                f"{origin} is not signed, but the key of {site!r} is known here; ask {site!r} for "
                "the signed file."
            )
        return
    if pinned is not None and signature["key"] != pinned:
        raise InputError(
            f"{origin} is signed with the key {signature['key'][:16]}…, but that of {site!r} is "
            f"{pinned[:16]}…; ask {site!r} by telephone whether it sent this file."
        )
    try:
        ed25519, _ = _library()
    except ImportError:
        if pinned is None:  # as good as a file without a signature, which would be read too
            return
        raise
    from cryptography.exceptions import InvalidSignature

    try:
        public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["key"]))
        public.verify(bytes.fromhex(signature["value"]), _signed_part(envelope))
    except (InvalidSignature, ValueError):
        raise InputError(
            f"{origin} was changed after {site!r} signed it: the signature does not match; ask "
            f"{site!r} to send it again."
        ) from None


def check_keys(keys: Keys) -> dict[str, str]:
    """Pinned keys by site, if they are such: 64 hexadecimal digits for each."""
    pinned = {str(site): str(key).strip().lower() for site, key in (keys or {}).items()}
    wrong = [site for site, key in pinned.items() if not _DIGITS.fullmatch(key)]
    if wrong:
        raise InputError(
            f"the key of {some(wrong)} is not a public key, which has 64 hexadecimal digits; copy "
            f"it from the site's {PUBLIC_FILE}."
        )
    return pinned


def read_keys(path: Path_) -> dict[str, str]:
    """Public keys from a file with one line for each site: `"MGB" = "64 digits"` (TOML)."""
    check_regular(Path(path))
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f'{path} is not a file of keys ({error}); write one line for each site: "MGB" = "64 '
            'digits".'
        ) from None
    for site in content:
        check_site(site)
    return check_keys(content)


# --- inside -----------------------------------------------------------------------------------


def _signed_part(envelope: Mapping[str, Any]) -> bytes:
    fields = {k: v for k, v in envelope.items() if k not in ("payload", "signature")}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _FIRST_LINE + text.encode()


def _private(path: Path_) -> Ed25519PrivateKey:
    ed25519, serialization = _library()
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no private key {path}; `mmlca site keys` makes one.")
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise InputError(
            f"{path} can be read by others; a private key is for its owner alone: chmod 600 {path}."
        )
    try:
        private: Any = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        private = None
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise InputError(
            f"{path} is not a private key that this program made; `mmlca site keys` makes one."
        )
    checked: Ed25519PrivateKey = private
    return checked


def _digits(private: Ed25519PrivateKey) -> str:
    return private.public_key().public_bytes_raw().hex()


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ImportError(
            "signatures need the package cryptography; install it with: pip install "
            "'mmlca[secure]'."
        ) from error
    return ed25519, serialization
