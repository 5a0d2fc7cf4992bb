"""Run `results/figures.ipynb` and keep what its cells show, so that GitHub shows it too.

`python scripts/tour.py` runs it on the first study in `results/measured/`. Of an output with a
picture, the picture alone is kept, and frames are left out: an interactive page has some MB, and
GitHub runs no scripts.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "results/figures.ipynb"
MOST_BYTES = 1_500_000


def main() -> int:
    """Run the notebook, write it, and return 1 if it is too large."""
    os.environ.pop("BSWEEP_STUDY", None)
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": NOTEBOOK.parent}},
    ).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output.data = {kind: output.data[kind] for kind in ("image/png", "text/plain")}
            elif html := output.get("data", {}).get("text/html"):
                output.data["text/html"] = re.sub("<iframe.*?</iframe>", "", html, flags=re.DOTALL)
    nbformat.write(notebook, NOTEBOOK)  # type: ignore[no-untyped-call]
    size = NOTEBOOK.stat().st_size
    print(f"{NOTEBOOK}: {size / 1e6:.2f} MB")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
