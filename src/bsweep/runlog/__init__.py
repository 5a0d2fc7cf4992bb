"""The run log: the records of a run, and the files of its folder.

Workers and the sweep write records; this package stores them in files and reads them back. `files`
has every path. `records` and `json_schemas` have every type. `reading` checks what it reads against
these types and names what is damaged. The package also has the locks, the paths of checkpoints, the
errors that end a process, and the files of a calibration and of a profile.

The package must not know who trains and how, nor what the numbers are for. It loads no torch, so
that the analysis can read runs without it. Only the module `errors`, for workers, loads torch.
"""
