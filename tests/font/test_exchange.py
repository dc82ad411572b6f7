"""Exchange files: what goes out comes back, and what does not fit is refused."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import font
from font import exchange
from font.kinds import round_rows
from font.schema import FILE_LIMIT, fingerprint, read_file

STATES = ["TNFi", "JAK", "IL6R"]


def model_dict(seed: int, k: int = 2, states: list[str] = STATES) -> dict:
    """What a fitted mixture of Markov chains says of itself."""
    rng = np.random.default_rng(seed)
    s = len(states)
    weights = rng.dirichlet(np.full(k, 50.0))
    return {
        "format": "mmlca model",
        "version": 1,
        "software": "mmlca 0.1.0",
        "states": list(states),
        "params": {
            "weights": weights.tolist(),
            "initial": rng.dirichlet(np.ones(s), k).tolist(),
            "transition": rng.dirichlet(np.ones(s), (k, s)).tolist(),
        },
        "n_parameters": k - 1 + k * (s - 1) + k * s * (s - 1),
        "prior": 1e-4,
        "loglik": -1234.56789012,
        "n_sequences": 500.0,
        "n_timepoints": 8000.0,
        "classification_entropy": 12.3456789,
        "converged": True,
        "n_replicated": 5,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two sites: their models, labels and the ensemble."""
    path = tmp_path_factory.mktemp("study")
    models = {}
    for seed, name in enumerate(("north/1", "north/2", "south/1")):
        site = name.partition("/")[0]
        file = path / f"{name.replace('/', '-')}.model.json"
        models[name] = font.write_model(
            file,
            model_dict(seed),
            study="ra",
            site=site,
            name=name,
            bic={1: 10.0, 2: 9.0},
            created="2026-01-02",
        )
    rng = np.random.default_rng(1)
    for site in ("north", "south"):
        truth = rng.integers(0, 2, 300)
        table = pd.DataFrame(
            {name: np.where(rng.random(300) < 0.06, 1 - truth, truth) for name in models}
        )
        patterns = font.LabelPatterns.from_labels({site: table})
        font.write_labels(path / f"{site}.labels.json", patterns, models, study="ra")
    tables = [font.read_labels(path / f"{s}.labels.json", models) for s in ("north", "south")]
    ensemble = font.Ensemble(2, seed=1).fit(models, font.LabelPatterns.merge(tables))
    font.write_ensemble(path / "ensemble.json", ensemble, models, study="ra")
    return path


def models_in(folder: Path) -> dict[str, font.ModelFile]:
    return font.read_models(sorted(folder.glob("*.model.json")), study="ra")


SOURCE = {"model": "north-1.model.json", "labels": "north.labels.json", "ensemble": "ensemble.json"}


def content_of(folder: Path, kind: str) -> dict:
    return json.loads((folder / SOURCE[kind]).read_text(encoding="utf-8"))


def read_as(kind: str, path: Path, folder: Path) -> object:
    """As a careful party of the study would read it."""
    if kind == "model":
        return font.read_model(path, study="ra")
    if kind == "labels":
        return font.read_labels(path, models_in(folder), study="ra")
    return font.read_ensemble(path, study="ra")


# --- round trips ---------------------------------------------------------------------------


def test_a_model_comes_back_rounded_and_summing_to_one(folder: Path) -> None:
    model = font.read_model(folder / SOURCE["model"], study="ra")
    sent = model_dict(0)
    for key, value in model.content["params"].items():
        array = np.array(value)
        assert np.abs(array.sum(axis=-1) - 1).max() < 1e-12
        assert np.abs(array - np.array(sent["params"][key])).max() < 2e-6
        assert (array == array.round(6)).all()
    assert model.bic == {1: 10.0, 2: 9.0}
    assert model.states == tuple(STATES)
    assert model.content["loglik"] == -1234.56789
    assert model.class_parameters_.shape == (2, 3 + 9)
    assert model.fingerprint == fingerprint(model.payload)


