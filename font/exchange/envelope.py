"""The outside of every exchange file, and the reader that refuses what does not fit.

"One round" is one upload of models (model files, site → all), one upload of counts (labels files,
site → centre) and one broadcast of the result (ensemble file, centre → all). A refinement may
follow, in steps from 0: one upload of sums (sums files, site → centre) and one broadcast of what
they add up to (shared file, centre → all). The files travel by any means, e-mail included;
`font.exchange.flower` sends the same files over a network. What follows is true of every file; what
the payload of a message holds is in its module under `font.exchange.messages`, and
`font.exchange.explain.specification` puts all together.

Every file is one JSON object in UTF-8. Reading checks all of it, and refuses what does not fit with
one sentence (an `InputError`); nothing in a file is executed or names code to load. After
`font.exchange.fields` come the outer fields, the checksum, the fields of the payload with their
bounds, whether its numbers fit together, and last whether the file is one of the reader's study and
round, signed by its sender.

=================== =========================================================================
field               content
=================== =========================================================================
format              "font exchange"
version             2
kind                the message: "model", "labels", "ensemble" or another of those below
study               name of the study; files of another study are refused
round               number of the round within the study, from 1
site                name of the sender
created             day of writing, YYYY-MM-DD in UTC; no time, and never a patient's date
software            program that wrote the file
settings            optional: {section: {key: value}} of the study file that all sites share, as
                    texts. A reader whose study file has another value refuses the file.
payload             the content, below
sha256              SHA-256 of the payload as canonical JSON (keys sorted, no spaces, UTF-8). It
                    finds damage and careless edits; it does not show who sent a file.
signature           optional: {key, value}, an Ed25519 public key and signature (64 and 128
                    hexadecimal digits) over the line "font exchange file, signed", a line feed,
                    and all fields but payload and signature as canonical JSON. A reader that knows
                    the site's key refuses files without it; see `font.exchange.signatures`.
=================== =========================================================================

All counts in model, labels and sums files are rounded at random to multiples of min_count, see
`font.exchange.disclosure`; a reader refuses a count that is not a multiple.

Limits, checked before anything is built: 8 MB per file, 600,000 values, 100,000 texts, nesting of
12, 100 fields of an object, numbers of 30 digits, 127 states or 1,000 columns, 100 classes of a
model, 300 models, 300 sites, 800 classes of all models together, 50 steps of a refinement,
10,000,000 for the squared number of classes times parameters, 100,000,000 for the cubed number of
variables times covariance matrices.

What a file could still reveal:

- One who knows the labels of all other patients of a site can weigh whether a certain patient is
  among them: each count that the patient moves changes what is written with the probability
  1/min_count, and a patient is in M·(M + 1)/2 cells of a labels file. Cells that count nearly the
  same patients share their draw, so that what they reveal does not add up, and with more than
  five models the unit grows with their number (`font.exchange.disclosure.label_unit`). What remains
  is, for a simulated site of 500 with models that err in 5 % and min_count 11, a mean area under
  the curve of such a test of 0.54 from one model, 0.69 from four and 0.77 from twenty (0.94 if the
  unit stayed 11). Patients whom the models label differently are exposed most, and few models per
  site protect better than many.
- A model of Markov chains counts a patient in one cell for each kind of step in the course. For
  simulated sites of 150 to 500 patients and two classes the same test has a mean area of 0.64 to
  0.67 for plain chains. For chains by time in state with three bins, in nearly twice as many cells
  of which a patient is, it is 0.68 to 0.76, and with min_count 22 it is 0.64 to 0.69.
- Means and centres are based on at least min_count patients; anyone who knows all but one of them
  can work out the value of that patient to the written precision times their number.
- Sums of several steps count nearly the same patients. All steps use one draw for each cell, and
  one draw for all cells based on few patients, so that a patient whom a model singles out shows
  in 1 of min_count cases, at all steps together. A site answers a shared model only if its own sums
  are part of it.
- Two studies, or two rounds, of the same patients are two draws. The ledger of `mmlca.Hospital`
  keeps one draw for each study and round; it cannot know what leaves by other ways.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr

from font.errors import InputError
from font.exchange.fields import (
    FILE_LIMIT,
    AgreedSettings,
    Hash,
    Path_,
    Round,
    SignaturePart,
    Site,
    Source,
    Strict,
    Study,
    Text,
    name_of,
    no_collection,
    parse,
    read_bytes,
    shorten,
    validated,
)
from font.exchange.registry import KINDS, message_of
from font.exchange.signatures import sign, verify
from font.files import atomic_write

FORMAT, VERSION = "font exchange", 2


def fingerprint(payload: Mapping[str, Any]) -> str:
    """SHA-256 of a payload as canonical JSON: keys sorted, no spaces, UTF-8.

    Examples
    --------
    >>> fingerprint({"b": 1, "a": [0.5]}) == fingerprint({"a": [0.5], "b": 1})
    True
    """
    text = json.dumps(
        payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"should be one of {', '.join(KINDS)}")
    return kind


class Envelope(Strict):
    """What all files have."""

    format: Literal["font exchange"]
    version: Annotated[int, Field(ge=VERSION, le=VERSION)]
    kind: Annotated[str, AfterValidator(_check_kind)]
    study: Study
    round: Round
    site: Site
    created: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    software: Text
    settings: AgreedSettings | None = None
    payload: dict[str, Any]
    sha256: Hash
    signature: SignaturePart | None = None
    _data: bytes = PrivateAttr(b"")

    @property
    def data(self) -> bytes:
        """The bytes of a file that was written here."""
        return self._data


@dataclass(frozen=True, eq=False)
class Sent:
    """A file of one kind of message that was read, or written here."""

    file: Envelope = field(repr=False)

    @property
    def study(self) -> str:
        return self.file.study

    @property
    def site(self) -> str:
        return self.file.site

    @property
    def payload(self) -> dict[str, Any]:
        return self.file.payload

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the payload."""
        return self.file.sha256

    @property
    def data(self) -> bytes:
        """The bytes of a file that was written here."""
        return self.file.data


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the files of one site, or of the centre, have in common.

    A writer puts it at the top of each file. A reader refuses files of another study or round, and
    files of others that the pinned keys do not fit.

    Parameters
    ----------
    study, site : str
        The study, and who writes and reads.
    round : int
        Of the study, from 1.
    software : str
        The program, for the record.
    created : str, optional
        The day, YYYY-MM-DD; today in UTC if not given.
    keys : {site: public key}, optional
        Refuse files of these sites that they did not sign; the centre's key is that of "centre".
        See `font.exchange.signatures`.
    signing_key : path, optional
        The private key to sign with.
    settings : {section: {key: value}}, optional
        What all agreed on in a study file, as texts: files made with other values are refused.
    """

    study: str
    site: str = "centre"
    round: int = 1
    software: str = "font"
    created: str | None = None
    keys: Mapping[str, str] | None = None
    signing_key: Path_ | None = None
    settings: Mapping[str, Mapping[str, str]] | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of a file that say where it comes from."""
        fields: dict[str, Any] = {
            "study": self.study,
            "round": self.round,
            "site": self.site,
            "created": self.created or datetime.now(UTC).date().isoformat(),
            "software": self.software,
        }
        return fields | ({"settings": self.settings} if self.settings else {})

    def check(self, content: Mapping[str, Any], sender: str, origin: str) -> None:
        """Refuse a file of another study, round or settings, or that its sender did not sign."""
        if content["study"] != self.study:
            raise InputError(
                f"{origin} belongs to the study {content['study']!r}, not to {self.study!r}; give "
                "the files of one study."
            )
        verify(content, sender, self.keys, origin)
        if content["round"] != self.round:
            raise InputError(
                f"{origin} belongs to round {content['round']} of the study, not to {self.round}."
            )
        self._check_settings(content.get("settings") or {}, origin)

    def _check_settings(self, theirs: Mapping[str, Mapping[str, str]], origin: str) -> None:
        """Refuse a file whose sender agreed on something else; what only one knows may differ."""
        for section, values in (self.settings or {}).items():
            for key, value in values.items():
                other = theirs.get(section, {}).get(key, value)
                if other != value:
                    name = f"{section}.{key}" if section else key
                    raise InputError(
                        f"{origin} was made with another version of the study file: {name} is "
                        f"{other} there and {value} here; use one study file at all sites, and "
                        "have the file made again with it, in a new round."
                    )


