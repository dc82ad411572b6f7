"""What each step of a study does: it calls the analysis, and keeps what it found in files.

`mmlca.study.run` lists the steps in their order.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from font.errors import ReportWarning
from mmlca.figures.colours import draw_with
from mmlca.model.estimator import MixtureMarkov
from mmlca.model.params import read_params
from mmlca.sequences.forms import Form, make_form
from mmlca.sequences.type import Sequences
from mmlca.study import analysis as analyse
from mmlca.study import site_data
from mmlca.study.analysis import Analysis, Fits, Models
from mmlca.study.cache import (
    Progress,
    Results,
    cohorts_of,
    make_key,
    nearly_repeated,
    plain_records,
    remember,
    settings_key,
)
from mmlca.study.combined import (
    Combined,
    combine_in_memory,
    compare_chains,
    site_influence,
    site_patients,
)
from mmlca.study.findings import Findings, describe
from mmlca.study.headline import Kind, pick
from mmlca.study.own_courses import draw_single_courses
from mmlca.study.processes import Processes
from mmlca.study.release import is_public, secret_key, statement
from mmlca.study.report.content import Report
from mmlca.study.report.exports import Pictures, draw_figure, for_page, to_docx, to_pictures
from mmlca.study.report.page import Sections, lay_out_sections, render_report
from mmlca.study.results.registry import site_results
from mmlca.study.results.site import SiteResults
from mmlca.study.sections import registry
from mmlca.study.sections.summary import summary
from mmlca.study.settings import Study
from mmlca.study.words import courses_of_names, groups_word, window_name
from mmlca.tables.disclosure import hides

BySite = Mapping[str, Sequences]
Drawings = dict[str, Callable[[], Pictures]]
"""What waits for the pictures of each figure that is being drawn, by the name of its step."""
SINGLE = "single courses"
"""The step that writes pictures of single patients' courses."""


@dataclass
class Run:
    """A run of a study, and the step that it is at.

    `key` is that of its data and of the software. `chosen` are choices that no setting makes, such
    as the number of classes: together with the settings they say whether a step is done.
    """

    study: Study
    results: Results
    tell: Progress
    processes: Processes
    key: str
    chosen: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    cohorts: dict[str, list[str]] = field(default_factory=dict)
    _name: str = ""
    _irrelevant: tuple[str, ...] = ()

    def begin(self, name: str, irrelevant: tuple[str, ...]) -> None:
        """Go on to a step; its files do not depend on the irrelevant sections of the settings."""
        self._name, self._irrelevant = name, irrelevant

    def present_key(self) -> str:
        """What the present step depends on."""
        settings = settings_key(self.study, *self._irrelevant)
        return make_key(self.key, settings, secret_key(self.study), self.chosen)

    def files(self, part: str = "", key: str = "") -> AbstractContextManager[bool]:
        """Whether the present step, or a part of it, must write its files; see `Results.step`."""
        self.names.append(part or self._name)
        return self.results.step(self.names[-1], key or self.present_key())

    def finish(self) -> None:
        if self.cohorts:
            remember(self.results, self.cohorts)
        self.results.finish()
        self.tell("Done", 1.0)


# --- data ---------------------------------------------------------------------------------


def read(run: Run) -> dict[str, Sequences]:
    """The sequences, always read again since every step needs them."""
    study = run.study
    sources = {site: site_data.read_source(study, site) for site in study.sites}
    sequences = site_data.build_sites(study, sources)
    analyse.check_number(study, sequences)
    site_data.check_colours(study, sequences)
    site_data.check_columns(study, sequences)
    if hashes := site_data.database_hashes(sources, sequences):
        run.key = make_key(run.key, hashes)
    with run.files() as needed:
        for site, part in sequences.items() if needed else ():
            run.results.table(f"patients/{site}_sequences.csv", part.to_frame(), index=True)
            if part.account is not None:
                run.results.table(f"patients/{site}_issues.csv", part.issues)
                run.results.table(f"patients/{site}_unmapped.csv", part.account.unmapped)
    if hides(study.privacy.min_count):
        run.cohorts = cohorts_of(run.results, sequences)
        _warn_of_earlier_results(run)
    return sequences


