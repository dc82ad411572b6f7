"""The folder of results: every file whole or absent, every finished step remembered."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmlca import __version__
from mmlca.files import atomic

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.config import Study

Progress = Callable[[str, float], None]
"""Called with what is being done, and with the share that is done."""

_SOFTWARE = ("numpy", "scipy", "pandas", "numba", "matplotlib", "scikit-learn")
_PROVENANCE = "provenance.json"


class Results:
    """Writes results and keeps `provenance.json`, which names the files of each finished step.

    A step has a key: a hash of everything that it depends on. It need not be done again if its
    key is the same and its files are as they were written. Until the last step is finished
    `provenance.json` says "finished": null.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about = folder, dict(about)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OSError(
                f"cannot write to {folder} ({error.strerror}); choose another --out."
            ) from None
        self.record: dict[str, Any] = {
            **about,
            "started": _now(),
            "finished": None,
            "steps": self._earlier(),
        }
        self._files: dict[str, str] = {}

    def _earlier(self) -> dict[str, Any]:
        """The steps that an earlier run finished."""
        try:
            stored = json.loads((self.folder / _PROVENANCE).read_text(encoding="utf-8"))
            steps = stored["steps"]
            return {
                str(name): {
                    "key": str(step["key"]),
                    "seconds": float(step["seconds"]),
                    "files": {str(f): str(h) for f, h in step["files"].items()},
                }
                for name, step in steps.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    @contextmanager
    def step(self, name: str, key: str) -> Iterator[bool]:
        """Whether a step is still to be done; what it then writes is remembered at the end.

        It is not if an earlier run did exactly this, and all its files are as they were.
        """
        known = self.record["steps"].get(name)
        if known is not None and known["key"] == key and self._intact(known["files"]):
            yield False
            return
        self.forget(name)
        self._files = {}
        began = time.perf_counter()
        yield True
        seconds = round(time.perf_counter() - began, 3)
        self.record["steps"][name] = {"key": key, "seconds": seconds, "files": self._files}
        self._save()

    def _intact(self, files: Mapping[str, str]) -> bool:
        paths = {self.folder / name: stored for name, stored in files.items()}
        return all(path.is_file() and file_hash(path) == h for path, h in paths.items())

    def forget(self, name: str) -> None:
        """Remove a step and its files."""
        for file in self.record["steps"].pop(name, {"files": {}})["files"]:
            path = self.folder / file
            if path.resolve().is_relative_to(self.folder.resolve()):
                path.unlink(missing_ok=True)
        self._save()

    def keep_only(self, steps: Sequence[str]) -> None:
        """Remove what earlier runs did under names that this study does not have."""
        for name in [n for n in self.record["steps"] if n not in steps]:
            self.forget(name)

    def finish(self) -> None:
        self.record["finished"] = _now()
        self._save()

    def _save(self) -> None:
        self._write(_PROVENANCE, _json(self.record))

    # --- files ----------------------------------------------------------------------------

    def table(self, name: str, frame: pd.DataFrame, index: bool = False) -> None:
        """A CSV file; numbers with twelve digits, so that the last bit does not show."""
        text = frame.to_csv(index=index, lineterminator="\n", float_format="%.12g")
        self.text(name, text)

    def read_json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def json(self, name: str, content: Any) -> None:
        self.write(name, _json(content))

    def text(self, name: str, content: str) -> None:
        self.write(name, content.encode())

    def write(self, name: str, content: bytes) -> None:
        self._write(name, content)
        self._files[name] = hashlib.sha256(content).hexdigest()

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic(path) as file:
                file.write(content)
        except OSError as error:
            raise OSError(
                f"cannot write {path} ({error.strerror}); what was finished before is kept, and "
                "the same command goes on from there."
            ) from None


def open_results(study: Study, out: str | os.PathLike[str]) -> tuple[Results, str]:
    """The folder of a study's results, and the key of its files and of the software."""
    inputs, versions = input_hashes(study), software()
    about = {"study": study.name, "seed": study.seed, "settings": study.plain()}
    results = Results(Path(out), {**about, "inputs": inputs, "software": versions})
    return results, make_key(inputs, versions)


def plain_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as JSON can hold them."""
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def file_hash(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def input_hashes(study: Study) -> dict[str, Any]:
    """Size and hash of every file that a study reads."""
    return {
        f"{site}.{role}": {"bytes": path.stat().st_size, "sha256": file_hash(path)}
        for site, files in study.sites.items()
        for role in ("records", "sequences", "patients", "labs", "truth")
        if (path := getattr(files, role)) is not None
    }


def software() -> dict[str, str]:
    """Versions of all that a result depends on."""
    return {"mmlca": __version__} | {name: version(name) for name in _SOFTWARE}


def make_key(*parts: Any) -> str:
    """A hash of settings, earlier keys and so on."""
    return hashlib.sha256(_json(parts)).hexdigest()[:16]


def _json(content: Any) -> bytes:
    text = json.dumps(content, indent=2, ensure_ascii=False, default=_plain)
    return text.encode() + b"\n"


def _plain(part: Any) -> Any:
    """What JSON can hold of a part of a study file, a date or a number of numpy."""
    if hasattr(part, "model_dump"):
        return part.model_dump(mode="json")
    return part.item() if hasattr(part, "item") else str(part)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
