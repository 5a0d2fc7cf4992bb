"""The numbers of the pages of results/measured, recomputed from the records without the analysis.

    python results/measured/recompute_published.py

The CSV files beside the pages hold the records of metrics.jsonl, a row for a record: evaluations,
epochs, changes of the batch, servers. Two studies have the records themselves, in
`records.tar.gz`. From them this script computes the numbers of the pages' tables anew. It shares no
code with `bsweep.analysis`. It prints each number that differs by more than its rounding, how many
agree, and what it leaves out. The exit code is 1 if a number differs.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, mean, median, stdev
from typing import Any

from scipy import stats

MEASURED = Path(__file__).parent
LEFT_OUT = (
    "predictions: errors, coverage, p-values, what searches cost (truth/rules.py, policies.py)",
    "geo_distributed: changes, tokens a second, losses after 62 s, speeds and arithmetic",
    "numbers in sentences, except those of steps timed again, BatchNorm and least squares",
    "accuracies after 24 steps, memory and overheads",
    "model_parallel (model_parallel/tables.py prints it from the records)",
    "clusters: simulated seconds (simulate_truth.py)",
    "results/bench, the log, and outputs that the docs show",
)

Row = dict[str, str]
Told = tuple[str, Sequence[float], str]
"""Where a number stands, its values anew, and the text that has them."""


@cache
def rows(name: str) -> list[Row]:
    with (MEASURED / f"{name}.csv").open(newline="") as file:
        return [*csv.DictReader(file)]


@cache
def archived(folder: str) -> Mapping[str, list[dict[str, Any]]]:
    """Return the records of each `metrics.jsonl` in a folder's archive, by its path there."""
    with tarfile.open(MEASURED / folder / "records.tar.gz") as archive:
        return {
            name: [json.loads(line) for line in file]
            for name in sorted(archive.getnames())
            if name.endswith(".jsonl") and (file := archive.extractfile(name))
        }


def by_run(name: str) -> Mapping[str, list[Row]]:
    found = defaultdict(list)
    for row in rows(name):
        found[row["run_id"]].append(row)
    return found


def page(study: str, title: str = "") -> str:
    """Return the page of a study, or its text below a heading until the next one."""
    text = (MEASURED / study / "README.md").read_text(encoding="utf-8")
    return (
        re.split(r"^## ", text.split(f"## {title}\n", 1)[1], flags=re.MULTILINE)[0]
        if title
        else text
    )


