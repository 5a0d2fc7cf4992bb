"""The tables and the page of a comparison of studies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from bsweep.analysis import Comparison
from bsweep.analysis.comparison import MEASURES
from bsweep.analysis.numbers import number
from bsweep.core.sentences import joined, said, term
from bsweep.core.whole_files import write_whole
from bsweep.core.words import escaped
from bsweep.report.formats import Table, as_html
from bsweep.report.page import as_list, headlines, page, spoken, static

CAPTIONS = {
    "step_seconds": "Median time of a step, in seconds. A ratio above 1 is slower.",
    "seconds_to_target": "Training time to {target}, in seconds. A ratio above 1 is slower.",
    "accuracy": "Final accuracy.",
}
"""By measure: the template of the sentence that begins the caption of its table."""


def tables(found: Comparison) -> Iterator[Table]:
    """Yield the tables of a comparison that have rows: what differs, then one for each measure.

    Args:
        found: The comparison.
    """
    if len(found.differences):
        caption = said(
            'What the studies differ in. "varies": the runs of one study have several values.'
        )
        kinds, keys, *values = (found.differences[name] for name in found.differences)
        of_studies = dict(zip(found.studies, values, strict=True))
        yield Table(
            caption,
            _table({said("kind"): map(term, kinds), said("key"): keys, **of_studies}),
        )
    for measure, kind in MEASURES.items():
        cells = found.cells.assign(verdict=found.verdicts(measure))
        cells = cells[cells["verdict"] != ""]
        if cells.empty:
            continue
        of_cells = said(
            "Means over seeds in the reference, {reference}, and in each other study. Intervals "
            "(95 %) and p-values have Holm's correction for the {n:cell} tested here.",
            reference=found.studies[0],
            n=cells[f"{measure}_p_holm"].notna().sum(),
        )
        targets = joined(dict.fromkeys(cells["target"].dropna()), " / ")
        points = zip(cells[f"{measure}_points_reference"], cells[f"{measure}_points"], strict=True)
        ends = zip(cells[f"{measure}_low"], cells[f"{measure}_high"], strict=True)
        yield Table(
            joined([term(CAPTIONS[measure], target=targets), of_cells]),
            _table({
                said("cell"): cells["cell"],
                **({said("study"): cells["study"]} if len(found.studies) > 2 else {}),
                said("seeds"): [f"{len(one)}, {len(other)}" for one, other in points],
                said("reference"): cells[f"{measure}_reference"].map(number),
                said("compared"): cells[measure].map(number),
                term(kind): cells[f"{measure}_{kind}"].map(number),
                said("interval"): [
                    "-" if low != low
                    else said("{least} to {most}", least=number(low), most=number(high))
                    for low, high in ends
                ],
                "p": cells[f"{measure}_p_holm"].map(number),
                said("verdict"): map(term, cells["verdict"]),
            }),
        )  # fmt: skip


def _table(columns: Mapping[str, Iterable[str]]) -> pd.DataFrame:
    """Return texts by heading as a table, in which sentences stay sentences."""
    found = pd.DataFrame({at: [*texts] for at, texts in enumerate(columns.values())}, dtype=object)
    return found.set_axis(pd.Index([*columns], dtype=object), axis="columns")


def write_page(found: Comparison, path: Path, command: str) -> None:
    """Write a comparison as an HTML page that needs no network.

    Args:
        found: The comparison.
        path: The page; a file of that name is replaced, and its folder is made if it is missing.
        command: The command that the page names as its origin.
    """
    others = said("`bsweep compare --json` prints all rows.")
    of_tables = "\n".join(as_html(table, spoken, others) for table in tables(found))
    reference, *compared = found.studies
    title = said(
        "{others} compared with {reference}", others=", ".join(compared), reference=reference
    )
    body = f"""<header><h1 id="title">{spoken(title)}</h1>
<p>{spoken(said("{n:common cell}.", n=len(found.cells)))}</p>
<div class="tools" hidden><select id="lang" aria-label="Language, 언어"></select>
<select id="theme" aria-label="Look, 화면"></select></div></header>
<main class="paper">
<p id="misread" role="status" hidden></p>
{headlines(found.brief(), spoken)}
{as_list(said("Warnings"), found.warnings, "warnings", spoken)}
<h2>{spoken(said("Tables"))}</h2>
{of_tables}
<p>{spoken(said("Written by: {command}", command=escaped(command)))}</p>
</main>"""
    script = "".join(map(static, ("texts.js", "reader.js", "comparison.js")))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page(f"{title} - bsweep", body, [script]).encode())
