#!/usr/bin/env bash
# Sets up .venv with scalebench, PyTorch, TensorFlow, Horovod and the tools of the tests. The second call takes a moment.
# --light: with PyTorch and Lightning alone. SCALEBENCH_HOROVOD=no leaves out Horovod, which is compiled here: minutes,
# the first time. SCALEBENCH_GPU=yes or no stands in for nvidia-smi on login nodes and where an image is built;
# SCALEBENCH_TORCH_INDEX is the package index of PyTorch, instead of the one for this driver and these GPUs.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
TORCH=$(grep '^torch==' constraints.txt)
TENSORFLOW=$(grep '^tensorflow==' constraints.txt)
STAMP=.venv/.installed
LIGHT_STAMP=.venv/.installed-light
TRIED=.venv/.horovod-tried
HOROVOD=scalebench/cli/commands/install
WANTED=$(cat pyproject.toml plugins/scalebench-search/pyproject.toml constraints.txt scripts/*.sh $HOROVOD/*.sh | cksum)

is() { [ -f "$1" ] && [ "$(cat "$1")" = "$WANTED" ]; }
pip() { .venv/bin/python -m pip "$@"; }

# The name of PyTorch's build for this driver and these GPUs: docs/guides/gpu-install.md has the table.
choose_build() {
  local rows driver capability build
  case "${SCALEBENCH_GPU:-}" in
    no) echo cpu && return ;;
    '') build=cpu ;;
    yes) build=cu130 ;;
    *) echo "SCALEBENCH_GPU=$SCALEBENCH_GPU should be yes or no" >&2 && return 2 ;;
  esac
  rows=$(nvidia-smi --query-gpu=driver_version,compute_cap --format=csv,noheader 2>/dev/null) || rows=
  while IFS=', ' read -r driver capability; do
    [[ $driver == [0-9]*.* ]] || continue
    [ "$build" = cu126 ] || build=cu130
    if [ "${driver%%.*}" -lt 580 ] || [[ $capability == [0-6].* || $capability == 7.[0-4] ]]; then build=cu126; fi
  done <<<"$rows"
  echo "$build"
}

install_torch() {
  local index
  [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
  if .venv/bin/python -c 'import torch' 2>/dev/null; then return 0; fi
  index=${SCALEBENCH_TORCH_INDEX:-https://download.pytorch.org/whl/$(choose_build)}
  case "$index" in
    */cpu)
      # The default Linux wheels bring gigabytes of CUDA libraries, for nothing here.
      echo "installing the CPU build of $TORCH"
      pip install --quiet --no-deps --no-index "$TORCH" 2>/dev/null ||
        pip install --quiet --no-deps --index-url "$index" "$TORCH" ||
        pip install --quiet "$TORCH"
      ;;
    *)
      echo "installing $TORCH from $index"
      pip install --quiet --index-url "$index" "$TORCH"
      ;;
  esac
}

install_light() {
  install_torch
  echo "installing scalebench with PyTorch and Lightning"
  pip install --quiet --constraint constraints.txt --editable '.[torch]'
  echo "$WANTED" >"$LIGHT_STAMP"
}

install_with() {
  pip install --quiet --constraint constraints.txt "$1" --editable '.[torch,dev]' --editable ./plugins/scalebench-search
}

install_everything() {
  local build cuda
  install_torch
  # Packages for another CUDA version than 12 unpack NCCL and cuDNN into the folders in which TensorFlow looks for its own.
  cuda=$(PYTHONPATH=. .venv/bin/python -c "from scalebench.core.machine import cuda_builds as builds
print(builds.read_torch_version('cuda') or '')")
  build=tensorflow-cpu==${TENSORFLOW#*==}
  case "$cuda" in
    '') ;;
    12.*) build="tensorflow[and-cuda]==${TENSORFLOW#*==}" ;;
    *)
      echo "$TENSORFLOW is its CPU build here, since its libraries for CUDA 12 would replace PyTorch's for CUDA $cuda;" \
        "for GPUs, in an environment of its own: pip install 'scalebench-train[tensorflow_cuda]'"
      ;;
  esac
  echo "installing scalebench with what it needs, and $build"
  install_with "$build" || install_with "$TENSORFLOW" # there is no such build for every machine
  echo "$WANTED" >"$STAMP"
}

if [ "${1:-}" = --light ]; then
  is "$STAMP" || is "$LIGHT_STAMP" || install_light
  exit 0
fi
is "$STAMP" || install_everything

# Tried once: every target of the Makefile comes by here, and none should build for minutes what did not build before.
if [ "${SCALEBENCH_HOROVOD:-yes}" != no ] && ! is "$TRIED"; then
  status=0
  SCALEBENCH_PYTHON=.venv/bin/python PIP_CONSTRAINT=constraints.txt $HOROVOD/horovod.sh --optional || status=$?
  [ "$status" -lt 128 ] || exit "$status" # stopped by hand
  echo "$WANTED" >"$TRIED"
fi