def table(text: str, heading: str) -> list[list[str]]:
    """The rows of the table in whose head these words stand, without its head."""
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    lines = next(lines for lines in found if heading in lines.splitlines()[0]).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def told_numbers(text: str) -> list[str]:
    """The numbers of a cell, without commas between thousands and without words."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text.replace("−", "-").replace("*", ""))  # noqa: RUF001
    return re.findall(r"[+-]?\d+(?:\.\d+)?", text)


# The crossing of a target, by the rule of docs/predict.md.


def crossing(
    evaluations: Sequence[Mapping[str, Any]],
    target: float,
    amount: str,
    metric: str = "test_accuracy",
) -> float:
    """An amount when the median of three evaluations in a row crosses a target, or NaN."""
    sign = 1 if metric == "test_accuracy" else -1
    values = [-math.inf, *(sign * float(row[metric]) for row in evaluations), -math.inf]
    target *= sign
    smooth = [sorted(values[place : place + 3])[1] for place in range(len(evaluations))]
    at = [float(row[amount]) for row in evaluations]
    for place, value in enumerate(smooth):
        if value >= target:
            if place == 0:
                return at[0]
            share = (target - smooth[place - 1]) / (value - smooth[place - 1])
            return at[place - 1] + share * (at[place] - at[place - 1])
    return math.nan


def amounts(name: str, amount: str) -> dict[str, float]:
    return {run: crossing(of, 0.65, amount) for run, of in by_run(f"truth/{name}").items()}


@cache
def step_seconds() -> dict[tuple[int, int], list[float]]:
    """Seconds of a step of each batch and number of workers, in each round."""
    runs = {row["run_id"]: row for row in rows("truth/steps/runs")}
    found = defaultdict(list)
    for run, epochs in by_run("truth/steps/epochs").items():
        later = [row for row in epochs if row["epoch"] != "1"]
        seconds = sum(float(row["train_seconds"]) for row in later)
        key = int(runs[run]["global_batch"]), int(runs[run]["num_workers"])
        found[key].append(seconds / sum(int(row["num_steps"]) for row in later))
    return found


def of_rules() -> Iterator[Told]:
    """How often rules name a cell within 5 % of the best, and their median share of the cost."""
    for rule, *texts in table(page(".", "Rules that choose a cell"), "rule"):
        for grid, text in zip(("truth", "groupnorm", "rates", "small_cnn"), texts, strict=True):
            plays = [row for row in rows(f"{grid}/rules") if row["rule"] == rule]
            if plays:
                close = sum(float(row["regret"]) <= 0.05 for row in plays)
                share = 100 * median(float(row["cost_share"]) for row in plays)
                yield f"rules, {rule}, {grid}", [close, len(plays), share], text


def of_truth() -> Iterator[Told]:
    runs = {row["run_id"]: row for row in rows("truth/runs/runs")}
    seconds = {}
    for batch, *cells, epochs in table(page("truth"), "seconds to a test"):
        size = int(batch.replace(",", ""))
        own = sorted(
            (row["seed"], run) for run, row in runs.items() if int(row["global_batch"]) == size
        )
        steps, of_epochs = (
            [amounts("runs/evaluations", amount)[run] for _, run in own]
            for amount in ("num_steps", "epochs_done")
        )
        typical = math.exp(mean(map(math.log, steps)))
        for workers, text in zip((1, 2, 4), cells, strict=True):
            seconds[size, workers] = typical * median(step_seconds()[size, workers])
            yield f"truth, {batch} on {workers}", [seconds[size, workers]], text
        yield f"truth, epochs at {batch}", of_epochs, epochs
    for row in rows("truth/rules"):
        if row["global_batch"]:
            cell = int(float(row["global_batch"])), int(float(row["num_workers"]))
            longer = seconds[cell] / min(seconds.values()) - 1
            yield f"truth/rules.csv, {row['rule']}", [longer], f"{float(row['regret']):.4f}"


# Grids that were trained whole.


def of_steps_again() -> Iterator[Told]:
    """What an example of 512 costs against one of 1,024, round by round."""
    seconds: dict[int, list[float]] = defaultdict(list)  # by batch, in the order of the rounds
    for records in archived("truth/again").values():
        batch = next(record["global_batch"] for record in records if record["type"] == "start")
        seconds[batch] += [r["step_seconds_p50"] for r in records if r["type"] == "epoch"]
    pairs = zip(seconds[512], seconds[1024], strict=True)
    ratios = interval([math.log(2 * small / large) for small, large in pairs])
    told = re.search(
        r"costs ([\d.]+) times one of 1,024 (\(.*?\))", " ".join(page("truth").split())
    )
    assert told
    yield "steps again, 512", [math.exp(ratio) for ratio in ratios], " ".join(told.groups())


def of_grids() -> Iterator[Told]:
    """The seconds of the cells of each grid, and by how much the cells that rules name are longer:
    the geometric mean of steps over seeds times the median seconds of a step, of the best rate.
    """
    for path in sorted(MEASURED.glob("*/seconds.csv")):
        folder = path.parent.name
        if (path.parent / "steps").is_dir():
            continue  # see `of_truth`
        told = rows(f"{folder}/seconds")
        metric, target = told[0]["metric"], float(told[0]["target"])
        logs, steps = defaultdict(list), defaultdict(list)
        for row in rows(f"{folder}/runs"):
            evaluations = by_run(f"{folder}/evaluations")[row["run_id"]]
            needed = crossing(evaluations, target, "num_steps", metric)
            beyond = [one for one in evaluations if float(one["num_steps"]) >= needed]
            last = beyond[1] if len(beyond) > 1 else evaluations[-1]
            cell = row["global_batch"], row["num_workers"]
            steps[cell].append(float(last["train_seconds"]) / float(last["num_steps"]))
            logs[(*cell, row["lr"])].append(math.inf if math.isnan(needed) else math.log(needed))
        best = {
            cell: median(of)
            * min(math.exp(mean(own)) for key, own in logs.items() if key[:2] == cell)
            for cell, of in steps.items()
        }
        for row in told:
            value = best[row["global_batch"], row["num_workers"]]
            where = f"{folder}, {row['global_batch']} on {row['num_workers']}"
            yield where, [value] if value < math.inf else [math.nan], row["seconds"].strip("inf")
        for row in rows(f"{folder}/rules"):
            if row["global_batch"] and row["regret"] != "inf":
                cell = f"{float(row['global_batch']):g}", f"{float(row['num_workers']):g}"
                longer = best[cell] / min(best.values()) - 1
                yield f"{folder}/rules.csv, {row['rule']}", [longer], f"{float(row['regret']):.4f}"


# Policies: seconds of runs whose batch changes.


def changing_seconds(changes: Sequence[tuple[float, float]], epochs: float, workers: int) -> float:
    """Seconds of so many epochs, whose batch at some epochs is known; it changed where that costs
    most.
    """
    known = sorted((batch, median(of)) for (batch, n), of in step_seconds().items() if n == workers)

    def epoch_seconds(batch: float) -> float:
        for (small, least), (large, most) in pairwise(known):
            if small <= batch <= large:
                share = math.log(batch / small) / math.log(large / small)
                return float(50_000 / batch * least ** (1 - share) * most**share)
        raise ValueError(f"no steps of batch {batch}")

    total = before = 0.0
    last = epoch_seconds(changes[0][1])
    for place, (at, batch) in enumerate(changes):
        now, end = epoch_seconds(batch), math.inf if place == len(changes) - 1 else at
        total += max(0.0, min(end, epochs) - before) * max(now, last)
        before, last = min(end, epochs), now
    return total


def policy_runs() -> Iterator[tuple[str, int, Row, str]]:
    """Each run that ended: its rule, its seed, its row and the study that it is of."""
    for name in ("policies", "runs", "batchnorm"):
        for row in rows(f"truth/{name}/runs"):
            policy, batch = row.get("batching") or "fixed", row["global_batch"]
            rule = f"fixed {batch}" if policy == "fixed" else f"{policy} from {batch}"
            rule += ", AdaScale" * (row["lr_rule"] == "adascale")
            if row["local_batch"] != batch:
                rule += f", passes of {row['local_batch']}"
            yield rule, int(row["seed"]), row, name


@cache
def policy_times(workers: int) -> dict[str, dict[int, tuple[float, float]]]:
    """By rule and seed, the seconds to the target and the accuracy after nine epochs, if the run
    went on until then.
    """
    found: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    changes = by_run("truth/policies/batches")
    for rule, seed, row, name in policy_runs():
        evaluations = by_run(f"truth/{name}/evaluations")[row["run_id"]]
        epochs = crossing(evaluations, 0.65, "epochs_done")
        if math.isnan(epochs) and row["status"] == "interrupted":
            continue
        at_end = [
            float(one["test_accuracy"]) for one in evaluations if float(one["epochs_done"]) == 9
        ]
        accuracy = at_end[0] if at_end and name == "policies" else math.nan
        own = [
            (float(one["epochs_done"]), float(one["global_batch"]))
            for one in changes.get(row["run_id"], ())
            if name == "policies"
        ] or [(0.0, float(row["global_batch"]))]
        seconds = math.inf if math.isnan(epochs) else changing_seconds(own, epochs, workers)
        if seed not in found[rule] or math.isnan(found[rule][seed][1]):
            found[rule].setdefault(seed, (seconds, accuracy))
            if not math.isnan(accuracy):
                found[rule][seed] = seconds, accuracy
    return found


def interval(values: Sequence[float]) -> list[float]:
    """A mean and its 95 % t-interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return [mean(values), mean(values) - half, mean(values) + half]


