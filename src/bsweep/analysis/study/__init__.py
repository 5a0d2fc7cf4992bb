"""A study's folder becomes tables, in memory: a row for each run, epoch, evaluation and so on."""
