"""What a study would have found under other choices: the same analysis many times."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from font.metrics import agreement, match_labels
from mmlca.compare import site_differences
from mmlca.study import analysis, data, words
from mmlca.study.analysis import Analysis
from mmlca.study.config import Study
from mmlca.study.results import Progress, make_key, open_results, plain_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 500
_DAYS_A_MONTH = 30.4375
_RULES = ("months", "ties", "by", "impute", "max_carry")
_NAMES = {
    "months": "window (months)",
    "ties": "ties",
    "by": "counting",
    "impute": "empty windows",
    "max_carry": "carried at most",
    "classes": "classes",
    "per_site": "resamples a site",
    "fraction": "size of a resample",
    "weights": "weights",
    "seeds": "seed",
}


class Variant(NamedTuple):
    """A study with some choices made otherwise; `choices` names them."""

    choices: dict[str, Any]
    study: Study

    @property
    def name(self) -> str:
        return ", ".join(f"{_NAMES[k]}: {_text(v)}" for k, v in self.choices.items())


def run_sensitivity(
    study: Study, out: str | os.PathLike[str], *, progress: Progress | None = None
) -> dict[str, Any]:
    """Repeat a study under the alternatives of its `[sensitivity]`, and compare.

    The number of classes is that of the main analysis unless it is what varies, and windows of
    another length cover the same time. Each analysis is kept, so that an interrupted run goes on.

    Parameters
    ----------
    study : Study
        From `read_study`.
    out : path
        The folder gets `sensitivity.csv` (adjusted Rand index of each analysis against the main
        one, on the patients that both have), `numbers.csv` (every headline number of each),
        `ranges.csv` (their smallest and largest value, and where) and `sensitivity.png`.
    progress : function (text, share), optional

    Returns
    -------
    dict
        `n` analyses, `failed` ones, the `summary` in sentences, and the `ranges`.
    """
    tell = progress or (lambda text, share: None)
    tell("Reading", 0.0)
    results, key = open_results(study, out)
    sources = {site: data.read_source(study, site) for site in study.sites}
    key = make_key(key, study.records, study.plain()["sites"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the main analysis has said them
        sequences = data.build_sites(study, sources)
        names = ["choose"]
        with results.step("choose", make_key(key, study.classes, _settings(study))) as needed:
            if needed:
                tell("Choosing the number of classes", 0.02)
                results.json("choice.json", _chosen(study, sequences))
        n_classes = int(results.read_json("choice.json"))
        main_study = study.changed(classes={"number": n_classes})
        found = variants(main_study)
        key = make_key(key, _settings(main_study), study.privacy)  # all are compared with it
        tell("Main analysis", 0.1)
        main = _analyse(main_study, sequences)
        rows, numbers = [], {"main": _numbers(main_study, main)}
        for i, variant in enumerate(found):
            tell(variant.name, 0.1 + 0.85 * i / len(found))
            name = f"variants/{i + 1:03d}.json"
            names.append(name)
            with results.step(name, make_key(key, _settings(variant.study))) as needed:
                if needed:
                    results.json(name, _compared(variant.study, main, sources))
            stored = results.read_json(name)
            rows.append({**_labels(variant), **stored["compared"]})
            numbers[variant.name] = stored["numbers"]
    table = pd.DataFrame(rows)
    factors = [name for name in _NAMES.values() if name in table]
    table = table[[c for c in table if c not in factors] + factors]
    ranges = _ranges(numbers)
    with results.step("tables", make_key(key, rows, numbers)) as needed:
        if needed:
            results.table("sensitivity.csv", table)
            results.table("numbers.csv", pd.DataFrame(numbers).rename_axis("name").reset_index())
            results.table("ranges.csv", ranges)
            tell("Drawing", 0.97)
            results.write("sensitivity.png", _picture(table, study))
    results.keep_only([*names, "tables"])
    results.finish()
    tell("Done", 1.0)
    failed = table[table["error"].notna()] if "error" in table else table[:0]
    return {
        "n": len(table),
        "failed": len(failed),
        "summary": _summary(table, failed),
        "ranges": plain_records(ranges),
    }


def variants(study: Study) -> list[Variant]:
    """The alternatives of a study, one at a time or all combinations."""
    section = study.sensitivity
    levels = {
        factor: [v for v in dict.fromkeys(getattr(section, factor)) if v != _now(study, factor)]
        for factor in _NAMES
        if study.from_records or factor not in _RULES
    }
    if not isinstance(study.classes.number, int):
        raise ValueError("the number of classes must be chosen first.")
    if len(study.sites) == 1 or not study.pseudo_sites.per_site:
        levels |= {"per_site": [], "fraction": []}
    if len(study.sites) == 1:
        levels["weights"] = []
    if not section.crossed:
        chosen = [{factor: v} for factor, values in levels.items() for v in values]
    else:
        n = int(np.prod([1 + len(values) for values in levels.values()], dtype=float)) - 1
        if n > _MOST * 4:
            raise ValueError(
                f"sensitivity.crossed asks for {n:,} analyses, at most {_MOST} are done; shorten "
                "the lists of [sensitivity], or set some to []."
            )
        options = [[None, *values] for values in levels.values()]
        chosen = [
            {f: v for f, v in zip(levels, row, strict=True) if v is not None}
            for row in itertools.product(*options)
        ]
    made: dict[str, Variant] = {}
    for choices in filter(None, chosen):
        other = _changed(study, choices)
        made.setdefault(make_key(_settings(other)), Variant(choices, other))
    made.pop(make_key(_settings(study)), None)
    if not made:
        raise ValueError("[sensitivity] names nothing that differs from the study itself.")
    if len(made) > _MOST:
        raise ValueError(
            f"sensitivity.crossed asks for {len(made):,} analyses, at most {_MOST} are done; "
            "shorten the lists of [sensitivity], or set some to []."
        )
    return list(made.values())


# --- variants ----------------------------------------------------------------------------


def _now(study: Study, factor: str) -> Any:
    if factor in _RULES:
        return getattr(study.rules, factor) if factor != "max_carry" else None
    if factor == "classes":
        return study.classes.number
    if factor == "weights":
        return study.ensemble.weights
    return study.seed if factor == "seeds" else getattr(study.pseudo_sites, factor)


def _changed(study: Study, choices: Mapping[str, Any]) -> Study:
    """The study with other choices, checked like a study file."""
    settings = study.model_dump()
    for factor, value in choices.items():
        if factor == "months":
            rules = study.rules
            length = rules.months if rules.days is None else rules.days / _DAYS_A_MONTH
            settings["rules"]["max_windows"] = max(round(length * rules.max_windows / value), 1)
            settings["rules"]["days"] = None
        if factor == "max_carry" and "impute" not in choices:
            settings["rules"]["impute"] = "carry_forward_max"
        if factor in _RULES:
            settings["rules"][factor] = value
        elif factor == "classes":
            settings["classes"]["number"] = value
        elif factor == "weights":
            settings["ensemble"]["weights"] = value
        elif factor == "seeds":
            settings["seed"] = value
        else:
            settings["pseudo_sites"][factor] = value
    if settings["rules"]["impute"] != "carry_forward_max":
        settings["rules"]["max_carry"] = study.rules.max_carry  # it does nothing there
    return study.validated(settings)


def _settings(study: Study) -> list[Any]:
    """What an analysis depends on."""
    return [
        study.seed,
        study.rules,
        study.classes.number,
        study.pseudo_sites,
        study.model,
        study.ensemble,
    ]


def _text(value: Any) -> str:
    return str(value).replace("_", " ")


def _labels(variant: Variant) -> dict[str, Any]:
    return {"variant": variant.name} | {_NAMES[k]: v for k, v in variant.choices.items()}


# --- analyses ----------------------------------------------------------------------------


def _chosen(study: Study, sequences: Mapping[str, Any]) -> int:
    if isinstance(study.classes.number, int):
        return study.classes.number
    resamples = analysis.resample(study, sequences)
    return analysis.chosen_number(study, analysis.compare_numbers(study, resamples))


def _analyse(study: Study, sequences: Mapping[str, Any]) -> Analysis:
    n_classes = study.classes.number
    assert isinstance(n_classes, int)
    resamples = analysis.resample(study, sequences)
    models = analysis.fit_models(study, {**resamples, **sequences}, n_classes)
    own = {site: models[site] for site in sequences}
    used = {name: models[name] for name in resamples}
    return analysis.combine(study, sequences, used, own, n_classes)


def _compared(study: Study, main: Analysis, sources: Mapping[str, Any]) -> dict[str, Any]:
    """One other analysis: its agreement with the main one, and its numbers."""
    try:
        found = _analyse(study, data.build_sites(study, sources))
    except ValueError as error:
        return {"compared": {"error": str(error)}, "numbers": {}}
    pairs = {}
    for site, clusters in main.clusters.items():
        both = clusters.index.intersection(found.clusters[site].index)
        pairs[site] = clusters.loc[both].to_numpy(), found.clusters[site].loc[both].to_numpy()
    a, b = (np.concatenate([pair[i] for pair in pairs.values()]) for i in range(2))
    compared = {f"ari, {site}": agreement(*pair)["ari"] for site, pair in pairs.items()}
    if len(pairs) > 1:
        compared["ari, all"] = agreement(a, b)["ari"]
    compared |= {"patients": sum(map(len, found.clusters.values())), "in both": len(a)}
    return {"compared": compared, "numbers": _numbers(study, _renamed(found, match_labels(a, b)))}


def _renamed(found: Analysis, partner: Mapping[Any, Any]) -> Analysis:
    """The clusters under the names of those of the main analysis that they match."""
    used = {int(name) for name in partner.values() if name is not None}
    names = {int(k): int(v) for k, v in partner.items() if v is not None}
    free = (n for n in itertools.count(1) if n not in used)
    for cluster in sorted({int(c) for part in found.clusters.values() for c in part.unique()}):
        if cluster not in names:
            names[cluster] = next(free)
    clusters = {site: part.astype(int).map(names) for site, part in found.clusters.items()}
    return replace(found, clusters=clusters)


def _numbers(study: Study, found: Analysis) -> dict[str, float]:
    differences = None
    if found.ensemble is not None:
        differences = site_differences(found.sequences, found.clusters, models=found.own, n_boot=0)
    true = data.agreement_with_truth(study, found)
    table = words.headline(study, found, None, differences, true)
    return {str(n): float(v) for n, v in zip(table["name"], table["value"], strict=True)}


# --- summaries ---------------------------------------------------------------------------


def _ranges(numbers: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Each number of the main analysis with its smallest and largest value over all."""
    table = pd.DataFrame(numbers).dropna(how="all")
    return pd.DataFrame(
        {
            "name": table.index,
            "main": table["main"].to_numpy(),
            "smallest": table.min(axis=1).to_numpy(),
            "largest": table.max(axis=1).to_numpy(),
            "smallest with": table.idxmin(axis=1).to_numpy(),
            "largest with": table.idxmax(axis=1).to_numpy(),
        }
    )


