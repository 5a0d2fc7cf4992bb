"""Workers of `strategy=pipedream` end with the weights of the formula of its paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bsweep import data, models
from bsweep.config import user_code
from bsweep.config.run import RunConfig
from bsweep.data import plan
from bsweep.data.inputs import Inputs
from bsweep.numerics import objective, optim
from bsweep.numerics.vector import Vector
from bsweep.runlog.reading import read_records
from tests.strategies.test_equivalence import CONTRACT, _end_processes, text_contract, trained  # noqa: F401 (the fixture ends the processes)
from tests.study.test_run import runs, summary
from tests.support.refusing import refused
from tests.support.running import TINY, compose, exits, ran_ok, struck, summaries

BATCH, NUM_STEPS = 12, 8  # of an epoch with 91 examples, the last one of 7


def reference(config: RunConfig, stage_of: list[list[str]], delays: list[int]) -> dict[str, Any]:
    """Train as PipeDream's formula says, in one process and without a pipeline.

    The gradient of batch t is that at weights of which stage s is `delays[s]` updates behind, or as
    many as there were since the epoch began. It updates all of the newest weights.
    """
    cpu, wide, layout = torch.device("cpu"), torch.float64, torch.contiguous_format
    dataset = data.load(config.data, cpu)
    model = models.initial(config, dataset, cpu, wide)
    inputs = Inputs(dataset, config.data, wide, layout)
    loss_of = objective.build(model, dataset.train.labels)
    pieces = dict(models.pieces(config.model, model))
    delay_of = {
        id(tensor): delay
        for names, delay in zip(stage_of, delays, strict=True)
        for name in names
        for tensor in pieces[name].parameters()
    }
    vector = Vector(model)
    optimizer, first = optim.build(config.optimizer, vector), _copied(model)
    num_train, losses = len(dataset.train), []
    for epoch in range(1, config.epochs + 1):
        order = plan.epoch_order(num_train, seed=config.seed, epoch=epoch)
        versions, position, total = [_copied(model)], 0, 0.0
        for number, batch in enumerate(order.split(BATCH)):
            used = {
                name: versions[max(0, number - delay_of[id(tensor)])][name].requires_grad_()
                for name, tensor in model.named_parameters()
            }
            examples, targets = inputs.training(batch, inputs.crops(epoch, config.seed))
            loss = loss_of.loss(functional_call(model, used, (examples,)), targets)
            gradients = torch.autograd.grad(loss / targets.numel(), list(used.values()))
            for tensor, gradient in zip(model.parameters(), gradients, strict=True):
                assert tensor.grad is not None
                tensor.grad.copy_(gradient)
            done = epoch - 1 + (position + len(batch) / 2) / num_train
            optim.set_learning_rate(optimizer, optim.learning_rate(config, done, BATCH))
            optimizer.step()
            versions.append(_copied(model))
            position, total = position + len(batch), total + float(loss.detach())
        losses.append(total / dataset.train.labels.numel())
    with torch.no_grad():
        examples, labels = dataset.test.take(torch.arange(len(dataset.test)))[:2]
        outputs = model(inputs.convert(examples))
        test_loss = float(loss_of.loss(outputs, inputs.targets(labels))) / labels.numel()
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in vector.tensors])
    moved = max(float((first[name] - p).abs().max()) for name, p in _copied(model).items())
    return {"parameters": flat, "losses": losses, "test_loss": test_loss, "moved": moved}


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


OF_FORMULA: list[tuple[int, tuple[str, ...]]] = [
    (4, ("optimizer=adamw", "optimizer.lr=0.003")),
    (1, ()),
    (2, ("model=tiny_cnn", "strategy.cuts=[1]", "optimizer.schedule=cosine")),
    (2, ("model=tiny_cnn", "accumulation_steps=3", "optimizer=lars")),
    (4, ("accumulation_steps=4", "optimizer=lars", "optimizer.warmup_epochs=1")),
    (4, ("strategy.replicas=4", "optimizer=lamb", "optimizer.lr=0.01")),
]


@pytest.mark.full(but=2)
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(("num_workers", "more"), OF_FORMULA)
def test_workers_reach_the_weights_of_the_formula(
    num_workers: int, more: tuple[str, ...], sync: bool
) -> None:
    base = CONTRACT if "model=tiny_cnn" in more else text_contract()
    how = (f"strategy.vertical_sync={str(sync).lower()}", f"global_batch={BATCH}", *more)
    words = ("strategy=pipedream", *how)
    contract = (*base, "optimizer.lr=0.1")
    workers = trained(num_workers, *words, contract=contract)
    stages = workers[0]["start"]["stages"]
    config = user_code.with_fingerprints(compose(f"num_workers={num_workers}", *contract, *words))
    num_stages = len(stages)
    lags = [num_stages - 1 - stage for stage in range(num_stages)]
    delays = [num_stages - 1] * num_stages if sync else lags
    expected = reference(config, stages, delays)
    assert expected["moved"] > 0.005
    for worker in workers:
        torch.testing.assert_close(
            worker["parameters"], expected["parameters"], rtol=1e-9, atol=1e-11
        )
        losses = [epoch["train_loss"] for epoch in worker["epochs"]]
        assert losses == pytest.approx(expected["losses"], rel=1e-9)
        assert worker["epochs"][-1]["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-9)
    if num_stages > 1:
        other = reference(config, stages, [0] * num_stages)["parameters"]
        assert float((other - expected["parameters"]).abs().max()) > 1e-5, "old weights matter"
    for epoch in workers[0]["epochs"]:
        for rank, load in enumerate(epoch["stage_loads"]):
            stage = rank % num_stages
            assert load["weight_versions"] == (num_stages if sync else num_stages - stage)
            missed = [min(step, delays[stage]) for step in range(NUM_STEPS)]
            assert load["staleness"] == sum(missed) / NUM_STEPS
            memory = epoch["worker_memory"][rank]["parameter_bytes"]
            lag = num_stages - 1 - stage
            copies = num_stages - 1 if sync and stage else lag + (lag > 0)
            assert load["stashed_bytes"] == copies * memory
            assert load["busy_seconds"] > 0
            assert load["peak_activation_bytes"] > 0


POINT = ("model=tiny_cnn", "strategy=pipedream", "num_workers=2", "local_batch=4", "study=s")
RUN = (*TINY, *POINT)


@pytest.mark.full
def test_a_run_that_diverges_within_an_epoch_ends(tmp_path: Path) -> None:
    exits(1, "run", *RUN, "optimizer.lr=1e30", "log_every_steps=2", cwd=tmp_path, timeout=90)
    (end,) = summaries(tmp_path).values()
    assert end["status"] == "diverged"


@pytest.mark.full
def test_a_lost_worker_is_named_and_its_run_resumes_where_an_epoch_ended(tmp_path: Path) -> None:
    """A checkpoint after each step would be late for one. An epoch has 23."""
    env = struck(tmp_path, (1,), "strategies.pipedream", "PipeDream.step", 30)
    words = ("run", *RUN, "checkpoint_every=0.001s")
    exits(1, *words, cwd=tmp_path, env=env, timeout=90)
    (paths,) = runs(tmp_path)
    end = summary(paths)
    assert end["status"] == "failed"
    assert "rank 1" in end["message"], end["message"]
    ran_ok(*words, cwd=tmp_path, timeout=90)
    records = read_records(paths.metrics)[0]
    (resumed,) = (record for record in records if record.get("event") == "resumed")
    assert resumed["message"].startswith("resumed after step 23, in epoch 1")


@pytest.mark.full
def test_a_profile_of_steps_that_do_not_end_an_epoch(tmp_path: Path) -> None:
    words = (*RUN, "num_workers=4", "strategy.replicas=2")
    result = ran_ok("profile", *words, cwd=tmp_path, timeout=120)
    assert "backward" in result.stdout


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("num_workers=4",), ["strategy=pipedream needs 4 stages", "only 3 pieces"]),
        (("strategy.cuts=[1,2]",), ["makes 3 stages, not 2", "give 1 cut,"]),
        (("strategy.replicas=3",), ["replicas=3", "num_workers=2", "divisor"]),
        (("optimizer=lamb",), ["optimizer=lamb", "norm", "Use optimizer=adamw"]),
        (("evaluate_every_examples=20",), ["evaluate_every_examples", "strategy=pipeline"]),
        (("precision=fp16",), ["precision=fp16", "precision=bf16"]),
        (("measure.noise_scale=true",), ["do not step together", "strategy=horovod"]),
        (("compression=topk",), ["compression=topk with strategy=pipedream"]),
    ],
)
def test_what_cannot_work_is_refused(more: tuple[str, ...], expected: list[str]) -> None:
    with refused(*expected):
        models.check_model(compose(*RUN, *more), 10, (3, 8, 8))


@pytest.mark.full
def test_an_optimizer_that_limits_the_whole_norm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Limited(torch.optim.SGD):\n"
        "    def __init__(self, parameters, lr):\n"
        "        super().__init__(parameters, lr)\n"
        "        self.defaults['max_grad_norm'] = 1.0\n"
    )
    words = ("optimizer=own", "optimizer.target=mine.py:Limited")
    ended = exits(1, "run", *RUN, *words, cwd=tmp_path, timeout=90)
    assert "Give the optimizer no max_grad_norm" in ended.stderr, ended.stderr
