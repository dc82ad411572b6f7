"""Drugs that the map does not know: listed and counted."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.drugs import DrugMap
from font.checks import listed

TOLERATED = 0.02
"""Share of records that may be of unknown drugs without a caution."""

OTHER_TEXTS = "other texts"
"""What stands for texts too rare to be shown, where the table was made to be shown."""

_MAX_LOOKED_UP = 10_000  # texts for which a similar name is searched


def unmapped_table(
    texts: pd.DataFrame, patients: NDArray[np.int64], known: DrugMap | None
) -> pd.DataFrame:
    """Drug texts that the map does not know, the most frequent first.

    Parameters
    ----------
    texts : DataFrame
        See `Records.drugs`; texts that the map knows as none of its drugs are left out.
    patients : (texts,)
        The number of patients with each text, by its row label.
    known : DrugMap, optional
        Whose names unknown texts may resemble.

    Returns
    -------
    DataFrame
        `drug`, `records`, `patients` and `did_you_mean`, a known name that the text resembles.
    """
    unknown = texts[texts["class"].isna() & texts["rule"].isna()]
    table = unknown[["drug", "records"]].assign(patients=patients[unknown.index])
    table = table.sort_values("records", ascending=False, kind="stable", ignore_index=True)
    near: list[str | None] = [None] * len(table)
    if known is not None:
        near[:_MAX_LOOKED_UP] = map(known.nearest, table["drug"].head(_MAX_LOOKED_UP))
    return table.assign(did_you_mean=pd.Series(near, dtype=object, index=table.index))


def unmapped_caution(table: pd.DataFrame, lost: float, where: str) -> str | None:
    """A sentence if many records of the patients studied are of unknown drugs.

    Parameters
    ----------
    table : DataFrame
        See `unmapped_table`; rare texts may be pooled as `OTHER_TEXTS`.
    lost : float
        Share of unknown drugs among the records of patients with a known drug.
    where : str
        Where the whole list is, and whose records they are, for the sentence.

    Examples
    --------
    >>> table = pd.DataFrame({"drug": ["adalimunab"], "did_you_mean": ["adalimumab"]})
    >>> print(unmapped_caution(table, 0.05, "unmapped.csv"))
    5.0 % of the records of patients with a known drug are of drugs that the map does not know, \
most often adalimunab (adalimumab?): add to the drug map what belongs to a class, and list what \
does not with the class "-" (unmapped.csv).
    """
    if lost <= TOLERATED or not len(table):
        return None
    near = table[table["did_you_mean"].notna()].head(2)
    first = pd.concat([table.head(3), near])
    first = first[~first["drug"].duplicated() & (first["drug"] != OTHER_TEXTS)]
    names = [
        f"{row.drug} ({row.did_you_mean}?)" if isinstance(row.did_you_mean, str) else str(row.drug)
        for row in first.itertuples()
    ]
    often = f", most often {listed(names)}" if names else ""
    share = f"{100 * lost:.1f} %" if names else f"More than {100 * TOLERATED:g} %"
    return (
        f"{share} of the records of patients with a known drug are of drugs that the "
        f"map does not know{often}: add to the drug map what belongs to a class, and list what "
        f'does not with the class "-" ({where}).'
    )
