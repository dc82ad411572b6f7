"""The two kinds of release: exact inside a hospital, and rounded by one rule in public."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import refusal
from study_attack import PublicAttack
from study_sizes import collect_sizes, disagreeing

import ehr_prep
import mmlca
from mmlca.study import read_study, run_study
from mmlca.study.release import (
    FLOOR,
    VARIABLE,
    check_floor,
    hospital_secret,
    secret_file,
    statement,
)
from mmlca.study.settings import Study
from mmlca.study.study_file import write_study_file
from mmlca.tables.disclosure import is_small

STUDY = """
name = "{name}"
[sites.{site}]
records = "VA/medications.csv"
drugs = "ra"
patients = "VA/patients.csv"
[rules]
first_on_or_after = 2008-01-01
impute = "carry_forward"
[classes]
number = 3
[model]
n_init = 4
[inference]
standard_errors = false
diagnostics = false
[outputs]
figures = false
[privacy]
release = "{release}"
"""


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cohort")
    ehr_prep.ra_cohort(seed=1, scale=0.15).write(folder)
    return folder


def run(cohort: Path, release: str, out: str, name: str = "Trial", site: str = "VA") -> Path:
    file = cohort / f"{out}.toml"
    file.write_text(STUDY.format(name=name, site=site, release=release))
    run_study(read_study(file), cohort / out)
    return cohort / out


@pytest.fixture(scope="module")
def inside(cohort: Path) -> Path:
    return run(cohort, "inside", "inside")


@pytest.fixture(scope="module")
def public(cohort: Path) -> Path:
    return run(cohort, "public", "public")


def classes(out: Path) -> tuple[mmlca.Sequences, pd.Series]:
    (file,) = out.glob("patients/*_sequences.csv")
    states = pd.read_csv(file, dtype=str)
    labels = pd.read_csv(str(file).replace("sequences", "clusters"), index_col="id")["class"]
    order = pd.read_csv(out / "figures/state_distribution.csv")["state"].unique().tolist()
    data = mmlca.Sequences.from_frame(states, id=states.columns[0], states=order)
    return data, labels.set_axis(data.ids)


# --- what the releases show -------------------------------------------------------------------


def test_the_release_inside_is_exact(inside: Path) -> None:
    """A single site once read 70.8 % where 76.1 % were true."""
    data, labels = classes(inside)
    exact = mmlca.state_distribution(data, labels)
    shown = pd.read_csv(inside / "figures/state_distribution.csv")
    known = shown["count"].notna()
    assert known.sum() > 100
    np.testing.assert_array_equal(shown["count"][known], exact["count"][known.to_numpy()])
    np.testing.assert_allclose(shown["share"][known], exact["share"][known.to_numpy()], atol=5e-4)
    hidden = exact["count"][~known.to_numpy()]
    bounded = shown["at_least"].notna()
    assert (bounded[~known] | (hidden < 11).to_numpy()).all()  # small, or with a bound
    assert (shown["at_least"] <= exact["share"] + 5e-4)[bounded].all()
    clusters = pd.read_csv(inside / "tables/clusters.csv").set_index("cluster")
    described = mmlca.describe_clusters(data, labels).set_index("cluster")
    np.testing.assert_array_equal(clusters["n"], described["n"])
    for name in ("first_share", "still", "path_share", "end_share"):
        found = clusters[name].dropna()
        np.testing.assert_allclose(found, described.loc[found.index, name], atol=5e-4)


def test_every_count_in_public_is_a_multiple_of_the_threshold_and_near_the_true_one(
    public: Path,
) -> None:
    data, labels = classes(public)
    exact = mmlca.state_distribution(data, labels)
    shown = pd.read_csv(public / "figures/state_distribution.csv")
    for name in ("count", "n", "rounded_size"):
        assert (shown[name] % 11 == 0).all()
    assert (np.abs(shown["count"] - exact["count"]) < 11).all()
    assert (np.abs(shown["n"] - exact["n"]) < 11).all()
    totals = shown.groupby(["group", "time"])["share"].sum()
    np.testing.assert_allclose(totals, 1, atol=2e-3)
    for name in ("tables/clusters", "figures/transitions", "figures/lines", "figures/flow_VA"):
        table = pd.read_csv(public / f"{name}.csv")
        columns = {"count", "n", "patients", "records", "patients_left", "records_left"}
        for column in columns & set(table):
            assert (table[column].dropna() % 11 == 0).all(), (name, column)


def test_no_small_number_in_public_follows_from_all_tables_together(public: Path) -> None:
    """With exact tables, sums of one told what another hid; three sites are in `test_promise`."""
    attack = PublicAttack(public, ("VA",))
    data, labels = classes(public)
    counts = mmlca.state_distribution(data, labels)
    small = counts[is_small(counts["count"], 11)]
    assert len(small) > 50
    for row in small.sample(12, random_state=1).itertuples(index=False):
        low, high = attack.range_of(("", "VA", str(row.group), int(row.time), row.state))
        assert low - 1e-6 <= row.count <= high + 1e-6
        assert high - low > 9 - 1e-6, row


@pytest.mark.parametrize("release", ["inside", "public"])
def test_a_class_has_one_size_wherever_it_is_shown(
    release: str, request: pytest.FixtureRequest
) -> None:
    """It once had three: exact, rounded, and the sum of rounded states."""
    sizes = collect_sizes(request.getfixturevalue(release))
    assert len(sizes) == 3
    assert all(len(places) >= 7 for places in sizes.values())
    assert not disagreeing(sizes)


def test_the_page_says_at_its_top_which_release_it_is(inside: Path, public: Path) -> None:
    pages = [(out / "report.html").read_text(encoding="utf-8") for out in (inside, public)]
    tops = [page.split("</header>")[0] for page in pages]
    assert "For use inside the hospital." in tops[0]
    assert "fewer than 11 patients are not shown" in tops[0]
    assert "may still be worked out from several tables, or from pages of repeated runs" in tops[0]
    assert "Public release." in tops[1]
    assert "rounded at random to a multiple of 11" in tops[1]
    assert "may differ from the true count by up to 10" in tops[1]
    for out, kind, text in ((inside, "inside", "about"), (public, "public", "exact")):
        content = json.loads((out / "results.json").read_text(encoding="utf-8"))
        assert content["release"] == kind
        assert text not in content["summary"][0]


def test_notes_say_what_was_done_to_the_numbers(inside: Path, public: Path) -> None:
    for out, rounded in ((inside, False), (public, True)):
        content = json.loads((out / "results.json").read_text(encoding="utf-8"))
        items = {i["title"]: i["caption"] for part in content["sections"] for i in part["items"]}
        for title in ("Treatment by quarter", "Transition rates", "Patients by class"):
            assert ("rounded at random" in items[title]) == rounded
            assert ("are not shown" in items[title]) != rounded


def test_nothing_is_said_to_be_hidden_where_nothing_is() -> None:
    study = Study(name="x", sites={"A": {"sequences": "a.csv"}}, privacy={"min_count": 1})
    assert statement(study) == (
        "For use inside the hospital: all numbers are exact, and none is hidden "
        "(privacy.min_count is 1)."
    )


def test_a_public_release_needs_a_threshold(cohort: Path) -> None:
    file = cohort / "exact.toml"
    file.write_text(STUDY.format(name="x", site="VA", release="public") + "min_count = 1\n")
    with pytest.raises(ValueError, match='release = "public" with min_count = 1'):
        read_study(file)
    said = refusal("study", "run", str(file), "--out", str(cohort / "refused"))
    assert "privacy" in said


# --- the hospital's floor ---------------------------------------------------------------------


def set_min_count(cohort: Path, release: str, min_count: int) -> Path:
    file = cohort / f"floor_{release}_{min_count}.toml"
    text = STUDY.format(name="x", site="VA", release=release)
    file.write_text(f"{text}min_count = {min_count}\n")
    return file


@pytest.mark.parametrize(
    ("release", "min_count", "floor"),
    [("public", 5, None), ("public", 15, "20"), ("inside", 5, "11"), ("inside", 1, "2")],
)
@pytest.mark.parametrize("command", ["run", "sensitivity"])
def test_no_study_file_lowers_the_floor_of_the_hospital(
    command: str,
    release: str,
    min_count: int,
    floor: str | None,
    cohort: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The files between hospitals had a floor, and the results of a study had none."""
    if floor is not None:
        monkeypatch.setenv(FLOOR, floor)
    file, out = set_min_count(cohort, release, min_count), cohort / "below_floor"
    said = refusal("study", command, str(file), "--out", str(out))
    assert f"privacy.min_count is {min_count}, but this hospital shows nothing" in said
    assert f"fewer than {floor or 11} patients" in said
    assert not list(out.glob("**/*.csv"))


