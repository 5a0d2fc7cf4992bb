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
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import venv
from dataclasses import dataclass, replace
from pathlib import Path

import pip
import psutil
import pytest
from hatchling.builders.sdist import SdistBuilder

from bsweep.cli import main

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
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
        asks_17 = (site / "torch" / "utils" / "cpp_extension.py").exists()
        assert f"STANDARD {17 if asks_17 else 20}" in cmake
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

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.root / "scripts" / script), *arguments]
        return subprocess.run(
            command,
            env=self.env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def build(self) -> subprocess.CompletedProcess[str]:
        return self.run("build_horovod.sh", str(self.root / ".venv" / "bin" / "python"))

    @property
    def cached(self) -> Path:
        """The folder of the wheel that fits."""
        return Path(self.env["XDG_CACHE_HOME"], "bsweep", "wheels", self.key())

    def key(self) -> str:
        return self.run(
            "build_horovod.sh", str(self.root / ".venv" / "bin" / "python"), "--key"
        ).stdout.strip()

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
        self.site.joinpath("torch").mkdir()
        self.site.joinpath("torch", "version.py").write_text(
            f"__version__ = '2.13.0'\ncuda = {cuda!r}\n"
        )
        self.site.joinpath("torch", "__init__.py").write_text(
            "from torch import cuda, version\n__version__ = 'fake'\n"
        )
        listed = "['sm_75', 'sm_90', 'sm_120', 'compute_120']"
        answers = {"get_arch_list": listed, "device_count": 0, "is_available": False}
        lines = (f"def {name}(): return {answer}\n" for name, answer in answers.items())
        self.site.joinpath("torch", "cuda.py").write_text("".join(lines))
        return self

    def with_program(self, name: str, script: str) -> Checkout:
        """The same checkout, where `name` runs `script`."""
        path = Path(self.env["PATH"], name)
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
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


def test_run_again_does_nothing(checkout: Checkout) -> None:
    first = checkout.run("setup.sh")
    assert first.returncode == 0, first.stderr
    assert "Set up in .venv" in first.stderr
    assert any(call.startswith("wheel") for call in checkout.pip_calls())
    again = checkout.run("setup.sh")
    assert again.returncode == 0
    assert again.stderr == "Already set up in .venv.\n"
    assert checkout.pip_calls() == []


@pytest.mark.parametrize("lost", ["torch/version.py", "horovod/torch/mpi_lib_v2.so"])
def test_what_was_uninstalled_is_installed_again(checkout: Checkout, lost: str) -> None:
    checkout.run("setup.sh")
    (checkout.site / lost).unlink()
    assert "Set up in .venv" in checkout.run("setup.sh").stderr
    assert (checkout.site / lost).exists()


def test_a_changed_pin_is_installed(checkout: Checkout) -> None:
    checkout.run("setup.sh")
    checkout.pip_calls()
    with (checkout.root / "constraints.txt").open("a") as constraints:
        constraints.write("left-pad==1.0\n")
    assert checkout.run("setup.sh").returncode == 0
    calls = checkout.pip_calls()
    assert any("torch" in call.split() for call in calls)
    assert not any(call.startswith("wheel") for call in calls), "Horovod comes from the cache"


def test_a_failed_step_shows_the_log_and_is_not_taken_for_done(checkout: Checkout) -> None:
    (checkout.site / "pip" / "__main__.py").write_text("import sys; sys.exit('no network')")
    for _ in range(2):
        failed = checkout.run("setup.sh")
        assert failed.returncode == 1
        assert "no network" in failed.stderr
        assert f"All output: {checkout.root / '.venv' / 'setup.log'}" in failed.stderr


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo Python 3.9.18; [ $1 = --version ]",
            "bsweep needs Python >= 3.10; old-python is Python 3.9.18.",
        ),
        ("exit 127", "old-python is no Python that runs"),
    ],
)
def test_an_old_or_missing_python_is_named(checkout: Checkout, script: str, message: str) -> None:
    failed = (
        checkout.with_program("old-python", script).with_env(PYTHON="old-python").run("setup.sh")
    )
    assert failed.returncode == 1
    assert message in failed.stderr


