"""Facts of this process and of the machine that it runs on.

Nothing comes in but the operating system, the environment and the hardware. Values go out: which
worker this is, how many cores and GPUs it may use, how much memory, what energy was used. What
rooms have in common that know nothing of each other is here as well: work in a fresh process, files
of tensors that are there whole or not at all, random numbers that are a function of what they are
for, and Pollux's formulas.

It knows no other room: neither what a run is nor what is trained. What the parent process asks
(`ranks`, `gpus`, `memory`, `terminal`, `fresh_process`) loads torch only where an answer needs it,
for that takes seconds.
"""
