"""Measurements of bsweep's speed beside plain programs; `python -m benches` runs them."""
