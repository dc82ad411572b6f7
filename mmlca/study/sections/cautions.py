"""What a reader of a study should be careful about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from font.ensemble import site_of
from font.solve import RECORD
from mmlca.model.search import is_confirmed
from mmlca.sequences.checks import listed
from mmlca.study.numbers import DOUBTFUL, Kind, pick, votes
from mmlca.study.sections.inference_texts import (
    cautions_about_number,
    inference_cautions,
    shared_cautions,
)
from mmlca.study.words import (
    dead_included,
    groups_word,
    share_of_patients,
    windows_name,
)
from mmlca.tables.clusters import percent_text
from mmlca.tables.disclosure import hides, is_small

if TYPE_CHECKING:
    from mmlca.study.analysis import Analysis
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study


def cautions(study: Study, findings: Findings, warned: list[str]) -> list[str]:
    """What a reader should know before believing the numbers."""
    analysis = findings.analysis
    notes = []
    if study.synthetic:
        notes.append(
            "The patients are synthetic. The numbers show what the method does, and nothing about "
            "any hospital."
        )
    notes.append(
        f"The {groups_word(study)} are made from the treatment courses: that their patients take "
        "the drug classes which describe them is how they were formed, not a finding. Shares at "
        f"the last time are of those still observed then{dead_included(analysis.sequences)}."
    )
    notes += _about_deaths(study, analysis)
    notes += _about_choice(study, findings)
    notes += cautions_about_number(study, findings)
    notes += _about_fits(study, analysis)
    if analysis.ensemble is not None:
        (doubtful,) = pick(findings.numbers, Kind.DOUBTFUL)
        share = share_of_patients(study, doubtful.value)
        notes += analysis.ensemble.cautions(about_number=findings.suggested is None)
        notes.append(
            f"The vote share of {share} is below {DOUBTFUL}; the folder patients says whose. A "
            "vote share is the share of the models' weight that votes for the cluster, not the "
            "probability that the cluster is right."
        )
    if findings.differences is not None:
        if analysis.ensemble is not None:
            notes += findings.differences.cautions()
        notes.append(
            "Norms of the differences between groups of patients are larger than 0 by sampling, "
            "and because patients are assigned with errors. Whether the sites differ is what the "
            "test of shared courses answers, in which nobody is assigned."
        )
        notes += shared_cautions(findings)
        if study.published is not None:
            notes.append(
                "The published numbers come from other patients; they stand beside these for "
                "orientation and are not a target."
            )
    if findings.trends:
        notes.append(
            "Laboratory values before the first prescription are grouped by treatment that came "
            "later, so that differences between groups there may be causes of the treatment."
        )
    notes += inference_cautions(study, findings)
    notes += _about_windows(study, analysis)
    return notes + [f"{text[:1].upper()}{text[1:]}" for text in warned]


def _about_fits(study: Study, analysis: Analysis) -> list[str]:
    models = {**analysis.models, **analysis.own}
    doubtful = [
        name
        for name, model in models.items()
        if not is_confirmed(model.n_replicated_, model.n_searches_)
    ]
    unfinished = [name for name, model in models.items() if not model.converged_]
    notes = []
    if doubtful:
        notes.append(
            f"The maximum of {_models(doubtful)} was reached by fewer than two independent "
            f"searches, or by fewer than half of them; a better one may exist: "
            f"{_search_longer(study)}."
        )
    if unfinished:
        notes.append(f"The fit of {_models(unfinished)} did not converge.")
    large = [name for name, model in models.items() if model.n_parameters_ > model.n_sequences_]
    if large:
        notes.append(
            f"{_models(large)[0].upper()}{_models(large)[1:]} have more free parameters than "
            "patients; fewer classes would say more."
        )
    used = {name: analysis.labels[str(site_of(name))][name].nunique() for name in models}
    empty = [name for name, model in models.items() if used[name] < model.params_.n_classes]
    if empty:
        notes.append(
            f"In {_models(empty)} some classes are no patient's likeliest; fewer classes would do."
        )
    return notes


def _search_longer(study: Study) -> str:
    if study.model.search == "default":
        return 'set model.search = "thorough", which takes several times as long'
    return f"raise model.n_init (now {study.model.n_init})"


def _models(names: list[str]) -> str:
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{len(names)} model{'s' * (len(names) > 1)} ({listed(names[:5])}{more})"


def _about_choice(study: Study, findings: Findings) -> list[str]:
    choice = findings.choice
    if choice is None:
        return []
    (clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    k, (sites, resamples) = int(clusters.value), votes(study, choice)
    others = {site: str(chosen) for site, chosen in sites.items() if chosen != k}
    counts = resamples[resamples != k].value_counts()
    others |= {f"{n} of {len(resamples)} resamples": str(c) for c, n in counts.items()}
    notes = []
    if others:
        notes.append(
            "Not all data sets chose the same number of classes: "
            + listed([f"{name} chose {chosen}" for name, chosen in others.items()])
            + ". `mmlca study sensitivity` shows how much another number changes."
        )
    if k == choice["classes"].max() > 1:
        notes.append(f"The largest number of classes tried ({k}) was chosen; try larger ones.")
    suggested = findings.suggested
    if suggested is not None:
        pairs = list(zip(suggested["suggested"], suggested["sure"], strict=True))
        same = len(set(pairs)) == 1
        numbers = listed([f"{number} ({sure})" for number, sure in pairs[: 1 if same else None]])
        asked = listed([str(c) for c in suggested["classes"] if c != "all"])
        joint = ", and of all of these together," if "all" in [*suggested["classes"]] else ""
        notes.append(
            f"Models with {k} classes tell {k} groups apart, so that the spectrum of their "
            f"ensemble suggests {k} clusters partly because it must. Ensembles of models with "
            f"{asked} classes{joint} suggest {numbers} clusters. "
            f"{RECORD[suggested['sure'].iloc[-1]]}"
        )
    n = int((~choice["converged"]).sum())
    if n:
        notes.append(
            f"{n} of the {len(choice)} fits that compare numbers of classes did not converge (see "
            "the column “converged” of their table)."
        )
    return notes


_MANY_LEFT = 0.05


def _about_deaths(study: Study, analysis: Analysis) -> list[str]:
    """Where death is a state: sites whose living patients leave before the end of the data."""
    parts = []
    for site, data in analysis.sequences.items():
        left = (data.account and data.account.settings.get("left_alive")) or 0
        few = is_small([left, len(data) - left], study.privacy.min_count).any()
        if left > _MANY_LEFT * len(data) and not few:
            parts.append(f"{percent_text(left / len(data))} at {site}")
    if not parts:
        return []
    return [
        f"Of all patients, {listed(parts)} left alive before the end of the data, while patients "
        "who died are counted until then: shares of the dead are larger than the risk of death. "
        "Kaplan–Meier curves, from outcomes.event, are not affected."
    ]


def _about_windows(study: Study, analysis: Analysis) -> list[str]:
    """How many windows had no record or several classes, at all sites in one sentence."""
    shares = []
    for site, data in analysis.sequences.items():
        windows = data.account and data.account.settings["windows"]
        if windows and windows["followed_up"]:
            kinds = ("without_record", "several_classes", "tied")
            total, per_patient = windows["followed_up"], data.shape[1]
            parts = [_window_share(windows[kind], total, per_patient, study) for kind in kinds]
            shares.append([f"{part} at {site}" for part in parts])
    if not shares:
        return []
    empty, several, tied = (listed(list(part)) for part in zip(*shares, strict=True))
    done = "filled in" if study.rules.impute != "missing" else "left missing"
    return [
        f"Of the {windows_name(study)}, {empty} had no record and were {done}; {several} had two "
        f"or more drug classes; {tied} had several that were recorded equally often."
    ]


def _window_share(windows: int, every: int, per_patient: int, study: Study) -> str:
    """A share of all windows in words; a bound where the windows could be those of few patients."""
    most = study.privacy.min_count * per_patient
    if hides(study.privacy.min_count) and is_small(windows, most):
        return f"less than {np.ceil(100 * min(most / every, 1)):.0f} %"
    return percent_text(windows / every)
