"""Whole studies: what comes out, that it comes out again, and what happens when it cannot."""

from __future__ import annotations

import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import invoke, refusal
from paths import ROOT
from study_attack import number

import ehr_prep
import mmlca
from font.errors import ReportWarning
from mmlca.study import cache, read_study, run_study, write_study_file
from mmlca.study.cache import report_warnings
from mmlca.study.processes import Processes
from mmlca.tables.disclosure import is_small

SMALL = """
[classes]
number = 4
[pseudo_sites]
per_site = 2
[model]
n_init = 4
[inference]
simulations = 19
[outputs]
bootstrap = 20
dpi = 60
[table_one]
variables = ["age", "sex"]
[published]
transition_ensemble = 0.403
"""
TABLES = SMALL.replace("dpi = 60", "figures = false").replace(
    "simulations = 19", "simulations = 19\ndiagnostics = false\nstandard_errors = false"
)
"""The same without figures and without what is inferred from single models."""


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic cohort with a study file that asks for little."""
    folder = tmp_path_factory.mktemp("cohort")
    ehr_prep.ra_cohort(seed=1, scale=0.15).write(folder)
    write_study(folder / "study.toml", SMALL)
    return folder


def write_study(path: Path, more: str, sites: tuple[str, ...] = ("MGB", "VA")) -> None:
    lines = ['name = "Small study"', "synthetic = true"]
    for site in sites:
        lines += [f"[sites.{site}]", 'drugs = "ra"', f'truth = "truth/synthetic_{site}.csv"']
        for role, file in {
            "records": "medications",
            "patients": "patients",
            "labs": "labs",
        }.items():
            lines.append(f'{role} = "{site}/{file}.csv"')
    if "[rules]" not in more:
        lines += ["[rules]", "first_on_or_after = 2008-01-01", 'impute = "carry_forward"']
    path.write_text("\n".join(lines) + more)


@pytest.fixture(scope="module")
def done(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("out")
    return out, run_study(read_study(cohort / "study.toml"), out)


def files(folder: Path, *endings: str) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in endings
    }


def test_what_comes_out(done: tuple[Path, dict[str, Any]]) -> None:
    out, content = done
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    views = [
        f"{name}_{view}"
        for view in ("ensemble", "local")
        for name in ("state_distribution", "frequencies", "lines", "transitions", "lab")
    ]
    figures = [
        *views,
        "flow_MGB",
        "flow_VA",
        "weights",
        "agreement",
        "site_differences",
    ]
    assert {f"figures/{name}.{end}" for name in figures for end in ("png", "csv")} <= names
    tables = ["clusters", "clusters_by_site", "headline", "influence", "models", "table_one"]
    assert {f"tables/{name}.csv" for name in tables} <= names
    assert {"report.html", "results.json", "provenance.json", "tables/table_one.md"} <= names
    ends = ("clusters.csv", "courses.png")
    assert {f"patients/{site}_{end}" for site in ("MGB", "VA") for end in ends} <= names
    assert len([name for name in names if name.startswith("models/")]) == 6
    assert json.loads((out / "results.json").read_text()) == content
    assert len(content["summary"]) == 5
    parts = ("sizes", "moved", "by_site", "differences", "accuracy", "reliability")
    assert {f"tables/refined_{part}.csv" for part in parts} <= names
    listed = [item["file"] for section in content["sections"] for item in section["items"]]
    assert set(listed) <= names


def test_the_numbers_are_those_of_the_library(
    cohort: Path, done: tuple[Path, dict[str, Any]]
) -> None:
    out, content = done
    value = {row["name"]: row for row in content["numbers"]}
    sequences, clusters, own = {}, {}, {}
    for site in ("MGB", "VA"):
        folder = cohort / site
        records = ehr_prep.read_records(
            folder / "medications.csv", drugs="ra", patients=folder / "patients.csv"
        )
        sequences[site] = ehr_prep.build_sequences(records, preset="ra")
        table = pd.read_csv(out / f"patients/{site}_clusters.csv", index_col="id")
        assert table.index.equals(sequences[site].ids)
        assert table["margin"].le(1).all()
        assert table["vote_share"].between(0, 1).all()
        clusters[site] = table["cluster"]
        own[site] = mmlca.MixtureMarkov.load(out / f"models/{site}.json")
        share = (table["cluster"] == 1).mean()
        assert value[f"share of cluster 1, {site}"]["value"] == share
    found = mmlca.site_differences(sequences, clusters, models=own, n_boot=20, seed=1)
    norm = found.norms.query("membership == 'ensemble' and quantity == 'transition'").iloc[0]
    row = value["site difference, transition, ensemble, MGB − VA"]
    assert row["value"] == pytest.approx(norm["norm"], abs=6e-4)  # three decimals show
    assert row["debiased"] == pytest.approx(norm["debiased"], abs=6e-4)
    assert row["p_value"] is row["low"] is None  # neither holds where clusters are estimated
    assert row["published"] == 0.403
    shared = mmlca.shared_chain_test(sequences, clusters, n=19, seed=1)
    assert value["test of shared chains, MGB − VA"]["p_value"] == shared.tests["p_value"][0]
    row = value["difference of the sites' own chains, transition by occupancy, MGB − VA"]
    fields = ["debiased", "low", "high"]
    assert [row[f] for f in fields] == pytest.approx(shared.norms[fields].iloc[1], abs=6e-4)


def test_no_id_and_no_small_count_outside_the_folder_of_patients(
    done: tuple[Path, dict[str, Any]],
) -> None:
    out, _ = done
    for name, content in files(out, ".csv", ".json", ".html", ".md", ".tex").items():
        if not name.startswith("patients/"):
            assert b"SYN-MGB" not in content, name
            assert b"SYN-VA" not in content, name
    for name in ("state_distribution", "transitions", "lines"):
        for view in ("ensemble", "local"):
            table = pd.read_csv(out / f"figures/{name}_{view}.csv")
            counts = table[[c for c in ("count", "n", "size") if c in table]].fillna(0)
            assert not is_small(counts, 11).any(), (name, view)
    differences = pd.read_csv(out / "figures/site_differences.csv")[["n_first", "n_second"]]
    assert not is_small(differences.fillna(0), 11).any()
    assert (pd.read_csv(out / "figures/frequencies_ensemble.csv")["count"] >= 11).all()
    models = pd.read_csv(out / "tables/models.csv")
    assert not (models["smallest"] * models["patients"] < 10).any()
    assert (models[["loglik", "bic"]] % 1 == 0).all(axis=None)
    for site in ("MGB", "VA"):
        left = pd.read_csv(out / f"figures/flow_{site}.csv")["patients_left"].to_numpy()
        assert not np.isin(np.abs(left[:, None] - left), range(1, 11)).any()


def test_shares_in_table_one_do_not_reveal_the_size_of_a_cluster(
    cohort: Path, tmp_path: Path
) -> None:
    """27 (77.1 %) once revealed that a cluster whose size was hidden had 35 patients."""
    study = read_study(cohort / "study.toml").changed(
        privacy={"min_count": 35}, outputs={"figures": False}, inference={"diagnostics": False}
    )
    run_study(study, tmp_path)
    table = pd.read_csv(tmp_path / "tables/table_one.csv", dtype=str)
    table.columns = [
        name if ", " not in name else f"{name.split(', ')[0]}, {number(name.split(', ')[1])}"
        for name in table
    ]
    sizes = pd.read_csv(tmp_path / "tables/headline.csv").query("kind == 'share of'")
    sizes = sizes.assign(group=sizes["group"].map(number))
    hidden = sizes[sizes["n"].isna()]
    assert len(hidden)
    for site, group in zip(hidden["sites"], hidden["group"], strict=True):
        column = table[f"{site}, {group}"]
        assert column.iloc[0] == "–"
        counts = column[table["variable"].str.endswith("n (%)")]
        assert not counts.str.contains("(", regex=False).any()
    shown = sizes.dropna(subset="n")
    for site, group, n in zip(shown["sites"], shown["group"], shown["n"], strict=True):
        assert table[f"{site}, {group}"].iloc[0].startswith(f"{n:.0f} ")  # the same mask


class Stopped(Exception):
    pass


def test_stopped_runs_on_two_processes_give_the_files_of_one_run_on_one(
    cohort: Path, done: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    study = read_study(cohort / "study.toml")

    def stop_at(word: str) -> Any:
        def progress(text: str, share: float) -> None:
            if word in text:
                raise Stopped

        return progress

    told: list[str] = []
    with Processes(2) as processes:
        processes.start()
        for word in ("Fitting: VA", "Standard errors", "Treatment lines", "report"):
            with pytest.raises(Stopped):
                run_study(study, tmp_path, progress=stop_at(word), processes=processes)
            record = json.loads((tmp_path / "provenance.json").read_text())
            assert record["finished"] is None
            assert not (tmp_path / "report.html").exists()
        content = run_study(
            study,
            tmp_path,
            progress=lambda text, share: told.append(text),
            processes=processes,
        )
    assert content == done[1]
    assert not [text for text in told if text.startswith("Fitting: ")]
    first, second = (files(f, ".csv", ".md", ".tex", ".png") for f in (done[0], tmp_path))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    assert not list(tmp_path.rglob(".*"))


def test_only_what_depends_on_a_change_is_done_again(cohort: Path, tmp_path: Path) -> None:
    study = read_study(cohort / "study.toml").changed(
        outputs={"figures": False}, inference={"diagnostics": False, "standard_errors": False}
    )
    run_study(study, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    run_study(study, tmp_path)
    kept = [p for p, t in before.items() if p.stat().st_mtime_ns == t]
    assert {p.name for p in before.keys() - set(kept)} == {"provenance.json", "run.log"}
    (tmp_path / "tables/models.csv").write_text("spoilt")
    run_study(study.changed(table_one={"continuous": "median"}), tmp_path)
    assert "spoilt" not in (tmp_path / "tables/models.csv").read_text()
    models = [p for p in before if "models" in p.parts]
    assert models
    assert all(p.stat().st_mtime_ns == before[p] for p in models)
    one = study.changed(seed=2)  # type: ignore[arg-type]
    run_study(one, tmp_path)
    assert all(p.stat().st_mtime_ns != before[p] for p in models)


def test_figures_in_other_formats_and_a_word_document(cohort: Path, tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    more = SMALL.replace("dpi = 60", 'dpi = 60\nformats = ["svg", "pdf", "docx"]')
    write_study(cohort / "formats.toml", more, sites=("MGB",))
    run_study(read_study(cohort / "formats.toml"), tmp_path)
    for ending, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        assert (tmp_path / f"figures/flow_MGB.{ending}").read_bytes().startswith(start)
    document = docx.Document(str(tmp_path / "tables/table_one.docx"))
    texts = [cell.text for cell in document.tables[0].rows[1].cells]
    assert texts[0] == "patients, n (%)"
    assert any("mixture of 4 Markov chains" in part.text for part in document.paragraphs)
    listed = pd.read_csv(tmp_path / "tables/checklist.csv")
    assert set(listed["guideline"]) == {"GRoLTS", "RECORD-PE"}
    asked = listed.query("guideline == 'GRoLTS'")["item"].tolist()
    parts = {3: "abc", 6: "ab", 14: "abc"}
    assert asked == [f"{k}{part}" for k in range(1, 17) for part in parts.get(k, [""])]
    answers = listed.set_index("item")["answer"]
    assert answers["11"] == "not done"  # the number of classes was given


def test_one_hospital_alone(cohort: Path, tmp_path: Path) -> None:
    path = cohort / "one.toml"
    write_study(path, SMALL.replace("number = 4", "candidates = [2, 3]"), ("VA",))
    content = run_study(read_study(path), tmp_path)
    assert content["views"] == [None]
    assert content["n_clusters"] in (2, 3)
    assert (tmp_path / "figures/state_distribution.png").exists()
    assert (tmp_path / "figures/selection.csv").exists()
    assert not (tmp_path / "figures/weights.png").exists()
    assert "classes" in content["summary"][0]
    table = pd.read_csv(tmp_path / "patients/VA_clusters.csv")
    assert list(table.columns) == ["id", "class", "probability"]
    assert table["probability"].between(0, 1).all()


def test_sequences_instead_of_records(cohort: Path, tmp_path: Path) -> None:
    lines = ['name = "From sequences"']
    for site in ("MGB", "VA"):
        records = ehr_prep.read_records(cohort / site / "medications.csv", drugs="ra")
        ehr_prep.build_sequences(records, preset="ra").write(tmp_path / f"{site}.csv")
        lines += [f"[sites.{site}]", f'sequences = "{site}.csv"']
        lines += [f'patients = "{(cohort / site / "patients.csv").as_posix()}"']
        lines += [f'labs = "{(cohort / site / "labs.csv").as_posix()}"']
    path = tmp_path / "study.toml"
    more = SMALL.replace('["age", "sex"]', '["sex"]')
    more = more.replace("dpi = 60", 'figures = false\ntime = "Month"')
    path.write_text("\n".join(lines) + more)
    content = run_study(read_study(path), tmp_path / "out")
    assert "for up to 16 months, fall" in content["summary"][0]
    assert any("The labs of MGB and VA are not used" in note for note in content["careful"])
    assert "sex, n (%)" in (tmp_path / "out/tables/table_one.md").read_text()


def count_calls(patch: pytest.MonkeyPatch, functions: list[Any]) -> Counter[str]:
    """Counts calls of functions, under whatever name a module of the packages holds them."""
    calls: Counter[str] = Counter()

    def counted(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            calls[function.__name__] += 1
            return function(*args, **kwargs)

        return wrapper

    for function in functions:
        owner = function.__qualname__.rpartition(".")[0]
        if owner:
            holder = getattr(sys.modules[function.__module__], owner)
            patch.setattr(holder, function.__name__, counted(function))
            continue
        wrapper = counted(function)
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in ("mmlca", "font", "ehr_prep"):
                for key, value in list(vars(module).items()):
                    if value is function:
                        patch.setattr(module, key, wrapper)
    return calls


def test_nothing_is_computed_twice(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table once per view and site, its figure draws it; each file, model and label once."""
    from font.ensemble import Ensemble
    from mmlca.study.site_data import read_labs
    from mmlca.tables import describe
    from mmlca.tables.lab_trends import site_labs
    from mmlca.tables.representatives import shown_medoids
    from mmlca.tables.site_differences import compare_rules
    from mmlca.tables.table_one import put_together
    from mmlca.tables.treatment_lines import treatment_paths

    write_study(cohort / "calls.toml", SMALL.replace("number = 4", "candidates = [4]"))
    study = read_study(cohort / "calls.toml").changed(
        inference={"diagnostics": False, "standard_errors": False}
    )
    fit = mmlca.MixtureMarkov.fit
    per_site = [read_labs, Ensemble.confidence]
    per_view = [describe.state_distribution, treatment_paths]  # and per site
    once = [put_together]
    never = [describe.transition_counts, describe.transition_rates, mmlca.MixtureMarkov.load]
    never += [Ensemble.predict, describe.sequence_frequencies, mmlca.describe_clusters]
    parts = [compare_rules, site_labs, shown_medoids, mmlca.MixtureMarkov.predict]
    parts += [mmlca.MixtureMarkov.predict_proba]
    calls = count_calls(monkeypatch, [*per_site, *per_view, *once, *never, *parts, fit])
    ensembles = count_calls(monkeypatch, [Ensemble.fit])
    run_study(study, tmp_path)
    expected = {f.__name__: 2 for f in per_site} | {f.__name__: 1 for f in once}
    # the clusters of the ensemble, the sites' own classes and the refined clusters
    expected |= {f.__name__: 2 * 3 for f in per_view}
    expected["shown_medoids"] = 2 * 2 * 4  # of each group but the refined ones
    expected["site_labs"] = 2 * 2  # likewise
    expected["predict"] = 6 * 2  # every model at every site
    # by predict, of the own models, and of one model where the refinement begins
    expected["predict_proba"] = 6 * 2 + 2 + 2
    expected["compare_rules"] = 2  # of the ensemble, and refined
    expected["fit"] = 6 + 2  # the fits of the vote are the models; the other form at each site
    assert dict(calls) == expected
    assert dict(ensembles) == {"fit": 1}


