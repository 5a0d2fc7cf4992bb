"""The training in one worker process: set-up, training loop, steps, evaluations and checkpoints.

The input is a run's folder with its `config.yaml` (`python -m bsweep.train.worker FOLDER`), and the
environment, which tells the process its rank. The output is records and checkpoints in that folder.
`worker` sets a worker up, `job` holds what it set up, `loop` runs epochs and rounds, and `step`
makes one step. `team_worker` is a process that trains one point after another.

This package must not know who started it, how many points there are, or how the records are used.
It never asks which strategy or which policy it runs, only what these can do.
"""
