"""The folder of results: every file whole or absent, every finished step remembered."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from font.errors import ReportWarning
from font.files import (
    atomic,
    check_regular,
    clear_unfinished,
    csv_text,
    keep_inputs,
    private_folder,
)
from mmlca import __version__
from mmlca.study.release import check_floor
from mmlca.study.study_file import input_files
from mmlca.tables.disclosure import hides, is_small

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.sequences.type import Sequences as PatientSequences
    from mmlca.study.settings import Study

Progress = Callable[[str, float], None]
"""Called with the name of the present step and the share that is done."""

_SOFTWARE = ("numpy", "scipy", "pandas", "numba", "matplotlib", "scikit-learn")
_PROVENANCE, _RUN_LOG = "provenance.json", "run.log"
_log = logging.getLogger(__name__)
_PATIENTS = "patients/"
_PRIVATE = (_PATIENTS, "models/")  # ids, and exact numbers from which small counts follow
_KEY, _KEY_BYTES = "patients/hash.key", 32
# what this program writes; it removes nothing else, whatever `provenance.json` says
_NAMES = re.compile(
    r"(results\.json|report\.html|choice\.json|(sensitivity|numbers|ranges)\.csv|sensitivity\.png"
    r"|tables/[^/\\]+\.(csv|md|tex|docx)|figures/[^/\\]+\.(csv|png|svg|pdf)|variants/[^/\\]+\.json"
    r"|models/(\w[\w .-]*/)?[^/\\]+\.json"  # resamples of a site are in a folder of its name
    r"|models/alternatives_[^/\\]+\.png"
    r"|patients/[^/\\]+_((sequences|issues|clusters|unmapped)\.csv|courses\.png))"
)


class Results:
    """Writes results and keeps `provenance.json`, which names the files of each finished step.

    A step has a key: a hash of everything that it depends on. It need not be done again if its
    key is the same and its files are as they were written. Until the last step is finished
    `provenance.json` says "finished": null. Files that hold patients' ids, in `patients/`, and the
    models, whose exact numbers reveal small counts, are for their owner's eyes alone, and so are
    these folders. None of the `inputs` is overwritten.

    `warned` is what the readers of the report are warned of.

    Where small numbers are hidden, `keyed` is true and hashes need a key that stays in `patients/`:
    a plain hash of a short table lets anyone try all small numbers until the hash fits.
    """

    def __init__(
        self,
        folder: Path,
        about: Mapping[str, Any],
        inputs: Iterable[Path] = (),
        *,
        keyed: bool = False,
    ) -> None:
        self.folder, self.about, self.inputs = folder, dict(about), tuple(inputs)
        self.warned: list[str] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):  # can anything be written here?
                pass
            clear_unfinished(folder / _PATIENTS)
            if keyed and (folder / _PATIENTS).exists():
                self._keep_private(folder / _PATIENTS)
            stored = self._stored_key()
        except OSError as error:
            raise OSError(
                f"cannot write to {folder} ({error.strerror}); choose another --out."
            ) from None
        self.secret = (stored or secrets.token_bytes(_KEY_BYTES)) if keyed else b""
        self._key_is_stored = bool(stored) or not keyed
        self._known_keys = {
            b"",
            stored,
            self.secret,
        }  # an earlier run may have hidden more, or less
        self.record: dict[str, Any] = {
            **about,
            "started": _now(),
            "finished": None,
            "steps": self._earlier(),
        }
        self._files: dict[str, str] = {}

    def _stored_key(self) -> bytes:
        """The folder's key; empty if there is none yet, which `_keep_key` stores in time."""
        path = self.folder / _KEY
        if not path.is_symlink() and path.is_file() and path.stat().st_size == _KEY_BYTES:
            return path.read_bytes()
        return b""

    def _keep_key(self) -> None:
        """Store a new key; not earlier, so that a run that is refused leaves no folder behind."""
        path = self.folder / _KEY
        self._keep_private(path.parent)
        with atomic(path, private=True) as file:
            file.write(self.secret)
        self._key_is_stored = True

    def hash_of(self, path: Path) -> str:
        """SHA-256 of a file, with the folder's key if it has one."""
        return _keyed(file_hash(path), self.secret)

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
                    "warnings": [str(text) for text in step.get("warnings", ())],
                }
                for name, step in steps.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    @contextmanager
    def step(self, name: str, key: str) -> Iterator[bool]:
        """Whether a step must be done; the files that it writes are recorded at its end.

        It need not be done if an earlier run finished it with the same key and all its files are
        unchanged. What it warned of then is in `warned` as well.
        """
        if self.is_done(name, key):
            _log.info("%s: done by an earlier run", name)
            self.warn(self.record["steps"][name]["warnings"])
            yield False
            return
        self.forget(name)
        self._files = {}
        began = time.perf_counter()
        with report_warnings() as texts:
            yield True
        seconds = round(time.perf_counter() - began, 3)
        done = {"key": key, "seconds": seconds, "files": self._files, "warnings": texts}
        self.record["steps"][name] = done
        self._save()
        self.warn(texts)
        _log.info("%s: %.1f s", name, seconds)

    def warn(self, texts: Iterable[str]) -> None:
        """Note warnings for the report."""
        for text in texts:
            if text not in self.warned:
                self.warned.append(text)
                _log.warning(text)

    def is_done(self, name: str, key: str) -> bool:
        """Whether an earlier run did a step with the same key, and its files are unchanged."""
        known = self.record["steps"].get(name)
        return known is not None and known["key"] == key and self._intact(known["files"])

    def _intact(self, files: Mapping[str, str]) -> bool:
        return all(self._unchanged(name, stored) for name, stored in files.items())

    def _unchanged(self, name: str, stored: str) -> bool:
        """Whether a file is one of ours, in its place and as it was written."""
        path = self.folder / name
        inside = [part for part in path.parents if part.is_relative_to(self.folder)]
        plain = not any(part.is_symlink() for part in (path, *inside) if part != self.folder)
        ours = _NAMES.fullmatch(name) is not None
        if not (ours and plain and path.is_file()):
            return False
        digest = file_hash(path)
        return any(_keyed(digest, key) == stored for key in self._known_keys)

    def forget(self, name: str) -> None:
        """Remove a step and its files, unless someone changed them or they are read."""
        step = self.record["steps"].pop(name, {"files": {}})
        for file, stored in step["files"].items():
            if self._unchanged(file, stored):
                keep_inputs([self.folder / file], self.inputs)
                (self.folder / file).unlink()
        self._save()

    def keep_only(self, steps: Sequence[str]) -> None:
        """Remove the steps of earlier runs that this study does not have, with their files."""
        for name in [n for n in self.record["steps"] if n not in steps]:
            self.forget(name)

    def finish(self) -> None:
        self.record["finished"] = _now()
        self._save()

    def _save(self) -> None:
        self._write(_PROVENANCE, _json(self.record))

    # --- files ----------------------------------------------------------------------------

    def log_file(self) -> Path:
        """Where the run may write its log: the file belongs to no step."""
        path = self.folder / _RUN_LOG
        keep_inputs([path], self.inputs)
        return path

    def table(self, name: str, frame: pd.DataFrame, index: bool = False) -> None:
        """Write a CSV file, see `table_text`."""
        self.text(name, table_text(frame, index))

    def read_json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def json(self, name: str, content: Any) -> None:
        self.write(name, _json(content))

    def keep(self, name: str, content: Any) -> None:
        """Write a JSON file that belongs to no step, and that later runs do not remove."""
        self._write(name, _json(content))

    def text(self, name: str, content: str) -> None:
        self.write(name, content.encode())

    def write(self, name: str, content: bytes) -> None:
        self._write(name, content)
        self._files[name] = _keyed(hashlib.sha256(content).hexdigest(), self.secret)

    def _write(self, name: str, content: bytes) -> None:
        path, private = self.folder / name, name.startswith(_PRIVATE)
        keep_inputs([path], self.inputs)
        try:
            if not self._key_is_stored:
                self._keep_key()
            if private:
                self._keep_private(self.folder / Path(name).parts[0])
            _check_no_link(path.parent)
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic(path, private=private) as file:
                file.write(content)
        except OSError as error:
            raise OSError(
                f"cannot write {path} ({error.strerror}); finished steps are kept, and the same "
                "command continues from there."
            ) from None

    def _keep_private(self, folder: Path) -> None:
        """A folder of private files: no link to another place, and closed to others."""
        _check_no_link(folder)
        private_folder(folder)
        folder.chmod(0o700)


