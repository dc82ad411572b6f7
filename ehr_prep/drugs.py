"""Drug maps: which name or code belongs to which class. Data, not code: look at `.table`."""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.checks import check_n_states, some

if TYPE_CHECKING:
    from ehr_prep.records import Records

# OMOP concepts and RxCUIs are both plain numbers, so that a number could mean either;
# concepts are matched only where asked for with `only("omop")`.
_ON_REQUEST = ("omop",)
_CODES = ("atc", "rxcui", "omop", "ndc")
_SUFFIX = re.compile(r"-[a-z]{4}$")
_BREAK = re.compile(r"[\s,;(\[/]+")


@dataclass(frozen=True, eq=False, repr=False)
class DrugMap:
    """Names and codes of drugs with the class of each.

    Case and white space do not matter. Besides the names and codes themselves, a map
    recognises a biosimilar suffix ("adalimumab-aaty") and a product text that begins with
    a name and states a strength ("Humira Pen 40 mg/0.8 mL").

    Parameters
    ----------
    table : DataFrame
        `drug`, `class`, `ingredient` and `kind` (name, brand, biosimilar, atc, rxcui, …).
    kinds : tuple of str
        The kinds that are matched.

    Examples
    --------
    >>> RA_DRUGS.states
    ('TNFi', 'CTLA4-Ig', 'IL6R', 'JAK', 'anti-CD20')
    >>> RA_DRUGS.classify(["HUMIRA", "adalimumab-aaty", "L04AA24", "aspirin"])["class"].to_list()
    ['TNFi', 'TNFi', 'CTLA4-Ig', None]
    """

    table: pd.DataFrame
    kinds: tuple[str, ...]

    @property
    def states(self) -> tuple[str, ...]:
        """The classes, in the order of the table."""
        return tuple(self.table["class"].unique())

    @property
    def ingredients(self) -> dict[str, list[str]]:
        """The ingredients of each class, or its drugs where the map names no ingredients."""
        named = self.table["ingredient"].where(self.table["ingredient"].notna(), self.table["drug"])
        return {state: list(named[self.table["class"] == state].unique()) for state in self.states}

    def only(self, *kinds: str) -> DrugMap:
        """The same map, matching only these kinds of names or codes."""
        known = list(self.table["kind"].unique())
        if not kinds or not set(kinds) <= set(known):
            raise ValueError(f"kinds must be among {some(known)}, found {some(kinds)}.")
        return DrugMap(self.table, kinds)

    def classify(self, drugs: Iterable[Any]) -> pd.DataFrame:
        """What each text or code means to this map.

        Returns
        -------
        DataFrame
            `drug` as given, `class` and `ingredient` (None if unknown), and `how` it was
            matched: the kind, "suffix" or "product".
        """
        rows = []
        for drug in drugs:
            how, position = self._match(drug)
            known = position is not None
            rows.append(
                (
                    drug,
                    self.table["class"].iat[position] if known else None,
                    self.table["ingredient"].iat[position] if known else None,
                    how,
                )
            )
        return pd.DataFrame(rows, columns=["drug", "class", "ingredient", "how"], dtype=object)

    def nearest(self, drug: Any) -> str | None:
        """The known name that an unknown text resembles most, if any does."""
        text = _plain(drug)
        for tried in dict.fromkeys([text, _BREAK.split(text)[0]]):
            found = difflib.get_close_matches(tried, self._names, n=1, cutoff=0.8)
            if found:
                return str(self.table["drug"].iat[self._names[found[0]]])
        return None

    def __repr__(self) -> str:
        lines = [f"DrugMap: {len(self.table)} names and codes, {len(self.states)} classes"]
        lines += [f"  {state}: {', '.join(drugs)}" for state, drugs in self.ingredients.items()]
        return "\n".join(lines)

    def _match(self, drug: Any) -> tuple[str | None, int | None]:
        text = _plain(drug)
        if text in self._all:
            position = self._all[text]
            return self.table["kind"].iat[position], position
        if _SUFFIX.sub("", text) in self._names:
            return "suffix", self._names[_SUFFIX.sub("", text)]
        if any(character.isdigit() for character in text):
            words = _BREAK.split(text)
            for n in (3, 2, 1):
                name = _SUFFIX.sub("", " ".join(words[:n]))
                if name in self._names:
                    return "product", self._names[name]
        return None, None

    @cached_property
    def _all(self) -> dict[str, int]:
        used = self.table["kind"].isin(self.kinds)
        return {_plain(d): i for i, d in enumerate(self.table["drug"]) if used.iat[i]}

    @cached_property
    def _names(self) -> dict[str, int]:
        kinds = self.table["kind"]
        return {name: i for name, i in self._all.items() if kinds.iat[i] not in _CODES}


