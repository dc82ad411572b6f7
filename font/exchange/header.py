"""Who exchanges files, in which study and round, and with which keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from font.errors import InputError
from font.exchange.parse import Path_
from font.exchange.signatures import verify


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the files of one site, or of the centre, have in common.

    A writer puts it at the top of each file. A reader refuses files of another study or round, and
    files of others that the pinned keys do not fit.

    Parameters
    ----------
    study : str
        The same at all sites.
    site : str
        Who writes and reads.
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

    Examples
    --------
    >>> Header(study="ra", site="MGB").fields()["round"]
    1
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
