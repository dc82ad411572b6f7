"""The *labels* message, site → centre: cross-tables of the labels that all models give patients.

The payload is:

=================== =========================================================================
models              list of {name, fingerprint}, in order
min_count           the unit of the counts, a multiple of that of the study if there are many models
classes             for each model, the patients in each of its classes
tables              for each class of the first model, the second and so on up to the last but
                    one: how many of its patients are in each class of every later model, a text of
                    counts with spaces between them
=================== =========================================================================

The *masked labels* message takes its place in secure sums, see `font.exchange.masked`: exact
cross-tables under masks. `of` is the fingerprint of the list of models (SHA-256 of {name:
fingerprint}). The values are, for each class of each model, its patients, then its patients by the
labels of every later model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from font.checks import Floats, some
from font.errors import InputError
from font.exchange.disclosure import (
    MIN_COUNT,
    Draws,
    SecretDraws,
    hints_of_counts,
    label_unit,
    round_counts,
    rounding_in_words,
    shared_draws,
    unrounded,
)
from font.exchange.envelope import Header, read_file, write_file
from font.exchange.fields import (
    ALL_SITES,
    MOST_CLASSES_IN_ALL,
    MOST_MODELS,
    Hash,
    Least,
    Name,
    Path_,
    Patients,
    Source,
    Strict,
    misfit,
    name_of,
    size,
)
from font.exchange.masked import (
    MaskedFile,
    MaskedPayload,
    add_masked,
    check_masked,
    explain_masked,
    write_masked,
)
from font.exchange.messages.model import ModelFile, check_study_of, list_fingerprint
from font.exchange.registry import Message
from font.labels import CrossTables


class ModelName(Strict):
    """A model that a labels file refers to."""

    name: Name
    fingerprint: Hash


# counts with spaces between them: hundreds of thousands are read ten times as fast as a JSON list
CountsText = Annotated[str, Field(pattern=r"^[0-9]{1,10}( [0-9]{1,10})*$")]


class LabelsPayload(Strict):
    """A site's cross-tables of labels."""

    models: Annotated[list[ModelName], size(1, MOST_MODELS)]
    min_count: Least
    classes: Annotated[list[Patients], size(1, MOST_MODELS)]
    tables: Annotated[list[CountsText], size(0, MOST_CLASSES_IN_ALL)]


class LabelsFile(NamedTuple):
    """A site's cross-tables as they were written, rounded."""

    tables: CrossTables
    data: bytes


