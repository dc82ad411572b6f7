"""Whether the numbers of a payload fit together, once its fields have the right form."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from font.checks import some
from font.ensemble import Ensemble
from font.errors import InputError
from font.exchange.fields import MOST_CLASSES_IN_ALL, MOST_WORK
from font.exchange.parse import shorten
from font.exchange.privacy import unrounded, unrounded_sums
from font.exchange.registry import kind_of

# the standard errors that a file may have: twelve for each power of ten, in about equal ratios
ERRORS = np.array(
    [
        float(f"{digits}e{power}")
        for power in range(-6, 5)
        for digits in (1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2)
    ]
)


def validated(schema: type[Any], content: Any, origin: str, prefix: str = "") -> Any:
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = prefix + ".".join(shorten(part, 40).strip("'") for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")[:200].rstrip(".")
        raise InputError(
            f"{origin} does not fit the specification at {where} ({message}); ask the sender to "
            "write it again."
        ) from None


def model_rules(
    payload: Mapping[str, Any], site: str, origin: str, prefix: str = "payload."
) -> None:
    content, name = payload["model"], payload["name"]
    if name.partition("/")[0] != site:
        raise _unfit(origin, f"its model {name!r} does not carry the name of the site {site!r}")
    tried = [row["n_classes"] for row in payload["bic"]]
    if len(set(tried)) != len(tried):
        raise _unfit(origin, "it has two values of BIC for one number of classes")
    try:
        kind = kind_of(content.get("format"))
    except ValueError as error:
        raise InputError(f"{origin}: {error}") from None
    validated(kind.schema, content, origin, f"{prefix}model.")
    names = kind.variables(content)
    if len(set(names)) != len(names):
        raise _unfit(origin, f"its model names {some(names)} with repeats")
    k = len(content["patients"])
    if k * k * _n_parameters(content) > MOST_WORK:
        raise _unfit(
            origin, f"{k} classes over {len(names)} variables are more than can be compared"
        )
    wrong = kind.unfit(content, payload["min_count"])
    if wrong is not None:
        raise _unfit(origin, wrong)


def _n_parameters(content: Any) -> int:
    """An upper bound for the numbers per class: the numbers in the whole content, over K."""

    def count(value: Any) -> int:
        if isinstance(value, list):
            nested = bool(value) and isinstance(value[0], (list, dict))
            return sum(map(count, value)) if nested else len(value)
        return sum(map(count, value.values())) if isinstance(value, dict) else 0

    return -(-count(content) // len(content["patients"]))


def labels_rules(payload: Mapping[str, Any], site: str, origin: str) -> None:
    names = [row["name"] for row in payload["models"]]
    if len(set(names)) != len(names):
        raise _unfit(origin, f"it names the models {some(names)} with repeats")
    classes, tables, unit = payload["classes"], payload["tables"], payload["min_count"]
    sizes = [len(part) for part in classes]
    if len(classes) != len(names) or sum(sizes) > MOST_CLASSES_IN_ALL:
        raise _unfit(
            origin,
            f"it has {len(names)} models, {len(classes)} lists of class sizes and {sum(sizes)} "
            f"classes, of which {MOST_CLASSES_IN_ALL} are possible",
        )
    totals = np.array([sum(part) for part in classes])
    wrong = next((w for part in classes if (w := unrounded(part, unit))), None)
    if wrong is None and totals.max() - totals.min() > 2 * max(sizes) * unit:
        wrong = f"class sizes that sum to {totals.min():,} and to {totals.max():,}"
    if wrong is None:
        cells = label_counts(tables)
        sent = later_models(sizes)
        if len(tables) != sum(sizes[:-1]) or len(cells) != sent.sum():
            wrong = f"{len(cells):,} counts in {len(tables):,} rows of tables"
        else:
            wrong = unrounded(cells, unit) or _unlike(cells, sent, sizes, totals, names, unit)
    if wrong is not None:
        raise _unfit(origin, f"it has {wrong}")


def _unlike(
    cells: NDArray[np.int64],
    sent: NDArray[np.bool_],
    sizes: list[int],
    totals: NDArray[np.int64],
    names: list[str],
    unit: int,
) -> str | None:
    """A table that counts more or fewer patients than there are; None if all fit."""
    whole = np.zeros(sent.shape, dtype=np.int64)
    whole[sent] = cells
    starts = np.cumsum([0, *sizes[:-1]])
    counted = np.add.reduceat(np.add.reduceat(whole, starts, axis=0), starts, axis=1)
    room = (np.outer(sizes, sizes) + np.array(sizes)[:, None]) * unit  # what rounding may change
    off = np.triu(np.abs(counted - totals[:, None]) > room, 1)
    if not off.any():
        return None
    t, s = np.argwhere(off)[0]
    return (
        f"a table of {names[t]!r} and {names[s]!r} with {counted[t, s]:,} patients where "
        f"{totals[t]:,} are counted"
    )


def label_counts(rows: list[str]) -> NDArray[np.int64]:
    """The counts in the tables of a labels file, in the order of `later_models`."""
    return _numbers(" ".join(rows))


@lru_cache(maxsize=1)  # they are checked first and used then
def _numbers(text: str) -> NDArray[np.int64]:
    numbers = np.fromstring(text, dtype=np.int64, sep=" ")
    numbers.flags.writeable = False
    return numbers


def later_models(sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Which cells of S = ZᵀZ are in a labels file besides class sizes: each pair of models once."""
    model = np.repeat(np.arange(len(sizes)), sizes)
    return np.asarray(model[:, None] < model)


