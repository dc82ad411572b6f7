"""Replies of the sites in a round: how a site makes them, and which ones the centre can use.

`answer_step` is a site's part in a round, whether the files pass in memory (`in_memory`), through
folders (`font.exchange.folders`) or over Flower (`font.exchange.flower`). The centre reads replies
with the same strict readers as files. What is wrong with a reply is noted in the list `absent`, and
the round goes on without that site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from font.checks import some
from font.errors import InputError
from font.exchange.disclosure import MIN_COUNT
from font.exchange.envelope import Header, claimed_kind, file_names, read_file
from font.exchange.masked import LEAST_SITES, MaskedFile, read_mask_key, read_masked
from font.exchange.messages.labels import read_labels
from font.exchange.messages.model import ModelFile, read_joins, read_models
from font.exchange.messages.refinement import Step, SumsFile, check_parts, read_sums
from font.files import atomic_write
from font.labels import CrossTables

_MOST_FILES = 100  # models from one site

Heard = dict[str, tuple[str, tuple[bytes, ...]]]  # sender: site, model files
KeyReplies = dict[str, tuple[str, bytes]]  # sender: public key for masks, key file
Part = TypeVar("Part")


class Absent(NamedTuple):
    """A site or sender that did not take part in a step, and why."""

    site: str
    step: str
    reason: str


class Reply(NamedTuple):
    """What one site answered: exchange files, or why there are none.

    `sender` is what the network calls the site.
    """

    sender: str
    files: tuple[bytes, ...] = ()
    trouble: str | None = None


Ask = Callable[[str, Sequence[bytes], Sequence[str] | None], Iterable[Reply]]


# --- a site's part ----------------------------------------------------------------------------


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
    """Do what the centre asks for in a step of `rounds.steps()`; the paths of the files to send.

    The key files of all sites among those received ask for secure sums.
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
    """What `run_round` asks when all sites are objects of this process; any error ends the
    round.
    """

    def ask(step: str, files: Sequence[bytes], senders: Sequence[str] | None) -> Iterable[Reply]:
        for name in sites if senders is None else senders:
            paths = answer_step(sites[name], step, files)
            yield Reply(name, tuple(path.read_bytes() for path in paths))

    return ask


# --- the centre's part ------------------------------------------------------------------------


class MaskedRequest(NamedTuple):
    """What the centre asks the sites of a secure sum for.

    Sites answer the `files` and the key files, in the step "label" or "refine"; `kind` and `of` are
    those of the masked files that come back, `name` is for their names.
    """

    step: str
    files: Sequence[bytes]
    kind: str
    of: str
    name: str


