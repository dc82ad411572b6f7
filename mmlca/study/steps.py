"""Run a study: read, compare numbers of classes, fit, combine, describe, draw, report."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from font.files import hold
from mmlca.model.estimator import MixtureMarkov
from mmlca.model.params import MarkovParams
from mmlca.sequences.type import Sequences
from mmlca.study import analysis as analyse
from mmlca.study import site_data
from mmlca.study.analysis import Analysis, Models
from mmlca.study.cache import (
    Progress,
    Results,
    cohorts_of,
    make_key,
    nearly_repeated,
    open_results,
    plain_records,
    remember,
    settings_key,
)
from mmlca.study.findings import Findings, describe
from mmlca.study.groups import course_views
from mmlca.study.names import courses_of_names
from mmlca.study.processes import Processes
from mmlca.study.release import is_public, rounding_of, secret_key, statement
from mmlca.study.report.content import Item, Report
from mmlca.study.report.docx import to_docx
from mmlca.study.report.page import lay_out_sections, render_report
from mmlca.study.report.pictures import Pictures, draw_figure, for_page, to_pictures
from mmlca.study.sections import registry
from mmlca.study.sections.courses import draw_single_courses
from mmlca.study.sections.digits import shown_fits
from mmlca.study.sections.summary import summary
from mmlca.study.settings import Study
from mmlca.study.words import groups_word, window_name
from mmlca.tables.disclosure import hides

Drawings = dict[str, Callable[[], Pictures]]
"""What waits for the pictures of each figure that is being drawn, by name."""

_AFTER_FITS = (
    *("name", "synthetic", "labs", "ensemble", "inference", "covariates", "outcomes", "outputs"),
    *("privacy", "published"),
)
IRRELEVANT: dict[str, tuple[str, ...]] = {
    "choose": _AFTER_FITS,
    "fit": (*_AFTER_FITS, "classes"),  # the number of classes has a place of its own in the key
    "suggest": tuple(section for section in _AFTER_FITS if section != "ensemble"),
}
"""The sections of a study file that a step does not depend on; any other step depends on all."""


def run_study(
    study: Study,
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    processes: Processes | None = None,
) -> dict[str, Any]:
    """Run the whole study, and write its results to a folder.

    An interrupted run goes on where it stopped, and a finished one is not repeated: models are
    fitted and figures drawn again only if a setting or a file that they depend on has changed.

    Parameters
    ----------
    study : Study
        From `read_study`.
    out : path
        The folder gets `report.html`, `results.json` (numbers and texts), `provenance.json`
        (settings, versions, hashes, times), `tables/`, `figures/` with a table beside each
        figure, and two folders that must stay inside the hospital: `patients/`, which holds ids,
        and `models/`, from whose exact numbers small counts follow.
        One run at a time: a second one in the same folder is refused with an OSError.
    progress : function (text, share), optional
    processes : Processes, optional
        Those to use, if they were started before; otherwise `study.n_jobs` are started.

    Returns
    -------
    dict
        The content of `results.json`.
    """
    tell = progress or (lambda text, share: None)
    with hold(out), processes or Processes(study.n_jobs) as used:
        return _run_alone(study, out, tell, used)


def _run_alone(
    study: Study, out: str | os.PathLike[str], tell: Progress, processes: Processes
) -> dict[str, Any]:
    tell("Reading", 0.0)
    results, key = open_results(study, out)
    if study.outputs.figures and not results.record["steps"]:
        processes.start()  # figures will need them, and they have loaded when fits begin
    run = _Run(study, results, tell, processes)
    report, key = run.all_steps(key)
    drawings = run.begin_drawing(key, report)
    content = report.plain()
    with run.step("results", make_key(content)) as needed:
        if needed:
            results.json("results.json", content)
    sections = lay_out_sections(report) if drawings else None  # while others draw
    pictures = run.write_figures(key, report, drawings)
    results.keep_only([*run.names, "report"])
    steps = {n: step["files"] for n, step in results.record["steps"].items() if n != "report"}
    with run.step("report", make_key(content, results.about, steps)) as needed:
        if needed:
            tell("Writing the report", 0.97)
            page = render_report(report, pictures, results.record, sections)
            results.text("report.html", page)
    if run.cohorts:
        remember(results, run.cohorts)
    results.finish()
    tell("Done", 1.0)
    return content


@dataclass
class _Run:
    """The steps of one run. Each writes its files, and hands its results on in memory."""

    study: Study
    results: Results
    tell: Progress
    processes: Processes
    names: list[str] = field(default_factory=list)
    single_courses: Drawings = field(default_factory=dict)
    cohorts: dict[str, list[str]] = field(default_factory=dict)

    def step(self, name: str, key: str) -> AbstractContextManager[bool]:
        self.names.append(name)
        return self.results.step(name, key)

    def key_of(self, step: str, key: str, *more: Any) -> str:
        """The key of a step: the data and all settings less those irrelevant to it."""
        settings = settings_key(self.study, *IRRELEVANT.get(step, ()))
        return make_key(key, settings, secret_key(self.study), *more)

    def all_steps(self, key: str) -> tuple[Report, str]:
        """Everything but the pictures, and the key of these."""
        study = self.study
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            sequences, key = self.read(key)
            resamples = analyse.resample(study, sequences)
            data = {**sequences, **resamples}
            stability = study.classes.stability
            choice, fits = self.choose(key, data if stability else sequences)
            n_classes = analyse.chosen_number(study, choice)
            known = {name: fits[name, n_classes] for name in data if (name, n_classes) in fits}
            fitted = self.fit(key, data, n_classes, known)
            suggested = None
            free = choice is not None and n_classes < choice["classes"].max()
            if free and stability and len(sequences) > 1:
                suggested = self.suggest(key, sequences, resamples, fits, n_classes)
            self.tell("Combining", 0.4)
            models, own = ({n: fitted[n] for n in part} for part in (resamples, sequences))
            analysis = analyse.combine(study, sequences, models, own, n_classes)
            key = self.key_of("describe", key, n_classes)
            self.tell("Comparing the sites", 0.42)
            findings = describe(
                study, analysis, choice, suggested, self.record_names, self.processes
            )
            key = make_key(key, findings.analysis.names)
        warned = _public(caught)
        shown = registry.all_items(study, findings)
        self.begin_single_courses(key, findings.analysis)
        self.write_tables(key, findings, shown)
        report = Report(
            study=study.name,
            synthetic=study.synthetic,
            sites=list(sequences),
            n_clusters=n_classes,
            states=list(next(iter(sequences.values())).states),
            views=[view for view, _ in course_views(analysis)],
            min_count=study.privacy.min_count,
            release=study.privacy.release,
            statement=statement(study),
            published=None if study.published is None else study.published.source,
            groups=groups_word(study),
            figures=study.outputs.figures,
            summary=summary(study, findings),
            methods=registry.methods(study, findings),
            careful=registry.cautions(study, findings, warned),
            numbers=findings.numbers,
            items=shown,
            results={section.key: section.title for section in registry.RESULTS},
            diagnostics={section.key: section.title for section in registry.DIAGNOSTICS},
        )
        if "docx" in study.outputs.formats:
            with self.step("word", key) as needed:
                if needed:
                    word = to_docx(study.name, findings.table_one, report.methods)
                    self.results.write("tables/table_one.docx", word)
        return report, key

    # --- what is computed ------------------------------------------------------------------

    def read(self, key: str) -> tuple[dict[str, Sequences], str]:
        """The sequences, always read again since every step needs them, and the key of the data."""
        study = self.study
        sources = {site: site_data.read_source(study, site) for site in study.sites}
        sequences = site_data.build_sites(study, sources)
        analyse.check_number(study, sequences)
        site_data.check_columns(study, sequences)
        if hashes := site_data.database_hashes(sources, sequences):
            key = make_key(key, hashes)
        with self.step("read", self.key_of("read", key)) as needed:
            for site, part in sequences.items() if needed else ():
                self.results.table(f"patients/{site}_sequences.csv", part.to_frame(), index=True)
                if part.account is not None:
                    self.results.table(f"patients/{site}_issues.csv", part.issues)
                    self.results.table(f"patients/{site}_unmapped.csv", part.account.unmapped)
        site_data.warn_unmapped(study, sequences)
        if hides(study.privacy.min_count):
            self.cohorts = cohorts_of(self.results, sequences)
            warn_of_earlier_results(study, self.results, self.cohorts)
        return sequences, key

    def choose(
        self, key: str, data: Mapping[str, Sequences]
    ) -> tuple[pd.DataFrame | None, analyse.Fits]:
        """The table of numbers of classes (None if the number is given), and its fits.

        A resumed run reads the table and has no fits.
        """
        rules = self.study.classes
        if rules.number != "vote":
            return None, {}
        n_fits = len(data) * len(set(rules.candidates))
        numbers = iter(range(n_fits))

        def tell(text: str) -> None:
            self.tell(f"Comparing numbers of classes: {text}", 0.05 + 0.3 * next(numbers) / n_fits)

        file = "models/selection.json"
        with self.step("choose", self.key_of("choose", key)) as needed:
            fits: analyse.Fits = {}
            if needed:
                table, fits = analyse.compare_numbers(self.study, data, self.processes, tell)
                params = {
                    site: {k: m.params_.to_dict() for (name, k), m in fits.items() if name == site}
                    for site in self.study.sites
                }
                self.results.json(file, {"fits": plain_records(table), "params": params})
            stored = self.results.read_json(file)
        table = pd.DataFrame(stored["fits"]).astype({"site": str})
        with self.step("selection", self.key_of("selection", key)) as needed:
            if needed:
                n = {name: float(part.weights.sum()) for name, part in data.items()}
                everyone = {site: pd.Series("", data[site].ids) for site in self.study.sites}
                rounding = rounding_of(self.study, everyone)
                shown = shown_fits(table, n, self.study.privacy.min_count, rounding)
                self.results.table("tables/selection.csv", shown)
                self._draw_alternatives(stored["params"], data)
        return table, fits

    def _draw_alternatives(
        self, params: Mapping[str, Mapping[str, Any]], data: Mapping[str, Sequences]
    ) -> None:
        """The courses of models with other numbers of classes, for the eyes of the hospital."""
        from mmlca.figures.models import plot_alternatives

        study, drawings = self.study, Drawings()
        for site in study.sites if study.outputs.figures else ():
            models = {int(k): MarkovParams.from_dict(part) for k, part in params[site].items()}
            draw = partial(
                plot_alternatives,
                *(models, data[site].states, data[site].shape[1]),
                xlabel=window_name(study).capitalize(),
            )
            drawings[site] = self.processes.submit(to_pictures, draw, study.outputs.dpi)
        for site, drawing in drawings.items():
            self.results.write(f"models/alternatives_{site}.png", drawing()["png"])

    def fit(self, key: str, data: Mapping[str, Sequences], n_classes: int, known: Models) -> Models:
        """One model per data set; those that the comparison of numbers fitted are `known`."""
        files = {name: f"models/{name}.json" for name in data}
        missing = {name: part for name, part in data.items() if name not in known}
        numbers = iter(range(len(missing)))

        def tell(text: str) -> None:
            self.tell(f"Fitting: {text}", 0.35 + 0.05 * next(numbers) / len(missing))

        with self.step("fit", self.key_of("fit", key, n_classes)) as needed:
            if not needed:
                return {n: MixtureMarkov.load(self.results.folder / f) for n, f in files.items()}
            models = known | analyse.fit_models(
                self.study, missing, n_classes, self.processes, tell
            )
            for name, file in files.items():
                self.results.json(file, models[name].to_dict())
            return models

    def suggest(
        self,
        key: str,
        sequences: Mapping[str, Sequences],
        resamples: Mapping[str, Sequences],
        fits: analyse.Fits,
        n_classes: int,
    ) -> pd.DataFrame:
        """The number of clusters that models with more classes suggest."""
        file = "models/suggested.json"
        with self.step("suggest", self.key_of("suggest", key, n_classes)) as needed:
            if not needed:
                return pd.DataFrame(self.results.read_json(file))
            self.tell("Asking models with more classes", 0.38)
            table = analyse.free_numbers(
                self.study, sequences, resamples, fits, n_classes, self.processes
            )
            self.results.json(file, plain_records(table))
            return table

    def record_names(self, courses: list[str | None]) -> dict[str, str]:
        """The course of each name of the study file; those of a list are kept for later runs."""
        file = "models/names.json"
        try:
            earlier = self.results.read_json(file)
        except (OSError, ValueError):
            earlier = {}
        given = courses_of_names(self.study, courses, earlier)
        if given and not isinstance(self.study.outputs.names, Mapping):
            with self.step("names", make_key(given)) as needed:
                if needed:
                    self.results.json(file, given)
        return given

    # --- what is written -------------------------------------------------------------------

    def write_tables(self, key: str, findings: Findings, shown: list[Item]) -> None:
        """The tables that are not behind a figure, and the patients' clusters."""
        self.tell("Writing tables", 0.5)
        with self.step("tables", key) as needed:
            if not needed:
                return
            for item in shown:
                if item.draw is None:
                    self.results.table(item.data_file, item.table)
            self.results.text("tables/table_one.md", findings.table_one.to_markdown() + "\n")
            self.results.text("tables/table_one.tex", findings.table_one.to_latex() + "\n")
            for site, table in findings.analysis.certainty.items():
                self.results.table(f"patients/{site}_clusters.csv", table, index=True)

    def begin_single_courses(self, key: str, analysis: Analysis) -> None:
        """Hand over the pictures of single patients, which stay in their folder."""
        if not self.study.outputs.figures or self.results.is_done("single courses", key):
            return
        for site in analysis.sequences:
            draw = draw_single_courses(self.study, analysis, site)
            self.single_courses[site] = self.processes.submit(
                to_pictures, draw, self.study.outputs.dpi
            )

    def begin_drawing(self, key: str, report: Report) -> Drawings:
        """Hand over the figures that an earlier run has not drawn."""
        outputs, processes = self.study.outputs, self.processes
        formats = ["png", *(f for f in ("svg", "pdf") if f in outputs.formats)]
        figures = [item for item in report.items if report.pictured(item)]
        undone = [i for i in figures if not self.results.is_done(f"figure {i.name}", key)]
        if len(undone) > 1:
            processes.start()
        return {
            item.name: processes.submit(
                draw_figure, item.draw, outputs.dpi, formats, item.chart is None
            )
            for item in undone
        }

    def write_figures(self, key: str, report: Report, drawings: Drawings) -> dict[str, bytes]:
        """The files of the figures; returns the pictures that the page shows, by name.

        Each figure is a step, so that an interrupted run loses one.
        """
        if report.figures:
            with self.step("single courses", key):
                for site, drawing in self.single_courses.items():
                    self.results.write(f"patients/{site}_courses.png", drawing()["png"])
        pictures, figures = {}, [item for item in report.items if item.draw is not None]
        for number, item in enumerate(figures):
            self.tell(f"Drawing: {item.title}", 0.55 + 0.4 * number / len(figures))
            with self.step(f"figure {item.name}", key) as needed:
                if needed:
                    self.results.table(item.data_file, item.table)
                if item.name in drawings:
                    files = drawings[item.name]()
                    pictures[item.name] = files.pop("webp", b"")
                    for ending, content in files.items():
                        self.results.write(f"figures/{item.name}.{ending}", content)
            if report.pictured(item) and item.chart is None and item.name not in drawings:
                picture = self.results.folder / item.picture_file
                pictures[item.name] = for_page(picture.read_bytes())
        return {name: picture for name, picture in pictures.items() if picture}


