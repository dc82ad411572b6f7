"""The ledger of a site: what left, when, and for which study and round.

It is one file, `ledger.json`, in the site's folder, readable by its owner alone. It holds the
secret from which all random rounding is drawn, and every released file byte for byte. The same
request gets the same bytes again; another request for the same study and round is refused, because
two releases about the same patients can be compared with each other, until a person says in words
why it should leave all the same. Keep the file: without it rounding starts anew, and averages of
old and new files reveal more than either.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from font.checks import some
from font.errors import InputError
from font.exchange.disclosure import SecretDraws
from font.exchange.fields import look_alikes
from font.exchange.registry import KINDS, masked, unmasked
from font.files import atomic, atomic_write, private_folder

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.sequences.type import Sequences

FILE = "ledger.json"
UNNAMED = "this site"  # where nothing leaves, no name is needed


def _check_entry(entry: str) -> str:
    if re.sub(r" \d+$", "", entry) not in KINDS:
        raise ValueError(f"{entry!r} is not a kind of message")
    return entry


class Release(BaseModel):
    """Files that left together."""

    model_config = ConfigDict(extra="forbid", strict=True)

    study: str
    round: int
    site: str
    kind: Annotated[str, AfterValidator(_check_entry)]
    request: str
    when: str
    override: str | None
    files: dict[str, str]
    approved_by: str | None = None
    approved: str | None = None

    def contents(self) -> dict[str, bytes]:
        """The files, byte for byte."""
        return {name: text.encode() for name, text in self.files.items()}


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal["mmlca ledger"]
    version: Annotated[int, Field(ge=1, le=1)]
    secret: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    releases: list[Release]


class Ledger:
    """The ledger in a site's folder, for one study and round.

    Parameters
    ----------
    folder : the site's folder
    study, site : str
    round : int
    """

    def __init__(self, folder: Path, study: str, site: str, round: int) -> None:
        self.path = Path(folder) / FILE
        self.study, self.site, self.round = study, site, round
        self._content = self._read()
        self._check_names()

    def _check_names(self) -> None:
        """Refuse a name that looks like one in the ledger, and a second site in one ledger.

        What was released is compared by these names: with another spelling of the study, or as
        another site, the same patients could be counted twice.
        """
        studies = [release.study for release in self._content.releases]
        alike = [a for a, b in look_alikes([*studies, self.study]) if b == self.study]
        if alike:
            raise InputError(
                f"{self.path} has a study {alike[0]!r}, which looks like {self.study!r}; use the "
                "name under which files have left already, or one that cannot be mistaken for it."
            )
        other = {release.site for release in self._content.releases} - {self.site}
        if other and self.site != UNNAMED:
            raise InputError(
                f"{self.path} is the ledger of {some(sorted(other))}, not of {self.site!r}; a "
                "ledger belongs to the patients of one site: use its name, or another --folder."
            )

    def _read(self) -> _Content:
        if not self.path.exists():
            return _Content(
                format="mmlca ledger", version=1, secret=secrets.token_hex(32), releases=[]
            )
        try:
            return _Content.model_validate_json(self.path.read_bytes())
        except ValidationError:
            raise InputError(
                f"{self.path} is not a ledger that this program wrote, or it is damaged; restore "
                "it from a backup, since rounding that starts anew reveals more than it should."
            ) from None

    def draws(self, topic: str) -> SecretDraws:
        """Random numbers that only this site can repeat.

        They are the same in every study and round: otherwise studies of the same patients under
        several names could be averaged.
        """
        return SecretDraws(bytes.fromhex(self._content.secret), topic)

    def secret_of(self, topic: str) -> bytes:
        """32 bytes to draw from by another rule than `draws`, also the same in every round."""
        return hmac.digest(bytes.fromhex(self._content.secret), topic.encode(), "sha256")

    def mask_secret(self) -> bytes:
        """32 bytes, the private key for masks of this study and round; see `font.exchange.masked`.

        They are made when the site writes its key file, and kept in a file that must be neither
        copied nor restored.
        """
        whole = json.dumps([self.study, self.round, self.site]).encode()
        path = self.path.with_name(f"masks-{hashlib.sha256(whole).hexdigest()[:16]}.key")
        if self.released("key") is None:
            _make_mask_secret(path)
        secret = _read_mask_secret(path, [release.request for release in self._masked()])
        if secret is None:
            raise InputError(
                f"{self.path.parent} was copied or restored from a backup after the key of "
                f"{self.site} for round {self.round} of the study {self.study!r} was made (or its "
                "files got another owner or mode), so that the same masks could be used for two "
                "different tables; begin a new round."
            )
        return secret

    def _releases(self) -> list[Release]:
        """What left in this study and round, oldest first, under whatever name of the site."""
        now = (self.study, self.round)
        return [part for part in self._content.releases if (part.study, part.round) == now]

    def _masked(self) -> list[Release]:
        """What this site sent under masks in this study and round, oldest first."""
        own = [release for release in self._releases() if release.site == self.site]
        return [release for release in own if unmasked(release.kind) != release.kind]

    def released(self, kind: str) -> Release | None:
        """The last release of a kind for the study and round, if there was one."""
        own = [part for part in self._releases() if (part.kind, part.site) == (kind, self.site)]
        return own[-1] if own else None

    def released_either_way(self, kind: str) -> Release | None:
        """The last release of a kind, rounded or masked, under whatever name of the site."""
        for name in (kind, masked(kind)):
            if all_of := [release for release in self._releases() if release.kind == name]:
                return all_of[-1]
        return None

    def look_up(self, kind: str, request: str, override: str | None) -> dict[str, bytes] | None:
        """The files that this request got before; None if files may be made for it.

        Refuses a request that differs from the last one, unless `override` says why.
        """
        last = self.released(kind)
        if last is None:
            return None
        if last.request == request:
            return last.contents()
        if override is None:
            raise InputError(
                f"{self.site} released other {kind} files for the study {self.study!r}, round "
                f"{self.round}, on {last.when}: the patients, the models or the settings were "
                "different, and two releases can be compared with each other; repeat the earlier "
                "request, or give an override that says in words why a second release should leave."
            )
        if len(override.split()) < 3:
            raise InputError(
                f"the override {override!r} does not say why; use at least three words, such as "
                "'first file never sent'."
            )
        return None

    def look_up_masked(
        self, kind: str, request: str, sites: Sequence[str], without: Sequence[str]
    ) -> dict[str, bytes] | None:
        """As `look_up`, for masked files, in which no override helps.

        All answers of a round are for one set of sites. If sites drop out, the others answer once
        more as a smaller set, if a person has confirmed who is gone (`without`): from the sums of
        two sets that the centre can both read, it could subtract the table of whoever is in one of
        them only.
        """
        former = self._masked()
        for release in former:
            if (release.kind, release.request) == (kind, request):
                return release.contents()
        chosen = sorted(sites)
        sets = list(dict.fromkeys(tuple(_sites_of(release)) for release in former))
        if any(release.kind == kind and _sites_of(release) == chosen for release in former):
            raise InputError(
                f"{self.site} has answered this set of sites in round {self.round} of the study "
                f"{self.study!r} already, with other patients, models or settings; the two answers "
                "would have the same masks, so begin a new round."
            )
        if not sets or sets[-1] == tuple(chosen):
            return None
        gone = sorted(set(sets[0]) - set(chosen))
        if len(sets) > 1 or not set(chosen) < set(sets[0]):
            raise InputError(
                f"{self.site} has masked for the sites {some(sets[-1])} in round {self.round} of "
                f"the study {self.study!r}; a round has one set of sites, and one smaller one if "
                "some drop out, since sums of several sets can be subtracted: begin a new round."
            )
        if gone != sorted(without):
            raise InputError(
                f"{self.site} has masked for a larger set of sites, with {some(gone)}; if the "
                f"centre has the files of {some(gone)} all the same, it can subtract the two sums "
                "and read their tables. Ask these sites whether they sent nothing, and if so, name "
                f"them: --without {','.join(gone)} (in Python `without`)."
            )
        return None

    def record(
        self, kind: str, request: str, files: Mapping[str, bytes], override: str | None
    ) -> None:
        """Note a release, before its files are written where they are sent from."""
        release = Release(
            study=self.study,
            round=self.round,
            site=self.site,
            kind=kind,
            request=request,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            override=override,
            files={name: data.decode() for name, data in files.items()},
        )
        self._content.releases.append(release)
        self._write()

    def note_approval(self, files: Sequence[str], who: str) -> None:
        """Note who approved that files of these names leave, in this study and round."""
        for release in self._releases():
            if release.site == self.site and release.files.keys() & set(files):
                release.approved_by = who
                release.approved = datetime.now(UTC).isoformat(timespec="seconds")
        self._write()

    def _write(self) -> None:
        atomic_write(self.path, self._content.model_dump_json(indent=1).encode(), private=True)


def _sites_of(release: Release) -> list[str]:
    """The set of sites that a masked file in the ledger was made for."""
    (text,) = release.files.values()
    return sorted(row["site"] for row in json.loads(text)["payload"]["sites"])


def request_of(data: Sequences | pd.DataFrame, **settings: Any) -> str:
    """A fingerprint of the patients and of everything that decides what is released."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=list).encode())
    from mmlca.sequences.type import Sequences

    about: list[Any]
    if isinstance(data, Sequences):
        about = [data.codes.shape, data.states, [str(i) for i in data.ids]]
        parts = [data.codes.tobytes(), data.weights.tobytes()]
    else:
        import pandas as pd

        about = [data.shape, [str(name) for name in data.columns]]
        parts = [pd.util.hash_pandas_object(data).to_numpy().tobytes()]
    for part in (json.dumps(about).encode(), *parts):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