def _check_no_link(folder: Path) -> None:
    """A folder inside the results must not be a link: its files would go to another place."""
    if folder.is_symlink():
        raise OSError(errno.ELOOP, f"{folder.name} is a link to another place", folder)


def open_results(
    study: Study, out: str | os.PathLike[str], *, reads: bool = True
) -> tuple[Results, str]:
    """The folder of a study's results, and the key of its files and of the software.

    A study that `reads` no files of patients is one of results that sites have released.
    """
    check_floor(study)
    files, keyed = input_files(study) if reads else {}, hides(study.privacy.min_count)
    for path in files.values():
        check_regular(path)
    about = {"study": study.name, "seed": study.seed, "settings": study.plain()}
    about |= {"inputs": {}, "software": software()}
    if keyed:
        about["hashes"] = f"HMAC-SHA256 of each file's SHA-256, with the key in {_KEY}"
    results = Results(Path(out), about, files.values(), keyed=keyed)
    inputs = {
        name: {"bytes": path.stat().st_size, "sha256": results.hash_of(path)}
        for name, path in files.items()
    }
    results.about["inputs"] = results.record["inputs"] = inputs
    return results, make_key(inputs, about["software"], results.secret.hex())


def table_text(frame: pd.DataFrame, index: bool = False) -> str:
    """A table as CSV; numbers have twelve digits, so that rounding errors do not show."""
    return csv_text(frame, index=index, float_format="%.12g")


