"""Sensitivity of a study: the same analysis under other choices, compared with the main one.

It is one file because the choices, their runs and their comparison share the list of variants.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from font.errors import InputError
from font.files import hold
from font.metrics import compare_clusterings, match_labels
from mmlca.sequences.forms import PLAIN
from mmlca.study import analysis as analyse
from mmlca.study import site_data
from mmlca.study.analysis import Analysis
from mmlca.study.cache import (
    FOR_REPORT,
    Progress,
    make_key,
    open_results,
    plain_records,
    settings_key,
)
from mmlca.study.combined import combine_in_memory, site_patients
from mmlca.study.headline import headline
from mmlca.study.processes import Processes
from mmlca.study.release import rounding_of, secret_key
from mmlca.study.report.exports import to_pictures
from mmlca.study.results.groups import site_differences_of
from mmlca.study.results.registry import FOR_HEADLINE, site_results
from mmlca.study.results.shown_courses import sizes_of
from mmlca.study.results.site import ENSEMBLE, ONLY
from mmlca.study.settings import FACTORS, Study
from mmlca.study.words import in_words
from mmlca.tables.disclosure import EVERYONE, hides, is_small

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 500
_DAYS_PER_MONTH = 30.4375
_INDEX = "adjusted_rand_index"
_DIGITS = 2  # decimals where small numbers are hidden


class Variant(NamedTuple):
    """The study with some choices changed; `choices` names them."""

    choices: dict[str, Any]
    study: Study

    @property
    def name(self) -> str:
        return ", ".join(f"{FACTORS[k].label}: {in_words(v)}" for k, v in self.choices.items())


@dataclass(frozen=True)
class Outcome:
    """One other analysis, compared with the main one.

    Parameters
    ----------
    index : {site: float}
        Adjusted Rand index against the main analysis, on the patients that both have; "all" is
        that of all sites together.
    patients, in_both : numbers
        Patients of this analysis, and those that the main one has too (None: not shown).
    numbers : {name: value}
        Its headline numbers.
    error : str
        Why it could not be done; then everything else is empty.
    """

    index: dict[str, float] = field(default_factory=dict)
    patients: float = 0
    in_both: float | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    error: str = ""


def run_sensitivity(
    study: Study, out: str | os.PathLike[str], *, progress: Progress | None = None
) -> dict[str, Any]:
    """Repeat a study under the alternatives of its `[sensitivity]`, and compare.

    The number of classes is that of the main analysis unless it is varied itself, and windows of
    another length cover the same time. Each analysis is kept, so that an interrupted run continues
    where it stopped.

    Parameters
    ----------
    study : Study
        From `read_study`.
    out : path
        The folder gets `sensitivity.csv` (adjusted Rand index of each analysis against the main
        one, on the patients that both have), `numbers.csv` (every headline number of each, with
        numbers of patients as the release shows them; under a threshold others have two decimals),
        `ranges.csv` (the smallest and largest value of each number, and the analysis that gave
        it) and `sensitivity.png`.
    progress : function (text, share), optional

    Returns
    -------
    dict
        `n` analyses, `failed` ones, the `summary` in sentences, and the `ranges`.
    """
    with hold(out), Processes(study.n_jobs) as processes:
        return _run_variants(study, out, progress or (lambda text, share: None), processes)


def _run_variants(
    study: Study, out: str | os.PathLike[str], show: Progress, processes: Processes
) -> dict[str, Any]:
    show("Reading", 0.0)
    results, key = open_results(study, out)
    sources = {site: site_data.read_source(study, site) for site in study.sites}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `run_study` reports them
        sequences = site_data.build_sites(study, sources)
        if hashes := site_data.database_hashes(sources, sequences):
            key = make_key(key, hashes)
        with results.step("choose", _key_of(study, key)) as needed:
            if needed:
                show("Choosing the model", 0.02)
                choice = _choose(study, sequences, processes)
                results.json("choice.json", choice)
            else:
                choice = results.read_json("choice.json")
        main_study = study.changed(**choice)
        others = variants(main_study)
        key = _key_of(main_study, key)  # all are compared with it
        show("Main analysis", 0.1)
        main = _analyse(main_study, sequences, processes)
        outcomes = []
        files = [f"variants/{i:03d}.json" for i in range(1, len(others) + 1)]
        for i, (variant, file) in enumerate(zip(others, files, strict=True)):
            show(variant.name, 0.1 + 0.85 * i / len(others))
            with results.step(file, _key_of(variant.study, key)) as needed:
                if needed:
                    outcomes.append(_compare(variant.study, main, sources, processes))
                    results.json(file, asdict(outcomes[-1]))
                else:
                    outcomes.append(Outcome(**results.read_json(file)))
    numbers = {"main": _headline_numbers(main_study, main)}
    numbers |= {v.name: outcome.numbers for v, outcome in zip(others, outcomes, strict=True)}
    ranges = _range_table(numbers)
    with results.step("tables", make_key(key, others, outcomes, numbers)) as needed:
        if needed:
            results.table("sensitivity.csv", _index_table(others, outcomes))
            results.table("numbers.csv", pd.DataFrame(numbers).rename_axis("name").reset_index())
            results.table("ranges.csv", ranges)
            show("Drawing", 0.97)
            draw = plot_pairs if study.sensitivity.crossed else plot_variants
            results.write(
                "sensitivity.png",
                to_pictures(lambda: draw(others, outcomes), study.outputs.dpi)["png"],
            )
    results.keep_only(["choose", *files, "tables"])
    results.finish()
    show("Done", 1.0)
    return {
        "n": len(outcomes),
        "failed": sum(bool(outcome.error) for outcome in outcomes),
        "summary": _summary(others, outcomes),
        "ranges": plain_records(ranges),
    }


def variants(study: Study) -> list[Variant]:
    """The alternatives of a study, one at a time or all combinations."""
    section = study.sensitivity
    levels = {
        factor: [
            v for v in dict.fromkeys(getattr(section, factor)) if v != _main_choice(study, factor)
        ]
        for factor, place in FACTORS.items()
        if study.from_records or place.section != "rules"
    }
    if not isinstance(study.classes.number, int):
        raise InputError("the number of classes must be chosen first.")
    if len(study.sites) == 1 or not study.pseudo_sites.per_site:
        levels |= {"per_site": [], "fraction": []}
    if len(study.sites) == 1:
        levels["weights"] = []
    if not section.crossed:
        chosen = [{factor: v} for factor, values in levels.items() for v in values]
    else:
        n = int(np.prod([1 + len(values) for values in levels.values()], dtype=float)) - 1
        if n > _MOST * 4:
            raise InputError(_too_many(n))
        options = [[None, *values] for values in levels.values()]
        chosen = [
            {f: v for f, v in zip(levels, row, strict=True) if v is not None}
            for row in itertools.product(*options)
        ]
    others: dict[str, Variant] = {}
    for choices in filter(None, chosen):
        other = _apply_choices(study, choices)
        others.setdefault(settings_key(other), Variant(choices, other))
    others.pop(settings_key(study), None)
    if not others:
        raise InputError("[sensitivity] names nothing that differs from the study itself.")
    if len(others) > _MOST:
        raise InputError(_too_many(len(others)))
    return list(others.values())


def _too_many(n: int) -> str:
    return (
        f"sensitivity.crossed asks for {n:,} analyses, but at most {_MOST} are possible; shorten "
        "the lists of [sensitivity], or set some to []."
    )


# --- variants ----------------------------------------------------------------------------


def _main_choice(study: Study, factor: str) -> Any:
    """The choice of the main analysis; some are one only with another setting."""
    if factor == "max_carry" and study.rules.impute != "carry_forward_max":
        return None
    if factor == "forms":
        return study.form_rule
    if factor == "stays":
        return None if study.form_rule == "plain" else study.given_form.stays
    _, section, key = FACTORS[factor]
    return getattr(getattr(study, section) if section else study, key)


def _apply_choices(study: Study, choices: Mapping[str, Any]) -> Study:
    """The study with other choices, checked like a study file."""
    settings = study.model_dump()
    rules = settings["rules"]
    for factor, value in choices.items():
        _, section, key = FACTORS[factor]
        (settings[section] if section else settings)[key] = value
    if "months" in choices:
        old = study.rules
        length = old.months if old.days is None else old.days / _DAYS_PER_MONTH
        rules["max_windows"] = max(round(length * old.max_windows / choices["months"]), 1)
        rules["days"] = None
    if "max_carry" in choices and "impute" not in choices:
        rules["impute"] = "carry_forward_max"
    if "stays" in choices and "forms" not in choices:
        settings["model"]["form"] = "given"
    if settings["model"]["form"] == "plain":
        settings["model"]["stays"] = study.model.stays
    idle = {
        "max_carry": rules["impute"] != "carry_forward_max",
        "combination_days": rules["states"] != "combinations",
        "gap_days": rules["states"] != "combinations"
        and rules["impute"] != "carry_forward_supplied",
    }
    for key, nothing in idle.items():  # a choice without effect is not another choice
        if nothing:
            rules[key] = getattr(study.rules, key)
    return study.validated(settings)


def _key_of(study: Study, key: str) -> str:
    """The key of an analysis: the data and all settings less those that it does not depend on."""
    return make_key(key, settings_key(study, *FOR_REPORT), secret_key(study))


# --- analyses ----------------------------------------------------------------------------


def _choose(
    study: Study, sequences: Mapping[str, Any], processes: Processes
) -> dict[str, dict[str, Any]]:
    """The number of classes and the form of the chains, as settings that give them."""
    number, form = study.classes.number, analyse.used_form(study)
    if analyse.compares(study):  # whole sites decide
        found = analyse.compare_numbers(study, sequences, {}, processes)
        number, form = analyse.chosen_number(study, found.table), found.form
    rule = "plain" if form == PLAIN else "given"
    return {"classes": {"number": number}, "model": {"form": rule}}


def _analyse(study: Study, sequences: Mapping[str, Any], processes: Processes) -> Analysis:
    n_classes = study.classes.number
    assert isinstance(n_classes, int)
    resamples = analyse.resample(study, sequences)
    models = analyse.fit_models(
        study,
        {**resamples, **sequences},
        n_classes,
        processes,
        form=analyse.used_form(study),
    )
    own = {site: models[site] for site in sequences}
    used = {name: models[name] for name in resamples}
    return analyse.combine(study, sequences, used, own, n_classes)


def _compare(
    study: Study,
    main: Analysis,
    sources: Mapping[str, Any],
    processes: Processes,
) -> Outcome:
    """One other analysis and its adjusted Rand index against the main one."""
    try:
        other = _analyse(study, site_data.build_sites(study, sources), processes)
    except InputError as error:
        return Outcome(error=str(error))
    pairs = {}
    for site, clusters in main.clusters.items():
        both = clusters.index.intersection(other.clusters[site].index)
        pairs[site] = clusters.loc[both].to_numpy(), other.clusters[site].loc[both].to_numpy()
    a, b = (np.concatenate([pair[i] for pair in pairs.values()]) for i in range(2))
    index = {
        place: compare_clusterings(*pair)["adjusted_rand_index"]
        for place, pair in {"all": (a, b), **pairs}.items()
    }
    numbers = _headline_numbers(study, _rename_clusters(other, match_labels(a, b)))
    if hides(study.privacy.min_count):
        index = {place: round(value, _DIGITS) for place, value in index.items()}
    return Outcome(index, *_count_patients(study, main, other, len(a)), numbers)


def _count_patients(
    study: Study, main: Analysis, other: Analysis, in_both: int
) -> tuple[float, float | None]:
    """The patients of an analysis, and those that the main one has too, as they may be shown.

    How many are in one of them alone follows from these.
    """
    here, there = (sum(map(len, part.clusters.values())) for part in (other, main))
    if rounding := rounding_of(study, other.clusters):
        return rounding(here), rounding(in_both, EVERYONE, EVERYONE, "in both")
    few = is_small([here - in_both, there - in_both], study.privacy.min_count).any()
    return here, None if few else in_both


def _rename_clusters(other: Analysis, partner: Mapping[Any, Any]) -> Analysis:
    """The clusters under the names of those of the main analysis that they match."""
    used = {int(name) for name in partner.values() if name is not None}
    names = {int(k): int(v) for k, v in partner.items() if v is not None}
    free = (n for n in itertools.count(1) if n not in used)
    for cluster in sorted({int(c) for part in other.clusters.values() for c in part.unique()}):
        if cluster not in names:
            names[cluster] = next(free)
    clusters = {site: part.astype(int).map(names) for site, part in other.clusters.items()}
    return replace(other, clusters=clusters)


def _headline_numbers(study: Study, analysis: Analysis) -> dict[str, float]:
    """The headline numbers by name, as the release shows them; shares and indices of few digits.

    Two analyses may differ in few patients: counts of a public release are rounded alike then.
    """
    results = {
        site: site_results(study, site_patients(study, analysis, site), FOR_HEADLINE)
        for site in analysis.sequences
    }
    combined = combine_in_memory(analysis)
    view = ONLY if analysis.ensemble is None else ENSEMBLE
    sizes = sizes_of(results, view, study.privacy.min_count)
    replicated = min(model.n_replicated_ for model in analysis.models.values())
    differences = site_differences_of(results, n_boot=0, seed=study.seed)
    numbers = headline(study, combined, results, {view: sizes}, None, differences, replicated)
    digits = _DIGITS if hides(study.privacy.min_count) else 15
    return {number.name: round(float(number.value), digits) for number in numbers}


# --- summaries ---------------------------------------------------------------------------


def _range_table(numbers: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
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


def _index_table(others: Sequence[Variant], outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per analysis: its index, its patients, and the choices that were changed."""
    rows = []
    for variant, outcome in zip(others, outcomes, strict=True):
        sites = {f"{_INDEX}, {p}": v for p, v in outcome.index.items() if p != "all"}
        rows.append(
            {
                "variant": variant.name,
                _INDEX: outcome.index.get("all", np.nan),
                **(sites if len(sites) > 1 else {}),
                "patients": outcome.patients,
                "in_both": outcome.in_both,
                "error": outcome.error,
            }
        )
    choices = [{FACTORS[k].label: v for k, v in variant.choices.items()} for variant in others]
    return pd.concat([pd.DataFrame(rows), pd.DataFrame(choices)], axis=1)


