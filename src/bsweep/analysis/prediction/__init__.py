"""The fits of a prediction: of the steps that a batch size needs to a target, and of the seconds of
a step.

The time to the target is T(B, N) = S(B) t(B, N), for global batch B and N workers. S(B) is the
number of steps to the target (`steps`), and t(B, N) is the seconds of a step (`step_time`). Both
are fitted to some of a grid's cells and have a posterior. So every cell of the grid has a
prediction interval, measured or not.
"""
