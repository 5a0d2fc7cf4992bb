"""What README and docs tell people to type works: every command runs, shrunk to seconds."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from bsweep.compose import hydra_grid, words
from bsweep.core.torchvision_shim import import_torchvision
from tests.data.test_data import write_image
from tests.project.test_experiments import written
from tests.support.running import ROOT, TINY, bsweep, forks, ran_ok, write_runs, write_text
from tests.support.synthetic_study import write_study

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What sets up or tests everything, and what needs more than a machine, has tests of its own.
ELSEWHERE = (
    "scripts/sweep.sh",
    "scripts/test.sh",
    "scripts/gpu.sh",
    "horovodrun -np 2 python",
    "torchrun",
    "bsweep watch",
    "python ",
    "scripts/setup.sh",
    ". .venv/bin/activate",
)


def commands(page: Path) -> list[str]:
    """The lines of a page's shell blocks, those that go on joined."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip()]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the pages' commands name."""
    folder = tmp_path_factory.mktemp("desk")
    write_text(folder / "book.txt", 20_000)
    for part, number in (("train", 6), ("test", 2)):
        for grey, name in ((60, "dark"), (200, "light")):
            for image in range(number):
                path = folder / "photos" / part / name / f"{image}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_image(path, grey + image)
    write_study(folder / "results/written", local_batches=(8, 64))
    write_runs(folder / "runs.csv")
    (folder / "wandb_export.csv").write_text(
        "Name,State,Runtime,batch_size,val_acc\ncalm-1,finished,12,32,0.75\n"
    )
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "results/measured").symlink_to(ROOT / "results/measured")
    (build,) = re.findall(
        r"^def build\(number.*?^```", (ROOT / "docs/own.md").read_text(), re.DOTALL | re.MULTILINE
    )
    weights = import_torchvision().models.resnet18().state_dict()  # with the names that timm gives
    torch.save(weights, folder / "resnet18.pth")
    (folder / "mydata.py").write_text("import torch\n\n\n" + build.removesuffix("```"))
    return folder


# Each once, whatever pages repeat it.
TYPED = dict.fromkeys(line for page in PAGES for line in commands(page))
COMPOSED = [line for line in TYPED if re.match("bsweep (run|plan|probe|profile) ", line)]


@pytest.mark.parametrize("line", COMPOSED)
def test_what_a_page_says_to_run_is_a_grid(
    line: str, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk)
    arguments = shlex.split(line, comments=True)[2:]
    no_probe = [word for word in arguments if not word.startswith("allocation=")]
    assert hydra_grid.composed(words.read(no_probe))


def test_the_traced_paths_lead_through_functions_that_exist() -> None:
    text = (ROOT / "docs/how.md").read_text()
    stations = re.findall(r"^\| `([\w/]+\.py)` `(?:\w+\.)?(\w+)` \|", text, re.MULTILINE)
    assert len(stations) > 50
    for file, name in stations:
        code = (ROOT / "src/bsweep" / file).read_text()
        assert re.search(rf"^ *(?:async )?(?:def|class) {name}\b", code, re.MULTILINE), (file, name)


@pytest.mark.full
@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page)], ids=lambda page: page.name
)
def test_what_a_page_says_to_type_works(page: Path, desk: Path, tmp_path: Path) -> None:
    """In its order, as what a page says to export or to resume is what it has trained before."""
    shutil.copytree(desk, tmp_path / "desk", symlinks=True)
    ran_ok("run", *shrunk(["run", "study=mine"])[1:], cwd=tmp_path / "desk")
    for line in commands(page):
        if line.startswith(ELSEWHERE):
            continue
        program, *words = shlex.split(line, comments=True)
        prefix: tuple[str, ...] = ()
        if program == "horovodrun":
            prefix, (program, *words) = (forks().horovodrun, "-np", "2", "--gloo"), words[2:]
        assert program == "bsweep", line
        result = bsweep(*shrunk(words), cwd=tmp_path / "desk", prefix=prefix)
        code = 1 if words[:1] == ["recommend"] else 0  # of runs that reach the target at once
        assert result.returncode == code, f"{line}\n{result.stdout}{result.stderr}"


def shrunk(words: list[str]) -> list[str]:
    """The same command, of few examples and one epoch: of axes of numbers the first alone."""
    if words[0] == "doctor":
        there = ["launch.network_interface=lo", "--hosts", "localhost:1"]
        return [word for word in words if not word.startswith(("--hosts", "node1"))] + there
    if words[0] in ("predict", "report", "simulate"):  # which need more than one small run
        words = [re.sub(r"^0\.(85|9)$", "0.8", word) for word in words]  # the written runs reach it
        return [re.sub("results/(mine|earlier)", "results/written", word) for word in words]
    if words[0] == "recommend":  # of a target that the first evaluation reaches
        taken = ("local_batch=", "num_workers=", "data.", "--")
        keys = [word for word in words[1:] if "=" in word and not word.startswith(taken)]
        quick = "local_batch=8,16 launch=inline strategy=single model=tiny_cnn epochs=2"
        tiny = [*TINY, *quick.split(), "evaluate_every_examples=30"]
        return ["recommend", *keys, *tiny, "--target-loss=100", "--budget=60s"]
    if words[0] == "export":
        words = [*words, "--out", "exported"]
    if "program=own" in words:
        return [re.sub(r"(?<==)(\d+)(,\d+)+$", r"\1", word) for word in words] + ["epochs=1"]
    if words[0] not in ("run", "plan", "probe", "profile"):
        return words
    given = dict(word.split("=", 1) for word in words if "=" in word)
    words = [word for word in words if not word.startswith("local_batch=")]
    small = ["epochs=1", "local_batch=4", "optimizer.warmup_epochs=0"]
    if "experiment" in given:
        text = written(given["experiment"])
        small += [f"~data.{key}" for key in text.get("data", {})]
    if given.get("data", "synthetic") == "synthetic":
        words = [word for word in words if not word.startswith("data.")]
        small += TINY
    else:
        small.append("data.subset=12")
    if "evaluate_every_examples" in given:
        small.append("evaluate_every_examples=20")
    if given.get("data") == "text":
        small.append("data.sequence_length=8")
    if given.get("model", "vgg16") == "vgg16":  # whose 134 million parameters take their time
        small.append("model=tiny_cnn")
    if "launch.hosts" in given:
        small += ["launch.hosts=localhost:2", "launch.network_interface=lo", "num_workers=2"]
    return [re.sub(r"(?<==)(\d+)(,\d+)+$", r"\1", word) for word in words] + small
