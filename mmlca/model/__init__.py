"""Mixtures of Markov chains: parameters, EM, the search for the maximum, the estimator.

A model's parameters are in `params`. One EM run, and what is expected of each pattern, are in `em`;
the loop over E-step, M-step and extrapolation is `_kernels.em`. `search` makes many runs and keeps
the best, `estimator` has `fit` and what a fitted model can do. `covariates` is EM where covariates
say how probable each class is. `information`, `inference` and `resampling` say how certain the
parameters are, `selection` compares numbers of classes, and `outcomes` (with its equations in
`third_step`) compares the classes afterwards. `settings` and `store` serve study and model files.
"""
