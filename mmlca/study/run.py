"""Run a study: read, compare numbers of classes, fit, combine, describe, draw, report."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ehr_prep.build import TreatmentSequences
from ehr_prep.labs import Trend, trend
from ehr_prep.tables import TableOne, table_one
from font.stability import influence
from mmlca import __version__
from mmlca.checks import listed
from mmlca.compare import SiteDifferences, describe_clusters, site_differences
from mmlca.model import MixtureMarkov
from mmlca.sequences import Sequences
from mmlca.study import analysis, data, figures, words
from mmlca.study.analysis import Analysis, Models
from mmlca.study.config import Study
from mmlca.study.figures import Drawing
from mmlca.study.results import Progress, Results, make_key, open_results, plain_records

SECTIONS = {
    "patients": "Patients",
    "classes": "Number of classes",
    "models": "Models",
    "ensemble": "Ensemble",
    "clusters": "Clusters",
    "sites": "Differences between sites",
    "labs": "Laboratory values",
    "numbers": "All numbers",
}


def run_study(
    study: Study, out: str | os.PathLike[str], *, progress: Progress | None = None
) -> dict[str, Any]:
    """Do everything that a study file asks for, and write it to a folder.

    A run that was interrupted is taken up where it stopped; a finished one is not repeated. Only
    what depends on a changed setting or file is done again.

    Parameters
    ----------
    study : Study
        From `read_study`.
    out : path
        The folder gets `report.html`, `results.json` (numbers and texts), `provenance.json`
        (settings, versions, hashes, times), `tables/`, `figures/` with a table beside each
        figure, `models/`, and `patients/`, which holds ids and must stay inside the hospital.
    progress : function (text, share), optional

    Returns
    -------
    dict
        The content of `results.json`.
    """
    from mmlca.study.report import render_report

    tell = progress or (lambda text, share: None)
    tell("Reading", 0.0)
    results, key = open_results(study, out)
    run = _Run(study, results, tell)
    content = run.all_steps(key)
    results.keep_only([*run.names, "report"])
    steps = {n: step["files"] for n, step in results.record["steps"].items() if n != "report"}
    with run.step("report", make_key(content, results.about, steps)) as needed:
        if needed:
            tell("Writing the report", 0.97)
            results.text("report.html", render_report(content, results.record, results.folder))
    results.finish()
    tell("Done", 1.0)
    return content


@dataclass
class _Run:
    """The steps of one run. Each writes its files and hands on what later steps need."""

    study: Study
    results: Results
    tell: Progress
    names: list[str] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    waiting: dict[str, pd.DataFrame] = field(default_factory=dict)

    def all_steps(self, key: str) -> dict[str, Any]:
        study = self.study
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            key = make_key(key, study.plain()["sites"], study.records.options(), study.rules)
            sequences = self.read(key)
            resamples = analysis.resample(study, sequences)
            key = make_key(key, study.seed, study.pseudo_sites, study.model.prior)
            choice = self.choose(make_key(key, study.classes), resamples)
            n_classes = analysis.chosen_number(study, choice)
            if n_classes == 1 and len(sequences) > 1:
                raise ValueError(
                    f"{study.classes.criterion.upper()} chooses a single class at most "
                    "pseudo-sites (tables/selection.csv), so that there are no courses to tell "
                    "apart; set classes.number, or leave 1 out of classes.candidates."
                )
            key = make_key(key, study.model, n_classes)
            models, own = self.fit(key, sequences, resamples, n_classes)
            self.tell("Combining", 0.4)
            found = analysis.combine(study, sequences, models, own, n_classes)
            differences, trends = self.compare(found), self.labs(found)
        warned = list(dict.fromkeys(str(warning.message) for warning in caught))
        key = make_key(key, study.ensemble, study.outputs, study.privacy, study.published)
        moved = None if found.ensemble is None else influence(found.ensemble)
        truth = data.agreement_with_truth(study, found)
        numbers = words.headline(study, found, choice, differences, truth)
        low, after = study.privacy.min_count, words.period(study, sequences)
        described = describe_clusters(sequences, found.clusters, after=after)
        described = figures.hide_small(described, low)
        first = self.table_one(found, described)
        self.collect(found, numbers, described, first, differences, moved)
        self.write_tables(key, found, first)
        drawings = [
            *figures.data_figures(study, sequences, choice),
            *figures.ensemble_figures(found),
            *figures.course_figures(study, found),
            *([] if differences is None else figures.difference_figures(study, differences)),
            *figures.lab_figures(study, trends),
        ]
        self.draw(key, drawings)
        groups = words.groups_word(study).capitalize()
        content = {
            "study": study.name,
            "synthetic": study.synthetic,
            "sites": list(sequences),
            "n_clusters": n_classes,
            "states": list(next(iter(sequences.values())).states),
            "views": [view for view, _ in figures.views(found)],
            "min_count": study.privacy.min_count,
            "published": None if study.published is None else study.published.source,
            "summary": words.five_sentences(study, found, choice, described, numbers, moved),
            "methods": words.methods(study, found, n_classes, __version__),
            "careful": words.careful(study, found, choice, differences, numbers, warned),
            "numbers": plain_records(numbers),
            "sections": [
                {"id": name, "title": title.replace("Clusters", groups), "items": items}
                for name, title in SECTIONS.items()
                if (items := [item for item in self.items if item["section"] == name])
            ],
        }
        with self.step("results", make_key(key, content)) as needed:
            if needed:
                self.results.json("results.json", content)
        return content

    def step(self, name: str, key: str) -> Any:
        self.names.append(name)
        return self.results.step(name, key)

    # --- what is computed ------------------------------------------------------------------

    def read(self, key: str) -> dict[str, Sequences]:
        """The sequences are always read again: it is quick, and every step needs them."""
        study = self.study
        sources = {site: data.read_source(study, site) for site in study.sites}
        sequences = data.build_sites(study, sources)
        with self.step("read", key) as needed:
            for site, part in sequences.items() if needed else ():
                self.results.table(f"patients/{site}_sequences.csv", part.to_frame(), index=True)
                if isinstance(part, TreatmentSequences):
                    self.results.table(f"patients/{site}_issues.csv", part.issues)
        for site, part in sequences.items():
            if isinstance(part, TreatmentSequences) and len(part.issues):
                self.table(
                    "patients",
                    f"issues_{site}",
                    part.issues.drop(columns="examples"),
                    f"Odd records at {site}",
                    "What looked odd, how often, and what was done about it. The folder patients "
                    "has examples.",
                )
        return sequences

    def choose(self, key: str, resamples: Mapping[str, Sequences]) -> pd.DataFrame | None:
        rules = self.study.classes
        if rules.number != "vote":
            return None
        n_fits = len(resamples) * len(set(rules.candidates))
        numbers = iter(range(n_fits))

        def tell(text: str) -> None:
            self.tell(f"Comparing numbers of classes: {text}", 0.1 + 0.2 * next(numbers) / n_fits)

        with self.step("choose", key) as needed:
            if needed:
                table = analysis.compare_numbers(self.study, resamples, tell)
                self.results.table("tables/selection.csv", table)
        return pd.read_csv(self.results.folder / "tables/selection.csv", dtype={"site": str})

    def fit(
        self,
        key: str,
        sequences: Mapping[str, Sequences],
        resamples: Mapping[str, Sequences],
        n_classes: int,
    ) -> tuple[Models, Models]:
        """The models of the pseudo-sites, and one of each whole site."""
        parts = {**resamples, **sequences}
        files = {name: f"models/{name}.json" for name in parts}
        numbers = iter(range(len(parts)))

        def tell(text: str) -> None:
            self.tell(f"Fitting: {text}", 0.3 + 0.1 * next(numbers) / len(parts))

        with self.step("fit", key) as needed:
            if needed:
                for name, model in analysis.fit_models(self.study, parts, n_classes, tell).items():
                    self.results.json(files[name], model.to_dict())
        models = {n: MixtureMarkov.load(self.results.folder / file) for n, file in files.items()}
        return {n: models[n] for n in resamples}, {n: models[n] for n in sequences}

    def compare(self, found: Analysis) -> SiteDifferences | None:
        if found.ensemble is None:
            return None
        self.tell("Comparing the sites", 0.42)
        return site_differences(
            found.sequences,
            found.clusters,
            models=found.own,
            n_boot=self.study.outputs.bootstrap,
            seed=self.study.seed,
        )

    def labs(self, found: Analysis) -> dict[str | None, Trend]:
        """The lab's course under each membership, at the sites that have labs and dates."""
        labs = {site: files.labs for site, files in self.study.sites.items() if files.labs}
        undated = [site for site in labs if not hasattr(found.sequences[site], "patients")]
        if undated:
            warnings.warn(
                f"the labs of {listed(undated)} are not used: sequences from a file have "
                "no dates; give records instead.",
                stacklevel=2,
            )
        dated = {site: labs[site] for site in labs if site not in undated}
        if not dated:
            return {}
        self.tell("Fitting the laboratory values", 0.45)
        return {
            view: trend(
                dated,
                {site: figures.named_groups(self.study, clusters[site]) for site in dated},
                {site: found.sequences[site] for site in dated},
                test=self.study.outputs.lab,
            )
            for view, clusters in figures.views(found)
        }

    # --- what is written -------------------------------------------------------------------

    def table(self, section: str, name: str, frame: pd.DataFrame, title: str, caption: str) -> None:
        """Keep a table for the report; `write_tables` writes them all."""
        file = f"tables/{name}.csv"
        self.waiting[file] = frame
        item = {"section": section, "kind": "table", "file": file, "title": title}
        self.items.append({**item, "caption": caption})

    def write_tables(self, key: str, found: Analysis, first: TableOne) -> None:
        self.tell("Writing tables", 0.5)
        with self.step("tables", key) as needed:
            if not needed:
                return
            for file, frame in self.waiting.items():
                self.results.table(file, frame)
            self.results.text("tables/table_one.md", first.to_markdown() + "\n")
            self.results.text("tables/table_one.tex", first.to_latex() + "\n")
            for site in found.sequences:
                self.results.table(f"patients/{site}_clusters.csv", _memberships(found, site), True)

    def collect(
        self,
        found: Analysis,
        numbers: pd.DataFrame,
        described: pd.DataFrame,
        first: TableOne,
        differences: SiteDifferences | None,
        moved: pd.DataFrame | None,
    ) -> None:
        """The tables that are not behind a figure."""
        low, table = self.study.privacy.min_count, self.table
        groups = words.groups_word(self.study)
        table(
            "models",
            "models",
            _fit_table({**found.models, **found.own}),
            "Models",
            "Log-likelihood, BIC and entropy R² of each model, the share of its smallest class, "
            "and how many of the starts that were followed reached the maximum.",
        )
        if moved is not None:
            table(
                "ensemble",
                "influence",
                _few_hidden(moved, low).reset_index(),
                "Influence of each site",
                "Patients who would change cluster if a site, its models and its patients, had "
                "not taken part.",
            )
        table(
            "clusters",
            "clusters",
            described,
            f"The {groups} in numbers",
            "All sites together: patients, the most common first drug class, the share still on "
            "it at the end, where switches go, and the mean number of switches.",
        )
        if len(found.sequences) > 1:
            by_site = describe_clusters(found.sequences, found.clusters, by_site=True)
            table(
                "clusters",
                "clusters_by_site",
                figures.hide_small(by_site.drop(columns="description"), low),
                f"The {groups} at each site",
                "The same at each site.",
            )
        frame = first.to_frame()
        frame.columns = pd.Index([", ".join(c) if isinstance(c, tuple) else c for c in frame])
        table(
            "clusters",
            "table_one",
            frame.reset_index(names=["variable", "level"]),
            f"Patients by {words.group_word(self.study)}",
            f"Number (%) or mean (SD). Counts below {low} are not shown.",
        )
        if differences is not None:
            norms, study = differences.norms, self.study
            if study.published is not None:
                known = [words.published_norm(study, row) for row in norms.itertuples()]
                norms = norms.assign(published=pd.Series(known, norms.index, dtype=float))
            table(
                "sites",
                "site_differences_norms",
                norms,
                "Size of the differences",
                "Frobenius norms averaged over clusters, with 95 % intervals. Chance: what "
                "sampling alone would give if the sites did not differ.",
            )
        table(
            "numbers",
            "headline",
            numbers,
            "All numbers of the summary",
            "Every number that the summary rests on.",
        )

    def table_one(self, found: Analysis, described: pd.DataFrame) -> TableOne:
        wanted = self.study.outputs.table_one
        patients = {
            site: data.patients_of(self.study, site, part) for site, part in found.sequences.items()
        }
        if wanted is not None:
            known = set.intersection(*(set(frame) for frame in patients.values()))
            absent = [name for name in wanted if name not in known]
            if absent:
                raise ValueError(
                    f"outputs.table_one names {', '.join(absent)}, but the patients' tables of all "
                    f"sites have {', '.join(sorted(known)) or 'no columns'}."
                )
        named = {
            site: figures.named_groups(self.study, part) for site, part in found.clusters.items()
        }
        texts = zip(described["cluster"], described["description"], strict=True)
        several = len(patients) > 1
        (site, *_) = patients
        return table_one(
            patients if several else patients[site],
            named if several else named[site],
            variables=wanted,
            descriptions={words.group_name(self.study, c): text for c, text in texts},
            min_count=self.study.privacy.min_count,
        )

    def draw(self, key: str, drawings: list[Drawing]) -> None:
        """Each figure is a step, so that an interrupted run loses one at most."""
        outputs = self.study.outputs
        for number, one in enumerate(drawings):
            self.tell(f"Drawing: {one.title}", 0.55 + 0.4 * number / len(drawings))
            picture, table = f"figures/{one.name}.png", f"figures/{one.name}.csv"
            with self.step(f"figure {one.name}", key) as needed:
                if needed:
                    self.results.table(table, one.table)
                    if outputs.figures:
                        self.results.write(picture, figures.to_png(one.draw, outputs.dpi))
            item = {"section": one.section, "title": one.title, "caption": one.caption}
            if outputs.figures:
                more = {"alt": one.alt, "view": one.view, "data": table}
                self.items.append({**item, "kind": "figure", "file": picture, **more})
            else:
                self.items.append({**item, "kind": "table", "file": table, "view": one.view})


