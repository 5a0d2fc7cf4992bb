"""Advice from runs: `recommend` trains runs to find the best cell.

`recommend` takes a grid and a target, and answers with the recommended cell and an interval of its
time or cost. The runs that a search makes are an ordinary study. The search keeps its other facts
in `recommend.json`.

This package must not know how a point is run, which `study` and `launch` know, nor how a prediction
is fitted, which `analysis.prediction` knows.
"""