def plain_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as JSON can hold them, with None for missing values."""
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def file_hash(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _keyed(digest: str, key: bytes) -> str:
    return hmac.digest(key, digest.encode(), "sha256").hex() if key else digest


NO_RESULT = ("n_jobs", "sensitivity", "centre")
"""Sections of a study file that change no result of a study."""
FOR_REPORT: tuple[str, ...] = ("name", "synthetic", "labs", "inference", "covariates", "outcomes")
FOR_REPORT += ("strata", "outputs", "table_one", "published")
"""Those that change neither models nor clusters."""


def settings_key(study: Study, *irrelevant: str) -> str:
    """A hash of all settings of a study, less the sections that are declared irrelevant.

    A step depends on every setting unless it says otherwise, so that a new one is never forgotten.
    """
    settings = study.plain()
    for section in (*NO_RESULT, *irrelevant):
        settings.pop(section, None)
    return make_key(settings)


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
    """A part of a study file, a date or a number of numpy as JSON can hold it."""
    if hasattr(part, "model_dump"):
        return part.model_dump(mode="json")
    return part.item() if hasattr(part, "item") else str(part)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- warnings -----------------------------------------------------------------------------


@contextmanager
def report_warnings() -> Iterator[list[str]]:
    """Collect what warnings say to the readers of the report.

    Other warnings, and those with a separate public text, also reach the user who runs the study.
    """
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield texts
    for warning in caught:
        message = warning.message
        if isinstance(message, ReportWarning):
            if message.public and message.public not in texts:
                texts.append(message.public)
            if not message.is_repeated:
                continue
        _log.info("%s in %s", warning.category.__name__, Path(warning.filename).name)
        warnings.warn_explicit(message, warning.category, warning.filename, warning.lineno)


# --- earlier runs -------------------------------------------------------------------------

_COHORTS = "patients/cohorts.json"
_KEPT = 50  # cohorts; the oldest are forgotten


def cohorts_of(results: Results, sequences: Mapping[str, PatientSequences]) -> dict[str, list[str]]:
    """The patients of each site, as hashes in order."""
    return {
        site: sorted(
            hmac.digest(results.secret, str(patient).encode(), "sha256").hex()[:16]
            for patient in data.ids
        )
        for site, data in sequences.items()
    }


def nearly_repeated(
    results: Results, cohorts: Mapping[str, list[str]], min_count: int
) -> list[str]:
    """The sites whose patients an earlier run had too, but for fewer than `min_count` of them.

    What a site was called then does not matter.
    """
    earlier = [set(cohort) for cohort in _earlier_cohorts(results)]
    return [
        site
        for site, cohort in cohorts.items()
        if any(is_small(len(set(cohort) ^ other), min_count) for other in earlier)
    ]


def remember(results: Results, cohorts: Mapping[str, list[str]]) -> None:
    """Add the patients of a finished run to those of earlier ones."""
    earlier = _earlier_cohorts(results)
    new = [cohort for cohort in cohorts.values() if cohort not in earlier]
    if new:
        results.keep(_COHORTS, [*earlier, *new][-_KEPT:])


def _earlier_cohorts(results: Results) -> list[list[str]]:
    """The cohorts of earlier runs; none if the file is absent or is not one of ours."""
    try:
        stored = results.read_json(_COHORTS)
    except (OSError, ValueError):
        return []
    lists = stored if isinstance(stored, list) else []
    return [[str(name) for name in cohort] for cohort in lists if isinstance(cohort, list)]
