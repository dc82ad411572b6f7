"""The *key* message, site → all: a site's public key for the masks of secure sums.

See `font.exchange.masked`. The payload is:

=================== =========================================================================
public              the site's X25519 public key, 64 hexadecimal digits; the private one comes
                    from the site's ledger and is another in each study and round
min_count           the least unit that the site accepts for the rounded sum
=================== =========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from font.errors import InputError
from font.exchange.disclosure import MIN_COUNT
from font.exchange.envelope import read_file, write_file
from font.exchange.fields import Hash, Least, Strict
from font.exchange.header import Header
from font.exchange.masked import check_set, mask_key
from font.exchange.parse import Path_, Source, name_of
from font.exchange.registry import Message


class KeyPayload(Strict):
    """A site's public key for the masks of secure sums."""

    public: Hash
    min_count: Least


class KeyFile(NamedTuple):
    """A site and its public key for masks."""

    site: str
    public: str


def write_mask_key(
    path: Path_ | None, secret: bytes, header: Header, *, min_count: int = MIN_COUNT
) -> bytes:
    """Write the public key that belongs to a site's 32 secret bytes."""
    payload = {"public": mask_key(secret), "min_count": min_count}
    return write_file(path, "key", payload, header)[1]


def read_mask_key(source: Source, header: Header | None = None, *, min_count: int = 1) -> KeyFile:
    """Read a site's key file (or its bytes); the arguments are those of `read_file`."""
    file = read_file(source, header, kind="key", min_count=min_count)
    return KeyFile(file.site, file.payload["public"])


def read_mask_keys(
    sources: Iterable[Source], header: Header | None = None, *, min_count: int = 1
) -> dict[str, str]:
    """The public keys of a set of sites from their key files, in the order of their names."""
    public: dict[str, str] = {}
    for source in sources:
        key = read_mask_key(source, header, min_count=min_count)
        if key.site in public:
            raise InputError(
                f"the key of {key.site!r} comes twice ({name_of(source)} is the second); give "
                "each once."
            )
        public[key.site] = key.public
    check_set(public)
    return dict(sorted(public.items()))


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    return [f"the site's public key for the masks of secure sums, {payload['public']}"], [
        "nothing about patients; it lets other sites hide their tables under masks that cancel "
        "with this site's"
    ]


MESSAGE = Message(payload=KeyPayload, explain=_explain, receiver="all")
