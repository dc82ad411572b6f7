"""Secure sums: exact to the integer, single messages that say nothing, files that are refused."""

from __future__ import annotations

import base64
import builtins
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.cluster import KMeans

import font
from font.errors import InputError
from font.exchange.disclosure import round_counts
from font.exchange.envelope import fingerprint
from font.exchange.fields import ALL_SITES
from font.exchange.masked import (
    MaskedFile,
    add_masked,
    mask,
    mask_key,
    read_mask_keys,
    read_masked,
    write_mask_key,
    write_masked,
)
from font.exchange.messages.labels import sum_of_labels, write_masked_labels

SECRETS = {site: bytes([i]) * 32 for i, site in enumerate(["east", "north", "south", "west"], 1)}
KEYS = {site: mask_key(secret) for site, secret in SECRETS.items()}
OF = "0" * 64


def three() -> dict[str, str]:
    return {site: KEYS[site] for site in ("east", "north", "south")}


def header_of(site: str, about: dict[str, Any]) -> font.Header:
    """The header of a site's file, with what `about` says of study and round."""
    said = {name: about.pop(name) for name in ("study", "round") if name in about}
    return font.Header(**({"study": "s", "site": site} | said))


def masked(site: str, values: Any, keys: dict[str, str] | None = None, **about: Any) -> MaskedFile:
    settings = {"kind": "masked labels", "of": OF, "min_count": 11} | about
    header = header_of(site, settings)
    kind, pairs = settings.pop("kind"), KEYS if keys is None else keys
    return write_masked(None, kind, np.array(values), SECRETS[site], pairs, header, **settings)


