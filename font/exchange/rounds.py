"""One round of a federated study, for any network that carries the files.

The centre asks every site for its models (`fit`), for its counts when it sends all models
along (`label`), and for nothing more when it sends the ensemble (`assign`). Where the study wants a
refinement, it asks for sums (`refine`) as often as agreed. With secure sums it asks for public keys
first (`key`), sends them along with the models, ensembles and shared models, and gets masked counts
and sums back. What travels are the exchange files, byte for byte; a reply is read by the same
strict readers as a file. A site that does not answer, answers late or sends something that is
refused is left out and named, with the reason, in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from font.checks import some
from font.cross_tables import AddedTables, CrossTables
from font.ensemble import Ensemble
from font.errors import InputError
from font.exchange.disclosure import MIN_COUNT
from font.exchange.envelope import file_names
from font.exchange.header import Header
from font.exchange.messages.ensemble import write_ensemble
from font.exchange.messages.labels import sum_of_labels
from font.exchange.messages.model import ModelFile, list_fingerprint, read_model, read_models
from font.exchange.messages.shared import Rounds, SharedFile, check_rounds, read_step
from font.exchange.messages.sums import share, share_masked
from font.exchange.registry import KINDS, message_of
from font.exchange.replies import (
    Ask,
    Centre,
    Heard,
    KeyReplies,
    MaskedRequest,
    collect_answers,
    collect_keys,
    collect_masked,
    collect_models,
    collect_sums,
    collect_tables,
)
from font.exchange.report import Absent, round_report
from font.files import atomic_write
from font.n_clusters import vote


def steps() -> list[str]:
    """What the centre may ask of a site: six steps, and each message that answers the centre."""
    answers = [f"answer {kind}" for kind in KINDS if message_of(kind).answer is not None]
    return ["fit", "key", "label", "assign", "refine", "results", *answers]


class Round(NamedTuple):
    """What came out of a round.

    `shared` is the last model of a refinement, if there was one; `results` are files, by site.
    """

    ensemble: Ensemble
    models: dict[str, ModelFile]
    tables: AddedTables
    absent: tuple[Absent, ...]
    report: str
    results: dict[str, bytes]
    shared: SharedFile | None = None


def run_round(
    ask: Ask,
    header: Header,
    *,
    out: Path,
    sites: Sequence[str] = (),
    states: Sequence[str] | None = None,
    n_clusters: int | None = None,
    min_count: int = MIN_COUNT,
    seed: int = 1,
    unequal: bool = False,
    refine: Rounds | None = None,
    results: bool = False,
    answers: Sequence[str] = (),
    secure: bool = False,
    absent: list[Absent] | None = None,
    **settings: Any,
) -> Round:
    """The centre's part of one round.

    Parameters
    ----------
    ask : step, files, senders → replies
        Sends the files to the senders (to everyone if None), and returns what came back in time.
    header : Header
        The centre's: what its files say of themselves, and what the sites' files must fit.
    out : folder
        Gets what was received (`models`, `labels`, `sums`; `keys`, `masked`), `ensemble.json`,
        the shared models of a refinement and `report.md`.
    sites : list of str, optional
        Those that should take part; others are refused, and who is not heard of is named.
    states : list of str, optional
        Of the study; otherwise what most sites' models have.
    n_clusters : int, optional
        Otherwise the sites vote.
    min_count : int
        The study's: files whose counts were rounded to multiples of less are refused.
    unequal : bool
        Let sites send different numbers of models; otherwise those are left out whose number is not
        the most common one.
    refine : int or "converge", optional
        Rounds of a refinement that follows, see `font.refine`; none unless given.
    results : bool
        Ask the sites for their results, of which the report is made.
    answers : list of str
        Kinds of messages with which the sites answer the ensemble, or the last shared model; they
        are kept in folders of these names.
    secure : bool
        Counts and sums come masked, and only what they add up to over all sites is read; at least
        three sites must take part. See `font.exchange.masked`.
    absent : list of Absent, optional
        Gets an entry as soon as a reply turns out to be missing or not to be usable.
    seed, settings
        For `Ensemble`: weights, distance, method.

    Notes
    -----
    With the same replies the files are the same, so that a round can be run again from its start.
    A site whose counts are missing still has its models in the ensemble, since the others have
    labelled with them by then.
    """
    centre = Centre(ask, header, out, min_count, [] if absent is None else absent)
    heard = collect_models(centre, sites, states, unequal)
    files = [data for _, parts in sorted(heard.values()) for data in parts]
    models = read_models(files, header, min_count=min_count)
    names = file_names([read_model(data).name for data in files], "model")
    for name, data in zip(names.values(), files, strict=True):
        atomic_write(out / "models" / name, data)
    parts: Iterable[CrossTables]
    key_files: KeyReplies = {}
    asked = going = heard
    if secure:
        key_files = collect_keys(centre, heard)
        asked = {sender: heard[sender] for sender in key_files}
        kind = "masked labels"
        request = MaskedRequest("label", files, kind, list_fingerprint(models), kind)
        masked, going = collect_masked(centre, request, asked, key_files)
        parts = [sum_of_labels(masked, models)]
    else:
        parts = collect_tables(centre, heard, files, models)
    ensemble, tables = combine(
        models, parts, n_clusters=n_clusters, seed=seed, unequal=unequal, **settings
    )
    sent = first = write_ensemble(out / "ensemble.json", ensemble, models, header)
    centre.ask_each("assign", [sent], asked)
    shared = None
    if refine is not None:
        shared, asked = _refine(centre, sent, going, key_files, refine)
        sent = shared.data
    for kind in answers:
        collect_answers(centre, kind, f"answer {kind}", asked, [sent])
    came: dict[str, bytes] = {}
    if results:
        basis = [first] if shared is None else [first, sent]
        came = collect_answers(centre, "results", "results", asked, basis)
    known = {site for site, _ in heard.values()} | {who.site for who in centre.absent}
    missing = [Absent(s, "fit", "sent no model that can be used") for s in sites if s not in known]
    centre.absent.extend(missing)
    text = round_report(
        ensemble,
        models,
        tables,
        study=header.study,
        absent=centre.absent,
        min_count=min_count,
        votes=site_votes(models).by_site if n_clusters is None else None,
    )
    atomic_write(out / "report.md", text.encode())
    return Round(ensemble, models, tables, tuple(centre.absent), text, came, shared)


def _refine(
    centre: Centre, sent: bytes, going: Heard, key_files: KeyReplies, rounds: Rounds
) -> tuple[SharedFile, Heard]:
    """Steps of sums and shared models, until the last; who misses a step is out of the next.

    With `key_files` the sums come masked. Returns the last model and who took part to the end.
    """
    check_rounds(rounds)
    header = centre.header
    while True:
        before = read_step(sent)
        if before.shared is not None and before.shared.last:
            centre.ask_each("refine", [sent], going)
            return replace(before.shared, data=sent), going
        path = centre.out / f"shared-{before.step}.json"
        if key_files:
            kind = "masked sums"
            request = MaskedRequest(
                "refine", [sent], kind, before.fingerprint, f"{kind}-{before.step}"
            )
            masked, going = collect_masked(centre, request, going, key_files)
            sent = share_masked(before, masked, header, rounds=rounds, path=path).data
        else:
            parts, going = collect_sums(centre, going, before, sent)
            sent = share(before, parts, header, rounds=rounds, path=path).data


class Votes(NamedTuple):
    """How many clusters the sites' models speak for: together, and by site."""

    n_clusters: int
    by_site: dict[str, int]


