"""A small study of two sites with latent class models, as exchange files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import font
from font.exchange.envelope import write_file
from font.exchange.messages.refinement import Question, SumsFile, answer, read_step, share
from font.exchange.rounds import combine
from font.refinement import one_class

STUDY, SITES = "ra", ("north", "south")


def answers(seed: int, n: int = 300) -> pd.DataFrame:
    """Answers of two groups of people to three questions."""
    rng = np.random.default_rng(seed)
    group = rng.integers(2, size=n)
    right = rng.random((n, 3)) < 0.9
    given = np.where(right, group[:, None], 1 - group[:, None])
    words = np.array(["no", "yes"])
    return pd.DataFrame(words[given], columns=["pain", "fever", "rash"])


def fitted(seed: int) -> tuple[font.LatentClass, pd.DataFrame]:
    data = answers(seed)
    return font.LatentClass(2, n_init=3, seed=1).fit(data), data


def write_study(folder: Path) -> Path:
    """Two models of each of two sites, labels, the ensemble, and a refinement's first step."""
    draws = np.random.default_rng(1)
    models = {}
    for seed, name in enumerate(f"{site}/{i}" for site in SITES for i in (1, 2)):
        model, data = fitted(seed)
        models[name] = font.write_model(
            folder / f"{name.replace('/', '-')}.model.json",
            model,
            data,
            font.Header(study=STUDY, site=name.partition("/")[0], created="2026-01-02"),
            name=name,
            bic={1: 110.2, 2: 9.0},
            draws=draws,
        )
    parts = []
    for seed, site in enumerate(SITES):
        table = font.label({name: file.model for name, file in models.items()}, answers(seed))
        tables = font.CrossTables.from_labels({site: table}, dict.fromkeys(models, 2))
        sent = font.write_labels(
            folder / f"{site}.labels.json",
            tables,
            models,
            font.Header(study=STUDY, site=site),
            draws=draws,
        )
        parts.append(sent.tables)
    ensemble, _ = combine(models, parts, n_clusters=2, method="latent")
    font.write_ensemble(folder / "ensemble.json", ensemble, models, font.Header(study=STUDY))
    before = read_step(folder / "ensemble.json")
    files = {name: file.model for name, file in models.items()}
    sums = []
    for seed, site in enumerate(SITES):
        data = answers(seed)
        clusters = ensemble.predict(font.label(files, data))
        everyone = one_class(files["north/1"], data)
        path = folder / f"{site}.sums-0.json"
        member = np.eye(2)[clusters]
        payload = answer(Question(before, everyone, data, member, draws=draws))
        header = font.Header(study=STUDY, site=site)
        sums.append(SumsFile(write_file(path, "sums", payload, header)))
    share(before, sums, font.Header(study=STUDY), rounds=1, path=folder / "shared-0.json")
    return folder
