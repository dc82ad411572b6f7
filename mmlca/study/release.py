"""The two kinds of release of a study, what the page says about them, and the hospital's secret.

The rounding of public releases is drawn from the secret. It is a file of 64 hexadecimal digits that
only its owner can read, in the user's folder of settings and never among results: with it all
rounding could be undone by trying. The same secret rounds the same counts alike in every run. Keep
it, and give it to nobody: with another one the counts would be drawn anew, and averages of old and
new releases reveal more than either.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from font.errors import InputError
from font.files import private_folder
from font.settings import MIN_COUNT
from mmlca.tables import disclosure
from mmlca.tables.disclosure import Rounding, few_digits, hides, is_small

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.settings import Study


FLOOR = "MMLCA_FLOOR"
"""The environment variable with the smallest `min_count` that a hospital accepts."""


def site_floor() -> int | None:
    """The smallest `min_count` that the hospital accepts; None if it has not set one."""
    text = os.environ.get(FLOOR, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InputError(
            f"the environment variable {FLOOR} must be a whole number of at least 1, found "
            f"{text!r}."
        )
    return int(text)


def check_floor(study: Study) -> None:
    """Refuse a study file with a smaller `min_count` than the hospital accepts.

    A public release needs at least `MIN_COUNT` where the hospital has not set its floor. A release
    for use inside the hospital may then have any.
    """
    floor, min_count = site_floor(), study.privacy.min_count
    if floor is None:
        floor = MIN_COUNT if is_public(study) else 0
    if is_small(min_count, floor):
        raise InputError(
            f"privacy.min_count is {min_count}, but this hospital shows nothing based on "
            f"fewer than {floor} patients{' in public' if is_public(study) else ''}; raise "
            "privacy.min_count, or let the hospital change its floor (the environment variable "
            f"{FLOOR})."
        )


def is_public(study: Study) -> bool:
    return study.privacy.release == "public"


def rounding_of(study: Study, groups: Mapping[str, pd.Series]) -> Rounding | None:
    """How a public release rounds counts of these groups; None inside the hospital."""
    if not is_public(study):
        return None
    return Rounding(hospital_secret(), study.privacy.min_count, groups)


def secret_key(study: Study) -> str:
    """What results depend on beside the settings: the secret, as a text that does not reveal it."""
    if not is_public(study):
        return ""
    return hmac.digest(hospital_secret(), b"key of results", "sha256").hex()


def statement(study: Study) -> str:
    """Which release a page is, and what that means, for its top."""
    min_count = study.privacy.min_count
    if is_public(study):
        return (
            "Public release: every count on this page is rounded at random to a multiple of "
            f"{min_count}, up or down, so that it may differ from the true count by up to "
            f"{min_count - 1}, and shares are those of the rounded counts. Rounded counts need not "
            "add up to their rounded totals. Other numbers are based on at least "
            f"{min_count} patients and have two or three digits."
        )
    if not hides(min_count):
        return (
            "For use inside the hospital: all numbers are exact, and none is hidden "
            f"(privacy.min_count is {min_count})."
        )
    return (
        "For use inside the hospital: counts are exact, and those of fewer than "
        f"{min_count} patients are not shown. They may still be worked out from several tables, or "
        "from pages of repeated runs, so do not publish this page: set privacy.release to "
        "“public” for that."
    )


def count_note(study: Study) -> str:
    """The sentence below a table or figure of counts; nothing if nothing is hidden."""
    return disclosure.count_note(study.privacy.min_count, is_public(study))


def count_text(study: Study, count: float) -> str:
    """A number of patients in a sentence: "1,234", or "about 1,232"."""
    return f"about {count:,.0f}" if is_public(study) else f"{count:,.0f}"


# --- few digits ---------------------------------------------------------------------------

DECIMALS: dict[str, int] = {
    **dict.fromkeys(("loglik", "bic", "bic_all", "aic", "sabic", "caic", "icl"), 0),
    **dict.fromkeys(("entropy", "smallest", "jaccard", "distance"), 2),
    **dict.fromkeys(("norm", "debiased", "low", "high", "estimate", "difference"), 3),
}
"""Decimals of columns."""
_DIGITS = 3


def round_indices(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """A table whose indices have few digits, since many digits would reveal counts.

    Whole numbers stay as they are; other numbers have at most three digits, and some columns fewer.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"bic": [2232.53434203], "n": [260], "se": [0.123456]})
    >>> round_indices("models", table)
          bic    n     se
    0  2233.0  260  0.123
    """
    if name.startswith(("agreement", "weights", "suggested")):
        return table.round(3)
    table = table.round({column: n for column, n in DECIMALS.items() if column in table})
    columns = table.select_dtypes("floating")
    return table.assign(**{c: few_digits(columns[c].to_numpy(), _DIGITS) for c in columns})


def shown_indices(study: Study, name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The same where the study hides small numbers, for the table and for the figure of it."""
    return round_indices(name, table) if hides(study.privacy.min_count) else table


# --- the secret ---------------------------------------------------------------------------

VARIABLE = "MMLCA_SECRET"
"""The environment variable that names another file, such as one for all users of a hospital."""


def secret_file() -> Path:
    """Where the secret is kept."""
    from typer import get_app_dir

    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path(get_app_dir("mmlca")) / "secret"


def hospital_secret() -> bytes:
    """The secret, 32 bytes; the first call makes it."""
    path = secret_file()
    try:
        if not path.exists():
            _make(path)
        text = path.read_bytes()[:200].strip()
    except OSError as error:
        raise OSError(
            f"cannot read or make the secret {path} that public releases are rounded with "
            f"({error.strerror}); name another place in the environment variable {VARIABLE}."
        ) from None
    if not re.fullmatch(rb"[0-9a-f]{64}", text):
        raise InputError(
            f"{path} is not a secret that this program wrote (64 hexadecimal digits), or it is "
            "damaged; restore it from a backup, since counts that are drawn anew reveal more than "
            "they should."
        )
    return bytes.fromhex(text.decode())


def _make(path: Path) -> None:
    """Make the file whole or not at all; if another program was faster, its file stays."""
    private_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(secrets.token_hex(32).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