def test_unrounded_models_are_exact(tmp_path: Path) -> None:
    sent = model_dict(3)
    font.write_model(tmp_path / "m.json", sent, study="ra", site="x", digits=None)
    assert font.read_model(tmp_path / "m.json").content == sent


def test_the_order_of_the_files_does_not_matter(folder: Path) -> None:
    paths = sorted(folder.glob("*.model.json"))
    names = ["north/1", "north/2", "south/1"]
    assert list(font.read_models(paths)) == list(font.read_models(paths[::-1])) == names


def test_labels_and_ensemble_come_back(folder: Path) -> None:
    models = models_in(folder)
    table = font.read_labels(folder / "south.labels.json", models, study="ra")
    assert table.sites == ("south",)
    assert table.n_patients + table.withheld[0] == 300
    assert table.counts.min() >= 11
    result = font.read_ensemble(folder / "ensemble.json", study="ra")
    assert [m.fingerprint for m in result.models.values()] == [
        m.fingerprint for m in models.values()
    ]
    tables = [font.read_labels(folder / f"{s}.labels.json", models) for s in ("north", "south")]
    again = font.Ensemble(2, seed=1).fit(models, font.LabelPatterns.merge(tables))
    assert result.ensemble.to_dict() == again.to_dict()


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        font.write_model(tmp_path / name, model_dict(1), study="ra", site="x", created="2026-01-02")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@given(
    st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=127),
    st.integers(4, 12),
    st.integers(0, 5),
)
def test_rounding_keeps_sums_and_zeros(cells: list[float], digits: int, zeros: int) -> None:
    row = np.array([*cells, *[0.0] * zeros])
    row /= row.sum()
    out = round_rows(row, digits)
    units = np.rint(out * 10**digits).astype(np.int64)
    assert units.sum() == 10**digits
    assert ((out > 0) == (row > 0)).all()
    assert np.abs(out - row).max() <= 127 / 10**digits


def test_the_schema_describes_the_files(folder: Path) -> None:
    schemas = font.json_schema()
    assert set(schemas) == {"model", "labels", "ensemble"}
    for kind, schema in schemas.items():
        json.dumps(schema)
        assert set(schema["required"]) == set(content_of(folder, kind))
        payload = schema["properties"]["payload"]
        assert set(payload["required"]) == set(content_of(folder, kind)["payload"])
        assert payload["additionalProperties"] is False


def test_every_field_is_in_the_documentation() -> None:
    text = exchange.__doc__ or ""
    for schema in font.json_schema().values():
        for part in [schema, *schema["$defs"].values(), schema["properties"]["payload"]]:
            if part.get("title") in {"SettingsPart", "ModelName", "BicPart", "ParamsPart"}:
                continue
            for name in part["properties"]:
                assert name in text, name


# --- hostile files -------------------------------------------------------------------------


def put(*path: object, value: object) -> object:
    """A mutation: the value at this place, with a checksum that fits again."""

    def change(content: dict) -> dict:
        spot = content
        for key in path[:-1]:
            spot = spot[key]
        spot[path[-1]] = value
        return seal(content)

    return change


def seal(content: dict) -> dict:
    try:
        content["sha256"] = fingerprint(content["payload"])
    except (ValueError, KeyError, TypeError):
        content["sha256"] = "0" * 64
    return content


def drop(*path: object) -> object:
    def change(content: dict) -> dict:
        spot = content
        for key in path[:-1]:
            spot = spot[key]
        del spot[path[-1]]
        return seal(content)

    return change


def text(old: str, new: str) -> object:
    """A mutation of the text of the file."""

    def change(content: dict) -> bytes:
        plain = json.dumps(content)
        assert old in plain
        return plain.replace(old, new, 1).encode()

    return change


def swap_models(content: dict) -> dict:
    rows = content["payload"]["models"]
    rows[0], rows[1] = rows[1], rows[0]
    return seal(content)


