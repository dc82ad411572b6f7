"""Speed and memory of the ensemble, as ratios measured in one run (CPU time)."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from memory import PEAK

import font

pytestmark = pytest.mark.bench


def case(n, n_models=8, k=4, accuracy=0.9, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(k, size=n, dtype=np.int8)
    table = np.empty((n_models, n), dtype=np.int8)
    for row in table:
        guess = rng.integers(k, size=n, dtype=np.int8)
        row[:] = np.where(rng.random(n, dtype=np.float32) < accuracy, truth, guess)
    names = [f"m{m}" for m in range(n_models)]
    models = {name: 3 * np.eye(k) + rng.normal(scale=0.3, size=(k, k)) for name in names}
    return models, pd.DataFrame(table.T, columns=names)


def combine(models, labels):
    patterns = font.LabelPatterns.from_labels({"here": labels})
    k = len(next(iter(models.values())))
    return font.Ensemble(k, seed=1).fit(models, patterns).predict(labels)


def dense(models, labels, k):
    """The paper's algorithm as written, with N×N matrices."""
    from sklearn.cluster import KMeans

    matrices = []
    for name, beta in models.items():
        delta = np.sqrt(((beta[:, None] - beta[None]) ** 2).sum(axis=2))
        matrices.append(delta[np.ix_(labels[name], labels[name])])
    norms = [np.linalg.norm(d) for d in matrices]
    cosines = np.array([[np.vdot(a, b) for a in matrices] for b in matrices])
    weights = np.abs(np.linalg.eigh(cosines / np.outer(norms, norms))[1][:, -1])
    combined = sum(w * d / n for w, d, n in zip(weights, matrices, norms, strict=True))
    return KMeans(k, n_init=20, random_state=0).fit_predict(combined)


def seconds(function, repeats):
    best = np.inf
    for _ in range(repeats):
        begin = time.process_time()
        function()
        best = min(best, time.process_time() - begin)
    return best


def test_hundreds_of_times_faster_than_dense_at_5000():
    from threadpoolctl import threadpool_limits

    models, labels = case(5_000, accuracy=0.95)
    fast = seconds(lambda: combine(models, labels), 5)
    with threadpool_limits(1):  # threads would only add to the dense version's CPU time
        begin = time.process_time()
        theirs = dense(models, labels, 4)
        slow = time.process_time() - begin
    score = font.compare_clusterings(theirs, combine(models, labels))["adjusted_rand_index"]
    print(
        f"\nN = 5,000: {1e3 * fast:.1f} ms, dense {slow:.1f} s, {slow / fast:,.0f} times, {score}"
    )
    assert score == 1
    assert slow / fast >= 300


def test_ten_million_patients_within_twenty_passes():
    models, labels = case(10_000_000)
    one_pass = seconds(lambda: np.bincount(labels["m0"].to_numpy()), 5)
    whole = seconds(lambda: combine(models, labels), 2)
    print(
        f"\n10 million × 8: {whole:.2f} s, one pass {one_pass:.3f} s, {whole / one_pass:.1f} passes"
    )
    assert whole / one_pass <= 20


def test_growth_is_linear_in_patients():
    sizes = [1_000_000, 2_000_000, 4_000_000, 8_000_000]
    models, labels = case(sizes[-1], accuracy=0.97)
    times = [seconds(lambda n=n: combine(models, labels[:n]), 3) for n in sizes]
    slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
    print(f"\ngrowth exponent {slope:.3f} ({', '.join(f'{t:.3f} s' for t in times)})")
    assert slope <= 1.05


def test_memory_is_at_most_twice_the_table():
    models, labels = case(5_000_000)
    combine(models, labels[:1000])
    table = int(labels.memory_usage(index=False).sum())
    tracemalloc.start()
    combine(models, labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"\npeak {peak / 1e6:.0f} MB for a table of {table / 1e6:.0f} MB")
    assert peak <= 2 * table


def test_mostly_distinct_rows_stay_within_patterns_times_classes():
    models, labels = case(1 << 16, n_models=50, k=5, accuracy=0.3)
    tracemalloc.start()
    begin = time.process_time()
    patterns = font.LabelPatterns.from_labels({"here": labels})
    font.Ensemble(5, seed=1).fit(models, patterns)
    spent = time.process_time() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    table = len(patterns) * 250 * 8
    print(
        f"\n{len(patterns):,} patterns × 250 classes: {spent:.1f} s, peak {peak / table:.1f} times "
        f"the {table / 1e6:.0f} MB of positions, N×N would be {math.ceil(8 * 4**16 / 1e9)} GB"
    )
    assert len(patterns) > 65_000
    assert peak <= 6 * table


# --- hundreds of models, from cross-tables --------------------------------------------------


def combine_tables(models, labels):
    sizes = {name: len(beta) for name, beta in models.items()}
    tables = font.CrossTables.from_labels({"here": labels}, sizes)
    ensemble = font.Ensemble(4, method="latent", seed=1).fit(models, tables)
    return ensemble.predict(labels)