def site_votes(models: Mapping[str, ModelFile]) -> Votes:
    """The sites' vote on the number of clusters, each weighted by its patients; see `font.vote`.

    A site votes for the number of classes that most of its models say: of lowest BIC where the site
    compared, otherwise the model's own. A site votes only if it has `min_count` patients for each
    class of the largest number compared: otherwise its size decides. If no site has, all vote.
    """
    own: dict[str, list[ModelFile]] = {}
    for model in models.values():
        own.setdefault(model.site, []).append(model)
    votes = {site: vote([model.vote for model in part]) for site, part in own.items()}
    patients = {site: max(sum(m.content["patients"]) for m in part) for site, part in own.items()}
    enough = {
        site: max([*part[0].bic, part[0].n_classes]) * part[0].payload["min_count"]
        for site, part in own.items()
    }
    votes = {site: n for site, n in votes.items() if patients[site] >= enough[site]} or votes
    return Votes(vote(votes, {site: patients[site] for site in votes}), votes)


def combine(
    models: Mapping[str, ModelFile],
    parts: Iterable[CrossTables],
    *,
    n_clusters: int | None = None,
    seed: int = 1,
    unequal: bool = False,
    **settings: Any,
) -> tuple[Ensemble, AddedTables]:
    """The ensemble of models and cross-tables as they came in files, and the sum of the tables.

    The tables are added up as they come, and their order does not matter. All sites have equal
    weight, which the models of a site share; no site's patients count more than those of all the
    others together, and without `n_clusters` they vote (`site_votes`).

    Parameters
    ----------
    models : {name: ModelFile}
    parts : CrossTables of each site, such as an iterator that reads one file after the other
    n_clusters, seed, settings
        For `Ensemble`; unless given, the method is "latent", with fewer than three models of
        two or more classes "kmeans".
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
        raise InputError(
            f"the sites have different numbers of models ({some(numbers.items())}); have each send "
            "as many, or say that the study wants it so (unequal=True)."
        )
    if n_clusters is None:
        n_clusters = site_votes(models).n_clusters
    few = sum(model.n_classes > 1 for model in models.values()) < 3
    # two do not show whose error a difference is
    settings.setdefault("method", "kmeans" if few else "latent")
    ensemble = Ensemble(n_clusters, seed=seed, **settings)
    sites = {name: model.site for name, model in models.items()}
    return ensemble.fit(models, tables, sites), tables
