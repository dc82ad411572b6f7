"""The two kinds of release of a study, and what the page says about them."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mmlca.study.secret import hospital_secret
from mmlca.tables.rounding import Rounding
from mmlca.tables.suppress import hidden_note, hides

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.config import Study


def is_public(study: Study) -> bool:
    return study.privacy.release == "public"


def rounding_of(study: Study, groups: Mapping[str, pd.Series]) -> Rounding | None:
    """How a public release rounds counts of these groups; None inside the hospital."""
    if not is_public(study):
        return None
    return Rounding(hospital_secret(), study.privacy.min_count, groups)


def secret_key(study: Study) -> str:
    """What results depend on beside the settings: the secret, as a text that does not tell it."""
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
            "add up to their rounded totals. Other numbers rest on at least "
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
    if not is_public(study):
        return hidden_note(study.privacy.min_count)
    return (
        "Numbers of patients, records and steps are rounded at random to multiples of "
        f"{study.privacy.min_count}, and shares are those of the rounded numbers."
    )


def count_text(study: Study, count: float) -> str:
    """A number of patients in a sentence: "1,234", or "about 1,232"."""
    return f"{'about ' * is_public(study)}{count:,.0f}"
