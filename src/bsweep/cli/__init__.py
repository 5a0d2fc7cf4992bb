"""The command `bsweep`: one module for each command, or for a few that are alike.

The input is the words that a user typed. The output is an exit code and text for a person. Standard
output is the answer, and standard error are log records.

- A command prints its answer: tables, JSON, ids and paths.
- All else goes through a module's `logger` (`bsweep.core.terminal`): INFO for how far the work is,
  WARNING for what is left out or in doubt, ERROR for what ended a command or a point.
- `main` alone sets logging up. Without it, as in a notebook, Python itself shows records from
  WARNING on.
- What runs over time shows its progress by `rich.progress` on `terminal.console()`, so that records
  go above it.
- A worker process prints. Its output is a file, or a protocol that its parent reads.

`main` finds the command and runs it, and a sentence tells what was wrong with its options.

A command decides nothing that a program might also want to ask. Such decisions are functions of the
packages below this one, which return values instead of printing them.
"""
