"""The report of a study: tables, figures, and one HTML page that needs no network.

A study's folder comes in, and a folder of files goes out. Tables are CSV, Markdown, LaTeX and HTML.
Files of an earlier report are replaced or removed once all new ones are written. All
numbers come from `analysis` and all figures from `plots`; this room adds headings, formats and an
order.

It must not compute a number of its own, nor know how a run came about.
"""

from __future__ import annotations

import base64
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from bsweep import analysis, plots
from bsweep.analysis import Study
from bsweep.analysis.study.caching import caching
from bsweep.analysis.study.columns import TABLES, heading
from bsweep.core.ranks import num_cores
from bsweep.core.words import counted, first_of
from bsweep.plots.styles import settings_of
from bsweep.report import formats, images, tables
from bsweep.report.document import document
from bsweep.report.interactive import html_of
from bsweep.report.page import html_from

__all__ = ["first_lines", "idle_text", "write"]

_PICTURES = ("pdf", "svg", "png")
_FIGURE_FILES = ("csv", *_PICTURES)  # a figure's table and its pictures
_MAX_RUN_IDS = 500  # below a figure; all are in runs.csv


def write(
    study_dir: str | Path,
    out_dir: str | Path | None = None,
    command: str | None = None,
    *,
    mix: bool = False,
    beside: bool = False,
    columns: Sequence[str] = (),
    style: str | None = None,
    network: str | Sequence[str] = (),
    workers: Sequence[int] | None = None,
    price_per_worker_hour: float | None = None,
    measured_network: str | None = None,
    speeds: Sequence[float] = (),
    say: Callable[[str], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the report of a study and return the path of the HTML page.

    Files of an earlier report there are replaced, or removed if there is no new one, once all new
    ones are written; the page comes last.

    Args:
        study_dir: The study's folder.
        out_dir: The folder of the report, by default the study's folder `report`.
        command: The command that the page names as its origin.
        mix: Accept runs that do not compare. Without it they are refused.
        beside: Use the times of runs that had others beside them. Without it those times are left
            out.
        columns: The headings of the columns that the tables for LaTeX keep; none: all. A table that
            has none of them keeps all of its columns.
        style: The paper for which figures are made, one of `bsweep.plots.STYLES`.
        network: The links between workers of larger clusters, whose cells are simulated and marked
            as such; see `bsweep.predict`. The first one has the map and the recommendation.
        workers: The numbers of workers of these clusters. None takes all doublings up to 64.
        price_per_worker_hour: The price of an hour of one worker, for the figure of these clusters.
        measured_network: The links on which the study was measured; see `bsweep.simulate`.
        speeds: Relative speeds of uneven workers on simulated clusters; see `bsweep.simulate`.
        say: A function that is called with a line for each run that cannot be read, and for times
            that are left out.
        tell: A function that is called with each line of the answer: the recommendation or the best
            cell, how sure it is, a line for each network, and what to run next.

    Returns:
        The path of the file `report.html` in the report's folder.

    Raises:
        FileNotFoundError: See `bsweep.load`.
        ValueError: See `bsweep.load`; also if one of `columns` is in no table, there is no such
            style, or a network is given with which nothing can be simulated.
    """
    if style is not None:
        settings_of(style)
    larger = network, workers, price_per_worker_hour, measured_network, tuple(speeds)
    _check_larger(*larger)
    study = analysis.load(study_dir, mix=mix, beside=beside)
    for run_id, why in study.skipped.items():
        say(f"{run_id}: left out of the report: {why}")
    if not beside and (left_out := analysis.left_out(study.provenance)):
        say(left_out)
    out = study.folder / "report" if out_dir is None else Path(out_dir).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as new:
        with caching():
            if network:
                study = analysis.with_networks(study, *larger)
            for line in analysis.answer_lines(study):
                tell(line)
            flags = " --mix" * mix + " --beside" * beside
            flags += f" --style {style}" if style else ""
            flags += f" --columns {shlex.quote(','.join(columns))}" if columns else ""
            flags += study.larger.words() if study.larger else ""
            made_by = command or f"bsweep report {shlex.quote(str(study_dir))}{flags}"
            _write_files(study, Path(new), made_by, columns, style)
        for path in _files_of_reports(out):  # an earlier report may have had more
            path.unlink()
        for path in sorted(Path(new).iterdir(), key=lambda path: path.suffix == ".html"):
            path.replace(out / path.name)
    return out / "report.html"


def _check_larger(network: str | Sequence[str], *others: object) -> None:
    names = ("--workers", "--price-per-worker-hour", "--measured-network", "--speeds")
    values = zip(names, others, strict=True)
    alone = [name for name, value in values if value is not None and value != ()]
    if alone and not network:
        raise ValueError(
            f"{' and '.join(alone)} without a network: say which links the workers have, as in "
            "--network 25gbit,10us."
        )


def _write_files(
    study: Study, folder: Path, command: str, columns: Sequence[str], style: str | None
) -> None:
    for name in ("provenance", *TABLES):
        table: pd.DataFrame = getattr(study, name)
        if len(table) or name in ("runs", "epochs"):
            table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
    all_tables = list(tables.tables(study))
    (folder / "table.md").write_text(formats.as_markdown(study.name, all_tables), encoding="utf-8")
    texts = formats.as_latex(study.name, all_tables, columns)
    (folder / "table.tex").write_text("\n".join(texts.values()), encoding="utf-8")
    for name, text in texts.items():
        (folder / f"table_{name}.tex").write_text(text, encoding="utf-8")
    captions = _write_figures(study, folder, style)
    page = _page(study, all_tables, captions, folder, command)
    (folder / "report.html").write_text(page, encoding="utf-8")


def _files_of_reports(folder: Path) -> Iterator[Path]:
    """Yield the tables and figures that reports have written to a folder."""
    yield from folder.glob("table_*.tex")
    names = [f"{name}.csv" for name in ("provenance", *TABLES)]
    names += [f"{name}.{suffix}" for name in plots.FIGURES for suffix in _FIGURE_FILES]
    yield from (path for path in map(folder.joinpath, names) if path.is_file())


def _write_figures(study: Study, folder: Path, style: str | None) -> dict[str, str]:
    """Write all figures of a report to files, and return their captions.

    Call it within `caching`: `plots.figures` has computed the tables that they draw. As
    drawing takes most of a report's time, Linux shares the figures among forked processes, which
    have these tables. Elsewhere a fork can be unsafe, and one process draws all.
    """
    names = list(plots.figures(study))
    draw = partial(_write_figure, study, folder, style)
    num_processes = min(num_cores(), len(names), _MOST_PROCESSES)
    if num_processes < 2 or sys.platform != "linux":
        return dict(map(draw, names))
    # A fork has what draws a figure without pickling it.
    with ProcessPoolExecutor(num_processes, get_context("fork"), _draw.set, (draw,)) as forks:
        return dict(forks.map(_drawn, names))


_MOST_PROCESSES = 4  # each takes the memory of matplotlib, and more save little
_draw: ContextVar[Callable[[str], tuple[str, str]]] = ContextVar("what a fork draws")


def _drawn(name: str) -> tuple[str, str]:
    return _draw.get()(name)


def _write_figure(study: Study, folder: Path, style: str | None, name: str) -> tuple[str, str]:
    """Write one figure and its table to files, and return the figure's name and caption."""
    figure, table = plots.FIGURES[name](study, style), plots.FIGURES[name].table(study)
    is_indexed = table.index.names != [None]
    table.to_csv(folder / f"{name}.csv", index=is_indexed, lineterminator="\n")
    for suffix in _PICTURES:
        plots.save(figure, folder / f"{name}.{suffix}")
    return name, plots.caption(figure)


def first_lines(study: Study) -> list[str]:
    """Return the first lines of a report's page: the recommendation and the best cells.

    What is missing for a recommendation comes last.

    Args:
        study: The study.

    Returns:
        One paragraph for each element.
    """
    with caching():
        return [
            *analysis.recommendations(study),
            *analysis.headlines(study),
            *analysis.missing_recommendations(study),
        ]


def idle_text(study: Study) -> str:
    """Return a text table of the workers' idle seconds, of their total and, if the study has a
    baseline, of the total's change from it.

    The text is empty if no run with recorded rounds has completed.

    Args:
        study: The study.

    Returns:
        The lines of the table, or an empty text.
    """
    idle = analysis.idle_table(study)
    if idle.empty:
        return ""
    table = tables.idle_seconds(study, idle)
    return formats.as_text(replace(table, cells=table.cells.drop(columns="n", errors="ignore")))


def _page(
    study: Study,
    all_tables: Sequence[formats.Table],
    captions: dict[str, str],
    folder: Path,
    command: str,
) -> str:
    where = " in runs.csv" * (len(study.runs) > _MAX_RUN_IDS)
    data, failures = document(study), analysis.failures(study.runs)
    pictures = images.within_page(folder, captions)
    papers = html_from(
        "papers.html",
        summary=data["summary"],
        figures=[
            {"name": name, "caption": captions[name], "kind": kind, "image": _base64(image)}
            for name, (kind, image) in pictures.items()
        ],
        suffixes=_FIGURE_FILES,
        run_ids=first_of([*study.runs["run_id"]], _MAX_RUN_IDS) + where,
        unreported=_unreported(study),
        tables=all_tables,
        failures=None if failures.empty else _failures(failures),
        against_published=analysis.against_published(study),
        provenance={"written by": command, "study": study.name} | _provenance(study.provenance),
        shared=_shared(study),
    )
    return html_of(data, papers)


def _base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


_REPORTED = {
    "test_accuracy": (("accuracy_by_time", "accuracy_by_epoch"), "run.evaluated"),
    "test_loss": (("loss_by_epoch",), "run.evaluated"),
    "exchange_seconds": (("seconds_per_step",), "run.log"),
}
"""By column of the epochs: the figures that need it, and the method that reports it."""


def _unreported(study: Study) -> list[str]:
    """Return a line for each figure that is missing or incomplete because the user's own program
    did not report what the figure shows.
    """
    runs = study.runs[study.runs["strategy"] == "program"]
    epochs = study.epochs[study.epochs["run_id"].isin(runs["run_id"])]
    if epochs.empty:
        return []
    return [
        f"{' and '.join(figures)}: no program reported {column}. Call {method}({column}=...)."
        for column, (figures, method) in _REPORTED.items()
        if epochs[column].isna().all()
        and (column != "exchange_seconds" or runs["num_workers"].max() > 1)
    ]


def _failures(runs: pd.DataFrame) -> formats.Table:
    shown = runs.astype(str).assign(status=runs["status"].str.replace("_", " "))
    return formats.Table("No mean includes these runs.", shown.rename(columns=heading))


def _provenance(provenance: pd.DataFrame) -> dict[str, str]:
    """Return texts that list the values of the runs in fields of their provenance, by field.

    Where runs differ, the text has the five most common values, each with its number of runs. A
    field in which no run has a value is left out.
    """
    entries = {}
    for column, values in provenance.drop(
        columns=["run_id", "launched_at"], errors="ignore"
    ).items():
        counts = Counter(str(value) for value in values.dropna() if value != "").most_common()
        shown = [f"{value} ({counted(count, 'run')})" for value, count in counts[:5]]
        if len(counts) == 1:
            shown = [counts[0][0]]
        elif len(counts) > 5:
            shown.append(f"{len(counts) - 5} more in provenance.csv")
        if shown:
            entries[str(column)] = "; ".join(shown)
    return entries


def _shared(study: Study) -> dict[str, str]:
    settings = study.runs[analysis.settings(study.runs)]
    same = settings.loc[:, (settings.nunique() == 1) & settings.notna().all()]
    return {str(name): analysis.setting_text(values.iloc[0]) for name, values in same.items()}
