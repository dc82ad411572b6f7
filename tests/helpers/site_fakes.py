"""A small study of three sites with K-means, for the tests of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

import font
from font.exchange.envelope import file_name
from font.exchange.masked import read_mask_keys, write_mask_key
from font.exchange.messages.labels import write_masked_labels
from font.exchange.replies import Reply, in_memory

NAMES = ("north", "south", "west")


class SmallSite:
    """What a hospital does, on made-up numbers."""

    def __init__(self, site: str, folder: Path, study: str = "ra", columns: int = 2) -> None:
        self.site, self.folder = site, folder / site
        self.header = font.Header(study=study, site=site)
        self.secret = site.encode().ljust(32, b"-")
        rng = np.random.default_rng(sum(site.encode()))
        centres = np.array([[0.0] * columns, [6.0] * columns])
        self.data = centres[rng.integers(2, size=200)] + rng.normal(size=(200, columns))

    def fit(self) -> list[Path]:
        model = KMeans(2, n_init=3, random_state=1).fit(self.data)
        path = self.folder / file_name(self.site, "model")
        font.write_model(path, model, self.data, self.header, draws=np.random.default_rng(1))
        return [path]

    def mask_key(self) -> Path:
        path = self.folder / file_name(self.site, "key")
        write_mask_key(path, self.secret, self.header)
        return path

    def label(self, models: Sequence[bytes], *, secure: Sequence[bytes] | None = None) -> Path:
        files = font.read_models(models, self.header)
        labels = font.label({name: file.model for name, file in files.items()}, self.data)
        path = self.folder / file_name(self.site, "labels")
        sizes = {name: file.n_classes for name, file in files.items()}
        tables = font.CrossTables.from_labels({self.site: labels}, sizes)
        if secure is not None:
            keys = read_mask_keys(secure)
            write_masked_labels(path, tables, files, self.secret, keys, self.header)
            return path
        draws = np.random.default_rng(2)
        font.write_labels(path, tables, files, self.header, draws=draws)
        return path

    def assign(self, ensemble: bytes) -> None:
        result = font.read_ensemble(ensemble, self.header)
        models = {name: file.model for name, file in result.models.items()}
        self.clusters = result.ensemble.predict(font.label(models, self.data)).to_numpy()


def sites_in(folder: Path) -> dict[str, SmallSite]:
    return {f"node {i}": SmallSite(site, folder) for i, site in enumerate(NAMES)}


def in_process(
    sites: dict[str, SmallSite], twist: Callable[[str, Reply], Reply] = lambda step, reply: reply
) -> Callable[[str, Sequence[bytes], Sequence[str] | None], list[Reply]]:
    """Asks the sites one after the other; `twist` may change a reply on its way."""

    def ask(step: str, files: Sequence[bytes], senders: Sequence[str] | None) -> list[Reply]:
        return [twist(step, reply) for reply in in_memory(sites)(step, files, senders)]

    return ask