def test_the_fits_of_the_vote_are_the_models(cohort: Path, tmp_path: Path) -> None:
    """One setting for starts: the table of numbers of classes does not contradict the models."""
    write_study(cohort / "vote.toml", TABLES.replace("number = 4", "candidates = [3, 4]"))
    content = run_study(read_study(cohort / "vote.toml"), tmp_path / "vote")
    k = content["n_clusters"]
    choice = pd.read_csv(tmp_path / "vote/figures/selection.csv")
    models = pd.read_csv(tmp_path / "vote/tables/models.csv").set_index("model")
    assert set(choice["site"]) == set(models.index)
    used = choice["form"] == models["form"].iloc[0]
    assert choice.loc[~used, "site"].unique().tolist() == ["MGB", "VA"]  # and not of resamples
    compared = choice[used & (choice["classes"] == k)].set_index("site")
    for column in ("loglik", "bic", "entropy", "replicated", "converged"):
        assert compared[column].to_dict() == models[column].to_dict()
    sites = choice[choice["chosen"] & choice["site"].isin(["MGB", "VA"])]
    assert k == mmlca.vote(sites)
    assert k == 3  # so that models with four classes are there to be asked
    suggested = pd.read_csv(tmp_path / "vote/tables/suggested.csv")
    assert suggested["classes"].tolist() == ["4", "all"]
    assert suggested["suggested"].between(2, 4).all()
    told: list[str] = []
    again = run_study(
        read_study(cohort / "vote.toml"),
        tmp_path / "vote",
        progress=lambda text, _: told.append(text),
    )
    assert again == content
    assert not [text for text in told if text.startswith(("Comparing models", "Fitting: ", "Ask"))]
    write_study(cohort / "given.toml", TABLES.replace("number = 4", f"number = {k}"))
    run_study(read_study(cohort / "given.toml"), tmp_path / "given")
    given = pd.read_csv(tmp_path / "given/tables/models.csv").set_index("model")
    by_count = ["parameters", "bic"]  # where forms are compared, of transitions that occur
    pd.testing.assert_frame_equal(given.drop(columns=by_count), models.drop(columns=by_count))


