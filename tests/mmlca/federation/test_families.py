"""Every registered family of local models goes through the commands and the files of a study."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import mmlca_does, refusal

import font
from font.exchange import registry

SITES = ("north", "south", "west")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._FAMILIES, "toy medians", "medians_family:MEDIANS")


def write_tables(root: Path, family: str) -> dict[str, np.ndarray]:
    """A table of two groups of patients for each site, and the true groups."""
    truth = {}
    for seed, site in enumerate(SITES):
        rng = np.random.default_rng(seed)
        group = rng.integers(2, size=200)
        if family == "latent-class-model":
            right = rng.random((200, 3)) < 0.9
            answers = np.where(right, group[:, None], 1 - group[:, None])
            table = pd.DataFrame(np.array(["no", "yes"])[answers], columns=["a", "b", "c"])
        else:
            values = rng.normal(6.0 * group[:, None], 1.0, (200, 2))
            table = pd.DataFrame(values, columns=["crp", "das28"])
        table.insert(0, "id", [f"p{i}" for i in range(200)])
        table.to_csv(root / f"{site}.csv", index=False)
        truth[site] = group
    return truth


@pytest.mark.filterwarnings("ignore:the best of all")
@pytest.mark.parametrize("family", ["k-means", "gaussian-mixture", "latent-class-model", "medians"])
def test_a_study_by_commands(family: str, tmp_path: Path) -> None:
    truth = write_tables(tmp_path, family)
    where = {site: ("--study", "s", "--site", site, "--folder", tmp_path / site) for site in SITES}
    for site in SITES:
        table = tmp_path / f"{site}.csv"
        said = mmlca_does("site", "fit", table, "--family", family, "-k", 2, *where[site])
        assert "200 patients" in said
    models = [tmp_path / site / "to_all" / f"{site}.model.json" for site in SITES]
    for site in SITES:
        mmlca_does("site", "label", *models, "--sequences", tmp_path / f"{site}.csv", *where[site])
    labels = [tmp_path / site / "to_centre" / f"{site}.labels.json" for site in SITES]
    mmlca_does("centre", "combine", *models, *labels, "--study", "s", "-k", 2, "--out", tmp_path)
    for site, group in truth.items():
        ensemble, table = tmp_path / "ensemble.json", tmp_path / f"{site}.csv"
        mmlca_does("site", "assign", ensemble, "--sequences", table, *where[site])
        clusters = pd.read_csv(tmp_path / site / "clusters.csv")["cluster"].to_numpy() - 1
        same = (clusters == group).mean()
        assert max(same, 1 - same) > 0.9


def test_the_number_of_classes_of_a_latent_class_model_is_tried(tmp_path: Path) -> None:
    write_tables(tmp_path, "latent-class-model")
    fit = ("site", "fit", tmp_path / "north.csv", "--study", "s", "--site", "north", "--try", "1-3")
    mmlca_does(*fit, "--folder", tmp_path / "north", "--family", "latent-class-model")
    sent = font.read_model(tmp_path / "north" / "to_all" / "north.model.json")
    assert (sent.n_classes, list(sent.bic), sent.bic[2]) == (2, [1, 2, 3], 0)


def test_what_a_family_cannot_do_is_refused(tmp_path: Path) -> None:
    write_tables(tmp_path, "k-means")
    fit = ("site", "fit", tmp_path / "north.csv", "--study", "s", "--site", "north")
    fit = (*fit, "--folder", tmp_path / "north", "--family")
    assert "choose one of k-means, gaussian-mixture" in refusal(*fit, "k-modes", "-k", 2)
    assert "K-means does not use --search thorough" in refusal(
        *fit, "k-means", "-k", 2, "--search", "thorough"
    )
    assert "K-means cannot be compared" in refusal(*fit, "k-means", "--try", "1-3")
    assert "not of the table of a K-means" in refusal(*fit, "k-means", "-k", 2, "--pseudo-sites", 2)
    table = pd.read_csv(tmp_path / "north.csv").astype({"crp": object})
    table.loc[0, "crp"] = "high"
    table.to_csv(tmp_path / "north.csv", index=False)
    assert "columns 'crp' have missing values or texts" in refusal(*fit, "k-means", "-k", 2)
    assert not (tmp_path / "north" / "to_all").exists()
