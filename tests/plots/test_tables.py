"""The tables of the figures of a few studies have the numbers and texts of `tables.csv`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bsweep
from bsweep import analysis, plots
from bsweep.analysis.study.caching import caching
from tests.support.split_study import write_split_study

MEASURED = Path(__file__).parents[2] / "results/measured"
PATH = Path(__file__).with_name("tables.csv")
STUDIES = (
    "parameter_sharding_1gbit",
    "groupnorm",
    "geo_distributed",
    "split",
    "groupnorm/policies",
    "groupnorm with 1gbit",
)
FIGURES = {"groupnorm/policies": ["batch_by_epoch"], "groupnorm with 1gbit": ["larger_clusters"]}
"""The figures of which alone a study has the tables."""


def loaded(name: str, folder: Path) -> analysis.Study:
    """Load a published study, that study with larger clusters, or the synthetic one of split
    models.
    """
    if name == "split":
        return bsweep.load(write_split_study(folder / name))
    published, _, network = name.partition(" with ")
    study = bsweep.load(MEASURED / published)
    return analysis.with_networks(study, network, [1, 2, 8]) if network else study


def summary(study: analysis.Study, names: list[str]) -> pd.DataFrame:
    """How many values each column of each figure's table has, their mean, and the mean of the
    values times the number of their row. A text is the number of its first place among `texts`.
    """
    with caching():
        tables = {name: plots.FIGURES[name].table(study) for name in names}
    rows = []
    for name, table in tables.items():
        for column, values in columns_of(table):
            texts = ""
            if not pd.api.types.is_numeric_dtype(values) or values.dtype == bool:
                codes, found = pd.factorize(values.dropna())
                values, texts = pd.Series(codes), "; ".join(map(str, found))
            numbers = values.to_numpy(float)
            finite = numbers[np.isfinite(numbers)]
            if len(finite):
                by_row = finite * np.arange(1, len(finite) + 1)
                rows.append((name, column, len(finite), finite.mean(), by_row.mean(), texts))
    columns = ["figure", "column", "values", "mean", "mean_by_row", "texts"]
    return pd.DataFrame(rows, columns=columns)


def columns_of(table: pd.DataFrame) -> list[tuple[str, pd.Series[Any]]]:
    """The named levels of the index, and the columns whose values are numbers or texts."""
    levels = [str(name) for name in table.index.names if name is not None]
    columns = [(name, table.index.get_level_values(name).to_series()) for name in levels]
    columns += [(str(name), values) for name, values in table.items()]
    return [
        (name, values)
        for name, values in columns
        if values.dtype != object or values.dropna().map(lambda one: isinstance(one, str)).all()
    ]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", STUDIES)
def test_tables_of_figures_have_the_committed_values(name: str, tmp_path: Path) -> None:
    kept = pd.read_csv(PATH, index_col="study", keep_default_na=False)
    expected = kept[kept.index == name].reset_index(drop=True)
    found = summary(loaded(name, tmp_path), FIGURES.get(name, [*plots.FIGURES]))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-6, check_dtype=False)
