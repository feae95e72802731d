#!/usr/bin/env bash
# Sets up .venv with scalebench, PyTorch, TensorFlow and the tools of the tests. The second call takes a moment.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
TORCH=$(grep '^torch==' constraints.txt)
TENSORFLOW=$(grep '^tensorflow==' constraints.txt)
CPU_BUILDS=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
STAMP=.venv/.installed
WANTED=$(cat pyproject.toml constraints.txt scripts/install.sh | cksum)

if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$WANTED" ]; then
  exit 0
fi
[ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
pip() { .venv/bin/python -m pip "$@"; }

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; }

if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
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
fi
finish() { pip install --quiet --constraint constraints.txt "$1" --editable '.[torch,images,dev]'; }

if has_gpu; then BUILD="${TENSORFLOW/==/[and-cuda]==}"; else BUILD="${TENSORFLOW/==/-cpu==}"; fi
echo "installing scalebench with what it needs, and $BUILD"
finish "$BUILD" || finish "$TENSORFLOW" # there is no such build for every machine
echo "$WANTED" >"$STAMP"
