"""Information about this process and its machine, and helper functions that several packages of
bsweep share.

Its inputs are the operating system, the environment and the hardware. Its results are, for example,
which worker this process is, how many cores and GPUs it may use, and how much memory and energy it
takes. It also holds tools for packages that do not import each other, such as files that are
written whole or not at all and reproducible random numbers.

It imports no other package of bsweep, and does not know what a run is or what is trained. The
modules that the parent process uses, such as `ranks`, `gpus` and `memory`, import torch only where
an answer needs it, because that takes seconds.
"""
