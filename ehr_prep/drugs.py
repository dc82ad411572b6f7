"""Drug maps: which name or code belongs to which class, and which of them a text names.

A map is data, not code: look at `.table`.
"""

from __future__ import annotations

import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.files import EXCEL, read_excel
from ehr_prep.settings import MAPS
from ehr_prep.values import factorize
from font.checks import listed, some
from font.errors import InputError, option
from font.sniff import read_text
from mmlca.sequences.checks import check_n_states

# OMOP concepts and RxCUIs are both plain numbers, so that a number could mean either;
# concepts are matched only where asked for with `only("omop")`.
_ON_REQUEST = ("omop",)
_COLUMNS = ["drug", "class", "ingredient", "vocabulary", "pattern"]
_CODES = ("atc", "rxcui", "ndc", "omop")
_TOGETHER = re.compile(r"\s+\+\s+")


@dataclass(frozen=True, eq=False, repr=False)
class DrugMap:
    """Names and codes of drugs with the class of each.

    A name is found anywhere in a text, as whole words, whatever the case: "Humira",
    "adalimumab-aaty" and "0.4 ML adalimumab 100 MG/ML Auto-Injector" are all found by the
    rows Humira and adalimumab. Of several names the longest counts first. A text with drugs of
    several classes ("metformin/sitagliptin 850/50") belongs to all of them. Codes of numbers
    (RxCUI, NDC, OMOP concepts) must be the whole text.

    Parameters
    ----------
    table : DataFrame
        `drug`, `class`, `ingredient`, `vocabulary` (name, brand, biosimilar, atc, rxcui, ndc,
        omop, or pattern for rows without a drug) and `pattern`; see `drug_map`.
    vocabularies : tuple of str
        Those that are matched.

    Examples
    --------
    >>> RA_DRUGS.states
    ('TNFi', 'CTLA4-Ig', 'IL6R', 'JAK', 'anti-CD20')
    >>> texts = ["HUMIRA", "1 ML etanercept 50 MG/ML Prefilled Syringe", "L04AA24", "aspirin"]
    >>> RA_DRUGS.classify(texts)[["class", "rule"]].to_numpy().tolist()
    [['TNFi', 'brand'], ['TNFi', 'words'], ['CTLA4-Ig', 'atc'], [None, None]]
    """

    table: pd.DataFrame
    vocabularies: tuple[str, ...]

    @cached_property
    def states(self) -> tuple[str, ...]:
        """The classes, in the order of the table."""
        return tuple(dict.fromkeys(c for row in self._rows for c in row.classes))

    @property
    def ingredients(self) -> dict[str, list[str]]:
        """The ingredients of each class, or its drugs where the map names no ingredients."""
        return {
            state: list(
                dict.fromkeys(
                    row.ingredient or row.drug for row in self._rows if row.classes == (state,)
                )
            )
            for state in self.states
        }

    def only(self, *vocabularies: str) -> DrugMap:
        """The same map, matching only names or codes of these vocabularies."""
        known = list(self.table["vocabulary"].unique())
        if not vocabularies or not set(vocabularies) <= set(known):
            raise InputError(
                f"vocabularies must be among {some(known)}, found {some(vocabularies)}."
            )
        return DrugMap(self.table, vocabularies)

    def match(self, drugs: Iterable[Any]) -> list[Match]:
        """The rows of the map that each text names."""
        return [self._matcher.match(drug) for drug in drugs]

    def classes_of(self, match: Match) -> tuple[str, ...]:
        """The classes of a match, in the order of the states."""
        classes = {c for row in match.rows for c in row.classes}
        return tuple(state for state in self.states if state in classes)

    def classify(self, drugs: Iterable[Any]) -> pd.DataFrame:
        """The class of each text or code, and the rule that gave it.

        Returns
        -------
        DataFrame
            One row per text: `drug` as given; `class` and `ingredient`, joined with " + " where
            there are several, None if unknown; `rule`, see `ehr_prep.drugs.Matcher`; and
            `matched`, the names or codes of the map that were found.
        """
        texts = list(drugs)
        return self.describe(texts, self.match(texts))

    def describe(self, texts: Iterable[Any], matches: Iterable[Match]) -> pd.DataFrame:
        """The table of `classify` for texts that were matched before."""
        rows = [
            (
                drug,
                _joined(self.classes_of(match)),
                _joined(row.ingredient for row in match.rows if row.ingredient),
                match.rule,
                _joined(row.drug or row.pattern for row in match.rows),
            )
            for drug, match in zip(texts, matches, strict=True)
        ]
        columns = ["drug", "class", "ingredient", "rule", "matched"]
        return pd.DataFrame(rows, columns=columns, dtype=object)

    def nearest(self, drug: Any) -> str | None:
        """The known name that an unknown text resembles most, if any does."""
        row = self._matcher.nearest(drug)
        return None if row is None else row.drug

    def __repr__(self) -> str:
        lines = [f"DrugMap: {len(self.table)} names and codes, {len(self.states)} classes"]
        lines += [f"  {state}: {', '.join(drugs)}" for state, drugs in self.ingredients.items()]
        return "\n".join(lines)

    @cached_property
    def _rows(self) -> list[Row]:
        return [
            Row(drug, () if c == EXCLUDED else tuple(_TOGETHER.split(c)), ingredient, vocabulary, p)
            for drug, c, ingredient, vocabulary, p in self.table.itertuples(index=False)
        ]

    @cached_property
    def _matcher(self) -> Matcher:
        return Matcher(row for row in self._rows if row.vocabulary in self.vocabularies)


