"""Pages of a study, served over HTTP while its sweep runs.

The study's folder comes in, and pages and events go out, to browsers that know the token of the
address. This package answers GET requests only, and writes nothing to the folder. What a page says
is decided by `study` (states and estimates) and `report`.
"""
