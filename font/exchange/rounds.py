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
from font.exchange.files import (
    ModelFile,
    file_names,
    list_fingerprint,
    read_model,
    read_models,
    write_ensemble,
)
from font.exchange.privacy import MIN_COUNT
from font.exchange.replies import (
    Ask,
    Heard,
    KeyReplies,
    MaskedRequest,
    by_sender,
    collect_keys,
    collect_masked,
    collect_models,
    collect_sums,
    collect_tables,
    words,
)
from font.exchange.report import Absent, round_report
from font.exchange.secure import share_masked, sum_of_labels
from font.exchange.signatures import Keys
from font.exchange.sums import Rounds, SharedFile, check_rounds, read_step, share
from font.files import atomic_write
from font.n_clusters import vote

STEPS = ("fit", "key", "label", "assign", "refine")


class Round(NamedTuple):
    """What came out of a round; `shared` is the last model of a refinement, if there was one."""

    ensemble: Ensemble
    models: dict[str, ModelFile]
    tables: AddedTables
    absent: tuple[Absent, ...]
    report: str
    shared: SharedFile | None = None


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
    secure: bool = False,
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
        Gets what was received (`models`, `labels`, `sums`; `keys`, `masked`), `ensemble.json`,
        the shared models of a refinement and `report.md`.
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
    secure : bool
        Counts and sums come masked, and only what they add up to over all sites is read; at least
        three sites must take part. See `font.exchange.secure`.
    seed, settings
        For `Ensemble`: weights, distance, method.
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
    heard = collect_models(ask("fit", (), None), rules, sites, states, unequal, absent)
    if not heard:
        raise InputError(f"no site sent a model that can be used ({words(absent)}).")
    files = [data for _, parts in sorted(heard.values()) for data in parts]
    models = read_models(files, **rules)
    names = file_names([read_model(data).name for data in files], "model")
    for name, data in zip(names.values(), files, strict=True):
        atomic_write(out / "models" / name, data)
    parts: Iterable[CrossTables]
    key_files: KeyReplies = {}
    asked = going = heard
    if secure:
        key_files = collect_keys(ask("key", (), list(heard)), heard, rules, out / "keys", absent)
        asked = {sender: heard[sender] for sender in key_files}
        request = MaskedRequest("label", files, "labels", list_fingerprint(models), "masked-labels")
        masked, going = collect_masked(
            ask, request, asked, key_files, rules, out / "masked", absent
        )
        parts = [sum_of_labels(masked, models)]
    else:
        good = by_sender(ask("label", files, list(heard)), heard, "label", absent)
        parts = collect_tables(good, heard, models, rules, out / "labels", absent)
    ensemble, tables = combine(
        models, parts, n_clusters=n_clusters, seed=seed, unequal=unequal, **settings
    )
    about: dict[str, Any] = {"study": study, "round": round, "software": software}
    sent = write_ensemble(out / "ensemble.json", ensemble, models, signing_key=signing_key, **about)
    by_sender(ask("assign", [sent], list(asked)), asked, "assign", absent)
    shared = None
    if refine is not None:
        shared = _refine(
            *(ask, sent, going, key_files, rules, refine, out, absent, signing_key, software)
        )
    known = {site for site, _ in heard.values()}
    absent += [Absent(s, "fit", "sent no model that can be used") for s in sites if s not in known]
    text = round_report(
        ensemble,
        models,
        tables,
        study=study,
        absent=absent,
        min_count=min_count,
        votes=site_votes(models).by_site if n_clusters is None else None,
    )
    atomic_write(out / "report.md", text.encode())
    return Round(ensemble, models, tables, tuple(absent), text, shared)


def _refine(
    ask: Ask,
    sent: bytes,
    going: Heard,
    key_files: KeyReplies,
    rules: Mapping[str, Any],
    rounds: Rounds,
    out: Path,
    absent: list[Absent],
    signing_key: Path | None,
    software: str,
) -> SharedFile:
    """Steps of sums and shared models, until the last; who misses a step is out of the next.

    With `key_files` the sums come masked.
    """
    check_rounds(rounds)
    same: dict[str, Any] = {"study": rules["study"], "round": rules["round"]}
    about: dict[str, Any] = {"rounds": rounds, "software": software, "signing_key": signing_key}
    while True:
        before = read_step(sent, **same)
        if before.shared is not None and before.shared.last:
            by_sender(ask("refine", [sent], list(going)), going, "refine", absent)
            return before.shared
        path = out / f"shared-{before.step}.json"
        if key_files:
            name = f"masked-sums-{before.step}"
            request = MaskedRequest("refine", [sent], "sums", before.fingerprint, name)
            masked, going = collect_masked(
                ask, request, going, key_files, rules, out / "masked", absent
            )
            sent = share_masked(before, masked, path=path, **about, **same).data
        else:
            good = by_sender(ask("refine", [sent], list(going)), going, "refine", absent)
            parts, going = collect_sums(good, going, before, rules, out / "sums", absent)
            sent = share(before, parts, path=path, **about, **same).data


class Votes(NamedTuple):
    """How many clusters the sites' models speak for: together, and by site."""

    n_clusters: int
    by_site: dict[str, int]


def site_votes(models: Mapping[str, ModelFile]) -> Votes:
    """The sites' vote on the number of clusters, each weighted by its patients; see `font.vote`.

    A site votes for the number of classes that most of its models say: of lowest BIC where the site
    compared, else the model's own.
    """
    own: dict[str, list[ModelFile]] = {}
    for model in models.values():
        own.setdefault(model.site, []).append(model)
    votes = {site: vote([model.vote for model in part]) for site, part in own.items()}
    patients = {site: max(sum(m.content["patients"]) for m in part) for site, part in own.items()}
    return Votes(vote(votes, patients), votes)


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

    The tables are added up as they come, and their order does not matter. Sites count alike: the
    models of a site share its weight, no site's patients count more than those of all the others
    together, and without `n_clusters` they vote (`site_votes`).

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