Drugs: TypeAlias = DrugMap | Mapping[str, str] | pd.DataFrame | str | os.PathLike[str]
"""What `drug_map` takes."""


def drug_map(source: Drugs | None) -> DrugMap:
    """A drug map: the name of one that is built in, or your own as a CSV file, table or dict.

    The one that is built in is "ra", rheumatoid arthritis. A file or table has the columns drug
    and class, a dict is {drug: class}.

    The order of the classes is the order of the states. Lines of a file that start with "#" are
    comments. Further columns are optional:

    - `ingredient`, for reports;
    - `vocabulary`: name (the default), brand, biosimilar, atc, rxcui, ndc or omop;
    - `pattern`: a regular expression that is searched for in the text, instead of or besides
      the drug;
    - `atc`, `rxcui`, `ndc`, `omop`: codes of the drug, several with "|" between them. Each is
      one more row of the map.

    A drug that ends in "*" is a prefix: "L04AB*" means all ATC codes that begin so. A fixed
    combination under one name has its classes joined with " + ", such as "biguanide + DPP-4"
    for Janumet. Texts that match a pattern of class "-" are not drugs, whatever they name.

    Examples
    --------
    >>> own = drug_map({"metformin": "biguanide", "sitagliptin": "DPP-4", "A10BK*": "SGLT2"})
    >>> own.states
    ('biguanide', 'DPP-4', 'SGLT2')
    >>> own.classify(["TAB METFORMIN 500MG", "metformin/sitagliptin 850/50", "A10BK03"])["class"]
    0            biguanide
    1    biguanide + DPP-4
    2                SGLT2
    Name: class, dtype: object
    """
    if source is None:
        raise InputError(
            f"no drug map is given; take one that is built in, as in {option('drugs', 'ra')}, or a "
            f".csv file of drug and class, as in {option('drugs', 'map.csv')}."
        )
    if isinstance(source, DrugMap):
        return source
    if isinstance(source, str) and source in MAPS:
        return _built_in(source)
    if isinstance(source, Mapping):
        table = pd.DataFrame({"drug": list(source), "class": list(source.values())}, dtype=object)
        name = "the drug map"
    elif isinstance(source, pd.DataFrame):
        table, name = source.astype(object), "the drug map"
    else:
        name = Path(source).name
        table = _read_map(Path(source))
    return _checked(table, name)


@cache
def _built_in(name: str) -> DrugMap:
    path = Path(__file__).parent / "maps" / f"{name}.csv"
    return _checked(_read_map(path), path.name)


def _read_map(path: Path) -> pd.DataFrame:
    """A map from a text file, or from the first sheet of an Excel file."""
    if path.suffix.lower() in EXCEL:
        return next(iter(read_excel(path).values())).astype(object)
    body, delimiter = read_text(path)
    if not body.strip():
        raise InputError(f"{path.name} is empty; a drug map has the columns drug and class.")
    table = pd.read_csv(io.StringIO(body), sep=delimiter, dtype=str, keep_default_na=False)
    return table.astype(object)


