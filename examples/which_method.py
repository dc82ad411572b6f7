"""Which method finds planted groups? The table of docs/which_method.md.

Three made-up cohorts have groups that stop early, switch, use drugs intermittently or die. Each
method is asked for as many groups as were planted, and the two that can choose also choose their
number by BIC. The table has the mean adjusted Rand index of the groups found with those planted
(1: the same groups, 0: as by chance), over several cohorts of each disease.

    python examples/which_method.py --cohorts 3 --patients 1000
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

import font
import mmlca
from ehr_prep.synthetic.planted import DISEASES, planted_cohort


def hamming_ward(sequences: mmlca.Sequences, n_groups: int) -> np.ndarray:
    """Ward's method on the share of windows that differ, of those in which both are observed."""
    codes = sequences.codes
    known = codes >= 0
    both = known.astype(float) @ known.T
    same = sum((codes == s).astype(float) @ (codes == s).T for s in range(sequences.n_states))
    distance = (both - same) / np.maximum(both, 1)
    np.fill_diagonal(distance, 0)
    return fcluster(linkage(squareform(distance, checks=False), "ward"), n_groups, "maxclust")


def groups_found(sequences: mmlca.Sequences, n_groups: int, seed: int) -> dict[str, np.ndarray]:
    """The group of each patient by every method; the number chosen by BIC is in the name."""
    by_steps = mmlca.select_n_classes(sequences, range(1, 9), seed, n_init=10)
    by_course = mmlca.select_n_classes(sequences, range(1, 9), seed, by="course")
    k_steps, k_course = mmlca.vote(by_steps), mmlca.vote(by_course)
    chains = {"seed": seed, "n_init": 10}
    stays = mmlca.MixtureMarkov(n_groups, stays=(2, 4), **chains)
    course = mmlca.CourseClasses(k_course, seed=seed)
    return {
        f"chains, BIC ({k_steps})": mmlca.MixtureMarkov(k_steps, **chains).fit_predict(sequences),
        "chains": mmlca.MixtureMarkov(n_groups, **chains).fit_predict(sequences),
        "by time in state": stays.fit_predict(sequences),
        f"course, BIC ({k_course})": course.fit_predict(sequences),
        "course": mmlca.CourseClasses(n_groups, seed=seed).fit_predict(sequences),
        "Hamming + Ward": hamming_ward(sequences, n_groups),
    }


def share_found(planted: np.ndarray, found: np.ndarray) -> pd.Series:
    """For each planted group the share of its patients in the class that corresponds to it.

    Classes and groups are paired one to one, so that most patients are in corresponding ones.
    """
    partner = {group: label for label, group in font.match_labels(planted, found).items()}
    same = pd.Series(found) == pd.Series(planted).map(partner)
    return same.groupby(planted).mean()


def agreement(n_cohorts: int, n_patients: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Adjusted Rand index, and the share of each planted group that is found.

    Both by disease, cohort and method.
    """
    rows, shares = [], []
    for disease in DISEASES:
        for seed in range(1, n_cohorts + 1):
            sequences, planted = planted_cohort(disease, n_patients, seed=seed)
            true = planted.to_numpy()
            for method, found in groups_found(sequences, planted.nunique(), seed).items():
                key = {"cohort": disease, "seed": seed, "method": method}
                ari = font.compare_clusterings(true, found)["adjusted_rand_index"]
                rows.append({**key, "ari": ari})
                each = share_found(true, found)
                shares += [{**key, "group": g, "share": share} for g, share in each.items()]
            print(pd.DataFrame(rows).tail(6).to_string(index=False), flush=True)
    return pd.DataFrame(rows), pd.DataFrame(shares)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cohorts", type=int, default=3)
    parser.add_argument("--patients", type=int, default=1000)
    arguments = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on searches and missing windows
        table, shares = agreement(arguments.cohorts, arguments.patients)
    table["chosen"] = table["method"].str.extract(r"\((\d+)\)")[0]
    table["method"] = table["method"].str.replace(r" \(\d+\)", "", regex=True)
    summary = table.groupby(["cohort", "method"], sort=False)
    print(summary["ari"].agg(["mean", "min", "max"]).round(2).to_string())
    print(summary["chosen"].agg(lambda chosen: ", ".join(chosen.dropna())).to_string())
    told = shares[~shares["method"].str.contains("BIC")]
    print(told.pivot_table("share", ["cohort", "group"], "method").round(2).to_string())
