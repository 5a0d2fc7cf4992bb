"""What is typed: refused in plain words with exit code 2 before Hydra stumbles over it, and
completed by a shell.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bsweep.cli import main
from bsweep.compose.words import as_hydra_takes
from bsweep.config.parsing import known_keys
from bsweep.config.run import GROUPS, RunConfig
from tests.support.running import ROOT, TINY, captured, tool

Type = Callable[..., tuple[int, str]]
LONG = "a" * 5000


@pytest.fixture
def type_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Type:
    """`bsweep run` in this process, up to where a point would be trained: its exit code, and what
    it says.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bsweep.study.sweep.run_point", lambda *_: "completed")

    def run(*arguments: str) -> tuple[int, str]:
        return main.run(["run", *arguments]), capsys.readouterr().err

    return run


TINY_DATA = " ".join(TINY)
GROWING = f"{TINY_DATA} batching=schedule model=tiny_cnn"
BY_LAYER = "model=tiny_cnn strategy=parameter_server strategy.sharding=layer"
NETWORK = ROOT / "examples/small_network.py"
TEXT = "data=text data.path=@FILE model=llama_tiny"
REFUSED = [  # what is typed after local_batch=8, and what is said
    ("launch=null", "launch=null: give launch=NAME"),
    ("~data", "data: no value given", "digits"),
    ("-m optimizer=sgd,null", "optimizer=sgd,null: give optimizer=NAME"),
    ("experiment=", "experiment=: give experiment=NAME"),
    ("strategy=horvod", "unknown strategy", "'horovod'", "Known: "),
    ("--frobnicate", "--frobnicate", "--help"),
    ("local_batch = 8", "write local_batch=8 without spaces"),
    ("local_batch=8,16,", "local_batch=8,16,: Hydra cannot read it"),
    ("local_batch=[8,16]", "local_batch=[8, 16]", "type local_batch=1,2,4"),
    ("checkpoint_every=often", "checkpoint_every=often", "60s, 5m or 1h"),
    ("--cfg", "--cfg", "expected one argument"),
    ("-sc", "install", "query"),
    ("study=größe", "study=größe", "a to z, digits"),
    ("lr=3", "Did you mean 'optimizer.lr'?"),
    ("local_batch", "local_batch: neither a flag nor KEY=VALUE"),
    ("seed=range(5,1)", "seed=range(5,1)", "no value that fits"),
    ("=3", "no key before the '='"),
    ("data.root=a;b", "data.root=a;b", "\"'VALUE'\""),
    ("++hydra.mode=RUN", "hydra.mode: leave it out"),
    ("hydra.sweeper._target_=x", "bsweep forms the points"),
    (f"seed={'9' * 5000}", "seed=9999", "(5,005 letters)"),
    ("seed=18446744073709551616", "seed=18446744073709551616", "less than 9223372036854775808"),
    (f"study={LONG}", "(5,000 letters)", "at most 100 characters"),
    ("launch.ssh_identity_file='~nobody-at-all/x'", "folder ~nobody-at-all is unknown"),
    ("launch.hosts='a:9999999' num_workers=100000000", "a:9999999", "=100000000", "65536"),
    ("-m seed=range(0,100000000)", "1,000,000 at most"),
    (f"{BY_LAYER} strategy.num_servers=9", "strategy.num_servers=9", "strategy.sharding=memory"),
    ("strategy=ddp strategy.hook=bf16 device=cpu", "strategy.hook=bf16", "fp16"),
    ("data=own", "data.target"),
    ("data=own data.target=@NETWORK:buil", "there is no 'buil'", "Did you mean 'build'?"),
    ("data=imagefolder", "data.root: no value given"),
    ("data=imagefolder data.root=~/nowhere-at-all", str(Path.home())),
    (f"{TINY_DATA} local_batch=64 num_workers=2", "global batch 128", "90 examples"),
    (f"{GROWING} batching.max_global_batch=1000", "max_global_batch=1000", "90 examples: use 90"),
    ("-m strategy.op=average,adasum", "strategy.op=adasum", "MPI"),
    (f"{TINY_DATA} results_dir=/proc/nowhere", "results_dir=/proc/nowhere"),
    (f"{TEXT} model=resnet18", "model=resnet18", "model=llama_tiny"),
    (f"{TEXT} data.sequence_length=1000000", "data.sequence_length=1000000", "1000001"),
    (f"{TEXT} model.vocabulary_size=300", "vocabulary_size=300", "vocabulary_size=null"),
    (f"{TEXT} model.num_heads=3", "model.hidden_size=64", "model.num_heads=3"),
]
NO_GPU = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")


@pytest.mark.full(but=21)
@pytest.mark.parametrize(
    "row",
    [*REFUSED, pytest.param(("device=cuda", "device=cuda"), marks=NO_GPU)],
    ids=lambda row: row[0][:60],
)
def test_what_cannot_be_is_refused_in_plain_words(type_run: Type, row: tuple[str, ...]) -> None:
    words, *expected = row
    typed = [  # the paths may have blanks
        word.replace("@FILE", __file__).replace("@NETWORK", str(NETWORK)) for word in words.split()
    ]
    code, said = type_run("local_batch=8", *typed)
    assert code == 2
    assert "Traceback" not in said
    assert [part for part in expected if part not in said] == [], said
    assert max(map(len, said.splitlines())) < 1000
    assert not list(Path().iterdir())


