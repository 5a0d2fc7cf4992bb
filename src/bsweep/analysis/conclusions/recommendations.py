"""The first sentences of a report: the recommended cells of the largest sets of comparable runs of
a study, or which runs a recommendation still needs.

Runs that differ in more than batch size, workers and seed do not compare. A study is therefore
divided into parts of comparable runs, and each part has an answer of its own. Where a study ran
several learning rates, each cell is taken at its best one (see `tuning`), or each
batch size if only `optimizer.lr` was varied. All parts have the target of
`common_target`.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bsweep.analysis.cell_tables.common_target import SHARES, common_target
from bsweep.analysis.cell_tables.keys import cell_keys, keyed
from bsweep.analysis.cell_tables.statistics import beats_chance
from bsweep.analysis.cell_tables.tuning import TUNED, best_by, rate_settings, tuned
from bsweep.analysis.conclusions.best_cells import winner
from bsweep.analysis.conclusions.predicting import predict
from bsweep.analysis.conclusions.prediction_texts import Prediction
from bsweep.analysis.conclusions.simulated import check_networks
from bsweep.analysis.prediction.comparable_runs import (
    differing,
    of_one_batch,
    unsynchronised,
    where_options,
)
from bsweep.analysis.prediction.forecast import batch_on_workers
from bsweep.analysis.prediction.missing_runs import evaluated_once
from bsweep.analysis.study.caching import cached
from bsweep.analysis.study.columns import role
from bsweep.analysis.study.frames import LargerClusters, Study, with_runs
from bsweep.analysis.study.naming import settings_in_words, words
from bsweep.analysis.study.targets import to_target
from bsweep.config.target import SETTINGS, Target
from bsweep.core.words import counted, joined

MOST_ANSWERS = 4  # The largest parts of a study; each takes about a second.


@dataclass(frozen=True, eq=False)
class Answer:
    """The recommendation for one part of a study (runs that can be compared with each other), or a
    text on what a recommendation still needs.

    `where` says in words which settings distinguish the runs of this part; it is empty if the study
    has one part. `sentences` say which cell is recommended and for which target. If `prediction` is
    None, they say what is missing. `not_predicted` says why larger clusters were not simulated,
    although the study asks for them; it is empty if they were.
    """

    where: str
    prediction: Prediction | None
    sentences: tuple[str, ...]
    not_predicted: str = ""


@cached
def answers(study: Study) -> list[Answer]:
    """Return an answer for each of the largest parts (at most four sets of comparable runs) of a
    study: the recommended cell, or the reason why there is none.

    The largest part comes first. There is no answer if no run has completed.

    Args:
        study: The study.

    Returns:
        One answer for each of these parts: a prediction with its sentences, or what is missing for
        one.
    """
    if not (study.runs["status"] == "completed").any():
        return []
    target, _ = _target(study)
    score = best_by(_of_fixed_batch(study))
    return [_answer(where, part, target, score) for where, part in parts(study)[:MOST_ANSWERS]]


def _target(study: Study) -> tuple[Target | None, str]:
    """Return the target of all parts of a study, and where it comes from if the runs do not say."""
    return common_target(study) or (None, "")


def predictions(study: Study) -> list[tuple[Answer, Prediction]]:
    """Return the answers of a study that have a prediction, with it."""
    return [(answer, answer.prediction) for answer in answers(study) if answer.prediction]


def recommendations(study: Study) -> list[str]:
    """Return sentences that name a study's recommended cells, each with the predicted time to the
    target and the interval of that time. If the runs do not name the target, a sentence says where
    it comes from.

    A last sentence counts the parts that were not analysed. The list is empty if no part has a
    recommendation.

    Args:
        study: The study.

    Returns:
        One sentence for each element.
    """
    lines = [
        joined([answer.where, line], ": ")
        for answer, _ in predictions(study)
        for line in answer.sentences
    ]
    return [*filter(None, [*lines, _target(study)[1], _not_looked_at(study)])] if lines else []


def first_place(study: Study) -> int | None:
    """Return the place in `answers` of the recommendation that a terminal and a page show first.

    If several parts of the study have a recommendation, such as strategies, this is the one of the
    fastest part. If parts differ in model, data set or machine, they are no alternatives: then it
    is the one of the largest part that has a recommendation.

    Args:
        study: The study.

    Returns:
        The place; None if no part has a recommendation.
    """
    values = {
        place: answer.prediction.choice.value
        for place, answer in enumerate(answers(study))
        if answer.prediction
    }
    if not values:
        return None
    # Settings of the role `context` are keys only where they differ.
    is_choice = all(role(name) != "context" for name in cell_keys(study.runs))
    return min(values, key=values.__getitem__) if is_choice else min(values)


def in_short(study: Study) -> list[str]:
    """Return the recommendation of a study as a terminal shows it; see `first_place`.

    Args:
        study: The study.

    Returns:
        At most four lines: the recommended cell, how sure that is, what to run next, and where the
        target comes from with the number of further recommendations. Of a study with larger
        clusters, a line for each network stands between. No line if no part has a recommendation.
    """
    place = first_place(study)
    if place is None:
        return []
    answer = answers(study)[place]
    assert answer.prediction is not None
    cell, *_ = answer.prediction.brief()
    run_next = f"Run next: {answer.prediction.next_run()}."
    others = len(predictions(study)) - 1
    more = f"The page has {counted(others, 'further recommendation')}." if others else ""
    origin = joined([_target(study)[1], more])
    networks = answer.prediction.network_lines()
    lines = [answer.prediction.sure, *networks, run_next, *filter(None, [origin])]
    return [joined([answer.where, cell], ": "), *lines]


def answer_lines(study: Study) -> list[str]:
    """Return the answer of a study, as a terminal and a page show it.

    Args:
        study: The study.

    Returns:
        The lines of `in_short`; if there is no recommendation, the best cell and the first reason
        why there is none.
    """
    return in_short(study) or [*winner(study), *missing_recommendations(study)[:1]]


def _not_looked_at(study: Study) -> str:
    """Return a sentence that counts the parts of a study (sets of comparable runs) that were not
    analysed, with the `bsweep predict` options that select the largest of them, at most eight.
    """
    more = [part for _, part in parts(study)[MOST_ANSWERS:]]
    if not more:
        return ""
    left = study.runs["run_id"].isin({run_id for part in more for run_id in part.runs["run_id"]})
    options = where_options(study.runs, study.runs[left], among=of_one_batch(study.runs))
    command = f"bsweep predict {shlex.quote(str(study.folder))} {_option(_target(study)[0])}"
    return (
        f"Further parts of the study that were not analysed: {len(more)}. To analyse one of them: "
        f"{command} with {options}."
    )


def _option(target: Target | None) -> str:
    return target.option if target else "--target-accuracy ..."


def with_networks(
    study: Study,
    network: str | Sequence[str],
    workers: Sequence[int] | None = None,
    price_per_worker_hour: float | None = None,
    measured_network: str | None = None,
    speeds: Sequence[float] = (),
) -> Study:
    """Return a study with larger clusters, whose cells its figures, tables and pages then simulate
    and mark as simulated.

    Args:
        study: The study.
        network: The links between workers, such as `25gbit,10us`; see `bsweep.predict`. Several are
            compared; the first one has the map of cells and the recommendation.
        workers: The numbers of workers. None takes all doublings up to 64.
        price_per_worker_hour: The price of an hour of one worker, in any currency.
        measured_network: The links on which the study was measured; see `bsweep.simulate`.
        speeds: Relative speeds of uneven workers; see `bsweep.simulate`.

    Returns:
        The study with the same runs.

    Raises:
        ValueError: If a word is unknown, or no step of the study can be simulated. The message says
            why, for the largest part of the study.
    """
    if not (networks := (network,) if isinstance(network, str) else tuple(network)):
        raise ValueError("no network is given: name the links, as in 25gbit,10us.")
    counts = None if workers is None else tuple(workers)
    price = price_per_worker_hour
    larger = LargerClusters(networks, counts, price, measured_network, tuple(speeds))
    check_networks(larger)
    study = replace(study, larger=larger)
    if any(prediction.network for _, prediction in predictions(study)):
        return study
    nothing = Answer("", None, ("no run of the study has completed.",))
    first = next(iter(answers(study)), nothing)
    why = f"--network {networks[0]}: {' '.join(first.sentences)}"
    raise ValueError(first.not_predicted or why)


def recommendation_warnings(study: Study) -> list[str]:
    """Return the warnings on a study's predictions without repetition, each after the names of the
    parts of the study (sets of comparable runs) that it concerns, if parts have names.

    Args:
        study: The study.

    Returns:
        One warning for each element.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for answer, prediction in predictions(study):
        texts = [*prediction.warnings]
        if answer.not_predicted:
            texts.append(f"larger clusters were not simulated: {answer.not_predicted}")
        for text in texts:
            places[text].append(answer.where)
    return [
        f"prediction ({joined(where, '; ')}): {text}" if any(where) else f"prediction: {text}"
        for text, where in places.items()
    ]


