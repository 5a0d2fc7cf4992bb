"""scripts/setup.sh and scripts/build_horovod.sh, with a pip that plays its part in no time and
without a network.

The checkout under test is a copy of the scripts, its .venv a real one without packages. The
stand-in for pip records its calls and leaves behind just the files by which the scripts recognise
torch, Horovod and bsweep. `pip wheel` runs `c++`, so that a test decides by its PATH whether the
build succeeds.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import venv
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from tests.support.running import ROOT, captured, ran_ok, wait_for, write_program

pytestmark = pytest.mark.full

COMMON = ROOT / "scripts" / "common.sh"  # which others read
WHEEL = "horovod-0.28.1-py3-none-any.whl"

PIP = """
import os, pathlib, subprocess, sys, sysconfig, tarfile, zipfile

arguments = sys.argv[1:]
with open(os.environ["PIP_CALLS"], "a") as calls:
    print(*arguments, file=calls)
site = pathlib.Path(sysconfig.get_path("platlib"))

def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

def in_folder(option):
    return pathlib.Path(arguments[arguments.index(option) + 1])

match arguments[0]:
    case "install":
        if "torch" in arguments:
            write(site / "torch" / "version.py", "__version__ = '2.13.0+cpu'\\ncuda = None\\n")
        for wheel in (argument for argument in arguments if argument.endswith(".whl")):
            zipfile.ZipFile(wheel).extractall(site)
        if any(argument.startswith("cuda-toolkit[nvcc,cccl]") for argument in arguments):
            write(in_folder("--target") / "nvidia" / "cu13" / "lib" / "libcudart.so.13", "cudart")
        if "-e" in arguments:
            write(pathlib.Path(sysconfig.get_path("scripts"), "bsweep"))
            pathlib.Path(sysconfig.get_path("scripts"), "bsweep").chmod(0o755)
    case "download":
        source = in_folder("-d") / "horovod-0.28.1"
        write(source / "CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)\\nif(CMAKE_CUDA_COMPILER)")
        write(source / "horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)")
        write(source / "setup.py", "config = 'RelWithDebInfo'")
        find_torch = source / "cmake/Modules/FindPytorch.cmake"
        write(find_torch, 'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)')
        write(source / "horovod/common/ops/cuda/CMakeLists.txt", "set(CMAKE_CUDA_STANDARD 11)")
        with tarfile.open(f"{source}.tar.gz", "w:gz") as archive:
            archive.add(source, source.name)
    case "wheel":
        files = "CMakeLists.txt", "cmake/Modules/FindPytorch.cmake"
        cmake, find_torch = (pathlib.Path(arguments[-1], name).read_text() for name in files)
        assert "STANDARD 20" in cmake
        subprocess.run(["c++", "kernel.cc"], check=True)
        nccl = os.environ.get("HOROVOD_GPU_OPERATIONS") == "NCCL"
        is_searched = "TOUPPER" in find_torch or "if(CMAKE_CUDA_COMPILER)" in cmake
        version = (site / "torch" / "version.py").read_text()
        cuda = nccl or (is_searched and "cuda = None" not in version)
        if nccl:
            toolkit = pathlib.Path(os.environ["CUDA_HOME"])
            library = toolkit / "lib64" / "libcudart.so"
            assert "cu13" not in toolkit.name or library.read_text() == "cudart"
        built = {"gloo": True, "nccl": nccl, "cuda": cuda}
        with zipfile.ZipFile(in_folder("-w") / "horovod-0.28.1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("horovod/__init__.py", "")
            wheel.writestr("horovod/torch/mpi_lib_v2.so", "")
            wheel.writestr("horovod/capabilities", os.environ.get("HOROVOD_BUILD_CUDA_CC_LIST", ""))
            lines = (f"def {part}_built(): return {has}\\n" for part, has in built.items())
            wheel.writestr("horovod/torch/__init__.py", "".join(lines))
"""


@dataclass(frozen=True)
class Checkout:
    """A folder with the scripts and a .venv, and the environment in which they run."""

    root: Path
    env: dict[str, str]

    def run(self, script: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a script, which must exit with this code."""
        command = [f"{self.root}/scripts/{script}", *arguments]
        return captured(command, code, env=self.env, cwd="/", stdin=subprocess.DEVNULL, timeout=300)

    def set_up(self, code: int = 0) -> str:
        """Run setup.sh, and return what it says."""
        return self.run("setup.sh", code=code).stderr

    def build(self, code: int = 0) -> str:
        """Build and install Horovod, and return what is said of it."""
        return self.run("build_horovod.sh", f"{self.root}/.venv/bin/python", code=code).stderr

    @property
    def cached(self) -> Path:
        """The folder of the wheel that fits."""
        key = self.run("build_horovod.sh", f"{self.root}/.venv/bin/python", "--key").stdout.strip()
        return Path(self.env["XDG_CACHE_HOME"], "bsweep", "wheels", key)

    def pip_calls(self) -> list[str]:
        """What pip was asked to do since the last time."""
        log = Path(self.env["PIP_CALLS"])
        calls = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return calls

    @property
    def site(self) -> Path:
        return next((self.root / ".venv" / "lib").glob("python3*/site-packages"))

    def with_torch(self, cuda: str | None = None) -> Checkout:
        (torch := self.site / "torch").mkdir()
        (torch / "version.py").write_text(f"__version__ = '2.13.0'\ncuda = {cuda!r}\n")
        imports = "from torch import cuda, version\n"
        (torch / "__init__.py").write_text(f"{imports}__version__ = 'fake'\n")
        listed = "['sm_75', 'sm_90', 'sm_120', 'compute_120']"
        answers = {"get_arch_list": listed, "device_count": 0, "is_available": False}
        lines = (f"def {name}(): return {answer}\n" for name, answer in answers.items())
        (torch / "cuda.py").write_text("".join(lines))
        return self

    def with_program(self, name: str, script: str) -> Checkout:
        """The same checkout, where `name` runs `script`."""
        write_program(Path(self.env["PATH"], name), script)
        return self

    def with_env(self, **changes: str) -> Checkout:
        return replace(self, env=self.env | changes)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "check out"  # with a blank, as in many a home folder
    root.mkdir()
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    package = Path("src/bsweep")
    shutil.copytree(ROOT / package / "core", root / package / "core")
    shutil.copy(ROOT / package / "__init__.py", root / package)
    venv.create(root / ".venv", with_pip=False, symlinks=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "env", "sh", *_COREUTILS, "python3"):
        found = sys.executable if name == "python3" else shutil.which(name)
        if found:  # flock, for one, is missing on macOS
            (programs / name).symlink_to(found)
    env = {
        "PATH": str(programs),
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
        "PIP_CALLS": str(tmp_path / "pip_calls"),
    }
    made = Checkout(root, env)
    pip = made.site / "pip"
    pip.mkdir()
    (pip / "__main__.py").write_text(PIP)
    return made.with_program("c++", "exit 0").with_program("make", "exit 0")


_COREUTILS = (
    "basename", "cat", "cp", "dirname", "flock", "getconf", "grep", "gzip", "ln", "mkdir",
    "mktemp", "mv", "nproc",
    "paste", "rm", "sed", "sleep", "sort", "tail", "tar", "tr",
)  # fmt: skip


def test_what_is_missing_or_changed_is_installed_and_nothing_else(checkout: Checkout) -> None:
    assert "Set up in .venv" in checkout.set_up()
    assert any(call.startswith("wheel") for call in checkout.pip_calls())
    assert checkout.set_up() == "Already set up in .venv.\n"
    assert checkout.pip_calls() == []
    Path(checkout.env["PATH"], "c++").unlink()  # the wheel is in the cache
    for lost in ("torch/version.py", "horovod/torch/mpi_lib_v2.so"):
        (checkout.site / lost).unlink()
        assert "Set up in .venv" in checkout.set_up()
        assert (checkout.site / lost).exists()
    checkout.pip_calls()
    with (checkout.root / "constraints.txt").open("a") as constraints:
        constraints.write("left-pad==1.0\n")
    checkout.set_up()
    calls = checkout.pip_calls()
    assert any("torch" in call.split() for call in calls)
    assert not any(call.startswith("wheel") for call in calls), "Horovod comes from the cache"


def test_a_torch_that_is_named_replaces_the_pin(checkout: Checkout) -> None:
    named = checkout.with_env(BSWEEP_TORCH="2.8.0")
    named.set_up()
    pins = (checkout.root / ".venv" / "constraints.txt").read_text().splitlines()
    others = ("torch", "triton", "sympy", "cuda", "nvidia")
    assert [pin for pin in pins if pin.startswith(others)] == ["torch==2.8.0"]
    assert any(pin.startswith("timm==") for pin in pins)
    assert "Already set up" in named.set_up()
    assert "Already set up" not in checkout.set_up()


def test_a_failed_step_shows_the_log_and_is_not_taken_for_done(checkout: Checkout) -> None:
    (checkout.site / "pip" / "__main__.py").write_text("import sys; sys.exit('no network')")
    for _ in range(2):
        failed = checkout.set_up(code=1)
        assert "no network" in failed
        assert f"All output: {checkout.root / '.venv' / 'setup.log'}" in failed


@pytest.mark.parametrize(
    ("program", "script", "words"),
    [
        ("python", "echo Python 3.9.18; [ $1 = --version ]", ["3.10", "my-python", "3.9.18"]),
        ("python", "exit 127", ["my-python", "no Python that runs"]),
        ("c++", "", ["C++ compiler (c++)", "apt-get install build-essential"]),
        ("nvidia-smi", "echo Tesla T4, 535.104.05", [platform.node(), "1 GPU", "535.104.05"]),
    ],
)
def test_what_cannot_work_is_named_before_the_build(
    checkout: Checkout, program: str, script: str, words: list[str]
) -> None:
    if program == "python":
        checkout = checkout.with_program("my-python", script).with_env(PYTHON="my-python")
    elif script:
        checkout.with_torch().with_program(program, script)
    else:
        Path(checkout.env["PATH"], program).unlink()
    failed = checkout.set_up(code=1)
    assert all(word in failed for word in words), failed
    assert "Compiling" not in failed
    assert program == "nvidia-smi" or checkout.pip_calls() == []


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_an_end_in_mid_compile_leaves_nothing_behind(
    checkout: Checkout, tmp_path: Path, end: signal.Signals
) -> None:
    """Neither processes nor files, although the compiler has started another process."""
    temporary, started = tmp_path / "temporary", tmp_path / "started"
    temporary.mkdir()
    begin = """echo half >"$TMPDIR/half.o"; sleep 60 & echo $$ $!"""
    slow = f"{begin} >'{started}.new'; mv '{started}'.new '{started}'; wait"
    checkout = checkout.with_program("c++", slow).with_env(TMPDIR=str(temporary))
    setup = subprocess.Popen([checkout.root / "scripts" / "setup.sh"], env=checkout.env, text=True)
    wait_for(started.exists, setup)
    compiling = [psutil.Process(int(word)) for word in started.read_text().split()]
    assert len(compiling) == 2
    assert any(temporary.rglob("half.o"))
    setup.send_signal(end)
    assert setup.wait(60) == 128 + end
    assert not any(
        process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in compiling
    )
    assert not any(temporary.iterdir())
    assert [path.name for path in checkout.cached.iterdir()] == ["build.log"]
    checkout.with_program("c++", "exit 0").set_up()


def test_a_built_wheel_is_used_again_and_a_failed_build_is_not(checkout: Checkout) -> None:
    checkout.with_torch().with_program("c++", "echo fatal error: out of luck >&2; exit 1")
    failed = checkout.build(code=1)
    log = checkout.cached / "build.log"
    assert f"All output: {log}" in failed
    assert "apt-get install build-essential" in failed
    assert "out of luck" in log.read_text()
    assert [path.name for path in log.parent.iterdir()] == ["build.log"]
    assert "Compiling Horovod" in checkout.with_program("c++", "exit 0").build()
    assert sorted(path.name for path in checkout.cached.iterdir()) == ["build.log", WHEEL]
    checkout.pip_calls()
    assert "Compiling" not in checkout.with_program("c++", "exit 1").build()
    assert any(str(checkout.cached / WHEEL) in call for call in checkout.pip_calls())


def _with_nccl(checkout: Checkout, cuda: str = "13.0") -> Checkout:
    checkout.with_torch(cuda)
    include = checkout.site / "nvidia" / "nccl" / "include"
    include.mkdir(parents=True)
    (include / "nccl.h").touch()
    return checkout.with_env(CUDA_HOME="/nowhere")


def _toolkit(folder: Path, release: str) -> str:
    told = f"echo Cuda compilation tools, release {release}, V{release}.88"
    write_program(folder / "bin" / "nvcc", told)
    header = folder / "include" / "cuda_runtime.h"
    header.parent.mkdir()
    header.touch()
    return str(folder)


@pytest.mark.parametrize(
    ("release", "chosen", "capabilities"),
    [
        (None, "", "75,80,90,120"),
        ("12.8", "", "75,80,90,120"),
        ("13.2", "", "75,80,90,120"),
        (None, "80,90", "80,90"),
    ],
)
def test_nccl_is_built_with_a_toolkit_that_fits_or_with_pypis(
    checkout: Checkout, tmp_path: Path, release: str | None, chosen: str, capabilities: str
) -> None:
    """For all GPUs that torch is built for, also where there is none: an environment may be used on
    other machines. For some GPUs alone it is another wheel.
    """
    checkout = _with_nccl(checkout).with_env(HOROVOD_BUILD_CUDA_CC_LIST=chosen)
    if release:
        checkout = checkout.with_env(CUDA_HOME=_toolkit(tmp_path / "toolkit", release))
    checkout.build()
    suffix = f"-sm{chosen.replace(',', '_')}" if chosen else ""
    assert checkout.cached.name.endswith(f"cxx20-gloo-nccl{suffix}")
    assert (checkout.site / "horovod" / "capabilities").read_text() == capabilities
    assert any("cuda-toolkit[nvcc,cccl]==13.0.*" in call for call in checkout.pip_calls()) == (
        release != "13.2"
    )


@pytest.mark.parametrize(("cuda", "operations"), [("12.6", "NCCL"), ("13.0", "")])
def test_gloo_alone_has_no_cuda_beside_any_toolkit(
    checkout: Checkout, tmp_path: Path, cuda: str, operations: str
) -> None:
    checkout = _with_nccl(checkout, cuda).with_env(HOROVOD_GPU_OPERATIONS=operations)
    checkout = checkout.with_env(CUDA_HOME=_toolkit(tmp_path / "toolkit", "11.8"))
    said = checkout.build()
    assert f"Note: Horovod gets Gloo alone, for torch is built for CUDA {cuda}" in said
    assert "use strategy=ddp" in said
    assert checkout.cached.name.endswith("cxx20-gloo-alone")
    made = (checkout.site / "horovod" / "torch" / "__init__.py").read_text()
    assert "cuda_built(): return False" in made


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ('"nccl": nccl', '"nccl": False', "built with Gloo, NCCL, CUDA: (True, False, True)"),
        ('write(in_folder("--target")', 'write(in_folder("--nowhere")', "Set CUDA_HOME"),
    ],
)
def test_a_wheel_that_is_not_what_it_should_be_is_not_kept(
    checkout: Checkout, right: str, wrong: str, said: str
) -> None:
    """Nor is one built without the toolkit, which cannot be fetched."""
    fake = checkout.site / "pip" / "__main__.py"
    fake.write_text(fake.read_text().replace(right, wrong))
    assert said in _with_nccl(checkout).build(code=1)
    assert [path.name for path in checkout.cached.iterdir()] == ["build.log"]


def test_the_scripts_may_be_run() -> None:
    scripts = [*(ROOT / "scripts").glob("*.sh"), ROOT / ".ci" / "run"]
    assert [path for path in scripts if not os.access(path, os.X_OK)] == [COMMON]


def test_the_command_runs_the_script_for_its_own_python(tmp_path: Path) -> None:
    write_program(tmp_path / "bash", 'echo "$@"')
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    result = ran_ok("setup-horovod", cwd=tmp_path, env={"PATH": path}, fresh=True)
    assert result.stdout.split() == [str(ROOT / "scripts" / "build_horovod.sh"), sys.executable]
