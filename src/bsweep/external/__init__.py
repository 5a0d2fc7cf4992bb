"""Training programs of the user's own, run as workers, and runs that were made elsewhere.

The input is a run's folder, as for training. `worker` starts the command in each worker process.
In the program, `bsweep.join()` (`client`) returns the point, and reports steps (`loop`) and scores
by lines in a file. `recorder` turns these lines into the run's records. If the program makes no
calls, `written` makes such lines of the metrics that it writes to a file. `imported` makes a study
of a table of runs. Both read foreign rows by `tables`.

`client` and what it imports need nothing but Python's standard library: they run in the user's
process, under any interpreter. This package must not know who started it.
"""
