"""A study's first table, recomputed from its metrics.jsonl without the analysis, beside what the
report says.

    bsweep report results/quickstart && python scripts/recompute.py results/quickstart
    [REPORT_FOLDER]

A cell is what differs in the seed alone; it is held against the row of the report's `table.md` that
comes closest. The exit code is 1 if a value differs by more than its rounding, 2 if there is no
such report.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

COLUMNS = ("time (s)", "examples/s", "test accuracy", "test loss")
# The 97.5 % points of Student's t by number of seeds, from a printed table.
T_975 = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
Seeds = dict[str, list[tuple[float, ...]]]  # `COLUMNS` of each run, by seed


def recomputed(study: Path) -> dict[str, Seeds]:
    """The completed runs by cell, that is by their configuration without the seed."""
    cells: dict[str, Seeds] = {}
    for summary in sorted(study.glob("*/summary.json")):
        if json.loads(summary.read_text())["status"] != "completed":
            continue
        records = [
            json.loads(line) for line in summary.with_name("metrics.jsonl").read_text().splitlines()
        ]
        config = [record["config"] for record in records if record["type"] == "start"][-1]
        seed = config.pop("seed")
        epochs = list(
            {record["epoch"]: record for record in records if record["type"] == "epoch"}.values()
        )
        seconds = sum(epoch["train_seconds"] for epoch in epochs)
        examples = sum(epoch["train_seconds"] * epoch["images_per_second"] for epoch in epochs)
        values = (seconds, examples / seconds, epochs[-1]["test_accuracy"], epochs[-1]["test_loss"])
        cells.setdefault(json.dumps(config, sort_keys=True), {}).setdefault(str(seed), []).append(
            values
        )
    return cells


def first_table(path: Path) -> list[dict[str, str]]:
    """The rows of a Markdown file's first table, by heading."""
    lines = re.search(r"(^\|.*\n)+", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines, f"{path} has no table"
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()
    )
    # The report names the examples of the evaluations.
    names = [re.sub("^(test or )?validation", "test", name) for name in head]
    return [dict(zip(names, row, strict=True)) for row in rows]


def numbers(text: str) -> list[str]:
    """What stands in a cell such as `74.1 ± 1.9`, `186.1, 201.3` or `74.1`."""
    return re.findall(r"-?[\d.]+", text)


def is_rounded(value: float, text: str) -> bool:
    return abs(value - float(text)) <= 0.51 * 10.0 ** -len(text.partition(".")[2])


def agree(values: Sequence[float], cell: str) -> bool:
    told = numbers(cell)
    return len(told) == len(values) and all(map(is_rounded, values, told))


def over_seeds(values: Sequence[float]) -> list[float]:
    """What a table shows: one or two seeds as they are, of more the mean and half the width of its
    interval.
    """
    count = len(values)
    return list(values) if count < 3 else [mean(values), stdev(values) * T_975[count] / count**0.5]


def main(study: Path, table: Path) -> int:
    rows, differing = first_table(table), 0
    for config, seeds in recomputed(study).items():
        by_seed = [tuple(map(mean, zip(*runs, strict=True))) for runs in seeds.values()]
        own = [over_seeds(values) for values in zip(*by_seed, strict=True)]
        columns = dict(zip(COLUMNS, own, strict=True))
        row = max(
            rows, key=lambda row: sum(agree(columns[column], row[column]) for column in COLUMNS)
        )
        told = json.loads(config)
        where = (
            f"local_batch={told['local_batch']} num_workers={told['num_workers']} n={len(seeds)}"
        )
        print(f"{told['strategy']['name']} {where}: the row {', '.join(list(row.values())[:3])}")
        for column, values in columns.items():
            mark = "" if agree(values, row[column]) else "  DIFFERS"
            print(
                f"  {column:13}  {', '.join(f'{value:.6g}' for value in values):20}  "
                f"{row[column]}{mark}"
            )
            differing += bool(mark)
    print(f"{differing} values differ.")
    return int(differing > 0)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    study, *folder = map(Path, sys.argv[1:])
    table = Path(*folder or (study / "report",), "table.md")
    if not table.is_file():
        print(f"{table}: no such file. Write it with: bsweep report {study}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(study, table))
