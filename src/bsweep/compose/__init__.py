"""Points from what a person types, and all that knows Hydra.

Overrides come in, as a person typed them. Checked RunConfigs go out, one for each point of the
grid, or a refusal in plain words. `overrides` makes words ready for Hydra and explains what it
refuses; `hydra_run` starts Hydra; `grid` composes the points without asking Hydra for each.

It must not know whether a point has been run, nor how it is launched: no folder of a study is
looked at here.
"""