def test_a_built_wheel_is_used_again(checkout: Checkout) -> None:
    first = checkout.with_torch().build()
    assert first.returncode == 0, first.stderr
    assert "Compiling Horovod" in first.stderr
    assert sorted(path.name for path in checkout.cached.iterdir()) == ["build.log", WHEEL]
    checkout.pip_calls()
    again = checkout.with_program("c++", "exit 1").build()
    assert again.returncode == 0, again.stderr
    assert again.stderr == "Installing Horovod 0.28.1 (gloo) ...\n"
    assert checkout.pip_calls() == [
        f"install --force-reinstall --no-deps {checkout.cached / WHEEL}",
        "install horovod==0.28.1 setuptools<80",
    ]


@pytest.mark.parametrize("script", ["setup.sh", "build_horovod.sh"])
def test_a_missing_compiler_is_named_before_anything_is_downloaded(
    checkout: Checkout, script: str
) -> None:
    Path(checkout.env["PATH"], "c++").unlink()
    failed = checkout.run("setup.sh") if script == "setup.sh" else checkout.with_torch().build()
    assert failed.returncode == 1
    assert "not found: a C++ compiler (c++)" in failed.stderr
    assert "apt-get install build-essential" in failed.stderr
    assert "dnf install gcc-c++" in failed.stderr
    assert "xcode-select --install" in failed.stderr
    assert checkout.pip_calls() == []


def test_a_cached_wheel_needs_no_compiler(checkout: Checkout) -> None:
    """Nor is one asked for while torch is not there, by which alone it shows whether the wheel
    fits.
    """
    checkout.run("setup.sh")
    Path(checkout.env["PATH"], "c++").unlink()
    shutil.rmtree(checkout.site / "torch")
    again = checkout.run("setup.sh")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("script", ["setup.sh", "build_horovod.sh"])
def test_a_missing_network_is_said_first(checkout: Checkout, script: str) -> None:
    """By the words of the real pip, whose own complaint is of packages and their versions."""
    shutil.rmtree(checkout.site / "pip")
    (checkout.site / "pip").symlink_to(Path(pip.__file__).parent)
    offline = checkout.with_env(
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="1",
        PIP_CONFIG_FILE=os.devnull,
        NO_PROXY="127.0.0.1",
    )
    failed = offline.run("setup.sh") if script == "setup.sh" else offline.with_torch().build()
    assert failed.returncode == 1
    title, reason, *_ = failed.stderr.splitlines()
    assert title.endswith(" ...")
    assert re.match(r"No network: pip could not reach (127\.0\.0\.1|its package index)\. ", reason)


@pytest.mark.parametrize("folder", [".venv", "XDG_CACHE_HOME", "TMPDIR"])
def test_a_folder_that_cannot_be_written_to_is_a_sentence(
    checkout: Checkout, tmp_path: Path, folder: str
) -> None:
    """A file in its place stands for it, since no permission keeps root from writing."""
    file = tmp_path / "file"
    file.touch()
    if folder == ".venv":
        shutil.rmtree(checkout.root / folder)
        (checkout.root / folder).touch()
        named = checkout.root / folder
    else:
        checkout = checkout.with_env(**{folder: str(file)})
        named = file / "bsweep" if folder == "XDG_CACHE_HOME" else file
    failed = checkout.run("setup.sh")
    assert failed.returncode == 1
    sentence = failed.stderr.splitlines()[-1]
    assert sentence.startswith(f"The folder {named}")
    assert "cannot be written to. " in sentence
    assert "mkdir" not in failed.stderr
    assert "mktemp" not in failed.stderr
    assert checkout.pip_calls() == []


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
    setup = subprocess.Popen([checkout.root / "scripts" / "setup.sh"], env=checkout.env)
    while not started.exists():
        assert setup.poll() is None
        time.sleep(0.02)
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
    mended = checkout.with_program("c++", "exit 0").run("setup.sh")
    assert mended.returncode == 0, mended.stderr


def test_a_failed_build_names_its_log_and_what_to_install(checkout: Checkout) -> None:
    checkout.with_torch().with_program("c++", "echo fatal error: out of luck >&2; exit 1")
    failed = checkout.build()
    log = checkout.cached / "build.log"
    assert failed.returncode == 1
    assert f"All output: {log}" in failed.stderr
    assert "apt-get install build-essential" in failed.stderr
    assert "out of luck" in log.read_text()
    assert [path.name for path in log.parent.iterdir()] == ["build.log"]
    mended = checkout.with_program("c++", "exit 0").build()
    assert mended.returncode == 0


