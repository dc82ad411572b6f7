"""Studies of chains that are not plain: how the form is chosen, and what the report says of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from stay_chains import THREE_BINS, two_classes
from study_sizes import collect_sizes, disagreeing

import mmlca
from font.errors import InputError
from mmlca.model.inference import parameter_names
from mmlca.model.params import FormParams
from mmlca.model.selection import best_form, sum_by_form
from mmlca.sequences.forms import PLAIN, Form
from mmlca.study import analysis as analyse
from mmlca.study import read_study, run_study
from mmlca.study.processes import Processes
from mmlca.study.results import models
from mmlca.study.results.fit import Fits
from mmlca.study.results.site import ONLY, SitePatients
from mmlca.study.sections import form_choice, leaving
from mmlca.study.sensitivity import variants
from mmlca.study.settings import Study
from mmlca.study.study_file import network_form, read_network_study, write_study_file
from mmlca.tables.counts import form_patients
from mmlca.tables.diagnostics import diagnose_clusters
from mmlca.tables.shared_chains import cluster_chains, shared_mixture

BY_STAY = THREE_BINS.title


def study_of(sites: str = "A", **settings: Any) -> Study:
    files = {site: {"sequences": f"{site}.csv"} for site in sites}
    return Study.model_validate(
        {
            "name": "x",
            "sites": files,
            "model": {"n_init": 3},
            "classes": {"candidates": [1, 2]},
            "inference": {"diagnostics": False},
            **settings,
        },
        strict=False,
    )


def patients(
    n: int, seed: int, n_times: int = 12, first: list[list[float]] | None = None
) -> mmlca.Sequences:
    chains = two_classes()
    chains = chains if first is None else replace(chains, initial=first)
    lengths = n_times if first is None else np.random.default_rng(seed).integers(3, n_times + 1, n)
    data, _ = mmlca.simulate(chains, n, lengths, states=list("abcd"), seed=seed)
    return data


# --- settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rule", "form"),
    [
        ({}, "compare", Form((2, 4))),
        ({"classes": {"number": 2}}, "plain", Form((2, 4))),
        ({"classes": {"number": 2}, "model": {"stays": [3]}}, "given", Form((3,))),
        ({"model": {"stays": [3]}}, "compare", Form((3,))),
        ({"model": {"periods": [5]}}, "compare", Form((), (5,))),
        ({"model": {"form": "given"}}, "given", Form((2, 4))),
        ({"model": {"stays": [], "form": "given"}}, "given", PLAIN),
        ({"model": {"form": "plain"}}, "plain", Form((2, 4))),
    ],
)
def test_how_the_form_is_decided(settings: dict[str, Any], rule: str, form: Form) -> None:
    study = study_of(**settings)
    assert (study.form_rule, study.given_form) == (rule, form)


def test_study_files_of_presets_and_networks(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    write_study_file(path, preset="ra")
    assert read_study(path, files=False).form_rule == "plain"  # as published
    path.write_text('name = "x"\n[sites.A]\nrecords = "a.csv"\n[model]\nstays = [4, 2]\n')
    with pytest.raises(InputError, match="stays must be increasing whole numbers from 2"):
        read_study(path, files=False)
    write_study_file(path, network=True)
    text = path.read_text()
    assert read_network_study(path).model.form is None
    path.write_text(text.replace("[model]\n", '[model]\nform = "compare"\n'))
    with pytest.raises(InputError, match="needs all patients in one place"):
        read_network_study(path)
    for line, form in (
        ("", PLAIN),
        ('form = "plain"\nstays = [3]', PLAIN),
        ('form = "given"', Form((2, 4))),
        ("stays = [3]", Form((3,))),
        ("periods = [5]", Form((), (5,))),
    ):
        path.write_text(text.replace("[model]\n", f"[model]\n{line}\n"))
        assert network_form(read_network_study(path)) == form


def test_forms_in_sensitivity_analyses() -> None:
    nothing = dict.fromkeys(("classes", "seeds"), ())
    study = study_of(
        classes={"number": 2}, model={"form": "given"}, sensitivity={**nothing, "stays": [[3]]}
    )
    assert [(v.name, v.study.form_rule, v.study.given_form) for v in variants(study)] == [
        ("cut points of time in state: (3,)", "given", Form((3,))),
        ("form of the chains: plain", "plain", Form((2, 4))),
    ]
    plain = study.changed(model={"form": "plain"})  # other cut points need the other form
    assert [(v.study.form_rule, v.study.given_form) for v in variants(plain)] == [
        ("given", Form((3,))),
        ("given", Form((2, 4))),
    ]


# --- the choice ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sites() -> dict[str, mmlca.Sequences]:
    return {"A": patients(260, 1), "B": patients(200, 2)}


@pytest.fixture(scope="module")
def compared(sites: dict[str, mmlca.Sequences]) -> analyse.Comparison:
    resamples = {"A/1": sites["A"].reweight(np.tile([2.0, 0.0], 130))}
    with Processes(1) as processes:
        return analyse.compare_numbers(study_of("AB"), sites, resamples, processes)


def test_the_comparison_is_that_of_the_library(
    sites: dict[str, mmlca.Sequences], compared: analyse.Comparison
) -> None:
    forms = ["plain", {"stays": (2, 4)}]
    given: dict[str, Any] = {"n_init": 3, "prior": 1e-4, "min_patients": 11}
    expected = mmlca.select_n_classes(sites, [1, 2], seed=1, forms=forms, **given)
    keys = ["site", "form", "classes"]
    of_sites = compared.table[compared.table["site"].isin(["A", "B"])]
    both = expected.set_index(keys).join(of_sites.set_index(keys), rsuffix="_study")
    assert len(both) == len(of_sites) == 8
    for name in ("loglik", "parameters", "parameters_all", "bic", "bic_all", "icl"):
        np.testing.assert_array_equal(both[name], both[f"{name}_study"])
    assert compared.form == THREE_BINS
    assert compared.final
    model = compared.fits["B", 2]
    alone = mmlca.MixtureMarkov(2, stays=(2, 4), n_init=3, seed=1).fit(sites["B"])
    assert model.params_ == alone.params_
    assert set(compared.table.query("site == 'A/1'")["form"]) == {BY_STAY}
    assert compared.table.groupby("site")["chosen"].sum().tolist() == [1, 1, 1]
    assert set(compared.table.loc[compared.table["chosen"], "form"]) == {BY_STAY}


def test_sites_decide_together_each_at_its_best_number() -> None:
    """B alone would choose the plain chain, and the last number of A would as well."""
    rows = [("A", "plain", 1, 110), ("A", "plain", 2, 100), ("A", "other", 1, 80)]
    rows += [("A", "other", 2, 130), ("B", "plain", 1, 50), ("B", "other", 1, 60)]
    table = pd.DataFrame(rows, columns=["site", "form", "classes", "bic"])
    assert sum_by_form(table, "bic").to_dict() == {"plain": 150, "other": 140}
    assert best_form(table, "bic") == "other"
    assert best_form(table.assign(bic=1.0), "bic") == "plain"  # of equals the first


def test_a_form_that_is_named_is_used_and_the_other_stands_beside_it(
    sites: dict[str, mmlca.Sequences],
) -> None:
    one = {"A": sites["A"]}
    with Processes(1) as processes:
        found = analyse.compare_numbers(study_of(model={"form": "plain"}), one, {}, processes)
    assert found.form == PLAIN
    assert found.table["form"].nunique() == 2
    assert set(found.table.loc[found.table["chosen"], "form"]) == {"plain"}
    assert found.table.loc[found.table["bic"].idxmin(), "form"] == BY_STAY


def test_a_form_that_the_data_do_not_reach() -> None:
    short = {"A": patients(40, 1, n_times=3)}
    with Processes(1) as processes:
        with pytest.warns(UserWarning, match="were not compared with plain ones: at A"):
            found = analyse.compare_numbers(study_of(), short, {}, processes)
        assert (found.form, set(found.table["form"])) == (PLAIN, {"plain"})
        with pytest.raises(InputError, match=r"A: stays = .* cut points that are too late"):
            analyse.compare_numbers(study_of(model={"stays": (2, 9)}), short, {}, processes)


def test_fits_that_left_out_steps_are_not_the_models() -> None:
    """Forms are compared on the same steps; a form that is named uses all that it can."""
    codes = patients(120, 3).codes.copy()
    codes[::4, 5] = -1
    data = {"A": mmlca.Sequences.from_codes(codes, list("abcd"))}
    with Processes(1) as processes:
        with pytest.warns(UserWarning, match="all of them leave out these"):
            found = analyse.compare_numbers(study_of(), data, {}, processes)
        assert not found.final
        found = analyse.compare_numbers(study_of(model={"form": "plain"}), data, {}, processes)
    assert found.final
    given: dict[str, Any] = {"n_init": 3, "prior": 1e-4, "min_patients": 11}
    expected = mmlca.select_n_classes(data["A"], [1, 2], seed=1, **given)
    np.testing.assert_array_equal(found.table["bic"], expected["bic"])


# --- clusters ------------------------------------------------------------------------------


def test_the_fit_of_clusters_is_judged_with_their_form(sites: dict[str, mmlca.Sequences]) -> None:
    data = patients(500, 5)
    model = mmlca.MixtureMarkov(2, stays=(2, 4), n_init=3, seed=1).fit(data)
    clusters = {"A": model.predict(data) + 1}
    mixture = shared_mixture({"A": data}, clusters, model.form)
    assert mixture.run.path[-1, 0] == pytest.approx(model.loglik_, abs=0.01)
    tests = [
        diagnose_clusters({"A": data}, clusters, form=form, n_sim=19, seed=1).tests
        for form in (model.form, PLAIN)
    ]
    p_values = [t.set_index("test")["p_value"]["length of stays"] for t in tests]
    assert p_values[0] > 0.05 >= p_values[1]


def test_chains_of_clusters_are_shares_of_their_patients() -> None:
    data = mmlca.Sequences.from_lists([["A", "A", "B"]] * 3 + [["A", "B", "B"]])
    chains = cluster_chains({"x": data}, {"x": [1, 1, 1, 1]}, Form((2,)))
    assert isinstance(chains, FormParams)
    assert chains.leaving[0, 0, :, 0] == pytest.approx([1 / 4, 1], abs=0.13)  # and a prior


# --- numbers of the report ----------------------------------------------------------------


def counted_naively(
    data: mmlca.Sequences, classes: np.ndarray, row: Any, form: Form
) -> tuple[int, int]:
    """Patients of a class who leave a state in a context, and who stay; or who go from–to."""
    leavers, stayers = set(), set()
    for i, codes in enumerate(data.codes.tolist()):
        spent = 0
        for t in range(len(codes) - 1):
            spent = spent + 1 if t and codes[t] == codes[t - 1] else 1
            if classes[i] != row["class"] or data.states[codes[t]] != row["from"]:
                continue
            if row["parameter"] == "destination":
                if data.states[codes[t + 1]] == row["to"]:
                    leavers.add(i)
            elif form.bins[sum(cut <= spent for cut in form.stays)] == row["stay"]:
                (stayers if codes[t + 1] == codes[t] else leavers).add(i)
    return len(leavers), len(stayers)


@pytest.fixture(scope="module")
def one_site() -> SitePatients:
    data = patients(300, 4)
    model = mmlca.MixtureMarkov(2, stays=(2, 4), n_init=3, seed=1).fit(data)
    labels = pd.DataFrame({"A": model.predict(data)}, data.ids)
    groups = {ONLY: labels["A"] + 1}
    fits = models.fit_table({"A": model}, labels)
    return SitePatients("A", data, groups, labels, pd.DataFrame(), own=model, fits=fits)


@pytest.fixture(scope="module")
def shown(one_site: SitePatients) -> pd.DataFrame:
    return models.make(study_of(), one_site)["parameters"]


def test_what_few_patients_leave_or_stay_in_is_not_shown(
    one_site: SitePatients, shown: pd.DataFrame
) -> None:
    assert one_site.own is not None
    data, classes = one_site.sequences, one_site.groups[ONLY].to_numpy()
    errors = one_site.own.standard_errors(data)
    names = parameter_names(one_site.own.params_, data.states)
    pd.testing.assert_frame_equal(shown[names.columns], names)
    known = shown["estimate"].notna().to_numpy()
    np.testing.assert_array_equal(shown["estimate"][known], errors["estimate"][known])
    np.testing.assert_array_equal(shown["se"][known], errors["se"][known])
    support = form_patients(data, classes - 1, 2, THREE_BINS)
    rows = names[names["parameter"].isin(["leave", "destination"])]
    assert len(support) == len(rows)
    few = 0
    for n, (place, row) in zip(support, rows.iterrows(), strict=True):
        leavers, stayers = counted_naively(data, classes, row, THREE_BINS)
        behind = leavers if row["parameter"] == "destination" else min(leavers, stayers)
        assert n == behind
        assert known[place] <= (behind >= 11), row
        few += behind < 11
    assert few > 0  # there is something to hide
    leave = shown["parameter"] == "leave"
    assert (known & leave).sum() > 10


def test_what_is_hidden_does_not_follow_from_what_is_shown(shown: pd.DataFrame) -> None:
    """Destinations add up to 1: one that is hidden takes another with it, or the whole row."""
    rows = shown[shown["parameter"] == "destination"]
    hidden = rows["estimate"].isna().groupby([rows["class"], rows["from"]]).sum()
    assert not (hidden == 1).any()


def findings_of(fits: Fits, **more: Any) -> Any:
    combined = SimpleNamespace(n_groups=2, ensemble=None)
    names = {"A": {1: "class 1", 2: "class 2"}, "B": {1: "class 1", 2: "class 2"}}
    return SimpleNamespace(fits=fits, combined=combined, class_names=names, **more)


def test_sentences_about_leaving_are_the_numbers(
    one_site: SitePatients, shown: pd.DataFrame
) -> None:
    nothing = dict.fromkeys(("choice", "class_tests", "choices", "stability", "tests"))
    assert one_site.fits is not None
    fits = Fits(
        models=one_site.fits.assign(site="A"),
        parameters=shown.assign(site="A"),
        diagnostics={},
        **nothing,
    )
    study, findings = study_of(outputs={"time": "Quarter"}), findings_of(fits, sites=["A"])
    texts = leaving.leaving_sentences(study, findings, "A")
    leave = shown[shown["parameter"] == "leave"]
    assert list(texts) == [1, 2]
    for k, text in texts.items():
        match = re.match(r"\d+ % leave (\w)", text)
        assert match is not None
        values = leave.loc[(leave["class"] == k) & (leave["from"] == match[1]), "estimate"]
        said = [int(share) for share in re.findall(r"(\d+) %", text)]
        assert said == [round(100 * x) for x in values.dropna()]
        assert "after 1 quarter, " in text
    (item,) = leaving.items(study, findings)
    assert all(text in item.caption for text in texts.values())
    assert item.table["leaving"].tolist() == pytest.approx(leave["estimate"].tolist(), nan_ok=True)
    assert leaving.largest_class(study, findings) == [
        f"In the largest class, {texts[1]} (class 1)."
    ]
    (stays,) = leaving.methods(study, findings)
    assert "(1, 2–3, 4+ quarters)" in stays


def test_the_sentence_of_the_choice_is_the_table(compared: analyse.Comparison) -> None:
    fits = SimpleNamespace(choice=compared.table, form=BY_STAY)
    study, findings = study_of("AB"), findings_of(fits)  # type: ignore[arg-type]
    best = compared.table.groupby(["form", "site"])["bic"].min().unstack()
    apart = (best.loc["plain"] - best.loc[BY_STAY])[["A", "B"]].sum()
    text = form_choice.form_sentence(study, findings)
    assert text.startswith(f"BIC chose chains {BY_STAY}, with 2 classes; plain chains would have")
    assert f"a BIC larger by {apart:,.0f}, summed over the sites." in text
    (item,) = form_choice.items(study, findings)
    page = item.layout.shown  # type: ignore[union-attr]
    assert page is not None
    assert page.loc[page["site"] == "all sites", "best"].tolist() == [f"{apart:,.0f}", "0 (lowest)"]
    assert item.table.loc[item.table["lowest"], "form"].tolist() == [BY_STAY] * 2
    named = study.changed(model={"form": "plain"})
    fits.form = "plain"
    (caution,) = form_choice.cautions(named, findings)
    assert f"BIC smaller by {apart:,.0f}" in caution
    assert form_choice.form_sentence(named, findings).startswith("The study file asks for plain")


def check_public(out: Path, site: str) -> None:
    """Whoever multiplies estimates with the numbers that they rest on finds no small number.

    A share p with the standard error s rests on about p(1 − p)/s² patients, of whom so many leave,
    and so many stay. Where fewer than 11 of either are assigned to the class, nothing is shown.
    """
    table = pd.read_csv(out / f"figures/leaving_{site}.csv")
    data = mmlca.Sequences.read(out / f"patients/{site}_sequences.csv")
    classes = mmlca.MixtureMarkov.load(out / f"models/{site}.json").predict(data)
    either = form_patients(data, classes, 2, THREE_BINS)[: len(table)]
    assert table["leaving"].isna()[either < 11].all()
    shown = table.dropna(subset="leaving")
    p = shown["leaving"]
    behind = p * (1 - p) / shown["se"] ** 2
    assert (behind * np.minimum(p, 1 - p)).min() > 5  # sums of memberships, which are uncertain
    digits = shown["leaving"].map(lambda x: len(f"{x:.10g}".split(".")[-1]))
    assert digits.max() <= 3


# --- whole studies -------------------------------------------------------------------------

FILE = """
name = "Stays"
[sites.A]
sequences = "A.csv"
[sites.B]
sequences = "B.csv"
[classes]
candidates = [1, 2, 3]
[pseudo_sites]
per_site = 1
[model]
n_init = 4
[inference]
simulations = 9
[outputs]
figures = false
bootstrap = 0
[privacy]
release = "{release}"
"""


# classes that begin differently, so that estimates are near shares of the patients assigned
CLEAR = [[0.93, 0.03, 0.03, 0.01], [0.03, 0.93, 0.01, 0.03]]


@pytest.mark.slow
@pytest.mark.parametrize("release", ["inside", "public"])
def test_a_whole_study_by_time_in_state(tmp_path: Path, release: str) -> None:
    for seed, site in enumerate("AB"):
        patients(700 - 100 * seed, seed, 16, CLEAR).to_frame().to_csv(tmp_path / f"{site}.csv")
    (tmp_path / "study.toml").write_text(FILE.format(release=release))
    content = run_study(read_study(tmp_path / "study.toml"), tmp_path / "out")
    out = tmp_path / "out"
    stored = json.loads((out / "models/A.json").read_text())
    assert stored["params"]["form"]["stays"] == [2, 4]
    summary = " ".join(content["summary"])
    assert "BIC chose chains by time in state (1, 2–3, 4+), with 2 classes" in summary
    assert re.search(r"In the largest class of each site, \d+ % leave", summary)
    assert disagreeing(collect_sizes(out)) == {}
    for site in "AB":
        table = pd.read_csv(out / f"figures/leaving_{site}.csv")
        few = table["leaving"].isna()
        assert table.loc[few, ["se", "low", "high"]].isna().all(axis=None)
        if release == "public":
            check_public(out, site)
    tests = pd.read_csv(out / "tables/fit_tests.csv").set_index(["site", "test"])
    assert tests["p_value"]["all sites", "length of stays"] > 0.05
    again = run_study(read_study(tmp_path / "study.toml"), out)  # a resumed run says the same
    assert again == content