def write_labels(
    path: Path_ | None,
    tables: CrossTables,
    models: Mapping[str, ModelFile],
    header: Header,
    *,
    min_count: int = MIN_COUNT,
    draws: Draws | None = None,
) -> LabelsFile:
    """Write a site's cross-tables of labels, every count rounded at random.

    With more than five models the unit is a multiple of `min_count`, see
    `font.exchange.disclosure.label_unit`.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    tables : CrossTables
        Of this site alone, exact: `CrossTables.from_labels({site: table}, n_classes)`.
    models : {name: ModelFile}
        Those that labelled, as `read_models` gives them.
    """
    check_study_of(models, header.study)
    exact = own_table(tables, models, header.site)
    cuts = tables.offsets
    unit = label_unit(min_count, len(models))
    rounded = round_counts(exact, unit, shared_draws(exact, cuts, draws or SecretDraws()))
    blocks = [slice(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    payload = {
        "models": [{"name": m.name, "fingerprint": m.fingerprint} for m in models.values()],
        "min_count": unit,
        "classes": [np.diag(rounded)[block].tolist() for block in blocks],
        "tables": [
            " ".join(map(str, rounded[row, block.stop :].tolist()))
            for block in blocks[:-1]
            for row in range(block.start, block.stop)
        ],
    }
    sent = write_file(path, "labels", payload, header).data
    shown = CrossTables(tables.models, tables.n_classes, {header.site: rounded.astype(float)})
    return LabelsFile(shown, sent)


def own_table(tables: CrossTables, models: Mapping[str, ModelFile], site: str) -> Floats:
    """The exact table of a site, refused if there are others or it was made with other models."""
    if [str(name) for name in tables.tables] != [site]:
        raise InputError(
            f"a site releases its own counts only; {site!r} found the sites {some(tables.tables)}."
        )
    if tables.models != tuple(models):
        raise InputError("the tables were made with other models than those given; label again.")
    (exact,) = tables.tables.values()
    return np.asarray(exact, dtype=float)


def read_labels(
    source: Source,
    models: Mapping[str, ModelFile],
    header: Header | None = None,
    *,
    min_count: int = 1,
) -> CrossTables:
    """Read a site's cross-tables, which must have been made with just these models."""
    file = read_file(source, header, kind="labels", min_count=min_count)
    payload, path = file.payload, name_of(source)
    theirs = [(row["name"], row["fingerprint"]) for row in payload["models"]]
    ours = [(model.name, model.fingerprint) for model in models.values()]
    if theirs != ours:
        other = [name for name, _ in set(theirs) ^ set(ours)] or [name for name, _ in theirs]
        raise InputError(
            f"{path} was made with other models than these (they differ in "
            f"{some(sorted(set(other)))}); have the site label again with the model files that "
            "all sites use."
        )
    sizes = tuple(len(part) for part in payload["classes"])
    if sizes != tuple(model.n_classes for model in models.values()):
        raise InputError(f"{path} has other numbers of classes than its models; label again.")
    total = np.diag(np.concatenate(payload["classes"]).astype(float))
    if len(sizes) > 1:
        total[later_models(sizes)] = _counts(payload["tables"])
        total += np.triu(total, 1).T
    return CrossTables(tuple(models), sizes, {file.site: total})


def later_models(sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Which cells of S = ZᵀZ are in a labels file besides class sizes: each pair of models once."""
    model = np.repeat(np.arange(len(sizes)), sizes)
    return np.asarray(model[:, None] < model)


# --- what the reader checks -------------------------------------------------------------------


def _check(payload: Mapping[str, Any], site: str, origin: str) -> None:
    names = [row["name"] for row in payload["models"]]
    if len(set(names)) != len(names):
        raise misfit(origin, f"it names the models {some(names)} with repeats")
    classes, tables, unit = payload["classes"], payload["tables"], payload["min_count"]
    sizes = [len(part) for part in classes]
    if len(classes) != len(names) or sum(sizes) > MOST_CLASSES_IN_ALL:
        raise misfit(
            origin,
            f"it has {len(names)} models, {len(classes)} lists of class sizes and {sum(sizes)} "
            f"classes, of which {MOST_CLASSES_IN_ALL} are possible",
        )
    totals = np.array([sum(part) for part in classes])
    wrong = next((w for part in classes if (w := unrounded(part, unit))), None)
    if wrong is None and totals.max() - totals.min() > 2 * max(sizes) * unit:
        wrong = f"class sizes that sum to {totals.min():,} and to {totals.max():,}"
    if wrong is None:
        cells = _counts(tables)
        sent = later_models(sizes)
        if len(tables) != sum(sizes[:-1]) or len(cells) != sent.sum():
            wrong = f"{len(cells):,} counts in {len(tables):,} rows of tables"
        else:
            wrong = unrounded(cells, unit) or _find_count_mismatch(
                cells, sent, sizes, totals, names, unit
            )
    if wrong is not None:
        raise misfit(origin, f"it has {wrong}")


def _find_count_mismatch(
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


def _counts(rows: list[str]) -> NDArray[np.int64]:
    """The counts in the tables of a labels file, in the order of `later_models`."""
    return _numbers(" ".join(rows))


@lru_cache(maxsize=1)  # they are checked first and used then
def _numbers(text: str) -> NDArray[np.int64]:
    numbers = np.fromstring(text, dtype=np.int64, sep=" ")
    numbers.flags.writeable = False
    return numbers


# --- in words ---------------------------------------------------------------------------------


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    n, unit = len(payload["models"]), payload["min_count"]
    cells = sum(map(len, payload["classes"]))
    cells += sum(row.count(" ") + 1 for row in payload["tables"])
    contains = [
        f"the names and fingerprints of {n} models",
        f"for each model how many patients are in each class, and for each of {n * (n - 1) // 2:,} "
        f"pairs of models how many patients have which two labels: {cells:,} counts",
        rounding_in_words(unit),
    ]
    reveals = [
        "about how many patients of the site follow which kind of course, as the models see it; "
        "never how many have which combination of more than two labels",
        *hints_of_counts(unit),
        f"a patient contributes to {n * (n + 1) // 2:,} of the counts; all of them together reveal "
        "little about such a person where there are two models, but much with twenty",
    ]
    return contains, reveals


MESSAGE = Message(
    payload=LabelsPayload,
    explain=_explain,
    check=_check,
    shown=lambda payload: {**payload, "tables": [row.split() for row in payload["tables"]]},
)


# --- under masks ------------------------------------------------------------------------------

_MASKED = "masked labels"


def write_masked_labels(
    path: Path_ | None,
    tables: CrossTables,
    models: Mapping[str, ModelFile],
    secret: bytes,
    keys: Mapping[str, str],
    header: Header,
    *,
    min_count: int = MIN_COUNT,
) -> MaskedFile:
    """Write a site's exact cross-tables of labels, masked; see `write_labels` and `masked.mask`."""
    exact = own_table(tables, models, header.site)
    whole = np.rint(exact[_sent_cells(tables.n_classes)]).astype(np.int64)
    of = list_fingerprint(models)
    return write_masked(path, _MASKED, whole, secret, keys, header, of=of, min_count=min_count)


def sum_of_labels(parts: Iterable[MaskedFile], models: Mapping[str, ModelFile]) -> CrossTables:
    """All sites' cross-tables together, rounded, as the table of one site, "all sites".

    No site's own can be read from them. The same files are rounded alike every time, with draws
    that only those can repeat who have all of them.
    """
    sizes = tuple(model.n_classes for model in models.values())
    sent = _sent_cells(sizes)
    total = add_masked(parts)
    total.check(_MASKED, list_fingerprint(models), int(sent.sum()))
    exact = np.zeros(sent.shape)
    exact[sent] = total.values
    exact += np.triu(exact, 1).T
    _check_tables_consistent(exact, sizes)
    seed = hashlib.sha256("".join(total.fingerprints.values()).encode()).digest()
    offsets = np.cumsum([0, *sizes])
    draws = shared_draws(exact, offsets, SecretDraws(seed, "labels"))
    rounded = round_counts(exact, total.min_count, draws)
    return CrossTables(tuple(models), sizes, {ALL_SITES: rounded.astype(float)})


def _sent_cells(sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Which cells of S are sent: the sizes of classes, and the pairs of models once."""
    sent = later_models(sizes)
    np.fill_diagonal(sent, True)
    return sent


def _check_tables_consistent(exact: Floats, sizes: Sequence[int]) -> None:
    """Refuse exact tables in which a pair of models does not count every patient of a class."""
    by_model = np.add.reduceat(exact, np.cumsum([0, *sizes])[:-1], axis=1)
    if (by_model != np.diag(exact)[:, None]).any():
        raise InputError(
            "the sum of the masked tables does not fit together: a site changed its numbers or its "
            "key; have all sites answer again, in a new round of the study."
        )


MASKED = Message(payload=MaskedPayload, explain=explain_masked, check=check_masked)
