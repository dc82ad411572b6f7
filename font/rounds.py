"""One round with many sites, whatever carries the messages.

The centre asks three times: for models (`fit`), for counts of label patterns, sending all models
along (`label`), and for nothing more when it sends the ensemble (`assign`). What travels are the
exchange files, byte for byte; a reply is read by the same strict readers as a file. A site that
does not answer, answers late or sends something that is refused is left out and named, with the
reason, in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from font.checks import some
from font.clustering import majority_vote
from font.ensemble import Ensemble
from font.exchange import (
    ModelFile,
    read_labels,
    read_model,
    read_models,
    write_ensemble,
)
from font.files import atomic_write, file_names
from font.labels import LabelPatterns
from font.report import Absent, round_report

STEPS = ("fit", "label", "assign")
_MOST_FILES = 100  # models of one site


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
    """What came out of a round."""

    ensemble: Ensemble
    models: dict[str, ModelFile]
    patterns: LabelPatterns
    absent: tuple[Absent, ...]
    report: str


Ask = Callable[[str, Sequence[bytes], Sequence[str] | None], Iterable[Reply]]


def run_round(
    ask: Ask,
    *,
    study: str,
    out: Path,
    sites: Sequence[str] = (),
    states: Sequence[str] | None = None,
    n_clusters: int | None = None,
    seed: int = 1,
    software: str = "font",
    **settings: Any,
) -> Round:
    """The centre's part of one round.

    Parameters
    ----------
    ask : step, files, senders → replies
        Sends the files to the senders (to everyone if None), and returns what came back in time.
    study : str
    out : folder
        Gets what was received (`models`, `labels`), `ensemble.json` and `report.md`.
    sites : list of str, optional
        Those that should take part; others are refused, and who is not heard of is named.
    states : list of str, optional
        Of the study; else what most sites' models have.
    n_clusters : int, optional
        Else the sites vote.
    seed, settings
        For `Ensemble`: weights, distance, method.
    software : str
        Written into the ensemble file.

    Notes
    -----
    A site whose counts are missing still has its models in the ensemble, since the others have
    labelled with them by then.
    """
    absent: list[Absent] = []
    found = _collect_models(ask("fit", (), None), study, sites, states, absent)
    if not found:
        raise ValueError(f"no site sent a model that can be used ({_words(absent)}).")
    files = [data for _, datas in sorted(found.values()) for data in datas]
    models = read_models(files, study=study)
    names = file_names([read_model(data).name for data in files], "model")
    for name, data in zip(names.values(), files, strict=True):
        atomic_write(out / "models" / name, data)
    counts = []
    names = file_names(sorted(site for site, _ in found.values()), "labels")
    replies = ask("label", files, list(found))
    for sender, reply in _by_sender(replies, found, "label", absent, found).items():
        site = found[sender][0]
        try:
            table = _counts_of(reply, models, study, site)
        except ValueError as error:
            absent.append(Absent(site, "label", str(error)))
            continue
        counts.append(table)
        atomic_write(out / "labels" / names[site], reply.files[0])
    if not counts:
        raise ValueError(f"no site sent counts that can be used ({_words(absent)}).")
    ensemble, patterns = combine(models, counts, n_clusters=n_clusters, seed=seed, **settings)
    write_ensemble(out / "ensemble.json", ensemble, models, study=study, software=software)
    sent = (out / "ensemble.json").read_bytes()
    _by_sender(ask("assign", [sent], list(found)), found, "assign", absent, found)
    heard = {site for site, _ in found.values()}
    absent += [Absent(s, "fit", "sent no model that can be used") for s in sites if s not in heard]
    text = round_report(ensemble, models, patterns, study=study, absent=absent)
    atomic_write(out / "report.md", text.encode())
    return Round(ensemble, models, patterns, tuple(absent), text)


def combine(
    models: Mapping[str, ModelFile],
    counts: Iterable[LabelPatterns],
    *,
    n_clusters: int | None = None,
    seed: int = 1,
    **settings: Any,
) -> tuple[Ensemble, LabelPatterns]:
    """The ensemble of models and counts as they came in files, and all counts together.

    The order in which the counts come does not matter. Without `n_clusters` the sites vote:
    each model for its number of classes or, where the sender gave it, the one of lowest BIC.
    """
    patterns = LabelPatterns.merge(sorted(counts, key=lambda part: str(part.sites[0])))
    if n_clusters is None:
        n_clusters = int(
            majority_vote(
                [
                    min(model.bic, key=lambda k: model.bic[k]) if model.bic else model.n_classes
                    for model in models.values()
                ]
            )
        )
    return Ensemble(n_clusters, seed=seed, **settings).fit(models, patterns), patterns


# --- collecting replies ------------------------------------------------------------------

_Found = dict[str, tuple[str, tuple[bytes, ...]]]  # sender: site, model files


def _collect_models(
    replies: Iterable[Reply],
    study: str,
    sites: Sequence[str],
    states: Sequence[str] | None,
    absent: list[Absent],
) -> _Found:
    """The senders whose models can all be used, with their sites."""
    read: dict[str, dict[str, ModelFile]] = {}
    good: _Found = {}
    for reply in replies:
        try:
            if reply.trouble is not None:
                raise ValueError(reply.trouble)
            read[reply.sender] = _models_of(reply, study, sites)
            good[reply.sender] = (next(iter(read[reply.sender].values())).site, reply.files)
        except ValueError as error:
            absent.append(Absent(reply.sender, "fit", str(error)))
    seen = {sender: {model.states for model in models.values()} for sender, models in read.items()}
    wanted = tuple(states) if states is not None else _most_common(seen.values())
    times = Counter(site for site, _ in good.values())
    for sender, (site, _) in list(good.items()):
        wrong = None
        if times[site] > 1:
            wrong = f"{times[site]} senders call themselves {site!r}, so none of them is believed"
        elif seen[sender] != {wanted}:
            other = next(iter(seen[sender] - {wanted}))
            wrong = f"its models have the states {some(other)} in place of {some(wanted)}"
        if wrong is not None:
            absent.append(Absent(site, "fit", wrong))
            del good[sender]
    return good


def _models_of(reply: Reply, study: str, sites: Sequence[str]) -> dict[str, ModelFile]:
    if not 0 < len(reply.files) <= _MOST_FILES:
        raise ValueError(f"it sent {len(reply.files)} files in place of 1 to {_MOST_FILES}")
    models = read_models(reply.files, study=study)
    named = {model.site for model in models.values()}
    if len(named) > 1:
        raise ValueError(f"it sent models of the sites {some(sorted(named))}, not of one")
    if sites and not named <= set(sites):
        raise ValueError(f"{some(sorted(named))} is not one of the sites of the study")
    return models


def _most_common(kinds: Iterable[set[tuple[str, ...]]]) -> tuple[str, ...]:
    times = Counter(states for found in kinds for states in found)
    return min(times, key=lambda states: (-times[states], states), default=())


def _by_sender(
    replies: Iterable[Reply],
    asked: Iterable[str],
    step: str,
    absent: list[Absent],
    found: _Found,
) -> dict[str, Reply]:
    """The good replies, at most one a sender that was asked; who is missing is noted."""
    replies = list(replies)
    good: dict[str, Reply] = {}
    for sender in asked:
        mine = [reply for reply in replies if reply.sender == sender]
        site = found[sender][0]
        if len(mine) != 1:
            wrong = "it did not answer" if not mine else f"it answered {len(mine)} times"
            absent.append(Absent(site, step, wrong))
        elif mine[0].trouble is not None:
            absent.append(Absent(site, step, mine[0].trouble))
        else:
            good[sender] = mine[0]
    return good


def _counts_of(
    reply: Reply, models: Mapping[str, ModelFile], study: str, site: str
) -> LabelPatterns:
    if len(reply.files) != 1:
        raise ValueError(f"it sent {len(reply.files)} files in place of one")
    table = read_labels(reply.files[0], models, study=study)
    if table.sites != (site,):
        raise ValueError(f"it sent the counts of {some(table.sites)}, but models of {site!r}")
    return table


def _words(absent: Sequence[Absent]) -> str:
    return "; ".join(f"{who.site}: {who.reason.rstrip('.')}" for who in absent[:5]) or "nobody came"
