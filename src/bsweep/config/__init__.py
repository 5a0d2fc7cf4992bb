"""The schema of a run's configuration: the settings classes (cards) of all variants, in modules by
group.

Its input is plain values, from a YAML file or as Hydra composed them. Its output is a checked,
frozen `RunConfig` with its run id, or a `ConfigError`. The error lists the invalid values; if there
are none, it lists the values that contradict each other (`rules`). A card holds the keys of its
variant, the facts that other code may ask about it (`groups`), its rules and its warnings. Two
modules hold formulas that runs and their analysis share (`uneven`, `pollux`). A card
names the code that builds its variant, and the code that needs the variant imports it by that name.

This package must not import torch or Hydra. It must not know which files a run's folder holds,
except the run's configuration and the user's own code. Other packages ask a card for facts; they
never compare names or types of variants.
"""
