"""One measurement of another program, run by the interpreter of `make bench-peers`.

    python peers.py NAME DATA.npz

prints a JSON object: CPU seconds of one EM update (`seconds`), the log-likelihood reached, and the
program's version. It imports nothing of this project.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from importlib.metadata import version
from typing import Any

import numpy as np


def stepmix(data: Any) -> dict[str, float]:
    """A latent class model of categorical items: 100 updates from one random start."""
    from stepmix import StepMix

    def fit(n: int) -> tuple[float, Any]:
        model = StepMix(
            int(data["n_classes"]), measurement="categorical", n_init=1, max_iter=n,
            abs_tol=0.0, rel_tol=0.0, random_state=1, progress_bar=0,
        )  # fmt: skip
        start = time.process_time()
        model.fit(data["answers"])
        return time.process_time() - start, model

    fit(2)
    few, _ = fit(10)
    many, model = fit(110)
    return {"seconds": (many - few) / 100, "loglik": model.score(data["answers"])}


def sequenzo(data: Any) -> dict[str, float]:
    """A mixture of Markov chains: hidden Markov models whose emissions are the identity."""
    import pandas as pd
    from sequenzo import SequenceData
    from sequenzo.seqhmm import build_mhmm, fit_mhmm

    codes, weights = data["codes"], data["weights"]
    k, s = data["initial"].shape
    states = [f"s{i}" for i in range(s)]
    times = [f"t{t}" for t in range(codes.shape[1])]
    frame = pd.DataFrame(np.array(states)[codes], columns=times)
    frame.insert(0, "id", np.arange(len(codes)))
    sequences = SequenceData(frame, time=times, states=states, id_col="id")

    def fit(n: int) -> tuple[float, Any]:
        model = build_mhmm(
            sequences, n_clusters=k, n_states=s, initial_probs=list(data["initial"]),
            transition_probs=list(data["transition"]), emission_probs=[np.eye(s)] * k,
            cluster_probs=weights, random_state=1,
        )  # fmt: skip
        start = time.process_time()
        fit_mhmm(model, n_iter=n, tol=0.0)
        return time.process_time() - start, model

    one, _ = fit(1)
    two, model = fit(2)  # the first fit also estimates each chain on all data
    return {"seconds": two - one, "loglik": float(model.log_likelihood)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name, path = sys.argv[1:]
    result = {"stepmix": stepmix, "sequenzo": sequenzo}[name](np.load(path))
    print(json.dumps(result | {"version": version(name)}))