def _measure(table: pd.DataFrame) -> str:
    """The column that tells how much an analysis agrees with the main one."""
    return "ari, all" if "ari, all" in table else next(c for c in table if c.startswith("ari, "))


def _summary(table: pd.DataFrame, failed: pd.DataFrame) -> list[str]:
    done = table[table["error"].isna()] if "error" in table else table
    if not len(done):
        return [f"None of the {len(table)} other analyses could be done: {table['error'].iloc[0]}"]
    value = done[_measure(done)]
    low, high = value.idxmin(), value.idxmax()
    lines = [
        f"{len(done)} other analyses agree with the main one by an adjusted Rand index of "
        f"{value.median():.3f} (median; {value.min():.3f} to {value.max():.3f}).",
        f"The choice that changes most: {done['variant'][low]} ({value[low]:.3f}); least: "
        f"{done['variant'][high]} ({value[high]:.3f}).",
    ]
    if len(failed):
        lines.append(
            f"{len(failed)} could not be done, the first ({failed['variant'].iloc[0]}) because: "
            f"{failed['error'].iloc[0]}"
        )
    return lines


def _picture(table: pd.DataFrame, study: Study) -> bytes:
    from mmlca.study.figures import to_png

    draw = plot_pairs if study.sensitivity.crossed else plot_variants
    return to_png(lambda: draw(table), study.outputs.dpi)


