"""A study's report: its tables as CSV, Markdown and LaTeX, its figures, and one HTML page that needs no network."""

from __future__ import annotations

import base64
import html
import math
import re
import shlex
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd

from bsweep import analysis, plots
from bsweep.analysis import Study

# Cells that differ in these are no alternatives to each other, so that each group of them has its own best.
_CONTEXT = ("planned_epochs", "model", "stem", "data", "num_train", "device", "hardware")
_MAX_NAMED_RIVALS = 3
_FOUR_DECIMALS = ("accuracy", "loss", "r_squared", "speedup", "efficiency", "_ratio", "gain", "share", "load")
_MAX_NODES = 8  # that have a column each
_WHOLE = ("num_servers", "max_lead")  # means of whole numbers
_HEADINGS = {
    "num_workers": "workers",
    "local_batch": "local batch",
    "global_batch": "global batch",
    "planned_epochs": "epochs",
    "lr": "base learning rate",
    "lr_rule": "learning-rate rule",
    "n": "n",
    "other_statuses": "not completed",
    "train_seconds": "time (s)",
    "images_per_second": "examples/s",
    "train_accuracy": "train accuracy",
    "train_loss": "train loss",
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
    "smaller_batch": "against batch",
    "base_workers": "against workers",
    "speedup": "speed-up",
    "efficiency": "efficiency",
    "fixed_seconds": "a (s)",
    "batch_seconds": "c (s)",
    "r_squared": "R²",
    "num_batches": "batch sizes",
    "step_seconds": "fixed cost of a step (s)",
    "image_seconds": "time per example of one worker (s)",
    "compute_seconds": "computing (s)",
    "codec_seconds": "codec (s)",
    "exposed_exchange_seconds": "exposed exchange (s)",
    "wait_seconds": "waiting (s)",
    "total_seconds": "total (s)",
    "sent_megabytes": "sent by a worker (MB)",
    "num_servers": "servers",
    "busiest_load": "load of the busiest",
    "queue_seconds": "queue of a push (s)",
    "max_lead": "largest lead (clocks)",
    "layer_share": "largest share by layer",
    "memory_share": "by memory",
    "elapsed_seconds": "training time (s)",
    "num_examples": "examples",
    "idle_seconds": "total (s)",
    "idle_seconds_per_round": "total of a round (s)",
    "change": "change (%)",
    "idle_share": "idle (% of time)",
    "exchange_share": "exchange (% of time)",
    "examples_per_second": "examples/s",
    "tokens_per_second": "tokens/s",
}


@dataclass(frozen=True)
class _Table:
    caption: str
    cells: pd.DataFrame  # of text


def write(study_dir: str | Path, out_dir: str | Path | None = None, command: str | None = None) -> Path:
    """Write the report of a study, by default to its folder `report`, and return the path of the HTML page.

    Files of an earlier report are replaced once all new ones are written, the page last. `command` is what the page
    says it was made with.

    Raises:
        FileNotFoundError, ValueError: see `bsweep.load`.
    """
    study = analysis.load(study_dir)
    out = study.folder / "report" if out_dir is None else Path(out_dir).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as name:
        new = Path(name)
        _write_data(study, new)
        tables = list(_tables(study))
        (new / "table.md").write_text(_markdown(study, tables), encoding="utf-8")
        (new / "table.tex").write_text(_latex(study, tables), encoding="utf-8")
        captions = _write_figures(study, new)
        page = _page(study, tables, captions, new, command or f"bsweep report {shlex.quote(str(study_dir))}")
        (new / "report.html").write_text(page, encoding="utf-8")
        for path in sorted(new.iterdir(), key=lambda path: path.suffix == ".html"):
            path.replace(out / path.name)
    return out / "report.html"


def headlines(study: Study) -> list[str]:
    """Which batch size was fastest and which most accurate, in words; once for each data set, model or hardware."""
    cells = analysis.cells(study.runs)
    lines = []
    pending = int(study.runs["status"].isin(["unfinished", "interrupted"]).sum())
    if pending:
        lines.append(f"Unfinished: {pending} of {plots.counted(len(study.runs), 'run')} may still change what follows.")
    measured = cells[cells["n"] > 0]
    if measured.empty:
        none = f"No run of {plots.counted(len(cells), 'cell')} has completed, so there is nothing to compare yet."
        return [*lines, none]
    part = "test" if measured["test_accuracy"].notna().any() else "train"
    if analysis.ends_in_rounds(study):  # they train unlike amounts
        ended = analysis.equal_time_losses(study)
        best = [(where, _best_in_equal_time(cells)) for where, group in _groups(ended) for cells in _at_one_time(group)]
    else:
        best = [(where, _best(group, "train_seconds", study)) for where, group in _groups(cells)]
        best += [(where, _best(group, f"{part}_accuracy", study)) for where, group in _groups(cells)]
    lines += [f"{where}{where and ': '}{line}" for where, line in sorted(best, key=lambda pair: pair[0]) if line]
    if measured["n"].min() == 1:
        who = "Each cell was" if measured["n"].max() == 1 else "Some cells were"
        lines.append(f"{who} run once: repeat with other seeds before trusting small differences.")
    return lines


