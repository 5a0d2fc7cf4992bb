"""Code that measures instead of training: the workers of `bsweep probe` and `bsweep profile`, and a
monitor for a user's own training loop.

The input is a run's folder, as for training. `probe_worker` writes `probe.json` there: how fast
each worker steps at which batch, which batches fit, and how long an exchange takes.
`profile_worker` writes how long the parts of a step take, and a trace of some steps. Both set a
worker up and make steps by the functions of `train`, so that they measure what a run trains.
`noise_monitor` measures the gradient noise scale in a user's own training loop, without a run.

This package must not know how its files are used, nor who started its workers.
"""
