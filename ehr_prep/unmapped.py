"""Drugs that the map does not know: listed and counted."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.drugs import DrugMap
from ehr_prep.screen import Rows
from font.checks import listed

TOLERATED = 0.02
"""Share of records that may be of unknown drugs without a caution."""

OTHER_TEXTS = "other texts"
"""What stands for texts too rare to be shown, where the table was made to be shown."""

_MAX_LOOKED_UP = 10_000  # texts for which a similar name is searched


def unmapped_table(
    texts: pd.DataFrame, who: NDArray[np.int32], text: NDArray[np.int32], known: DrugMap
) -> pd.DataFrame:
    """Drug texts that the map does not know, the most frequent first.

    Parameters
    ----------
    texts : DataFrame
        See `Records.drugs`; texts that the map knows as none of its drugs are left out.
    who, text : (n,)
        Patient and row label of the text of each unmapped record.

    Returns
    -------
    DataFrame
        `drug`, `records`, `patients` and `did_you_mean`, a known name that the text resembles.
    """
    unknown = texts[texts["class"].isna() & texts["rule"].isna()]
    n_patients = int(who.max(initial=0)) + 1
    pairs = pd.unique(text.astype(np.int64) * n_patients + who)
    by_text = np.bincount(
        pairs // n_patients, minlength=int(texts.index.max() + 1 if len(texts) else 0)
    )
    table = unknown[["drug", "records"]].assign(
        patients=by_text[unknown.index] if len(unknown) else np.zeros(0, dtype=np.int64)
    )
    table = table.sort_values("records", ascending=False, kind="stable", ignore_index=True)
    near = [known.nearest(drug) for drug in table["drug"].head(_MAX_LOOKED_UP)]
    near += [None] * (len(table) - len(near))
    return table.assign(did_you_mean=pd.Series(near, dtype=object, index=table.index))


def lost_share(
    texts: pd.DataFrame, unmapped: Rows, present: NDArray[np.bool_], n_mapped: int
) -> float:
    """The share of unknown drugs among the records of patients with a known one.

    Parameters
    ----------
    texts : see `unmapped_table`
    unmapped : Rows
        Records of drugs without a class.
    present : (patients,)
        Who has a record of a known drug.
    n_mapped : int
        Number of records of known drugs.
    """
    is_unknown = np.zeros(int(texts.index.max()) + 1, dtype=bool)
    is_unknown[texts.index[texts["class"].isna() & texts["rule"].isna()]] = True
    n_lost = int((present[unmapped.who] & is_unknown[unmapped.drug]).sum())
    return round(n_lost / (n_lost + n_mapped), 6)


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
