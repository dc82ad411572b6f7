"""The analysis of a study: classes, models and clusters. The libraries compute."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from ehr_prep.build import pseudo_sites
from font.ensemble import Ensemble
from font.errors import InputError, ReportWarning
from font.labels import LabelPatterns, label
from font.refinement import Refined, check_family, refine_clusters
from font.stability import suggest_n_clusters
from mmlca.model.estimator import MixtureMarkov
from mmlca.model.forms import too_fine
from mmlca.model.selection import best_form, candidates, find_finest, fit_quietly, vote
from mmlca.sequences.forms import PLAIN, Form
from mmlca.sequences.type import Sequences
from mmlca.study.processes import Processes
from mmlca.study.results.models import comparison
from mmlca.tables.disclosure import is_small
from mmlca.tables.matching import memberships

if TYPE_CHECKING:
    from mmlca.study.settings import Study

Models = dict[str, MixtureMarkov]
Fits = dict[tuple[str, int], MixtureMarkov]
"""Models by data set and number of classes."""
Progress = Callable[[str], None]

_LARGE = 20_000  # patterns × classes of all fits, about four seconds of one processor


@dataclass(frozen=True, eq=False)
class Analysis:
    """Models, and every patient's cluster.

    Parameters
    ----------
    sequences : {site: Sequences}
    models : {pseudo-site: model}
        The models of the ensemble.
    own : {site: model}
        One model per site, fitted to all its patients.
    ensemble : Ensemble or None
        None if there is one site or one class.
    labels : {site: DataFrame, patients × models}
        The labels of all models, `models` and `own`.
    clusters, local : {site: Series by id}
        Numbered from 1: the ensemble's clusters, and each site's own classes under the numbers
        of the clusters that they match best. With one site both are the classes of its model.
    certainty : {site: DataFrame by id}
        How clear each patient's cluster is, for the patients' files.
    refined : Refined or None
        The refinement of the ensemble, if the study wants one.
    refined_clusters : {site: Series by id}
        Its clusters, numbered from 1 as those of the ensemble.
    memberships : {site: DataFrame by id}
        Each patient's probability of each of them.
    """

    sequences: dict[str, Sequences]
    models: Models
    own: Models
    ensemble: Ensemble | None
    labels: dict[str, pd.DataFrame]
    clusters: dict[str, pd.Series]
    local: dict[str, pd.Series]
    certainty: dict[str, pd.DataFrame]
    refined: Refined | None = None
    refined_clusters: dict[str, pd.Series] = field(default_factory=dict)
    memberships: dict[str, pd.DataFrame] = field(default_factory=dict)


# --- models -------------------------------------------------------------------------------


def resample(study: Study, data: Mapping[str, Sequences]) -> dict[str, Sequences]:
    """The pseudo-sites; the sites themselves if there is one or no resamples are wanted."""
    rules = study.pseudo_sites
    if not rules.per_site or len(data) == 1:
        return dict(data)
    return pseudo_sites(data, n_per_site=rules.per_site, fraction=rules.fraction, seed=study.seed)


def used_form(study: Study) -> Form:
    """The form of a study in which it is not compared with another one."""
    return PLAIN if study.form_rule == "plain" else study.given_form


def compares(study: Study) -> bool:
    """Whether models are compared at all, to choose their number of classes or their form."""
    return study.classes.number == "vote" or study.form_rule == "compare"


class Comparison(NamedTuple):
    """Models of different numbers of classes and forms of chains, at each site and resample.

    `table` is that of `mmlca.study.results.models.comparison`; it has all forms for whole sites, of
    resamples only the `form` that is used, and `chosen` marks the number of classes that each of
    them chooses for that form. `fits` are the models of that form; they are not `final` if they
    leave out steps so that another form could be compared on the same ones.
    """

    table: pd.DataFrame
    form: Form
    fits: Fits
    final: bool


def compare_numbers(
    study: Study,
    sites: Mapping[str, Sequences],
    resamples: Mapping[str, Sequences],
    processes: Processes,
    progress: Progress | None = None,
) -> Comparison:
    """Compare forms of chains at the sites, and numbers of classes at sites and resamples.

    Unless the study names the form to use, it is the one with the smallest sum over sites of the
    criterion, each site with its own best number of classes. Resamples have no say, since they
    contain the sites' patients again.
    """
    forms, criterion = _forms_to_compare(study, {**sites, **resamples}), study.classes.criterion
    with warnings.catch_warnings():
        if study.form_rule != "compare":  # nothing is decided on the same steps then
            warnings.simplefilter("ignore", ReportWarning)
        finest = find_finest(forms, sites)
    if finest is not None and study.form_rule != "compare":
        forms, finest = [used_form(study)], None
    fits = {form: _fit_numbers(study, sites, form, processes, progress, finest) for form in forms}
    tables = {form: _table_of(study, part) for form, part in fits.items()}
    table = pd.concat(list(tables.values()), ignore_index=True)
    used = used_form(study)
    if study.form_rule == "compare":
        best = best_form(table, criterion)
        used = next(form for form in forms if form.title == best)
    table["chosen"] &= table["form"] == used.title
    own = fits[used]
    if resamples:
        more = _fit_numbers(study, resamples, used, processes, progress, finest)
        table = pd.concat([table, _table_of(study, more)], ignore_index=True)
        own = own | more
    return Comparison(table, used, own, finest is None)


def _forms_to_compare(study: Study, data: Mapping[str, Sequences]) -> list[Form]:
    """The plain chain, and the form that the study gives, if there are enough data for it.

    A form that the study names is refused where there are too few.
    """
    given = study.given_form
    if given == PLAIN:
        return [PLAIN]
    for name, part in data.items():
        if reason := too_fine(part.patterns_of(given)):
            if study.form_rule == "given" or study.model.stays or study.model.periods:
                raise InputError(f"{name}: {reason}")
            warnings.warn(
                ReportWarning(
                    f"chains {given.title} were not compared with plain ones: at {name}, nobody is "
                    "seen for long enough in a state, or there are too few steps."
                ),
                stacklevel=3,
            )
            return [PLAIN]
    return [PLAIN, given]


def _fit_numbers(
    study: Study,
    data: Mapping[str, Sequences],
    form: Form,
    processes: Processes,
    progress: Progress | None,
    finest: Form | None,
) -> Fits:
    """Fits of each candidate number of classes to each data set."""
    rules = study.classes
    numbers = rules.candidates if rules.number == "vote" else (rules.number,)
    tried = candidates(data, numbers, rules.criterion, form)
    return _fit_all(study, data, tried, form, processes, progress, finest)


def _table_of(study: Study, fits: Fits) -> pd.DataFrame:
    rules = study.classes
    table = comparison(fits, rules.criterion, rules.count)
    return table.rename(columns={"model": "site"})


def check_number(study: Study, data: Mapping[str, Sequences]) -> None:
    """Refuse a given number of classes of which not all could be shown."""
    number, min_count = study.classes.number, study.privacy.min_count
    site, part = min(data.items(), key=lambda pair: len(pair[1]))
    if isinstance(number, int) and number > 1 and is_small(len(part) / number, min_count):
        most = max(len(part) // min_count, 1)
        raise InputError(
            f"classes.number is {number}, but {site} has {len(part):,} patients, too few for "
            f"{number} classes of {min_count} (privacy.min_count); choose at most {most}, or "
            '"vote".'
        )


def chosen_number(study: Study, choice: pd.DataFrame | None) -> int:
    """The number that was given, or the one that most sites chose by their own data."""
    number = study.classes.number
    if isinstance(number, int):
        return number
    assert choice is not None
    return vote(choice[choice["site"].isin(study.sites)])


def fit_models(
    study: Study,
    data: Mapping[str, Sequences],
    n_classes: int,
    processes: Processes,
    progress: Progress | None = None,
    form: Form = PLAIN,
) -> Models:
    """One model for each of the data sets."""
    wanted = [(name, n_classes) for name in data]
    fits = _fit_all(study, data, wanted, form, processes, progress)
    return {name: model for (name, _), model in fits.items()}


def _fit_all(
    study: Study,
    data: Mapping[str, Sequences],
    wanted: Sequence[tuple[str, int]],
    form: Form,
    processes: Processes,
    progress: Progress | None,
    finest: Form | None = None,
) -> Fits:
    """Models by data set and number of classes, side by side if there are processes for it.

    Threads serve where there are fewer fits than cores, or where starting processes would take
    longer than they save; they are slower otherwise, since a part of each fit is Python.
    """
    if sum(len(data[name].patterns) * k for name, k in wanted) > _LARGE:
        processes.start()
    n_jobs = processes.n // max(len(wanted), 1) if processes.running else processes.n
    settings = study.fit_settings | form._asdict() | {"seed": study.seed, "n_jobs": max(n_jobs, 1)}
    tasks = {
        (name, k): processes.submit(
            _fit_one, name, MixtureMarkov(k, **settings), data[name], finest
        )
        for name, k in sorted(wanted, key=lambda pair: -pair[1])  # the longest first
    }
    fits = {}
    for (name, k), task in tasks.items():
        if progress is not None:
            progress(f"{name}, K = {k}{'' if form == PLAIN else f', {form.title}'}")
        fits[name, k] = task()
    return {pair: fits[pair] for pair in wanted}


def _fit_one(
    name: str, model: MixtureMarkov, data: Sequences, finest: Form | None
) -> MixtureMarkov:
    """A fit whose errors name the data set; the report's table of models has its warnings."""
    try:
        return fit_quietly(model, data, finest)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def free_numbers(
    study: Study,
    sequences: Mapping[str, Sequences],
    resamples: Mapping[str, Sequences],
    fits: Fits,
    n_classes: int,
    form: Form,
    processes: Processes,
) -> pd.DataFrame:
    """Numbers of clusters that ensembles of models with one to three more classes suggest.

    The models are those that compared numbers of classes; what is not among `fits` is fitted.
    """
    models = {}
    for k in sorted({n_classes + 1, n_classes + 2, n_classes + 3} & {*study.classes.candidates}):
        known = {name: fits[name, k] for name in resamples if (name, k) in fits}
        missing = {name: part for name, part in resamples.items() if name not in known}
        models[k] = known | fit_models(study, missing, k, processes, form=form)
    rules = study.ensemble
    settings = {"weights": rules.weights, "distance": rules.distance, "method": rules.method}
    return suggest_n_clusters(models, sequences, seed=study.seed, **settings).reset_index()


