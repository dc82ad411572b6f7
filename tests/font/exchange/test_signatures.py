"""Signatures: a file in the name of a site whose key is known was written by that site."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_study import write_study
from site_fakes import NAMES, SmallSite, in_process, sites_in
from sklearn.cluster import KMeans

import font
from font.errors import InputError
from font.exchange import signatures
from font.exchange.envelope import read_file
from font.exchange.masked import read_mask_keys, write_mask_key
from font.exchange.messages.refinement import read_shared
from font.exchange.replies import Reply
from font.exchange.rounds import combine

pytest.importorskip("cryptography")
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Private keys of two sites, the centre and an intruder."""
    root = tmp_path_factory.mktemp("keys")
    for name in ("a", "b", "centre", "intruder"):
        font.make_keys(root / name)
    return {name: root / name / "signing.key" for name in ("a", "b", "centre", "intruder")}


@pytest.fixture(scope="module")
def pinned(keys: dict[str, Path]) -> dict[str, str]:
    return {name: font.public_key(keys[name]) for name in ("a", "b", "centre")}


def data_of(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(0, 1, (40, 2)), rng.normal(6, 1, (40, 2))])


def model_file(site: str, key: Path | None) -> bytes:
    data = data_of(len(site))
    model = KMeans(2, n_init=1, random_state=1).fit(data)
    return font.write_model(
        None, model, data, font.Header(study="s", site=site, signing_key=key)
    ).data


@pytest.fixture(scope="module")
def signed(keys: dict[str, Path]) -> Files:
    """One file of each kind, signed by its sender."""
    parts = [model_file(site, keys[site]) for site in ("a", "b")]
    models = font.read_models(parts)
    tables = []
    for site in ("a", "b"):
        labels = font.label({n: m.model for n, m in models.items()}, data_of(len(site)))
        exact = font.CrossTables.from_labels({site: labels}, dict.fromkeys(models, 2))
        tables.append(
            font.write_labels(
                None, exact, models, font.Header(study="s", site=site, signing_key=keys[site])
            )
        )
    ensemble, _ = combine(models, [part.tables for part in tables], n_clusters=2)
    whole = font.write_ensemble(
        None, ensemble, models, font.Header(study="s", signing_key=keys["centre"])
    )
    return {"model": parts[0], "other model": parts[1], "labels": tables[0].data, "ensemble": whole}


def reader(kind: str, files: Files) -> Callable[..., Any]:
    if kind == "labels":
        models = font.read_models([files["model"], files["other model"]])
        return lambda data, header=None: font.read_labels(data, models, header)
    return {"model": font.read_model, "ensemble": font.read_ensemble}[kind]


def changed(data: bytes, **fields: Any) -> bytes:
    content = json.loads(data)
    content |= fields
    return json.dumps({k: v for k, v in content.items() if v is not None}).encode()


KINDS = ("model", "labels", "ensemble")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_site_signed_is_read(kind: str, signed: Files, pinned: dict[str, str]) -> None:
    reader(kind, signed)(signed[kind], font.Header(study="s", keys=pinned))
    reader(kind, signed)(signed[kind])  # by those who know no key, too


@pytest.mark.parametrize("kind", KINDS)
def test_what_lacks_the_signature_is_refused(
    kind: str, signed: Files, pinned: dict[str, str]
) -> None:
    bare = changed(signed[kind], signature=None)
    reader(kind, signed)(bare)
    with pytest.raises(InputError, match="is not signed, but the key of"):
        reader(kind, signed)(bare, font.Header(study="s", keys=pinned))


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_signed_is_refused(
    kind: str, signed: Files, pinned: dict[str, str], keys: dict[str, Path]
) -> None:
    forged = signatures.sign_file(signed[kind], keys["intruder"])
    reader(kind, signed)(forged)
    with pytest.raises(InputError, match=r"is signed with the key [0-9a-f]{16}…, but that of"):
        reader(kind, signed)(forged, font.Header(study="s", keys=pinned))
    # the intruder's signature under the site's key
    content = json.loads(forged)
    content["signature"]["key"] = json.loads(signed[kind])["signature"]["key"]
    with pytest.raises(InputError, match="the signature does not match"):
        reader(kind, signed)(json.dumps(content).encode(), font.Header(study="s", keys=pinned))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fields", [{"round": 2}, {"created": "1999-01-01"}, {"software": "x"}, {"study": "t"}]
)
def test_every_field_is_signed(kind: str, fields: dict[str, Any], signed: Files) -> None:
    """Whether the key is known or not: such a file cannot be what its signer wrote."""
    with pytest.raises(InputError, match="the signature does not match"):
        read_file(changed(signed[kind], **fields))


