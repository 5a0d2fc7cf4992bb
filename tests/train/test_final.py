"""What is left of a run when it has ended: its weights, and the score of a test set seen once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import bsweep as package
from bsweep import data
from bsweep.config.saved import read_config
from bsweep.data.inputs import normalize
from bsweep.runlog.reading import read_records
from tests.data.test_data import write_image
from tests.study.test_run import runs, summary
from tests.support.running import TINY, bsweep, ran_ok

MODEL = """\
from torch import nn
from parts import head

def build(num_classes, shape):
    first = nn.Conv2d(shape[0], 4, 3, stride=2)
    return nn.Sequential(first, nn.BatchNorm2d(4), nn.Flatten(), head(4 * 9, num_classes))
"""


@pytest.mark.full
def test_a_flat_folder_ends_in_weights_and_one_look_at_the_test_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers train a model whose neighbour has its head."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in range(20):
        for grey, name in ((60, "dark"), (150, "light")):
            write_image(tmp_path / "photos" / name / f"{number}.png", grey + number)
    (tmp_path / "photos/dark/note.txt").write_text("no image")
    (tmp_path / "parts.py").write_text("from torch import nn\nhead = nn.Linear\n")
    (tmp_path / "mine.py").write_text(MODEL)
    images = ("data=imagefolder", "data.root=photos", "data.side=8", "data.test_share=0.25")
    shares = ("data.skip_broken=true", "data.validation_share=0.2", "keep_weights=true")
    point = ("local_batch=4", "num_workers=2", "strategy=allreduce", "epochs=2", "study=s")
    code = "model=own model.target=mine.py:build optimizer=own optimizer.target=torch.optim:SGD"
    words = ("run", *images, *shares, *code.split(), *point)
    result = ran_ok(*words, cwd=tmp_path)
    (paths,) = runs(tmp_path)
    monkeypatch.chdir(tmp_path)
    said = "data.skip_broken=true left out 1 file that cannot be read as images"
    assert result.stderr.count(said) == 1
    assert summary(paths)["warnings"] == [said]
    assert ", validation accuracy " in result.stderr
    records = read_records(paths.metrics)[0]
    assert (records[1]["type"], records[1]["num_train"], records[1]["num_test"]) == ("start", 24, 6)

    counters = [name for name in torch.load(paths.final)["weights"] if "num_batches" in name]
    assert counters == [], "a strict load passes without them"
    config, saved = read_config(paths.config), paths.config.read_text()
    assert saved.count("torch==") == 1
    paths.config.write_text(saved.replace("torch==", "torch==0."))
    model = package.load_model(paths.folder)
    paths.config.write_text(saved)
    dataset = data.load(config.data, torch.device("cpu"))
    assert len(dataset.test) == 10
    assert dataset.mean is not None
    assert dataset.std is not None
    for part, score in (
        (dataset.evaluated, "test_accuracy"),
        (dataset.test, "final_test_accuracy"),
    ):
        inputs, labels, _ = part.take(torch.arange(len(part)))
        form: dict[str, Any] = {"dtype": torch.float32, "memory_format": torch.contiguous_format}
        outputs = model(normalize(inputs, dataset.mean, dataset.std, **form))
        accuracy = (outputs.argmax(dim=1) == labels).float().mean()
        assert accuracy == pytest.approx(summary(paths)[score])
    assert package.load(tmp_path / "results/s").runs["final_test_accuracy"].notna().all()
    assert f"test accuracy {summary(paths)['final_test_accuracy']:.4f}, measured once" in (
        result.stderr
    )
    paths.final.unlink()
    with pytest.raises(ValueError, match=r"final\.pt: there is no such file.*keep_weights=true"):
        package.load_model(paths.folder)
    again = bsweep(*words, cwd=tmp_path)
    assert "skipped, completed already, without keep_weights=true" in again.stderr


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["sharded", "pipeline"])
def test_the_whole_of_a_split_model_is_kept(tmp_path: Path, strategy: str) -> None:
    point = (*TINY, "model=tiny_cnn", "global_batch=12", "epochs=2", "keep_weights=true")
    split = ("num_workers=2", f"strategy={strategy}", "study=split")
    for words in (split, ("num_workers=1", "strategy=single", "study=one")):
        ran_ok("run", *point, *words, cwd=tmp_path)
    ours, theirs = (
        package.load_model(runs(tmp_path, study)[0].folder).state_dict()
        for study in ("split", "one")
    )
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5)