def drug_map(
    source: DrugMap | Mapping[str, str] | pd.DataFrame | str | os.PathLike[str],
) -> DrugMap:
    """A drug map of your own: a two-column CSV file or table (drug, class), or a dict.

    Columns `ingredient` and `kind` are optional; lines of a file that start with "#" are
    comments. The order of the classes is the order of the states.

    Examples
    --------
    >>> drug_map({"metformin": "biguanide", "empagliflozin": "SGLT2i"}).states
    ('biguanide', 'SGLT2i')
    """
    if isinstance(source, DrugMap):
        return source
    if isinstance(source, Mapping):
        table = pd.DataFrame({"drug": list(source), "class": list(source.values())}, dtype=object)
        name = "the drug map"
    elif isinstance(source, pd.DataFrame):
        table, name = source.astype(object), "the drug map"
    else:
        name = Path(source).name
        lines = Path(source).read_text(encoding="utf-8-sig").splitlines(keepends=True)
        body = "".join(line for line in lines if not line.startswith("#"))
        if not body.strip():
            raise ValueError(f"{name} is empty; a drug map has the columns drug and class.")
        table = pd.read_csv(io.StringIO(body), dtype=str, keep_default_na=False).astype(object)
    return _checked(table, name)


def _checked(table: pd.DataFrame, name: str) -> DrugMap:
    table.columns = [str(c).strip().casefold() for c in table.columns]
    if not {"drug", "class"} <= set(table.columns):
        if table.shape[1] != 2:
            raise ValueError(
                f"{name} has the columns {some(table.columns)}; it needs drug and class."
            )
        table.columns = ["drug", "class"]
    table = table.reset_index(drop=True)
    for column in ("drug", "class"):
        table[column] = table[column].map(lambda v: "" if pd.isna(v) else " ".join(str(v).split()))
    blank = (table["drug"] == "") | (table["class"] == "")
    if blank.any() or not len(table):
        raise ValueError(
            f"{name} has {len(table):,} rows, of which {blank.sum():,} lack a drug or a class "
            f"(rows {some(table.index[blank] + 1)}); give both in every row."
        )
    plain = table["drug"].map(_plain)
    clash = table.groupby(plain)["class"].nunique() > 1
    if clash.any():
        raise ValueError(
            f"{name} puts {some(clash.index[clash])} into more than one class; keep one row each."
        )
    check_n_states(table["class"].unique())
    if "ingredient" not in table:
        table["ingredient"] = None
    if "kind" not in table:
        table["kind"] = "name"
    table["kind"] = table["kind"].map(lambda v: "name" if pd.isna(v) else _plain(v) or "name")
    found = table["kind"].unique()
    kinds = tuple(k for k in found if k not in _ON_REQUEST) or tuple(found)
    return DrugMap(table[["drug", "class", "ingredient", "kind"]], kinds)


def drug_report(records: Records, *, everything: bool = False) -> pd.DataFrame:
    """The drug texts that the map does not know, the most frequent first, with near misses.

    Parameters
    ----------
    records : Records
    everything : bool
        Also list the known texts, with the class they were given and how.

    Returns
    -------
    DataFrame
        `drug`, `records`, `class`, `ingredient`, `how` and `did_you_mean`.

    Examples
    --------
    >>> import ehr_prep
    >>> frame = pd.DataFrame({"patient_id": [1, 1], "date": ["2010-01-05", "2010-03-01"],
    ...                       "drug": ["adalimumab", "adalimunab"]})
    >>> drug_report(ehr_prep.read_records(frame))[["drug", "records", "did_you_mean"]]
             drug  records did_you_mean
    0  adalimunab        1   adalimumab
    """
    table = records.drugs if everything else records.drugs[records.drugs["class"].isna()]
    table = table.sort_values("records", ascending=False, kind="stable", ignore_index=True)
    near = [
        records.drug_map.nearest(drug) if how is None else None
        for drug, how in zip(table["drug"], table["how"], strict=True)
    ]
    return table.assign(did_you_mean=pd.Series(near, dtype=object, index=table.index))


def _plain(drug: Any) -> str:
    """Lower case, single spaces; 327361, 327361.0 and "327361" are the same code."""
    if isinstance(drug, float) and drug.is_integer():
        drug = int(drug)
    return " ".join(str(drug).casefold().split())


RA_DRUGS = drug_map(Path(__file__).with_name("ra_drugs.csv"))
"""Biologic and targeted synthetic DMARDs for rheumatoid arthritis, with the sources in the file."""