def _groups(cells: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The measured cells, in groups that are alternatives to each other, after what sets each group apart, in words."""
    measured = cells[cells["n"] > 0]
    context = [name for name in analysis.levels(cells) if name in _CONTEXT]
    if not context:
        yield "", measured
        return
    for key, group in measured.groupby([measured.index.get_level_values(name) for name in context]):
        yield ", ".join(plots.words(name, value) for name, value in zip(context, key, strict=True)), group


def _best(cells: pd.DataFrame, metric: str, study: Study) -> str:
    timed = metric == "train_seconds"
    values = cells[metric].dropna().sort_values(ascending=timed, kind="stable")
    if values.empty:
        return ""
    best = values.index[0]
    row = cells.loc[best]
    shown = _with_interval(row[metric], row[f"{metric}_ci95"], metric)
    trained = plots.length_of(study)
    if timed:
        measure = f"{shown} s of training{f' for {trained}' if trained else ''}"
    else:
        measure = f"{'test' if metric.startswith('test') else 'training'} accuracy {shown}"
    cell = f"{_cell_words(cells, best)} (global batch {row['global_batch']})"
    adjective = "Fastest" if timed else "Most accurate"
    return f"{adjective}: {cell}, with {measure} ({_mean_of(row['n'])}).{_rivals(cells, best, metric)}"


def _at_one_time(cells: pd.DataFrame) -> Iterator[pd.DataFrame]:
    yield from (group for _, group in cells.groupby("elapsed_seconds") if len(group) > 1)


def _best_in_equal_time(cells: pd.DataFrame) -> str:
    best: Any = cells["train_loss"].idxmin()
    row = cells.loc[best]
    cell, runs = _cell_words(cells, best), _mean_of(int(row["n"]))
    shown = _with_interval(row["train_loss"], row["train_loss_ci95"], "train_loss")
    when = f"{row['elapsed_seconds']:.1f} s"
    return (
        f"Lowest training loss after {when} of each: {cell}, with {shown} ({runs}).{_rivals(cells, best, 'train_loss')}"
    )


def _mean_of(num_runs: int) -> str:
    interval = ", 95 % interval" if num_runs >= analysis.MIN_SEEDS_FOR_INTERVAL else ""
    return "1 run" if num_runs == 1 else f"mean of {num_runs} runs{interval}"


def _rivals(cells: pd.DataFrame, best: Any, metric: str) -> str:
    """Who may be as good: the cells whose interval overlaps that of the best one, or that did equally well."""
    half = cells[f"{metric}_ci95"]
    distance = (cells[metric] - cells.loc[best, metric]).abs()
    others = cells.index != best
    rivals = cells[(distance <= half + half.loc[best]) & others]
    if rivals.empty:
        equal = cells.index[(distance == 0) & others]
        words = "; ".join(_cell_words(cells, key) for key in equal[:_MAX_NAMED_RIVALS])
        return f" Equal to it: {words}." if words else ""
    if len(rivals) > _MAX_NAMED_RIVALS:
        return f" Its interval overlaps those of {len(rivals)} other cells."
    return f" Its interval overlaps that of {'; '.join(_cell_words(cells, key) for key in rivals.index)}."


def _cell_words(cells: pd.DataFrame, key: Any) -> str:
    values = dict(zip(analysis.levels(cells), key, strict=True))
    extra = [
        plots.words(name, value)
        for name, value in values.items()
        if name not in ("num_workers", "local_batch", *_CONTEXT) and name in analysis.varying(cells)
    ]
    workers = plots.words("num_workers", values["num_workers"])
    return ", ".join([f"local batch {values['local_batch']} on {workers}", *extra])


def _write_data(study: Study, folder: Path) -> None:
    for name in ("runs", "epochs", "provenance", "servers", "waits", "rounds"):
        table: pd.DataFrame = getattr(study, name)
        if len(table) or name in ("runs", "epochs"):
            table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")


def _write_figures(study: Study, folder: Path) -> dict[str, str]:
    """Write all figures and return their captions."""
    captions = {}
    for name, draw in plots.figures(study).items():
        figure = draw(study)
        captions[name] = plots.caption(figure)
        for suffix in ("png", "svg", "pdf"):
            plots.save(figure, folder / f"{name}.{suffix}")
    return captions


def _tables(study: Study) -> Iterator[_Table]:
    cells = analysis.cells(study.runs)
    values = cells[["global_batch", "n"]].astype(object)
    for metric in analysis.METRICS:
        if cells[metric].notna().any():
            pairs = zip(cells[metric], cells[f"{metric}_ci95"], strict=True)
            values[metric] = [_with_interval(mean, half, metric) for mean, half in pairs]
    if (cells["other_statuses"] != "").any():
        values["other_statuses"] = cells["other_statuses"]
    interval = (
        " ± is the half-width of the 95 % t-interval." if cells["n"].max() >= analysis.MIN_SEEDS_FOR_INTERVAL else ""
    )
    yield _Table(f"Mean over the n completed runs of each cell.{interval}", _text_table(values))
    ratios = analysis.batch_ratios(cells).drop(columns="images_per_second_ratio")
    steps = analysis.step_times(study)
    unit = "A training step" if analysis.step_unit(study) == "step" else analysis.step_unit(study)
    steps["sent_megabytes"] = steps.pop("sent_bytes") / 1e6
    others = {
        "Ratio to the next smaller local batch, everything else being equal.": ratios,
        "Speed-up over workers at equal local batch (weak scaling), by examples per second.": analysis.scaling(cells),
        "Least-squares fit of training time: a + c / local batch.": analysis.seconds_fits(study.runs),
        f"{unit}: where the time goes, and what a worker sends.": steps[steps["sent_megabytes"] != 0],
        "Parameter servers: how evenly they share model and work.": analysis.server_loads(study),
        _SHARDING: analysis.sharding_gains(study),
        _idle_caption(study): _idle_cells(study),
        _EQUAL_TIME: _equal_time_cells(study),
    }
    yield from (_Table(caption, _text_table(table)) for caption, table in others.items() if len(table))


_SHARDING = (
    "What sharding VGG-16 by memory gains in images per second over sharding it by layer, as a fraction; predicted by "
    "the model of the published study with the shares of the fullest servers."
)


_EQUAL_TIME = (
    "Training loss after equal time, half a round before the shortest run of those compared ended, and the examples "
    "trained on until then. A round's mean loss is that of its midpoint in time; between midpoints it is interpolated."
)


def _equal_time_cells(study: Study) -> pd.DataFrame:
    table = analysis.equal_time_losses(study)
    if len(table) < 2:
        return table[:0]
    losses = zip(table["train_loss"], table.pop("train_loss_ci95"), strict=True)
    texts = [_with_interval(mean, half, "train_loss") for mean, half in losses]
    return table.assign(train_loss=texts, num_examples=table["num_examples"].round().astype(int))


def _idle_caption(study: Study) -> str:
    table = analysis.idle_table(study)
    caption = (
        "Seconds that nodes are idle until the slowest one arrives to synchronise, summed over a run's rounds; node k "
        "is the worker of rank k - 1. Rounds that the end of an epoch cuts short do not count."
    )
    change = "The change of the total is against the allocation uniform, by equal seeds where there are any."
    is_compared = table["change"].notna().any()
    return " ".join(filter(None, (caption, change if is_compared else "", plots.scaled_rounds(table))))


def _idle_cells(study: Study) -> pd.DataFrame:
    """Table 3 of the paper of uneven GPUs as text: nodes, or of many the span, then total, change, shares and speed."""
    table = analysis.idle_table(study)
    if table.empty:
        return table
    decimals = max(1, 2 - math.floor(math.log10(max(table["idle_seconds"].max(), 1e-3))))
    nodes = table[analysis.node_columns(table)].rename(columns=lambda name: name.replace(": idle_seconds", " (s)"))
    if len(nodes.columns) > _MAX_NODES:
        nodes = nodes.agg(["min", "median", "max"], axis="columns")
        nodes.columns = pd.Index(["least idle node (s)", "median node (s)", "most idle node (s)"])
    cells = nodes.map(lambda seconds: _fixed(seconds, decimals))
    for name, scale, places in (("idle_seconds", 1, decimals), ("change", 100, 1)):
        if table[name].isna().all():
            continue
        pairs = zip(scale * table[name], scale * table[f"{name}_ci95"], strict=True)
        cells[name] = [_fixed(value, places, half) for value, half in pairs]
    if (table["rounds"] != table["shown_rounds"]).any():
        cells["idle_seconds_per_round"] = [_fixed(value, decimals + 1) for value in table["idle_seconds_per_round"]]
    cells["rounds"] = [f"{value:g}" for value in table["rounds"]]
    for name in ("idle_share", "exchange_share"):
        cells[name] = [_fixed(100 * value, 1) for value in table[name]]
    rate = "examples_per_second" if table["tokens_per_second"].isna().any() else "tokens_per_second"
    return cells.assign(**{rate: [_fixed(value, 1) for value in table[rate]]}, n=table["n"])


def _fixed(value: float, decimals: int, half_width: float = math.nan) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.{decimals}f}" + ("" if math.isnan(half_width) else f" ± {half_width:.{decimals}f}")


def idle_text(study: Study) -> str:
    """Idle seconds by node, total and change as a table for a terminal; empty for a study without rounds."""
    cells = _idle_cells(study)
    if cells.empty:
        return ""
    left_out = ["rounds", "idle_share", "exchange_share", "n"]
    shown = cells.drop(columns=left_out).reset_index()
    named = [name for name in analysis.levels(cells) if name not in (analysis.varying(cells) or ["variant"])]
    shown = shown.drop(columns=named)
    rows = [[_heading(str(name)) for name in shown], *shown.astype(str).to_numpy().tolist()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *numbers]))
    return "\n".join([textwrap.fill(_idle_caption(study), 100), "", *lines])


def _text_table(table: pd.DataFrame) -> pd.DataFrame:
    """A table for reading: index levels that vary as columns, readable headings, rounded numbers."""
    varying = analysis.varying(table)
    shown = [name for name in analysis.levels(table) if name in ("num_workers", "local_batch") or name in varying]
    measured = table.dropna(axis="columns", how="all")
    flat = measured.reset_index()[[*shown, *measured.columns]]
    text = {_heading(str(name)): [_number(value, str(name)) for value in flat[name]] for name in flat.columns}
    return pd.DataFrame(text)


def _heading(name: str) -> str:
    if name.endswith("_ratio"):
        return _heading(name.removesuffix("_ratio")).removesuffix(" (s)")
    return _HEADINGS.get(name, name.rpartition(".")[2].replace("_", " "))


def _number(value: Any, name: str) -> str:
    if not isinstance(value, float):
        return str(value) if name == "variant" else str(value).replace("_", " ")
    if pd.isna(value):
        return "-"
    if value.is_integer() and name in _WHOLE:
        return f"{value:.0f}"
    if abs(value) < 0.1 and value and not name.endswith(_FOUR_DECIMALS):
        return f"{value:.3g}"
    return f"{value:.{_decimals(value, name)}f}"


def _decimals(value: float, name: str) -> int:
    if name.endswith(_FOUR_DECIMALS):
        return 4
    return max(0, min(3, 3 - math.floor(math.log10(abs(value))))) if value else 0


def _with_interval(mean: float, half_width: float, metric: str) -> str:
    text = _number(float(mean), metric)
    return text if math.isnan(half_width) else f"{text} ± {half_width:.{_decimals(float(mean), metric)}f}"


def _rows(table: _Table, escape: Callable[[str], str]) -> Iterator[list[str]]:
    """The heading and the rows of a table, escaped for a format."""
    for row in (table.cells.columns, *table.cells.to_numpy()):
        yield [escape(str(cell)) for cell in row]


def _are_numbers(table: _Table) -> list[bool]:
    """For each column, whether it holds numbers, which line up on the right."""
    return [all(re.fullmatch(r"-|-?[\d.e+-]+( ± .*)?", text) for text in values) for _, values in table.cells.items()]


def _markdown(study: Study, tables: Sequence[_Table]) -> str:
    blocks = [f"# {study.name}\n"]
    for table in tables:
        lines = [f"| {' | '.join(row)} |" for row in _rows(table, lambda cell: cell.replace("|", "\\|"))]
        lines.insert(1, f"| {' | '.join('---:' if numbers else ':---' for numbers in _are_numbers(table))} |")
        blocks.append(table.caption + "\n\n" + "\n".join(lines) + "\n")
    return "\n".join(blocks)


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "²": r"$^2$",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _latex(study: Study, tables: Sequence[_Table]) -> str:
    blocks = ["% Needs \\usepackage{booktabs,graphicx}.\n"]
    for table in tables:
        head, *body = (" & ".join(row) + r" \\" for row in _rows(table, _tex))
        columns = "".join("r" if numbers else "l" for numbers in _are_numbers(table))
        lines = [
            r"\begin{table}", r"\centering", rf"\caption{{{_tex(study.name)}: {_tex(table.caption)}}}",
            r"\resizebox{\linewidth}{!}{%", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body,
            r"\bottomrule", r"\end{tabular}}", r"\end{table}",
        ]  # fmt: skip
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _page(study: Study, tables: Sequence[_Table], captions: dict[str, str], folder: Path, command: str) -> str:
    statuses = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in Counter(study.runs["status"]).items())
    failures = analysis.failures(study.runs)
    sections = [
        *(f"<p class=headline>{html.escape(line)}</p>" for line in headlines(study)),
        _list("Warnings", [*study.warnings, *analysis.caveats(study)], "warnings"),
        "<h2>Figures</h2>",
        *(_figure(study, name, caption, folder) for name, caption in captions.items()),
        "<h2>Tables</h2>",
        *(_html_table(table) for table in tables),
        "" if failures.empty else "<h2>Runs that did not complete</h2>",
        "" if failures.empty else _html_table(_Table("They count in no mean.", _text_table_of(failures))),
        "<h2>Against the published studies</h2>" + _published_words(study),
        "<h2>Provenance</h2>",
        _definitions({"written by": command, "study": study.name} | _provenance(study.provenance)),
        f"<details><summary>Settings that all runs share</summary>{_definitions(_shared(study))}</details>",
    ]
    summary = f"{plots.counted(len(study.runs), 'run')}: {statuses}."
    body = "\n".join(section for section in sections if section)
    return _PAGE.substitute(title=html.escape(study.name), summary=summary, body=body)


def _figure(study: Study, name: str, caption: str, folder: Path) -> str:
    image = base64.b64encode((folder / f"{name}.svg").read_bytes()).decode()
    caption = html.escape(caption)
    run_ids = html.escape(", ".join(study.runs["run_id"]))
    files = " ".join(f'<a href="{name}.{suffix}">{suffix.upper()}</a>' for suffix in ("pdf", "svg", "png"))
    return (
        f'<figure id="{name}"><img alt="{caption} The tables below give the numbers." '
        f'src="data:image/svg+xml;base64,{image}"><figcaption>{caption} {files}'
        f"<details><summary>Runs behind it</summary>{run_ids}</details></figcaption></figure>"
    )


def _html_table(table: _Table) -> str:
    head, *body = _rows(table, html.escape)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
    heads = "".join(f"<th scope=col>{cell}</th>" for cell in head)
    kind = "text" if "message" in table.cells else "numbers"
    caption = html.escape(table.caption)
    return f"<div class=wide><table class={kind}><caption>{caption}</caption><tr>{heads}</tr>{rows}</table></div>"


def _text_table_of(failures: pd.DataFrame) -> pd.DataFrame:
    return failures.astype(str).rename(columns={"run_id": "run", **_HEADINGS})


def _list(title: str, lines: Sequence[str], kind: str) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<section class={kind}><h2>{title}</h2><ul>{items}</ul></section>" if lines else ""


def _published_words(study: Study) -> str:
    """What the study may be held against; nothing if it trained something else than the published ones."""
    words = []
    if analysis.comparable(study):
        words.append(
            "The batch-size study is drawn in grey. Its accuracy and loss are training accuracy and loss. With another "
            "number of workers, an equal local batch is a different global batch and, by most learning-rate rules, a "
            f"different rate. What else differs: {'; '.join(analysis.differences(study)) or 'nothing on record'}."
        )
    if not analysis.sharding_gains(study).empty:
        words.append(
            "The parameter-sharding study (ImageNet on NVIDIA RTX 2080 Ti, 10 Gbit/s Ethernet, a server for two "
            f"workers) gives the gain of memory over layer sharding only.{_implied(study)}"
        )
    if analysis.compares_allocations(study):
        words.append(_uneven_words())
    if not words:
        words.append(
            "Not drawn: the published studies trained ResNet-18 on all 50,000 training images of CIFAR-10, VGG-16 on "
            "parameter servers sharded by layer and by memory, and a language model on uneven nodes with work shared "
            "out evenly and unevenly. These runs did none of it."
        )
    return "".join(f"<p>{html.escape(text)}</p>" for text in words)


def _uneven_words() -> str:
    """What the published study of uneven GPUs found, what of it holds together, and what it implies."""
    idle, model = analysis.modelled_idle(), analysis.idle_model()
    totals = idle.groupby(level="method")["published_seconds"].sum()
    changes = ", ".join(f"{method} {100 * (totals[method] / totals['baseline'] - 1):+.0f} %" for method in "ABC")
    steps = model.steps_by_speed()
    left = model.idle_seconds(model.baseline["local_batch"], steps).sum()
    return (
        "The study of uneven GPUs (a LLaMA of 150 million parameters under DiLoCo, four nodes of four GPUs, 1 Gbit/s "
        "Ethernet) gives idle times of its baseline, here uniform, and of A, B and C, here batch_by_flops, "
        f"batch_by_memory and steps_by_flops; their totals change by {changes}. {analysis.CONTRADICTIONS} The model "
        f"that explains its baseline and C would leave {left:.1f} s of C's {totals['C']:.1f} s idle with steps by "
        f"measured speed ({', '.join(map(str, steps))})."
    )


def _implied(study: Study) -> str:
    """The model's two times, as the measured steps imply them."""
    fit, computing = analysis.sharding_fit(study), analysis.computing_seconds(study)
    if fit is None:
        return ""
    measured = f" (computing alone was measured: {computing[0]:.3g} to {computing[1]:.3g} s)" if computing else ""
    return (
        f" By its model a step takes C + max(1, w s) x seconds, with w workers and the share s on the fullest server; "
        f"a fit to the steps measured here gives C = {fit.intercept:.3g} s that do not grow with the load{measured}, "
        f"and x = {fit.slope:.3g} s to bring all parameters through one link, there and back "
        f"(R² = {fit.r_squared:.3f})."
    )


def _definitions(entries: dict[str, str]) -> str:
    items = "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in entries.items())
    return f"<dl>{items}</dl>"


def _provenance(provenance: pd.DataFrame) -> dict[str, str]:
    """What `meta.json` says, each value with the number of runs it holds for, where they differ."""
    entries = {}
    for column in provenance.columns.drop(["run_id", "launched_at"], errors="ignore"):
        counts = Counter(str(value) for value in provenance[column].dropna() if value != "").most_common()
        if len(counts) == 1:
            entries[str(column)] = counts[0][0]
        elif counts:
            shown = "; ".join(f"{value} ({count} runs)" for value, count in counts[:5])
            entries[str(column)] = shown + f"; {len(counts) - 5} more in provenance.csv" * (len(counts) > 5)
    return entries


def _shared(study: Study) -> dict[str, str]:
    columns = list(study.runs.columns)
    settings = study.runs[columns[columns.index("planned_epochs") :]].drop(columns=list(analysis.OTHER_COLUMNS))
    same = [name for name in settings if settings[name].nunique() == 1 and settings[name].notna().all()]
    return {str(name): analysis.setting_text(settings[name].iloc[0]) for name in same}


_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title - bsweep report</title>
<style>
:root { color-scheme: light dark; --line: #8886; --soft: #8881; --accent: #0072b2; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.headline { font-size: 1.15rem; border-left: 4px solid var(--accent); padding-left: .8rem; margin: .8rem 0; }
.warnings { background: #e69f0022; border-left: 4px solid #e69f00; padding: .2rem 1rem; margin-top: 1.5rem; }
.warnings h2 { margin-top: .4rem; border: 0; font-size: 1.1rem; }
figure { margin: 1.5rem 0; break-inside: avoid; }
img { display: block; max-width: 100%; margin: auto; background: #fff; padding: .5rem; border-radius: .4rem; }
figcaption, caption, details { font-size: .9rem; } figcaption a { margin-left: .4rem; }
details { overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1.5rem 0; } caption { text-align: left; padding-bottom: .4rem; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .45rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top; }
th { border-bottom-width: 2px; } tr:nth-child(even) td { background: var(--soft); }
.numbers td { white-space: nowrap; } .text :is(th, td) { text-align: left; white-space: pre-line; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .85rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
@media print {
  :root { color-scheme: light; } body { font-size: 11px; max-width: none; margin: 0; padding: 0; }
  .wide { overflow: visible; } table { font-size: 8px; } th, td { padding: .1rem .3rem; }
  .numbers td { white-space: normal; } details { display: none; }
}
</style></head><body>
<h1>$title</h1><p>$summary</p>
$body
</body></html>
""")