def test_at_its_floor_a_hospital_may_do_what_it_likes(
    cohort: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a floor of its own, numbers for its own eyes have none."""
    check_floor(read_study(set_min_count(cohort, "inside", 1)))
    monkeypatch.setenv(FLOOR, "5")
    check_floor(read_study(set_min_count(cohort, "public", 5)))
    monkeypatch.setenv(FLOOR, "many")
    with pytest.raises(ValueError, match="MMLCA_FLOOR must be a whole number of at least 1"):
        check_floor(read_study(set_min_count(cohort, "inside", 11)))


def test_made_up_patients_keep_the_floor_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mmlca demo` shows everything, unless a floor is set on the computer that it runs on."""
    found = []
    for floor in ("", "20"):
        monkeypatch.setenv(FLOOR, floor)
        for synthetic in (True, False):
            write_study_file(tmp_path / "study.toml", ["VA"], synthetic=synthetic)
            text = (tmp_path / "study.toml").read_text(encoding="utf-8")
            found.append(tomllib.loads(text)["privacy"]["min_count"])
    assert found == [1, 11, 20, 20]


# --- draws ------------------------------------------------------------------------------------


def test_another_name_of_the_study_and_the_site_gives_the_same_counts(
    cohort: Path, public: Path
) -> None:
    """ "RA", "ra " and "VA2" were once fresh draws, to be averaged."""
    other = run(cohort, "public", "renamed", name="Another trial", site="VA2")
    for name in ("state_distribution", "transitions", "lines"):
        one, two = (pd.read_csv(out / f"figures/{name}.csv") for out in (public, other))
        pd.testing.assert_frame_equal(one.drop(columns="site"), two.drop(columns="site"))
    one, two = ((out / "tables/table_one.csv").read_text() for out in (public, other))
    assert one == two


def test_another_secret_draws_anew_and_the_results_do_not_hold_it(
    cohort: Path, public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = secret_file().read_text().strip()
    for path in public.rglob("*"):
        if path.is_file():
            assert text.encode() not in path.read_bytes(), path
    before = (public / "tables/table_one.csv").read_text()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other"))
    run(cohort, "public", "public")  # in the same folder: a kept table would be a wrong one
    assert (public / "tables/table_one.csv").read_text() != before


# --- the secret -------------------------------------------------------------------------------


def test_the_secret_is_made_once_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settings" / "secret"
    monkeypatch.setenv(VARIABLE, str(path))
    secret = hospital_secret()
    assert len(secret) == 32
    assert hospital_secret() == secret
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["secret"]


def test_without_the_variable_it_is_in_the_users_folder_of_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE)
    assert secret_file().parts[-2:] == ("mmlca", "secret")
    assert Path.home() in secret_file().parents


def test_programs_that_start_together_have_the_same_secret(tmp_path: Path) -> None:
    code = "from mmlca.study.release import hospital_secret; print(hospital_secret().hex())"
    environment = {VARIABLE: str(tmp_path / "secret"), "PATH": ""}
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
        for _ in range(4)
    ]
    found = {process.communicate()[0] for process in started}
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


@pytest.mark.parametrize("content", ["", "12345\n", "g" * 64])
def test_a_damaged_secret_is_refused_in_one_sentence(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text(content)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "secret"))
    with pytest.raises(ValueError, match="is not a secret that this program wrote"):
        hospital_secret()


def test_a_place_where_no_secret_can_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "secret"))
    with pytest.raises(OSError, match=r"cannot read or make the secret .* MMLCA_SECRET"):
        hospital_secret()
