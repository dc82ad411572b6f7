"""Files made to exhaust or confuse whoever reads them: nesting, keys, digits, surrogates."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from memory import PEAK
from paths import ROOT

OUTER = {
    **{"format": "font exchange", "version": 2, "kind": "model", "study": "s", "round": 1},
    **{"site": "x", "created": "2026-01-01", "software": "f"},
}
READ = (
    PEAK
    + """
import json, sys, time
from pathlib import Path
import mmlca
from font.errors import InputError
from font.exchange.explain import explain
seen = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    start = time.monotonic()
    try:
        explain(path)
        said = "accepted"
    except InputError as error:
        said = str(error)
    seen[path.name] = [said, time.monotonic() - start, peak()]
print(json.dumps(seen))
"""
)


def forged(payload: str) -> bytes:
    """A file with this payload and, where it is JSON, the right checksum."""
    try:
        content = json.loads(payload)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        mark = hashlib.sha256(text.encode()).hexdigest()
    except (ValueError, RecursionError):
        mark = "0" * 64
    outer = json.dumps(OUTER | {"sha256": mark})
    return f'{outer[:-1]},"payload":{payload}}}'.encode()


def keys(n: int, name: str = "k{}") -> str:
    return "{" + ",".join(f'"{name.format(i)}":1' for i in range(n)) + "}"


def hostile_files() -> dict[str, bytes]:
    return {
        "nested lists": forged("[" * 4_000_000),
        "nested objects": forged('{"a":' * 5_000 + "1" + "}" * 5_000),
        "a million keys": forged(keys(600_000)),
        "many keys": forged(keys(95_000)),
        "a key many times": forged(keys(95_000, "k")),
        "keys of one hash": forged(
            "{" + ",".join(f'"{i * (2**61 - 1)}":1' for i in range(95_000)) + "}"
        ),
        "many keys inside": forged('{"bic":[' + keys(95_000) + "]}"),
        "half a pair": forged('{"name":"\\ud800"}'),
        "half a pair as key": forged('{"\\udfff":1}'),
        "half a pair in UTF-8": forged('{"name":"?"}').replace(b"?", b"\xed\xa0\x80"),
        "not a number": forged('{"name":NaN}'),
        "infinite": forged('{"name":-Infinity}'),
        "too large": forged('{"name":1e999}'),
        "digits": forged('{"name":' + "1" * 100_000 + "}"),
        "digits after the point": forged('{"name":0.' + "1" * 100_000 + "}"),
        "digits of an exponent": forged('{"name":1e' + "1" * 100_000 + "}"),
        "many long numbers": forged("[" + ",".join(["1" * 30] * 200_000) + "]"),
        "many numbers": forged('{"name":[' + ",".join(["1.5"] * 590_000) + "]}"),
        "many objects": forged('{"bic":[' + ",".join(["{}"] * 590_000) + "]}"),
        "many cut points": forged(
            '{"name":"x","min_count":11,"bic":[],"model":'
            '{"format":"mmlca markov counts by context","form":{"stays":['
            + ",".join(["2"] * 590_000)
            + "]}}}"
        ),
        "escapes": forged('{"name":"' + "\\u0041" * 1_300_000 + '"}'),
        "backslashes": forged('{"name":"' + "\\" * 7_900_000),
        "quotes": b'"' * 8_000_000,
        "a long text": forged('{"name":"' + "x" * 7_000_000 + '"}'),
    }


@pytest.mark.slow
def test_each_is_refused_in_one_sentence_within_seconds_and_200_mb(tmp_path: Path) -> None:
    files = hostile_files()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    seen = json.loads(done.stdout)
    assert set(seen) == set(files)
    for name, (said, seconds, peak) in seen.items():
        assert said != "accepted", name
        assert len(said.removeprefix(str(tmp_path))) < 400, name
        assert said.isprintable(), name
        assert seconds < 5, name  # at most 1.2 on an idle machine
        assert peak < 200 * 2**20, name
