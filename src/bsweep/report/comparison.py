"""The tables and the page of a comparison of studies."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from bsweep.analysis import Comparison
from bsweep.analysis.conclusions.comparing import MEASURES
from bsweep.analysis.study.numbers import number
from bsweep.core.whole_files import write_whole
from bsweep.core.words import counted
from bsweep.report.formats import Table, as_html
from bsweep.report.page import as_list, headlines, page, static

_CAPTIONS = {
    "step_seconds": "Median time of a step, in seconds. A ratio above 1 is slower.",
    "seconds_to_target": "Training time to {target}, in seconds. A ratio above 1 is slower.",
    "accuracy": "Final accuracy.",
}


def tables(found: Comparison) -> Iterator[Table]:
    """Yield the tables of a comparison that have rows: what differs, then one for each measure.

    Args:
        found: The comparison.
    """
    if len(found.differences):
        yield Table(
            'What the studies differ in. "varies": the runs of one study have several values.',
            found.differences,
        )
    for measure, kind in MEASURES.items():
        cells = found.cells.assign(verdict=found.verdicts(measure))
        cells = cells[cells["verdict"] != ""]
        if cells.empty:
            continue
        num_tested = cells[f"{measure}_p_holm"].notna().sum()
        targets = " / ".join(dict.fromkeys(cells["target"].dropna()))
        points = zip(cells[f"{measure}_points_reference"], cells[f"{measure}_points"], strict=True)
        ends = zip(cells[f"{measure}_low"], cells[f"{measure}_high"], strict=True)
        yield Table(
            f"{_CAPTIONS[measure].format(target=targets)} Means over seeds in the reference, "
            f"{found.studies[0]}, and in each other study. Intervals (95 %) and p-values have "
            f"Holm's correction for the {counted(num_tested, 'cell')} tested here.",
            pd.DataFrame({
                "cell": cells["cell"],
                **({"study": cells["study"]} if len(found.studies) > 2 else {}),
                "seeds": [f"{len(one)}, {len(other)}" for one, other in points],
                "reference": cells[f"{measure}_reference"].map(number),
                "compared": cells[measure].map(number),
                kind: cells[f"{measure}_{kind}"].map(number),
                "interval": [
                    "-" if low != low else f"{number(low)} to {number(high)}"
                    for low, high in ends
                ],
                "p": cells[f"{measure}_p_holm"].map(number),
                "verdict": cells["verdict"],
            }),
        )  # fmt: skip


def write_page(found: Comparison, path: Path, command: str) -> None:
    """Write a comparison as an HTML page that needs no network.

    Args:
        found: The comparison.
        path: The page; a file of that name is replaced, and its folder is made if it is missing.
        command: The command that the page names as its origin.
    """
    others = "`bsweep compare --json` prints all rows."
    of_tables = "\n".join(as_html(table, others) for table in tables(found))
    reference, *compared = found.studies
    title = f"{', '.join(compared)} compared with {reference}"
    body = f"""<header><h1 id="title">{html.escape(title)}</h1>
<p>{counted(len(found.cells), "common cell")}.</p>
<div class="tools" hidden><select id="theme" aria-label="Look"></select></div></header>
<main class="paper">
<p id="misread" role="status" hidden></p>
{headlines(found.brief())}
{as_list("Warnings", found.warnings, "warnings")}
<h2>Tables</h2>
{of_tables}
<p>Written by: {html.escape(command)}</p>
</main>"""
    script = "".join(map(static, ("reader.js", "comparison.js")))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page(f"{title} - bsweep", body, [script]).encode())