def test_a_flag_may_stand_anywhere_and_letters_need_no_quotes(type_run: Type) -> None:
    code, said = type_run("local_batch=8,16", "-m", "results_dir=größe", "seed=0")
    assert code == 0, said
    assert Path("größe/default").is_dir()
    assert as_hydra_takes("data.root=a, größe/b") == "data.root=a,'größe/b'"
    assert as_hydra_takes("data.root='größe'") == "data.root='größe'"
    assert as_hydra_takes("launch.ssh_options=[A=b, C=d]") == "launch.ssh_options=['A=b','C=d']"


def test_a_point_that_cannot_be_run_fails_alone(
    type_run: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def run_point(config: RunConfig, *_: object) -> str:
        ended.append(1 // config.seed)
        return "completed"

    monkeypatch.setattr("bsweep.study.sweep.run_point", run_point)
    code, said = type_run("-m", "local_batch=8", "seed=0,1")
    assert code == 1
    assert said.count("a point could not be run: ZeroDivisionError") == 1
    assert ended == [1]


COMPLETE = r"""
eval "$(bsweep -sc install=bash)"
complete -p bsweep >&2
for line in "$@"; do
  words=($line)
  [[ $line == *" " ]] && words+=("")
  COMP_LINE=$line COMP_POINT=${#line} COMP_CWORD=$((${#words[@]} - 1)) COMPREPLY=()
  hydra_bash_completion
  echo "${COMPREPLY[@]}"
done
"""


@pytest.mark.full
def test_bash_completes_commands_keys_and_groups(tmp_path: Path) -> None:
    expected = {
        "bsweep prof": ["profile"],
        "bsweep run -m local_batch=8,16 optimizer.mom": ["optimizer.momentum="],
        "bsweep run --report model=vgg16 model.dr": ["model.dropout="],
        "bsweep probe data=di": ["data=digits"],
        "bsweep run launch=null da": [],
        "bsweep run -": [],
    }
    env = {**os.environ, "PATH": f"{Path(tool('bsweep')).parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", COMPLETE, "bash", *expected]
    result = captured(command, cwd=tmp_path, env=env, check=True)
    answers = [line.split() for line in result.stdout.splitlines()]
    assert answers == list(expected.values()), result.stderr
    assert "usage" not in result.stderr
    assert "hydra_bash_completion bsweep" in result.stderr


ODD = st.text(st.sampled_from("aZ0 .,:/=+~-_[]{}()'\"\\$#%@*&!?;|<>^`ß…\t\n"), max_size=12)
NUMBERS = st.one_of(
    st.integers(), st.floats(), st.integers(2**31 - 2, 2**31 + 1), st.integers(-1, 3)
).map(str)
WORDS = st.sampled_from(
    ["null", "true", "nan", "-inf", "1e400", "''", "[]", "{}", "???", "x" * 300, "${seed}", "${"]
)
LISTS = st.lists(st.one_of(NUMBERS, WORDS), max_size=4).map(lambda values: f"[{','.join(values)}]")
NESTED = st.recursive(
    NUMBERS, lambda inner: inner.map(lambda value: f"[{value}]") | inner.map("{{a:{}}}".format)
)
VALUES = st.one_of(ODD, NUMBERS, WORDS, LISTS, NESTED)
KEYS = st.one_of(
    st.sampled_from(known_keys()),
    st.sampled_from([*GROUPS, "experiment", "hydra/launcher", "hydra", "hydra.sweep.dir"]),
    ODD,
)
OVERRIDES = st.one_of(
    st.tuples(st.sampled_from(["", "", "+", "++", "~"]), KEYS, VALUES).map(
        lambda parts: "{}{}={}".format(*parts)
    ),
    KEYS.map("~{}".format),
    ODD,
    st.sampled_from(["-m", "--cfg", "job", "-c", "--info", "--resolve", "-", "--", "--multirun=3"]),
)


@pytest.mark.parametrize("num_composed", [20, pytest.param(100, marks=pytest.mark.full)])
def test_whatever_is_typed_ends_with_0_or_2_and_no_traceback(
    type_run: Type, num_composed: int
) -> None:
    @settings(
        deadline=None, derandomize=True, database=None, max_examples=num_composed,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )  # fmt: skip
    @given(st.lists(OVERRIDES, min_size=1, max_size=3))
    def type_some(typed: list[str]) -> None:
        with contextlib.suppress(SystemExit):  # --info and --help
            code, said = type_run("launch=inline", "strategy=single", "local_batch=8", *typed)
            assert code in (0, 2)
            assert "Traceback" not in said
            assert code == 0 or said

    type_some()


@pytest.mark.parametrize(
    "command",
    ["python train.py --lr {lr} -x a,b", """sh -c 'echo "a"; b'"""],
)
def test_a_command_is_one_value_as_it_is_typed(command: str) -> None:
    taken = as_hydra_takes(f"program.command={command}")
    parsed = OverridesParser.create().parse_override(taken)
    assert parsed.value() == command
    quoted = "program.command='a {lr}','b'"
    assert as_hydra_takes(quoted) == quoted


def test_a_script_with_windows_line_ends_is_named(type_run: Type) -> None:
    code, said = type_run("local_batch=8\r", "seed=1\r")
    assert code == 2
    assert "Windows line ends" in said
    assert "sed -i" in said
    assert "\r" not in said.replace(r"\r$", "")
