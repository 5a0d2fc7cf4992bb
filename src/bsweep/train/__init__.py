"""One worker: set-up, the loop, a step, evaluations and checkpoints.

A run folder with its `config.yaml` comes in (`python -m bsweep.train.worker FOLDER`), and the
environment, which says which worker this is. Records and checkpoints go out into that folder.
`worker` sets up, `job` is what it sets up, `loop` has epochs and rounds, `steps` one step;
`team_worker` is a process that trains point after point.

It must not know who started it, how many points there are, or what is made of the records. It never
asks which strategy or which policy it runs, only what these can do.
"""