def _warn_of_earlier_results(run: Run) -> None:
    """Warn where few patients differ from those of an earlier run, who could be worked out.

    Readers of a public release do not learn that there is something to subtract from it.
    """
    min_count = run.study.privacy.min_count
    for site in nearly_repeated(run.results, run.cohorts, min_count):
        text = (
            f"the patients at {site} are those of an earlier run in this folder, but for fewer "
            f"than {min_count} of them. Whoever sees the results of both can subtract them and "
            "learn about these few patients: show others the results of one run only."
        )
        public = "" if is_public(run.study) else text
        warnings.warn(ReportWarning(text, public), stacklevel=2)


def resample(run: Run, sequences: BySite) -> dict[str, Sequences]:
    return analyse.resample(run.study, sequences)


# --- models -------------------------------------------------------------------------------


class Choice(NamedTuple):
    """The number of classes and the form of the chains, and what they were chosen from.

    The table of the models compared is None if both were given, and a resumed run has no models.
    """

    number: int
    form: Form
    table: pd.DataFrame | None = None
    fits: Fits = {}  # noqa: RUF012 (never changed)


def choose(run: Run, sequences: BySite, resamples: BySite) -> Choice:
    """Compare numbers of classes and forms of chains at each site, unless they are given."""
    study, rules = run.study, run.study.classes
    if isinstance(rules.number, int) and not analyse.compares(study):
        run.chosen.append(rules.number)
        return Choice(rules.number, analyse.used_form(study))
    others = {n: part for n, part in resamples.items() if n not in sequences and rules.stability}
    file, fits = "models/selection.json", Fits()
    with run.files() as needed:
        if needed:
            n = (2 * len(sequences) + len(others)) * len(set(rules.candidates))
            tell = _counting(run, "Comparing models", 0.05, 0.3 / n)
            found = analyse.compare_numbers(study, sequences, others, run.processes, tell)
            params: dict[str, dict[int, Any]] = {site: {} for site in sequences}
            for (name, k), model in found.fits.items():
                if name in params:
                    params[name][k] = model.params_.to_dict()
            content = {"form": found.form._asdict(), "params": params}
            run.results.json(file, content | {"fits": plain_records(found.table)})
            fits = found.fits if found.final else Fits()
    stored = run.results.read_json(file)
    table = pd.DataFrame(stored["fits"]).astype({"site": str})
    form = make_form(**stored["form"])
    run.begin("selection", ())
    with run.files() as needed:
        if needed:
            _draw_alternatives(run, stored["params"], sequences)
    number = analyse.chosen_number(study, table)
    run.chosen += [form.title, number]
    return Choice(number, form, table, fits)


def _counting(run: Run, what: str, begin: float, each: float) -> Callable[[str], None]:
    """Progress through many fits: what is called before each of them."""
    shares = (begin + each * i for i in itertools.count())
    return lambda text: run.tell(f"{what}: {text}", next(shares))


def _draw_alternatives(
    run: Run, params: Mapping[str, Mapping[str, Any]], data: Mapping[str, Sequences]
) -> None:
    """The courses of models with other numbers of classes, for the eyes of the hospital."""
    from mmlca.figures.models import plot_alternatives

    study, drawings = run.study, Drawings()
    for site in study.sites if study.outputs.figures else ():
        models = {int(k): read_params(part) for k, part in params[site].items()}
        draw = partial(
            plot_alternatives,
            models,
            data[site].states,
            data[site].shape[1],
            xlabel=window_name(study).capitalize(),
        )
        coloured = partial(draw_with, study.outputs.colours, draw)
        drawings[site] = run.processes.submit(to_pictures, coloured, study.outputs.dpi)
    for site, drawing in drawings.items():
        run.results.write(f"models/alternatives_{site}.png", drawing()["png"])


def fit(run: Run, sequences: BySite, resamples: BySite, choice: Choice) -> Models:
    """One model per data set; some were fitted when numbers of classes were compared."""
    data = {**sequences, **resamples}
    files = {name: f"models/{name}.json" for name in data}
    with run.files() as needed:
        if not needed:
            return {n: MixtureMarkov.load(run.results.folder / f) for n, f in files.items()}
        known = {n: model for (n, k), model in choice.fits.items() if k == choice.number}
        missing = {name: part for name, part in data.items() if name not in known}
        tell = _counting(run, "Fitting", 0.35, 0.05 / max(len(missing), 1))
        models = known | analyse.fit_models(
            run.study, missing, choice.number, run.processes, tell, choice.form
        )
        for name, file in files.items():
            run.results.json(file, models[name].to_dict())
        return models