def warn_of_earlier_results(
    study: Study, results: Results, cohorts: Mapping[str, list[str]]
) -> None:
    """Warn where few patients differ from those of an earlier run, who could be worked out.

    Readers of a public release are not told that there is something to subtract from it.
    """
    from ehr_prep.readers import PrivateWarning

    for site in nearly_repeated(results, cohorts, study.privacy.min_count):
        text = (
            f"the patients at {site} are those of an earlier run in this folder, but for fewer "
            f"than {study.privacy.min_count} of them. Whoever sees the results of both can "
            "subtract them and learn about these few patients: show others the results of one run "
            "only."
        )
        warnings.warn(PrivateWarning(text, "" if is_public(study) else text), stacklevel=2)


def _public(caught: list[warnings.WarningMessage]) -> list[str]:
    """Warnings for the report; those that show patients are also repeated for whoever runs it.

    Warnings of other libraries, such as numpy's of an overflow, say nothing to a reader of the
    report, and are for whoever runs it alone.
    """
    from ehr_prep.readers import PrivateWarning

    texts = []
    for warning in caught:
        if not issubclass(warning.category, UserWarning):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        elif isinstance(warning.message, PrivateWarning):
            warnings.warn(warning.message, stacklevel=3)
            texts.append(warning.message.public)
        else:
            texts.append(str(warning.message))
    return [text for text in dict.fromkeys(texts) if text]