def _few_hidden(moved: pd.DataFrame, low: int) -> pd.DataFrame:
    """Blank small numbers of patients who would change cluster."""
    counts = moved.filter(like="changed")
    small = (counts > 0) & (counts < low)
    moved = moved.assign(**{c: counts[c].mask(small[c]) for c in counts})
    return moved.assign(share=moved["share"].mask(small["changed"]))


def _fit_table(models: Mapping[str, MixtureMarkov]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "model": name,
                "patients": model.n_sequences_,
                "classes": len(model.weights_),
                "loglik": model.loglik_,
                "bic": model.bic(),
                "entropy": model.entropy(),
                "smallest": float(model.params_.weights.min()),
                "replicated": model.n_replicated_,
                "converged": model.converged_,
            }
            for name, model in models.items()
        ]
    )


def _memberships(found: Analysis, site: str) -> pd.DataFrame:
    """Each patient's cluster, how sure it is, and the class of the site's own model."""
    probability = found.own[site].predict_proba(found.sequences[site])
    if found.ensemble is None:
        return pd.DataFrame({"class": found.local[site], "probability": probability.max(axis=1)})
    own = {"own_class": found.local[site], "own_probability": probability.max(axis=1)}
    table = found.ensemble.confidence(found.labels[site])
    table["cluster"] += 1
    table["runner_up"] = (table["runner_up"] + 1).where(table["runner_up"] >= 0)
    return table.assign(**own)