def over_seeds(values: Sequence[float]) -> list[float]:
    """Return one or two values as they are, and of more the mean and half the width of its 95 %
    t-interval.
    """
    if len(values) < 3:
        return [*values]
    middle, low, _ = interval(values)
    return [middle, middle - low]


def of_recorded_policies() -> Iterator[Told]:
    """The seconds of policies whose runs were timed on their own workers, from the records."""
    for grid, heading, metric in (
        ("text", "Policies on the text", "loss"),
        ("groupnorm", "Policies from the best batch", "accuracy"),
    ):
        seconds: dict[str, dict[int, float]] = defaultdict(dict)
        for row in rows(f"{grid}/policies/runs"):
            policy, batch = row["batching"] or "fixed", row["global_batch"]
            rule = f"fixed {batch}" if policy == "fixed" else f"{policy} from {batch}"
            rule += ", AdaScale" * (row["lr_rule"] == "adascale")
            evaluations = by_run(f"{grid}/policies/evaluations")[row["run_id"]]
            target = float(row[f"target_{metric}"])
            needed = crossing(evaluations, target, "train_seconds", f"test_{metric}")
            seconds[rule][int(row["seed"])] = needed
        anew = {}
        for row in rows(f"{grid}/policies"):
            own, best = seconds[row["rule"]], seconds[row["best_fixed"]]
            ratios = interval([math.log(own[seed] / best[seed]) for seed in best])
            anew[row["rule"]] = [math.exp(value) for value in ratios]
            told = " ".join(f"{float(row[name]):.3f}" for name in ("ratio", "low", "high"))
            yield f"{grid}/policies.csv, {row['rule']}", anew[row["rule"]], told
        for label, ratio in table(page(grid, heading), "on two workers"):
            rule = label.replace("`", "").removesuffix(", which keeps the batch")
            yield f"{heading}, {label}", anew[rule], ratio


