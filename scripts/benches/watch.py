"""What `bsweep watch` takes of a core while one run of many trains, and how soon it shows a record.

`python scripts/benches/watch.py` writes a study of 3,000 runs that do nothing, half of them
completed and half interrupted, and one run that appends a step's record each half second. A client
reads the events of the study.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bsweep.runlog.files import RunPaths  # noqa: E402
from bsweep.runlog.locks import claimed  # noqa: E402
from bsweep.runlog.records import SCHEMA, Step  # noqa: E402
from bsweep.study.attendance import claim_of_run  # noqa: E402
from tests.support.synthetic_study import write_run  # noqa: E402

MOST = 0.02  # of a core
LATEST = 2.0  # seconds until a record is shown
STEP_SECONDS = 0.5


def main() -> int:
    """Measure, print what was found, and return 1 if it is more than it may be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "many"
        for number in range(options.runs):
            status = "completed" if number % 2 else None
            write_run(study, local_batch=8, seed=number + 1, status=status, num_epochs_done=1)
        run = write_run(study, local_batch=8, status=None, num_epochs_done=0, epochs=1000)
        command = [sys.executable, "-m", "bsweep", "watch", str(study), "--port", "0"]
        with (
            claimed(claim_of_run(run)),
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        ):
            try:
                share, late = measured(server, run, options.seconds)
            finally:
                server.terminate()
    middle = statistics.median(late)
    print(
        f"{options.runs} idle runs and one that trains: {share:.2%} of a core; {len(late)} records "
        f"shown after {middle:.2f} s (median), {max(late):.2f} s at most"
    )
    return int(share > MOST or max(late) > LATEST)


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
                epoch=1,
                step=number,
                train_loss=1.0,
                learning_rate=0.1,
                images_per_second=100.0,
                global_batch=8,
                epochs_done=number / 1000,
            )
            file.write(json.dumps({"schema": SCHEMA, "time": 0.0, **vars(record)}) + "\n")
            file.flush()
            written[number / 1000] = time.monotonic()
            time.sleep(STEP_SECONDS)
    share = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - began)
    time.sleep(LATEST)
    # A record that was followed by another one before a look is shown by that one.
    late = [
        min(at for value, at in shown.items() if value >= done) - when
        for done, when in written.items()
    ]
    return share, late


if __name__ == "__main__":
    sys.exit(main())