def suggest(run: Run, sequences: BySite, resamples: BySite, choice: Choice) -> pd.DataFrame | None:
    """The number of clusters that models with more classes suggest, where there are such models."""
    free = choice.table is not None and choice.number < choice.table["classes"].max()
    if not (free and run.study.classes.stability and len(sequences) > 1):
        return None
    file = "models/suggested.json"
    with run.files() as needed:
        if not needed:
            return pd.DataFrame(run.results.read_json(file))
        run.tell("Asking models with more classes", 0.38)
        table = analyse.free_numbers(
            run.study, sequences, resamples, choice.fits, choice.number, choice.form, run.processes
        )
        run.results.json(file, plain_records(table))
        return table


# --- clusters -----------------------------------------------------------------------------


def combine(
    run: Run, sequences: BySite, resamples: BySite, models: Models, choice: Choice
) -> Analysis:
    """The ensemble, and every patient's cluster."""
    run.tell("Combining", 0.4)
    used, own = ({name: models[name] for name in part} for part in (resamples, sequences))
    return analyse.combine(run.study, sequences, used, own, choice.number)


class Released(NamedTuple):
    """What the sites release for the report, and what the centre knows besides."""

    results: dict[str, SiteResults]
    combined: Combined

    def hashes(self) -> dict[str, str]:
        """A hash of the results of each site."""
        return {
            site: make_key(
                result.unit, {n: table.to_csv(index=False) for n, table in result.tables.items()}
            )
            for site, result in self.results.items()
        }


def describe_sites(
    run: Run, analysis: Analysis, choice: Choice, suggested: pd.DataFrame | None
) -> Released:
    """The results of each site, and what takes the patients of all sites in one place."""
    study, processes = run.study, run.processes
    run.tell("Comparing the sites", 0.42)
    shared = processes.submit(compare_chains, study, analysis)
    influence = processes.submit(site_influence, study, analysis)
    tasks = {
        site: processes.submit(
            site_results, study, site_patients(study, analysis, site, choice.table)
        )
        for site in analysis.sequences
    }
    run.tell("Standard errors, fit and outcomes", 0.45)
    results = {site: task() for site, task in tasks.items()}
    combined = replace(
        combine_in_memory(analysis), shared=shared(), influence=influence(), suggested=suggested
    )
    return Released(results, combined)


def find(run: Run, released: Released) -> Findings:
    """Numbers and tables of the clusters, the sites and the labs."""
    run.tell("Putting the sites together", 0.49)
    findings = describe(run.study, *released, partial(_names_of_courses, run))
    run.chosen.append(findings.names.clusters)
    return findings


def _names_of_courses(run: Run, courses: list[str | None]) -> dict[str, str]:
    """The course of each name of the study file; those of a list are kept for later runs."""
    file = "models/names.json"
    try:
        earlier = run.results.read_json(file)
    except (OSError, ValueError):
        earlier = {}
    given = courses_of_names(run.study, courses, earlier)
    if given and not isinstance(run.study.outputs.names, Mapping):
        with run.files("names", make_key(given)) as needed:
            if needed:
                run.results.json(file, given)
    return given


# --- what stays inside the hospital -------------------------------------------------------


def write_clusters(run: Run, analysis: Analysis) -> None:
    """The patients' clusters."""
    with run.files() as needed:
        for site, table in analysis.certainty.items() if needed else ():
            run.results.table(f"patients/{site}_clusters.csv", table, index=True)


def begin_single_courses(run: Run, analysis: Analysis, findings: Findings) -> Drawings:
    """Hand over the pictures of single courses, unless an earlier run has drawn them."""
    study, drawings = run.study, Drawings()
    if study.outputs.figures and not run.results.is_done(SINGLE, run.present_key()):
        for site, data in analysis.sequences.items():
            draw = draw_single_courses(study, data, analysis.clusters[site], findings.cluster_names)
            coloured = partial(draw_with, study.outputs.colours, draw)
            drawings[site] = run.processes.submit(to_pictures, coloured, study.outputs.dpi)
    return drawings


def write_single_courses(run: Run, single: Drawings) -> None:
    if not run.study.outputs.figures:
        return
    with run.files() as needed:
        for site, drawing in single.items() if needed else ():
            run.results.write(f"patients/{site}_courses.png", drawing()["png"])