def ensemble_rules(payload: Mapping[str, Any], site: str, origin: str) -> None:
    models, part = payload["models"], payload["ensemble"]
    names = [model["name"] for model in models]
    if len(set(names)) != len(names):
        raise _unfit(origin, f"the models {some(names)} come with repeats")
    if names != part["models"]:
        raise _unfit(origin, "its ensemble names other models than those it carries")
    if sum(part["n_classes"]) > MOST_CLASSES_IN_ALL:
        raise _unfit(origin, f"its models have {sum(part['n_classes']):,} classes in all")
    for i, model in enumerate(models):
        prefix = f"payload.models.{i}."
        model_rules(model, model["name"].partition("/")[0], origin, prefix)
    variables = [kind_of(m["model"]["format"]).variables(m["model"]) for m in models]
    if any(names != variables[0] for names in variables):
        raise _unfit(origin, "its models do not all have the same states")
    if [len(model["model"]["patients"]) for model in models] != part["n_classes"]:
        raise _unfit(origin, "its n_classes are not those of its models")
    if len(set(part["sites"])) != len(part["sites"]):
        raise _unfit(origin, f"the sites {some(part['sites'])} come with repeats")
    choice = part["n_clusters_choice"]
    kinds = [isinstance(value, str) for value in choice]
    if kinds != [False, False, False, True] or not isinstance(choice[0], int):
        raise _unfit(origin, "its n_clusters_choice is not a number, two shares and a word")
    if not 1 <= choice[0] <= sum(part["n_classes"]) + 1:
        raise _unfit(origin, f"its n_clusters_choice says {choice[0]} clusters")
    if max(part["votes"]) >= len(part["centres"]):
        raise _unfit(origin, "its votes are for clusters that it does not have")
    try:
        Ensemble.from_dict(part)
    except ValueError as error:
        raise InputError(f"{origin}: {error}") from None


def sums_rules(payload: Mapping[str, Any], site: str, origin: str) -> None:
    try:
        kind_of(payload["format"])
    except ValueError as error:
        raise InputError(f"{origin}: {error}") from None
    sums = _rectangle(payload["sums"], origin)
    unit, scale = payload["min_count"], payload["scale"]
    wrong = unrounded_sums(sums, scale, payload["per_patient"], unit)
    if wrong is not None:
        raise _unfit(origin, f"it has {wrong}")


def shared_rules(payload: Mapping[str, Any], site: str, origin: str) -> None:
    content, unit = payload["model"], payload["min_count"]
    part = {"name": "shared", "bic": [], "min_count": unit, "model": content}
    model_rules(part, "shared", origin)
    kind = kind_of(content["format"])
    if kind.n_statistics is None:
        raise _unfit(origin, f"a {kind.name} cannot be refined by exchanging files")
    sums, width = _rectangle(payload["sums"], origin), kind.n_statistics(content)
    if sums.shape[1] != width:
        raise _unfit(origin, f"it has {sums.shape[1]} sums per cluster in place of {width}")
    if sums.shape[0] ** 2 * width > MOST_WORK:
        raise _unfit(origin, f"{len(sums)} clusters are more than can be compared")
    if (sums[:, 0] <= 0).any():
        raise _unfit(origin, "it has a cluster without patients")
    if len(set(payload["sites"])) != len(payload["sites"]):
        raise _unfit(origin, f"the sites {some(payload['sites'])} come with repeats")


def masked_rules(payload: Mapping[str, Any], site: str, origin: str) -> None:
    names = [row["site"] for row in payload["sites"]]
    if names != sorted(set(names)):
        raise _unfit(origin, f"the sites {some(names)} come with repeats or not in order")
    if site not in names:
        raise _unfit(origin, f"{site!r} is not one of the sites {some(names)} of its masks")
    try:
        masked_values(payload["values"])
    except ValueError:
        raise _unfit(origin, "its values are not 64-bit numbers in base64") from None


def masked_values(text: str) -> NDArray[np.uint64]:
    """The numbers of a masked file."""
    data = base64.b64decode(text.encode("ascii"), validate=True)
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)


def _rectangle(rows: list[list[int]], origin: str) -> NDArray[np.int64]:
    if len({len(row) for row in rows}) > 1:
        raise _unfit(origin, "its sums have rows of unequal length")
    return np.array(rows, dtype=np.int64)


def effects_rules(payload: Mapping[str, Any], site: str, origin: str) -> None:
    names = [part["name"] for part in payload["variables"]]
    for part in (names, payload["terms"], payload["clusters"]):
        if len(set(part)) != len(part):
            raise _unfit(origin, f"it names {some(part)} with repeats")
    size = len(payload["terms"]) * len(payload["clusters"])
    for part in ("estimates", "errors"):
        if len(payload[part]) != size:
            raise _unfit(origin, f"it has {len(payload[part]):,} {part} in place of {size:,}")
    for value, error in zip(payload["estimates"], payload["errors"], strict=True):
        if error not in ERRORS:
            raise _unfit(origin, f"the standard error {error:g} is none that may be written")
        if abs(value / error) > 1e9 or abs(value / error - round(value / error)) > 1e-6:
            raise _unfit(origin, f"the effect {value:g} is no multiple of its error {error:g}")


RULES = {
    "model": model_rules,
    "labels": labels_rules,
    "ensemble": ensemble_rules,
    "sums": sums_rules,
    "shared": shared_rules,
    "key": lambda payload, site, origin: None,
    "masked": masked_rules,
    "effects": effects_rules,
}


def _unfit(origin: str, wrong: str) -> InputError:
    return InputError(f"{origin} does not fit together: {wrong}; ask the sender to write it again.")