def same_name(content: dict) -> dict:
    rows = content["payload"]["models"]
    rows[1]["name"] = rows[0]["name"]
    return seal(content)


def same_pattern(content: dict) -> dict:
    payload = content["payload"]
    payload["patterns"].append(payload["patterns"][-1])
    payload["counts"].append(50)
    return seal(content)


def unsorted(content: dict) -> dict:
    content["payload"]["patterns"].reverse()
    return seal(content)


def twice_in_ensemble(content: dict) -> dict:
    content["payload"]["models"][1] = copy.deepcopy(content["payload"]["models"][0])
    content["payload"]["ensemble"]["models"][1] = content["payload"]["ensemble"]["models"][0]
    return seal(content)


P, M, E = "payload", ("payload", "model"), ("payload", "ensemble")
PROBS = (*M, "params")
HOSTILE = {
    # the file
    "empty": ("model", lambda c: b"", "not JSON"),
    "not json": ("model", lambda c: b"hello", "not JSON"),
    "cut short": ("model", lambda c: json.dumps(c).encode()[:-20], "not JSON"),
    "pickle": ("model", lambda c: b"\x80\x04\x95\x0c\x00\x00\x00.", "not UTF-8|not JSON"),
    "utf-16": ("model", lambda c: json.dumps(c).encode("utf-16"), "not UTF-8"),
    "latin-1": ("model", text('"study": "ra"', '"study": "r\xe9"'), "specification|UTF-8|study"),
    "bom": ("model", lambda c: b"\xef\xbb\xbf" + json.dumps(c).encode(), "not JSON"),
    "two objects": ("model", lambda c: json.dumps(c).encode() * 2, "not JSON"),
    "a list": ("model", lambda c: b"[1, 2]", "not an exchange file"),
    "null": ("model", lambda c: b"null", "not an exchange file"),
    "deep": ("model", lambda c: b"[" * 100_000 + b"]" * 100_000, "nested more than 12 deep"),
    "deep inside": ("model", put(*M, "states", value=[[[[[[[[[[[["a"]]]]]]]]]]]]), "nested"),
    "long number": ("model", text("500.0", "9" * 5000), "more than 30 digits"),
    "key twice": ("model", text('"study": "ra"', '"study": "ra", "study": "ra"'), "'study' twice"),
    "nan": ("model", text("500.0", "NaN"), "has the value NaN"),
    "infinity": ("model", text("500.0", "-Infinity"), "has the value -Infinity"),
    "overflow": ("model", text("500.0", "1e999"), "cannot hold"),
    "half a surrogate": ("model", text("TNFi", "\\ud800"), "cannot hold"),
    # the envelope
    "format": ("model", put("format", value="other"), "not an exchange file"),
    "version": ("model", put("version", value=2), "has the version 2"),
    "version as text": ("model", put("version", value="1"), "has the version '1'"),
    "version true": ("model", put("version", value=True), "version"),
    "no version": ("model", drop("version"), "has the version None"),
    "kind unknown": ("model", put("kind", value="script"), "specification at kind"),
    "kind wrong": ("labels", put("kind", value="model"), "kind 'model'; give one of 'labels'"),
    "replayed study": ("model", put("study", value="other"), "belongs to the study 'other'"),
    "replayed labels": ("labels", put("study", value="old"), "belongs to the study 'old'"),
    "replayed ensemble": ("ensemble", put("study", value="old"), "belongs to the study 'old'"),
    "study is a path": ("model", put("study", value="../../etc"), "specification at study"),
    "site is a path": ("model", put("site", value="../x"), "specification at site"),
    "site with a line": ("model", put("site", value="a\nb"), "specification at site"),
    "site is markup": ("model", put("site", value="<script>"), "specification at site"),
    "created with a time": ("model", put("created", value="2026-01-02T10:00"), "at created"),
    "extra field": ("model", put("patients", value=[1]), "specification at patients"),
    "no payload": ("model", drop(P), "specification at payload"),
    "payload is a list": ("model", put(P, value=[]), "specification at payload"),
    "no checksum": ("model", lambda c: {k: v for k, v in c.items() if k != "sha256"}, "sha256"),
    "changed payload": ("model", text("500.0", "501.0"), "checksum does not match"),
    "changed count": ("labels", text('"rare": "withhold"', '"rare": "merge"'), "checksum"),
    "upper-case checksum": ("model", lambda c: c | {"sha256": c["sha256"].upper()}, "sha256"),
    # a model
    "ids in a model": ("model", put(*M, "ids", value=["a"]), "payload.model.ids"),
    "code in a model": ("model", put(*M, "class", value="os.system"), "payload.model.class"),
    "model version true": ("model", put(*M, "version", value=True), "payload.model.version"),
    "other model": ("model", put(*M, "format", value="pickle"), "payload.model "),
    "negative": ("model", put(*PROBS, "weights", value=[1.5, -0.5]), "params.weights"),
    "unnormalised": ("model", put(*PROBS, "weights", value=[0.5, 0.4]), "sum to 0.9"),
    "unnormalised row": (
        "model",
        put(*PROBS, "transition", 0, 0, value=[0.5, 0.2, 0.2]),
        "transition sum to 0.9",
    ),
    "nothing but zeros": ("model", put(*PROBS, "initial", 0, value=[0.0, 0, 0]), "sum to 0 "),
    "ragged": ("model", put(*PROBS, "initial", 0, value=[0.5, 0.5]), "unequal length"),
    "class missing": ("model", put(*PROBS, "initial", value=[[1.0, 0, 0]]), "shape"),
    "text for a number": ("model", put(*PROBS, "weights", 0, value="0.5"), "params.weights"),
    "true for a number": ("model", put(*PROBS, "weights", 0, value=True), "params.weights"),
    "128 states": ("model", put(*M, "states", value=[str(i) for i in range(128)]), "at most 127"),
    "1001 classes": ("model", put(*PROBS, "weights", value=[0.0] * 1001), "at most 1000"),
    "other states": ("model", put(*M, "states", value=["TNFi", "JAK"]), "shape"),
    "a state twice": ("model", put(*M, "states", value=["a", "a", "b"]), "not distinct"),
    "a state with a line": ("model", put(*M, "states", 0, value="a\nb"), "model.states"),
    "no patients": ("model", put(*M, "n_sequences", value=0.0), "n_sequences"),
    "huge": ("model", put(*M, "n_sequences", value=1e300), "n_sequences"),
    "rare class": ("model", put(*PROBS, "weights", value=[0.99, 0.01]), "5.0 patients, fewer"),
    "another's name": ("model", put(P, "name", value="south/1"), "does not carry the name"),
    "name is a path": ("model", put(P, "name", value="north/../x"), "payload.name"),
    "hidden text": ("model", put(*M, "states", 0, value="TNF\u202ei"), "model.states"),
    "bic twice": ("model", put(P, "bic", 0, "n_classes", value=2), "two values of BIC"),
    # labels
    "other fingerprint": (
        "labels",
        put(P, "models", 0, "fingerprint", value="0" * 64),
        "other models than these",
    ),
    "other order": ("labels", swap_models, "other models than these"),
    "a model twice": ("labels", same_name, "with repeats"),
    "a pattern twice": ("labels", same_pattern, "one comes twice"),
    "not in order": ("labels", unsorted, "not in order"),
    "small cell": ("labels", put(P, "counts", 0, value=3), "below its own min_count"),
    "negative count": ("labels", put(P, "counts", 0, value=-20), "payload.counts.0"),
    "half a patient": ("labels", put(P, "counts", 0, value=20.5), "payload.counts.0"),
    "absurd count": ("labels", put(P, "counts", 0, value=10**18), "payload.counts.0"),
    "count missing": ("labels", put(P, "counts", value=[20]), "patterns but 1 counts"),
    "short pattern": ("labels", put(P, "patterns", 0, value=[0]), "one a model"),
    "unknown label": ("labels", put(P, "patterns", -1, value=[1, 1, 7]), "has the label 7"),
    "negative label": ("labels", put(P, "patterns", 0, value=[-1, 0, 0]), "patterns.0.0"),
    "no patterns": ("labels", put(P, "patterns", value=[]), "payload.patterns"),
    "few withheld": ("labels", put(P, "n_withheld", value=2), "2 patients are withheld"),
    "exact with noise": ("labels", put(P, "epsilon", value=1.0), "null with noise"),
    "no noise at all": ("labels", put(P, "epsilon", value=0.0), "epsilon"),
    "patients in labels": ("labels", put(P, "patients", value={"1": 0}), "payload.patients"),
    # an ensemble
    "a site twice": ("ensemble", put(*E, "sites", value=["north", "north"]), "with repeats"),
    "model twice": ("ensemble", twice_in_ensemble, "with repeats"),
    "model renamed": ("ensemble", put(*E, "models", 0, value="west"), "names other models"),
    "other classes": ("ensemble", put(*E, "n_classes", 0, value=3), "n_classes are not those"),
    "other states inside": (
        "ensemble",
        put(P, "models", 0, "model", "states", value=["x", "y", "z"]),
        "same states",
    ),
    "unknown cluster": ("ensemble", put(*E, "clusters", 0, value=900), "fit together in 'clu"),
    "unknown vote": ("ensemble", put(*E, "votes", 0, value=9), "votes"),
    "unknown pattern": ("ensemble", put(*E, "patterns", -1, value=[1, 1, 5]), "do not know"),
    "ragged axes": ("ensemble", put(*E, "axes", 0, value=[1.0]), "'axes'"),
    "no axes": ("ensemble", put(*E, "axes", value=[]), "ensemble.axes"),
    "negative size": ("ensemble", put(*E, "cluster_sizes", 0, value=[-1, 0]), "cluster_sizes"),
    "sizes of other sites": ("ensemble", put(*E, "cluster_sizes", value=[[1]]), "cluster_sizes"),
    "unknown setting": ("ensemble", put(*E, "settings", "code", value="x"), "settings.code"),
    "unknown method": ("ensemble", put(*E, "settings", "method", value="eval"), "method"),
    "odd choice": ("ensemble", put(*E, "n_clusters_choice", 0, value="clear"), "choice"),
    "hidden unnormalised": (
        "ensemble",
        put(P, "models", 1, "model", "params", "weights", value=[0.2, 0.2]),
        "sum to 0.4",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_in_one_sentence(case: str, folder: Path, tmp_path: Path) -> None:
    kind, change, message = HOSTILE[case]
    changed = change(content_of(folder, kind))
    path = tmp_path / "file.json"
    path.write_bytes(changed if isinstance(changed, bytes) else json.dumps(changed).encode())
    with pytest.raises(ValueError, match=message) as refusal:
        read_as(kind, path, folder)
    said = str(refusal.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert len(said) < 600


def test_there_are_many_hostile_files() -> None:
    assert len(HOSTILE) >= 60


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(FILE_LIMIT + 1)
    with pytest.raises(ValueError, match="at most 33,554,432 are read"):
        read_file(path)


@pytest.mark.parametrize(
    "data",
    [b'"' + b'\\"' * 900_000, b'"' * 4_000_001, b'{"a":' * 800_000, b"[]," * 3_000_000],
    ids=["open text", "quotes", "tower", "lists"],
)
def test_a_file_made_to_be_slow_is_refused_quickly(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "slow.json"
    path.write_bytes(data)
    start = time.process_time()
    with pytest.raises(ValueError, match=r"nested|lists|texts|not JSON"):
        read_file(path)
    assert time.process_time() - start < 5


def test_devices_pipes_and_folders_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="not a regular file"):
            read_file(path)


def test_models_that_do_not_belong_together(folder: Path, tmp_path: Path) -> None:
    paths = sorted(folder.glob("*.model.json"))
    with pytest.raises(ValueError, match="'north/1' comes twice"):
        font.read_models([paths[0], *paths])
    other = tmp_path / "other.json"
    font.write_model(other, model_dict(5, states=["A", "B"]), study="ra", site="west")
    with pytest.raises(ValueError, match="same states in the same order"):
        font.read_models([*paths, other])
    font.write_model(other, model_dict(5), study="lupus", site="west")
    with pytest.raises(ValueError, match="belongs to the study 'lupus'"):
        font.read_models([*paths, other])
    with pytest.raises(ValueError, match="no model files"):
        font.read_models([])


def test_what_cannot_be_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    bad = model_dict(1)
    bad["params"]["weights"] = [0.99, 0.01]
    with pytest.raises(ValueError, match=r"about 5\.0 patients, fewer than 11; fit fewer classes"):
        font.write_model(path, bad, study="ra", site="x")
    with pytest.raises(ValueError, match="specification at study"):
        font.write_model(path, model_dict(1), study="", site="x")
    with pytest.raises(ValueError, match="at most 12"):
        font.write_model(path, model_dict(1), study="ra", site="x", digits=13)
    with pytest.raises(ValueError, match="only mixtures of Markov chains"):
        font.write_model(path, {"model": "KMeans"}, study="ra", site="x")
    assert list(tmp_path.iterdir()) == []


# --- fuzzing -------------------------------------------------------------------------------

FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["model", "font exchange", "ra", "north", 1, 0.5])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)


def only_value_errors(data: bytes, path: Path, folder: Path) -> None:
    path.write_bytes(data)
    for kind in SOURCE:
        with contextlib.suppress(ValueError):
            read_as(kind, path, folder)


@FUZZ
@given(st.binary(max_size=200))
def test_fuzz_bytes(folder: Path, tmp_path: Path, data: bytes) -> None:
    only_value_errors(data, tmp_path / "f", folder)


@FUZZ
@given(VALUES)
def test_fuzz_json(folder: Path, tmp_path: Path, value: object) -> None:
    only_value_errors(json.dumps(value).encode(), tmp_path / "f", folder)


@settings(FUZZ, max_examples=300)
@given(st.sampled_from(sorted(SOURCE)), st.data())
def test_fuzz_one_place_of_a_good_file(
    folder: Path, tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    content = content_of(folder, kind)
    spot = content if data.draw(st.integers(0, 4)) == 0 else content["payload"]
    while True:
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(spot[key], (dict, list)) and spot[key] and data.draw(st.integers(0, 5)):
            spot = spot[key]
            continue
        spot[key] = data.draw(VALUES)
        break
    if isinstance(content.get("payload"), dict):
        content = seal(content)
    only_value_errors(json.dumps(content).encode(), tmp_path / "f", folder)


# --- interrupted writing -------------------------------------------------------------------

KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from font.files import atomic_write
path, versions = Path(sys.argv[1]), (b"a" * 4_000_000, b"b" * 4_000_000)
atomic_write(path, versions[0])
rng, seen = random.Random(1), set()
for _ in range(20):
    child = os.fork()
    if not child:
        while True:
            for version in versions:
                atomic_write(path, version)
    time.sleep(rng.uniform(0.005, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = path.read_bytes()
    assert found in versions, len(found)
    seen.add(found[:1])
print(len(seen), "whole")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_while_writing_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "file.json")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path(font.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("whole")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    font.write_model(path, model_dict(1), study="ra", site="x")
    old = path.read_bytes()
    broken = model_dict(1)
    broken["loglik"] = float("nan")
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        font.write_model(path, broken, study="ra", site="x")
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]