@dataclass(frozen=True)
class Centre:
    """Who asks the sites in a round.

    `ask` is the carrier, `header` the centre's, `out` the folder that keeps what was received.
    Files whose counts were rounded to multiples of less than `min_count` are refused; `absent`
    grows with every reply that cannot be used.
    """

    ask: Ask
    header: Header
    out: Path
    min_count: int = MIN_COUNT
    absent: list[Absent] = field(default_factory=list)

    def ask_each(self, step: str, files: Sequence[bytes], senders: Heard) -> dict[str, Reply]:
        """The good replies, at most one from each sender; who is missing is noted."""
        replies = list(self.ask(step, files, list(senders)))
        good: dict[str, Reply] = {}
        for sender, (site, _) in senders.items():
            mine = [reply for reply in replies if reply.sender == sender]
            if len(mine) != 1:
                wrong = "it did not answer" if not mine else f"it answered {len(mine)} times"
                self.absent.append(Absent(site, step, wrong))
            elif mine[0].trouble is not None:
                self.absent.append(Absent(site, step, mine[0].trouble))
            else:
                good[sender] = mine[0]
        return good

    def collect(
        self,
        step: str,
        files: Sequence[bytes],
        senders: Heard,
        read: Callable[[bytes], tuple[str, Part]],
    ) -> Iterator[tuple[str, bytes, Part]]:
        """The senders whose one file can be used, with the file and what was read of it.

        `read` gives the site that a file names and its content. A sender may not use another site's
        name. Whose file cannot be used is noted.
        """
        for sender, reply in self.ask_each(step, files, senders).items():
            site = senders[sender][0]
            try:
                if len(reply.files) != 1:
                    raise InputError(f"it sent {len(reply.files)} files instead of one")
                named, part = read(reply.files[0])
                if named != site:
                    raise InputError(f"it sent a file of {named!r}, but models of {site!r}")
            except InputError as error:
                self.absent.append(Absent(site, step, str(error)))
                continue
            yield sender, reply.files[0], part

    def keep(self, folder: str, kind: str, files: Mapping[str, bytes]) -> None:
        """Write files, by site, into a folder of what was received."""
        for site, name in file_names(sorted(files), kind).items():
            atomic_write(self.out / folder / name, files[site])

    def reasons(self) -> str:
        """Why sites are absent, in words."""
        shown = [f"{who.site}: {who.reason.rstrip('.')}" for who in self.absent[:5]]
        return "; ".join(shown) or "no site replied"

    def collect_models(
        self, sites: Sequence[str], states: Sequence[str] | None, unequal: bool
    ) -> Heard:
        """The senders whose models can all be used, with their sites, and those who send none.

        The first sender to use a site's name keeps it; whoever uses it later is left out and named.
        """
        read: dict[str, dict[str, ModelFile]] = {}
        heard: Heard = {}
        for reply in self.ask("fit", (), None):
            try:
                if reply.trouble is not None:
                    raise InputError(reply.trouble)
                site, models = self._site_and_models(reply)
                if sites and site not in sites:
                    raise InputError(f"{site!r} is not one of the sites of the study")
                if site in {taken for taken, _ in heard.values()}:
                    raise InputError(f"an earlier sender already uses the name {site!r}")
                if models:
                    read[reply.sender] = models
                heard[reply.sender] = site, reply.files if models else ()
            except InputError as error:
                self.absent.append(Absent(reply.sender, "fit", str(error)))
        seen = {
            sender: {model.states for model in models.values()} for sender, models in read.items()
        }
        wanted = tuple(states) if states is not None else _most_common(*seen.values())
        number = _most_common([len(models) for models in read.values()])
        for sender in read:
            (site, files), wrong = heard[sender], None
            if seen[sender] != {wanted}:
                other = next(iter(seen[sender] - {wanted}))
                wrong = f"its models have the states {some(other)} instead of {some(wanted)}"
            elif not unequal and len(files) != number:
                wrong = f"it sent {len(files)} models, most sites sent {number}"
            if wrong is not None:
                self.absent.append(Absent(site, "fit", wrong))
                del heard[sender]
        if not any(files for _, files in heard.values()):
            raise InputError(f"no site sent a model that can be used ({self.reasons()}).")
        return heard

    def _site_and_models(self, reply: Reply) -> tuple[str, dict[str, ModelFile]]:
        """A site and its models; none if it takes part without."""
        unit = self.min_count
        if len(reply.files) == 1 and claimed_kind(reply.files[0]) == "joins":
            return read_joins(reply.files[0], self.header, min_count=unit), {}
        if not 0 < len(reply.files) <= _MOST_FILES:
            raise InputError(f"it sent {len(reply.files)} files instead of 1 to {_MOST_FILES}")
        models = read_models(reply.files, self.header, min_count=unit)
        site, *more = sorted({model.site for model in models.values()})
        if more:
            raise InputError(f"it sent models of the sites {some([site, *more])}, not of one")
        return site, models

    def collect_tables(
        self, senders: Heard, files: Sequence[bytes], models: Mapping[str, ModelFile]
    ) -> Iterator[CrossTables]:
        """The cross-tables of each site, read one after the other; usable files are kept."""

        def read(data: bytes) -> tuple[str, CrossTables]:
            part = read_labels(data, models, self.header, min_count=self.min_count)
            (site,) = part.tables
            return str(site), part

        came: dict[str, bytes] = {}
        for sender, data, part in self.collect("label", files, senders, read):
            came[senders[sender][0]] = data
            yield part
        if not came:
            raise InputError(f"no site sent counts that can be used ({self.reasons()}).")
        self.keep("labels", "labels", came)

    def collect_sums(self, going: Heard, before: Step, sent: bytes) -> tuple[list[SumsFile], Heard]:
        """The usable sums of a step, which are kept, and the senders that they are from."""

        def read(data: bytes) -> tuple[str, SumsFile]:
            part = read_sums(data, self.header, min_count=self.min_count)
            check_parts(before, [part])
            return part.site, part

        came = list(self.collect("refine", [sent], going, read))
        if not came:
            raise InputError(f"no site sent sums that can be used ({self.reasons()}).")
        self.keep("sums", f"sums-{before.step}", {part.site: data for _, data, part in came})
        return [part for *_, part in came], {sender: going[sender] for sender, *_ in came}

    def collect_answers(
        self, kind: str, step: str, senders: Heard, files: Sequence[bytes]
    ) -> dict[str, bytes]:
        """The sites' messages of a kind that answer the last of the files; all are kept."""
        of = read_file(files[-1]).sha256

        def read(data: bytes) -> tuple[str, None]:
            file = read_file(data, self.header, kind=kind, min_count=self.min_count)
            if file.payload.get("of", of) != of:
                raise InputError(f"its {kind} are about the clusters of another file than was sent")
            return file.site, None

        answers = self.collect(step, files, senders, read)
        came = {senders[sender][0]: data for sender, data, _ in answers}
        self.keep(kind, kind, came)
        return came

    def collect_keys(self, senders: Heard) -> KeyReplies:
        """The key files that can be used, which are kept, with the public keys."""

        def read(data: bytes) -> tuple[str, str]:
            return read_mask_key(data, self.header, min_count=self.min_count)

        came = self.collect("key", (), senders, read)
        keys = {sender: (key, data) for sender, data, key in came}
        self.keep("keys", "key", {senders[sender][0]: data for sender, (_, data) in keys.items()})
        return keys

    def collect_masked(
        self, request: MaskedRequest, going: Heard, key_files: KeyReplies
    ) -> tuple[list[MaskedFile], Heard]:
        """The masked counts or sums of a set of sites, which are kept, and their senders.

        Without one of them the sum cannot be read. The others are then asked again, with the keys
        of those that did answer, and make masks for the smaller set.
        """
        while True:
            if len(going) < LEAST_SITES:
                raise InputError(
                    f"a secure sum needs at least {LEAST_SITES} sites, and {len(going)} can take "
                    f"part ({self.reasons()}); run the round without secure sums, or when more are "
                    "there."
                )
            keys = {site: key_files[sender][0] for sender, (site, _) in going.items()}

            def read(data: bytes, keys: dict[str, str] = keys) -> tuple[str, MaskedFile]:
                unit = self.min_count
                part = read_masked(data, self.header, kind=request.kind, min_count=unit)
                if (part.of, part.keys) != (request.of, keys):
                    raise InputError(
                        "it masked a different table from the one requested, or for other sites"
                    )
                return part.site, part

            sent = [*request.files, *(key_files[sender][1] for sender in going)]
            came = list(self.collect(request.step, sent, going, read))
            if len(came) == len(going):
                break
            going = {sender: going[sender] for sender, *_ in came}
        self.keep("masked", request.name, {part.site: data for _, data, part in came})
        return [part for *_, part in came], going


def _most_common(*groups: Iterable[Any]) -> Any:
    """What occurs most often; the first in order of several."""
    times = Counter(value for group in groups for value in group)
    return min(times, key=lambda value: (-times[value], value), default=())