def missing_recommendations(study: Study) -> list[str]:
    """Return the reasons why parts of a study (sets of comparable runs) have no recommended cell,
    most with advice on which runs to add. Each reason is given once.

    Args:
        study: The study.

    Returns:
        One reason for each element; empty if each analysed part has a recommendation, or if the
        study has one local batch and one worker count.
    """
    if study.runs[["local_batch", "num_workers"]].nunique().max() == 1:
        return []  # One batch size: the runs ask for something else, such as the best strategy.
    missing: dict[str, list[str]] = defaultdict(list)
    for answer in answers(study):
        if answer.prediction is None:
            missing[" ".join(answer.sentences)].append(answer.where)
    if len(missing) == 1 and not predictions(study):
        return [*missing]
    return [f"{joined(where, '; ')}: {line}" for line, where in missing.items()]


@cached
def parts(study: Study) -> list[tuple[str, Study]]:
    """Divide a study into parts, which are sets of comparable runs. Return for each part a text
    with the settings that distinguish it, and a study with its runs.

    The part with the most runs comes first. Runs with a policy that may change their batch size are
    left out, unless all runs have one.
    """
    fixed = _of_fixed_batch(study)
    if fixed.runs.empty:
        return [("", study)]
    # `predict` itself takes the best of several base rates.
    best = tuned(fixed) if rate_settings(fixed.runs) != ["lr"] else fixed
    names = [*differing(best.runs)]
    if not names:
        return [("", best)]
    runs = [
        (settings_in_words(names, key), best.runs.loc[group.index, "run_id"])
        for key, group in keyed(best.runs).groupby(names, sort=False)
    ]
    runs.sort(key=lambda part: -len(part[1]))
    return [(where, with_runs(best, best.runs["run_id"].isin(run_ids))) for where, run_ids in runs]


