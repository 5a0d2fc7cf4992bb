"""The schema of a run's configuration: a settings class (card) for each variant, and a module for
each group of variants.

Its input is plain values, from a YAML file or as Hydra composed them. Its output is a checked,
frozen `RunConfig` with its run id, or a `ConfigError` that lists all problems. A card holds the
keys of its variant and every fact that other code may ask about it (`groups`). The facts that a
card may ask about its point are in `point`. A card names the code that builds its variant; the code
that needs it imports it by that name.

This package must not import torch or Hydra. It must not know which files a run's folder holds,
except the run's configuration and the user's own code. Other packages ask a card for facts; they
never compare names or types of variants.
"""
