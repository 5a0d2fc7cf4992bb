"""Adapters of `bsweep.join()` for frameworks: each module serves one of them, and needs it.

    from bsweep.external.adapters.lightning import BsweepCallback

This package imports nothing. `calls` serves frameworks that own the training loop and call back.
"""