def _with_nccl(checkout: Checkout, cuda: str = "13.0") -> Checkout:
    checkout.with_torch(cuda)
    include = checkout.site / "nvidia" / "nccl" / "include"
    include.mkdir(parents=True)
    (include / "nccl.h").touch()
    return checkout.with_env(CUDA_HOME="/nowhere")


def _toolkit(folder: Path, release: str) -> str:
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho Cuda compilation tools, release {release}, V{release}.88\n")
    nvcc.chmod(0o755)
    header = folder / "include" / "cuda_runtime.h"
    header.parent.mkdir()
    header.touch()
    return str(folder)


@pytest.mark.parametrize("release", [None, "12.8", "13.2"])
def test_nccl_is_built_with_a_toolkit_that_fits_or_with_pypis(
    checkout: Checkout, tmp_path: Path, release: str | None
) -> None:
    """For all GPUs that torch is built for, also where there is none: an environment may be used on
    other machines.
    """
    checkout = _with_nccl(checkout)
    if release:
        checkout = checkout.with_env(CUDA_HOME=_toolkit(tmp_path / "toolkit", release))
    built = checkout.build()
    assert built.returncode == 0, built.stderr
    assert checkout.cached.name.endswith("cxx20-gloo-nccl")
    assert (checkout.site / "horovod" / "capabilities").read_text() == "75,80,90,120"
    assert any("cuda-toolkit[nvcc,cccl]==13.0.*" in call for call in checkout.pip_calls()) == (
        release != "13.2"
    )


def test_horovod_is_compiled_by_the_standard_that_torch_asks_for(checkout: Checkout) -> None:
    extensions = checkout.with_torch().site / "torch" / "utils" / "cpp_extension.py"
    extensions.parent.mkdir()
    extensions.write_text("cflags = common_cflags + ['-fPIC', '-std=c++17'] + extra_cflags")
    built = checkout.build()
    assert built.returncode == 0, built.stderr
    assert "-torch2.13.0-" in checkout.key()
    assert checkout.key().endswith("cxx17-gloo")


def test_a_torch_that_is_named_replaces_the_pin(checkout: Checkout) -> None:
    named = checkout.with_env(BSWEEP_TORCH="2.8.0")
    assert named.run("setup.sh").returncode == 0
    pins = (checkout.root / ".venv" / "constraints.txt").read_text().splitlines()
    others = ("torch", "triton", "sympy", "cuda", "nvidia")
    assert [pin for pin in pins if pin.startswith(others)] == ["torch==2.8.0"]
    assert any(pin.startswith("timm==") for pin in pins)
    assert "Already set up" in named.run("setup.sh").stderr
    assert "Already set up" not in checkout.run("setup.sh").stderr


def test_nccl_for_some_gpus_alone_is_another_wheel(checkout: Checkout) -> None:
    checkout = _with_nccl(checkout).with_env(HOROVOD_BUILD_CUDA_CC_LIST="80,90")
    built = checkout.build()
    assert built.returncode == 0, built.stderr
    assert checkout.cached.name.endswith("cxx20-gloo-nccl-sm80_90")
    assert (checkout.site / "horovod" / "capabilities").read_text() == "80,90"


def test_gpus_that_torch_cannot_use_end_the_set_up_before_the_build(checkout: Checkout) -> None:
    failed = (
        checkout.with_torch()
        .with_program("nvidia-smi", "echo Tesla T4, 535.104.05")
        .run("setup.sh")
    )
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith(
        f"{platform.node()} has 1 GPU (Tesla T4), but torch fake is built"
    )
    assert "535.104.05" in failed.stderr
    assert "Compiling" not in failed.stderr


