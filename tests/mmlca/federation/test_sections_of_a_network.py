"""What the report of a network says of its sites, from results files and the ensemble alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chain_study import SITES, STUDY, combined, hospital, refine_by_files

import font
import mmlca
from font.exchange.messages.refinement import read_step
from mmlca.federation.results import read_results, site_patients, study_of, write_results
from mmlca.study.combined import Combined, Refinement
from mmlca.study.headline import Kind, headline, pick
from mmlca.study.results.certainty import mean_of, moves_of, same_as_own
from mmlca.study.results.groups import refined_differences_of, site_differences_of
from mmlca.study.results.registry import site_results
from mmlca.study.results.shown_courses import sizes_of
from mmlca.study.results.site import ENSEMBLE, OWN, REFINED, SitePatients, SiteResults
from mmlca.study.sections import ensemble as ensemble_section
from mmlca.study.sections import refinement, sites, summary
from mmlca.study.settings import Study


class Network:
    """Three hospitals that exchanged files, and what their centre knows of them."""

    def __init__(self, root: Path, min_count: int) -> None:
        combined(root, min_count)
        refine_by_files(root, min_count, 1)
        self.study = self._study(root, min_count)
        file, step = font.read_ensemble(root / "ensemble.json"), read_step(root / "shared-1.json")
        self.patients: dict[str, SitePatients] = {}
        self.results: dict[str, SiteResults] = {}
        for site in SITES:
            home = hospital(root, site, min_count)
            rules = study_of(home, self.study)
            own = site_patients(home, home.ledger(), home.sequences, rules, file, step)
            data = write_results(
                site_results(rules, own), home.header(), of=step.fingerprint, min_count=min_count
            )
            self.patients[site], self.results[site] = own, read_results(data, min_count=min_count)
        self.combined = Combined(
            n_groups=2,
            ensemble=file.ensemble,
            models={name: name for name in file.models},
            refined=Refinement(1, converged=False),
        )
        self.differences = site_differences_of(self.results, n_boot=50, seed=1)
        self.sizes = {view: sizes_of(self.results, view, min_count) for view in (ENSEMBLE, REFINED)}

    def _study(self, root: Path, min_count: int) -> Study:
        places = {}
        for site in SITES:
            path = root / f"{site}.csv"
            data = hospital(root, site, min_count).sequences
            data.to_frame().rename_axis("id").to_csv(path)
            places[site] = {"sequences": str(path)}
        release = "public" if min_count > 1 else "inside"
        privacy = {"min_count": min_count, "release": release}
        return Study.model_validate({"name": STUDY, "sites": places, "privacy": privacy})

    def findings(self) -> Any:
        """What the sections read, without anything of patients."""
        numbers = headline(
            self.study, self.combined, self.results, self.sizes, None, self.differences, 3
        )
        return SimpleNamespace(
            combined=self.combined,
            results=self.results,
            sizes=self.sizes,
            names=SimpleNamespace(clusters={}),
            numbers=numbers,
            suggested=None,
            differences=self.differences,
            refined_differences=refined_differences_of(self.results, n_boot=0, seed=1),
        )


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return Network(tmp_path_factory.mktemp("exact"), 1)


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return Network(tmp_path_factory.mktemp("rounded"), 11)


def test_exact_results_give_the_numbers_of_one_place(exact: Network) -> None:
    data = {site: part.sequences for site, part in exact.patients.items()}
    clusters = {site: part.groups[ENSEMBLE] for site, part in exact.patients.items()}
    models = {m: {site: p.labels[m] for site, p in exact.patients.items()} for m in SITES}
    local = {site: part.groups[OWN] for site, part in exact.patients.items()}
    expected = mmlca.site_differences(data, clusters, local=local, models=models, n_boot=50, seed=1)
    assert exact.differences is not None
    pd.testing.assert_frame_equal(
        exact.differences.norms, expected.norms, check_dtype=False, rtol=0, atol=1e-12
    )
    pairs = [pd.crosstab(p.groups[ENSEMBLE], p.groups[REFINED]) for p in exact.patients.values()]
    moves = moves_of(exact.results, exact.sizes, 1)
    np.testing.assert_array_equal(moves.pairs[:-1, :-1], sum(pairs))
    sure = np.concatenate([p.memberships.max(axis=1) for p in exact.patients.values()])  # type: ignore[union-attr]
    assert mean_of(exact.results, "probability") == pytest.approx(sure.mean(), abs=1e-12)


def test_rounded_results_are_near_the_exact_ones(exact: Network, rounded: Network) -> None:
    assert exact.differences is not None
    assert rounded.differences is not None
    norms = rounded.differences.norms.query("membership == 'ensemble'")
    near = exact.differences.norms.query("membership == 'ensemble'")
    assert ((norms["norm"] - near["norm"]).abs() < 3 * norms["rounding"] + 0.02).all()
    for name in ("vote_share", "probability"):
        assert mean_of(rounded.results, name) == pytest.approx(
            mean_of(exact.results, name),
            abs=0.06,  # the draws differ in every run
        )
    same = same_as_own(rounded.results, 11)["all"]
    assert same == pytest.approx(same_as_own(exact.results, 1)["all"], abs=0.1)


@pytest.mark.parametrize("name", ["exact", "rounded"])
def test_sections_do_without_patients(name: str, request: pytest.FixtureRequest) -> None:
    network: Network = request.getfixturevalue(name)
    study, findings = network.study, network.findings()
    made = [
        *refinement.items(study, findings),
        *ensemble_section.items(study, findings),
        sites._norms(study, findings, findings.differences),
    ]
    names = [item.name for item in made]
    assert names == [
        "refined_sizes",
        "refined_moved",
        "refined_by_site",
        "refined_differences",
        "weights",
        "agreement",
        "site_differences_norms",
    ]
    norms = made[-1]
    assert {"low", "high"} <= set(norms.table)  # in one place there are those of the test instead
    assert ("rounding" in norms.table) == (name == "rounded")
    assert "those of clusters found in the same data are too narrow" in norms.caption


def test_what_only_one_place_can_know_is_said_to_be_unknown(rounded: Network) -> None:
    study, findings = rounded.study, rounded.findings()
    assert not pick(findings.numbers, Kind.SHARED)
    careful = " ".join(
        [*sites.cautions(study, findings), *ensemble_section.cautions(study, findings)]
    )
    assert (
        "a test that allows for uncertain clusters needs the patients of all sites in one"
        in careful
    )
    assert "How many patients would change cluster without a site is not known" in careful
    assert "likelihood" not in " ".join(sites.methods(study, findings))
    assert "3 models were combined" in ensemble_section.methods(study, findings)[0]
    sentence = summary._site_sentence(findings)
    assert sentence.endswith("Whether they differ by more than chance was not tested.")
    assert "would change cluster" not in summary._of_ensemble(study, findings)
