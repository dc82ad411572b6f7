"""Mixtures of Markov chains: parameters, EM, the search for the maximum, the estimator."""
