from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ehr_prep import pseudo_sites
from mmlca import Sequences

SITES = {
    "MGB": Sequences.from_lists([["A", "B"], ["A", "A"], ["B", "B"], ["A", "B"], ["B", "A"]] * 20),
    "VA": Sequences.from_lists([["A", "B"], ["A", "A"], ["B", "B"]] * 5),
}


def test_names_sizes_and_shared_codes() -> None:
    made = pseudo_sites(SITES, n_per_site=4, fraction=0.8, seed=1)
    assert list(made) == [f"{site}/{i}" for site in ("MGB", "VA") for i in (1, 2, 3, 4)]
    for name, sequences in made.items():
        site = SITES[name.split("/")[0]]
        assert sequences.codes is site.codes
        assert sequences.ids.equals(site.ids)
        assert sequences.weights.sum() == 0.8 * len(site)
        assert (sequences.weights == np.round(sequences.weights)).all()
        assert sequences.weights.max() > 1  # drawn with replacement
        assert sequences.patterns.tokens is site.patterns.tokens
        assert sequences.patterns.weights.sum() == sequences.weights.sum()


def test_the_seed_decides() -> None:
    one, same, other = (pseudo_sites(SITES, seed=s) for s in (1, 1, 2))
    assert all(one[name] == same[name] for name in one)
    assert any(one[name] != other[name] for name in one)
    assert one["MGB/1"] != one["MGB/2"]


def test_each_patient_is_drawn_in_proportion_to_the_weight() -> None:
    site = Sequences.from_lists([["A"], ["B"], ["A"]], weights=[1, 3, 0])
    made = pseudo_sites({"x": site}, n_per_site=4000, fraction=1, seed=3)
    drawn = np.array([s.weights for s in made.values()])
    assert (drawn.sum(axis=1) == 4).all()
    np.testing.assert_allclose(drawn.mean(axis=0), [1, 3, 0], atol=0.06)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_per_site": 0}, "n_per_site must be"),
        ({"n_per_site": 1.5}, "n_per_site must be"),
        ({"fraction": 0}, "fraction must be"),
        ({"fraction": float("nan")}, "fraction must be"),
        ({"fraction": 0.01}, "of 'VA' is less than one"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pseudo_sites(SITES, **options)


def test_sequences_must_come_by_site() -> None:
    with pytest.raises(TypeError, match="by site"):
        pseudo_sites(SITES["MGB"])  # type: ignore[arg-type]


def test_the_draws_of_a_site_do_not_depend_on_other_sites() -> None:
    """A hospital alone has the resamples that it has in a study of all."""
    together = pseudo_sites(SITES, n_per_site=3, seed=5)
    for site, data in SITES.items():
        for name, alone in pseudo_sites({site: data}, n_per_site=3, seed=5).items():
            assert (together[name].weights == alone.weights).all()