def test_every_number_is_signed(signed: Files) -> None:
    content = json.loads(signed["model"])
    content["payload"]["model"]["patients"][0] += 11
    content["sha256"] = font.fingerprint(content["payload"])
    with pytest.raises(InputError, match="the signature does not match"):
        font.read_model(json.dumps(content).encode())


def test_a_signature_cannot_be_moved_to_another_file(signed: Files) -> None:
    moved = changed(signed["other model"], signature=json.loads(signed["model"])["signature"])
    with pytest.raises(InputError, match="the signature does not match"):
        font.read_model(moved)


def test_no_other_than_the_centre_makes_ensembles(
    signed: Files, pinned: dict[str, str], keys: dict[str, Path]
) -> None:
    """A file under a name whose key nobody knows would otherwise get around the centre's key."""
    other = signatures.sign_file(changed(signed["ensemble"], site="center"), keys["intruder"])
    font.read_ensemble(other)
    with pytest.raises(InputError, match=r"but that of 'centre' is"):
        font.read_ensemble(other, font.Header(study="s", keys=pinned))
    with pytest.raises(InputError, match="is not signed, but the key of 'centre'"):
        font.read_ensemble(changed(other, signature=None), font.Header(study="s", keys=pinned))


def test_no_other_than_the_centre_makes_shared_models(
    tmp_path: Path, pinned: dict[str, str], keys: dict[str, Path]
) -> None:
    """An unsigned shared model in an invented name replaced the clusters of all sites."""
    path = write_study(tmp_path) / "shared-0.json"
    invented = changed(path.read_bytes(), site="quality office")
    read_shared(invented)
    with pytest.raises(InputError, match="is not signed, but the key of 'centre'"):
        read_shared(invented, font.Header(study="ra", keys=pinned))
    with pytest.raises(InputError, match="but that of 'centre' is"):
        read_shared(signatures.sign_file(invented, keys["a"]), font.Header(study="ra", keys=pinned))
    read_shared(
        signatures.sign_file(path.read_bytes(), keys["centre"]),
        font.Header(study="ra", keys=pinned),
    )


def test_where_keys_are_known_no_stranger_joins(
    signed: Files, pinned: dict[str, str], keys: dict[str, Path]
) -> None:
    """An invented site in a list of models, or in the set of a secure sum, is a spy."""
    invented = model_file("c", keys["intruder"])
    parts = [signed["model"], signed["other model"], invented]
    assert len(font.read_models(parts)) == 3
    with pytest.raises(InputError, match="comes from 'c', whose key is not among the known ones"):
        font.read_models(parts, font.Header(study="s", keys=pinned))
    spies = [
        write_mask_key(None, bytes([i]) * 32, font.Header(study="s", site=site, signing_key=key))
        for i, (site, key) in enumerate([("a", keys["a"]), ("b", keys["b"]), ("c", None)])
    ]
    assert len(read_mask_keys(spies)) == 3
    with pytest.raises(InputError, match="comes from 'c', whose key is not among the known ones"):
        read_mask_keys(spies, font.Header(study="s", keys=pinned))


@pytest.mark.parametrize(
    "signature",
    [
        {"key": "0" * 64},
        {"key": "0" * 64, "value": "0" * 126},
        {"key": "F" * 64, "value": "0" * 128},
        {"key": "0" * 64, "value": "0" * 128, "more": 1},
        "0" * 128,
        [],
    ],
)
def test_what_is_no_signature_is_refused(signature: Any, signed: Files) -> None:
    with pytest.raises(InputError, match=r"does not fit the specification at signature"):
        font.read_model(changed(signed["model"], signature=signature))


def test_weak_keys_are_no_way_around(signed: Files, pinned: dict[str, str]) -> None:
    """Points of small order verify many messages; they are nobody's pinned key."""
    for key in ("00" * 32, "01" + "00" * 31, "ff" * 32):
        forged = changed(signed["model"], signature={"key": key, "value": "01" + "00" * 63})
        with pytest.raises(InputError, match="but that of 'a' is"):
            font.read_model(forged, font.Header(study="s", keys=pinned))


