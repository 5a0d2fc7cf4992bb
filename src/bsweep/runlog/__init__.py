"""The run log: the records of a run, and the files of its folder.

Workers write records, and this room stores them in files and reads them back. `files` has the paths
in a run's folder. `records` and `json_schemas` have the types of what those files hold.
`reading` checks what it reads against these types and names what is damaged. The room also has the
locks, the paths in a checkpoint, the errors that end a process, and the file of a profile.

The room must not know who trains and how, nor what the numbers are for. Its modules load no torch,
so that the analysis can read runs without it. The exception is `errors`, for workers.
"""
