"""How often is the number of classes right, depending on which parameters BIC counts?

A chain with S states has S·(S + 1) cells, but treatments follow few paths: with twelve states most
steps are made by nobody. The data say nothing about these, and yet the textbook's BIC charges for
them, S² parameters for each class. This simulation draws patients from sparse chains (from each
state there are two usual ways on; 0.5 % of steps go anywhere), fits mixtures of several numbers of
classes, and lets BIC choose with three counts: all cells; those that somebody visits; and those
that at least 11 patients visit, as in studies with `min_count = 11`.

    python examples/number_of_classes.py --replicates 21 --out results.csv

It takes about two minutes of one processor.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import pandas as pd

import mmlca

WINDOWS, RARE = 12, 0.005
COUNTS = {"all": None, "somebody's": 1, "11 patients'": 11}


def sparse_chains(n_states: int, n_classes: int, rng: np.random.Generator) -> mmlca.MarkovParams:
    """Classes that share their few usual steps and differ in how often they make them."""
    usual = np.zeros((n_states, n_states), dtype=bool)
    for state in range(n_states):
        usual[state, rng.choice(np.delete(np.arange(n_states), state), 2, replace=False)] = True
    first = rng.choice(n_states, 4, replace=False)
    initial = np.zeros((n_classes, n_states))
    transition = np.zeros((n_classes, n_states, n_states))
    for k in range(n_classes):
        initial[k, first] = rng.dirichlet(np.ones(4))
        stay = rng.uniform(0.4, 0.98, n_states)
        for state in range(n_states):
            transition[k, state, usual[state]] = (1 - stay[state]) * rng.dirichlet([0.5, 0.5])
            transition[k, state, state] = stay[state]
    transition = (1 - RARE) * transition + RARE / n_states
    return mmlca.MarkovParams(rng.dirichlet(np.full(n_classes, 10.0)), initial, transition)


def choices(n_states: int, n_patients: int, replicate: int) -> list[dict[str, object]]:
    """The number of classes that BIC chooses by each count, for one set of patients."""
    n_classes = 2 + replicate % 3
    rng = np.random.default_rng([n_states, replicate])
    truth = sparse_chains(n_states, n_classes, rng)
    patients, _ = mmlca.simulate(truth, n_patients, WINDOWS, seed=rng)
    rows = []
    bic: dict[str, dict[int, float]] = {name: {} for name in COUNTS}
    free: dict[str, int] = {}
    for k in range(1, 7):
        searched = mmlca.MixtureMarkov(k, n_init=8, seed=1).fit(patients)
        for name, least in COUNTS.items():
            if least is None or least == 1:
                fit = searched
            else:  # the same model, counted in another way
                fit = mmlca.MixtureMarkov(
                    k, init=searched.params_, max_iter=0, min_patients=least
                ).fit(patients)
            count = fit.n_cells_ if least is None else fit.n_parameters_
            bic[name][k] = -2 * searched.loglik_ + count * np.log(n_patients)
            if k == n_classes:
                free[name] = (count - (k - 1)) // k
    for name, values in bic.items():
        chosen = min(values, key=values.__getitem__)
        rows.append(
            {
                "states": n_states,
                "patients": n_patients,
                "classes": n_classes,
                "replicate": replicate,
                "steps counted": name,
                "chosen": chosen,
                "parameters per class": free[name],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replicates", type=int, default=21, help="per number of states")
    parser.add_argument("--states", type=int, nargs="+", default=[4, 8, 12])
    parser.add_argument("--patients", type=int, nargs="+", default=[1_000])
    parser.add_argument("--out", help="file of all choices, as CSV")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # a maximum that was found once is enough here
    rows = [
        row
        for n_patients in given.patients
        for n_states in given.states
        for replicate in range(given.replicates)
        for row in choices(n_states, n_patients, replicate)
    ]
    table = pd.DataFrame(rows)
    if given.out:
        table.to_csv(given.out, index=False)
    apart = table["chosen"] - table["classes"]
    table = table.assign(right=apart == 0, fewer=apart < 0, more=apart > 0)
    columns = ["parameters per class", "right", "fewer", "more"]
    by = ["patients", "states", "steps counted"]
    print(table.groupby(by, sort=False)[columns].mean().round(2).to_string())


if __name__ == "__main__":
    main()
