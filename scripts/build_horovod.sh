#!/usr/bin/env bash
# Installs Horovod, compiled against the torch of a given Python: once, since the wheel is kept in the user's cache.
#
#   build_horovod.sh PYTHON          installs it
#   build_horovod.sh PYTHON --check  says what compiling needs and is not there; torch need not be installed yet
#   build_horovod.sh PYTHON --key    prints what a wheel has to fit: Python, torch, platform, build flags
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

horovod=0.28.1
python=$1

# torch's version.py says what a build must fit, and is read without the seconds that importing torch takes.
IFS=$'\t' read -r tag torch_version torch_cuda cxx platform site include < <("$python" -c '
import os, platform, re, runpy, sys, sysconfig
site = next((folder for folder in sys.path[1:] if os.path.exists(f"{folder}/torch/version.py")), "none")
torch = runpy.run_path(f"{site}/torch/version.py") if site != "none" else {"__version__": "none", "cuda": None}
extensions = f"{site}/torch/utils/cpp_extension.py"
asked = re.findall(r"-fPIC., .-std=c\+\+(\d+)", open(extensions).read()) if os.path.exists(extensions) else []
libc = "".join(platform.libc_ver())
tag = "cp{}{}".format(*sys.version_info)
system = "-".join(filter(None, (sysconfig.get_platform(), libc)))
include = sysconfig.get_path("include")
print(tag, torch["__version__"], torch["cuda"] or "none", *(asked or ["20"])[:1], system, site, include, sep="\t")
' 2>/dev/null) || fail "build_horovod.sh: $python is no Python that runs."

# The CUDA toolkit of torch's major version. A toolkit has headers too: an nvcc on PATH may be a mere wrapper.
find_toolkit() {
    local folder folders=("${CUDA_HOME:-}")
    if [[ -z ${CUDA_HOME:-} ]]; then
        folders=("/usr/local/cuda-$torch_cuda" /usr/local/cuda "$(dirname "$(command -v nvcc)")/..")
    fi
    for folder in "${folders[@]}"; do
        if [[ -x $folder/bin/nvcc && -e $folder/include/cuda_runtime.h ]] &&
            "$folder/bin/nvcc" --version | grep -q "release ${torch_cuda%%.*}\."; then
            printf '%s' "$folder"
            return
        fi
    done
    return 1
}

# Where torch is built for CUDA, Horovod gets NCCL, whether or not this machine has a GPU: machines share environments.
# PyPI has whole toolkits from CUDA 13 on.
flags=gloo toolkit='' capabilities=${HOROVOD_BUILD_CUDA_CC_LIST:-}
nccl=$site/nvidia/nccl
if [[ $torch_cuda != none ]]; then
    flags=gloo-alone
    if [[ ${HOROVOD_GPU_OPERATIONS-NCCL} == NCCL && -e $nccl/include/nccl.h ]] &&
        { toolkit=$(find_toolkit) || ((${torch_cuda%%.*} >= 13)); }; then
        flags=gloo-nccl${capabilities:+-sm$capabilities}
        toolkit=${toolkit:-pypi}
    fi
fi
key=horovod$horovod-$tag-torch$torch_version-cuda$torch_cuda-$platform-cxx$cxx-${flags//,/_}
cache=${XDG_CACHE_HOME:-~/.cache}/bsweep/wheels
log=$cache/$key/build.log

notice_without_nccl() {
    say "Note: Horovod gets Gloo alone, for torch is built for CUDA $torch_cuda and there is no such toolkit (nvcc), or NCCL was" \
        "      not wanted (HOROVOD_GPU_OPERATIONS). On several GPUs every gradient would be staged through host memory:" \
        "      use strategy=ddp there, or set CUDA_HOME to the folder of a CUDA $torch_cuda toolkit and try again."
}

say_without_toolkit() {
    say "Without the CUDA toolkit there is no NCCL in Horovod. Set CUDA_HOME to the folder of a CUDA $torch_cuda toolkit, or do" \
        "without NCCL (HOROVOD_GPU_OPERATIONS='' in front of the command), and try again."
}

what_it_needs() {
    say "Horovod needs a C++$cxx compiler (GCC >= 11 or Clang >= 14), make and Python's headers:" \
        "  Debian, Ubuntu:  apt-get install build-essential python3-dev" \
        "  Fedora, RHEL:    dnf install gcc-c++ make python3-devel" \
        "  macOS:           xcode-select --install; brew install libuv" \
        "Then try again."
}

check_tools() {
    local missing=() compiler
    compiler=${CXX:-$(command -v c++ || command -v g++ || command -v clang++ || true)}
    command -v "${compiler%% *}" >/dev/null || missing+=("a C++ compiler (${CXX:-c++})")
    command -v make >/dev/null || missing+=("make")
    [[ -e $include/Python.h ]] || missing+=("Python's headers ($include/Python.h)")
    ((${#missing[@]})) || return 0
    say "Horovod cannot be compiled: not found: $(printf '%s; ' "${missing[@]}" | sed 's/; $//')."
    what_it_needs
    exit 1
}

# Horovod fixes C++14 (C++11 for its kernels) where no variable overrides it, and torch's headers need C++17 (torch 2.8) or
# C++20 (torch 2.13): the standard by which torch compiles extensions. Without NCCL
# it would still compile against any CUDA toolkit that lies about, of whatever version.
patch_source() {
    "$python" - "$work/horovod-$horovod" "$flags" "$cxx" <<'END'
import pathlib, sys

without_cuda = [
    ("CMakeLists.txt", "\nif(CMAKE_CUDA_COMPILER)", "\nif(FALSE)"),
    ("cmake/Modules/FindPytorch.cmake", 'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)', "set(Pytorch_CUDA FALSE)"),
]
for file, old, new in [
    ("setup.py", "'RelWithDebInfo'", "'Release'"),  # the same -O3 without -g, which doubles the time
    *([] if "nccl" in sys.argv[2] else without_cuda),
    ("CMakeLists.txt", "(CMAKE_CXX_STANDARD 14)", f"(CMAKE_CXX_STANDARD {sys.argv[3]})"),
    ("horovod/torch/CMakeLists.txt", "(CMAKE_CXX_STANDARD 14)", f"(CMAKE_CXX_STANDARD {sys.argv[3]})"),
    ("horovod/common/ops/cuda/CMakeLists.txt", "(CMAKE_CUDA_STANDARD 11)", "(CMAKE_CUDA_STANDARD 17)"),
]:
    path = pathlib.Path(sys.argv[1], file)
    text = path.read_text()
    assert old in text, f"{old} is not in {path}"
    path.write_text(text.replace(old, new))
END
}

# Such as "75,80,90,100,120": all that torch is built for.
torch_capabilities() {
    "$python" -c '
import re, torch
listed = re.findall(r"\bsm_(\d+)\b", " ".join(torch.cuda.get_arch_list()))
print(*sorted({75, 80, 90, *map(int, listed)}), sep=",")'
}

# The folder of PyPI's toolkit, with the links by which linkers find its libraries.
complete_toolkit() {
    local folder=("$work"/cuda/nvidia/cu*) library
    for library in "${folder[0]}"/lib/libcudart.so.*; do ln -s "$library" "${folder[0]}/lib/libcudart.so"; done
    ln -s lib "${folder[0]}/lib64"
    printf '%s' "${folder[0]}"
}

# The key names all flags, so none may come from outside.
set_flags() {
    local cores
    cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
    unset "${!HOROVOD_@}"
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
    export HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_NVTX=1
    # Horovod and its Gloo forget two headers, which GCC 13 and newer do not bring with others. GCC 15 and newer look
    # into templates that nothing uses: flatbuffers has one that does not compile.
    export CXXFLAGS="-include cstdint -include string -Wno-template-body ${CXXFLAGS:-}"
    export MAKEFLAGS=${MAKEFLAGS:--j$((cores < 16 ? cores : 16))}
    if [[ -n $toolkit ]]; then
        if [[ $toolkit == pypi ]]; then toolkit=$(complete_toolkit); fi
        # The pip package has no libnccl.so, which the linker looks for.
        mkdir -p "$work/nccl/lib"
        ln -s "$nccl/include" "$work/nccl/include"
        ln -s "$nccl/lib/libnccl.so.2" "$work/nccl/lib/libnccl.so"
        export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED HOROVOD_NCCL_HOME=$work/nccl
        export HOROVOD_CUDA_HOME=$toolkit CUDA_HOME=$toolkit
        HOROVOD_BUILD_CUDA_CC_LIST=${capabilities:-$(torch_capabilities)}
        export HOROVOD_BUILD_CUDA_CC_LIST
        export PATH=$toolkit/bin:$PATH
    fi
}

# The build's own packages stay out of the Python that Horovod is for.
use_build_tools() {
    unset PIP_BUILD_CONSTRAINT # pip refuses it without build isolation
    export PYTHONPATH=$work/tools PATH=$work/tools/bin:$PATH
}

fetch() {
    use_build_tools
    "$python" -m pip install --target "$work/tools" \
        'cmake<4' 'setuptools<80' wheel packaging cffi cloudpickle psutil pyyaml &&
        "$python" -m pip download --no-deps --no-build-isolation --no-binary horovod -d "$work" "horovod==$horovod" &&
        tar -xzf "$work/horovod-$horovod.tar.gz" -C "$work"
}

fetch_toolkit() {
    "$python" -m pip install --target "$work/cuda" "cuda-toolkit[nvcc,cccl]==$torch_cuda.*"
}

# Without build isolation, since the build imports the torch that it is for.
compile() {
    use_build_tools && set_flags && patch_source &&
        "$python" -m pip wheel --no-deps --no-build-isolation -w "$work" "$work/horovod-$horovod" &&
        "$python" -m zipfile -e "$work"/horovod-*.whl "$work/built" &&
        PYTHONPATH=$work/built:$PYTHONPATH check_built
}

# Nothing goes into the cache, or stays installed, under flags that it was not built with.
check_built() {
    "$python" -c '
import sys
from horovod.torch import cuda_built, gloo_built, nccl_built
built = gloo_built(), bool(nccl_built()), cuda_built()
with_nccl = "nccl" in sys.argv[1]
assert built == (True, with_nccl, with_nccl), f"built with Gloo, NCCL, CUDA: {built}"' "$flags"
}

build() {
    local wheel
    step "Fetching Horovod's source and build tools" fetch
    if [[ $toolkit == pypi ]] && ! step "Fetching the CUDA $torch_cuda toolkit" fetch_toolkit; then
        say_without_toolkit
        exit 1
    fi
    if ! step "Compiling Horovod $horovod ($flags) for torch $torch_version: 3 minutes on 2 cores, once" compile; then
        what_it_needs
        exit 1
    fi
    wheel=$(basename "$work"/horovod-*.whl)
    cp "$work/$wheel" "$cache/$key/$wheel.part"
    mv "$cache/$key/$wheel.part" "$cache/$key/$wheel" # at once: nobody reads half a wheel
}

install_wheel() {
    "$python" -m pip install --force-reinstall --no-deps "$cache/$key"/horovod-*.whl &&
        "$python" -m pip install "horovod==$horovod" 'setuptools<80' && # it is there now: for what it needs
        check_built
}

has_wheel() { compgen -G "$cache/$key/horovod-*.whl" >/dev/null; }

if [[ $torch_version == none ]]; then
    [[ ${2:-} == --check ]] || fail "$python has no torch to compile Horovod for. Install torch first."
    key="horovod$horovod-$tag-*" # which of them will fit is not known yet
elif [[ ${2:-} == --key ]]; then
    printf '%s\n' "$key"
    exit
fi
has_wheel || check_tools
check_folder "$cache" "Name another cache: XDG_CACHE_HOME=..."
[[ ${2:-} != --check ]] || exit 0
if [[ $flags == gloo-alone ]]; then notice_without_nccl; fi
mkdir -p "$cache/$key"
exec 8<"$cache/$key"
if command -v flock >/dev/null; then run flock 8; fi # two checkouts may be set up at once
: >"$log"
make_work_folder
has_wheel || build
step "Installing Horovod $horovod ($flags)" install_wheel
