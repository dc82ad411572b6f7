"""Every figure of treatment sequences, drawn from made-up patients of two hospitals.

Run it with `python examples/gallery.py [folder]`; the default folder is results/gallery.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

import mmlca

mpl.use("Agg")
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/gallery")
folder.mkdir(parents=True, exist_ok=True)

STATES = ["TNFi", "CTLA4-Ig", "IL6R", "JAK", "anti-CD20"]
STAY = [0.99, 0.66, 0.66, 0.66, 0.7]


def course(stay, goal):
    """Transition rates of a course: stay with a probability, else mostly go to the goals."""
    rows = np.tile(np.asarray(goal) + 0.02, (5, 1)) * (1 - np.eye(5))
    return rows / rows.sum(axis=1, keepdims=True) * (1 - np.c_[stay]) + np.diag(stay)


courses = mmlca.MarkovParams(
    weights=[0.65, 0.17, 0.10, 0.08],
    initial=[
        [0.98, 0.005, 0.005, 0.005, 0.005],
        [0.71, 0.04, 0.07, 0.17, 0.01],
        [0.68, 0.01, 0.01, 0.01, 0.29],
        [0.72, 0.25, 0.01, 0.01, 0.01],
    ],
    transition=[
        course(STAY, [1, 0, 0, 0, 0]),
        course([0.64, 0.5, 0.74, 0.77, 0.51], [0.2, 0.1, 0.4, 0.4, 0]),
        course([0.7, 0.6, 0.6, 0.6, 0.9], [0.2, 0, 0, 0, 1]),
        course([0.7, 0.9, 0.6, 0.6, 0.6], [0.2, 1, 0, 0, 0]),
    ],
)
NAMES = {0: "stay on TNFi", 1: "to JAK or IL6R", 2: "to anti-CD20", 3: "to CTLA4-Ig"}
sites, clusters = {}, {}
for number, (site, n) in enumerate({"Hospital A": 3174, "Hospital B": 2148}.items()):
    rng = np.random.default_rng(number)
    lengths = np.minimum(rng.geometric(0.012, n), 16)
    sites[site], drawn = mmlca.simulate(courses, n, lengths, states=STATES, seed=rng)
    clusters[site] = drawn.map(NAMES).astype("category").cat.set_categories(NAMES.values())
one = sites["Hospital A"]
model = mmlca.MixtureMarkov(n_classes=4, n_init=8, seed=1).fit(one)
choice = mmlca.select_n_classes(one[:500], range(1, 5), seed=1)

FIGURES = {
    "state_distribution": mmlca.plot_state_distribution(sites, clusters, xlabel="Quarter"),
    "state_distribution_one": mmlca.plot_state_distribution(one, xlabel="Quarter"),
    "index": mmlca.plot_index(sites, clusters, xlabel="Quarter"),
    "index_one": mmlca.plot_index(one, sort="end", xlabel="Quarter"),
    "frequencies": mmlca.plot_frequencies(sites, clusters, xlabel="Quarter"),
    "frequencies_one": mmlca.plot_frequencies(one, min_count=11, xlabel="Quarter"),
    "modal_states": mmlca.plot_modal_states(sites, clusters, xlabel="Quarter"),
    "modal_states_one": mmlca.plot_modal_states(one, xlabel="Quarter"),
    "time_in_state": mmlca.plot_time_in_state(sites, clusters, xlabel="Mean number of quarters"),
    "time_in_state_one": mmlca.plot_time_in_state(one, xlabel="Mean number of quarters"),
    "entropy": mmlca.plot_entropy(sites, clusters, xlabel="Quarter"),
    "transitions": mmlca.plot_transitions(sites, clusters, min_count=11),
    "transitions_one": mmlca.plot_transitions(one),
    "transition_graph": mmlca.plot_transition_graph(sites, clusters),
    "transition_graph_one": mmlca.plot_transition_graph(one),
    "lines": mmlca.plot_lines(sites, clusters, min_count=11),
    "lines_one": mmlca.plot_lines(one, min_count=11),
    "certainty": mmlca.plot_certainty(model),
    "selection": mmlca.plot_selection(choice),
}
for name, drawing in FIGURES.items():
    figure = drawing if hasattr(drawing, "savefig") else drawing.figure
    figure.savefig(folder / f"{name}.png", dpi=150)
print(f"{len(FIGURES)} figures in {folder}")
