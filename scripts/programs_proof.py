"""Compare bsweep's own training of ResNet-18 with the same training as a plain Horovod script.

python scripts/programs_proof.py times [--rounds 3]     columns, and the ratio of the training times
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
_BUILTIN += ["channels_last=false", "launch.threads_per_worker=1"]
_SCRIPT = _ROOT / "scripts/examples/programs/resnet18_horovod.py"
_OWN = ["program=own", f"program.command='python {_SCRIPT}'", "optimizer.lr=0.01"]
_OWN += ["launch.threads_per_worker=1"]


def typed(folder: str, *words: str) -> str:
    """Run a bsweep command in a folder, and return what it prints."""
    command = [sys.executable, "-m", "bsweep", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def times(rounds: int) -> None:
    """Print the training times of both programs, their ratio, and the columns that differ."""
    seconds: dict[str, list[float]] = {"builtin": [], "own": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(rounds):
            for study, words in (("builtin", _BUILTIN), ("own", _OWN)):
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
    grid = ["local_batch=16,32,64,128", "num_workers=1,2", "epochs=12"]
    grid += ["--target-accuracy=0.9", "--budget=3m", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        for study, words in (("builtin", _BUILTIN), ("own", _OWN)):
            answer = json.loads(typed(folder, "recommend", *words, *grid, f"study={study}"))
            print(study, answer["prediction"]["sentence"], *answer["said"], sep="\n", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["times"]:
        times(int(sys.argv[3]) if "--rounds" in sys.argv else 3)
    elif sys.argv[1:] == ["recommend"]:
        recommend()
    else:
        raise SystemExit(__doc__)
