"""Three hospitals and a centre that exchange only files.

Each hospital has its own folder with its ledger; the folder `post` stands for e-mail between them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import font
import mmlca

truth = mmlca.MarkovParams(
    weights=[0.7, 0.3],
    initial=[[0.95, 0.04, 0.01], [0.80, 0.15, 0.05]],
    transition=[
        [[0.98, 0.01, 0.01], [0.30, 0.65, 0.05], [0.30, 0.05, 0.65]],
        [[0.65, 0.25, 0.10], [0.05, 0.90, 0.05], [0.05, 0.10, 0.85]],
    ],
)
states = ["TNFi", "CTLA4-Ig", "JAK"]
patients = {
    site: mmlca.simulate(truth, n, 16, states=states, seed=n)[0]
    for site, n in {"north": 900, "south": 700, "west": 300}.items()
}

with tempfile.TemporaryDirectory() as folder:
    post = Path(folder) / "post"
    hospitals = [
        mmlca.Hospital(
            study="switching", site=site, sequences=data, folder=Path(folder) / site, n_classes=2
        )
        for site, data in patients.items()
    ]

    # 1. Each hospital fits its model and sends it to all hospitals as randomly rounded counts.
    models = [path for hospital in hospitals for path in hospital.fit()]
    print(font.explain(models[0]), "\n")

    # 2. Each hospital labels its patients with all models and sends cross-tables to the centre.
    labels = [hospital.label(models) for hospital in hospitals]
    print(font.explain(labels[0]), "\n")

    # 3. The centre combines the tables and sends the ensemble to all hospitals.
    centre = font.Header(study="switching")
    files = font.read_models(models, centre, min_count=11)
    tables = [font.read_labels(path, files, centre, min_count=11) for path in labels]
    ensemble, _ = font.combine(files, tables, n_clusters=2)
    font.write_ensemble(post / "ensemble.json", ensemble, files, centre)

    # 4. Each hospital assigns its patients to clusters; the assignments stay there.
    clusters = {
        hospital.site: hospital.assign(post / "ensemble.json")["cluster"] for hospital in hospitals
    }

# For comparison: the same in one process, without rounding.
exact = {site: mmlca.MixtureMarkov(2, seed=1).fit(data) for site, data in patients.items()}
everyone = {site: font.label(exact, data) for site, data in patients.items()}
together = font.Ensemble(2, seed=1).fit(exact, everyone)
for site, table in everyone.items():
    same = (together.predict(table) + 1 == clusters[site]).mean()  # a site counts from 1
    print(f"{site}: {same:.1%} of patients in the same cluster as without rounding")
    assert same > 0.9
