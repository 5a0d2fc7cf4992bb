#!/usr/bin/env bash
# Checks for each Python that constraints.txt can be installed: every pin exists, all fit together, and none is missing.
# With torch's CUDA build, its CPU build and the one for macOS. Reads metadata from the package index; installs nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=$PWD/.venv/bin:$PATH MACOSX_DEPLOYMENT_TARGET=14.0 # the oldest that torch has wheels for

pins=$(cut -d ' ' -f 1 constraints.txt)
cuda_packages=$(grep -oE '^(cuda|nvidia|triton)[a-z0-9-]*' constraints.txt) # what only the CUDA build asks for
failed=0

# check BUILD PYTHON PLATFORM EXCLUDED: that build's packages, resolved as for an installation, without those EXCLUDED.
check() {
    local packages unpinned
    packages=$(uv pip compile --quiet --no-config --no-header --no-annotate --python-version "$2" --python-platform "$3" \
        --excludes <(printf '%s\n' "$4") --extra dev --extra horovod pyproject.toml constraints.txt) || failed=1
    unpinned=$(grep -vxF "$pins" <<<"$packages") && failed=1
    printf 'Python %s, %s: %s packages%s\n' "$2" "$1" "$(wc -w <<<"$packages")" "${unpinned:+, not pinned: $unpinned}"
}

for python in 3.10 3.11 3.12 3.13 3.14; do
    check CUDA $python x86_64-manylinux_2_28 ''
    check CPU $python x86_64-manylinux_2_28 "$cuda_packages"
    check macOS $python aarch64-apple-darwin "$cuda_packages"
done
exit $failed
