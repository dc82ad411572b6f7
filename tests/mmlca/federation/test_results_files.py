"""The results of a site as an exchange file: exact round trip, strict reading, the ledger."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chain_study import SITES, STUDY, combined, hospital, refine_by_files
from commands import mmlca_does

import font
import mmlca
from font.errors import InputError
from font.exchange import registry as formats
from font.exchange.envelope import fingerprint
from font.exchange.explain import explain_page
from font.exchange.messages.refinement import read_step
from mmlca.federation.results import FORMAT, read_results, site_patients, study_of, write_results
from mmlca.federation.steps import FITS
from mmlca.study.results.registry import TABLES, site_results
from mmlca.study.results.site import Column, SiteResults, typed
from mmlca.study.settings import Study

OF = "0" * 64
HEADER = font.Header(study=STUDY, site="north")
COLUMNS = {
    "name": Column("text", "the name"),
    "n": Column("count", "patients"),
    "group": Column("whole", "the cluster"),
    "mean": Column("number", "the mean age"),
    "shown": Column("flag", "whether it shows"),
}


@pytest.fixture
def one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format of one table, with a column of each kind."""
    monkeypatch.setitem(formats._FORMATS, FORMAT, {"people": COLUMNS})
    monkeypatch.setattr("mmlca.federation.results.TABLES", {"people": COLUMNS})


def people(unit: int = 11, **changes: list[Any]) -> SiteResults:
    table: dict[str, list[Any]] = {
        "name": ["=1+1", None, "<b>é", "=1+1"],
        "n": [22, 0, None, 11],
        "group": [-1, 2, None, 3],
        "mean": [math.pi, 1 / 3, None, -0.0],
        "shown": [True, False, True, True],
    }
    return SiteResults("north", unit, {"people": typed(pd.DataFrame(table | changes), COLUMNS)})


def written(results: SiteResults, min_count: int = 11) -> bytes:
    return write_results(results, HEADER, of=OF, min_count=min_count)


