"""Advice that takes runs, or looks at runs again.

A grid and a target come in (`recommend`), or a study that is on record (`replay`). An answer goes
out: the best cell with its interval, or what another batching policy would have done. The runs that
a search asks for are an ordinary study; what else it knows is in its `recommend.json`.

It must not know how a point is run or a prediction is fitted: `study` and `launch` do the one,
`analysis.prediction` the other, and it decides what to run next.
"""
