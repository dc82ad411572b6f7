"""A site's part in a round: what it answers to each step that the centre asks for.

`font.exchange.rounds` describes the centre's part. The files pass between the two in memory
(`in_memory`), through folders (`font.exchange.folders`) or over Flower (`font.exchange.flower`);
all three call `answer_step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from font.errors import InputError
from font.exchange.envelope import claimed_kind
from font.exchange.replies import Ask, Reply


class Site(Protocol):
    """What a hospital does when the centre asks; `mmlca.Hospital` is one."""

    def fit(self) -> Sequence[Path]:
        """Fit, and return the model files to send."""

    def mask_key(self) -> Path:
        """The file to send with this site's public key for secure sums."""

    def label(self, models: Sequence[bytes], *, secure: Sequence[bytes] | None = None) -> Path:
        """Label the patients with all sites' models, and return the labels file to send.

        With the key files `secure` of all sites, that is a masked file.
        """

    def assign(self, ensemble: bytes) -> None:
        """Place the patients; the result stays."""

    def refine(self, source: bytes, *, secure: Sequence[bytes] | None = None) -> Any:
        """Answer an ensemble or a shared model; `sums` of the result is the file to send, or None.

        With key files it is masked, as in `label`. The patients' probabilities stay.
        """

    def results(self, ensemble: bytes, shared: bytes | None = None) -> Path:
        """The site's results for the report, of the ensemble's clusters or the refined ones."""

    def answer(self, kind: str, source: bytes) -> Path:
        """The message of a kind with which this site answers an ensemble or a shared model."""


def answer_step(site: Site, step: str, received: Sequence[bytes]) -> list[Path]:
    """Do what the centre asks for, and return the paths of the files to send.

    Parameters
    ----------
    site : Site
    step : str
        One of `font.exchange.rounds.steps()`.
    received : exchange files that came with the request
        The key files of all sites among them ask for secure sums.
    """
    if step == "fit":
        return list(site.fit())
    if step == "key":
        return [site.mask_key()]
    keys = [file for file in received if claimed_kind(file) == "key"]
    files = [file for file in received if file not in keys]
    options: dict[str, Any] = {"secure": keys} if keys else {}
    if step == "label":
        return [site.label(files, **options)]
    if step == "results" and 1 <= len(files) <= 2:
        return [site.results(*files)]
    if len(files) != 1:
        raise InputError(f"the centre sent {len(files)} files instead of one.")
    if step == "refine":
        sums = site.refine(files[0], **options).sums
        return [] if sums is None else [sums]
    if step == "assign":
        site.assign(files[0])
        return []
    return [site.answer(step.removeprefix("answer "), files[0])]


def in_memory(sites: Mapping[str, Site]) -> Ask:
    """What `run_round` asks when all sites are objects of this process.

    Parameters
    ----------
    sites : {name: Site}
        An error of one of them ends the round.
    """

    def ask(step: str, files: Sequence[bytes], senders: Sequence[str] | None) -> Iterable[Reply]:
        for name in sites if senders is None else senders:
            paths = answer_step(sites[name], step, files)
            yield Reply(name, tuple(path.read_bytes() for path in paths))

    return ask
