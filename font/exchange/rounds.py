"""One round with many sites, whatever carries the messages.

The centre asks three times: for models (`fit`), for cross-tables of labels, sending all models
along (`label`), and for nothing more when it sends the ensemble (`assign`). Where the study wants a
refinement, it asks for sums (`refine`) as often as agreed. What travels are the
exchange files, byte for byte; a reply is read by the same strict readers as a file. A site that
does not answer, answers late or sends something that is refused is left out and named, with the
reason, in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from font.checks import some
from font.cross_tables import AddedTables, CrossTables
from font.exchange.files import (
    ModelFile,
    file_names,
    read_labels,
    read_model,
    read_models,
    write_ensemble,
)
from font.exchange.privacy import MIN_COUNT
from font.exchange.report import Absent, round_report
from font.exchange.signatures import Keys
from font.exchange.sums import (
    Rounds,
    SharedFile,
    Step,
    SumsFile,
    check_parts,
    check_rounds,
    read_step,
    read_sums,
    share,
)
from font.files import atomic_write
from font.n_clusters import vote
from font.tables_ensemble import TableEnsemble

STEPS = ("fit", "label", "assign", "refine")
_MOST_FILES = 100  # models from one site


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


class Round(NamedTuple):
    """What came out of a round; `shared` is the last model of a refinement, if there was one."""

    ensemble: TableEnsemble
    models: dict[str, ModelFile]
    tables: AddedTables
    absent: tuple[Absent, ...]
    report: str
    shared: SharedFile | None = None


Ask = Callable[[str, Sequence[bytes], Sequence[str] | None], Iterable[Reply]]


def run_round(
    ask: Ask,
    *,
    study: str,
    out: Path,
    round: int = 1,
    sites: Sequence[str] = (),
    states: Sequence[str] | None = None,
    n_clusters: int | None = None,
    min_count: int = MIN_COUNT,
    seed: int = 1,
    unequal: bool = False,
    refine: Rounds | None = None,
    software: str = "font",
    keys: Keys = None,
    signing_key: Path | None = None,
    **settings: Any,
) -> Round:
    """The centre's part of one round.

    Parameters
    ----------
    ask : step, files, senders → replies
        Sends the files to the senders (to everyone if None), and returns what came back in time.
    study, round : str, int
    out : folder
        Gets what was received (`models`, `labels`), `ensemble.json` and `report.md`.
    sites : list of str, optional
        Those that should take part; others are refused, and who is not heard of is named.
    states : list of str, optional
        Of the study; else what most sites' models have.
    n_clusters : int, optional
        Else the sites vote.
    min_count : int
        The study's: files whose counts were rounded to multiples of less are refused.
    unequal : bool
        Let sites send different numbers of models; else those are left out whose number is not the
        most common one.
    refine : int or "converge", optional
        Rounds of a refinement that follows, see `font.refine`; none unless given.
    seed, settings
        For `TableEnsemble`: weights, distance, method.
    software : str
        Written into the ensemble file.
    keys : {site: public key}, optional
        What comes in the name of these sites and was not signed by them is refused.
    signing_key : path, optional
        The centre's private key, to sign the ensemble with.

    Notes
    -----
    A site whose counts are missing still has its models in the ensemble, since the others have
    labelled with them by then.
    """
    absent: list[Absent] = []
    rules: dict[str, Any] = {"study": study, "min_count": min_count, "round": round, "keys": keys}
    heard = _collect_models(ask("fit", (), None), rules, sites, states, unequal, absent)
    if not heard:
        raise ValueError(f"no site sent a model that can be used ({_words(absent)}).")
    files = [data for _, parts in sorted(heard.values()) for data in parts]
    models = read_models(files, **rules)
    names = file_names([read_model(data).name for data in files], "model")
    for name, data in zip(names.values(), files, strict=True):
        atomic_write(out / "models" / name, data)
    good = _by_sender(ask("label", files, list(heard)), heard, "label", absent)
    parts = _collect_tables(good, heard, models, rules, out / "labels", absent)
    ensemble, tables = combine(
        models, parts, n_clusters=n_clusters, seed=seed, unequal=unequal, **settings
    )
    about: dict[str, Any] = {"study": study, "round": round, "software": software}
    sent = write_ensemble(out / "ensemble.json", ensemble, models, signing_key=signing_key, **about)
    _by_sender(ask("assign", [sent], list(heard)), heard, "assign", absent)
    shared = None
    if refine is not None:
        shared = _refine(ask, sent, heard, rules, refine, out, absent, signing_key, software)
    known = {site for site, _ in heard.values()}
    absent += [Absent(s, "fit", "sent no model that can be used") for s in sites if s not in known]
    text = round_report(ensemble, models, tables, study=study, absent=absent, min_count=min_count)
    atomic_write(out / "report.md", text.encode())
    return Round(ensemble, models, tables, tuple(absent), text, shared)


def _refine(
    ask: Ask,
    sent: bytes,
    heard: _Heard,
    rules: Mapping[str, Any],
    rounds: Rounds,
    out: Path,
    absent: list[Absent],
    signing_key: Path | None,
    software: str,
) -> SharedFile:
    """Steps of sums and shared models, until the last; who misses a step is out of the next."""
    check_rounds(rounds)
    about: dict[str, Any] = {"study": rules["study"], "round": rules["round"]}
    going = dict(heard)
    while True:
        before = read_step(sent, **about)
        parts: list[SumsFile] = []
        good = _by_sender(ask("refine", [sent], list(going)), going, "refine", absent)
        going = {sender: going[sender] for sender in good}
        if before.shared is not None and before.shared.last:
            return before.shared
        names = file_names(sorted(site for site, _ in going.values()), f"sums-{before.step}")
        for sender, reply in good.items():
            site = going[sender][0]
            try:
                parts.append(_sums_of(reply, before, rules, site))
            except ValueError as error:
                absent.append(Absent(site, "refine", str(error)))
                del going[sender]
                continue
            atomic_write(out / "sums" / names[site], reply.files[0])
        if not parts:
            raise ValueError(f"no site sent sums that can be used ({_words(absent)}).")
        path = out / f"shared-{before.step}.json"
        sent = share(
            before,
            parts,
            rounds=rounds,
            path=path,
            software=software,
            signing_key=signing_key,
            **about,
        ).data


def _sums_of(reply: Reply, before: Step, rules: Mapping[str, Any], site: str) -> SumsFile:
    if len(reply.files) != 1:
        raise ValueError(f"it sent {len(reply.files)} files in place of one")
    part = read_sums(reply.files[0], **rules)
    if part.site != site:
        raise ValueError(f"it sent the sums of {part.site!r}, but models of {site!r}")
    check_parts(before, [part])
    return part


def combine(
    models: Mapping[str, ModelFile],
    parts: Iterable[CrossTables],
    *,
    n_clusters: int | None = None,
    seed: int = 1,
    unequal: bool = False,
    **settings: Any,
) -> tuple[TableEnsemble, AddedTables]:
    """The ensemble of models and cross-tables as they came in files, and the sum of the tables.

    The tables are added up as they come, and their order does not matter. Sites count alike: the
    models of a site share its weight, no site's patients count more than those of all the others
    together, and without `n_clusters` each site has one vote, for the number of classes that most
    of its models say (of lowest BIC, where the site compared).

    Parameters
    ----------
    models : {name: ModelFile}
    parts : CrossTables of each site, such as an iterator that reads one file after the other
    n_clusters, seed, settings
        For `TableEnsemble`; unless given, the method is "latent", with fewer than three models
        "kmeans".
    unequal : bool
        Sites may have different numbers of models.
    """
    added = CrossTables.merge(parts)
    by_name = dict(sorted(added.sizes.items(), key=lambda item: str(item[0])))
    tables = replace(added, sizes=by_name)
    of_site: dict[str, list[ModelFile]] = {}
    for model in models.values():
        of_site.setdefault(model.site, []).append(model)
    numbers = {site: len(own) for site, own in of_site.items()}
    if not unequal and len(set(numbers.values())) > 1:
        raise ValueError(
            f"the sites have different numbers of models ({some(numbers.items())}); have each send "
            "as many, or say that the study wants it so (unequal=True)."
        )
    if n_clusters is None:
        votes = [vote([model.vote for model in own]) for own in of_site.values()]
        n_clusters = int(vote(votes))
    if len(models) < 3:  # two readings do not tell whose error a difference is
        settings.setdefault("method", "kmeans")
    ensemble = TableEnsemble(n_clusters, seed=seed, **settings)
    sites = {name: model.site for name, model in models.items()}
    return ensemble.fit(models, tables, sites), tables


# --- collecting replies ------------------------------------------------------------------

_Heard = dict[str, tuple[str, tuple[bytes, ...]]]  # sender: site, model files


def _collect_models(
    replies: Iterable[Reply],
    rules: Mapping[str, Any],
    sites: Sequence[str],
    states: Sequence[str] | None,
    unequal: bool,
    absent: list[Absent],
) -> _Heard:
    """The senders whose models can all be used, with their sites.

    The first sender to use a site's name keeps it; whoever uses it later is left out and named.
    """
    read: dict[str, dict[str, ModelFile]] = {}
    heard: _Heard = {}
    for reply in replies:
        try:
            if reply.trouble is not None:
                raise ValueError(reply.trouble)
            models = _models_of(reply, rules, sites)
            site = next(iter(models.values())).site
            if site in {taken for taken, _ in heard.values()}:
                raise ValueError(f"it calls itself {site!r}, as a sender before it did")
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
        raise ValueError(f"it sent {len(reply.files)} files in place of 1 to {_MOST_FILES}")
    models = read_models(reply.files, **rules)
    named = {model.site for model in models.values()}
    if len(named) > 1:
        raise ValueError(f"it sent models of the sites {some(sorted(named))}, not of one")
    if sites and not named <= set(sites):
        raise ValueError(f"{some(sorted(named))} is not one of the sites of the study")
    return models


def _most_common(*groups: Iterable[Any]) -> Any:
    """What occurs most often; the first in order of several."""
    times = Counter(value for group in groups for value in group)
    return min(times, key=lambda value: (-times[value], value), default=())


def _by_sender(
    replies: Iterable[Reply], heard: _Heard, step: str, absent: list[Absent]
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


def _collect_tables(
    replies: Mapping[str, Reply],
    heard: _Heard,
    models: Mapping[str, ModelFile],
    rules: Mapping[str, Any],
    folder: Path,
    absent: list[Absent],
) -> Iterator[CrossTables]:
    """The cross-tables of each site, read one after the other; files that can be used are kept."""
    names = file_names(sorted(site for site, _ in heard.values()), "labels")
    some_came = False
    for sender, reply in replies.items():
        site = heard[sender][0]
        try:
            part = _tables_of(reply, models, rules, site)
        except ValueError as error:
            absent.append(Absent(site, "label", str(error)))
            continue
        atomic_write(folder / names[site], reply.files[0])
        some_came = True
        yield part
    if not some_came:
        raise ValueError(f"no site sent counts that can be used ({_words(absent)}).")


def _tables_of(
    reply: Reply, models: Mapping[str, ModelFile], rules: Mapping[str, Any], site: str
) -> CrossTables:
    if len(reply.files) != 1:
        raise ValueError(f"it sent {len(reply.files)} files in place of one")
    part = read_labels(reply.files[0], models, **rules)
    if list(part.tables) != [site]:
        raise ValueError(f"it sent the counts of {some(part.tables)}, but models of {site!r}")
    return part


def _words(absent: Sequence[Absent]) -> str:
    return "; ".join(f"{who.site}: {who.reason.rstrip('.')}" for who in absent[:5]) or "nobody came"
