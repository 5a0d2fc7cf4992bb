"""The command `bsweep`: one module for each command, or for a few that are alike.

Typed words come in. An exit code goes out, and what a person reads: answers on standard output, all
else on standard error. `main` finds the command, reads its options and says in a sentence what was
wrong with them.

A command decides nothing that a program might want to ask as well: that is a function of the room
below, which returns values instead of printing them.
"""
