"""The training in one worker process: set-up, training loop, steps, evaluations and checkpoints.

The input is a team's folder (`python -m bsweep.train.worker TEAM_FOLDER`), and the environment,
which tells the process its rank. The team's file `points` names the folders of the runs to train,
each with its `config.yaml`. The output is records, checkpoints and, if they are kept, the trained
weights in the run's folder.
`worker` sets a worker up, `job` holds what it set up, `loop` runs epochs and rounds, and `step`
makes one step. `team_files` tell a worker which points to train, one after another.

This package must not know which launcher started it, how many points there are, or how the records
are used. It never decides by the name of a strategy or a policy, only by what these can do.
"""
