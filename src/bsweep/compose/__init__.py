"""The composition of points from the arguments of a typed command, with all code that calls Hydra.

Overrides come in, as a person typed them. Checked RunConfigs go out, one for each point of the
grid, or a refusal in plain words. `words` reads what was typed and explains Hydra's refusals.
`card_source` gives Hydra the defaults of the schema. `hydra_grid` starts Hydra. `grid` composes the
points, and leaves to Hydra only those that it cannot copy from others.

This package must not know whether a point has been run, nor how it is launched: it reads no run
folder.
"""
