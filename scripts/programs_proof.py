"""Compare bsweep's own training of ResNet-18 with the same training as a plain script.

python scripts/programs_proof.py times ddp [--rounds 3] columns, and the ratio of the training times
python scripts/programs_proof.py times horovod          the same, with Horovod instead of DDP
python scripts/programs_proof.py recommend              the cells that `bsweep recommend` names

The two alternate; a time is the median over the rounds. Everything is written to a temporary
folder.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import bsweep

_ROOT = Path(__file__).parents[1]
_BUILTIN = ["data=digits", "data.crop_padding=0", "data.flip=false", "precision=fp32"]
_BUILTIN += ["channels_last=false"]
_SCRIPT = _ROOT / "scripts/examples/programs/resnet18.py"
_LAUNCHERS = {"ddp": "torchrun", "horovod": "horovodrun"}


def programs(exchange: str) -> dict[str, list[str]]:
    """Return the settings of both programs, by the names of their studies."""
    script = ["program=own", f"program.command='python {_SCRIPT} {exchange}'", "optimizer.lr=0.01"]
    script += [f"launch={_LAUNCHERS[exchange]}"]
    return {"builtin": [*_BUILTIN, f"strategy={exchange}"], "own": script}


def typed(folder: str, *words: str) -> str:
    """Run a bsweep command in a folder, and return what it prints."""
    command = [sys.executable, "-m", "bsweep", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def times(exchange: str, rounds: int) -> None:
    """Print the training times of both programs, their ratio, and the columns that differ."""
    seconds: dict[str, list[float]] = {"builtin": [], "own": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(rounds):
            for study, words in programs(exchange).items():
                point = ["local_batch=32", "num_workers=2", "epochs=3", f"seed={seed}"]
                typed(folder, "run", *words, *point, f"study={study}")
                runs = bsweep.load(f"{folder}/results/{study}").runs
                seconds[study].append(
                    float(runs.loc[runs["seed"] == seed, "train_seconds"].iloc[0])
                )
        studies = {name: bsweep.load(f"{folder}/results/{name}") for name in seconds}
    print("seconds of training, by round:", json.dumps(seconds))
    ratio = statistics.median(seconds["own"]) / statistics.median(seconds["builtin"])
    print(f"script / built-in: {ratio:.3f}")
    for table in ("runs", "epochs", "evaluations"):
        own, builtin = (set(getattr(studies[name], table).columns) for name in ("own", "builtin"))
        print(f"columns of {table} in one of them only: {sorted(own ^ builtin)}")


def recommend() -> None:
    """Print the answers of `bsweep recommend` for both programs."""
    grid = ["local_batch=8,32,256", "num_workers=1,4", "epochs=12"]  # cells far apart
    grid += ["--target-accuracy=0.95", "--budget=5m", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        for study, words in programs("horovod").items():
            answer = json.loads(typed(folder, "recommend", *words, *grid, f"study={study}"))
            print(study, answer["prediction"]["sentence"], *answer["said"], sep="\n", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["times"] and set(sys.argv[2:3]) & set(_LAUNCHERS):
        times(sys.argv[2], int(sys.argv[4]) if "--rounds" in sys.argv else 3)
    elif sys.argv[1:] == ["recommend"]:
        recommend()
    else:
        raise SystemExit(__doc__)
