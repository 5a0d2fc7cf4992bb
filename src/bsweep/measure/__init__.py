"""One worker that measures instead of training.

A run folder comes in, as for training. `probe_worker` leaves `probe.json` there (how fast each
worker steps at which batch, what fits it, what an exchange takes), `profile_worker` what the parts
of a step take and a trace of some. It sets a worker up and takes steps by the functions of `train`,
so that what is measured is what is trained. `noise_monitor` is bsweep's gradient noise scale for
anybody's own loop, without a run.

It must not know what its files are used for, nor who started it.
"""