def _of_fixed_batch(study: Study) -> Study:
    """Return the study without runs whose policy may change their batch size."""
    return with_runs(study, study.runs["run_id"].isin(of_one_batch(study.runs)["run_id"]))


def _answer(where: str, part: Study, target: Target | None, score: str) -> Answer:
    if target is None:
        return Answer(where, None, (_missing(part, None, ""),))
    given: dict[str, Any] = {SETTINGS[target.metric]: target.value}
    attempts, message = [given], ""
    if part.larger:
        clusters = asdict(part.larger)
        clusters["network"] = clusters.pop("networks")
        given["price_per_worker_hour"] = clusters["price_per_worker_hour"]
        attempts.insert(0, given | clusters)
    for options in attempts:
        try:
            prediction = predict(part, **options)
        except ValueError as error:
            message = error.args[0]
            continue
        sentence, rates = prediction.sentence(), _on_rates(part, prediction, score)
        sentences = filter(None, [sentence, *prediction.network_lines(), rates])
        not_predicted = "" if options is attempts[0] else message
        return Answer(where, prediction, tuple(sentences), not_predicted)
    return Answer(where, None, (_missing(part, target, message),))


def _on_rates(study: Study, prediction: Prediction, score: str) -> str:
    """Return a sentence on the choice of learning rates, by `score` if that of `tuned` was made;
    empty if none was chosen.
    """
    is_tuned = study.runs["lr_rule"].eq(TUNED).any()
    if not is_tuned and not prediction.seen.rates:
        return ""
    cell, score = ("cell", score) if is_tuned else ("batch size", "the steps to the target")
    return (
        f"Each {cell} uses the best of its learning rates, by {score}. The same runs found that "
        "rate, so its time may look a little better than it is."
    )


