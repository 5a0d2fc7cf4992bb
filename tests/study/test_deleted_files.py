"""Whatever file of a run or a study is deleted, at rest or while the run trains, it ends with the
records of an undisturbed one, and a loss that has consequences is named.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bsweep import load
from bsweep.runlog.checkpoint_files import checkpoints
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records, read_run
from bsweep.study import states
from tests.study.test_run import summary
from tests.support.running import TINY, bsweep, struck
from tests.train.test_resume import begun, records_of

NETWORK = """\
from torch import nn

def build(num_classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))
"""
POINT = (
    *TINY,
    "model=own",
    "model.target=net.py:build",
    "precision=fp32",
    "channels_last=false",
    "num_workers=2",
    "local_batch=8",
    "epochs=5",
    "checkpoint_every=1",
    "strategy=parameter_server",
    "optimizer.lr=0.02",
)
PARTS = ("shared.pt", "rank.0.pt", "rank.1.pt", "server.0.pt")
OF_RUN = (
    *("config.yaml", "meta.json", "metrics.jsonl", "summary.json", "stop", ".claim", ".workers"),
    *("own", "logs", "logs/launcher.log", "logs/lifeline", "server.0.csv", "checkpoint", "."),
    *(f"logs/rank.{rank}/{name}" for rank in range(3) for name in ("stdout", "stderr", "alive")),
    *(
        f"checkpoint/{age}/{name}"
        for age in ("newest", "older")
        for name in (*PARTS, "complete.json")
    ),
    "nothing",
)
"""What is deleted; the point with seed n loses the nth one."""
HAS_CONSEQUENCES = {
    "failed": {
        *("meta.json", "metrics.jsonl", "server.0.csv", "checkpoint"),
        *(f"checkpoint/newest/{name}" for name in PARTS),
    },
    "completed": {"meta.json", "metrics.jsonl", "summary.json"},
    "live": {"meta.json", "metrics.jsonl"},
}
"""Files whose loss has consequences, by the state of the run that loses them.

Without `complete.json`, a checkpoint looks like one that is being written: the older one is taken.
"""


def grid(study: str) -> tuple[str, ...]:
    return ("-m", *POINT, f"seed=range({len(OF_RUN)})", f"study={study}")


def run_of(study_dir: Path, seed: int) -> RunPaths:
    (folder,) = study_dir.glob(f"b8_w2_parameter_server_s{seed}-*")
    return RunPaths(folder)


def place_of(paths: RunPaths, name: str) -> Path:
    """Where a file of OF_RUN is now."""
    found = checkpoints(paths)
    for age, checkpoint in zip(("newest", "older"), found, strict=False):
        name = name.replace(f"checkpoint/{age}", f"checkpoint/{checkpoint.folder.name}")
    return paths.folder / name


def delete(path: Path) -> bool:
    """Remove a file or folder; False if there was none."""
    if not path.exists():
        return False
    if not path.is_dir():
        path.unlink()
    while path.is_dir():  # a run that trains may write into the folder meanwhile
        shutil.rmtree(path, ignore_errors=True)
    return True


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study `whole`, which was left in peace, and `s`, whose runs have failed after
    two checkpoints.
    """
    folder = tmp_path_factory.mktemp("desk")
    (folder / "net.py").write_text(NETWORK)
    whole = bsweep("run", *grid("whole"), cwd=folder, timeout=3000)
    assert whole.returncode == 0, whole.stderr
    return folder


def said_of(paths: RunPaths, name: str) -> list[str]:
    """The warnings about a run that name a file."""
    warnings = [*read_run(paths.folder).warnings, *summary(paths)["warnings"]]
    return [one for one in warnings if re.search(rf"\b{Path(name).name}\b", one)]


def outcomes(desk: Path, study: str, lost: Sequence[str]) -> Iterator[tuple[str, str]]:
    """For each deleted file, how its run ended."""
    for seed, name in enumerate(OF_RUN):
        ours, whole = run_of(desk / "results" / study, seed), run_of(desk / "results/whole", seed)
        events = [r["event"] for r in read_records(ours.metrics)[0] if r["type"] == "event"]
        again = (ours.folder.parent / ".previous" / f"{ours.folder.name}.1").exists()
        is_equal = records_of(ours) == records_of(whole)
        words = said_of(ours, name)
        how = "resumed" if "resumed" in events else "repeated" if again else "left"
        end = ["deleted" if name in lost else "not there", summary(ours)["status"], how]
        is_silent = name in lost and name in HAS_CONSEQUENCES[study] and not words
        said = ["SILENT" if is_silent else "", *words][:2]
        yield name, ", ".join([*end, "equal" if is_equal else "OTHER RECORDS", *filter(None, said)])


def check_outcomes(desk: Path, study: str, lost: Sequence[str], said: Sequence[str]) -> None:
    table = dict(outcomes(desk, study, lost))
    print(*said, *(f"{name}: {end}" for name, end in table.items()), sep="\n")
    assert "Traceback" not in "".join(said)
    assert not [end for end in table.values() if "OTHER" in end or "completed" not in end]
    assert not [name for name, end in table.items() if "SILENT" in end]
    folder = desk / "results" / study
    assert all(state.status == "completed" for state in states.read_states(folder).values())
    assert len(load(folder).runs) == len(OF_RUN)