def test_without_stability_only_the_sites_choose(cohort: Path, tmp_path: Path) -> None:
    few = TABLES.replace("number = 4", "candidates = [3, 4]\nstability = false")
    write_study(cohort / "sites.toml", few)
    content = run_study(read_study(cohort / "sites.toml"), tmp_path)
    assert set(pd.read_csv(tmp_path / "figures/selection.csv")["site"]) == {"MGB", "VA"}
    models = pd.read_csv(tmp_path / "tables/models.csv")
    assert len(models) == 6  # the resamples are fitted all the same
    assert not (tmp_path / "tables/suggested.csv").exists()
    assert not [text for text in content["summary"] if "chose" in text and "resamples" in text]
    assert "pseudo-site" not in next(
        item["caption"]
        for section in content["sections"]
        for item in section["items"]
        if item["title"].startswith("BIC")
    )
    write_study(cohort / "sites.toml", few.replace("[3, 4]", "[3, 4, 5]"))
    again = run_study(read_study(cohort / "sites.toml"), tmp_path)
    assert again["n_clusters"] == content["n_clusters"]
    compared = pd.read_csv(tmp_path / "figures/selection.csv")["classes"]
    assert sorted(set(compared)) == [3, 4, 5]


def test_three_sites(cohort: Path, tmp_path: Path) -> None:
    """Every pair of sites has its numbers and its figure, and one caution speaks of all."""
    ehr_prep.ra_cohort(seed=2, scale=0.15).write(tmp_path)
    write_study(tmp_path / "study.toml", "")
    text = (tmp_path / "study.toml").read_text().split("[sites.VA]")[1]
    other = f"[sites.NY]{text}".replace('"VA/', f'"{(cohort / "VA").as_posix()}/')
    other = other.replace('"truth/', f'"{(cohort / "truth").as_posix()}/')
    write_study(tmp_path / "study.toml", "\n" + other + TABLES)
    content = run_study(read_study(tmp_path / "study.toml"), tmp_path / "out")
    assert content["sites"] == ["MGB", "VA", "NY"]
    pairs = ["MGB − VA", "MGB − NY", "VA − NY"]
    (rule,) = [note for note in content["careful"] if note.startswith("A common rule often")]
    assert all(f"{pair}: MGB everywhere" in rule for pair in pairs)
    differences = [row for row in content["numbers"] if row["kind"] == "site difference"]
    assert list(dict.fromkeys(row["sites"] for row in differences)) == pairs
    assert len({row["name"] for row in content["numbers"]}) == len(content["numbers"])
    (section,) = [s for s in content["sections"] if s["id"] == "sites"]
    titles = [item["title"] for item in section["items"]]
    assert titles == [
        "Size of the differences",
        "Do the sites share the courses of the clusters?",
        "How far apart the sites' own chains are",
        *(f"Differences between the sites, {pair}" for pair in pairs),
    ]
    tests = pd.read_csv(tmp_path / "out/tables/shared_chains.csv")
    assert tests["sites"].tolist() == ["all sites", *pairs]
    assert (tests["p_holm"] >= tests["p_value"]).all()
    assert "pairs of sites" in content["summary"][-1]
    norms = pd.read_csv(tmp_path / "out/tables/site_differences_norms.csv")
    assert norms["sites"].unique().tolist() == pairs


