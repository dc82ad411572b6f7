"""Drugs that the map does not know: listed, counted, and shown without small numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.drugs import DrugMap
from font.checks import listed
from mmlca.tables.suppress import hidden_parts, is_small

TOLERATED = 0.02
"""Share of records that may be of unknown drugs without a caution."""

_OTHERS = "other texts"
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


def hide_unmapped(table: pd.DataFrame, min_count: int) -> pd.DataFrame:
    """The table for people outside: rare texts pooled, small numbers blank.

    A text of fewer than `min_count` patients may say more than a drug, so that neither it nor its
    numbers are shown; all of them together are one row. `patients` of that row is blank: patients
    may have several of these texts.

    Examples
    --------
    >>> table = pd.DataFrame({"drug": ["aspirin", "for Mr X"], "records": [90, 2],
    ...                       "patients": [40, 1], "did_you_mean": [None, None]})
    >>> hide_unmapped(table, 11)["drug"].to_list()
    ['aspirin', 'other texts']
    >>> hide_unmapped(table, 11)["records"].isna().to_list()
    [True, True]
    """
    result = pool_rare(table, min_count)
    if not is_small(table["patients"], min_count).any():
        return result
    # all records of unknown drugs together are in the flow, so that others hide with these
    few = np.arange(len(result)) == len(result) - 1
    hidden, _ = hidden_parts(result["records"].to_numpy(), min_count, few)
    return result.assign(records=result["records"].mask(hidden))


def pool_rare(table: pd.DataFrame, min_count: int) -> pd.DataFrame:
    """The table with all texts of fewer than `min_count` patients in one row, the last."""
    rare = is_small(table["patients"], min_count)
    shown = table[~rare].astype({"records": float, "patients": float})
    if not rare.any():
        return shown.reset_index(drop=True)
    other = table[rare]
    pooled = {
        "drug": _OTHERS,
        "records": float(other["records"].sum()),
        "patients": np.nan,
        "did_you_mean": None,
    }
    columns = {name: [*shown[name], pooled[name]] for name in table}
    return pd.DataFrame(columns).astype({"drug": object, "did_you_mean": object})


def unmapped_caution(table: pd.DataFrame, lost: float, where: str) -> str | None:
    """A sentence if many records of the patients studied are of unknown drugs.

    Parameters
    ----------
    table : DataFrame
        See `unmapped_table`, or `hide_unmapped`.
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
    first = first[~first["drug"].duplicated() & (first["drug"] != _OTHERS)]
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