def left_after(desk: Path, study: str) -> list[str]:
    """What `status`, `report` and `resume` say of a study, until nothing is left to do."""
    said = []
    for command in ("status", "report", "resume", "resume", "status"):
        result = bsweep(command, f"results/{study}", cwd=desk, timeout=3000)
        said.append(f"{command}: {result.returncode}\n{result.stdout}{result.stderr}")
    return said


ALONE = (
    "-m", "seed=range(4)", *POINT[:9], "local_batch=8", "epochs=3",
    "checkpoint_every=1", "launch=inline", "strategy=single", "study=s",
)  # fmt: skip


def test_a_loss_with_consequences_is_named(tmp_path: Path) -> None:
    """Three completed runs and a killed one lose a file each; their study loses its commands."""
    (tmp_path / "net.py").write_text(NETWORK)
    env = struck(tmp_path, (0,), "runlog.checkpoint_files", "Checkpoint.complete", 8)
    killed = bsweep("run", *ALONE, cwd=tmp_path, env={**env, "RANK": "0"})
    assert killed.returncode == -9, killed.stderr
    study = tmp_path / "results/s"
    runs = [next(study.glob(f"b8_w1_single_s{seed}-*")) for seed in range(4)]
    lost = ("summary.json", "metrics.jsonl", "meta.json", "checkpoint")
    assert all(delete(run / name) for run, name in zip(runs, lost, strict=True))
    (study / "commands.jsonl").unlink()
    said = bsweep("status", "results/s", cwd=tmp_path).stdout
    assert "results/s/commands.jsonl has no command for 4 runs" in said
    assert f"{runs[1].name}: damaged: results/s/{runs[1].name}/metrics.jsonl: " in said
    again = bsweep("run", *ALONE, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    warnings = load(study).runs.set_index("seed")["warnings"]
    ends = {0: " is missing: the run starts ", 1: ": the file has 0 ", 3: " no longer has a "}
    for seed, end in ends.items():
        named = f"results/s/{runs[seed].name}/{lost[seed]}{end}"
        assert f"  warning: {named}" in again.stderr
        assert named in warnings[seed]
    assert warnings[2].startswith("meta.json is missing: ")


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("state", ["failed", "completed"])
def test_any_file_deleted_at_rest(desk: Path, state: str) -> None:
    study = desk / "results" / state
    if state == "failed":
        env = struck(desk, (0,), "runlog.checkpoint_files", "Checkpoint.complete", 3, once=False)
        assert bsweep("run", *grid(state), cwd=desk, env=env, timeout=3000).returncode == 1
    else:
        shutil.copytree(desk / "results/whole", study)
        (study / "commands.jsonl").unlink()  # of another study
        bsweep("run", *grid(state), cwd=desk, timeout=3000)  # its command
    lost = [name for n, name in enumerate(OF_RUN) if delete(place_of(run_of(study, n), name))]
    check_outcomes(desk, state, lost, left_after(desk, state))


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_any_file_deleted_while_the_run_trains(desk: Path) -> None:
    study, lost = desk / "results/live", []
    with (
        (desk / "said").open("w+") as said,
        begun(*grid("live"), cwd=desk, output=said) as sweep,
    ):
        for seed, name in enumerate(OF_RUN):
            while not [*study.glob(f"*_s{seed}-*")]:
                assert sweep.poll() is None
                time.sleep(0.005)
            paths = run_of(study, seed)
            while (
                sweep.poll() is None and not paths.summary.exists() and len(checkpoints(paths)) < 2
            ):
                time.sleep(0.005)
            if not paths.summary.exists() and delete(place_of(paths, name)):
                lost.append(name)
        sweep.wait(3000)
        said.seek(0)
        text = said.read()
    check_outcomes(desk, "live", lost, [text, *left_after(desk, "live")])


OF_STUDY = ("commands.jsonl", ".locks", ".sweeps", ".locks and .sweeps")
LONG = ("epochs=90", "log_every_steps=1000")


def num_starts(study: Path) -> int:
    metrics = study.glob("b8*/metrics.jsonl")
    records = (record for path in metrics for record in read_records(path)[0])
    return sum(record["type"] == "start" for record in records)


@pytest.mark.nightly
@pytest.mark.parametrize("name", OF_STUDY)
@pytest.mark.parametrize("when", ["at rest", "live"])
def test_any_file_of_a_study_deleted(tmp_path: Path, name: str, when: str) -> None:
    """Two of four points are left when it is deleted at rest; live, the second one trains."""
    (tmp_path / "net.py").write_text(NETWORK)
    study, grid = tmp_path / "results/s", (*ALONE, *LONG)
    with (tmp_path / "said").open("w+") as output, begun(*grid, cwd=tmp_path, output=output) as one:
        while num_starts(study) < 2:
            assert one.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.005)
        if when == "at rest":
            one.kill()
        assert all(delete(study / part) for part in name.split(" and "))
        if when == "live":
            assert one.wait(300) == 0, (tmp_path / "said").read_text()
    status = bsweep("status", "results/s", cwd=tmp_path)
    again = bsweep("run", *grid, cwd=tmp_path)
    print((tmp_path / "said").read_text(), status.stdout, again.stderr, sep="\n")
    assert again.returncode == 0
    is_named = "results/s/commands.jsonl has no command for " in status.stdout
    assert is_named == (name == "commands.jsonl")
    assert "Traceback" not in (tmp_path / "said").read_text() + status.stderr + again.stderr
    assert [state.status for state in states.read_states(study).values()] == ["completed"] * 4
