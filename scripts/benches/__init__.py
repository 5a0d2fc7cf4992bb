"""The families of cases of `scripts/bench.py`."""
