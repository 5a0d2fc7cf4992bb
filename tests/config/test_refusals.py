"""What a person gets wrong is named with its value and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsweep.config.values import ConfigError
from tests.support.refusing import refused
from tests.support.running import compose

DEEPSPEED = "num_workers=2 strategy=deepspeed"
NOISE = "num_workers=2 measure.noise_scale=true"
DILOCO = "num_workers=2 strategy=diloco"
PIPELINE = "num_workers=2 strategy=pipeline model=tiny_cnn"
PARTS = f"{PIPELINE} strategy.microbatches"
SERVERS = "strategy=parameter_server"
ASYNCHRONOUS = f"{SERVERS} strategy.consistency=asynchronous"
SHARDED = "num_workers=4 strategy=sharded"
UNEVEN = "local_batch=4 num_workers=4 strategy=diloco model=tiny_cnn"
OF_20 = "local_batch=null global_batch=20"
WHOLE = "local_batch=null num_workers=2 global_batch=64"
BY_MEMORY = f"{WHOLE} allocation=batch_by_memory"
SEESAW = f"{WHOLE} batching=schedule batching.rate=seesaw"
RAISED = "optimizer.schedule=multistep optimizer.milestones=[1] batching=raise_instead_of_decay"
REFUSED = [  # what is typed beside local_batch=8, and what the message has
    ("local_batch=null", "local_batch=null", "global_batch=null", "exactly one"),
    ("global_batch=8", "local_batch=8", "global_batch=8", "exactly one"),
    ("epochs=2.5", "epochs=2.5", "integer"),
    ("channels_last=3", "channels_last=3", "'auto', True or False"),
    ("+epoch=3", "epoch: unknown key", "'epochs'"),
    ("+strategy.bucket=3", "strategy.bucket", "'strategy.buckets'"),
    ("strategy.name=horvod", "strategy=horvod", "'single', 'horovod'"),
    (f"{WHOLE} global_batch=7", "global_batch=7", "num_workers=2", "multiple of 2"),
    (f"{WHOLE} global_batch=1 batching=schedule", "global_batch=1 cannot be"),
    ("strategy=single num_workers=2", "strategy=single", "num_workers=2"),
    ("launch=inline num_workers=2", "launch=inline", "num_workers=2"),
    ("local_batch=1", "local_batch=1", "BatchNorm", "local_batch=2"),
    ("optimizer.schedule=multistep", "optimizer.milestones"),
    ("optimizer.nesterov=true optimizer.momentum=0", "optimizer.nesterov=true"),
    ("optimizer.warmup_epochs=9", "optimizer.warmup_epochs=9", "epochs=5"),
    ("precision=fp64 compression=fp16", "precision=fp64"),
    ("precision=fp64 strategy=ddp strategy.hook=fp16", "strategy.hook=fp16"),
    (f"{SHARDED} precision=fp64 strategy.reduce=bf16", "strategy.reduce=bf16"),
    ("study='../other'", "study=../other", "a letter or digit"),
    ("data=program", "add program=own"),
    ("target_accuracy=90", "target_accuracy=90", "such as 0.9"),
    ("target_accuracy=0.9 target_loss=0.5", "target_accuracy=0.9 and target_loss=0.5"),
    ("data=torchvision data.dataset=FashonMNIST", "=FashonMNIST", "'FashionMNIST'", "'SVHN'"),
    ("strategy=ddp compression=topk", "compression=topk", "strategy=ddp", "strategy.hook"),
    ("strategy.op=adasum compression=topk", "strategy.op=adasum"),
    ("strategy.buckets=2 compression=topk", "strategy.buckets=2"),
    ("strategy=ddp launch=horovodrun", "strategy=ddp", "torchrun"),
    ("strategy=ddp strategy.hook=powersgd precision=fp16", "hook=powersgd", "compression=powersgd"),
    ("num_workers=2 launch.slowdown=[1]", "launch.slowdown=[1.0]", "num_workers=2"),
    ("launch.environment=[MY-KEY]", "launch.environment.0=MY-KEY", "such as WANDB_API_KEY"),
    ("launch.network_interface='-x'", "launch.network_interface=-x", "such as eth0"),
    ("num_workers=3 launch.hosts='a:1,b:1'", "num_workers=3", "2 slots"),
    ("num_workers=2 launch.hosts='NODE1:1,node1.:1'", "names a host twice"),
    ("launch.hosts=me@h1:2", "'me@h1:2'", "launch.ssh_options"),
    ("launch.hosts=h1:22:2", "'h1:22:2'", "launch.ssh_port"),
    ("launch.hosts=a", "launch.hosts=a", "h1:4,h2:4"),
    ("launch.hosts='h[1-999999999]:4'", "10,000 hosts: name fewer hosts"),
    ("launch.parallel=0", "launch.parallel=0: use auto"),
    ("launch.parallel=2 launch.hosts='h1:1,h2:1'", "with launch.hosts=h1:1,h2:1"),
    ("launch=inline strategy=single +launch.parallel=2", "only launch=horovodrun or torchrun has"),
    ("num_workers=2 launch=srun", "launch=srun with strategy=", "launch.hosts=slurm"),
    ("launch.ssh_options=['ProxyCommand=x']", "launch.ssh_options.0=ProxyCommand=x: this option"),
    ("launch.ssh_options=['pkcs11provider=/tmp/x.so']", "can make ssh start a program or load a"),
    ("launch.ssh_options=[StrictHostKeyChecking]", "has the form NAME=VALUE"),
    ("launch.ssh_options=['User=me;id']", "its value consists of letters, digits, spaces and"),
    ("launch.hosts='-oProxyCommand=x:1'", "not of the form h1:4,h2:4"),
    ("launch.hosts=@no/such", "launch.hosts=@no/such", "cannot be read (No such file"),
    (f"{SERVERS} precision=fp16", f"precision=fp16 with {SERVERS}", "strategy=allreduce"),
    (f"{SERVERS} strategy.staleness=2", "strategy.staleness=2", "Leave"),
    (f"{SERVERS} strategy.consistency=stale_synchronous", "=stale_synchronous", ".staleness"),
    (f"{SERVERS} strategy.num_servers=2 strategy.colocated=true", "=2", "num_workers=1"),
    (f"{SERVERS} num_workers=4 optimizer=lamb strategy.sharding=layer", "=lamb", "2 servers"),
    (f"{SERVERS} optimizer=lamb", "optimizer=lamb", "strategy.sharding"),
    (f"{ASYNCHRONOUS} measure.noise_scale=true", "noise_scale=true with strategy=", "allreduce"),
    (f"{ASYNCHRONOUS} evaluate_every_examples=9", "=9", "=synchronous", "_examples=null"),
    (f"{SHARDED} strategy.replicas=3", "replicas=3 with num_workers=4", "a divisor"),
    (f"{SHARDED} precision=fp16", "precision=fp16", "precision=bf16"),
    (DEEPSPEED, "precision=auto with strategy=deepspeed", "precision=fp32"),
    (f"{DEEPSPEED} optimizer=lamb", "optimizer=lamb with strategy=deepspeed", "sgd or"),
    (f"{DEEPSPEED} measure.noise_scale=true", "DeepSpeed sums gradients within the passes"),
    (f"{NOISE} strategy=diloco", "strategy=diloco: its workers do not step together"),
    (f"{NOISE} {SERVERS}", "no process has the sum of all gradients"),
    (f"{NOISE} compression=topk", "a codec changes the gradient", "Use compression=none, or leave"),
    (f"{NOISE} strategy=sharded", "FSDP2 sums gradients within", "Use strategy=allreduce, or"),
    (f"{NOISE} {PIPELINE}", "in the gradients of replicas. Use strategy.replicas=2, or leave"),
    (f"{NOISE} strategy.op=adasum", "does not sum gradients. Use strategy.op=average"),
    (f"{NOISE} strategy=ddp strategy.hook=fp16", "strategy.hook=fp16 changes the gradient"),
    (f"{NOISE} {PIPELINE} strategy.replicas=2 strategy.reduce=bf16", "strategy.reduce=fp32, or"),
    (f"{NOISE} num_workers=1 local_batch=1 model=tiny_cnn", "batch of one example", "batch of 2"),
    ("precision=tf32 device=cpu", "precision=tf32 with device=cpu", "precision=fp32"),
    ("compile=true strategy=ddp launch=torchrun", "compile=true with"),
    ("compile=true launch.memory_limit_mb=[500]", "compile=true with"),
    (f"{DILOCO} strategy.algorithm=horovod", "launch=torchrun", "Use launch=horovodrun."),
    (f"{DILOCO} launch=horovodrun", "strategy.algorithm=native", "Use launch=torchrun"),
    (f"{DILOCO} strategy.weights=[0.5,0.4]", "strategy.weights=[0.5, 0.4]", "sum to 1"),
    (f"{DILOCO} strategy.weights=[0.2,0.3,0.5]", "3 weights", "num_workers=2"),
    (f"{DILOCO} optimizer.lr_rule=adascale", "lr_rule=adascale with strategy=diloco"),
    (f"{DILOCO} allocation.local_steps=[1,2,3]", "=[1, 2, 3] with num_workers=2: it has 3 numbers"),
    (f"{UNEVEN} model=resnet18 allocation.local_batches=[4,4,1,4]", "[4, 4, 1, 4]", "Give each"),
    (f"{UNEVEN} strategy=allreduce allocation.local_steps=[1,2,3,4]", "[1, 2, 3, 4]", "diloco"),
    (f"{UNEVEN} strategy=local_sgd allocation=hybrid", "=hybrid with strategy=local_sgd", "diloco"),
    (f"{UNEVEN} {OF_20} allocation.local_batches=[4,4,4,4]", "sum to 16", "global_batch=20"),
    (f"{BY_MEMORY} global_batch=9 accumulation_steps=2", "global_batch=9", "multiple of 2"),
    (f"{BY_MEMORY} num_workers=4 global_batch=3", "global_batch=3", "4 or more"),
    (f"{PIPELINE} allocation=batch_by_flops", "batch_by_flops with strategy=pipeline", "=uniform"),
    (f"{PARTS}=3", "microbatches=3", "the local batch 8"),
    (f"{PARTS}=1 strategy.schedule=zbv", "=1 with strategy.schedule=zbv", "microbatches=2"),
    (f"{PARTS}=2 strategy.schedule=dualpipev", "=2 with strategy.schedule=", "microbatches=4"),
    (f"{PARTS}=5 local_batch=10 strategy.schedule=interleaved_1f1b", "=5", "multiple of the 2"),
    (f"{PIPELINE} strategy.cuts=[3,2,1]", "cuts=[3, 2, 1]", "ascending", "give 1 cut,"),
    (f"{PARTS}=8 model=resnet18", "local_batch=8 in strategy.microbatches=8", "local_batch=16"),
    (f"{WHOLE} batching=schedule batching.max_global_batch=32", "=32 excludes", "batch of 64"),
    (f"{WHOLE} batching=schedule batching.min_global_batch=1", "num_workers=2: use 4 or more"),
    (f"{SEESAW} optimizer.lr_rule=linear", "Use optimizer.lr_rule=fixed"),
    (f"{SEESAW} batching.factor=0.5", "Seesaw grows"),
    (f"{WHOLE} batching=goodput strategy=local_sgd", "batching=goodput with strategy=local_sgd"),
    (f"{WHOLE} batching=noise_scale batching.max_local_batch=16", "local batch, 32"),
    (f"{WHOLE} batching=cabs optimizer.lr_rule=adascale", "lr_rule=adascale with batching=cabs"),
    (f"{WHOLE} batching=raise_instead_of_decay", "Use optimizer.schedule=multistep"),
    (f"{WHOLE} {RAISED} optimizer.lr_rule=sqrt", "optimizer.lr_rule=sqrt with batching=raise_"),
    ("local_batch=null global_batch=1 batching=cabs model=tiny_cnn", "Use a batch of 2"),
]


@pytest.mark.full(but=24)
@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0])
def test_bad_values_are_named_with_a_remedy(row: tuple[str, ...]) -> None:
    words, *expected = row
    with refused(*expected):
        compose("local_batch=8", *words.split())


def test_all_bad_values_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        compose("local_batch=-5", "epochs=0", "strategy.buckets=none")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("a:1\n-V slots=2\n", "line 2, '-V slots=2': not of the form h1:4"),
        ("a:1\nb[3-1]:2\n", "line 2, 'b[3-1]:2': [3-1] counts down"),
    ],
)
def test_a_bad_line_of_a_file_of_hosts_is_named(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "hosts.txt").write_text(lines)
    with pytest.raises(ConfigError) as caught:
        compose("local_batch=8", f"launch.hosts=@{tmp_path}/hosts.txt")
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1
