"""The two-site rheumatoid arthritis study on a SYNTHETIC cohort, from records to clusters.

Run it with `python examples/ra_study.py [folder]`, or `make study`: figures and tables go to the
folder (default: results/ra_study). With records of your own, replace the cohort by your files.
"""

import sys
from pathlib import Path

import matplotlib as mpl
from sklearn.metrics import adjusted_rand_score

import ehr_prep
import font
import mmlca

mpl.use("Agg")
out = Path(sys.argv[1] if len(sys.argv) > 1 else "results/ra_study")
out.mkdir(parents=True, exist_ok=True)

cohort = ehr_prep.synthetic.ra_cohort(seed=1)
sequences = {}
for site, made in cohort.items():
    records = ehr_prep.read_records(made.records, patients=made.patients)
    sequences[site] = ehr_prep.build_sequences(records, first_on_or_after="2008-01-01")
    sequences[site].flow.to_csv(out / f"flow_{site}.csv", index=False)
    ehr_prep.plot_flow(sequences[site]).figure.savefig(out / f"flow_{site}.png", dpi=150)

pseudo_sites = ehr_prep.pseudo_sites(sequences, n_per_site=4, fraction=0.8, seed=1)
choice = mmlca.select_n_classes(pseudo_sites, range(2, 6), seed=1, n_init=8, n_jobs=-1)
choice.to_csv(out / "selection.csv", index=False)
mmlca.plot_selection(choice).figure.savefig(out / "selection.png", dpi=300)
k = mmlca.vote(choice)
print(f"BIC at {len(pseudo_sites)} pseudo-sites votes for {k} classes.")

models = {name: mmlca.MixtureMarkov(k, seed=1).fit(data) for name, data in pseudo_sites.items()}
labels = {site: font.label(models, data) for site, data in sequences.items()}
ensemble = font.Ensemble(k, seed=1).fit(models, font.LabelPatterns.from_labels(labels))
clusters = {site: ensemble.predict(table) for site, table in labels.items()}
print(ensemble.summary())

for name in ("state_distribution", "frequencies", "lines"):
    figure = getattr(mmlca, f"plot_{name}")(sequences, clusters)
    figure.savefig(out / f"{name}.png", dpi=200)
mmlca.state_distribution(sequences, clusters).to_csv(out / "state_distribution.csv", index=False)

own = {site: mmlca.MixtureMarkov(k, seed=1).fit(data) for site, data in sequences.items()}
differences = mmlca.site_differences(sequences, clusters, models=own, seed=1)
differences.norms.to_csv(out / "site_differences.csv", index=False)
mmlca.plot_site_differences(differences).savefig(out / "site_differences.png", dpi=200)
described = mmlca.describe_clusters(sequences, clusters, after="4 years")
print(described[["n", "description"]].to_string())

patients = {site: data.patients[["age", "sex", "race"]] for site, data in sequences.items()}
table = ehr_prep.table_one(patients, clusters, descriptions=described["description"])
(out / "table_one.md").write_text(table.to_markdown())
esr = ehr_prep.labs.trend({s: made.labs for s, made in cohort.items()}, clusters, sequences)
ehr_prep.plot_trend(esr).savefig(out / "esr.png", dpi=200)

for site, made in cohort.items():
    truth = made.truth["class"].reindex(sequences[site].ids)
    found = adjusted_rand_score(truth, clusters[site])
    alone = adjusted_rand_score(truth, own[site].labels_)
    print(f"{site}: adjusted Rand index against the truth {found:.3f}; its own model {alone:.3f}")
print(f"Tables and figures are in {out}.")
