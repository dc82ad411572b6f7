"""A study in words: its result in five sentences, its methods, and what to be careful about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from font.metrics import agreement
from mmlca.checks import listed

if TYPE_CHECKING:
    from mmlca.compare import SiteDifferences
    from mmlca.sequences import Sequences
    from mmlca.study.analysis import Analysis
    from mmlca.study.config import Study

_WINDOWS = {1: "month", 3: "quarter", 6: "half-year", 12: "year"}
_METHODS = {
    "kmeans": "K-means on their rows",
    "kmeans-distance": "K-means with them as squared distances",
    "average": "average linkage",
    "complete": "complete linkage",
    "ward": "Ward's linkage",
    "spectral": "K-means on their principal coordinates",
}
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


# --- single words ------------------------------------------------------------------------


def group_word(study: Study) -> str:
    """Groups of an ensemble are clusters, those of a single model are classes."""
    return "cluster" if len(study.sites) > 1 else "class"


def groups_word(study: Study) -> str:
    return "clusters" if len(study.sites) > 1 else "classes"


def group_name(study: Study, group: Any) -> str:
    return f"{group_word(study)} {group}"


def window_name(study: Study) -> str:
    """What a window of the sequences is called."""
    if study.outputs.time is not None:
        return study.outputs.time.lower()
    if not study.from_records:
        return "time"
    rules = study.rules
    if rules.days is not None:
        return f"window of {rules.days:g} days"
    return _WINDOWS.get(rules.months, f"window of {rules.months} months")


def period(study: Study, data: Mapping[str, Sequences]) -> str:
    """How long the sequences last: "4 years", "30 months" or "16 times"."""
    n = max(part.shape[1] for part in data.values())
    if not study.from_records or study.rules.days is not None:
        return f"{n} {window_name(study).split(' ')[0]}s"
    months = n * study.rules.months
    return f"{months // 12} year{'s' * (months > 12)}" if months % 12 == 0 else f"{months} months"


def number_word(n: int) -> str:
    return _NUMBERS[n] if n < len(_NUMBERS) else f"{n:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


# --- headline numbers ----------------------------------------------------------------------


def headline(
    study: Study,
    found: Analysis,
    choice: pd.DataFrame | None,
    differences: SiteDifferences | None,
    truth: Mapping[str, float],
) -> pd.DataFrame:
    """The numbers of a study, one below the other: name, value, low, high, published."""
    rows: list[dict[str, Any]] = []

    def add(
        name: str, value: float, low: float = np.nan, high: float = np.nan, **more: Any
    ) -> None:
        rows.append({"name": name, "value": value, "low": low, "high": high, **more})

    clusters = found.clusters
    for site, data in found.sequences.items():
        add(f"patients, {site}", len(data))
        add(f"distinct sequences, {site}", data.n_distinct)
    n_clusters = len({c for part in clusters.values() for c in part.unique()})
    add("number of clusters", n_clusters)
    if choice is not None:
        votes = choice.loc[choice["chosen"], "classes"]
        add("share of pseudo-sites for this number", float((votes == n_clusters).mean()))
    add(
        "least starts that reached the maximum", min(m.n_replicated_ for m in found.models.values())
    )
    for site, part in clusters.items():
        size = part.value_counts()
        for cluster, n in sorted(size.items()):
            share = n / len(part) if n >= study.privacy.min_count else np.nan
            add(f"share of {group_name(study, cluster)}, {site}", share)
    if found.ensemble is not None:
        sure = np.concatenate(
            [found.ensemble.confidence(table)["agreement"] for table in found.labels.values()]
        )
        add("mean agreement of the models", float(sure.mean()))
        add("patients who change cluster with centred weights", _moved_by_centring(found))
        add("patients with agreement below 0.6", float((sure < 0.6).mean()))
    if differences is not None:
        for row in differences.norms.itertuples():
            kind = {"plain": "", "occupancy": " by occupancy"}[row.weighting]
            add(
                f"site difference, {row.quantity}{kind}, {row.membership}, {row.sites}",
                row.norm,
                row.low,
                row.high,
                chance=row.chance,
                published=published_norm(study, row),
            )
    for name, value in truth.items():
        add(f"adjusted Rand index against the truth, {name}", value)
    table = pd.DataFrame(rows)
    for column in ("chance", "published"):
        table[column] = table[column].astype(float) if column in table else np.nan
    return table


def published_norm(study: Study, row: Any) -> float | None:
    """The published counterpart of a row of `SiteDifferences.norms`."""
    if row.weighting != "plain":
        return None
    return getattr(study.published, f"{row.quantity}_{row.membership}", None)


def _moved_by_centring(found: Analysis) -> float:
    """Share of the patients who are in another cluster if weights are centred."""
    assert found.centred is not None
    pairs = [(found.clusters[s], found.centred.predict(table)) for s, table in found.labels.items()]
    a, b = (np.concatenate([pair[i] for pair in pairs]) for i in range(2))
    return float(1 - agreement(a, b)["matched"])


# --- texts ------------------------------------------------------------------------------


def five_sentences(
    study: Study,
    found: Analysis,
    choice: pd.DataFrame | None,
    described: pd.DataFrame,
    numbers: pd.DataFrame,
    influence: pd.DataFrame | None,
) -> list[str]:
    """The result, for someone who reads nothing else."""
    value = numbers.set_index("name")["value"]
    sizes = listed([f"{len(data):,} at {site}" for site, data in found.sequences.items()])
    total = sum(map(len, found.sequences.values()))
    k = int(value["number of clusters"])
    where = f" ({sizes})" if len(study.sites) > 1 else f" of {listed(list(study.sites))}"
    first = (
        f"Treatment courses of {total:,} {'made-up ' * study.synthetic}patients"
        f"{where} over up to {period(study, found.sequences)} fall into {number_word(k)} "
        f"{groups_word(study)}."
    )
    texts = [
        f"{group_name(study, c)} ({text.replace(';', ',')})"
        for c, text in zip(described["cluster"], described["description"], strict=True)
    ]
    second = f"They are: {'; '.join(texts)}."
    return [
        first,
        second,
        _choice_sentence(study, found, choice, k),
        *_last_two(found, value, influence),
    ]


def _choice_sentence(study: Study, found: Analysis, choice: pd.DataFrame | None, k: int) -> str:
    if choice is None:
        return f"The number of {groups_word(study)} was fixed beforehand."
    name = study.classes.criterion.upper()
    chosen = choice.loc[choice["chosen"], "classes"]
    tried = _span(study.classes.candidates)
    if len(chosen) == 1:
        return f"{name} chose {k} classes, among {tried}."
    where = "pseudo-sites" if len(chosen) > len(found.sequences) else "sites"
    return (
        f"{name} chose {k} classes at {int((chosen == k).sum())} of {len(chosen)} {where}, among "
        f"{tried}."
    )


def _last_two(found: Analysis, value: pd.Series, influence: pd.DataFrame | None) -> list[str]:
    sure = value.get("mean agreement of the models")
    if found.ensemble is None:
        (model,) = found.own.values()
        (data,) = found.sequences.values()
        probability = model.predict_proba(data).max(axis=1)
        return [
            f"Patients belong to their class with a mean probability of {probability.mean():.2f} "
            f"(entropy R² {model.entropy():.2f}).",
            f"The maximum was reached by {model.n_replicated_} of the starts that were followed.",
        ]
    assert influence is not None
    pairs = value[value.index.str.startswith("site difference, transition by occupancy,")]
    ensemble = pairs[pairs.index.str.contains(", ensemble, ", regex=False)]
    local = pairs[pairs.index.str.contains(", local, ", regex=False)]
    less = "less" if ensemble.mean() < local.mean() else "no less"
    most = influence["share"].max()
    return [
        f"On average {_percent(sure)} of the models' weight agrees on a patient's cluster, and "
        f"leaving a whole site out would move at most {_percent(most)} of the patients.",
        f"Within the clusters the sites differ {less} than with each site's own model "
        f"(transitions by occupancy {ensemble.mean():.3f} against {local.mean():.3f}).",
    ]


def methods(study: Study, found: Analysis, n_classes: int, version: str) -> str:
    """A paragraph for a paper, with the settings that were used."""
    data, rules = found.sequences, study.rules
    window = window_name(study)
    states = listed([str(s) for s in next(iter(data.values())).states])
    text = []
    if study.from_records:
        since = (
            ""
            if rules.first_on_or_after is None
            else f" on or after {rules.first_on_or_after.isoformat()}"
        )
        most = {"records": "was recorded most often", "days": "covered most days"}[rules.by]
        tie = {
            "first": "recorded first in it",
            "latest": "recorded last in it",
            "previous": "of the window before",
        }[rules.ties]
        fill = {
            "carry_forward": "the last class was carried forward",
            "carry_forward_max": f"the last class was carried forward at most {rules.max_carry} "
            f"times, then the state was {rules.none_state!r}",
            "missing": "the state was missing and summed over in the likelihood",
        }[rules.impute]
        text.append(
            f"We included patients whose first treatment was{since or ' at any time'} and followed "
            f"them from that day for up to {rules.max_windows} {window}s. In each {window} a "
            f"patient's state was the drug class ({states}) that {most}, of equals the one {tie}; "
            f"in a {window} without a record {fill}."
        )
    else:
        text.append(f"We analysed sequences of the states {states}.")
    start = f"(EM from {study.model.starts} starts, Dirichlet pseudo-count {study.model.prior:g})"
    resampled = len(data) > 1 and study.pseudo_sites.per_site
    if found.ensemble is None:
        text.append(f"We fitted a mixture of {n_classes} Markov chains {start}.")
    elif resampled:
        text.append(
            f"From each site we drew {study.pseudo_sites.per_site} resamples with replacement of "
            f"{100 * study.pseudo_sites.fraction:g} % of its patients and fitted a mixture of "
            f"{n_classes} Markov chains to each {start}."
        )
    else:
        text.append(f"At each site we fitted a mixture of {n_classes} Markov chains {start}.")
    if study.classes.number == "vote":
        who = "the majority of these data sets" if found.ensemble is not None else "the data"
        text.append(
            f"The number of classes was that with the smallest {study.classes.criterion.upper()} "
            f"for {who}, among {_span(study.classes.candidates)} (n: {study.classes.count})."
        )
    if found.ensemble is not None:
        text.append(
            f"The {len(found.models)} models were combined by federated one-shot ensemble "
            "clustering: every patient was labelled by every model, models were weighted "
            f"({study.ensemble.weights} weights) by the agreement of their "
            f"{study.ensemble.distance.replace('euclid', 'Euclid')} class distances, and the "
            f"weighted distances were clustered ({_METHODS[study.ensemble.method]}) into "
            f"{n_classes} clusters, from counts of label patterns alone."
        )
        text.append(
            "Differences between sites are Frobenius norms of differences of empirical transition "
            "matrices, averaged over clusters, plain and weighted by occupancy, with intervals "
            f"from {study.outputs.bootstrap} bootstrap samples of patients."
        )
    text.append(f"All was done with mmlca {version}, seed {study.seed}.")
    return " ".join(text)


def _span(numbers: tuple[int, ...]) -> str:
    tried = sorted(set(numbers))
    if len(tried) > 2 and tried == list(range(tried[0], tried[-1] + 1)):
        return f"{tried[0]} to {tried[-1]}"
    return listed([str(k) for k in tried])


def careful(
    study: Study,
    found: Analysis,
    choice: pd.DataFrame | None,
    differences: SiteDifferences | None,
    numbers: pd.DataFrame,
    warned: list[str],
) -> list[str]:
    """What a reader should know before believing the numbers."""
    value = numbers.set_index("name")["value"]
    notes = []
    if study.synthetic:
        notes.append(
            "The patients are made up. The numbers show what the method does, and nothing about "
            "any hospital."
        )
    once = [name for name, m in {**found.models, **found.own}.items() if m.n_replicated_ < 2]
    if once:
        notes.append(
            f"The maximum of {len(once)} model{'s' * (len(once) > 1)} ({listed(once[:5])}) was "
            "reached by one start only; a better one may exist: raise model.starts."
        )
    if choice is not None:
        k, chosen = int(value["number of clusters"]), choice.loc[choice["chosen"], "classes"]
        if (chosen != k).any():
            others = chosen[chosen != k].value_counts()
            notes.append(
                "Not all data sets chose the same number of classes: "
                + listed([f"{n} chose {c}" for c, n in others.items()])
                + "; see how much another number changes with `mmlca study sensitivity`."
            )
        if len(found.models) and k == choice["classes"].max() > 1:
            notes.append(f"The largest number of classes tried ({k}) was chosen; try larger ones.")
    for site, data in found.sequences.items():
        windows = getattr(data, "settings", {}).get("windows")
        if windows and windows["followed_up"]:
            empty, tied = (windows[w] / windows["followed_up"] for w in ("without_record", "tied"))
            what = "filled in" if study.rules.impute != "missing" else "left missing"
            notes.append(
                f"At {site} {100 * empty:.1f} % of the {window_name(study)}s had no record and "
                f"were {what}; {100 * tied:.1f} % were tied."
            )
    if found.ensemble is not None:
        notes += found.ensemble.cautions()
        few = value["patients with agreement below 0.6"]
        notes.append(
            f"For {100 * few:.1f} % of the patients the models agree by less than 0.6; the folder "
            "patients says for whom."
        )
    if differences is not None:
        notes += differences.summary().split("\n")[-2:]
        notes.append(
            "The intervals of the site differences take the clusters as given; the uncertainty of "
            "the clustering is not in them."
        )
    if study.published is not None:
        notes.append(
            "The published numbers come from other patients; they stand beside these for "
            "orientation and are not a target."
        )
    return notes + warned
