"""A federated study of three hospitals with Markov chains, in folders of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import font
import mmlca
from font.exchange.messages.refinement import read_step, read_sums, share

STUDY = "ra switching"
SITES = {"north": 500, "south hospital": 400, "west": 300}
CHAINS = mmlca.MarkovParams(
    [0.5, 0.5],
    [[0.8, 0.15, 0.05], [0.2, 0.3, 0.5]],
    [
        [[0.85, 0.1, 0.05], [0.4, 0.5, 0.1], [0.4, 0.1, 0.5]],
        [[0.4, 0.3, 0.3], [0.1, 0.8, 0.1], [0.05, 0.05, 0.9]],
    ],
)
SHARES = {"north": 0.8, "south hospital": 0.5, "west": 0.3}


def sequences_of(site: str) -> mmlca.Sequences:
    share, n = SHARES[site], SITES[site]
    chains = mmlca.MarkovParams([share, 1 - share], CHAINS.initial, CHAINS.transition)
    drawn, _ = mmlca.simulate(chains, n, 8, seed=n)
    return mmlca.Sequences.from_codes(
        drawn.codes, ["a", "b", "c"], ids=[f"PID{n}{i:05d}" for i in range(n)]
    )


def hospital(root: Path, site: str, min_count: int, **changes: Any) -> mmlca.Hospital:
    settings: dict[str, Any] = {
        "sequences": sequences_of(site),
        "folder": root / site,
        "n_classes": 2,
        "starts": 4,
        "min_count": min_count,
        "floor": min_count,
    }
    return mmlca.Hospital(study=STUDY, site=site, **(settings | changes))


def hospitals(
    root: Path, min_count: int, data: Mapping[str, mmlca.Sequences] | None, **changes: Any
) -> dict[str, mmlca.Hospital]:
    """All three, with other patients or settings if they are given."""
    parts = {} if data is None else {site: {"sequences": part} for site, part in data.items()}
    return {
        site: hospital(root, site, min_count, **parts.get(site, {}), **changes) for site in SITES
    }


def combined(
    root: Path, min_count: int, data: Mapping[str, mmlca.Sequences] | None = None, **changes: Any
) -> Path:
    """Fit, label, combine: the ensemble file."""
    homes = hospitals(root, min_count, data, **changes)
    models = [path for home in homes.values() for path in home.fit()]
    labels = [home.label(models) for home in homes.values()]
    files = font.read_models(models)
    parts = [font.read_labels(path, files) for path in labels]
    ensemble, _ = font.combine(files, parts, n_clusters=2)
    font.write_ensemble(root / "ensemble.json", ensemble, files, font.Header(study=STUDY))
    return root / "ensemble.json"


def refine_by_files(
    root: Path,
    min_count: int,
    rounds: int | str,
    data: Mapping[str, mmlca.Sequences] | None = None,
) -> dict[str, Any]:
    """All steps; the last shared file and each site's table."""
    homes = hospitals(root, min_count, data)
    source = root / "ensemble.json"
    while True:
        results = {site: home.refine(source) for site, home in homes.items()}
        before = read_step(source)
        if before.shared is not None and before.shared.last:
            return {"shared": before.shared, "tables": {s: r.clusters for s, r in results.items()}}
        parts = [read_sums(result.sums) for result in results.values()]
        source = root / f"shared-{before.step}.json"
        share(before, parts, font.Header(study=STUDY), rounds=rounds, path=source)
