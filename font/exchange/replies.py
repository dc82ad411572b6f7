"""Replies of the sites in a round: which can be used, and who is left out, with the reason.

A reply is read by the same strict readers as a file. Whatever is wrong with one is noted in the
list `absent` and stops nobody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from font.checks import some
from font.cross_tables import CrossTables
from font.errors import InputError
from font.exchange.files import ModelFile, file_names, read_labels, read_models
from font.exchange.masks import LEAST_SITES
from font.exchange.report import Absent
from font.exchange.secure import MaskedFile, MaskKey, read_mask_key, read_masked
from font.exchange.sums import Step, SumsFile, check_parts, read_sums
from font.files import atomic_write

_MOST_FILES = 100  # models from one site

Heard = dict[str, tuple[str, tuple[bytes, ...]]]  # sender: site, model files
KeyReplies = dict[str, tuple[str, bytes]]  # sender: public key for masks, key file
Part = TypeVar("Part")


class Reply(NamedTuple):
    """What one site answered.

    Parameters
    ----------
    sender : str
        What the network calls the site.
    files : tuple of bytes
        Exchange files.
    trouble : str, optional
        Why there are none.
    """

    sender: str
    files: tuple[bytes, ...] = ()
    trouble: str | None = None


Ask = Callable[[str, Sequence[bytes], Sequence[str] | None], Iterable[Reply]]


def collect_models(
    replies: Iterable[Reply],
    rules: Mapping[str, Any],
    sites: Sequence[str],
    states: Sequence[str] | None,
    unequal: bool,
    absent: list[Absent],
) -> Heard:
    """The senders whose models can all be used, with their sites.

    The first sender to use a site's name keeps it; whoever uses it later is left out and named.
    """
    read: dict[str, dict[str, ModelFile]] = {}
    heard: Heard = {}
    for reply in replies:
        try:
            if reply.trouble is not None:
                raise InputError(reply.trouble)
            models = _models_of(reply, rules, sites)
            site = next(iter(models.values())).site
            if site in {taken for taken, _ in heard.values()}:
                raise InputError(f"it calls itself {site!r}, as a sender before it did")
            read[reply.sender], heard[reply.sender] = models, (site, reply.files)
        except ValueError as error:
            absent.append(Absent(reply.sender, "fit", str(error)))
    seen = {sender: {model.states for model in models.values()} for sender, models in read.items()}
    wanted = tuple(states) if states is not None else _most_common(*seen.values())
    number = _most_common([len(models) for models in read.values()])
    for sender, (site, files) in list(heard.items()):
        wrong = None
        if seen[sender] != {wanted}:
            other = next(iter(seen[sender] - {wanted}))
            wrong = f"its models have the states {some(other)} in place of {some(wanted)}"
        elif not unequal and len(files) != number:
            wrong = f"it sent {len(files)} models, most sites sent {number}"
        if wrong is not None:
            absent.append(Absent(site, "fit", wrong))
            del heard[sender]
    return heard


def _models_of(
    reply: Reply, rules: Mapping[str, Any], sites: Sequence[str]
) -> dict[str, ModelFile]:
    if not 0 < len(reply.files) <= _MOST_FILES:
        raise InputError(f"it sent {len(reply.files)} files in place of 1 to {_MOST_FILES}")
    models = read_models(reply.files, **rules)
    named = {model.site for model in models.values()}
    if len(named) > 1:
        raise InputError(f"it sent models of the sites {some(sorted(named))}, not of one")
    if sites and not named <= set(sites):
        raise InputError(f"{some(sorted(named))} is not one of the sites of the study")
    return models


def _most_common(*groups: Iterable[Any]) -> Any:
    """What occurs most often; the first in order of several."""
    times = Counter(value for group in groups for value in group)
    return min(times, key=lambda value: (-times[value], value), default=())


def by_sender(
    replies: Iterable[Reply], heard: Heard, step: str, absent: list[Absent]
) -> dict[str, Reply]:
    """The good replies, at most one from each sender that was asked; who is missing is noted."""
    replies = list(replies)
    good: dict[str, Reply] = {}
    for sender, (site, _) in heard.items():
        mine = [reply for reply in replies if reply.sender == sender]
        if len(mine) != 1:
            wrong = "it did not answer" if not mine else f"it answered {len(mine)} times"
            absent.append(Absent(site, step, wrong))
        elif mine[0].trouble is not None:
            absent.append(Absent(site, step, mine[0].trouble))
        else:
            good[sender] = mine[0]
    return good


def collect_tables(
    replies: Mapping[str, Reply],
    heard: Heard,
    models: Mapping[str, ModelFile],
    rules: Mapping[str, Any],
    folder: Path,
    absent: list[Absent],
) -> Iterator[CrossTables]:
    """The cross-tables of each site, read one after the other; files that can be used are kept."""
    names = file_names(sorted(site for site, _ in heard.values()), "labels")
    some_came = False
    read = partial(_tables_of, models, rules)
    for sender, part in _usable(replies, heard, "label", read, absent):
        atomic_write(folder / names[heard[sender][0]], replies[sender].files[0])
        some_came = True
        yield part
    if not some_came:
        raise InputError(f"no site sent counts that can be used ({words(absent)}).")


def _tables_of(
    models: Mapping[str, ModelFile], rules: Mapping[str, Any], reply: Reply, site: str
) -> CrossTables:
    part = read_labels(_only_file(reply), models, **rules)
    if list(part.tables) != [site]:
        raise InputError(f"it sent the counts of {some(part.tables)}, but models of {site!r}")
    return part


def collect_sums(
    replies: Mapping[str, Reply],
    going: Heard,
    before: Step,
    rules: Mapping[str, Any],
    folder: Path,
    absent: list[Absent],
) -> tuple[list[SumsFile], Heard]:
    """The sums of a step that can be used, which are kept, and the senders that they are from."""
    names = file_names(sorted(going[sender][0] for sender in replies), f"sums-{before.step}")
    parts: dict[str, SumsFile] = {}
    for sender, part in _usable(replies, going, "refine", partial(_sums_of, before, rules), absent):
        parts[sender] = part
        atomic_write(folder / names[going[sender][0]], replies[sender].files[0])
    if not parts:
        raise InputError(f"no site sent sums that can be used ({words(absent)}).")
    return list(parts.values()), {sender: going[sender] for sender in parts}


def _sums_of(before: Step, rules: Mapping[str, Any], reply: Reply, site: str) -> SumsFile:
    part = read_sums(_only_file(reply), **rules)
    _check_sender("sums", part.site, site)
    check_parts(before, [part])
    return part


# --- secure sums -------------------------------------------------------------------------


def collect_keys(
    replies: Iterable[Reply],
    heard: Heard,
    rules: Mapping[str, Any],
    folder: Path,
    absent: list[Absent],
) -> KeyReplies:
    """The key files that can be used, which are kept, with the public keys."""
    names = file_names(sorted(site for site, _ in heard.values()), "key")
    keys: KeyReplies = {}
    good = by_sender(replies, heard, "key", absent)
    for sender, key in _usable(good, heard, "key", partial(_key_of, rules), absent):
        keys[sender] = (key.public, good[sender].files[0])
        atomic_write(folder / names[heard[sender][0]], good[sender].files[0])
    return keys


def _key_of(rules: Mapping[str, Any], reply: Reply, site: str) -> MaskKey:
    key = read_mask_key(_only_file(reply), **rules)
    _check_sender("key", key.site, site)
    return key


class MaskedRequest(NamedTuple):
    """What the centre asks the sites of a secure sum for.

    Parameters
    ----------
    step : "label" or "refine"
    files : list of bytes
        What the sites answer; the key files are sent along.
    what, of : str
        As in `MaskedFile`.
    name : str
        For the files that come back.
    """

    step: str
    files: Sequence[bytes]
    what: str
    of: str
    name: str


def collect_masked(
    ask: Ask,
    request: MaskedRequest,
    going: Heard,
    key_files: KeyReplies,
    rules: Mapping[str, Any],
    folder: Path,
    absent: list[Absent],
) -> tuple[list[MaskedFile], Heard]:
    """The masked counts or sums of a set of sites, which are kept, and their senders.

    Without one of them the sum cannot be read. The others are then asked again, with the keys of
    those that did answer, and make masks for the smaller set.
    """
    while True:
        if len(going) < LEAST_SITES:
            raise InputError(
                f"a secure sum needs at least {LEAST_SITES} sites, and {len(going)} can take part "
                f"({words(absent)}); run the round without secure sums, or when more are there."
            )
        sent = [*request.files, *(key_files[sender][1] for sender in going)]
        keys = {site: key_files[sender][0] for sender, (site, _) in going.items()}
        replies = by_sender(ask(request.step, sent, list(going)), going, request.step, absent)
        read = partial(_masked_of, request, keys, rules)
        parts = dict(_usable(replies, going, request.step, read, absent))
        if len(parts) == len(going):
            break
        going = {sender: going[sender] for sender in parts}
    sites = sorted(site for site, _ in going.values())
    names = file_names(sites, request.name)
    for sender, (site, _) in going.items():
        atomic_write(folder / names[site], replies[sender].files[0])
    return list(parts.values()), going


def _masked_of(
    request: MaskedRequest,
    keys: Mapping[str, str],
    rules: Mapping[str, Any],
    reply: Reply,
    site: str,
) -> MaskedFile:
    part = read_masked(_only_file(reply), **rules)
    _check_sender("masked file", part.site, site)
    if (part.what, part.of, part.keys) != (request.what, request.of, keys):
        raise InputError("it masked another table than the one asked for, or for other sites")
    return part


# --- inside ------------------------------------------------------------------------------


def _usable(
    replies: Mapping[str, Reply],
    going: Heard,
    step: str,
    read: Callable[[Reply, str], Part],
    absent: list[Absent],
) -> Iterator[tuple[str, Part]]:
    """The senders with what was read of their replies; whose cannot be used is noted."""
    for sender, reply in replies.items():
        site = going[sender][0]
        try:
            part = read(reply, site)
        except ValueError as error:
            absent.append(Absent(site, step, str(error)))
            continue
        yield sender, part


def _check_sender(what: str, named: str, site: str) -> None:
    """Refuse a file in the name of another site than the one whose models the sender sent."""
    if named != site:
        raise InputError(f"it sent the {what} of {named!r}, but models of {site!r}")


def _only_file(reply: Reply) -> bytes:
    if len(reply.files) != 1:
        raise InputError(f"it sent {len(reply.files)} files in place of one")
    return reply.files[0]


def words(absent: Sequence[Absent]) -> str:
    return "; ".join(f"{who.site}: {who.reason.rstrip('.')}" for who in absent[:5]) or "nobody came"