@given(st.lists(st.tuples(*[st.integers(0, 10**15 // 4)] * 4), min_size=1, max_size=8))
@settings(max_examples=25, deadline=None)
def test_masks_cancel_to_the_last_digit(rows: list[tuple[int, ...]]) -> None:
    numbers = np.array(rows, dtype=np.int64).T
    parts = [masked(site, row) for site, row in zip(KEYS, numbers, strict=True)]
    assert add_masked(parts).values.tolist() == numbers.sum(axis=0).tolist()
    read = [read_masked(part.data) for part in reversed(parts)]
    assert add_masked(read).values.tolist() == numbers.sum(axis=0).tolist()


def test_a_masked_message_says_nothing_about_its_content() -> None:
    """Bytes are uniform and unrelated to the numbers, whether these are all 0 or vary."""
    n = 40_000
    rng = np.random.default_rng(1)
    for values in (np.zeros(n, dtype=np.int64), rng.poisson(3, n), np.arange(n)):
        hidden = mask(values, SECRETS["north"], "north", KEYS, ["study", 1])
        for byte in range(8):  # each place of the numbers by itself, the lowest ones above all
            column = hidden.view(np.uint8)[byte::8]
            assert stats.chisquare(np.bincount(column, minlength=256)).pvalue > 1e-4
            if np.ptp(values):
                assert abs(stats.spearmanr(column, values).statistic) < 4 / np.sqrt(n)
    # given the mask of one pair alone, the message still hides behind that of another
    pair = mask(np.zeros(n, dtype=np.int64), SECRETS["north"], "north", three(), ["study", 1])
    low = (hidden - pair).view(np.uint8)[::8]
    assert stats.chisquare(np.bincount(low, minlength=256)).pvalue > 1e-4


@pytest.mark.parametrize(
    "other",
    [
        {"study": "t"},
        {"round": 2},
        {"of": "1" * 64},
        {"keys": three()},
    ],
    ids=["study", "round", "table", "sites"],
)
def test_every_study_round_table_and_set_has_masks_of_its_own(other: dict[str, Any]) -> None:
    """The same content twice: no number comes again, and differences are as random as numbers."""
    values = np.full(20_000, 5)
    one, two = masked("north", values).values, masked("north", values, **other).values
    assert (one != two).all()
    low = (one - two).view(np.uint8)[::8]
    assert stats.chisquare(np.bincount(low, minlength=256)).pvalue > 1e-4
    assert (masked("north", values).values == one).all()


def test_the_sum_without_one_site_is_noise() -> None:
    values = np.zeros(5_000, dtype=np.int64)
    parts = [mask(values, SECRETS[s], s, KEYS, ["study", 1]) for s in ("east", "north", "south")]
    total = sum(parts[1:], parts[0])
    assert stats.chisquare(np.bincount(total.view(np.uint8), minlength=256)).pvalue > 1e-4
    with pytest.raises(InputError, match=r"masked files of 'west' are missing.*answer again"):
        add_masked([masked(s, values) for s in ("east", "north", "south")])
    again = [masked(s, values, three()) for s in three()]  # the round repeated among the others
    assert add_masked(again).values.sum() == 0


def test_wrong_sets_are_refused() -> None:
    two = dict(list(KEYS.items())[:2])
    with pytest.raises(InputError, match="at least 3 sites, found 2"):
        masked("east", [1], two)
    with pytest.raises(InputError, match="key of 'west' in the list is missing"):
        masked("west", [1], three())
    with pytest.raises(InputError, match="key of 'east' in the list is another"):
        masked("east", [1], KEYS | {"east": mask_key(b"x" * 32)})
    with pytest.raises(InputError, match="have the same key"):
        masked("east", [1], KEYS | {"west": KEYS["south"]})
    with pytest.raises(InputError, match="key of 'west' is not a public key"):
        masked("east", [1], KEYS | {"west": "0" * 64})  # of low order: anyone would know the mask
    parts = [masked(s, [1]) for s in KEYS]
    with pytest.raises(InputError, match="masked for the sites"):
        add_masked([*parts[:3], masked("east", [1], three())][1:])
    with pytest.raises(InputError, match="'east' comes twice"):
        add_masked([parts[0], *parts])
    for other in ({"round": 2}, {"of": "1" * 64}, {"study": "t"}):
        with pytest.raises(InputError, match="masked different tables"):
            add_masked([*parts[:3], masked("west", [1], **other)])
    with pytest.raises(InputError, match="masked different tables"):
        add_masked([*parts[:3], masked("west", [1, 1])])
    with pytest.raises(InputError, match="no masked files"):
        add_masked([])


def test_files_are_added_as_they_come_and_none_is_kept() -> None:
    seen: list[weakref.ref[MaskedFile]] = []

    def reading() -> Iterator[MaskedFile]:
        for site in KEYS:
            part = masked(site, [1, 2])
            assert all(ref() is None for ref in seen[:-1])  # but for the one added last
            seen.append(weakref.ref(part))
            yield part
            del part

    assert add_masked(reading()).values.tolist() == [4, 8]
    assert len(seen) == 4


@pytest.mark.parametrize("values", [[-1], [10**15 + 1], [[1]]])
def test_numbers_that_cannot_be_masked(values: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"numbers|whole"):
        masked("east", values)
    with pytest.raises(TypeError, match="whole numbers"):
        masked("east", [0.5])
    with pytest.raises(InputError, match="32 bytes; found 3"):
        mask_key(b"abc")


def encoded(values: Any) -> str:
    return base64.b64encode(np.array(values, dtype="<u8").tobytes()).decode()


def changed(data: bytes, **payload: Any) -> bytes:
    content = json.loads(data)
    content["payload"] |= payload
    content["sha256"] = fingerprint(content["payload"])
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": ""}, "payload.values"),
        ({"values": [1, 2]}, "payload.values"),
        ({"values": "A" * 16 + "=" * 3}, "64-bit numbers in base64"),
        ({"values": "A" * 16}, "64-bit numbers in base64"),
        ({"values": "A" * 11 + "é="}, "64-bit numbers in base64"),
        ({"values": "A" * 11 + " ="}, "64-bit numbers in base64"),
        ({"of": "x"}, "payload.of"),
        ({"min_count": 0}, "payload.min_count"),
        ({"sites": [{"site": "east", "key": "0" * 64}]}, "payload.sites"),
        ({"sites": [{"site": s, "key": KEYS[s]} for s in ("east", "east", "west")]}, "repeats"),
        ({"sites": [{"site": s, "key": KEYS[s]} for s in ("north", "south", "west")]}, "'east' is"),
        ({"sites": [{"site": s, "key": KEYS[s]} for s in ("west", "east", "north")]}, "in order"),
        ({"sites": [{"site": "../x", "key": KEYS["east"]}] * 3}, "payload.sites"),
        ({"more": 1}, "payload.more"),
    ],
)
def test_hostile_masked_files_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_masked(changed(masked("east", [1, 2]).data, **change))


def test_changed_numbers_do_not_pass_as_a_sum() -> None:
    parts = [masked(s, [1, 2]) for s in KEYS]
    spoilt = read_masked(changed(parts[0].data, values=encoded([5, 2**63])))
    with pytest.raises(InputError, match="masks do not cancel"):
        add_masked([spoilt, *parts[1:]])


def key_file(site: str, **about: Any) -> bytes:
    header = header_of(site, about)
    return write_mask_key(None, SECRETS[site], header, **({"min_count": 11} | about))


def test_key_files_make_the_set() -> None:
    files = [key_file(site) for site in ("west", "east", "north")]
    keys = read_mask_keys(files, font.Header(study="s"), min_count=11)
    assert keys == {site: KEYS[site] for site in ("east", "north", "west")}
    assert list(keys) == sorted(keys)
    with pytest.raises(InputError, match="at least 3 sites, found 2"):
        read_mask_keys(files[:2])
    with pytest.raises(InputError, match="'west' comes twice"):
        read_mask_keys([files[0], *files])
    with pytest.raises(InputError, match="belongs to the study"):
        read_mask_keys([*files, key_file("south", study="t")], font.Header(study="s"))
    with pytest.raises(InputError, match="round 2"):
        read_mask_keys([*files, key_file("south", round=2)], font.Header(study="s"))
    with pytest.raises(InputError, match="min_count 5"):
        read_mask_keys([*files, key_file("south", min_count=5)], min_count=11)
    with pytest.raises(InputError, match=r"payload\.public"):
        read_mask_keys([changed(files[0], public="zz")])
    with pytest.raises(InputError, match="key file of 'west' is not masked"):
        read_masked(files[0])


def test_files_say_what_they_are(tmp_path: Path) -> None:
    write_mask_key(tmp_path / "k.json", SECRETS["east"], font.Header(study="s", site="east"))
    assert "nothing about patients" in font.explain(tmp_path / "k.json")
    (tmp_path / "m.json").write_bytes(masked("east", [1, 2]).data)
    text = font.explain(tmp_path / "m.json")
    assert "east, north, south, west" in text
    assert "exact sum of their tables, to the centre" in text
    assert "<h2>" in font.explain_page(tmp_path / "m.json")


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def lacking(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(ImportError, match=r"mmlca\[secure\]"):
        mask_key(b"k" * 32)


# --- cross-tables of labels ---------------------------------------------------------------


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    data = {
        site: pd.DataFrame(
            rng.normal(size=(90, 2)) + 4 * rng.integers(3, size=(90, 1)), columns=["x", "y"]
        )
        for site in KEYS
    }
    files = [
        font.write_model(
            None,
            KMeans(k, n_init=1, random_state=0).fit(data[site].to_numpy()),
            data[site],
            font.Header(study="s", site=site),
        ).data
        for site, k in zip(KEYS, (3, 3, 3, 2), strict=True)
    ]
    models = font.read_models(files)
    sizes = {name: file.n_classes for name, file in models.items()}
    tables = {}
    for site, rows in data.items():
        labels = font.label({name: file.model for name, file in models.items()}, rows.to_numpy())
        tables[site] = font.CrossTables.from_labels({site: labels}, sizes)
    return {"models": models, "tables": tables}


def labels_of(study: dict[str, Any], site: str, **about: Any) -> MaskedFile:
    header, tables = header_of(site, about), study["tables"][site]
    return write_masked_labels(
        None, tables, study["models"], SECRETS[site], KEYS, header, **({"min_count": 11} | about)
    )


def test_the_sum_of_tables_is_that_of_the_exact_ones(study: dict[str, Any]) -> None:
    exact = font.CrossTables.merge(study["tables"].values()).total()
    parts = [labels_of(study, site, min_count=1) for site in KEYS]
    total = sum_of_labels(parts, study["models"])
    assert list(total.tables) == [ALL_SITES]
    assert (total.total() == exact).all()


def test_the_sum_is_rounded_once_and_for_all(study: dict[str, Any]) -> None:
    exact = font.CrossTables.merge(study["tables"].values()).total()
    parts = [labels_of(study, site) for site in KEYS]
    parts[1] = labels_of(study, "north", min_count=20)  # the most careful site decides
    total = sum_of_labels(parts, study["models"]).total()
    assert (total % 20 == 0).all()
    assert (np.abs(total - exact) < 20).all()
    assert (total != exact).any()
    again = sum_of_labels(parts[::-1], study["models"]).total()
    assert (again == total).all()
    assert round_counts(exact, 20, np.zeros(exact.shape)).max() >= total.max()


def test_an_ensemble_comes_of_the_sum(study: dict[str, Any]) -> None:
    total = sum_of_labels([labels_of(study, site) for site in KEYS], study["models"])
    ensemble, tables = font.combine(study["models"], [total], n_clusters=3, unequal=True)
    assert ensemble.n_clusters_ == 3
    data = font.write_ensemble(None, ensemble, study["models"], font.Header(study="s"))
    assert font.read_ensemble(data).ensemble.cluster_sizes_.columns.tolist() == [ALL_SITES]
    assert "all sites" in font.round_report(ensemble, study["models"], tables, study="s")


def test_sums_that_do_not_fit_are_refused(study: dict[str, Any]) -> None:
    parts = [labels_of(study, site) for site in KEYS]
    few = dict(list(study["models"].items())[:3])
    with pytest.raises(InputError, match="other models than these"):
        sum_of_labels(parts, few)
    values = parts[0].values.copy()
    values[1] += 1
    spoilt = read_masked(changed(parts[0].data, values=encoded(values)))
    with pytest.raises(InputError, match="does not fit together"):
        sum_of_labels([spoilt, *parts[1:]], study["models"])
    short = [masked(s, [1], of=parts[0].of) for s in KEYS]
    with pytest.raises(InputError, match="1 numbers instead of"):
        sum_of_labels(short, study["models"])
    with pytest.raises(InputError, match="made with other models than those given"):
        write_masked_labels(
            None,
            study["tables"]["east"],
            few,
            SECRETS["east"],
            KEYS,
            font.Header(study="s", site="east"),
        )