# --- clusters -----------------------------------------------------------------------------


def combine(
    study: Study, data: Mapping[str, Sequences], models: Models, own: Models, n_clusters: int
) -> Analysis:
    """The ensemble of the models, and every patient's cluster."""
    labels = {site: label({**models, **own}, part) for site, part in data.items()}
    sure = {site: own[site].predict_proba(part).max(axis=1) for site, part in data.items()}
    if len(data) == 1 or n_clusters == 1:
        classes = {site: labels[site][site].rename("cluster") + 1 for site in data}
        certainty = {
            site: pd.DataFrame({"class": classes[site], "probability": sure[site]}) for site in data
        }
        return Analysis(dict(data), models, own, None, labels, classes, classes, certainty)
    rules, voting = study.ensemble, {site: table[list(models)] for site, table in labels.items()}
    ensemble = Ensemble(
        n_clusters,
        weights=rules.weights,
        distance=rules.distance,
        method=rules.method,
        seed=study.seed,
    ).fit(models, LabelPatterns.from_labels(voting))
    certainty = {site: ensemble.confidence(table) for site, table in voting.items()}
    clusters = {site: table["cluster"] + 1 for site, table in certainty.items()}
    everywhere = {name: {site: labels[site][name] for site in data} for name in data}
    matched = memberships(data, clusters, None, everywhere)["local"]
    local = {
        site: pd.Series([matched.labels[i] for i in codes], data[site].ids, name="cluster")
        for site, codes in matched.codes.items()
    }
    patients = {
        site: table.assign(
            cluster=clusters[site],
            runner_up=(table["runner_up"] + 1).where(table["runner_up"] >= 0),
            own_class=local[site],
            own_probability=sure[site],
        )
        for site, table in certainty.items()
    }
    analysis = Analysis(dict(data), models, own, ensemble, labels, clusters, local, patients)
    return analysis if rules.refine == "none" else refined(analysis, rules.refine, study.seed)


def refined(analysis: Analysis, steps: int | str, seed: int) -> Analysis:
    """The same with the refinement of the ensemble, which leads in the patients' files.

    Where the ensemble is that of sites that exchange files, sites count as they do there.
    """
    data = analysis.sequences
    begin = {site: part.to_numpy() - 1 for site, part in analysis.clusters.items()}
    n_clusters = max(int(part.max()) for part in begin.values()) + 1
    template = check_family(analysis.models)
    assert analysis.ensemble is not None
    as_between_sites = analysis.ensemble.method in ("latent", "kmeans-classes")
    result = refine_clusters(
        template, data, begin, n_clusters, steps, seed, capped=as_between_sites
    )
    members = {site: result.predict_proba(part, site) for site, part in data.items()}
    clusters = {site: result.predict(part, site) + 1 for site, part in data.items()}
    patients = {}
    for site, table in analysis.certainty.items():
        patients[site] = table.copy()
        patients[site].insert(0, "refined_cluster", clusters[site].to_numpy())
        patients[site].insert(1, "probability", members[site].max(axis=1).to_numpy())
    return replace(
        analysis,
        certainty=patients,
        refined=result,
        refined_clusters=clusters,
        memberships=members,
    )
