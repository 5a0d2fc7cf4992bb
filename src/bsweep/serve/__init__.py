"""Pages of studies, served over HTTP while their sweeps run.

Study folders come in, and pages and events go out, to browsers that know the token of the address.
This package answers GET requests only, and writes nothing to a study's folder. What a page says is
decided by `study` (states and estimates) and `report`.
"""
