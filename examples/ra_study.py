"""The two-site rheumatoid arthritis study on a SYNTHETIC cohort, as a Python script.

Run it with `python examples/ra_study.py [folder]`; the default folder is results/ra_study.
`mmlca demo` computes the same numbers and writes all tables, all figures and a report. To analyse
your own records, replace the cohort with your files.
"""

import sys
from pathlib import Path

import matplotlib as mpl

import ehr_prep
import font
import mmlca

mpl.use("Agg")
out = Path(sys.argv[1] if len(sys.argv) > 1 else "results/ra_study")
out.mkdir(parents=True, exist_ok=True)

cohort = ehr_prep.ra_cohort(seed=1)
sequences = {}
for site, made in cohort.items():
    records = ehr_prep.read_records(made.records, drugs="ra", patients=made.patients)
    sequences[site] = ehr_prep.build_sequences(records, preset="ra")

pseudo_sites = ehr_prep.pseudo_sites(sequences, n_per_site=4, fraction=0.8, seed=1)
choice = mmlca.select_n_classes(pseudo_sites, range(1, 9), seed=1, n_init=4, n_jobs=-1)
k = mmlca.vote(choice)
print(f"BIC at {len(pseudo_sites)} pseudo-sites votes for {k} classes.")

models = {name: mmlca.MixtureMarkov(k, seed=1).fit(data) for name, data in pseudo_sites.items()}
labels = {site: font.label(models, data) for site, data in sequences.items()}
ensemble = font.Ensemble(k, seed=1).fit(models, font.LabelPatterns.from_labels(labels))
clusters = {site: ensemble.predict(table) + 1 for site, table in labels.items()}
print(ensemble.summary(), font.influence(ensemble), sep="\n\n")

own = {site: mmlca.MixtureMarkov(k, seed=1).fit(data) for site, data in sequences.items()}
differences = mmlca.site_differences(sequences, clusters, models=own, seed=1)
described = mmlca.describe_clusters(sequences, clusters, after="4 years")
patients = {site: data.patients[["age", "sex", "race"]] for site, data in sequences.items()}
table = ehr_prep.table_one(
    patients, clusters, descriptions=described.set_index("cluster")["description"]
)
esr = ehr_prep.trend({site: made.labs for site, made in cohort.items()}, clusters, sequences)
print(differences, table, sep="\n\n")

mmlca.plot_state_distribution(sequences, clusters).savefig(out / "figure3.png", dpi=200)
mmlca.plot_site_differences(differences).savefig(out / "figure4.png", dpi=200)
ehr_prep.plot_trend(esr, label="ESR (mm/h)").savefig(out / "figure5.png", dpi=200)
mmlca.plot_frequencies(sequences, clusters, top=30).savefig(out / "courses.png", dpi=200)

accuracy = {
    site: font.compare_clusterings(made.truth["class"], clusters[site])["adjusted_rand_index"]
    for site, made in cohort.items()
}
for site, value in accuracy.items():
    print(f"{site}: adjusted Rand index with the truth {value:.3f}")
print(f"Figures are in {out}.")
