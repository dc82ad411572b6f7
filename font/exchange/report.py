"""What the centre writes about a round."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from font.cross_tables import AddedTables
from font.ensemble import Ensemble
from font.errors import option
from font.exchange.disclosure import MIN_COUNT
from font.exchange.fields import ALL_SITES, look_alikes
from font.exchange.messages.model import ModelFile


class Absent(NamedTuple):
    """A site or sender that did not take part in a step, and why."""

    site: str
    step: str
    reason: str


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