# --- reading and writing ----------------------------------------------------------------------


def read_file(
    source: Source, header: Header | None = None, *, kind: str | None = None, min_count: int = 1
) -> Envelope:
    """Read and check an exchange file, or its bytes.

    A file of another kind is refused, one of another study or round, one that the keys of the
    reader's header do not fit, and one whose counts were rounded to multiples of less than
    `min_count`.
    """
    origin = name_of(source)
    with no_collection():
        content = parse(read_bytes(source), origin)
        file = check_content(content, origin, kind)
    message = message_of(file.kind)
    sender = "centre" if message.sender == "centre" else file.site
    if header is None:
        verify(content, sender, None, origin)
    else:
        header.check(content, sender, origin)
    lowest = min(message.units(file.payload))
    if lowest < min_count:
        raise InputError(
            f"{origin} was written with min_count {lowest}, the study asks for {min_count}; have "
            "the site write it again."
        )
    return file


def claimed_kind(source: Source) -> str:
    """The kind of message that a file says it is; nothing else in it is checked."""
    origin = name_of(source)
    with no_collection():
        content = parse(read_bytes(source), origin)
    _check_format(content, origin)
    return str(content.get("kind"))


def write_file(path: Path_ | None, kind: str, payload: dict[str, Any], header: Header) -> Envelope:
    """Write a file that the reader accepts, or nothing; without a path only the bytes are made."""
    content = {"format": FORMAT, "version": VERSION, "kind": kind} | header.fields()
    origin = f"the {kind} file"
    try:
        content |= {"payload": payload, "sha256": fingerprint(payload)}
        if header.signing_key is not None:
            content["signature"] = sign(content, header.signing_key)
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = text.encode() + b"\n"
    except InputError:  # of the key to sign with
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{origin} cannot be written as JSON: {error}.") from None
    if len(data) > FILE_LIMIT:
        raise InputError(
            f"{origin} would have {len(data):,} bytes, at most {FILE_LIMIT:,} are read; use fewer "
            "models."
        )
    file = check_content(parse(data, origin), origin, kind)
    if path is not None:
        atomic_write(Path(path), data)
    file._data = data
    return file