def of_policies() -> Iterator[Told]:
    for row in rows("truth/policies"):
        rule, workers = row["rule"], int(row["num_workers"])
        times = policy_times(workers)
        own, best = times[rule], times[row["best_fixed"]]
        seeds = [seed for seed in own if seed in best]
        logs = [math.log(own[seed][0] / best[seed][0]) for seed in seeds]
        ratios = [math.exp(value) for value in interval([one for one in logs if one < math.inf])]
        where = f"truth/policies.csv, {rule} on {workers}"
        told = [row["ratio"], row["low"], row["high"]]
        yield where, ratios, " ".join(f"{float(text):.3f}" for text in told)
        yield f"{where}, missed", [sum(one == math.inf for one in logs)], row["num_missed"]
        if row["accuracy_difference"]:
            less = [own[seed][1] - best[seed][1] for seed in seeds]
            told = [row[f"accuracy_{name}"] for name in ("difference", "low", "high")]
            anew = interval([one for one in less if not math.isnan(one)])
            yield f"{where}, accuracy", anew, " ".join(f"{float(text):.3f}" for text in told)
    names = {
        "`norm_test` from 128": "norm_test from 128, passes of 64",
        "`noise_scale` from 128": "noise_scale from 128, passes of 64",
        "`schedule`, doubling": "schedule from 128",
        "`raise_instead_of_decay`": "raise_instead_of_decay from 128",
        "`cabs` from 128": "cabs from 128, passes of 64",
        "fixed 512 at AdaScale": "fixed 512, AdaScale, passes of 128",
        "fixed 512 at the linear": "fixed 512, passes of 128",
        "fixed 256": "fixed 256",
        "fixed 128 (three": "fixed 128",
    }
    kept = {row["rule"]: row for row in rows("truth/policies") if row["num_workers"] == "4"}
    for label, ratio in table(page("truth", "Batches that change"), "on four workers"):
        row = kept[next(rule for name, rule in names.items() if label.startswith(name))]
        anew = [float(row[name]) for name in ("ratio", "low", "high")]
        yield f"policies, {label}", anew, ratio.split(", one of")[0]