def test_the_same_key_signs_alike_and_the_fingerprint_stays(
    signed: Files, keys: dict[str, Path]
) -> None:
    bare = changed(signed["model"], signature=None)
    once, twice = (signatures.sign_file(bare, keys["a"]) for _ in range(2))
    assert once == twice == signatures.sign_file(twice, keys["a"]) == signed["model"]
    marks = {font.read_model(data).fingerprint for data in (bare, once)}
    assert len(marks) == 1  # signed or not, it is the same model


# --- a round -------------------------------------------------------------------------------


def test_a_round_leaves_out_who_signs_with_another_key(
    tmp_path: Path, keys: dict[str, Path]
) -> None:
    """An intruder takes the name of a site before the site itself answers."""
    owner = {"north": "a", "south": "b", "west": "centre"}
    known = {site: font.public_key(keys[name]) for site, name in owner.items()}

    def twist(step: str, reply: Reply) -> Reply:
        sites = [json.loads(data)["site"] for data in reply.files]
        names = ["intruder" if reply.sender == "thief" else owner[site] for site in sites]
        files = (signatures.sign_file(d, keys[n]) for d, n in zip(reply.files, names, strict=True))
        return reply._replace(files=tuple(files))

    sites = {"thief": SmallSite("north", tmp_path / "thief"), **sites_in(tmp_path)}
    done = font.run_round(
        in_process(sites, twist),
        font.Header(study="ra", keys=known, signing_key=keys["intruder"]),
        out=tmp_path / "centre",
        sites=NAMES,
    )
    assert {model.site for model in done.models.values()} == set(NAMES)
    (left_out,) = done.absent
    assert left_out[:2] == ("thief", "fit")
    assert "is signed with the key" in left_out.reason
    sent = tmp_path / "centre" / "ensemble.json"
    font.read_ensemble(
        sent, font.Header(study="ra", keys={"centre": font.public_key(keys["intruder"])})
    )
    with pytest.raises(InputError, match="but that of 'centre'"):
        font.read_ensemble(
            sent, font.Header(study="ra", keys={"centre": font.public_key(keys["a"])})
        )


# --- keys ----------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_the_private_key_is_private(tmp_path: Path, signed: Files) -> None:
    public = font.make_keys(tmp_path / "site")
    path = tmp_path / "site" / "signing.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (path.parent / "signing.pub").read_text() == f"{public}\n"
    assert public not in path.read_text()
    with pytest.raises(InputError, match="exists; others may know its public key"):
        font.make_keys(path.parent)
    path.chmod(0o640)
    with pytest.raises(InputError, match=r"can be read by others.*chmod 600"):
        signatures.sign_file(signed["model"], path)


def test_what_is_no_private_key_is_refused(tmp_path: Path, signed: Files) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    for content in (b"", b"nonsense", other):
        path = tmp_path / "signing.key"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(InputError, match="is not a private key that this program made"):
            signatures.sign_file(signed["model"], path)
    with pytest.raises(InputError, match="there is no private key"):
        signatures.sign_file(signed["model"], tmp_path / "none.key")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('MGB = "12"', "the key of 'MGB' is not a public key, which has 64 hexadecimal digits"),
        ("MGB = 12", "the key of 'MGB' is not a public key"),
        ("MGB", "is not a file of keys"),
        (f'"a/b" = "{"0" * 64}"', "needs another name"),
    ],
)
def test_what_is_no_file_of_keys_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        font.read_keys(tmp_path / "keys.toml")


def test_without_the_library(signed: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read as if they were not signed; where a key is known, the extra is named."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    font.read_model(signed["model"])
    key = json.loads(signed["model"])["signature"]["key"]
    with pytest.raises(ImportError, match=r"pip install 'mmlca\[secure\]'"):
        font.read_model(signed["model"], font.Header(study="s", keys={"a": key}))


def test_the_explanation_names_the_key(signed: Files, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(signed["model"])
    key = json.loads(signed["model"])["signature"]["key"]
    assert f"It is signed with the key {key}" in font.explain(path)
    assert key in font.explain_page(path)
    path.write_bytes(changed(signed["model"], signature=None))
    assert "It is not signed" in font.explain(path)
