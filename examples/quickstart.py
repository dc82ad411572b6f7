"""Treatment courses of 2,000 simulated patients: choose the number of classes, fit, look.

Run it with `python examples/quickstart.py`.
"""

import mmlca

# Two treatment courses: most patients stay on their first drug; some switch to another and stay.
truth = mmlca.MarkovParams(
    weights=[0.7, 0.3],
    initial=[[0.95, 0.04, 0.01], [0.80, 0.15, 0.05]],
    transition=[
        [[0.98, 0.01, 0.01], [0.30, 0.65, 0.05], [0.30, 0.05, 0.65]],
        [[0.65, 0.25, 0.10], [0.05, 0.90, 0.05], [0.05, 0.10, 0.85]],
    ],
)
sequences, true_class = mmlca.simulate(
    truth, n=2000, lengths=16, states=["TNFi", "CTLA4-Ig", "JAK"], seed=1
)
print(sequences)
print(mmlca.sequence_frequencies(sequences, top=3).to_string(index=False))

choice = mmlca.select_n_classes(sequences, ks=range(1, 5), seed=1)
print(choice[["classes", "loglik", "bic", "entropy", "replicated"]].round(2).to_string(index=False))

model = mmlca.MixtureMarkov(n_classes=mmlca.vote(choice), seed=1).fit(sequences)
print(model.summary().round(3).to_string())
print(model.posterior_.head(3).round(3).to_string(index=False))
print(f"assigned to the correct class: {(model.labels_ == true_class).mean():.1%}")