def of_batchnorm() -> Iterator[Told]:
    text = " ".join(page("truth", "BatchNorm sees the local batch").split())
    told = re.search(
        r"need ([\d.]+) times the steps (\(.*?\)) at 64, and ([\d.]+) times (\(.*?\))", text
    )
    assert told
    anew = []
    for size in ("64", "512"):
        passes, single = (
            {
                row["seed"]: crossing(
                    by_run(f"truth/{name}/evaluations")[row["run_id"]], 0.65, "num_steps"
                )
                for row in rows(f"truth/{name}/runs")
                if row["global_batch"] == size
            }
            for name in ("batchnorm", "runs")
        )
        anew += interval([math.log(passes[seed] / single[seed]) for seed in passes])
    yield "BatchNorm", [math.exp(value) for value in anew], " ".join(told.groups())


# Tables of means over runs.


def per_step(name: str, run: str, amount: str) -> float:
    """The seconds of a step that went to something, NaN if that was not measured."""
    epochs = by_run(f"{name}/epochs")[run]
    if any(not row[amount] for row in epochs):
        return math.nan
    return sum(float(row[amount]) for row in epochs) / sum(int(row["num_steps"]) for row in epochs)


def runs_with(name: str, **settings: str) -> list[Row]:
    """The runs of a study with these settings, where `__` stands for a dot."""
    wanted = {key.replace("__", "."): value for key, value in settings.items()}
    return [row for row in rows(f"{name}/runs") if all(row[k] == v for k, v in wanted.items())]


def exchanges() -> dict[str, dict[str, str]]:
    """The settings of each row of the table of ways to exchange, by its first cell."""
    codecs = {
        "`allreduce` fp16": "fp16", "... top-k": "topk", "... DGC": "dgc",
        "... PowerSGD": "powersgd", "... QSGD": "qsgd",
    }  # fmt: skip
    algorithms = {
        "`allreduce` native": "native", "... ring": "ring", "... tree": "tree",
    }  # fmt: skip
    found = {name: {"compression": codec} for name, codec in codecs.items()}
    for name, algorithm in algorithms.items():
        found[name] = {"compression": "none", "strategy__algorithm": algorithm}
    found = {name: {"strategy": "allreduce"} | words for name, words in found.items()}
    found |= {f"`{name}`": {"strategy": name} for name in ("horovod", "ddp", "local_sgd")}
    server, shared = {"strategy": "parameter_server"}, {"strategy__consistency": "synchronous"}
    found["`parameter_server`"] = server | shared | {"strategy__colocated": "False"}
    found["... 2 servers, colocated"] = server | {"strategy__colocated": "True"}
    found["... asynchronous"] = server | {"strategy__consistency": "asynchronous"}
    return found


def of_exchanges() -> Iterator[Told]:
    for label, *cells, accuracy in table(page("strategies_1gbit"), "exchange, not hidden"):
        own = runs_with("strategies_1gbit", **exchanges()[label])
        names = ("train_seconds", "exposed_exchange_seconds", "codec_seconds", "wait_seconds")
        for place, (name, text) in enumerate(zip(names, cells, strict=True)):
            values = [per_step("strategies_1gbit", row["run_id"], name) for row in own]
            anew = over_seeds(values) if place == 0 else [mean(values)]
            yield f"strategies_1gbit, {label}, {name}", anew, text
        if accuracy:
            settings = {k: v for k, v in exchanges()[label].items() if k != "strategy__algorithm"}
            of_codec = runs_with("codecs", **settings)
            values = [float(row["test_accuracy"]) for row in of_codec]
            yield f"codecs, {label}", over_seeds(values), accuracy


