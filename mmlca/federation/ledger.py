"""The ledger of a site: what left, when, and for which study and round.

It is one file, `ledger.json`, in the site's folder, readable by its owner alone. It holds the
secret from which all random rounding is drawn, and every released file byte for byte. The same
request gets the same bytes again; another request for the same study and round is refused, because
two releases about the same patients can be compared with each other, until a person says in words
why it should leave all the same. Keep the file: without it rounding starts anew, and averages of
old and new files tell more than either.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from font.exchange.privacy import SecretDraws
from font.files import atomic_write

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.sequences.type import Sequences

FILE = "ledger.json"


class Release(BaseModel):
    """Files that left together."""

    model_config = ConfigDict(extra="forbid", strict=True)

    study: str
    round: int
    site: str
    kind: Annotated[
        str, Field(pattern=r"^(model|labels|key|effects|masked labels|(masked )?sums \d+)$")
    ]
    request: str
    when: str
    override: str | None
    files: dict[str, str]


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

    def _read(self) -> _Content:
        if not self.path.exists():
            return _Content(
                format="mmlca ledger", version=1, secret=secrets.token_hex(32), releases=[]
            )
        try:
            return _Content.model_validate_json(self.path.read_bytes())
        except ValidationError:
            raise ValueError(
                f"{self.path} is not a ledger that this program wrote, or it is damaged; restore "
                "it from a backup, since rounding that starts anew tells more than it should."
            ) from None

    def draws(self, topic: str) -> SecretDraws:
        """Random numbers for this study and round that only this site can repeat."""
        whole = json.dumps([self.study, self.round, self.site, topic])
        return SecretDraws(bytes.fromhex(self._content.secret), whole)

    def mask_secret(self) -> bytes:
        """32 bytes, the private key for masks of this study and round; see `font.exchange.secure`.

        They come from the ledger's secret: with another ledger a site has another key, so that
        nothing is ever masked twice alike.
        """
        whole = json.dumps([self.study, self.round, self.site, "masks"]).encode()
        return hmac.digest(bytes.fromhex(self._content.secret), whole, "sha256")

    def released(self, kind: str, any_site: bool = False) -> Release | None:
        """The last release of a kind for the study and round, if there was one."""
        mine = [
            release
            for release in self._content.releases
            if (release.study, release.round, release.kind) == (self.study, self.round, kind)
            and (any_site or release.site == self.site)
        ]
        return mine[-1] if mine else None

    def look_up(self, kind: str, request: str, override: str | None) -> dict[str, bytes] | None:
        """The files that this request got before; None if files may be made for it.

        Refuses a request that differs from the last one, unless `override` says why.
        """
        last = self.released(kind)
        if last is None:
            return None
        if last.request == request:
            return {name: text.encode() for name, text in last.files.items()}
        if override is None:
            raise ValueError(
                f"{self.site} released other {kind} files for the study {self.study!r}, round "
                f"{self.round}, on {last.when}: the patients, the models or the settings were "
                "different, and two releases can be compared with each other; repeat the earlier "
                "request, or give an override that says in words why a second release should leave."
            )
        if len(override.split()) < 3:
            raise ValueError(
                f"the override {override!r} does not say why; use at least three words, such as "
                "'first file never sent'."
            )
        return None

    def look_up_masked(
        self, kind: str, request: str, sites: Sequence[str], override: str | None
    ) -> dict[str, bytes] | None:
        """As `look_up`, for masked files: one answer for each set of sites.

        Another set is answered only if sites of the last one dropped out and no new ones came. An
        answer that would go out under masks that were used before is never made anew, whatever the
        override says: the difference of the two would be readable.
        """
        last = self.released(kind)
        if last is None or last.request == request:
            return self.look_up(kind, request, override)
        former = [release for release in self._content.releases if self._is_of(release, kind)]
        sets = [_sites_of(release) for release in former]
        if sorted(sites) in sets:
            if former[sets.index(sorted(sites))].request == request:
                files = former[sets.index(sorted(sites))].files
                return {name: text.encode() for name, text in files.items()}
            raise ValueError(
                f"{self.site} has answered this set of sites in round {self.round} of the study "
                f"{self.study!r} already, with other patients, models or settings; the two answers "
                "would have the same masks, so begin a new round."
            )
        if set(sites) < set(sets[-1]):
            return None
        return self.look_up(kind, request, override)

    def _is_of(self, release: Release, kind: str) -> bool:
        mine = (self.study, self.round, self.site, kind)
        return (release.study, release.round, release.site, release.kind) == mine

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