# --- the report ---------------------------------------------------------------------------


def content(run: Run, findings: Findings) -> Report:
    """What the page shows: texts, tables, and figures that are yet to be drawn."""
    study = run.study
    (n_clusters,) = pick(findings.numbers, Kind.CLUSTERS)
    return Report(
        study=study.name,
        synthetic=study.synthetic,
        sites=findings.sites,
        n_clusters=int(n_clusters.value),
        states=findings.states,
        views=list(findings.sizes),
        min_count=study.privacy.min_count,
        release=study.privacy.release,
        statement=statement(study),
        published=None if study.published is None else study.published.source,
        groups=groups_word(study),
        figures=study.outputs.figures,
        summary=summary(study, findings),
        methods=registry.methods(study, findings),
        careful=registry.cautions(study, findings, run.results.warned),
        numbers=findings.numbers,
        items=registry.all_items(study, findings),
        results={section.key: section.title for section in registry.RESULTS},
        diagnostics={section.key: section.title for section in registry.DIAGNOSTICS},
    )


def write_tables(run: Run, findings: Findings, report: Report) -> None:
    """The tables that no figure draws."""
    run.tell("Writing tables", 0.5)
    with run.files() as needed:
        if not needed:
            return
        for item in report.items:
            if item.draw is None:
                run.results.table(item.data_file, item.table)
        run.results.text("tables/table_one.md", findings.table_one.to_markdown() + "\n")
        run.results.text("tables/table_one.tex", findings.table_one.to_latex() + "\n")


def write_word(run: Run, findings: Findings, report: Report) -> None:
    if "docx" not in run.study.outputs.formats:
        return
    with run.files() as needed:
        if needed:
            word = to_docx(run.study.name, findings.table_one, report.methods)
            run.results.write("tables/table_one.docx", word)


def begin_drawing(run: Run, report: Report) -> Drawings:
    """Hand over the figures that an earlier run has not drawn."""
    outputs, key, drawings = run.study.outputs, run.present_key(), Drawings()
    formats = ["png", *(f for f in ("svg", "pdf") if f in outputs.formats)]
    undone = [
        item
        for item in report.items
        if report.pictured(item) and not run.results.is_done(f"figure {item.name}", key)
    ]
    if len(undone) > 1:
        run.processes.start()
    for item in undone:
        drawings[f"figure {item.name}"] = run.processes.submit(
            draw_figure, item.draw, outputs.dpi, formats
        )
    return drawings


def write_results(run: Run, report: Report) -> None:
    plain = report.plain()
    with run.files(key=make_key(plain)) as needed:
        if needed:
            run.results.json("results.json", plain)


def lay_out(run: Run, report: Report, drawings: Drawings) -> Sections | None:
    return lay_out_sections(report) if drawings else None


def write_figures(run: Run, report: Report, drawings: Drawings) -> dict[str, bytes]:
    """The files of the figures; returns the pictures that the page shows, by name.

    Each figure is a part of its own, so that an interrupted run loses one.
    """
    pictures, figures = {}, [item for item in report.items if item.draw is not None]
    for number, item in enumerate(figures):
        run.tell(f"Drawing: {item.title}", 0.55 + 0.4 * number / len(figures))
        part = f"figure {item.name}"
        with run.files(part) as needed:
            if needed:
                run.results.table(item.data_file, item.table)
            if part in drawings:
                files = drawings[part]()
                pictures[item.name] = files.pop("webp", b"")
                for ending, picture in files.items():
                    run.results.write(f"figures/{item.name}.{ending}", picture)
        if report.pictured(item) and part not in drawings:
            drawn = run.results.folder / item.picture_file
            pictures[item.name] = for_page(drawn.read_bytes())
    return {name: picture for name, picture in pictures.items() if picture}


def write_page(
    run: Run, report: Report, sections: Sections | None, pictures: dict[str, bytes]
) -> None:
    results = run.results
    results.keep_only([*run.names, "report"])
    files = {n: step["files"] for n, step in results.record["steps"].items() if n != "report"}
    with run.files(key=make_key(report.plain(), results.about, files)) as needed:
        if needed:
            run.tell("Writing the report", 0.97)
            results.text("report.html", render_report(report, pictures, results.record, sections))
