"""OMOP concepts: which concepts of a database belong to which drug class, and how that is known.

It is one file because the ways to a class (ancestors, relationships, names) are tried in order.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pandas as pd

from ehr_prep.databases.connect import Database
from ehr_prep.drugs import DrugMap, Drugs, drug_map, plain
from font.checks import some
from font.errors import InputError

ConceptSets: TypeAlias = Mapping[str, Iterable[int | str | os.PathLike[str]]]
"""{class: concepts}: each an id, an ATC code or prefix ("L04AB*"), or an Atlas JSON file."""

ANCESTOR, RELATION, NAME = "concept_ancestor", "concept_relationship", "concept_name"
_CHUNK = 1000  # ids in one IN list
_DEPTH = 8  # a branded pack is six steps from its ingredients
# from a product to what it is made of, as the vocabularies name it
_UPWARD = (
    "RxNorm has ing",
    "RxNorm is a",
    "Consists of",
    "Contains",
    "Tradename of",
    "Is a",
    "Quantified form of",
    "Box of",
    "Marketed form of",
    "Maps to",
    "RxNorm - ATC",
)
_RXNORM = ("RxNorm", "RxNorm Extension")


class Item(NamedTuple):
    """One line of a concept set; `mapped`: with the source concepts that map to its concepts."""

    concept_id: int
    state: str
    descendants: bool = True
    excluded: bool = False
    mapped: bool = False


class Resolved(NamedTuple):
    """The classes of the drug concepts that a database uses.

    Parameters
    ----------
    drugs : DrugMap
        The map that was asked for, with one more row per concept that has a class.
    labels : dict {concept id: text}
        Each concept as it stands in `drugs` and in reports: "1119119 adalimumab".
    records : dict {way: records}
        How many records each way of resolving mapped, and how many stay unmapped; "concept 0"
        are those that the database itself could not map.
    """

    drugs: DrugMap
    labels: dict[int, str]
    records: dict[str, int]


def read_sets(drugs: Drugs | ConceptSets | None) -> tuple[DrugMap, list[Item]]:
    """A drug map or concept sets as a map and the concept ids in it.

    Examples
    --------
    >>> known, items = read_sets({"TNFi": [1119119, "L04AB*"], "JAK": [42904205]})
    >>> known.states, items[1][:2]
    (('TNFi', 'JAK'), (42904205, 'JAK'))
    """
    if isinstance(drugs, (str, os.PathLike)) and str(drugs).lower().endswith(".json"):
        sets = _atlas_sets(Path(drugs))
        return _from_items({state: (items, []) for state, items in sets.items()})
    if isinstance(drugs, Mapping) and any(not isinstance(v, str) for v in drugs.values()):
        return _from_items({str(state): _parse_set(str(state), v) for state, v in drugs.items()})
    known = drug_map(drugs)
    rows = known.table[(known.table["vocabulary"] == "omop") & (known.table["drug"] != "")]
    return known, [Item(int(d), c) for d, c in zip(rows["drug"], rows["class"], strict=True)]


def resolve(
    database: Database, drugs: Drugs | ConceptSets | None, used: Mapping[int, int]
) -> Resolved:
    """Find the class of every concept that is used.

    Through `concept_ancestor` where that table has rows; else through the relationships from
    products to ingredients; concepts that neither reaches are matched by their names, as texts
    in files are. `used` is {concept id: records}.
    """
    known, items = read_sets(drugs)
    names = _names(database, used)
    named, ingredients, codes = _named_concepts(database, known)
    items = [*items, *named]
    looked_for = {item.concept_id for item in items}
    links = _through_ancestors(database, looked_for)
    way = ANCESTOR
    if links is None:
        links, way = _through_relations(database, looked_for, set(used)), RELATION
    _drop_wider(links, codes)
    same_as = _standard_concepts(database, used) if any(i.mapped for i in items) else {}
    rows, records = [], dict.fromkeys((ANCESTOR, RELATION, NAME, "concept 0", "unmapped"), 0)
    labels = {c: f"{c} {names.get(c) or 'unknown concept'}" for c in used}
    for concept, n in used.items():
        above = {c: links.get(c, set()) | {c} for c in (concept, *same_as.get(concept, ()))}
        held_by = [item for item in items if _holds(item, concept, above)]
        out = {item.state for item in held_by if item.excluded}
        reached = {item.state for item in held_by} - out
        ancestors = sorted({a for every in above.values() for a in every} & ingredients.keys())
        ingredient, how = [ingredients[a] for a in ancestors], way
        if not reached and not out and concept and way != ANCESTOR and concept in names:
            match = known.match([names[concept]])[0]
            reached = set(known.classes_of(match))
            ingredient, how = [row.ingredient for row in match.rows if row.ingredient], NAME
        if not reached:
            records["unmapped" if concept else "concept 0"] += n
            continue
        records[how] += n
        classes = " + ".join(s for s in known.states if s in reached)
        text = " + ".join(dict.fromkeys(ingredient)) or names.get(concept) or ""
        rows.append((labels[concept], classes, text, how, ""))
    if not isinstance(drugs, DrugMap) and known.table["vocabulary"].isin(["omop", "atc"]).all():
        reached_now = {a for above in links.values() for a in above} | set(used)
        _check_reached(database, known, items, reached_now, by_relation=way == RELATION)
    table = pd.DataFrame(rows, columns=list(known.table.columns), dtype=object)
    table["pattern"] = pd.Series([None] * len(table), dtype=object)
    both = pd.concat([known.table, table], ignore_index=True)
    return Resolved(DrugMap(both, (ANCESTOR, RELATION, NAME)), labels, records)


def concepts_of(database: Database, items: Iterable[Item]) -> list[int]:
    """All concepts of one set: with those below and those mapped, without those excluded."""
    sets = list(items)
    links = _through_ancestors(database, {item.concept_id for item in sets}) or {}
    inside: set[int] = set()
    outside: set[int] = set()
    for item in sets:
        own = {item.concept_id}
        if item.descendants:
            own |= {concept for concept, above in links.items() if item.concept_id in above}
        if item.mapped:
            own |= set(_maps_to(database, "concept_id_2", own)["concept_id_1"])
        (outside if item.excluded else inside).update(int(c) for c in own)
    return sorted(inside - outside)


# --- what is asked for ------------------------------------------------------------------


def _parse_set(state: str, parts: Any) -> tuple[list[Item], list[str]]:
    """The ids and the codes of a concept set."""
    if isinstance(parts, (int, str, os.PathLike)):
        parts = [parts]
    items: list[Item] = []
    codes: list[str] = []
    for part in parts:
        text = str(part).strip()
        if isinstance(part, bool) or not text:
            raise InputError(
                f"the concept set of {state!r} holds {part!r}; give ids, ATC codes or Atlas files."
            )
        if text.lower().endswith(".json"):
            of_file = [i for found in _atlas_sets(Path(part)).values() for i in found]
            items += [item._replace(state=state) for item in of_file]
        elif text.isdecimal():
            items.append(Item(int(text), state))
        else:
            codes.append(text)
    return items, codes


def _from_items(sets: Mapping[str, tuple[list[Item], list[str]]]) -> tuple[DrugMap, list[Item]]:
    rows = []
    for state, (items, codes) in sets.items():
        included = [str(i.concept_id) for i in items if not i.excluded]
        if not included and not codes:
            raise InputError(f"the concept set of {state!r} includes no concept; add one.")
        rows += [(text, state, "omop") for text in included]
        rows += [(text, state, "atc") for text in codes]
    if not rows:
        raise InputError("there is no concept set; give at least one class with its concepts.")
    table = pd.DataFrame(rows, columns=["drug", "class", "vocabulary"], dtype=object)
    return drug_map(table), [item for items, _ in sets.values() for item in items]


def _atlas_sets(path: Path) -> dict[str, list[Item]]:
    """The concept sets of a file that Atlas exported: one set, or those of a cohort definition."""
    if not path.is_file():
        raise InputError(f"there is no concept set file {str(path)!r}; correct the path.")
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        if isinstance(content, dict) and "ConceptSets" in content:
            sets = {s["name"]: s["expression"]["items"] for s in content["ConceptSets"]}
        else:
            inner = content.get("expression", content)
            sets = {str(content.get("name", path.stem)): inner["items"]}
        return {
            state: [
                Item(
                    int(item["concept"]["CONCEPT_ID"]),
                    state,
                    bool(item.get("includeDescendants", False)),
                    bool(item.get("isExcluded", False)),
                    bool(item.get("includeMapped", False)),
                )
                for item in items
            ]
            for state, items in sets.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            f"{path.name} is not a concept set of Atlas: it needs items, each with "
            "concept.CONCEPT_ID; export it again as JSON."
        ) from None


def _named_concepts(
    database: Database, known: DrugMap
) -> tuple[list[Item], dict[int, str], dict[int, str]]:
    """The concepts that rows of the map name by code, prefix or name; ingredients; ATC codes."""
    items: list[Item] = []
    codes: dict[int, str] = {}
    rows = [row for row in known._rows if row.classes and row.drug]
    ingredients = {int(r.drug): r.ingredient for r in rows if r.vocabulary == "omop"}
    by_text = {plain(row.drug): row for row in rows if row.vocabulary != "omop"}
    concept = database.table(
        "concept", "concept_id", "concept_name", "vocabulary_id", "concept_class_id", "concept_code"
    )
    rxcuis = {text for text, row in by_text.items() if row.vocabulary == "rxcui"}
    prefixes = [text[:-1] for text in by_text if text.endswith("*")]
    exact = [text for text in by_text if not text.endswith("*")]
    if by_text:
        code = concept.concept_code.lower()
        matching = concept.vocabulary_id.isin([*_RXNORM, "ATC"]) & code.isin(exact)
        is_ingredient = concept.concept_class_id == "Ingredient"
        matching |= is_ingredient & concept.concept_name.lower().isin(exact)
        for prefix in prefixes:
            matching |= (concept.vocabulary_id == "ATC") & code.startswith(prefix)
        found = database.fetch(concept.filter(matching), "concepts that the drug map names")
        for row in found.itertuples(index=False):
            atc = plain(row.concept_code) if row.vocabulary_id == "ATC" else ""
            texts = [plain(row.concept_code), plain(row.concept_name)]
            if row.vocabulary_id in _RXNORM and texts[0] not in rxcuis:
                texts = texts[1:]  # a number of RxNorm is not a code of another vocabulary
            match = next((by_text[text] for text in texts if text in by_text), None)
            if match is None and atc:
                longest = max((p for p in prefixes if atc.startswith(p)), key=len, default=None)
                match = by_text.get(f"{longest}*")
            if match is not None:
                number = int(row.concept_id)
                items += [Item(number, state) for state in match.classes]
                ingredients[number] = match.ingredient
                codes[number] = atc
    return (
        items,
        {number: name for number, name in ingredients.items() if name},
        {number: atc for number, atc in codes.items() if atc},
    )


# --- from concepts to classes ------------------------------------------------------------


def _names(database: Database, used: Mapping[int, int]) -> dict[int, str]:
    concept = database.table("concept", "concept_id", "concept_name")
    names: dict[int, str] = {}
    for chunk in _chunks(used):
        part = concept.filter(concept.concept_id.isin(chunk))
        found = database.fetch(part, "names of the drug concepts")
        names |= dict(zip(found["concept_id"], found["concept_name"], strict=True))
    return {int(c): str(name) for c, name in names.items() if isinstance(name, str)}


def _maps_to(database: Database, column: str, concepts: Iterable[int]) -> pd.DataFrame:
    """The relationships "Maps to" of these source (`concept_id_1`) or standard concepts."""
    table = database.has(RELATION)
    pairs = [pd.DataFrame({"concept_id_1": [], "concept_id_2": []}, dtype=int)]
    if table is not None:
        table = table.filter(table.relationship_id == "Maps to")
        table = table.select("concept_id_1", "concept_id_2")
        pairs += [
            database.fetch(table.filter(table[column].isin(chunk)), "concepts that map to others")
            for chunk in _chunks(concepts)
        ]
    return pd.concat(pairs, ignore_index=True)


def _standard_concepts(database: Database, used: Iterable[int]) -> dict[int, set[int]]:
    """{source concept: the others that it maps to}."""
    same_as: dict[int, set[int]] = defaultdict(set)
    for one, two in _maps_to(database, "concept_id_1", used).itertuples(index=False):
        if one != two:
            same_as[int(one)].add(int(two))
    return same_as


def _holds(item: Item, concept: int, above: Mapping[int, set[int]]) -> bool:
    """Whether an item holds a concept; `above` has what is above it and those it maps to."""
    return any(
        (place == concept or item.mapped)
        and (place == item.concept_id or (item.descendants and item.concept_id in every))
        for place, every in above.items()
    )


def _through_ancestors(database: Database, targets: Iterable[int]) -> dict[int, set[int]] | None:
    """{descendant: targets above it}, or None if the table is absent or empty."""
    table = database.has(ANCESTOR)
    if table is None:
        return None
    table = table.select("ancestor_concept_id", "descendant_concept_id")
    if not len(database.fetch(table.limit(1), "whether concept_ancestor has rows")):
        return None
    links: dict[int, set[int]] = defaultdict(set)
    for chunk in _chunks(targets):
        part = table.filter(table.ancestor_concept_id.isin(chunk))
        for row in database.fetch(part, "concepts below those of the map").itertuples(index=False):
            links[int(row.descendant_concept_id)].add(int(row.ancestor_concept_id))
    return links


def _through_relations(
    database: Database, targets: set[int], used: set[int]
) -> dict[int, set[int]]:
    """{concept: targets above it}, step by step from products to ingredients."""
    table = database.has(RELATION)
    if table is None:
        return {}
    table = table.filter(table.relationship_id.isin(_UPWARD))
    table = table.select("concept_id_1", "concept_id_2").distinct()
    above: dict[int, set[int]] = defaultdict(set)
    frontier, seen = used - {0}, {0}
    for _ in range(_DEPTH):
        if not frontier:
            break
        seen |= frontier
        reached: set[int] = set()
        for chunk in _chunks(frontier):
            part = table.filter(table.concept_id_1.isin(chunk))
            found = database.fetch(part, "from drug products to ingredients")
            for one, two in found.itertuples(index=False):
                above[int(one)].add(int(two))
                reached.add(int(two))
        frontier = reached - seen - targets  # nothing above an ingredient of the map is needed
    links: dict[int, set[int]] = {}
    for concept in used:
        places, visited = {concept}, {concept}
        while places:
            places = {b for a in places - targets for b in above.get(a, ())} - visited
            visited |= places
        if hit := (visited & targets):
            links[concept] = hit
    return links


def _drop_wider(links: dict[int, set[int]], codes: Mapping[int, str]) -> None:
    """Of ATC groups one within the other only the narrower counts, as the longer prefix does."""
    for concept, above in links.items():
        narrow = {codes[a] for a in above & codes.keys()}
        wider = {
            a
            for a in above & codes.keys()
            if any(other != codes[a] and other.startswith(codes[a]) for other in narrow)
        }
        if wider:
            links[concept] = above - wider


def _check_reached(
    database: Database,
    known: DrugMap,
    items: Iterable[Item],
    reached: set[int],
    *,
    by_relation: bool,
) -> None:
    """A concept set of which neither a concept nor a descendant is known is a mistake.

    Where only relationships are known, an unused set is not an error if its concepts exist.
    """
    included = [item for item in items if not item.excluded]
    if by_relation:
        concept = database.table("concept", "concept_id")
        part = concept.filter(concept.concept_id.isin(sorted({i.concept_id for i in included})))
        found = database.fetch(part, "whether the concepts of the sets exist")["concept_id"]
        reached = reached | {int(c) for c in found}
    for state in known.states:
        if not reached & {item.concept_id for item in included if item.state == state}:
            asked = known.table.loc[known.table["class"] == state, "drug"]
            raise InputError(
                f"the concept set of {state!r} ({some(asked)}) has no descendants in "
                f"{database.name}, and no record has one of its concepts; check the ids and codes, "
                "and that the vocabulary tables are loaded."
            )


def _chunks(concepts: Iterable[int]) -> Iterable[list[int]]:
    ordered = sorted(int(c) for c in concepts)
    return (ordered[i : i + _CHUNK] for i in range(0, len(ordered), _CHUNK))