def _checked(table: pd.DataFrame, name: str) -> DrugMap:
    table.columns = [str(c).strip().casefold() for c in table.columns]
    if not {"drug", "class"} <= set(table.columns):
        if table.shape[1] != 2:
            raise InputError(
                f"{name} has the columns {some(table.columns)}; it needs drug and class."
            )
        table.columns = ["drug", "class"]
    table = _with_codes(table.reset_index(drop=True)).reindex(columns=_COLUMNS)
    for column in _COLUMNS:
        table[column] = table[column].map(lambda v: "" if pd.isna(v) else str(v).strip())
        if column != "pattern":
            table[column] = table[column].map(lambda text: " ".join(text.split()))
    blank = (table["class"] == "") | ((table["drug"] == "") & (table["pattern"] == ""))
    if blank.any() or not len(table):
        raise InputError(
            f"{name} has {len(table):,} rows, of which {blank.sum():,} lack a drug or a class "
            f"(rows {some(table.index[blank] + 1)}); give both in every row."
        )
    texts = table["drug"].map(plain)
    clash = table[texts != ""].groupby(texts)["class"].nunique() > 1
    if clash.any():
        raise InputError(
            f"{name} puts {some(clash.index[clash])} into more than one class; keep one row each, "
            'and join the classes of a fixed combination with " + ".'
        )
    stars = [drug for drug in texts if "*" in drug[:-1] or drug == "*"]
    if stars:
        raise InputError(
            f"{name} has a * that is not at the end of a name or code: {some(stars)}; move it "
            "there, or use the column pattern."
        )
    for pattern in table["pattern"]:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(
                f"{name} has the pattern {pattern!r}, which is not a regular expression: {error}."
            ) from None
    vocabulary = table["vocabulary"].map(plain)
    guessed = texts.map(
        lambda text: "pattern" if not text else "name" if plain_ndc(text) == text else "ndc"
    )
    table["vocabulary"] = vocabulary.where(vocabulary != "", guessed)
    for column in ("ingredient", "pattern"):
        table[column] = pd.Series([text or None for text in table[column]], dtype=object)
    present = table["vocabulary"].unique()
    matched = tuple(v for v in present if v not in _ON_REQUEST) or tuple(present)
    drugs = DrugMap(table, matched)
    check_n_states(drugs.states)
    return drugs


def _with_codes(table: pd.DataFrame) -> pd.DataFrame:
    """Each code in a column of its own becomes a row with its drug as the ingredient."""
    parts = [table]
    for vocabulary in (name for name in _CODES if name in table.columns):
        codes = table[vocabulary].map(lambda v: [] if pd.isna(v) else plain(v).split("|"))
        rows = table.assign(drug=codes, vocabulary=vocabulary, pattern=None).explode("drug")
        rows = rows[rows["drug"].notna() & (rows["drug"].astype(str).str.strip() != "")]
        names = table["ingredient"] if "ingredient" in table else table["drug"]
        parts.append(rows.assign(ingredient=names.reindex(rows.index)))
    return pd.concat(parts, ignore_index=True)


def _joined(parts: Iterable[str | None]) -> str | None:
    return " + ".join(dict.fromkeys(part for part in parts if part)) or None


# --- texts as they come: which rows of a map they name, and by which rule ---------------------

EXCLUDED = "-"
"""The class of rows that say what is not a drug, such as a test for antibodies against one."""

_WORD = re.compile(r"[^\W\d_]{4,}(?=\d)|[^\W_]+")  # a strength may be glued on: METFORMIN500MG
_CODE_AS_FLOAT = re.compile(r"\d+\.0")
_NDC = re.compile(r"(\d{4,5})-(\d{3,4})-(\d{1,2})")
_WHOLE_TEXT_ONLY = ("rxcui", "omop", "ndc")
_NEAR = 0.8  # of difflib's ratio
_SHORT = 3  # letters; such words resemble too much
_SALT_NAMES = (
    "hydrochloride hydrobromide sodium potassium calcium magnesium acetate phosphate sulfate "
    "tartrate maleate citrate besylate mesylate fumarate succinate propionate"
)
_SALTS = frozenset(_SALT_NAMES.split())

TOLERATED = 0.02
"""Share of records that may be of unknown drugs without a caution."""

OTHER_TEXTS = "other texts"
"""What stands for texts too rare to be shown, where the table was made to be shown."""

_MAX_LOOKED_UP = 10_000  # texts for which a similar name is searched


class Row(NamedTuple):
    """A row of a drug map; `classes` are several for a fixed combination, none if excluded."""

    drug: str
    classes: tuple[str, ...]
    ingredient: str | None
    vocabulary: str
    pattern: str | None


class Match(NamedTuple):
    """The rows that a text names, in the order of the text, and the rule that found them."""

    rows: tuple[Row, ...]
    rule: str | None


def plain(drug: Any) -> str:
    """Lower case, single spaces; 327361, 327361.0, "327361" and "327361.0" are the same code."""
    if isinstance(drug, float) and drug.is_integer():
        drug = int(drug)
    text = " ".join(str(drug).casefold().split())
    return text[:-2] if _CODE_AS_FLOAT.fullmatch(text) else text


def plain_ndc(text: str) -> str:
    """A National Drug Code as eleven digits (5-4-2), whichever part was short.

    Examples
    --------
    >>> plain_ndc("0002-8215-01"), plain_ndc("57894-30-01"), plain_ndc("metformin")
    ('00002821501', '57894-30-01', 'metformin')
    """
    parts = _NDC.fullmatch(text)
    if parts is None:
        return text
    return f"{parts[1]:0>5}{parts[2]:0>4}{parts[3]:0>2}"