def plot_variants(table: pd.DataFrame) -> Figure:
    """Heat map: analyses by sites, the adjusted Rand index against the main analysis."""
    columns = [c for c in table if c.startswith("ari, ")]
    values = table[columns].to_numpy(float)
    names = list(table["variant"])
    return _heat_map(values, names, [c.removeprefix("ari, ") for c in columns], square=False)


def plot_pairs(table: pd.DataFrame) -> Figure:
    """Heat map for combinations: the mean index over all analyses with both of two choices."""
    levels = [
        (factor, level)
        for factor in _NAMES.values()
        if factor in table
        for level in table[factor].dropna().unique()
    ]
    value = table[_measure(table)]
    has = {pair: table[pair[0]] == pair[1] for pair in levels}
    values = np.array([[value[has[a] & has[b]].mean() for b in levels] for a in levels])
    names = [f"{factor}: {_text(level)}" for factor, level in levels]
    return _heat_map(values, names, names, square=True)


def _heat_map(
    values: np.ndarray[Any, Any], rows: Sequence[str], columns: Sequence[str], *, square: bool
) -> Figure:
    import matplotlib.pyplot as plt

    width = 2.6 + (0.42 if square else 0.62) * len(columns)
    figure, ax = plt.subplots(
        figsize=(max(width, 4.2), 1.1 + 0.24 * len(rows) + 1.2 * square), layout="constrained"
    )
    low = min(0.5, float(np.nanmin(values)) if np.isfinite(values).any() else 0.5)
    image = ax.imshow(values, cmap="Blues", vmin=low, vmax=1, aspect="auto")
    for i, j in np.ndindex(*values.shape):
        text = "–" if np.isnan(values[i, j]) else f"{values[i, j]:.2f}"
        dark = values[i, j] > low + 0.55 * (1 - low)
        ax.text(
            j, i, text, ha="center", va="center", fontsize=6, color="white" if dark else "black"
        )
    ax.set_yticks(range(len(rows)), rows, fontsize=7)
    ax.set_xticks(range(len(columns)), columns, fontsize=7, rotation=90 if square else 0)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    ax.grid(which="minor", axis="y", color="white", linewidth=1)
    ax.tick_params(which="minor", length=0)
    bar = figure.colorbar(image, ax=ax, shrink=0.6 if len(rows) > 8 else 1.0, aspect=25)
    bar.set_label("Adjusted Rand index against the main analysis", fontsize=6.5)
    bar.ax.tick_params(labelsize=6)
    return figure
