"""Every figure, drawn from a SYNTHETIC rheumatoid arthritis cohort of two sites.

Run it with `python examples/gallery.py [folder]`; the default folder is results/gallery.
"""

import sys
from pathlib import Path

import matplotlib as mpl

import ehr_prep
import font
import mmlca

mpl.use("Agg")
mpl.rcParams["figure.max_open_warning"] = 0  # all figures are kept until the end
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/gallery")
folder.mkdir(parents=True, exist_ok=True)

cohort = ehr_prep.synthetic.ra_cohort(seed=1)
records = {
    s: ehr_prep.read_records(made.records, drugs="ra", patients=made.patients)
    for s, made in cohort.items()
}
sites = {site: ehr_prep.build_sequences(read, preset="ra") for site, read in records.items()}
models = {site: mmlca.MixtureMarkov(4, seed=1).fit(data) for site, data in sites.items()}
labels = {site: font.label(models, data) for site, data in sites.items()}
ensemble = font.Ensemble(4, seed=1).fit(models, font.LabelPatterns.from_labels(labels))
NAMES = {0: "TNFi persisters", 1: "multiple", 2: "to anti-CD20", 3: "to CTLA4-Ig"}
clusters = {
    site: ensemble.predict(table).map(NAMES).astype("category").cat.set_categories(NAMES.values())
    for site, table in labels.items()
}
one = sites["MGB"]
choice = mmlca.select_n_classes(sites, range(1, 6), seed=1, n_init=8)
differences = mmlca.site_differences(
    sites, {s: ensemble.predict(table) + 1 for s, table in labels.items()}, models=models, seed=1
)
esr = ehr_prep.trend({s: made.labs for s, made in cohort.items()}, clusters, sites)

FIGURES = {
    "state_distribution": mmlca.plot_state_distribution(sites, clusters, xlabel="Quarter"),
    "state_distribution_one": mmlca.plot_state_distribution(one, xlabel="Quarter"),
    "index": mmlca.plot_index(sites, clusters, xlabel="Quarter"),
    "index_one": mmlca.plot_index(one, sort="end", xlabel="Quarter"),
    "frequencies": mmlca.plot_frequencies(sites, clusters, xlabel="Quarter"),
    "frequencies_one": mmlca.plot_frequencies(one, min_count=11, xlabel="Quarter"),
    "representatives": mmlca.plot_representatives(sites, clusters, xlabel="Quarter"),
    "time_in_state": mmlca.plot_time_in_state(sites, clusters, xlabel="Mean number of quarters"),
    "time_in_state_one": mmlca.plot_time_in_state(one, xlabel="Mean number of quarters"),
    "entropy": mmlca.plot_entropy(sites, clusters, xlabel="Quarter"),
    "transitions": mmlca.plot_transitions(sites, clusters, min_count=11),
    "transitions_one": mmlca.plot_transitions(one),
    "transitions_model": mmlca.plot_transitions(models["MGB"]),
    "lines": mmlca.plot_lines(sites, clusters, min_count=11),
    "lines_one": mmlca.plot_lines(one, min_count=11),
    "selection": mmlca.plot_selection(choice),
    "site_differences": mmlca.plot_site_differences(differences),
    "esr": ehr_prep.plot_trend(esr, label="ESR (mm/h)"),
    "flow": ehr_prep.plot_flow(one),
    "weights": font.plot_weights(ensemble),
    "agreement": font.plot_agreement(ensemble),
}
for name, drawing in FIGURES.items():
    figure = drawing if hasattr(drawing, "savefig") else drawing.figure
    figure.savefig(folder / f"{name}.png", dpi=150)
print(f"{len(FIGURES)} figures in {folder}")