@pytest.mark.parametrize(("cuda", "operations"), [("12.6", "NCCL"), ("13.0", "")])
def test_gloo_alone_has_no_cuda_beside_any_toolkit(
    checkout: Checkout, tmp_path: Path, cuda: str, operations: str
) -> None:
    env = {
        "CUDA_HOME": _toolkit(tmp_path / "toolkit", "11.8"),
        "HOROVOD_GPU_OPERATIONS": operations,
    }
    checkout = _with_nccl(checkout, cuda).with_env(**env)
    built = checkout.build()
    assert built.returncode == 0, built.stderr
    assert f"Note: Horovod gets Gloo alone, for torch is built for CUDA {cuda}" in built.stderr
    assert "use strategy=ddp" in built.stderr
    assert checkout.cached.name.endswith("cxx20-gloo-alone")
    assert (
        "cuda_built(): return False"
        in (checkout.site / "horovod" / "torch" / "__init__.py").read_text()
    )


def test_a_wheel_that_is_not_what_it_should_be_is_not_kept(checkout: Checkout) -> None:
    fake = checkout.site / "pip" / "__main__.py"
    fake.write_text(fake.read_text().replace('"nccl": nccl', '"nccl": False'))
    failed = _with_nccl(checkout).build()
    assert failed.returncode == 1
    assert "built with Gloo, NCCL, CUDA: (True, False, True)" in failed.stderr
    assert [path.name for path in checkout.cached.iterdir()] == ["build.log"]


def test_a_toolkit_that_cannot_be_fetched_is_a_remedy(checkout: Checkout) -> None:
    fake = checkout.site / "pip" / "__main__.py"
    fake.write_text(
        fake.read_text().replace('write(in_folder("--target")', 'write(in_folder("--nowhere")')
    )
    failed = _with_nccl(checkout).build()
    assert failed.returncode == 1
    assert "Set CUDA_HOME to the folder of a CUDA 13.0 toolkit, or do" in failed.stderr


@pytest.mark.parametrize("full", [(), ("--full",)])
def test_only_all_tests_install_what_hosts_need(checkout: Checkout, full: tuple[str, ...]) -> None:
    """And what fails in all tests is run again, alone, and fails still."""
    for name, code in {"setup.sh": 0, "hosts.sh": 77, "slurm.sh": 0}.items():
        (checkout.root / "scripts" / name).write_text(f"#!/bin/sh\necho {name}\nexit {code}\n")
    for name in ("ruff", "mypy", "shellcheck", "chromium"):
        checkout.with_program(name, "exit 0")
    cache = checkout.root / ".pytest_cache/v/cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text('{"tests/a.py::test_b": true}')
    checkout.with_program(
        "pytest", 'echo "pytest $@" >>calls; case "$*" in *--numproc*) exit 1; esac'
    )
    checkout.with_program("apt-get", 'echo "apt-get $1" >>calls')
    tested = checkout.run("test.sh", *full, "-k", "vector")
    assert tested.returncode == 1
    calls = (checkout.root / "calls").read_text()
    assert ("apt-get install" in calls) == (bool(full) and os.geteuid() == 0)
    assert ("pytest --full --numprocesses" in calls) == bool(full)
    assert calls.count("-k vector") == 1
    assert (
        'UNSTEADY (failed beside other tests, passed alone): "tests/a.py::test_b"' in tested.stderr
    ) == bool(full)


def test_the_scripts_may_be_run() -> None:
    scripts = [
        path for path in (ROOT / "scripts").glob("*.*") if path.read_bytes().startswith(b"#!")
    ]
    assert len(scripts) >= 6
    for path in (*scripts, ROOT / ".ci" / "run"):
        assert os.access(path, os.X_OK), path


def test_the_command_runs_the_script_for_its_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def execvp(_program: str, command: list[str]) -> None:
        commands.append(command)
        sys.exit(0)

    monkeypatch.setattr(os, "execvp", execvp)
    monkeypatch.setattr(sys, "argv", ["bsweep", "setup-horovod"])
    with pytest.raises(SystemExit):
        main.main()
    assert commands == [["bash", str(ROOT / "scripts" / "build_horovod.sh"), sys.executable]]


def test_the_sdist_holds_tests_and_scripts(tmp_path: Path) -> None:
    (built,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(built) as archive:
        held = {Path(*Path(name).parts[1:]) for name in archive.getnames()}
    folders = ("scripts", "tests", "conf", ".ci")
    needed = {path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.*")}
    assert {path for path in needed if "__pycache__" not in path.parts} <= held