# --- the secret of masks ------------------------------------------------------------------
#
# There is one for each study and round, and no mask is used twice: two different tables under the
# same masks can be subtracted, and what remains is readable. The ledger refuses the second one, but
# a ledger that was restored from a backup or copied to another computer does not know what has been
# masked since. So the secret is in a file of its own, `masks-….key`, that notices both. It holds
# its own inode number; the request of every answer that was masked with it, all of which the ledger
# must know; and the time at which it was written last, which must be that of the file system. A
# copy has another inode. What is restored in place, or gets the inode of a file that was removed,
# has another time of change, which no program can set. Only a snapshot of the whole disk that is
# put back goes unnoticed, and on Windows, which has no such time, a file that is restored in place.

MASKS_WITHIN = 2 * 10**9  # nanoseconds between the two writes of a time
_AT, _NONE = "at ", "-"  # what a line with the time begins with; instead of requests


def _make_mask_secret(path: Path) -> None:
    """Write a file with a new secret, instead of one that was not used."""
    private_folder(path.parent)
    with atomic(path, private=True) as file:
        content = {"inode": os.fstat(file.fileno()).st_ino, "secret": secrets.token_hex(32)}
        file.write(json.dumps(content).encode() + b"\n")
    append_masked(path, [])


def _read_mask_secret(path: Path, answered: Iterable[str]) -> bytes | None:
    """The secret, 32 bytes; None if masks with it might be used a second time.

    The requests that were answered under masks, according to the ledger, are added to the file
    where it does not have them.
    """
    known = list(answered)
    if not path.exists():
        return None
    first, *lines = path.read_text(encoding="ascii").splitlines()
    content, last = json.loads(first), lines[-1] if lines else ""
    used = [line for line in lines if line != _NONE and not line.startswith(_AT)]
    state = path.stat()
    if content["inode"] != state.st_ino or not set(used) <= set(known):
        return None
    if (
        not last.startswith(_AT)
        or not 0 <= state.st_ctime_ns - int(last[len(_AT) :]) <= MASKS_WITHIN
    ):
        return None
    unnoted = [request for request in known if request not in used]
    if unnoted:
        append_masked(path, unnoted)
    return bytes.fromhex(content["secret"])


def append_masked(path: Path, requests: list[str]) -> None:
    """Add requests and the time, by the clock of the file system; the inode stays."""
    with path.open("a", encoding="ascii") as file:
        file.writelines(f"{request}\n" for request in requests or [_NONE])
        file.flush()
        os.fsync(file.fileno())
        file.write(f"{_AT}{os.fstat(file.fileno()).st_ctime_ns}\n")
        file.flush()
        os.fsync(file.fileno())
