#!/usr/bin/env bash
# Sets up .venv with scalebench, PyTorch, TensorFlow, Horovod and the tools of the tests. The second call takes a moment.
# --light: with PyTorch and Lightning alone. SCALEBENCH_HOROVOD=no leaves out Horovod, which is compiled here: minutes,
# the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
TORCH=$(grep '^torch==' constraints.txt)
TENSORFLOW=$(grep '^tensorflow==' constraints.txt)
CPU_BUILDS=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
STAMP=.venv/.installed
LIGHT_STAMP=.venv/.installed-light
TRIED=.venv/.horovod-tried
HOROVOD=scalebench/cli/commands/install
WANTED=$(cat pyproject.toml plugins/scalebench-search/pyproject.toml constraints.txt scripts/*.sh $HOROVOD/*.sh | cksum)

is() { [ -f "$1" ] && [ "$(cat "$1")" = "$WANTED" ]; }
pip() { .venv/bin/python -m pip "$@"; }
has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; }

install_torch() {
  [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
  if .venv/bin/python -c 'import torch' 2>/dev/null; then return 0; fi
  if has_gpu; then
    echo "installing $TORCH with CUDA"
    pip install --quiet "$TORCH"
  else
    # The default Linux wheels bring gigabytes of CUDA libraries, for nothing here.
    echo "installing the CPU build of $TORCH"
    pip install --quiet --no-deps --no-index "$TORCH" 2>/dev/null ||
      pip install --quiet --no-deps --index-url "$CPU_BUILDS" "$TORCH" ||
      pip install --quiet "$TORCH"
  fi
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
  local build
  install_torch
  if has_gpu; then build="${TENSORFLOW/==/[and-cuda]==}"; else build="${TENSORFLOW/==/-cpu==}"; fi
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
