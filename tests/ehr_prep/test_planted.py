"""The cohorts with planted groups have what they are said to have."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from paths import ROOT

from ehr_prep.synthetic.planted import DEAD, DISEASES, planted_cohort
from font.errors import InputError


@pytest.mark.parametrize("disease", DISEASES)
def test_groups_states_and_follow_up(disease: str) -> None:
    quarters, groups = DISEASES[disease]
    assert sum(group.share for group in groups) == pytest.approx(1)
    data, truth = planted_cohort(disease, 3000, seed=1)
    assert data.shape == (3000, quarters)
    shares = truth.value_counts(normalize=True)
    for group in groups:
        assert shares[group.name] == pytest.approx(group.share, abs=0.03)
        assert all(sum(p for _, p in phase.then) <= 1 + 1e-9 for phase in group.phases)
        first = data.codes[(truth == group.name).to_numpy(), 0]
        seen = {data.states[code] for code in np.unique(first)}
        assert seen - {DEAD} <= {phase.state for phase in group.phases}
    whole = 0.6 + 0.4 / (quarters - 3)  # less those whose last quarter is missing
    assert whole - 0.06 < (data.lengths == quarters).mean() < whole + 0.03
    later = np.arange(quarters)[None] < data.lengths[:, None]
    later[:, 0] = False
    assert (data.codes[later] < 0).mean() == pytest.approx(0.027, abs=0.01)


def test_stays_are_gamma_distributed() -> None:
    """Nobody of the switchers leaves the first drug at once: a shape of 4 around 2.5 quarters."""
    data, truth = planted_cohort("antidepressants", 4000, seed=2)
    rows = data.codes[(truth == "switchers").to_numpy()]
    ssri = data.states.index("SSRI")
    left = (rows != ssri).argmax(axis=1)
    assert (left == 1).mean() < 0.25  # a constant probability would have 1/2.5
    assert np.median(left) == 2


def test_the_dead_stay_dead_and_the_seed_decides() -> None:
    data, _ = planted_cohort("myeloma", 500, seed=3)
    assert data.absorbing == (DEAD,)
    assert data == planted_cohort("myeloma", 500, seed=3)[0]
    assert data != planted_cohort("myeloma", 500, seed=4)[0]
    with pytest.raises(InputError, match="disease must be one of"):
        planted_cohort("asthma")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_method_wins_in_all_cohorts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statements of docs/which_method.md on one cohort of each disease."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    which_method = importlib.import_module("which_method")
    table, shares = which_method.agreement(1, 1000)
    table["method"] = table["method"].str.replace(r" \(\d+\)", "", regex=True)
    index = table.pivot(index="cohort", columns="method", values="ari")
    # with the planted number of groups, chains are best for antidepressants, and others elsewhere
    three = index[["chains", "by time in state", "course"]]
    assert three.idxmax(axis=1)["antidepressants"] == "chains"
    assert three.idxmax(axis=1)["HIV"] == three.idxmax(axis=1)["myeloma"] == "by time in state"
    assert index.loc["HIV", "course, BIC"] > index.loc["HIV", "chains, BIC"] + 0.1
    assert index.loc["antidepressants", "course, BIC"] > 0.7
    found = shares.set_index(["group", "method"])["share"]
    assert found["intermittent users", "chains"] > 0.8 > 0.2 > found["intermittent users", "course"]
    assert (
        found["treatment-resistant", "chains"] < 0.3 < 0.9 < found["treatment-resistant", "course"]
    )
    assert found["late presenters", "chains"] < 0.2 < 0.6 < found["late presenters", "course"]
