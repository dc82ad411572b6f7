"""Drug texts as they come: which rows of a drug map they name, and by which rule."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any, NamedTuple

EXCLUDED = "-"
"""The class of rows that say what is not a drug, such as a test for antibodies against one."""

_WORD = re.compile(r"[^\W\d_]{4,}(?=\d)|[^\W_]+")  # a strength may be glued on: METFORMIN500MG
_CODE_AS_FLOAT = re.compile(r"\d+\.0")
_NDC = re.compile(r"(\d{4,5})-(\d{3,4})-(\d{1,2})")
_WHOLE_TEXT_ONLY = ("rxcui", "omop", "ndc")
_NEAR = 0.8  # of difflib's ratio
_SHORT = 3  # letters; such words resemble too much
_SALTS = frozenset(
    [
        "hydrochloride",
        "hydrobromide",
        "sodium",
        "potassium",
        "calcium",
        "magnesium",
        "acetate",
        "phosphate",
        "sulfate",
        "tartrate",
        "maleate",
        "citrate",
        "besylate",
        "mesylate",
        "fumarate",
        "succinate",
        "propionate",
    ]
)


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