# --- what goes wrong -------------------------------------------------------------------------


def wrong(path: Path, out: Path) -> str:
    """The sentence with which `mmlca study run` refuses."""
    return refusal("study", "run", path, "--out", out)


def test_a_site_without_eligible_patients(cohort: Path, tmp_path: Path) -> None:
    write_study(cohort / "late.toml", "\n[rules]\nfirst_on_or_after = 2030-01-01\n" + SMALL)
    message = wrong(cohort / "late.toml", tmp_path / "out")
    assert "site MGB: none of the" in message
    assert not (tmp_path / "out/report.html").exists()


def test_a_site_with_too_few_patients_to_show(cohort: Path, tmp_path: Path) -> None:
    write_study(cohort / "few.toml", SMALL + "\n[privacy]\nmin_count = 400\n")
    with pytest.raises(ValueError, match="site MGB has fewer eligible patients than") as error:
        run_study(read_study(cohort / "few.toml"), tmp_path)
    assert "325" not in str(error.value)  # the number itself is small


def test_sites_with_different_states(cohort: Path, tmp_path: Path) -> None:
    (cohort / "map.csv").write_text("name,class\nadalimumab,A\nHumira,A\nabatacept,B\n")
    text = (cohort / "study.toml").read_text()
    text = text.replace('[sites.VA]\ndrugs = "ra"', '[sites.VA]\ndrugs = "map.csv"')
    (cohort / "states.toml").write_text(text)
    with pytest.raises(ValueError, match=r"MGB has the states TNFi, .* and VA has A, B; all sites"):
        run_study(read_study(cohort / "states.toml"), tmp_path)


