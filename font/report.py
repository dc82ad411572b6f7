"""What the centre writes about a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from font.ensemble import Ensemble
from font.exchange import ModelFile
from font.labels import LabelPatterns
from font.privacy import MIN_COUNT


class Absent(NamedTuple):
    """A site or sender that did not take part in a step, and why."""

    site: str
    step: str
    reason: str


def round_report(
    ensemble: Ensemble,
    models: Mapping[str, ModelFile],
    patterns: LabelPatterns,
    *,
    study: str,
    absent: Iterable[Absent] = (),
    min_count: int = MIN_COUNT,
) -> str:
    """The round as Markdown: who took part, who is missing, weights, agreement, sizes.

    Numbers of patients below `min_count` do not show, nor the totals they could be worked out
    from.
    """
    sites = list(dict.fromkeys(model.site for model in models.values()))
    counted = {str(s): i for i, s in enumerate(patterns.sites)}
    sizes = ensemble.cluster_sizes_
    hidden = (sizes > 0) & (sizes < min_count)
    rows, totals = {}, patterns.counts.sum(axis=0)
    for site in sites:
        own = [model for model in models.values() if model.site == site]
        i = counted.get(site)
        told = i is not None and not hidden[patterns.sites[i]].any()
        rows[site] = {
            "models": len(own),
            "classes": ", ".join(map(str, sorted({model.n_classes for model in own}))),
            "patients counted": _shown(totals[i], min_count) if told else "–",
            "withheld, at most": "–" if i is None else _shown(patterns.withheld[i], min_count),
        }
    weights = pd.DataFrame(
        {
            "weight": ensemble.weights_.map("{:.3f}".format),
            "centred weight": ensemble.centred_weights_.map("{:.3f}".format),
        }
    )
    total = sizes.sum(axis=1)
    shown = sizes.map(lambda n: _shown(n, min_count))
    whole = ~hidden.any(axis=1)  # a total beside a hidden number would give it away
    shown["all"] = total.map("{:,}".format).where(whole, "–")
    shown["share"] = (total / total.sum()).map("{:.1%}".format).where(whole, "–")
    missing = [(who.site, _STEP_WORDS[who.step], who.reason.rstrip(".")) for who in absent]
    missing += [
        (site, _STEP_WORDS["label"], "no counts came")
        for site in sites
        if site not in counted and not any(site == who for who, *_ in missing)
    ]
    parts = [
        f"# Ensemble of the study {study}",
        f"{len(models)} models of {len(sites)} sites, {len(patterns):,} label patterns, "
        f"{ensemble.n_clusters_} clusters (method {ensemble.method}, weights {ensemble.weights}, "
        f"distance {ensemble.distance if isinstance(ensemble.distance, str) else 'function'}, "
        f"seed {ensemble.seed}).",
        "## Who took part",
        _markdown(pd.DataFrame(rows).T, "site"),
        "## Who is missing",
        _markdown(pd.DataFrame(missing, columns=["site", "step", "why"]).set_index("site"), "site")
        if missing
        else "Nobody.",
    ]
    silent = [site for site in sites if site not in counted]
    if silent:
        parts.append(
            f"No counts came from {', '.join(silent)}; their models took part all the same."
        )
    parts += [
        "## Patients by cluster and site",
        _markdown(shown, "cluster"),
        f"Numbers below {min_count} do not show, nor totals that would give them away. Withheld "
        "patients are not counted here; their sites place them with the ensemble file.",
        "## Weights of the models",
        _markdown(weights, "model"),
        "## Agreement between the models",
        "1 is full agreement; see `Ensemble.agreement_`.",
        _markdown(ensemble.agreement_.map("{:.3f}".format), "model"),
        "## What to be careful about",
        "\n".join(f"- {line}" for line in ensemble.cautions() if line),
    ]
    return "\n\n".join(parts) + "\n"


_STEP_WORDS = {"fit": "models", "label": "counts", "assign": "ensemble"}


def _shown(n: Any, min_count: int) -> str:
    return f"< {min_count}" if 0 < n < min_count else f"{int(n):,}"


def _markdown(table: pd.DataFrame, corner: str) -> str:
    """A table with columns of even width, to be read as text too."""
    cells = [[corner, *map(str, table.columns)]]
    cells += [
        [str(name), *map(str, row)] for name, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    cells = [[cell.replace("|", "/").replace("\n", " ") for cell in row] for row in cells]
    widths = np.array([[len(cell) for cell in row] for row in cells]).max(axis=0)
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
