"""The numbers of a model, whatever the model and whoever exchanges them.

A model and its configuration come in. Tensors and what changes them go out: all parameters and all
gradients as one vector each (`vector`), the optimizer and its learning rate (`optim`), the loss
(`objective`), rounding (`precision`), CUDA graphs of a step (`graphs`), the formula of the gradient
noise scale (`noise_scale`), and clocks of steps.

It exchanges nothing and records nothing, and must not know the strategy or the data: whoever uses
it says what to compute.
"""