def test_a_column_that_no_patient_has(cohort: Path, tmp_path: Path) -> None:
    study = read_study(cohort / "study.toml").changed(table_one={"variables": ("weight",)})
    with pytest.raises(ValueError, match=r"table_one\.variables names weight, but the patients"):
        run_study(study, tmp_path)


def test_a_folder_that_cannot_be_written(cohort: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(OSError, match="cannot write to"):
        run_study(read_study(cohort / "study.toml"), tmp_path / "taken")
    assert "is a file" in wrong(cohort / "study.toml", tmp_path / "taken")


def test_a_full_disk(cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = read_study(cohort / "study.toml").changed(
        outputs={"figures": False}, inference={"diagnostics": False, "standard_errors": False}
    )
    left = [400_000]
    real = cache.atomic

    def atomic(path: Path, **more: bool) -> Any:
        left[0] -= 20_000
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(path, **more)

    monkeypatch.setattr(cache, "atomic", atomic)
    with pytest.raises(OSError, match=r"cannot write .* \(No space left on device\); finished"):
        run_study(study, tmp_path)
    monkeypatch.undo()
    assert json.loads((tmp_path / "provenance.json").read_text())["finished"] is None
    run_study(study, tmp_path)
    assert json.loads((tmp_path / "provenance.json").read_text())["finished"]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_is_one_sentence_and_the_run_can_go_on(cohort: Path, tmp_path: Path) -> None:
    path = cohort / "tables.toml"
    write_study(path, TABLES)
    code = (  # a shell's background jobs ignore the signal, and so would their children
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from mmlca.cli.app import main; main()"
    )
    command = [sys.executable, "-c", code, "study", "run", str(path)]
    command += ["--out", str(tmp_path), "--no-progress"]
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    run = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=here)
    deadline = time.monotonic() + 60
    while not (tmp_path / "models").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    said, error = run.communicate(timeout=60)
    assert run.returncode == 1
    assert said == ""
    assert error == "mmlca: stopped; the same command continues after the last finished step.\n"
    assert not (tmp_path / "report.html").exists()
    assert run_study(read_study(path), tmp_path)["n_clusters"] == 4


def test_a_single_class_is_a_finding_with_a_whole_report(cohort: Path, tmp_path: Path) -> None:
    study = read_study(cohort / "study.toml")
    rules = {"number": "vote", "candidates": (1,)}
    content = run_study(study.changed(classes=rules), tmp_path)
    assert content["n_clusters"] == 1
    assert "are best described by a single class: no groups" in content["summary"][0]
    text = " ".join([*content["summary"], content["methods"], *content["careful"]])
    assert "1 classes" not in text
    assert "one classes" not in text
    assert "fitted one Markov chain to each" in content["methods"]
    names = [item["file"] for section in content["sections"] for item in section["items"]]
    for name in ("tables/models.csv", "tables/site_differences_norms.csv", "tables/clusters.csv"):
        assert name in names
    clusters = pd.read_csv(tmp_path / "patients/MGB_clusters.csv")
    assert set(clusters["class"]) == {1}
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_more_classes_than_could_be_shown_are_refused(cohort: Path, tmp_path: Path) -> None:
    study = read_study(cohort / "study.toml")
    with pytest.raises(ValueError, match=r"classes.number is 60, but MGB has .* at most \d+, or"):
        run_study(study.changed(classes={"number": 60}, privacy={"min_count": 11}), tmp_path)


# --- commands ----------------------------------------------------------------------------


def test_init_writes_a_file_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    assert invoke("study", "init", path, "--site", "North", "--site", "South").exit_code == 0
    assert "[sites.North]" in path.read_text()
    assert "replace it with --force" in refusal("study", "init", path)
    assert invoke("study", "init", path, "--force").exit_code == 0
    assert "[sites.hospital_1]" in path.read_text()


def test_the_command_prints_the_summary_or_json_or_nothing(cohort: Path, tmp_path: Path) -> None:
    study = cohort / "printed.toml"
    write_study(study, TABLES, ("VA",))
    plain = invoke("study", "run", study, "--out", tmp_path, "--no-progress")
    assert plain.exit_code == 0
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["summary"][0] in plain.stdout
    assert "keep them inside the hospital" in plain.stdout
    found = json.loads(invoke("study", "run", study, "--out", tmp_path, "--json").stdout)
    assert found["numbers"] == content["numbers"]
    assert invoke("study", "run", study, "--out", tmp_path, "--quiet").output == ""


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    run = invoke("demo", "--out", tmp_path, "--seed", 3, "--scale", 0.15, "--json")
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    assert found["synthetic"]
    assert found["sites"] == ["MGB", "VA"]
    assert (tmp_path / "report.html").exists()
    assert read_study(tmp_path / "cohort/study.toml").seed == 3
    assert read_study(tmp_path / "cohort/study.toml").privacy.min_count == 1
    assert any("synthetic" in note for note in found["careful"])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "fewer than 1 " not in page  # nothing is hidden, and nothing says that it is
    assert "below 1 " not in page


# --- the numbers of the reference study --------------------------------------------------------

PUBLISHED = {"MGB": (1406, 292, 249, 217), "VA": (2043, 529, 319, 267)}


def reference_study(out: Path, seed: int, *, tried: tuple[int, ...]) -> dict[str, float]:
    """The headline numbers of the reference study, after the checks that hold for every seed."""
    folder = out / f"cohort{seed}"
    ehr_prep.ra_cohort(seed).write(folder)
    write_study_file(folder / "study.toml", ["MGB", "VA"], seed=seed, synthetic=True, preset="ra")
    study = read_study(folder / "study.toml").changed(
        outputs={"figures": False, "bootstrap": 0}, classes={"candidates": tried}
    )
    content = run_study(study, folder / "out")
    value = {row["name"]: row["value"] for row in content["numbers"]}
    assert content["n_clusters"] == 4
    assert value["adjusted Rand index against the truth, all"] >= 0.84
    norm = "site difference, transition by occupancy, {}, MGB − VA"
    assert value[norm.format("ensemble")] < value[norm.format("local")]
    for site, sizes in PUBLISHED.items():
        found = np.sort([value[f"share of cluster {k}, {site}"] for k in range(1, 5)])
        assert found == pytest.approx(np.sort(sizes) / sum(sizes), abs=0.03)
    return value


@pytest.mark.filterwarnings("ignore:the best of:UserWarning")  # the report's cautions say so
@pytest.mark.slow
def test_the_reference_study_and_the_example_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = reference_study(tmp_path, 1, tried=(3, 4, 5))
    norm = "site difference, {}, {}, MGB − VA"
    assert value[norm.format("transition", "ensemble")] < value[norm.format("transition", "local")]
    monkeypatch.setattr(sys, "argv", ["ra_study.py", str(tmp_path)])
    found = runpy.run_path(str(ROOT / "examples/ra_study.py"))
    assert found["k"] == 4
    kinds = {"plain": "", "occupancy": " by occupancy"}
    for row in found["differences"].norms.itertuples():
        name = norm.format(row.quantity + kinds[row.weighting], row.membership)
        assert value[name] == pytest.approx(row.norm, rel=1e-9)
    for site, accuracy in found["accuracy"].items():
        name = f"adjusted Rand index against the truth, {site}"
        assert value[name] == pytest.approx(accuracy, rel=1e-9)
        share = found["clusters"][site].value_counts(normalize=True)
        for cluster in range(1, 5):
            assert value[f"share of cluster {cluster}, {site}"] == share[cluster]
    assert len(list(tmp_path.glob("*.png"))) == 4


@pytest.mark.slow
def test_the_reference_study_with_more_seeds(tmp_path: Path) -> None:
    values = [reference_study(tmp_path, seed, tried=tuple(range(1, 9))) for seed in range(1, 11)]
    table = pd.DataFrame(values)
    assert (table["sites that chose this number"] == 2).all()
    assert table["share of resamples that chose this number"].mean() > 0.8
    ours, local = (
        table[f"site difference, transition, {name}, MGB − VA"] for name in ("ensemble", "local")
    )
    assert (ours < local).sum() >= 8  # the plain norm is noisy: rare rows count as much as others
    assert ours.mean() < 0.9 * local.mean()


def warn_for_report(*warned: Warning) -> list[str]:
    with report_warnings() as texts:
        for warning in warned:
            warnings.warn(warning, stacklevel=1)
    return texts


def test_a_warning_that_shows_patients_is_repeated_and_public_in_the_report() -> None:
    private = ReportWarning("only 3 of 9 patients: '0017'", "few of the patients are there")
    with pytest.warns(ReportWarning, match="0017") as shown:
        texts = warn_for_report(private, ReportWarning("for all"), ReportWarning("for all"))
    assert texts == ["few of the patients are there", "for all"]
    assert len(shown) == 1


@pytest.mark.parametrize("kind", [RuntimeWarning, UserWarning])
def test_a_warning_that_was_not_made_for_the_report_is_no_caution(kind: type[Warning]) -> None:
    """Text such as "overflow encountered in exp" once stood among the cautions."""
    with pytest.warns(kind, match="overflow"):  # whoever runs the study sees it
        texts = warn_for_report(kind("overflow encountered in exp"), ReportWarning("no curve"))
    assert texts == ["no curve"]
