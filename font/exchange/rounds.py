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

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from font.checks import some
from font.ensemble import Ensemble
from font.errors import InputError, option
from font.exchange.disclosure import MIN_COUNT
from font.exchange.envelope import Header, file_names
from font.exchange.fields import ALL_SITES, look_alikes
from font.exchange.messages.ensemble import write_ensemble
from font.exchange.messages.labels import sum_of_labels
from font.exchange.messages.model import ModelFile, list_fingerprint, read_model, read_models
from font.exchange.messages.refinement import (
    Rounds,
    SharedFile,
    check_rounds,
    read_step,
    share,
    share_masked,
)
from font.exchange.registry import KINDS, message_of
from font.exchange.replies import (
    Absent,
    Ask,
    Centre,
    Heard,
    KeyReplies,
    MaskedRequest,
)
from font.files import atomic_write
from font.labels import AddedTables, CrossTables
from font.stability import vote


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
        The centre's.
    out : folder
        Gets what was received (`models`, `labels`, `sums`; `keys`, `masked`), `ensemble.json`,
        the shared models of a refinement and `report.md`.
    sites : list of str, optional
        Those that should take part; others are refused, and who is not heard of is named.
    states : list of str, optional
        Of the study; otherwise what most sites' models have.
    n_clusters : int, optional
        Otherwise the sites vote.
    unequal : bool
        Let sites send different numbers of models; otherwise those are left out whose number is not
        the most common one.
    refine : int or "converge", optional
        Rounds of a refinement that follows, see `font.refine`; none unless given.
    results : bool
        Ask the sites for their results, of which the report is made.
    answers : list of str
        Kinds of messages with which the sites answer the ensemble, or the last shared model.
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
    heard = centre.collect_models(sites, states, unequal)
    files = [data for _, parts in sorted(heard.values()) for data in parts]
    models = read_models(files, header, min_count=min_count)
    names = file_names([read_model(data).name for data in files], "model")
    for name, data in zip(names.values(), files, strict=True):
        atomic_write(out / "models" / name, data)
    parts: Iterable[CrossTables]
    key_files: KeyReplies = {}
    asked = going = heard
    if secure:
        key_files = centre.collect_keys(heard)
        asked = {sender: heard[sender] for sender in key_files}
        kind = "masked labels"
        request = MaskedRequest("label", files, kind, list_fingerprint(models), kind)
        masked, going = centre.collect_masked(request, asked, key_files)
        parts = [sum_of_labels(masked, models)]
    else:
        parts = centre.collect_tables(heard, files, models)
    ensemble, tables = combine(
        models, parts, n_clusters=n_clusters, seed=seed, unequal=unequal, **settings
    )
    sent = first = write_ensemble(out / "ensemble.json", ensemble, models, header)
    centre.ask_each("assign", [sent], asked)
    shared = None
    if refine is not None:
        sent, shared, asked = _refine(centre, sent, going, key_files, refine)
    for kind in answers:
        centre.collect_answers(kind, f"answer {kind}", asked, [sent])
    came: dict[str, bytes] = {}
    if results:
        basis = [first] if shared is None else [first, sent]
        came = centre.collect_answers("results", "results", asked, basis)
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
) -> tuple[bytes, SharedFile, Heard]:
    """Steps of sums and shared models, until the last; who misses a step is out of the next.

    With `key_files` the sums come masked. Returns the last file, its model, and who took part to
    the end.
    """
    check_rounds(rounds)
    header = centre.header
    while True:
        before = read_step(sent)
        if before.shared is not None and before.shared.last:
            centre.ask_each("refine", [sent], going)
            return sent, before.shared, going
        path = centre.out / f"shared-{before.step}.json"
        if key_files:
            kind = "masked sums"
            request = MaskedRequest(
                "refine", [sent], kind, before.fingerprint, f"{kind}-{before.step}"
            )
            masked, going = centre.collect_masked(request, going, key_files)
            sent = share_masked(before, masked, header, rounds=rounds, path=path).data
        else:
            parts, going = centre.collect_sums(going, before, sent)
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


# --- the report of a round --------------------------------------------------------------------


def round_report(
    ensemble: Ensemble,
    models: Mapping[str, ModelFile],
    tables: AddedTables,
    *,
    study: str,
    absent: Iterable[Absent] = (),
    min_count: int = MIN_COUNT,
    votes: Mapping[str, int] | None = None,
) -> str:
    """The round as Markdown: who took part, who is missing, weights, agreement, sizes.

    Numbers of patients are estimates from rounded counts; those below `min_count` do not show.
    `votes` are the sites' own numbers of clusters, if they decided about it.
    """
    sites = list(dict.fromkeys(model.site for model in models.values()))
    patients = tables.n_patients()
    without = [str(site) for site in patients.index if site not in sites]  # they sent no model
    summed = without == [ALL_SITES]
    total = ensemble.cluster_sizes_.sum(axis=1)
    silent = [] if summed else [site for site in sites if site not in patients]
    rounded = "after they were added up, under masks" if summed else "before they left their sites"
    weights = pd.DataFrame(
        {
            "weight": ensemble.weights_.map("{:.3f}".format),
            "centred weight": ensemble.centred_weights_.map("{:.3f}".format),
        }
    )
    cautions = [
        *_cautions(sites, patients),
        *_small_clusters(total, min_count),
        *ensemble.cautions(),
    ]
    parts = [
        f"# Ensemble of the study {_plain(study)}",
        f"{len(models)} models of {len(sites)} sites, {ensemble.n_clusters_} clusters (method "
        f"{ensemble.method}, weights {ensemble.weights}, distance "
        f"{ensemble.distance if isinstance(ensemble.distance, str) else 'function'}, seed "
        f"{ensemble.seed}). {_number_in_words(votes)}",
        "## Who took part",
        _members([*sites, *without], models, patients, min_count),
        "## Who is missing",
        _missing(absent, silent),
        "## Patients by cluster and site",
        _sizes(ensemble.cluster_sizes_, total, min_count),
        f"These numbers are estimates from counts that were rounded at random {rounded}; those "
        f"below {min_count} do not show. Each site knows its own exactly when it has placed its "
        "patients with the ensemble file.",
        "## Weights of the models",
        _markdown(weights, "model"),
        "## Agreement between the models",
        "1 is full agreement; see `Ensemble.agreement_`.",
        _markdown(ensemble.agreement_.map("{:.3f}".format), "model"),
        "## What to be careful about",
        "\n".join(f"- {_plain(line)}" for line in cautions),
    ]
    return "\n\n".join(parts) + "\n"


