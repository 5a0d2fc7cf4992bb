"""The commands of `bsweep`, such as `bsweep run`. Most modules contain one command, or several
related ones; `recommend` and `export` are in the packages `advise` and `trackers`.

The input is the words that a user typed. The output is an exit code and text for a person. A
command writes its answer to standard output, and everything else to standard error.

- A command prints its answer: tables, JSON, ids and paths.
- Notes, warnings and errors go through a module's `logger` (`bsweep.core.terminal`): INFO for how
  far the work is, WARNING for what is left out or in doubt, ERROR for what ended a command or a
  point.
- `main` alone sets logging up. Without it, as in a notebook, Python itself shows records from
  WARNING on.
- The lines of a sweep and the progress of long work go to `terminal.console()`, so that records
  appear above a live display. `bsweep.study.progress` writes the lines of a sweep.
- A worker process prints. Its output is a file, or a protocol that its parent reads.

`main` finds the command and runs it. If the user's options are wrong, a message says why.

A command decides nothing that a program might also want to ask. Such decisions are functions of the
packages below this one, which return values instead of printing them.
"""
