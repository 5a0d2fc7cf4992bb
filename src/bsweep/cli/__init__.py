"""The command `bsweep`: one module for each command, or for a few that are alike.

The input is the words that a user typed. The output is an exit code and text for a person: answers
on standard output, all else on standard error. `main` finds the command and runs it, and a sentence
tells what was wrong with its options.

A command decides nothing that a program might also want to ask. Such decisions are functions of the
packages below this one, which return values instead of printing them.
"""
