"""Overlaps of groups, and the matching of own classes from them alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mmlca import Sequences
from mmlca.study.results import about
from mmlca.study.results import groups as results_of_groups
from mmlca.study.results.groups import classes_everywhere, matched_classes, site_differences_of
from mmlca.study.results.registry import site_results
from mmlca.study.results.site import ENSEMBLE, OWN, REFINED, SitePatients, SiteResults, stacked
from mmlca.study.settings import Study
from mmlca.tables.counts import cluster_steps
from mmlca.tables.disclosure import Rounding, few_digits
from mmlca.tables.matching import memberships
from mmlca.tables.site_differences import SiteDifferences, site_differences

SITES = ("X", "Y", "Z")
PARTS = (about.DATA, results_of_groups.PART)


def study(min_count: int = 1) -> Study:
    sites = {site: {"records": Path(f"{site}.csv")} for site in SITES}
    return Study.model_validate(
        {"name": "overlaps", "sites": sites, "privacy": {"min_count": min_count}}
    )


def patients(
    seed: int, classes: tuple[int, ...] = (3, 4, 3), rounding: bool = False, n: int = 120
) -> dict[str, SitePatients]:
    """Three sites whose clusters follow from the courses, as do the classes of their models."""
    rng = np.random.default_rng(seed)
    made = {}
    for site in SITES:
        codes = rng.integers(0, 3, (n, 6))
        codes[rng.random((n, 6)) < 0.1] = -1
        data = Sequences.from_lists(
            [[None if k < 0 else "ABC"[k] for k in row] for row in codes],
            states=["A", "B", "C"],
            ids=[f"{site}{i}" for i in range(n)],
        )
        score = (codes == 0).sum(axis=1)
        clusters = pd.Series(1 + np.clip(score, 1, 3) - 1, data.ids)
        labels = {}
        for model, k in zip(SITES, classes, strict=True):
            order = rng.permutation(k)
            labels[model] = order[np.clip(score + rng.integers(0, 2, n), 0, k - 1)]
        table = pd.DataFrame(labels, index=data.ids).assign(**{"X/1": labels["X"]})
        groups = {ENSEMBLE: clusters, OWN: table[site] + 1}
        groups[REFINED] = clusters.where(rng.random(n) < 0.9, 1)
        made[site] = SitePatients(
            site=site,
            sequences=data,
            groups=groups,
            labels=table,
            certainty=pd.DataFrame(index=data.ids),
            rounding=Rounding(b"secret", 11, {site: clusters}) if rounding else None,
        )
    return made


def results_of(made: dict[str, SitePatients], min_count: int = 1) -> dict[str, SiteResults]:
    return {site: site_results(study(min_count), part, PARTS) for site, part in made.items()}


@pytest.mark.parametrize("classes", [(3, 3, 3), (3, 4, 2), (2, 4, 3), (4, 5, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_exact_counts_match_classes_as_patients_do(classes: tuple[int, ...], seed: int) -> None:
    made = patients(seed, classes)
    sites = {site: part.sequences for site, part in made.items()}
    clusters = {site: part.groups[ENSEMBLE] for site, part in made.items()}
    models = {m: {site: part.labels[m].to_numpy() for site, part in made.items()} for m in SITES}
    rules = memberships(sites, clusters, None, models)
    results = results_of(made)
    matched, everywhere = matched_classes(results), classes_everywhere(results)
    for site, part in made.items():
        found = part.groups[OWN].map(matched[site])
        rule = rules["local"]
        assert found.tolist() == [rule.labels[i] for i in rule.codes[site]]
        for model in SITES:
            rule = rules[f"{model} everywhere"]
            found = (part.labels[model] + 1).map(everywhere[model])
            assert found.tolist() == [rule.labels[i] for i in rule.codes[site]]


def test_overlaps_count_every_patient_once() -> None:
    made = patients(1)
    results = results_of(made)
    overlaps = stacked(results, "overlaps")
    by_pair = overlaps.groupby(["site", "view", "other"])["patients"].sum()
    assert (by_pair == 120).all()
    assert len(by_pair) == 9
    table = stacked(results, "classes_everywhere")
    assert set(table["model"]) == set(SITES)  # not of the resamples
    for site, part in made.items():
        own = table[(table["site"] == site) & (table["model"] == site)]
        pairs = pd.crosstab(part.groups[ENSEMBLE], part.groups[OWN]).stack()
        counted = own.set_index(["cluster", "class"])["patients"]
        assert counted.to_dict() == pairs[pairs > 0].to_dict()


def test_a_site_alone_and_one_class_have_nothing_to_match() -> None:
    part = patients(1)["X"]
    alone = SitePatients("X", part.sequences, {"": part.groups[OWN]}, part.labels, part.certainty)
    results = {"X": site_results(study(), alone)}
    assert matched_classes(results) == {}
    assert classes_everywhere(results) == {}


def test_a_site_without_a_model_of_its_own_is_left_out() -> None:
    made = patients(1)
    part = made["X"]
    groups = {view: group for view, group in part.groups.items() if view != OWN}
    made["X"] = SitePatients("X", part.sequences, groups, part.labels, part.certainty)
    assert set(matched_classes(results_of(made))) == {"Y", "Z"}


def test_rounded_counts_are_multiples_of_the_unit_and_no_larger_than_their_groups() -> None:
    made = patients(2, rounding=True)
    results = results_of(made, min_count=11)
    for name, count in (
        ("overlaps", "patients"),
        ("classes_everywhere", "patients"),
        ("steps", "count"),
        ("steps", "patients"),
        ("step_rows", "patients"),
    ):
        counts = stacked(results, name)[count]
        assert (counts % 11 == 0).all(), name
        assert counts.sum() > 0
    overlaps = stacked(results, "overlaps")
    for (site, view), rows in overlaps.groupby(["site", "view"]):
        part = made[str(site)]
        draw, sizes = part.rounding_of(str(view)), part.groups[str(view)].value_counts()
        assert draw is not None
        for group, size in sizes.items():
            here = rows[rows["group"] == group]
            assert (here["patients"] <= draw(size, str(site), group)).all()
    matched = matched_classes(results)
    assert set(matched) == set(SITES)


def test_counts_rest_on_the_patients_of_the_site_alone() -> None:
    """Other patients elsewhere change nothing in what a site releases."""
    names = ("overlaps", "classes_everywhere", "steps", "step_rows")
    first = results_of(patients(3))["X"]
    again = results_of({"X": patients(3)["X"]})["X"]
    for name in names:
        pd.testing.assert_frame_equal(first.tables[name], again.tables[name])


# --- differences between sites --------------------------------------------------------------


def in_one_place(made: dict[str, SitePatients]) -> SiteDifferences:
    """The differences as they follow from all patients."""
    models = {m: {site: part.labels[m].to_numpy() for site, part in made.items()} for m in SITES}
    return site_differences(
        {site: part.sequences for site, part in made.items()},
        {site: part.groups[ENSEMBLE] for site, part in made.items()},
        models=models,
        n_boot=50,
        seed=1,
    )


@pytest.mark.parametrize("classes", [(3, 3, 3), (3, 4, 2)])
def test_differences_from_exact_results_are_those_from_all_patients(
    classes: tuple[int, ...],
) -> None:
    made = patients(4, classes)
    found, expected = site_differences_of(results_of(made), n_boot=50, seed=1), in_one_place(made)
    assert found is not None
    pd.testing.assert_frame_equal(found.norms, expected.norms, rtol=0, atol=1e-12)
    assert (found.norms["rounding"] == 0).all()
    numbers = ["difference", "n_first", "n_second", "patients_first", "patients_second"]
    keys = ["membership", "sites", "quantity", "from", "to", "cluster"]
    tables = [
        part.differences.astype({"from": object, "to": object}).set_index(keys)[numbers]
        for part in (found, expected)
    ]
    pd.testing.assert_frame_equal(*tables, check_dtype=False, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_differences_from_rounded_results_are_within_their_stated_error(seed: int) -> None:
    """Its size is a root mean square, of which three times are hardly ever reached."""
    made = results_of(patients(seed, rounding=True, n=600), min_count=11)
    exact = in_one_place(patients(seed, n=600)).norms.query("membership == 'ensemble'")
    rounded = site_differences_of(made, n_boot=50, seed=1)
    assert rounded is not None
    norms = rounded.norms.query("membership == 'ensemble'")
    assert (norms["rows_left_out"] == 0).all()
    assert (norms["rounding"] > 0).all()
    assert ((norms["norm"] - exact["norm"]).abs() < 3 * norms["rounding"]).all()
    assert ((norms["debiased"] - exact["debiased"]).abs() < 3 * norms["rounding"]).all()


def test_each_of_many_sites_is_compared_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made = patients(5, (3, 3, 3))
    monkeypatch.setattr(results_of_groups, "MOST_SITES", 2)
    found = site_differences_of(results_of(made), n_boot=20, seed=1)
    assert found is not None
    assert set(found.norms["membership"]) == {"ensemble", "local"}
    norms = found.norms.query("membership == 'ensemble'").set_index("sites")
    assert list(norms.index.unique()) == [f"{site} − all others" for site in SITES]
    for site, part in made.items():
        others = [other for name, other in made.items() if name != site]
        rest = Sequences.concat({name: made[name].sequences for name in SITES if name != site})
        clusters = np.concatenate([other.groups[ENSEMBLE] for other in others])
        two = {site: part.sequences, "rest": rest}
        expected = site_differences(
            two, {site: part.groups[ENSEMBLE].to_numpy(), "rest": clusters}, n_boot=0
        ).norms
        here = norms.loc[f"{site} − all others"]
        np.testing.assert_allclose(here["norm"], expected["norm"], rtol=0, atol=1e-12)
        np.testing.assert_allclose(here["debiased"], expected["debiased"], atol=0.01)


def test_one_site_differs_from_no_other() -> None:
    assert site_differences_of(results_of({"X": patients(1)["X"]}), n_boot=0, seed=1) is None


def test_variances_rest_on_enough_patients_and_have_two_digits() -> None:
    """One patient who switches often would be known from the variance of the steps alone."""
    courses = [["A"] * 6] * 99 + [["A", "B", "A", "B", "A", "B"]]
    data = Sequences.from_lists(courses + [["B", "B", "A", "B", "A", "A"]] * 20)
    clusters = pd.Series([1] * 100 + [2] * 20, data.ids)
    labels = pd.DataFrame(index=data.ids)
    made = {"X": SitePatients("X", data, {ENSEMBLE: clusters}, labels, labels,
                              rounding=Rounding(b"secret", 11, {"X": clusters}))}  # fmt: skip
    rows = results_of(made, min_count=11)["X"].tables["step_rows"].set_index(["group", "from"])
    assert np.isnan(rows.at[(1, "A"), "dispersion"])
    known = rows["dispersion"].dropna()
    assert len(known) > 0
    assert [float(f"{value:.2g}") for value in known] == known.to_list()


def test_a_variance_does_not_tell_how_many_patients_make_a_rare_step() -> None:
    """Beside it are rounded counts, so that those of the other steps may be 10 larger or less."""
    rng = np.random.default_rng(2)

    def variances(rare: int) -> np.ndarray:
        found = []
        for _ in range(40):
            stay, move = 200 + rng.integers(-10, 11), 60 + rng.integers(-10, 11)
            last = [["B"] * 5, ["C"] * 5]
            courses = [["A"] * 6] * stay + [["A", *last[0]]] * move + [["A", *last[1]]] * rare
            courses += [["A", "B", "A", "B", "A", "B"]] * int(rng.integers(11, 30))
            data = Sequences.from_lists(courses, states=["A", "B", "C"])
            exact = cluster_steps(data, np.zeros(len(data), dtype=int), 1)
            found.append(few_digits(exact.dispersion[0, :1], 2)[0])
        return np.array(found)

    few, many = variances(1), variances(10)
    assert few.min() <= np.median(many) <= few.max()
    assert many.min() <= np.median(few) <= many.max()
