"""The computations of training on one worker, such as parameter vectors, optimizers, losses,
precision and clocks.

The input is a model and its configuration. The output is tensors and what changes them: all
parameters and all gradients as one vector each (`vector`), the optimizer and its learning rate
(`optim`), the loss (`objective`), rounding (`precision`), CUDA graphs of a step (`graphs`), the
formula of the gradient noise scale (`noise_scale`), and clocks of steps (`timing`).

This package exchanges nothing and records nothing. It must not know how workers exchange or which
data they train on: the caller says what to compute.
"""