def changed(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A file with another payload, and the checksum that fits it."""
    content = json.loads(data)
    change(content["payload"])
    content["sha256"] = fingerprint(content["payload"])
    return json.dumps(content).encode()


# --- the file ------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_table")
def test_tables_come_back_bit_for_bit() -> None:
    results = people()
    read = read_results(written(results), HEADER, of=OF, min_count=11)
    assert (read.site, read.unit) == ("north", 11)
    pd.testing.assert_frame_equal(read.tables["people"], results.tables["people"], check_exact=True)
    before, after = (r.tables["people"]["mean"].to_numpy() for r in (results, read))
    assert before.tobytes() == after.tobytes()  # the sign of zero, too
    empty = SiteResults("north", 1, {"people": typed(pd.DataFrame(columns=list(COLUMNS)), COLUMNS)})
    pd.testing.assert_frame_equal(
        read_results(written(empty, 1)).tables["people"], empty.tables["people"]
    )


@pytest.mark.usefixtures("one_table")
def test_texts_lose_what_hides_or_breaks_lines() -> None:
    texts = ["a\nb", "x\u202ey", "z" * 2000, "plain"]
    read = read_results(written(people(name=texts))).tables["people"]["name"]
    assert read.tolist() == ["a b", "x y", "z" * 999 + "…", "plain"]


@pytest.mark.usefixtures("one_table")
@pytest.mark.parametrize(
    ("column", "values"),
    [("n", [0.5, 1, 2, 3]), ("group", [1.5, 1, 2, 3]), ("mean", [np.inf, 1, 2, 3])],
)
def test_a_site_does_not_write_what_the_specification_excludes(
    column: str, values: list[float]
) -> None:
    with pytest.raises(ValueError, match=f"the column {column} of the table people has"):
        written(people(1, **{column: values}), 1)
    with pytest.raises(ValueError, match="counts are multiples of 1, not of 11"):
        written(people(1), 11)


def column(payload: dict[str, Any], name: str) -> dict[str, Any]:
    columns = {c["name"]: c for c in payload["tables"][0]["columns"]}
    found: dict[str, Any] = columns[name]
    return found


_HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a count that was not rounded": (
        lambda p: column(p, "n").update(values=[22, 0, 5, 11]),
        "the count 5, not a multiple of its min_count 11",
    ),
    "a negative count": (lambda p: column(p, "n").update(values=[-11, 0, 0, 11]), "greater than"),
    "a count as a number": (lambda p: column(p, "n").update(values=[22.0, 0, 0, 11]), "integer"),
    "a huge count": (lambda p: column(p, "n").update(values=[11 * 10**9, 0, 0, 11]), "less than"),
    "a whole number as truth": (lambda p: column(p, "group").update(values=[True] * 4), "integer"),
    "a number as a text": (lambda p: column(p, "mean").update(values=["1"] * 4), "number"),
    "a huge number": (lambda p: column(p, "mean").update(values=[1e300, 1, 1, 1]), "less than"),
    "a flag that is missing": (lambda p: column(p, "shown").update(values=[None] * 4), "boolean"),
    "a flag as a number": (lambda p: column(p, "shown").update(values=[1, 0, 1, 0]), "boolean"),
    "a text without a level": (
        lambda p: column(p, "name").update(values=[0, 1, 2, 0]),
        "the text number 2 of 2 levels",
    ),
    "a level twice": (
        lambda p: column(p, "name").update(levels=["a", "a"]),
        "a text twice among its levels",
    ),
    "a text that turns the line": (
        lambda p: column(p, "name").update(levels=["a\u202eb", "c"]),
        "pattern",
    ),
    "a long text": (lambda p: column(p, "name").update(levels=["a" * 1001, "c"]), "at most 1000"),
    "an unknown kind": (lambda p: column(p, "n").update(kind="code"), "expected tags"),
    "another kind": (
        lambda p: column(p, "n").update(kind="whole"),
        "of the kind 'whole' instead of 'count'",
    ),
    "unequal lengths": (lambda p: column(p, "n").update(values=[11]), "columns of 1, 4 rows"),
    "a column too many": (
        lambda p: p["tables"][0]["columns"].append({"kind": "flag", "name": "<b>", "values": []}),
        "does not know '<b>'",
    ),
    "a column twice": (
        lambda p: p["tables"][0]["columns"].append(column(p, "n")),
        "with repeats",
    ),
    "a column that lacks": (
        lambda p: p["tables"][0]["columns"].pop(),
        "needs, but the file lacks 'shown'",
    ),
    "another table": (lambda p: p["tables"][0].update(name="ids"), "does not know 'ids'"),
    "no table": (lambda p: p["tables"].clear(), "at least 1"),
    "another format": (lambda p: p.update(format="x"), "the format of results 'x' is unknown"),
    "another field": (lambda p: p.update(more=1), "more"),
}


@pytest.mark.usefixtures("one_table")
@pytest.mark.parametrize("what", _HOSTILE)
def test_what_does_not_fit_is_refused_in_one_sentence(what: str) -> None:
    change, words = _HOSTILE[what]
    with pytest.raises(InputError, match=words) as caught:
        read_results(changed(written(people()), change))
    assert len(str(caught.value)) < 400
    assert str(caught.value).rstrip().endswith((".", "again"))


@pytest.mark.usefixtures("one_table")
def test_numbers_that_json_does_not_know_are_refused() -> None:
    data = written(people()).replace(b"3.141592653589793", b"NaN")
    with pytest.raises(InputError, match="NaN"):
        read_results(data)
    with pytest.raises(InputError, match="JSON cannot hold"):
        read_results(written(people()).replace(b"3.141592653589793", b"1e999"))


@pytest.mark.usefixtures("one_table")
def test_files_of_other_studies_rounds_rules_and_clusters_are_refused() -> None:
    data = written(people())
    with pytest.raises(InputError, match="belongs to the study"):
        read_results(data, font.Header(study="another"))
    with pytest.raises(InputError, match="belongs to round 1"):
        read_results(data, font.Header(study=STUDY, round=2))
    with pytest.raises(InputError, match="the study asks for 20"):
        read_results(data, min_count=20)
    with pytest.raises(InputError, match="clusters of another ensemble or shared file"):
        read_results(data, of="1" * 64)


@pytest.mark.usefixtures("one_table")
def test_a_file_is_explained_by_the_meaning_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "north.results.json"
    path.write_bytes(written(people()))
    said = mmlca_does("exchange", "check", path, "--html", tmp_path / "page.html")
    assert "people (4 rows): the name; patients; the cluster; the mean age" in said
    assert "rounded at random, up or down, to a multiple of 11" in said
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;é" in page
    assert "<b>é" not in page
    assert "3.141592653589793" in explain_page(path)
    path.write_bytes(written(people(1), 1))
    assert "may recognise single patients" in mmlca_does("exchange", "check", path)


@pytest.mark.usefixtures("one_table")
def test_a_large_file_is_written_and_read() -> None:
    """As many numbers as the limits of all files have room for."""
    n = 100_000
    rng = np.random.default_rng(1)
    table = {
        "name": [f"state {i % 90}" for i in range(n)],
        "n": (11 * rng.integers(0, 9, n)).tolist(),
        "group": (np.arange(n) % 7).tolist(),
        "mean": rng.random(n).round(3).tolist(),
        "shown": (rng.random(n) < 0.5).tolist(),
    }
    results = people(**table)
    data = written(results)
    assert len(data) < 4 * 2**20
    pd.testing.assert_frame_equal(
        read_results(data).tables["people"], results.tables["people"], check_exact=True
    )


# --- the site ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    combined(root, 11)
    refine_by_files(root, 11, 1)
    return root


def study_file(root: Path, **changes: Any) -> Study:
    """The study of all sites, of which only the sequences of each are known."""
    sites = {}
    for site in SITES:
        path = root / f"{site}.csv"
        hospital(root, site, 11).sequences.to_frame().rename_axis("id").to_csv(path)
        sites[site] = {"sequences": str(path)}
    return Study.model_validate({"name": STUDY, "sites": sites, "privacy": {"release": "inside"}})


def test_results_leave_once_and_the_ledger_repeats_them(root: Path) -> None:
    study = study_file(root)
    site = hospital(root, "north", 11, study_file=study)
    files = (root / "ensemble.json", root / "shared-1.json")
    path = site.results(*files)
    assert path.name == "north.results.json"
    assert path.parent.name == "to_centre"
    data = path.read_bytes()
    assert site.results(*files).read_bytes() == data
    other = hospital(root, "north", 11, study_file=study.changed(rules={"months": 6}))
    with pytest.raises(InputError, match="released other results files"):
        other.results(*files)
    with pytest.raises(InputError, match="released other results files"):
        hospital(root, "north", 22, study_file=study).results(*files)
    read = read_results(data, site.header(), of=read_step(files[1]).fingerprint, min_count=11)
    assert list(read.tables) == list(TABLES)
    assert (read.tables["about"]["patients"] % 11 == 0).all()
    assert abs(read.tables["about"]["patients"].item() - SITES["north"]) < 11


def test_the_clusters_are_those_that_the_site_gives_its_patients(root: Path) -> None:
    site, study = hospital(root, "west", 11), study_file(root)
    files = (root / "ensemble.json", root / "shared-1.json")
    ensemble = font.read_ensemble(files[0])
    patients = site_patients(
        site, site.ledger(), site.sequences, study_of(site, study), ensemble, read_step(files[1])
    )
    assert list(patients.groups) == ["ensemble", "own", "refined"]
    assert patients.groups["ensemble"].tolist() == site.assign(files[0])["cluster"].tolist()
    refined = site.refine(files[1]).clusters
    assert refined is not None
    assert patients.groups["refined"].tolist() == refined["cluster"].tolist()
    assert patients.memberships is not None
    assert np.allclose(patients.memberships.max(axis=1), refined["probability"])
    assert patients.own is not None
    assert (patients.groups["own"] == patients.own.predict(site.sequences) + 1).all()


def test_a_site_keeps_how_its_models_were_fitted_for_its_results(tmp_path: Path) -> None:
    """The numbers of classes and the resamples that it compared when it sent its models."""
    combined(tmp_path, 11)
    (tmp_path / "west" / FITS).unlink()
    ensemble = font.read_ensemble(tmp_path / "ensemble.json")
    step, study = read_step(tmp_path / "ensemble.json"), study_file(tmp_path)

    def tables(site: mmlca.Hospital) -> dict[str, pd.DataFrame]:
        made = (site.ledger(), site.sequences, study_of(site, study), ensemble, step)
        results = site_results(study_of(site, study), site_patients(site, *made))
        read = read_results(write_results(results, site.header(), of=OF, min_count=11))
        return dict(read.tables)

    found = tables(hospital(tmp_path, "west", 11))
    assert found["models"]["model"].tolist() == ["west"]
    assert found["selection"].empty
    resampled = {
        "n_classes": None,
        "candidates": (1, 2),
        "pseudo_sites": 2,
        "folder": tmp_path / "w",
    }
    site = hospital(tmp_path, "west", 11, **resampled)
    site.fit()
    kept = site.folder / FITS
    assert kept.stat().st_mode & 0o777 == 0o600
    found = tables(site)
    assert found["models"]["model"].tolist() == ["west/1", "west/2", "west"]
    assert found["selection"][["model", "classes"]].to_numpy().tolist() == [
        ["west", 1],
        ["west", 2],
    ]
    chosen = found["selection"].set_index("classes")["chosen"]
    assert chosen.to_dict() == {1: False, 2: True}
    assert (found["selection"]["loglik"] % 1 == 0).all()
    assert (found["models"]["patients"] % 11 == 0).all()
    assert found["class_sizes"].groupby("classes")["share"].sum().tolist() == [1, 1]


def test_a_site_with_few_patients_has_no_model_of_its_own(root: Path) -> None:
    site, study = hospital(root, "west", 11), study_file(root)
    few = site.sequences.select(site.sequences.ids[:21])  # fewer than 11 for each of two classes
    ensemble = font.read_ensemble(root / "ensemble.json")
    step = read_step(root / "ensemble.json")
    made = (site.ledger(), few, study_of(site, study), ensemble, step)
    patients = site_patients(site, *made)
    assert patients.own is None
    assert list(patients.groups) == ["ensemble"]


def test_draws_are_the_same_whenever_results_are_made(root: Path) -> None:
    """Results that are made again, for instance in another round, cannot be averaged."""
    study, tables = study_file(root), []
    ensemble, step = font.read_ensemble(root / "ensemble.json"), read_step(root / "ensemble.json")
    for number in (1, 2):
        site = hospital(root, "west", 11, round=number)
        rules = study_of(site, study)
        patients = site_patients(site, site.ledger(), site.sequences, rules, ensemble, step)
        tables.append(site_results(rules, patients).tables)
    for name in TABLES:
        pd.testing.assert_frame_equal(tables[0][name], tables[1][name])


def test_counts_are_rounded_whatever_the_study_file_says(root: Path) -> None:
    site = hospital(root, "west", 11)
    study = study_of(site, study_file(root).changed(privacy={"min_count": 1}))
    assert (study.privacy.min_count, study.privacy.release) == (11, "public")
    exact = study_of(hospital(root, "west", 1), study_file(root))
    assert (exact.privacy.min_count, exact.privacy.release) == (1, "inside")
    with pytest.raises(InputError, match="the study file has no site 'east'"):
        study_of(mmlca.Hospital(study=STUDY, site="east", sequences=site.sequences), study)


def test_only_the_last_shared_file_of_the_ensemble_is_answered(root: Path, tmp_path: Path) -> None:
    site = hospital(root, "south hospital", 11, study_file=study_file(root))
    content = json.loads((root / "shared-1.json").read_bytes())
    content["payload"]["last"] = False
    content["sha256"] = fingerprint(content["payload"])
    (tmp_path / "shared.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="not the last of the refinement"):
        site.results(root / "ensemble.json", tmp_path / "shared.json")
    assert site.ledger().released("results") is None
