"""The *masked labels* message, site → centre: exact cross-tables of labels under masks.

It takes the place of a labels file in secure sums, see `font.exchange.masked`. `of` is the
fingerprint of the list of models (SHA-256 of {name: fingerprint}). The values are, for each class
of each model, its patients, then its patients by the labels of every later model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from font.cross_tables import CrossTables
from font.errors import InputError
from font.exchange.disclosure import MIN_COUNT, SecretDraws, round_counts, shared_draws
from font.exchange.fields import ALL_SITES
from font.exchange.header import Header
from font.exchange.masked import (
    MaskedFile,
    MaskedPayload,
    add_masked,
    check_length,
    check_masked,
    explain_masked,
    write_masked,
)
from font.exchange.messages.labels import later_models, own_table
from font.exchange.messages.model import ModelFile, list_fingerprint
from font.exchange.parse import Path_
from font.exchange.registry import Message

KIND = "masked labels"


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
    """Write a site's exact cross-tables of labels, masked.

    Parameters
    ----------
    path, tables, models, header, min_count
        As in `write_labels`.
    secret, keys
        As in `font.exchange.masked.mask`.
    """
    exact = own_table(tables, models, header.site)
    whole = np.rint(exact[_sent_cells(tables.n_classes)]).astype(np.int64)
    of = list_fingerprint(models)
    return write_masked(path, KIND, whole, secret, keys, header, of=of, min_count=min_count)


def sum_of_labels(parts: Iterable[MaskedFile], models: Mapping[str, ModelFile]) -> CrossTables:
    """All sites' cross-tables together, rounded; no site's own can be read from them.

    Parameters
    ----------
    parts : MaskedFile of every site of the set, such as an iterator that reads one after the other
    models : {name: ModelFile}
        Those that all sites labelled with.

    Returns
    -------
    CrossTables
        With the sum as the table of one site, "all sites". The same files are rounded alike every
        time, with draws that only those can repeat who have all of them.
    """
    total = add_masked(parts)
    if total.kind != KIND or total.of != list_fingerprint(models):
        raise InputError(
            "the masked files were made with other models than these; have the sites label again "
            "with the model files that all sites use."
        )
    sizes = tuple(model.n_classes for model in models.values())
    sent = _sent_cells(sizes)
    check_length(total, int(sent.sum()), "mmlca site label --secure")
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


def _check_tables_consistent(exact: NDArray[np.float64], sizes: Sequence[int]) -> None:
    """Refuse exact tables in which a pair of models does not count every patient of a class."""
    by_model = np.add.reduceat(exact, np.cumsum([0, *sizes])[:-1], axis=1)
    if (by_model != np.diag(exact)[:, None]).any():
        raise InputError(
            "the sum of the masked tables does not fit together: a site changed its numbers or its "
            "key; have all sites answer again, in a new round of the study."
        )


MESSAGE = Message(payload=MaskedPayload, explain=explain_masked, check=check_masked)