def test_two_hundred_models_from_cross_tables():
    """100,000 patients × 200 models, against one product of matrices of the same size."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        combine_tables(*case(1_000, n_models=4))
        models, labels = case(100_000, n_models=200)
        spent = seconds(lambda: combine_tables(models, labels), 1)
        rows = np.zeros((800, 4_096), dtype=np.float32)
        product = seconds(lambda: rows @ rows.T, 3) * 100_000 / 4_096
        tracemalloc.start()
        clusters = combine_tables(models, labels)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    print(
        f"\n100,000 × 200: {spent:.2f} CPU s, {spent / product:.1f} products ZᵀZ, peak "
        f"{peak / 1e6:.0f} MB, {peak / (8 * 800**2):.0f} tables of (M·K)²"
    )
    assert clusters.nunique() == 4
    assert spent <= 20 * product
    assert peak <= 500e6


def test_growth_from_cross_tables_in_models_and_patients():
    from threadpoolctl import threadpool_limits

    slopes = {}
    with threadpool_limits(1):
        combine_tables(*case(1_000, n_models=4))
        for axis, grid in {
            "M": [(30_000, m) for m in (50, 100, 200)],
            "N": [(n, 50) for n in (50_000, 100_000, 200_000, 400_000)],
        }.items():
            times = []
            for n, n_models in grid:
                models, labels = case(n, n_models=n_models)
                times.append(seconds(lambda a=models, b=labels: combine_tables(a, b), 2))
            sizes = [m if axis == "M" else n for n, m in grid]
            slopes[axis] = np.polyfit(np.log(sizes), np.log(times), 1)[0]
            print(f"\nexponent in {axis}: {slopes[axis]:.2f} of", np.round(times, 2))
    assert slopes["M"] <= 2.1
    assert slopes["N"] <= 1.05


def test_tables_need_memory_for_tables_alone():
    """Beyond the labels: a few tables of (M·K)² numbers, however many patients there are."""
    peaks = []
    for n in (50_000, 200_000):
        models, labels = case(n, n_models=200)
        tracemalloc.start()
        font.CrossTables.from_labels({"here": labels}, dict.fromkeys(models, 4))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    print("\npeaks in tables of (M·K)²:", [round(peak / (8 * 800**2), 1) for peak in peaks])
    assert max(peaks) <= 1.2 * min(peaks)
    assert max(peaks) <= 8 * 8 * 800**2


def model_files(n_models, k=4, n=500):
    """The models of as many hospitals, one each."""
    from sklearn.cluster import KMeans

    data = np.random.default_rng(1).normal(size=(n, 2))
    fitted = KMeans(k, n_init=1, random_state=0).fit(data)
    return [
        font.write_model(None, fitted, data, font.Header(study="s", site=f"h{m}")).data
        for m in range(n_models)
    ]


def labels_file(models, site, k=4, n=500):
    """One hospital's cross-tables of the models' labels."""
    _, labels = case(n, n_models=len(models), k=k, seed=int(site[1:]))
    labels.columns = list(models)
    tables = font.CrossTables.from_labels({site: labels}, dict.fromkeys(models, k))
    return font.write_labels(None, tables, models, font.Header(study="s", site=site)).data


def test_reading_tables_grows_with_their_size():
    """Cross-tables of M models are M² numbers; a file of them is read in as many steps."""
    times = []
    for n_models in (50, 100, 200):
        models = font.read_models(model_files(n_models))
        data = labels_file(models, "h0")
        font.read_labels(data, models)
        times.append(seconds(lambda a=data, b=models: font.read_labels(a, b), 3))
    slope = np.polyfit(np.log([50, 100, 200]), np.log(times), 1)[0]
    words = ", ".join(f"{200 * t:.1f}" for t in times)
    print(f"\n200 files of 50, 100, 200 models: {words} CPU s; exponent {slope:.2f}")
    assert slope <= 2.3


COMBINE = """
import json, sys, time
from pathlib import Path
from threadpoolctl import threadpool_limits
import font

folder = Path(sys.argv[1])
models = font.read_models(sorted(folder.glob("*.model.json")))
files = sorted(folder.glob("*.labels.json"))
with threadpool_limits(1):
    for few in (2, len(files)):  # the first time for what is loaded and compiled
        before, begin = peak(), time.process_time()
        reading = [0.0]

        def parts():
            for path in files[:few]:
                start = time.process_time()
                part = font.read_labels(path, models)
                reading[0] += time.process_time() - start
                yield part

        ensemble, tables = font.combine(models, parts(), n_clusters=4)
        whole = time.process_time() - begin
sent = font.write_ensemble(None, ensemble, models, font.Header(study="s"))
print(json.dumps([len(tables.sizes), reading[0], whole, before, peak(), len(sent)]))
"""


def test_two_hundred_files_are_combined(tmp_path):
    """Real files in a process of their own: CPU time, and memory that does not grow with files."""
    sent = model_files(200)
    models = font.read_models(sent)
    for m, data in enumerate(sent):
        (tmp_path / f"h{m}.model.json").write_bytes(data)
        (tmp_path / f"h{m}.labels.json").write_bytes(labels_file(models, f"h{m}"))
    run = subprocess.run(
        [sys.executable, "-c", PEAK + COMBINE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    n_sites, read, whole, before, peak, n_bytes = json.loads(run.stdout.splitlines()[-1])
    table = 8 * 800**2
    print(
        f"\n200 files of 200 models: {whole:.1f} CPU s, {read:.1f} of them reading; peak "
        f"{peak / 1e6:.0f} MB, {(peak - before) / table:.1f} tables of (M·K)² above that of 2 "
        f"files; ensemble file {n_bytes / 1e6:.1f} MB"
    )
    assert n_sites == 200
    assert peak - before <= 10 * table  # all tables at once would be 198 more
    assert read <= 12 * (whole - read)
