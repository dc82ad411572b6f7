"""Three hospitals and a centre that exchange nothing but files.

Each hospital has a folder of its own; `post` is the e-mail between them.
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
hospitals = {"north": 900, "south": 700, "west": 300}
study = {"study": "switching"}

with tempfile.TemporaryDirectory() as folder:
    home = {site: Path(folder) / site for site in hospitals}
    post = Path(folder) / "post"
    for number, (site, n) in enumerate(hospitals.items()):
        home[site].mkdir()
        patients, _ = mmlca.simulate(truth, n, 16, states=states, seed=number)
        patients.write(home[site] / "sequences.csv")

    # 1. Each hospital fits its model and sends it to all.
    for site, own in home.items():
        data = mmlca.Sequences.read(own / "sequences.csv")
        model = mmlca.MixtureMarkov(2, seed=1).fit(data)
        support = font.row_support(data.codes, model.predict_proba(data))
        font.write_model(post / f"{site}.model.json", model, site=site, support=support, **study)

    # 2. Each labels its patients with all models and sends the counts to the centre.
    for site, own in home.items():
        files = font.read_models(post.glob("*.model.json"), **study)
        models = {name: mmlca.MixtureMarkov.from_dict(file.content) for name, file in files.items()}
        labels = font.label(models, mmlca.Sequences.read(own / "sequences.csv"))
        counts = font.LabelPatterns.from_labels({site: labels})
        sent = font.write_labels(post / f"{site}.labels.json", counts, files, **study)
        print(f"{site}: {sent.n_rare} of {counts.n_patients} patients have a rare pattern")
    print(font.explain(post / "west.labels.json"), "\n")

    # 3. The centre combines and sends the ensemble to all.
    files = font.read_models(post.glob("*.model.json"), **study)
    tables = [font.read_labels(path, files, **study) for path in sorted(post.glob("*.labels.json"))]
    ensemble = font.Ensemble(2, seed=1).fit(files, font.LabelPatterns.merge(tables))
    font.write_ensemble(post / "ensemble.json", ensemble, files, **study)

    # 4. Each gives its patients their clusters, which stay there.
    clusters, everyone = {}, {}
    for site, own in home.items():
        result = font.read_ensemble(post / "ensemble.json", **study)
        models = {
            name: mmlca.MixtureMarkov.from_dict(file.content)
            for name, file in result.models.items()
        }
        everyone[site] = font.label(models, mmlca.Sequences.read(own / "sequences.csv"))
        clusters[site] = result.ensemble.predict(everyone[site])

# The same in one process, from all patients' labels.
together = font.Ensemble(2, seed=1).fit(models, everyone)
for site, table in everyone.items():
    same = (together.predict(table) == clusters[site]).mean()
    print(f"{site}: {same:.1%} of patients in the same cluster as without files")
    assert same == 1