def of_stragglers() -> Iterator[Told]:
    server = {"strategy": "parameter_server"}
    stale = server | {"strategy__consistency": "stale_synchronous"}
    settings = {
        "`allreduce`": {"strategy": "allreduce"}, "`local_sgd`": {"strategy": "local_sgd"},
        "`parameter_server`": server | {"strategy__consistency": "synchronous"},
        "... asynchronous": server | {"strategy__consistency": "asynchronous"},
        "... stale-synchronous, staleness 1": stale | {"strategy__staleness": "1.0"},
        "... stale-synchronous, staleness 4": stale | {"strategy__staleness": "4.0"},
    }  # fmt: skip
    leads = {
        run: max(int(row["max_lead"]) for row in of)
        for run, of in by_run("stragglers/servers").items()
    }
    for label, whole, step, waiting, lead, accuracy in table(page("stragglers"), "four epochs"):
        own = [row["run_id"] for row in runs_with("stragglers", **settings[label])]
        of_all = [row for row in rows("stragglers/runs") if row["run_id"] in own]
        yield f"stragglers, {label}", over_seeds([float(r["train_seconds"]) for r in of_all]), whole
        for name, text in (("train_seconds", step), ("wait_seconds", waiting)):
            values = [per_step("stragglers", run, name) for run in own]
            yield f"stragglers, {label}, {name}", over_seeds(values), text
        if lead:
            reached = sorted({leads[run] for run in own})
            ends = dict.fromkeys((reached[0], reached[-1]))
            yield f"stragglers, {label}, lead", [*ends], lead
        yield (
            f"stragglers, {label}, accuracy",
            over_seeds([float(row["test_accuracy"]) for row in of_all]),
            accuracy,
        )


def of_sharding() -> Iterator[Told]:
    name = "parameter_sharding_1gbit"
    kinds = {"layer, in turn": "layer_round_robin", "hashed chunks": "hashed_chunks"}
    for label, share, step, exchange in table(page(name), "fullest server"):
        settings = {"strategy__sharding": kinds.get(label, label)}
        if label.startswith("none"):
            settings = {"strategy": "allreduce"}
        (run,) = (row["run_id"] for row in runs_with(name, **settings))
        fullest = (
            [100 * max(float(row["share"]) for row in by_run(f"{name}/servers")[run])]
            if run in by_run(f"{name}/servers")
            else [math.nan]
        )
        yield f"{name}, {label}, share", fullest, share
        yield f"{name}, {label}", [per_step(name, run, "train_seconds")], step
        yield f"{name}, {label}, exchange", [per_step(name, run, "exchange_seconds")], exchange


def of_cifar10_fits() -> Iterator[Told]:
    text = " ".join(page("cifar10").split())
    fits = re.search(r"Least squares gives (.*) for the rules per_worker", text)
    assert fits
    anew: list[list[float]] = []
    for rule in ("per_worker", "linear"):
        of_rule = runs_with("cifar10", lr_rule=rule)
        each, seconds = (
            [float(row[name]) for row in of_rule] for name in ("local_batch", "train_seconds")
        )
        slope, least = linear_regression([1 / batch for batch in each], seconds)
        left = [s - least - slope / batch for batch, s in zip(each, seconds, strict=True)]
        explained = 1 - sum(x * x for x in left) / sum((s - mean(seconds)) ** 2 for s in seconds)
        anew.append([least, slope, explained])
    both = [anew[0][0], anew[0][1], anew[1][0], anew[1][1], anew[0][2], anew[1][2]]
    yield "cifar10, least squares", both, fits[1].replace("R²", "R")


def of_cifar10() -> Iterator[Told]:
    for batch, rule, rate, seconds, accuracy, loss, tests in table(
        page("cifar10"), "training loss"
    ):
        rules = ("per_worker", "linear") if rule == "both" else (rule,)
        own = [
            row for name in rules for row in runs_with("cifar10", local_batch=batch, lr_rule=name)
        ]
        yield f"cifar10, {batch}, {rule}", [float(row["train_seconds"]) for row in own], seconds
        epochs = by_run("cifar10/epochs")[own[0]["run_id"]]
        yield f"cifar10, {batch}, {rule}, rate", [float(epochs[-1]["learning_rate"])], rate
        yield f"cifar10, {batch}, {rule}, accuracy", [float(epochs[-1]["train_accuracy"])], accuracy
        yield f"cifar10, {batch}, {rule}, loss", [float(epochs[-1]["train_loss"])], loss
        told = [float(row["test_accuracy"]) for row in epochs]
        yield f"cifar10, {batch}, {rule}, tests", told, tests


