"""Drug texts of records: their classes, codes that stand for names, supplies, and unknown drugs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.drugs import DrugMap, plain
from ehr_prep.files import Source
from ehr_prep.readers import Table, factorize, read_table
from ehr_prep.screen import MAX_DAYS
from font.checks import listed, some
from font.errors import InputError, option_name
from mmlca.sequences.checks import check_n_states


class Texts(NamedTuple):
    """The drug texts of all records.

    Parameters
    ----------
    codes : (n,) int32
        The text of each record, −1 if it has none.
    table : DataFrame
        See `Records.drugs`.
    state_of : (texts + 1,) int8
        The row of `members` for each text, −1 if the map does not know it, and −1 at the end.
    members : see `Records`
    """

    codes: NDArray[np.int32]
    table: pd.DataFrame
    state_of: NDArray[np.int8]
    members: NDArray[np.int8]


def look_up(column: pd.Series, known: DrugMap, names: Mapping[str, str] | None = None) -> Texts:
    """Look up each different text once; `names` says what codes stand for."""
    raw_codes, texts = factorize(column)
    if names is not None:
        texts = pd.Index([names.get(plain(text), text) for text in texts], dtype=object)
    blank = np.array([not str(text).strip() for text in texts] + [True])
    codes = np.where(blank[raw_codes], np.int32(-1), raw_codes.astype(np.int32))
    matches = known.match(texts)
    table = known.describe(texts, matches)
    table.insert(1, "records", np.bincount(codes[codes >= 0], minlength=len(texts)))
    number = {state: i for i, state in enumerate(known.states)}
    classes = [tuple(number[c] for c in known.classes_of(match)) for match in matches]
    together = dict.fromkeys([*((i,) for i in number.values()), *(c for c in classes if c)])
    check_n_states(list(together))
    code_of = {c: code for code, c in enumerate(together)} | {(): -1}
    members = np.full((len(together), max(map(len, together))), -1, dtype=np.int8)
    for code, c in enumerate(together):
        members[code, : len(c)] = c
    state_of = np.array([*(code_of[c] for c in classes), -1], dtype=np.int8)
    return Texts(codes, table[~blank[:-1]], state_of, members)


def read_names(source: Source, **reading: Any) -> dict[str, str]:
    """What codes stand for, from a table such as OMOP's `concept`.

    The table has a column of codes (`concept_id` or `code`) and one of names (`concept_name` or
    `name`).

    Examples
    --------
    >>> read_names(pd.DataFrame({"concept_id": [1503297], "concept_name": ["metformin"]}))
    {'1503297': 'metformin'}
    """
    frame, roles, *_ = read_table(
        source, {"code": None, "name": None}, ("code", "name"), about="drug_names", **reading
    )
    pairs = frame[[roles["code"], roles["name"]]].dropna().astype(object).to_numpy().tolist()
    return {plain(code): str(name) for code, name in pairs}


def read_coded(
    source: Source,
    named: dict[str, str | None],
    names: Mapping[str, str] | None,
    **reading: Any,
) -> Table:
    """The table of records; with names of codes the drug column is one of codes."""
    needed = ("patient", "date", "drug")
    if names is not None and named["drug"] is None:
        try:
            return read_table(source, {**named, "drug": "drug_concept_id"}, needed, **reading)
        except ValueError:
            pass  # the codes are in another column, or the error is raised below
    return read_table(source, named, needed, **reading)


def supply_by_text(
    default: int | Mapping[str, int] | None, texts: pd.DataFrame, known: DrugMap
) -> NDArray[np.int32] | None:
    """The days that a record of each drug text covers by default; None without a default.

    Parameters
    ----------
    default : see `ehr_prep.read_records`
    texts : DataFrame
        `class`, `ingredient` and `matched` (the name in the map) of each text, several joined with
        " + "; the index is its number.
    """
    if default is None:
        return None
    called = option_name("default_supply")
    most = max(default.values()) if isinstance(default, Mapping) else default
    if most > MAX_DAYS:
        raise InputError(f"{called} is {most:,} days; one record covers at most {MAX_DAYS}.")
    days = np.ones(int(texts.index.max()) + 1 if len(texts) else 1, dtype=np.int32)
    if not isinstance(default, Mapping):
        days[:] = default
        return days
    ingredients = {name for names in known.ingredients.values() for name in names}
    unknown = [name for name in default if name not in ingredients and name not in known.states]
    if unknown:
        raise InputError(
            f"{called} names {some(unknown)}, which are neither classes nor ingredients of "
            f"the drug map; its classes are {some(known.states)}."
        )
    columns = (texts[name] for name in ("ingredient", "matched", "class"))
    for number, *described in zip(texts.index, *columns, strict=True):
        parts = [part for text in described if isinstance(text, str) for part in text.split(" + ")]
        days[number] = next((default[part] for part in parts if part in default), 1)
    return days


# --- drugs that the map does not know ---------------------------------------------------------


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