def _summary(others: Sequence[Variant], outcomes: Sequence[Outcome]) -> list[str]:
    """The indices in sentences."""
    pairs = list(zip(others, outcomes, strict=True))
    done = {variant.name: o.index["all"] for variant, o in pairs if not o.error}
    failed = [(variant.name, o.error) for variant, o in pairs if o.error]
    lines = []
    if done:
        index = pd.Series(done)
        lines = [
            f"{len(index)} other analyses agree with the main one with an adjusted Rand index of "
            f"{index.median():.3f} (median; {index.min():.3f} to {index.max():.3f}).",
            f"The choice that changes most is {index.idxmin()} ({index.min():.3f}); the one that "
            f"changes least is {index.idxmax()} ({index.max():.3f}).",
        ]
    if failed:
        lines.append(
            f"{len(failed)} of {len(pairs)} other analyses could not be done; the first "
            f"({failed[0][0]}) because: {failed[0][1]}"
        )
    return lines


def plot_variants(others: Sequence[Variant], outcomes: Sequence[Outcome]) -> Figure:
    """Heat map: analyses by sites, the adjusted Rand index against the main analysis."""
    table = pd.DataFrame([outcome.index for outcome in outcomes])
    places = list(table.columns) if len(table.columns) > 2 else ["all"]
    values = table.reindex(columns=places).to_numpy(float)
    return _heat_map(values, [variant.name for variant in others], places, square=False)


def plot_pairs(others: Sequence[Variant], outcomes: Sequence[Outcome]) -> Figure:
    """Heat map for combinations: the mean index over all analyses with both of two choices."""
    levels = list(dict.fromkeys(pair for variant in others for pair in variant.choices.items()))
    levels.sort(key=lambda pair: list(FACTORS).index(pair[0]))
    has = np.array([[variant.choices.get(k) == v for variant in others] for k, v in levels])
    index = pd.Series([outcome.index.get("all", np.nan) for outcome in outcomes])
    values = np.array([[index[a & b].mean() for b in has] for a in has])
    names = [f"{FACTORS[factor].label}: {in_words(level)}" for factor, level in levels]
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
