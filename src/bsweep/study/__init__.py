"""A study: a folder of runs that belong together, and the sweep that trains them.

Points come in. Run folders go out, each with how it ended: what is done is skipped, what is left is
claimed, launched and tried again where that may help (`attempts`), one after another or several at
once (`parallel`). How far a study is (`states`, `overview`), how long the rest takes (`estimate`)
and who is at work in it (`attendance`) is read from the folders.

It must not know what the numbers mean: it reads how runs ended and how long they took, and never
loads the analysis. A point that fails is a result, never the end of the sweep.
"""
