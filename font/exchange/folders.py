"""A round whose files go through folders: by e-mail, on a shared drive, on a stick.

The centre's folder has an `inbox` for what the sites sent, an `outbox` with what is to be sent to
them, and a `private` folder with its notes. `run_round` runs again from its start each time that
somebody looks whether something has come: `CentreFolder.ask` answers for the sites with what is in
the inbox, and raises `Waiting` at the first step for which files are missing. A step that all have
answered is noted together with its files. It is then closed: the same files are used again
whatever comes later, so that nothing that was sent to the sites changes.

The *requests* message, centre → all, holds the steps that the centre asks for, in their order. A
site sees from it which files belong to a step and whether it has all of them. A later file of the
same round has the steps of the earlier ones first. The payload is:

=================== =========================================================================
min_count           that of the study
steps               list of {step, files, sites}: "label", "assign", "refine", "results" or "answer
                    KIND"; the SHA-256 of the payload of each file that goes with it; who is asked
=================== =========================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from font.checks import some
from font.errors import InputError
from font.exchange.disclosure import MIN_COUNT
from font.exchange.envelope import Header, file_names, read_file, write_file
from font.exchange.fields import (
    MOST_MODELS,
    MOST_SITES,
    Hash,
    Least,
    Site,
    Strict,
    name_of,
    read_bytes,
    size,
)
from font.exchange.registry import Message, masked, message_of
from font.exchange.replies import Absent, Reply
from font.files import atomic_write

NOTES, REQUESTS = "centre.json", "requests.json"


# --- the requests message ---------------------------------------------------------------------


class Request(Strict):
    """A step that the centre asks for."""

    step: Annotated[str, Field(pattern="^(label|assign|refine|results|answer [a-z ]{1,40})$")]
    files: Annotated[list[Hash], size(1, MOST_MODELS + MOST_SITES)]
    sites: Annotated[list[Site], size(1, MOST_SITES)]


class RequestsPayload(Strict):
    """All steps so far."""

    min_count: Least
    steps: Annotated[list[Request], size(1, 200)]


def write_requests(requests: Sequence[Request], header: Header, *, min_count: int) -> bytes:
    """Write the steps that the centre asked for so far."""
    steps = [request.model_dump() for request in requests]
    return write_file(None, "requests", {"min_count": min_count, "steps": steps}, header).data


def requests_in(payload: Mapping[str, Any]) -> list[Request]:
    """The steps in the payload of a file that was read."""
    return [Request.model_validate(step) for step in payload["steps"]]


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    contains = [
        f"the step {request.step!r}, asked of {', '.join(request.sites)}, with "
        f"{len(request.files)} file{'' if len(request.files) == 1 else 's'}"
        for request in requests_in(payload)
    ]
    return contains, ["which sites take part, and nothing about patients"]


MESSAGE = Message(payload=RequestsPayload, explain=_explain, sender="centre", receiver="all")


# --- folders of received files ----------------------------------------------------------------


class Received(NamedTuple):
    """An exchange file: its name in the folder, what it says of itself, and its bytes."""

    name: str
    kind: str
    site: str
    payload: dict[str, Any]
    mark: str
    data: bytes


@dataclass
class Inbox:
    """What came in: of equal files the first, and a sentence about each file that was refused."""

    files: list[Received] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[Received]:
        """The files of a kind."""
        return [file for file in self.files if file.kind == kind]


def read_inbox(
    folder: Path, header: Header, *, min_count: int, reader: Literal["site", "centre"]
) -> Inbox:
    """Read all files in a folder and its subfolders whose names end in .json.

    Files that `read_file` refuses, or that are not for this reader, are not used. A folder that
    does not exist is empty.
    """
    inbox = Inbox()
    seen = set()
    for path in sorted(folder.rglob("*.json")):
        if path.name[0] == ".":  # unfinished
            continue
        name = path.relative_to(folder).as_posix()
        try:
            file = read_received(read_bytes(path), name, header, min_count)
            message = message_of(file.kind)
            if reader == "centre" and message.sender == "centre":
                raise InputError(
                    f"{name} is a file of the kind {file.kind!r}, which a centre sent."
                )
            if reader == "site" and message.receiver == "centre":
                raise InputError(f"{name} is a file of the kind {file.kind!r}, for the centre.")
        except InputError as error:
            inbox.refused.append(str(error).replace(name_of(b""), name, 1))
            continue
        if (file.kind, file.site, file.mark) not in seen:
            seen.add((file.kind, file.site, file.mark))
            inbox.files.append(file)
    return inbox


def read_received(data: bytes, name: str, header: Header | None, min_count: int = 1) -> Received:
    """Read the bytes of an exchange file, as `read_file` does."""
    file = read_file(data, header, min_count=min_count)
    return Received(name, file.kind, file.site, file.payload, file.sha256, data)


# --- the centre's folder ----------------------------------------------------------------------


class Waiting(Exception):
    """The round stops here until more has come: `missing` says what, by site."""

    def __init__(self, step: str, missing: Mapping[str, str]) -> None:
        super().__init__(f"waiting for {some(sorted(missing))}")
        self.step, self.missing = step, dict(missing)


class Closed(BaseModel):
    """A step that is over: what was asked with which files, and the files that came back."""

    model_config = ConfigDict(extra="forbid", strict=True)

    step: str
    files: list[str]
    replies: dict[str, list[str]]
    without: dict[str, str]


class _Notes(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal["font centre"] = "font centre"
    version: Annotated[int, Field(ge=1, le=1)] = 1
    study: str
    round: int
    closed: list[Closed] = []


class CentreFolder:
    """The centre's folder, as the carrier of a round.

    `folder` has `inbox`, `outbox` and `private`; `sites` are all sites of the study, `without`
    those to go on without from the step on that is open now. A site answers the step "fit" with
    `n_models` files. With `look` nothing is written, and the open step ends in `Waiting` even if
    all sites have answered. What `run_round` notes in `absent` about a reply keeps its step open;
    `sent` are the files of the outbox that belong to the open step.
    """

    def __init__(
        self,
        folder: Path,
        header: Header,
        sites: Sequence[str],
        *,
        without: Sequence[str] = (),
        min_count: int = MIN_COUNT,
        n_models: int = 1,
        look: bool = False,
    ) -> None:
        strange = [site for site in without if site not in sites]
        if strange:
            raise InputError(f"the study has no site {strange[0]!r}; it has {some(sites)}.")
        self.folder, self.header, self.sites = folder, header, list(sites)
        self.without, self.min_count, self.n_models = list(without), min_count, n_models
        self.look = look
        self.closed = read_notes(folder, header)
        self.inbox = read_inbox(folder / "inbox", header, min_count=min_count, reader="centre")
        self.absent: list[Absent] = []
        self.sent: list[str] = []
        self._step, self._noted = 0, 0  # of closed steps, of those absent
        self._open: Closed | None = None
        self._requests: list[Request] = []

    def ask(
        self, step: str, files: Sequence[bytes], senders: Sequence[str] | None
    ) -> Iterable[Reply]:
        """What the sites answered to a step, see `font.exchange.replies.Ask`.

        What is to be sent to them is written to the outbox first.
        """
        self.settle()
        sent = [read_received(data, "", None) for data in files]
        asked = self.sites if senders is None else list(senders)
        again = self._step < len(self.closed)
        step_now = self.closed[self._step] if again else self._begin(step, sent, asked)
        if (step_now.step, step_now.files) != (step, [file.mark for file in sent]):
            raise InputError(
                f"the files of the step {step!r} differ from those that this centre has sent to "
                "the sites; go on with the study file and the version of mmlca that were used "
                "then, or begin a new round."
            )
        going = [site for site in asked if site not in step_now.without]
        if sent and going:
            marks = step_now.files
            self._requests.append(Request(step=step, files=marks, sites=going))
        if not again:
            if sent and not self.look:
                self._send(sent)
            step_now.replies = self._gather(step, sent, going)
        self._open = step_now
        return [self._reply(site, step_now) for site in asked]

    def settle(self) -> None:
        """Close the step that was asked last, if everything that came could be used.

        The next step calls it; after the last one the caller does.
        """
        step_now, self._open = self._open, None
        if step_now is None:
            return
        new, self._noted = self.absent[self._noted :], len(self.absent)
        refused = {who.site: who.reason for who in new if who.site not in step_now.without}
        if self._step == len(self.closed):
            if refused:
                raise Waiting(step_now.step, refused)
            self.closed.append(step_now)
            if any(step_now.replies.values()):  # then its files have been sent before
                self.sent = []
            notes = _Notes(study=self.header.study, round=self.header.round, closed=self.closed)
            path = self.folder / "private" / NOTES
            atomic_write(path, notes.model_dump_json(indent=1).encode(), private=True)
        self._step += 1

    def unused(self) -> list[str]:
        """A sentence about each file of the inbox that no step used or waits for."""
        lines = list(self.inbox.refused)
        gone = {site for step in self.closed for site in step.without}
        used = {
            digest for step in self.closed for reply in step.replies.values() for digest in reply
        }
        for file in self.inbox.files:
            if file.site not in self.sites:
                lines.append(f"{file.name} is of {file.site!r}, which is not a site of the study.")
            elif file.site in gone and _digest(file.data) not in used:
                lines.append(f"{file.name} came late: the study went on without {file.site}.")
        return lines

    def _begin(self, step: str, sent: Sequence[Received], asked: Sequence[str]) -> Closed:
        gone = {site: reason for before in self.closed for site, reason in before.without.items()}
        gone |= {site: gone.get(site, "the study went on without it") for site in self.without}
        if step == "assign":  # asks for no reply
            gone = {}
        without = {site: gone[site] for site in asked if site in gone}
        marks = [file.mark for file in sent]
        return Closed(step=step, files=marks, replies={}, without=without)

    def _gather(
        self, step: str, sent: Sequence[Received], going: Sequence[str]
    ) -> dict[str, list[str]]:
        """The files with which the sites answer, kept aside; raises `Waiting` if some are missing.

        Several files of a site where one was expected are passed on, for `run_round` to refuse.
        """
        is_last = step == "refine" and any(file.payload.get("last") for file in sent)
        no_answer = step == "assign" or is_last
        number = 0 if no_answer else self.n_models if step == "fit" else 1
        answers = [] if no_answer else list(self._answers(step, sent))
        came = {site: [file for file in answers if file.site == site] for site in going}
        missing = {
            site: "nothing has come" if not files else f"{len(files)} of {number} files have come"
            for site, files in came.items()
            if len(files) < number and not any(file.kind == "joins" for file in files)
        }
        if missing or self.look:
            raise Waiting(step, missing)
        for files in came.values():
            for file in files:
                atomic_write(_kept(self.folder, _digest(file.data)), file.data, private=True)
        return {site: [_digest(file.data) for file in files] for site, files in came.items()}

    def _answers(self, step: str, sent: Sequence[Received]) -> Iterable[Received]:
        """Files of the inbox that answer a step."""
        keys = sorted(file.site for file in sent if file.kind == "key")
        kind = {"fit": "model", "key": "key", "label": "labels", "refine": "sums"}.get(
            step, step.removeprefix("answer ")
        )
        source = [file.mark for file in sent if file.kind != "key"][-1:]
        if step == "fit":
            yield from self.inbox.of_kind("joins")
        for file in self.inbox.of_kind(masked(kind) if keys else kind):
            of = file.payload.get("of")
            other_step = step != "label" and of is not None and [of] != source
            other_set = keys and [row["site"] for row in file.payload["sites"]] != keys
            if not other_step and not other_set:
                yield file

    def _reply(self, site: str, step: Closed) -> Reply:
        if site in step.without:
            return Reply(site, trouble=step.without[site])
        kept = [read_bytes(_kept(self.folder, digest)) for digest in step.replies[site]]
        return Reply(site, tuple(kept))

    def _send(self, files: Sequence[Received]) -> None:
        """Write files and the requests to the outbox, but those that are there already."""
        outbox = self.folder / "outbox"
        requests = write_requests(self._requests, self.header, min_count=self.min_count)
        names = _sent_names(files)
        parts = dict(zip(names, (file.data for file in files), strict=True)) | {REQUESTS: requests}
        for name, data in parts.items():
            if not _is_there(outbox / name, data):
                atomic_write(outbox / name, data)
        self.sent = list(dict.fromkeys([*self.sent, *parts]))


def _sent_names(files: Sequence[Received]) -> list[str]:
    """What files for the sites are called in the outbox, no two alike."""
    models = file_names([f.payload["name"] for f in files if f.kind == "model"], "model")
    keys = file_names([file.site for file in files if file.kind == "key"], "key")
    names = []
    for file in files:
        if file.kind == "model":
            names.append(models[file.payload["name"]])
        elif file.kind == "key":
            names.append(keys[file.site])
        else:
            step = f"-{file.payload['step']}" if file.kind == "shared" else ""
            names.append(f"{file.kind}{step}.json")
    return names


def _is_there(path: Path, data: bytes) -> bool:
    """Whether a file with this payload exists, perhaps of another day or with its signature."""
    try:
        here = read_received(read_bytes(path), path.name, None)
    except (InputError, OSError):
        return False
    return here.mark == read_received(data, path.name, None).mark


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _kept(folder: Path, digest: str) -> Path:
    return folder / "private" / "received" / f"{digest}.json"


def read_notes(folder: Path, header: Header) -> list[Closed]:
    """The steps that are over, from the notes in the centre's folder."""
    path = folder / "private" / NOTES
    if not path.exists():
        return []
    try:
        notes = _Notes.model_validate_json(path.read_bytes())
    except ValidationError:
        raise InputError(
            f"{path} is damaged or was not written by this program; restore it from a backup, or "
            "begin in a new folder with everything that has come in its inbox."
        ) from None
    if (notes.study, notes.round) != (header.study, header.round):
        raise InputError(
            f"{folder} is the centre's folder for round {notes.round} of the study "
            f"{notes.study!r}, not for round {header.round} of {header.study!r}; use another "
            "--folder."
        )
    return notes.closed