def _missing(study: Study, target: Target | None, problem: str) -> str:
    """Return a text that says why a part of a study has no recommended cell, and where possible
    which command trains the missing runs.

    Args:
        study: The part of the study.
        target: The target of the whole study.
        problem: The message of the prediction that failed.
    """
    runs, names = study.runs, unsynchronised(study, study.runs)
    if names:
        variants = " or ".join(words("variant", name) for name in names)
        problem = (
            f"workers with {variants} do not take every step together, but the formula for the "
            "steps at each batch size needs workers that do, as with strategy=horovod."
        )
    elif of_one_batch(runs).empty:
        problem = (
            "all runs have a policy that may change their batch size, but a cell has one batch "
            "size. Add runs with a fixed batch size: bsweep run batching=fixed local_batch=... "
            f"study={study.name}."
        )
    elif runs["global_batch"].nunique() == 1:
        return _of_one_size(study, target)
    elif not problem:
        return _no_target(study)
    return f"No recommendation of a batch size: {problem}"


def _of_one_size(study: Study, target: Target | None) -> str:
    """Return a text that asks for runs at other batch sizes, for runs with one global batch, and
    gives two commands that train runs at other sizes.
    """
    runs = study.runs
    batch, counts = runs["global_batch"].iloc[0], sorted(set(runs["num_workers"]))
    local = int(runs["local_batch"].iloc[0])
    sizes = ",".join(map(str, dict.fromkeys((max(1, local // 2), local, 2 * local))))
    what, why = "a batch size", f"all runs have a global batch of {batch}"
    if len(counts) == 1:
        what += " or a worker count"
        why = f"there is only one cell ({batch_on_workers(batch, counts[0])})"
    grid = f"local_batch={sizes} num_workers={','.join(map(str, counts))} study={study.name}"
    return (
        f"No recommendation of {what}: {why}. Run at least one more batch size (two to check the "
        f"fit): bsweep run local_batch={sizes} study={study.name}, with the other settings "
        "unchanged. Or let bsweep train only the cells that it needs: bsweep recommend "
        f"{grid} {_option(target)}, also with the other settings unchanged."
    )


def _no_target(study: Study) -> str:
    """Return a text that says why no test accuracy or loss of the runs can be the target of a
    prediction: runs have a single evaluation, or too few cells reach an accuracy above chance.
    """
    scores = to_target(study, Target("test_accuracy", 1.0))
    others = study.runs.columns.difference(scores.columns)
    runs = study.runs[others].join(scores, on="run_id")
    has_learned = beats_chance(runs["last"], runs["chance"], runs["num_test"]).fillna(True)
    few = evaluated_once(runs)
    low = (
        "Fewer than half of the cells reach an accuracy above chance in all their runs. Train for "
        "longer, or at learning rates that suit each batch, as with optimizer.lr_rule=linear."
    )
    is_low = not few or has_learned.mean() < SHARES[-1]
    return joined(["No recommendation of a batch size.", few, low if is_low else ""])