class Matcher:
    """Looks texts up in the rows of a drug map.

    In this order: the whole text is a name or code ("name", "brand", "atc", …: its
    vocabulary); a pattern says that the text is not a drug ("excluded"); else whole words
    anywhere in the text ("words"), words that begin with a prefix row ("prefix") and patterns
    ("pattern"), of which the longest match counts first and others must not overlap it.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.exact: dict[str, Row] = {}
        self.names: dict[str, Row] = {}
        self.phrases: dict[str, list[tuple[tuple[str, ...], Row]]] = defaultdict(list)
        self.prefixes: list[tuple[str, Row]] = []
        self.patterns: list[tuple[re.Pattern[str], Row]] = []
        codes: dict[str, Row] = {}
        for row in rows:
            if row.pattern is not None:
                self.patterns.append((re.compile(row.pattern, re.IGNORECASE), row))
            text = plain(row.drug)
            if text.endswith("*"):
                self.prefixes.append((text[:-1], row))
            elif text:
                if row.vocabulary == "ndc":
                    codes[plain_ndc(text)] = row
                    continue
                self.exact[text] = row
                words = tuple(_WORD.findall(text))
                is_number = all(word.isdecimal() for word in words)
                if row.vocabulary not in _WHOLE_TEXT_ONLY and not is_number:
                    self.phrases[words[0]].append((words, row))
                    self.names[text] = row
        # National Drug Codes also without the zeros at the front, which Excel drops
        bare = {code.lstrip("0"): row for code, row in codes.items()}
        self.exact = {**bare, **self.exact, **codes}
        self._known_words: dict[str, tuple[float, str]] = {}
        self.pairs: dict[str, list[str]] = defaultdict(list)
        for name in self.names:
            for pair in _pairs(name):
                self.pairs[pair].append(name)

    def match(self, drug: Any) -> Match:
        text = plain(drug)
        row = self.exact.get(text) or self.exact.get(plain_ndc(text))
        if row is not None:
            return Match((row,), row.vocabulary)
        spans = []
        for pattern, row in self.patterns:
            if hit := pattern.search(text):
                if not row.classes:
                    return Match((), "excluded")
                spans.append((*hit.span(), "pattern", row))
        tokens = list(_WORD.finditer(text))
        words = [token[0] for token in tokens]
        for i, word in enumerate(words):
            for phrase, row in self.phrases.get(word, ()):
                if tuple(words[i : i + len(phrase)]) == phrase:
                    end = tokens[i + len(phrase) - 1].end()
                    spans.append((tokens[i].start(), end, "words", row))
            for prefix, row in self.prefixes:
                if word.startswith(prefix):
                    spans.append((*tokens[i].span(), "prefix", row))
        return _longest_first(spans)

    def nearest(self, drug: Any) -> Row | None:
        """The row whose name an unknown text, or a word of it, resembles most, if any does."""
        text = plain(drug)
        tried = [
            text,
            *(word for word in _WORD.findall(text) if len(word) > _SHORT and word not in _SALTS),
        ]
        ratio, name = max(map(self._closest, tried), key=lambda pair: pair[0])
        return self.names[name] if ratio >= _NEAR else None

    def _closest(self, word: str) -> tuple[float, str]:
        """How much a word resembles the most similar name, and that name; words are cached."""
        if word not in self._known_words:
            shared = Counter(name for pair in _pairs(word) for name in self.pairs.get(pair, ()))
            # names that share few pairs of letters need not be compared letter by letter
            likely = [name for name, n in shared.items() if 2 * n >= max(len(name), len(word)) - 1]
            ratios = ((SequenceMatcher(None, word, name).ratio(), name) for name in likely)
            self._known_words[word] = max(ratios, default=(0.0, ""))
        return self._known_words[word]


def _longest_first(spans: list[tuple[int, int, str, Row]]) -> Match:
    chosen: list[tuple[int, int, str, Row]] = []
    for span in sorted(spans, key=lambda s: (s[0] - s[1], s[0])):
        if all(span[1] <= other[0] or span[0] >= other[1] for other in chosen):
            chosen.append(span)
    chosen.sort(key=lambda s: s[0])
    rules = dict.fromkeys(rule for _, _, rule, _ in chosen)
    return Match(tuple(row for *_, row in chosen), " and ".join(rules) or None)


def _pairs(text: str) -> set[str]:
    return {text[i : i + 2] for i in range(len(text) - 1)}


# --- the drug texts of records -----------------------------------------------------------------


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


RA_DRUGS = drug_map("ra")
"""Biologic and targeted synthetic DMARDs for rheumatoid arthritis, with the sources in the file."""
