"""Effects of covariates between sites: the numbers, what may not leave, and files to refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chain_study import SITES, STUDY, combined, hospital, refine_by_files, sequences_of
from commands import mmlca_does, refusal

from font.exchange.effects import read_all_effects, read_effects, support, write_effects
from font.exchange.explain import explain
from font.exchange.schema import fingerprint
from font.exchange.sums import read_step
from mmlca.federation.refining import step_memberships
from mmlca.tables.cluster_chains import cluster_memberships
from mmlca.tables.effects import site_effects
from mmlca.tables.pooling import inverse_variance


def covariates_of(site: str, seed: int = 1) -> pd.DataFrame:
    """Age depends on how often the patient is in the last state, sex on nothing."""
    data = sequences_of(site)
    rng = np.random.default_rng(seed)
    age = 60 + 5 * (data.codes == 2).mean(axis=1) + rng.normal(0, 8, len(data))
    sex = np.where(rng.random(len(data)) < 0.6, "female", "male")
    return pd.DataFrame({"id": data.ids, "age": age.round(1), "sex": sex})


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("effects")
    combined(root, 11)
    refine_by_files(root, 11, rounds=1)
    return root


@pytest.fixture(scope="module")
def sent(study: Path) -> list[Path]:
    source = study / "shared-1.json"
    return [hospital(study, site, 11).effects(source, covariates_of(site)) for site in SITES]


def test_effects_leave_with_the_stated_precision(study: Path, sent: list[Path]) -> None:
    for site, path in zip(SITES, sent, strict=True):
        file = read_effects(path, study=STUDY)
        home = hospital(study, site, 11)
        _, membership = step_memberships(home, read_step(study / "shared-1.json"))
        frame = covariates_of(site).drop(columns="id")
        exact = site_effects(membership, membership.argmax(axis=1), frame, 11)
        se = np.sqrt(np.diagonal(exact.covariance))
        assert file.table["term"].tolist() == ["(Intercept)", "age", "sex[male]"]
        np.testing.assert_allclose(file.table["se"], se, rtol=0.051)
        assert (np.abs(file.table["estimate"] - exact.table["estimate"]) <= 0.26 * se).all()
        np.testing.assert_allclose(
            file.covariance / np.outer(file.table["se"], file.table["se"]),
            exact.covariance / np.outer(se, se),
            atol=0.03,
        )
        assert "PID" not in path.read_text()
        assert "of age, sex on membership in the clusters 2" in explain(path)
        again = home.effects(study / "shared-1.json", covariates_of(site))
        assert again.read_bytes() == path.read_bytes()


def test_pooled_by_generalised_least_squares(sent: list[Path]) -> None:
    files = read_all_effects(sent)
    tables = {s: f.table.rename(columns={"cluster": "class"}) for s, f in files.items()}
    pooled = inverse_variance(tables, {s: f.covariance for s, f in files.items()})
    inverses = {site: np.linalg.inv(file.covariance) for site, file in files.items()}
    spread = np.linalg.inv(sum(inverses.values()))
    mean = spread @ sum(inverses[s] @ tables[s]["estimate"].to_numpy() for s in files)
    np.testing.assert_allclose(pooled["estimate"], mean)
    np.testing.assert_allclose(pooled["se"], np.sqrt(np.diagonal(spread)))
    alone = inverse_variance(tables)
    assert (pooled["sites"] == 3).all()
    np.testing.assert_allclose(pooled["q"], alone["q"])
    assert pooled["estimate"].iloc[1] == pytest.approx(0.06, abs=0.06)  # older in the cluster


def test_with_the_commands(study: Path, sent: list[Path], tmp_path: Path) -> None:
    frame = covariates_of("west")
    frame.to_csv(tmp_path / "west.csv", index=False)
    sequences_of("west").write(tmp_path / "sequences.csv")
    shown = mmlca_does(
        *("site", "effects", str(study / "shared-1.json"), "--study", STUDY, "--site", "west"),
        *("--covariates", str(tmp_path / "west.csv"), "--folder", str(study / "west")),
        *("--sequences", str(tmp_path / "sequences.csv"), "--out", str(tmp_path)),
    )
    assert "sex[male]" in shown
    assert (tmp_path / "west.effects.json").read_bytes() == sent[2].read_bytes()
    shown = mmlca_does(
        *("centre", "effects", *map(str, sent), "--study", STUDY, "--out", str(tmp_path / "out"))
    )
    assert "Effects of 3 sites" in shown
    table = pd.read_csv(tmp_path / "out/effects.csv")
    assert table["sites"].tolist() == [3, 3, 3]
    assert len(pd.read_csv(tmp_path / "out/effects_by_site.csv")) == 9
    words = refusal("centre", "effects", str(study / "ensemble.json"), "--study", STUDY)
    assert "kind 'ensemble'" in words


def test_memberships_stand_in_before_a_refinement(tmp_path: Path) -> None:
    ensemble = combined(tmp_path, 11)
    home = hospital(tmp_path, "north", 11)
    file = read_effects(home.effects(ensemble, covariates_of("north")))
    clusters = home.assign(ensemble)["cluster"].to_numpy() - 1
    data = {"north": sequences_of("north")}
    posterior = cluster_memberships(data, {"north": clusters})["north"].to_numpy()
    exact = site_effects(posterior, clusters, covariates_of("north").drop(columns="id"), 11)
    se = np.sqrt(np.diagonal(exact.covariance))
    assert (np.abs(file.table["estimate"] - exact.table["estimate"]) <= 0.26 * se).all()


# --- attacks --------------------------------------------------------------------------------


def rare(site: str, n: int) -> pd.DataFrame:
    """A trait that n patients of the site have."""
    frame = covariates_of(site)
    return frame.assign(trait=np.where(np.arange(len(frame)) < n, "yes", "no"))


@pytest.mark.filterwarnings("ignore:the covariate column")  # by the secret draws, before refusal
def test_a_trait_of_few_patients_does_not_leave(study: Path) -> None:
    home = hospital(study, "north", 11, round=1, override="another question is asked")
    noted = (study / "north/ledger.json").read_text()
    with pytest.raises(ValueError, match=r"no effect may leave|no finite solution"):
        home.effects(study / "shared-1.json", rare("north", 6))
    spread = covariates_of("north").assign(income=np.r_[1e6, np.linspace(0, 1, 499)])
    with pytest.raises(ValueError, match=r"no effect may leave|no finite solution"):
        home.effects(study / "shared-1.json", spread)
    assert (study / "north/ledger.json").read_text() == noted


def test_another_list_of_covariates_is_refused(study: Path, sent: list[Path]) -> None:
    home = hospital(study, "north", 11)
    fewer = covariates_of("north").drop(columns="sex")
    with pytest.raises(ValueError, match="released other effects files"):
        home.effects(study / "shared-1.json", fewer)
    without = covariates_of("north")
    without.loc[0, "age"] = np.nan  # the same but for one patient
    with pytest.raises(ValueError, match="released other effects files"):
        home.effects(study / "shared-1.json", without)


def written(posterior: np.ndarray, frame: pd.DataFrame, kept: Any = slice(None)) -> Any:
    found = site_effects(
        posterior[kept], posterior[kept].argmax(axis=1), frame[kept].reset_index(drop=True), 11
    )
    return write_effects(None, *found, of="0" * 64, study="s", site="a").payload


def three_clusters(n: int = 600) -> tuple[np.ndarray, pd.DataFrame]:
    rng = np.random.default_rng(1)
    posterior = rng.dirichlet([0.02, 0.02, 0.02], n)
    posterior += 0.01
    posterior /= posterior.sum(axis=1, keepdims=True)
    sex = np.where(rng.random(n) < 0.5, "f", "m")
    return posterior, pd.DataFrame({"age": rng.normal(60, 9, n), "sex": sex})


def test_a_cluster_with_few_of_a_trait_is_left_out() -> None:
    posterior, frame = three_clusters()
    last = np.flatnonzero(posterior.argmax(axis=1) == 2)
    frame.loc[last[8:], "sex"] = "f"
    frame.loc[last[:8], "sex"] = "m"
    payload = written(posterior, frame)
    assert payload["clusters"] == [1]
    assert len(payload["estimates"]) == 3


def test_one_patient_more_or_less_rarely_shows() -> None:
    """Someone who knows all patients but one sees no change in most written numbers."""
    posterior, frame = three_clusters()
    whole = written(posterior, frame)
    same = []
    for i in range(40):
        part = written(posterior, frame, np.arange(len(frame)) != i)
        pairs = [zip(whole[n], part[n], strict=True) for n in ("estimates", "errors")]
        same.append(np.mean([a == b for pair in pairs for a, b in pair]))
    assert np.mean(same) > 0.85


def test_how_many_stand_behind_a_column() -> None:
    assert support(np.r_[np.zeros(90), np.ones(10)][:, None]) == 10
    assert support(np.r_[np.zeros(90), 1, 2, 3][:, None]) == pytest.approx(3, abs=1)
    assert support(np.random.default_rng(1).normal(size=(400, 1))) > 200


# --- files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"errors": [0.123, 0.1, 0.1]}, "more than two digits"),
        ({"estimates": [0.123456, 0.1, 0.1]}, "finer than its error"),
        ({"correlations": [0.99, 0.99, -0.99]}, "no distribution"),
        ({"correlations": [0.1]}, "1 correlations in place of 3"),
        ({"terms": ["a", "a", "b"]}, "with repeats"),
        ({"clusters": [0]}, "payload.clusters.0"),
        ({"errors": [0.0, 0.1, 0.1]}, "payload.errors.0"),
        ({"estimates": [1e300, 0.1, 0.1]}, "payload.estimates.0"),
        ({"estimates": [0.1] * 400}, "payload.estimates"),
        ({"variables": []}, "payload.variables"),
        ({"code": "os.system"}, "payload.code"),
    ],
)
def test_hostile_files(sent: list[Path], change: dict[str, Any], words: str) -> None:
    content = json.loads(sent[0].read_text())
    content["payload"] |= change
    content["sha256"] = fingerprint(content["payload"])
    with pytest.raises(ValueError, match=words):
        read_effects(json.dumps(content).encode())


def test_files_that_do_not_belong_together(study: Path, sent: list[Path]) -> None:
    with pytest.raises(ValueError, match="two effects files of the site north"):
        read_all_effects([sent[0], sent[0]])
    content = json.loads(sent[1].read_text())
    content["payload"]["variables"][1]["levels"] = ["male", "female"]
    content["sha256"] = fingerprint(content["payload"])
    with pytest.raises(ValueError, match="same columns and levels"):
        read_all_effects([sent[0], json.dumps(content).encode()])
    content["payload"]["of"] = "1" * 64
    content["sha256"] = fingerprint(content["payload"])
    with pytest.raises(ValueError, match="clusters of another file"):
        read_all_effects([sent[0], json.dumps(content).encode()])
    with pytest.raises(ValueError, match="there are no effects files"):
        read_all_effects([])
