"""What `bsweep watch` takes of a core while one run of many trains, and how soon it shows
records.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import psutil

from benches.common import Seconds
from bsweep.runlog.files import RunPaths
from bsweep.runlog.locks import claimed
from bsweep.runlog.records import SCHEMA, Step
from bsweep.study.claims import claim_of_run
from tests.support.synthetic_study import write_run

STEP_SECONDS = 0.5


def watch(num_runs: int = 3000, seconds: float = 60) -> Seconds:
    """Watch a study of runs that do nothing, half of them completed and half interrupted, and of
    one run that appends a step's record each half second, as a client that reads its events.

    Return the server's share of a core, and after how many seconds each record was shown.
    """
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "many"
        for number in range(num_runs):
            status = "completed" if number % 2 else None
            write_run(study, local_batch=8, seed=number + 1, status=status, num_epochs_done=1)
        run = write_run(study, local_batch=8, status=None, num_epochs_done=0, epochs=1000)
        command = [sys.executable, "-m", "bsweep", "watch", str(study), "--port", "0"]
        with (
            claimed(claim_of_run(run)),
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        ):
            try:
                share, late = measured(server, run, seconds)
            finally:
                server.terminate()
    print(
        f"{num_runs} idle runs and one that trains: {share:.2%} of a core (target: 2 %); "
        f"{len(late)} records shown after {statistics.median(late):.2f} s (median), "
        f"{max(late):.2f} s at most (target: 2)"
    )
    return {"share of a core": [share], "until a record is shown": late}


def measured(server: subprocess.Popen[str], run: Path, seconds: float) -> tuple[float, list[float]]:
    """Return the share of a core that the server takes, and how late each record was shown."""
    assert server.stdout
    address = server.stdout.readline().strip()
    shown: dict[float, float] = {}  # when a share of the epochs was seen first

    def follow() -> None:
        with urllib.request.urlopen(f"{address}events") as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    for point in json.loads(line[6:])["points"]:
                        if point["run_id"] == run.name:
                            shown.setdefault(point["epochs_done"], time.monotonic())

    threading.Thread(target=follow, daemon=True).start()
    while not shown:
        time.sleep(0.1)
    process = psutil.Process(server.pid)
    time.sleep(5)
    began, used = time.monotonic(), sum(process.cpu_times()[:2])
    written: dict[float, float] = {}
    with RunPaths(run).metrics.open("a") as file:
        while time.monotonic() < began + seconds:
            number = len(written) + 1
            record = Step(
                epoch=1, step=number, train_loss=1.0, learning_rate=0.1, images_per_second=100.0,
                global_batch=8, epochs_done=number / 1000,
            )  # fmt: skip
            file.write(json.dumps({"schema": SCHEMA, "time": 0.0, **vars(record)}) + "\n")
            file.flush()
            written[number / 1000] = time.monotonic()
            time.sleep(STEP_SECONDS)
    share = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - began)
    time.sleep(2)
    # A record that was followed by another one before a look is shown by that one.
    late = [
        min(at for value, at in shown.items() if value >= done) - when
        for done, when in written.items()
    ]
    return share, late