def check_content(content: Any, origin: str, kind: str | None = None) -> Envelope:
    """The file, if everything in it fits; otherwise one sentence."""
    _check_format(content, origin)
    if type(content.get("version")) is not int or content["version"] != VERSION:
        raise InputError(
            f"{origin} has the version {shorten(content.get('version'))}, this program reads "
            f"{VERSION}; use the same release of mmlca at all sites."
        )
    file: Envelope = validated(Envelope, content, origin)
    if kind is not None and file.kind != kind:
        raise InputError(f"{origin} is a file of the kind {file.kind!r}; give one of {kind!r}.")
    try:
        mark = fingerprint(file.payload)
    except ValueError:  # 1e999 becomes infinite; half a surrogate pair is not text
        raise InputError(
            f"{origin} has a number or a text that JSON cannot hold; ask the sender to write it "
            "again."
        ) from None
    if mark != file.sha256:
        raise InputError(
            f"{origin} was changed or damaged after it was written: its checksum does not match; "
            "ask the sender to send it again."
        )
    message = message_of(file.kind)
    validated(message.payload, file.payload, origin, "payload.")
    message.check(file.payload, file.site, origin)
    return file


def _check_format(content: Any, origin: str) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(
            f"{origin} is not an exchange file: its format should be {FORMAT!r}; give a file that "
            "mmlca wrote for exchange."
        )


# --- names of files ---------------------------------------------------------------------------


def file_name(name: str, kind: str) -> str:
    """What a site's file is called.

    >>> file_name("south hospital/2", "masked labels")
    'south_hospital-2.masked-labels.json'
    """
    return f"{name.replace('/', '-').replace(' ', '_')}.{kind.replace(' ', '-')}.json"


def file_names(names: Iterable[str], kind: str) -> dict[str, str]:
    """The file names of several sites, no two alike.

    >>> file_names(["a b", "a_b"], "labels")
    {'a b': 'a_b.labels.json', 'a_b': 'a_b-2.labels.json'}
    """
    files: dict[str, str] = {}
    for name in names:
        file, number = file_name(name, kind), 2
        while file in files.values():
            file, number = file_name(f"{name}-{number}", kind), number + 1
        files[name] = file
    return files
