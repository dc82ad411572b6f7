"""Two studies of nearly the same patients: what subtracting them reveals, and the warning."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from released import courses_by_group
from study_attack import count_of

import ehr_prep
import mmlca
from font.errors import ReportWarning
from mmlca.study import read_study, run_study
from mmlca.study.cache import Results, cohorts_of, nearly_repeated, remember
from mmlca.tables.disclosure import Rounding

M = 11


# --- what two releases reveal -----------------------------------------------------------------


class People:
    """325 patients in three clusters, with sex, an outcome and the states of 16 quarters."""

    def __init__(self, seed: int) -> None:
        rng, n = np.random.default_rng(seed), 325
        self.ids = np.array([f"p{i}" for i in range(n)])
        self.clusters = pd.Series(rng.choice(["1", "2", "3"], n, p=[0.6, 0.25, 0.15]), self.ids)
        self.table = pd.DataFrame(
            {
                "sex": rng.choice(["F", "M"], n, p=[0.6, 0.4]),
                "remission": rng.choice(["yes", "no"], n, p=[0.3, 0.7]),
            },
            index=self.ids,
        )
        first = {"1": [0.8, 0.1, 0.1], "2": [0.3, 0.5, 0.2], "3": [0.3, 0.5, 0.2]}
        stay = {"1": 0.97, "2": 0.85, "3": 0.9}
        states = [[rng.choice(3, p=first[c])] for c in self.clusters]
        for course, cluster in zip(states, self.clusters, strict=True):
            for _ in range(15):
                stays = rng.random() < stay[cluster]
                course.append(course[-1] if stays else rng.choice(3))
        self.states = np.array(["A", "B", "C"])[np.array(states)]

    def release(
        self, kept: np.ndarray, secret: bytes | None
    ) -> tuple[dict[tuple[str, str, str], float], dict[tuple[str, str, str], float]]:
        """Shown counts by variable, level and cluster, and by cluster, time and state."""
        clusters = {"x": self.clusters[kept]}
        rounding = None if secret is None else Rounding(secret, M, clusters)
        one = ehr_prep.table_one(
            self.table[kept], clusters["x"], min_count=M, rounding=rounding
        ).frame
        levels = {
            (title.split(",")[0], level, group): count_of(one.at[(title, level), group])
            for title, level in one.index
            for group in one
        }
        data = mmlca.Sequences.from_lists(self.states[kept].tolist(), ids=self.ids[kept].tolist())
        courses = courses_by_group({"x": data}, clusters, M, secret).tables.shown("distribution")
        places = zip(courses["group"], courses["time"], courses["state"], strict=True)
        counts = dict(zip(places, courses["count"], strict=True))
        return levels, {(str(g), str(t), str(s)): n for (g, t, s), n in counts.items()}

    def subtracted(self, one: int, secret: bytes | None) -> tuple[set[str], set[str], int]:
        """What two releases tell of a patient whom one of them lacks.

        Levels and clusters whose counts are smaller without the patient, and the number of quarters
        in which that is so for the patient's state.
        """
        everyone = np.ones(len(self.ids), dtype=bool)
        with_levels, with_states = self.release(everyone, secret)
        without_levels, without_states = self.release(np.arange(len(self.ids)) != one, secret)
        levels = {
            f"{title}: {level}"
            for (title, level, group), n in with_levels.items()
            if n > without_levels[title, level, group]
        }
        quarters = [at for at, n in with_states.items() if n > without_states[at]]
        right = [state == self.states[one, int(time) - 1] for _, time, state in quarters]
        return levels, {group for group, _, _ in quarters}, sum(right)


def shares_read(secrets: list[bytes | None], seed: int) -> dict[str, float]:
    """How often subtracting gives a patient's sex, outcome, cluster and some quarter's state."""
    people, rng, rows = People(seed), np.random.default_rng(seed), []
    for secret in secrets:
        one = int(rng.integers(len(people.ids)))
        levels, clusters, n_quarters = people.subtracted(one, secret)
        sex, remission = people.table.iloc[one]
        rows.append(
            {
                "sex": levels & {"sex: F", "sex: M"} == {f"sex: {sex}"},
                "outcome": levels & {"remission: yes", "remission: no"}
                == {f"remission: {remission}"},
                "cluster": clusters == {people.clusters.iloc[one]},
                "quarters": n_quarters,
            }
        )
    return pd.DataFrame(rows).mean().to_dict()


def test_two_exact_releases_give_everything_about_the_patient_whom_one_lacks() -> None:
    """Nothing prevents this; the documentation says so, and the program warns."""
    read = shares_read([None] * 12, seed=1)
    assert read["sex"] == read["outcome"] == 1.0
    assert read["cluster"] == 1.0


@pytest.mark.slow
def test_two_public_releases_give_a_sixth_of_sexes_and_outcomes() -> None:
    """A count of one patient fewer shows in one of eleven cases; each patient is in many counts."""
    read = shares_read([bytes([i]) * 32 for i in range(120)], seed=1)
    assert 0.08 < read["sex"] < 0.27
    assert 0.08 < read["outcome"] < 0.27
    assert 0.6 < read["cluster"] < 0.9  # 16 quarters, each of which may show
    assert 1.0 < read["quarters"] < 2.0  # of 16


# --- the warning ------------------------------------------------------------------------------


def sequences(n: int, first: int = 0) -> mmlca.Sequences:
    return mmlca.Sequences.from_lists(
        [["A", "A"]] * n, ids=[f"p{i}" for i in range(first, first + n)]
    )


def test_a_site_with_few_other_patients_than_before_is_found_under_any_name(
    tmp_path: Path,
) -> None:
    results = Results(tmp_path, {}, keyed=True)

    def compare(n: int, first: int = 0, site: str = "VA") -> list[str]:
        return nearly_repeated(results, cohorts_of(results, {site: sequences(n, first)}), M)

    assert compare(100) == []
    remember(results, cohorts_of(results, {"VA": sequences(100)}))
    assert compare(100) == []  # the same patients tell nothing new
    assert compare(99) == ["VA"]
    assert compare(99, first=1) == ["VA"]
    assert compare(110, site="va 2") == ["va 2"]
    assert compare(111) == compare(89) == []  # so many as may be shown
    assert compare(100, first=5) == ["VA"]  # five others
    remember(results, cohorts_of(results, {"VA": sequences(500)}))
    assert compare(99) == ["VA"]  # not the last run alone


def test_what_is_remembered_is_private_without_ids_and_stays(tmp_path: Path) -> None:
    results = Results(tmp_path, {}, keyed=True)
    for n in (100, 100, 101):
        remember(results, cohorts_of(results, {"VA": sequences(n)}))
    results.keep_only([])
    file = tmp_path / "patients" / "cohorts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [len(cohort) for cohort in json.loads(file.read_text())] == [100, 101]
    assert "p17" not in file.read_text()
    for n in range(200, 260):
        remember(results, cohorts_of(results, {"VA": sequences(n)}))
    assert len(json.loads(file.read_text())) == 50
    for content in ("[[1, 2], 3]", "{}", "no JSON"):
        file.write_text(content)
        again = Results(tmp_path, {}, keyed=True)
        assert nearly_repeated(again, cohorts_of(again, {"VA": sequences(100)}), M) == []


STUDY = """
name = "Twice"
[sites.VA]
sequences = "sequences.csv"
[classes]
number = 2
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


@pytest.mark.parametrize("release", ["inside", "public"])
def test_a_run_with_one_patient_fewer_warns(tmp_path: Path, release: str) -> None:
    rng = np.random.default_rng(1)
    states = np.where(rng.random((120, 6)) < np.repeat([[0.2], [0.8]], 60, axis=0), "A", "B")
    frame = pd.DataFrame(states, columns=[f"{t}" for t in range(1, 7)])
    frame.insert(0, "id", [f"p{i}" for i in range(120)])
    (tmp_path / "study.toml").write_text(STUDY.format(release=release))

    def run(n: int) -> list[str]:
        frame.head(n).to_csv(tmp_path / "sequences.csv", index=False)
        content = run_study(read_study(tmp_path / "study.toml"), tmp_path / "out")
        return [text for text in content["careful"] if "an earlier run in this folder" in text]

    assert run(120) == run(120) == []
    with pytest.warns(ReportWarning, match="at VA are those of an earlier run .* fewer than 11"):
        said = run(119)
    # readers of a public release need not know that there is something to subtract from it
    assert len(said) == (release == "inside")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ("an earlier run in this folder" in page) == (release == "inside")
    assert run(60) == []
