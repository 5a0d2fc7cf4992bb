"""Helpers of the tests, and how processes are forked and struck in them.

Most of a test's time would be the start of processes that import torch and Hydra: seconds for the
command, again for its launcher, again for each worker. So one process imports all of it once, and
forks for each process that a test needs.

Forking
    `running.bsweep("run", "local_batch=8", cwd=tmp_path)` runs the command as a person would type
    it, and returns its exit code and what it printed. `running.Fork("bsweep", ...)` is the same for
    a test that does something meanwhile, with `wait`, `poll` and `kill` as of a `Popen`.

    1. The first of them starts `tests.support.forks` (`running.forks`); where pytest-xdist runs
       tests in several processes, conftest.py starts one for all of them. It imports what
       processes need, uses nothing of torch, so that no thread is lost in a fork, and listens at a
       socket in the folder BSWEEP_TEST_FORKS, which conftest.py makes.
    2. `ask_forks.ask` sends to the socket what Python would be given: `-m module arguments` or
       `-c code`, with the folder, all variables, the open files and the cores of the one that asks.
    3. The server forks a keeper for each request, and the keeper forks the process itself. The
       keeper tells its id and later its exit code, and kills it if the one that asked is gone.
    4. Launchers and workers that it starts are such forks, too, where it `has_forks`, as every
       `bsweep` does: it takes the script `python` in that folder for its Python (`sys.executable`).
       The script runs `ask_forks.py`, which imports little, asks the same server, and stands in the
       place of the process that it got: its signals, streams and exit code. `bsweep` and
       `horovodrun` lie beside it, for commands that are started otherwise (a `prefix`).

    Where there is a C compiler, the server's `sched_yield` sleeps for 0.1 ms: a worker that waits
    in Horovod then leaves its core to others.

    A fork is on the host of scripts/hosts.sh, and on the node of scripts/slurm.sh, of the process
    that asked for it: with `prefix=on("h1")` a command and its workers over ssh are forks, too.

    A fork is not a start: it has the modules that the server imported, and what these keep. Where
    starting is what is tested, or where a process takes all of its memory limit, say `fresh=True`.

Striking
    `running.struck(folder, ranks, module, function, call)` gives variables for `env`, with which
    the workers of these ranks send themselves SIGKILL (or another signal) at the nth call of a
    function: `struck(tmp_path, [1], "train.steps", "train_step", 3)` ends worker 1 before its third
    step. `function` may be a method, `Class.method`.

    `running.before` has workers run other code before each call of a function.

    They write a `sitecustomize.py` to `folder`, which stands first on PYTHONPATH: Python runs it at
    its start, and `forks` runs it in a fork. There, RANK or HOROVOD_RANK tells which worker this
    is, and another function takes the named one's place in its module. A module that has imported
    the function by its name (`from module import function`) does not see that: then name the
    function in that module. The names are strings: look for them where something is renamed.

    A rank is struck once: it leaves the file `struckN`, so that the run can be taken up with the
    same variables. Every worker leaves its id in `pidN`; `running.workers_left(folder)` returns
    those that are still there.

Ending
    `popen` and the server end with the test process, however that ends, and forks end with their
    keepers. conftest.py ends what is left at the end of a session.
"""