def _members(
    sites: list[str], models: Mapping[str, ModelFile], patients: pd.Series, min_count: int
) -> str:
    """Each site's models, their classes and its patients."""
    rows = {}
    for site in sites:
        own = [model for model in models.values() if model.site == site]
        rows[site] = {
            "models": len(own),
            "classes": ", ".join(map(str, sorted({model.n_classes for model in own}))) or "–",
            "patients, about": _shown(patients[site], min_count) if site in patients else "–",
        }
    return _markdown(pd.DataFrame(rows).T, "site")


def _missing(absent: Iterable[Absent], silent: list[str]) -> str:
    """Who did not take part in a step, and why; `silent` are the sites that sent no counts."""
    rows = [(who.site, _in_words(who.step), who.reason.rstrip(".")) for who in absent]
    named = {site for site, *_ in rows}
    rows += [(s, _in_words("label"), "no counts came") for s in silent if s not in named]
    table = pd.DataFrame(rows, columns=["site", "step", "why"]).set_index("site")
    text = _markdown(table, "site") if rows else "Nobody."
    if not silent:
        return text
    names = _plain(", ".join(silent))
    return f"{text}\n\nNo counts came from {names}; their models took part all the same."


def _sizes(sizes: pd.DataFrame, total: pd.Series, min_count: int) -> str:
    """Patients by cluster and site."""
    shown = sizes.map(lambda n: _shown(n, min_count))
    shown["all"] = total.map(lambda n: _shown(n, min_count))
    shown["share"] = (total / total.sum()).map("{:.1%}".format)
    shown.index = shown.index + 1
    return _markdown(shown, "cluster")


def _number_in_words(votes: Mapping[str, int] | None) -> str:
    if votes is None:
        return "The number of clusters was given to the centre."
    shown = ", ".join(f"{_plain(site)} {number}" for site, number in votes.items())
    return (
        f"The number of clusters is the sites' vote ({shown}), in which a site counts as its "
        "patients, but not more than all others together; of equals the larger number wins. Sites "
        "with too few patients for the numbers that were compared do not vote."
    )


def _small_clusters(total: pd.Series, min_count: int) -> list[str]:
    """A sentence on clusters with few patients at all sites together, or with none."""
    small = total.index[total < min_count] + 1
    if not len(small):
        return []
    noun, have = ("Cluster", "has") if len(small) == 1 else ("Clusters", "have")
    names = f"{noun} {', '.join(map(str, small))}"
    least = "no patients" if not total[small - 1].any() else f"fewer than {min_count} patients"
    fewer = max(len(total) - len(small), 1)
    return [
        f"{names} {have} {least} at all sites together, so that the models do not "
        f"distinguish {len(total)} groups of patients; combine again with "
        f"{option('n_clusters', fewer)}."
    ]


def _cautions(sites: list[str], patients: pd.Series) -> list[str]:
    lines = [
        f"{a!r} and {b!r} look alike: make sure that they are two sites."
        for a, b in look_alikes(sites)
    ]
    others = patients.sum() - patients
    large = [str(site) for site in patients.index[(patients > others) & (others > 0)]]
    if large:
        lines.append(
            f"{large[0]!r} has more patients than all other sites together; its counts were scaled "
            "down to theirs, so that no site decides alone."
        )
    return lines


def _in_words(step: str) -> str:
    """What a step is called in the report."""
    words = {
        "fit": "models",
        "key": "keys",
        "label": "counts",
        "assign": "ensemble",
        "refine": "refinement",
    }
    return words.get(step, step.removeprefix("answer "))


def _shown(n: Any, min_count: int) -> str:
    return f"< {min_count}" if 0 < n < min_count else f"{int(n):,}"


def _plain(text: str) -> str:
    """A text that Markdown shows as it is: no markup, no HTML, no links, on one line."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)
    text = re.sub(r"[\\`*\[\]|~]|<(?=\S)", r"\\\g<0>", text)
    return re.sub(r"(?i)\b(https?|ftp|mailto|www)([:.])", r"\1\\\2", text)


def _markdown(table: pd.DataFrame, corner: str) -> str:
    """A table with columns of even width, to be read as text too."""
    cells = [[corner, *map(str, table.columns)]]
    cells += [
        [str(name), *map(str, row)] for name, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    cells = [[_plain(cell) for cell in row] for row in cells]
    widths = np.array([[len(cell) for cell in row] for row in cells]).max(axis=0)
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
