"""Names of studies and sites: what they may look like, and which of them look alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from font.errors import InputError

ALL_SITES = "all sites"  # under this name stands what was added up before anyone could read it

_SITE = r"\w[\w .\-]{0,63}"
_STUDY = r"\w[\w .,:;()&'+\-]{0,199}"
# letters that no one sees, though Unicode calls them letters
_BLANK = "\u115f\u1160\u3164\uffa0\u2800"
# Cyrillic and Greek letters, and digits, that look like Latin letters
_LOOKS = str.maketrans(
    "АВЕКМНОРСТХІЈЅаеорсухіјѕԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧονα0",
    "ABEKMHOPCTXIJSaeopcyxijsqwABEZHIKMNOPTYXovao",
)


def check_study(name: str) -> str:
    """The name of a study, if a file may carry it."""
    return _checked(name, "study", _STUDY, 200, "commas, colons, semicolons, brackets, & ' + ")


def check_site(name: str, *, numbered: bool = False) -> str:
    """The name of a site, if a file may carry it; "SITE/1" too if `numbered`."""
    pattern = _SITE + ("(/[0-9]{1,4})?" if numbered else "")
    return _checked(name, "site", pattern, 64, "")


def _checked(name: str, title: str, pattern: str, most: int, also: str) -> str:
    shown = ascii(name)[:80]
    if not isinstance(name, str) or not re.fullmatch(pattern, name) or set(name) & set(_BLANK):
        raise InputError(
            f"the {title} {shown} needs another name: 1 to {most} letters, digits, spaces, dots, "
            f"hyphens, underscores {also}alone, the first a letter or digit"
        )
    if name != name.rstrip():
        raise InputError(f"the {title} {shown} ends with a space; write {name.rstrip()!a}")
    usual = unicodedata.normalize("NFKC", name)
    if usual != name:
        raise InputError(
            f"the {title} {shown} is not in the usual form of Unicode (NFKC); write {usual!a}"
        )
    scripts = {unicodedata.name(c, "").split()[0] for c in name if c.isalpha() and ord(c) > 0}
    if len(scripts & {"LATIN", "CYRILLIC", "GREEK"}) > 1:
        raise InputError(
            f"the {title} {shown} mixes letters of several alphabets that look alike; use one"
        )
    return name


def look_alikes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of different names that a person could take for the same.

    Examples
    --------
    >>> look_alikes(["MGB", "VA", "mgb", "V\u0410"])
    [('MGB', 'mgb'), ('VA', 'VА')]
    """
    seen: dict[str, str] = {}
    pairs = []
    for name in names:
        skeleton = re.sub(r"[\W_]", "", name.translate(_LOOKS).casefold())
        skeleton = skeleton.replace("1", "l").replace("i", "l")
        if seen.setdefault(skeleton, name) != name:
            pairs.append((seen[skeleton], name))
    return pairs
