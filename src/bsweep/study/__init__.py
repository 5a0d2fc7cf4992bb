"""A study: a folder of runs that belong together, and the sweep that trains them.

Points come in. Run folders go out, each with the status of its run. Points that are done are
skipped. The others are claimed, launched, and tried again where a retry may help (`run_point`), one
after another or several at once (`parallel`). The folders tell how far a study is (`states`,
`overview`), how long the rest takes (`estimate`) and which sweeps work on it (`claims`).

This package must not interpret the measurements: it reads how runs ended and how long they took,
and never loads the analysis. A point that fails does not end the sweep.
"""
