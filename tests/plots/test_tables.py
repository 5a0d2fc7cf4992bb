"""The tables of the figures of published studies have the numbers of `tables.csv`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bsweep
from bsweep import analysis, plots
from bsweep.analysis.study.caching import caching

MEASURED = Path(__file__).parents[2] / "results/measured"
EXPECTED = pd.read_csv(Path(__file__).with_name("tables.csv"), index_col="study")


def summary(study: analysis.Study) -> pd.DataFrame:
    """How many values each column of each figure's table has, their mean, and the mean of the
    values times the number of their row.
    """
    with caching():
        tables = {name: figure.table(study) for name, figure in plots.FIGURES.items()}
    rows = []
    for name, table in tables.items():
        for column, values in table.select_dtypes("number").astype(float).items():
            finite = values[np.isfinite(values.to_numpy())].to_numpy()
            if len(finite):
                by_row = finite * np.arange(1, len(finite) + 1)
                rows.append((name, str(column), len(finite), finite.mean(), by_row.mean()))
    columns = ["figure", "column", "values", "mean", "mean_by_row"]
    return pd.DataFrame(rows, columns=columns)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", EXPECTED.index.unique())
def test_tables_of_figures_have_the_committed_numbers(name: str) -> None:
    expected = EXPECTED[EXPECTED.index == name].reset_index(drop=True)
    found = summary(bsweep.load(MEASURED / name))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-6, check_dtype=False)