def of_worlds() -> Iterator[Told]:
    for label, covered, close, far, warned, warnings, cost in table(
        page("stress_predict"), "coverage"
    ):
        own = [row for row in rows("stress_predict/studies") if row["world"] == label.split(":")[0]]
        off = [row for row in own if float(row["regret"]) > 0.2]
        values = {
            covered: mean(float(row["coverage"]) for row in own if row["coverage"]),
            far: len(off),
            warnings: sum(int(row["warnings"]) > 0 for row in own),
        }
        for place, (text, value) in enumerate(values.items()):
            yield f"stress_predict, {label}, {place}", [value], text
        near = sum(float(row["regret"]) <= 0.05 for row in own)
        yield f"stress_predict, {label}, close", [near], told_numbers(close)[0]
        if warned:
            yield (
                f"stress_predict, {label}, warned",
                [sum(int(r["warnings"]) > 0 for r in off)],
                warned,
            )
        shares = [100 * float(row["cost_share"]) for row in own]
        yield f"stress_predict, {label}, cost", [median(shares)], cost


def of_geo_distributed() -> Iterator[Told]:
    """Idle seconds of nine whole rounds, or as many scaled."""
    name, nodes = "geo_distributed", range(4)
    whole = defaultdict(list)
    for row in rows(f"{name}/rounds"):
        if row["is_whole"] == "True":
            whole[row["run_id"], int(row["worker"])].append(float(row["idle_seconds"]))
    idle = {key: 9 * mean(of) for key, of in whole.items()}
    for label, of_nodes, total, *_ in table(page(name), "idle, nodes"):
        own = runs_with(name, allocation=label.split(" ")[0])
        anew = [mean(idle[row["run_id"], node] for row in own) for node in nodes]
        yield f"{name}, {label}, nodes", anew, of_nodes
        totals = [sum(idle[row["run_id"], node] for node in nodes) for row in own]
        yield f"{name}, {label}", over_seeds(totals), total


@cache
def cluster_steps(study: str) -> Mapping[tuple[str, int], list[float]]:
    """The mean seconds of a step of each run, by the strategy and the number of workers."""
    steps = defaultdict(list)
    for name, records in archived("clusters").items():
        if name.startswith(f"{study}/"):
            config = next(record for record in records if record["type"] == "start")["config"]
            epochs = [record for record in records if record["type"] == "epoch"]
            names = ("train_seconds", "num_steps")
            seconds, count = (sum(epoch[name] for epoch in epochs) for name in names)
            steps[config["strategy"]["name"], config["num_workers"]].append(seconds / count)
    return steps


def of_clusters() -> Iterator[Told]:
    """The measured steps; the simulated ones are left out."""
    for study, strategy, two, four, _, eight, _ in table(page("clusters"), "simulated"):
        for workers, text in ((2, two), (4, four), (8, eight)):
            steps = cluster_steps(study.strip("`"))[strategy.strip("`"), workers]
            yield f"clusters, {study}, {strategy} on {workers}", [median(steps)], text


PARTS: Sequence[Callable[[], Iterable[Told]]] = (
    of_rules, of_truth, of_steps_again, of_grids, of_policies, of_recorded_policies, of_batchnorm,
    of_worlds, of_cifar10, of_cifar10_fits, of_exchanges, of_stragglers, of_sharding,
    of_geo_distributed, of_clusters,
)  # fmt: skip


def is_rounded(value: float, text: str) -> bool:
    return abs(value - float(text)) <= 0.51 * 10.0 ** -len(text.partition(".")[2])


def agrees(values: Sequence[float], text: str) -> bool:
    """True if a text has these numbers, up to their rounding; `-` stands for one not measured."""
    told = told_numbers(text)
    if not told:
        return all(map(math.isnan, values))
    return len(told) == len(values) and all(map(is_rounded, values, told))


def main() -> int:
    num_differing = 0
    for part in PARTS:
        told = [*part()]
        for where, values, text in told:
            if not agrees(values, text):
                num_differing += 1
                print(f"{where}: {text}; anew: {', '.join(f'{value:.6g}' for value in values)}")
        name = part.__name__.removeprefix("of_")
        print(f"{name}: {sum(len(values) for _, values, _ in told)} numbers computed anew")
    print(
        f"{num_differing} entries differ.", "Left out:", *(f"- {one}" for one in LEFT_OUT), sep="\n"
    )
    return int(num_differing > 0)


if __name__ == "__main__":
    sys.exit(main())
