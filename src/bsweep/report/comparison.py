"""The tables and the page of a comparison of studies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bsweep.analysis import SEEDS_LEVEL, Comparison
from bsweep.analysis.conclusions.comparing import TIMES
from bsweep.analysis.study.text_tables import as_texts
from bsweep.core.whole_files import write_whole
from bsweep.core.words import counted
from bsweep.report.formats import Table
from bsweep.report.page import page, static

_CAPTIONS = {
    "step_seconds": "Median time of a step, in seconds. A ratio above 1 is slower.",
    "seconds_to_target": "Training time to {target}, in seconds. A ratio above 1 is slower.",
    "accuracy": "Final accuracy.",
}


def tables(comparison: Comparison) -> Iterator[Table]:
    """Yield the tables of a comparison that have rows: what differs, then one for each measure.

    Args:
        comparison: The comparison.
    """
    if len(comparison.differences):
        yield Table(
            'What the studies differ in. "varies": the runs of one study have several values.',
            comparison.differences,
        )
    measured = comparison.cells[comparison.cells["verdict"] != ""]
    for measure, cells in measured.groupby("measure", sort=False):
        num_tested = cells["p_holm"].notna().sum()
        targets = " / ".join(dict.fromkeys(cells["target"].dropna()))
        points = zip(cells["points_reference"], cells["points"], strict=True)
        seeds = [f"{len(one)}, {len(other)}" for one, other in points]
        change = "ratio" if measure in TIMES else "difference"
        headings = {
            "cell": "cell", **({"study": "study"} if len(comparison.studies) > 2 else {}),
            "seeds": "seeds", "reference": "reference", "compared": "compared", "change": change,
            "interval": "interval", "p_holm": "p", "verdict": "verdict",
        }  # fmt: skip
        texts = as_texts(cells.assign(seeds=seeds), headings, ("low", "high"))
        yield Table(
            f"{_CAPTIONS[str(measure)].format(target=targets)} Means over seeds in the reference, "
            f"{comparison.studies[0]}, and in each other study. Intervals ({SEEDS_LEVEL}) and "
            f"p-values have Holm's correction for the {counted(num_tested, 'cell')} tested here.",
            texts.replace({"interval": {"": "-"}}),
        )


def write_page(comparison: Comparison, path: Path, command: str) -> None:
    """Write a comparison as an HTML page that needs no network.

    Args:
        comparison: The comparison.
        path: The page; a file of that name is replaced, and its folder is made if it is missing.
        command: The command that the page names as its origin.
    """
    reference, *compared = comparison.studies
    heading = f"{', '.join(compared)} compared with {reference}"
    num_cells = (comparison.cells["measure"] == "accuracy").sum()
    text = page(
        "comparison.html",
        f"{heading} - bsweep",
        [static("reader.js", "comparison.js")],
        heading=heading,
        num_cells=counted(num_cells, "common cell"),
        brief=comparison.brief(),
        warnings=comparison.warnings,
        tables=[*tables(comparison)],
        command=command,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
