#!/usr/bin/env bash
# Builds Horovod for the PyTorch and TensorFlow of the environment of SCALEBENCH_PYTHON, and installs it there.
# `scalebench install horovod` calls this. --optional: a failure is one line, for those who can do without. The second
# call takes a moment.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../../.." && pwd) # the folder that holds the package

HOROVOD=0.28.1
PYTHON=${SCALEBENCH_PYTHON:-$(command -v python3)}
CACHE=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
WHEELS=${SCALEBENCH_WHEELS:-${CACHE:+$CACHE/scalebench/wheels}}
STAMP=$(dirname "$(dirname "$PYTHON")")/.horovod
RUNTIME=(cloudpickle psutil pyyaml packaging cffi)
OPTIONAL=${1:-}
work='' building='' log='' unkept=''

has() { command -v "$1" >/dev/null 2>&1; }
# -P: a folder called torch or horovod where the user stands is no package.
inspect() { PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -P -m scalebench.config.horovod_build "$@"; }
pip() { "$PYTHON" -m pip --quiet --disable-pip-version-check --no-input "$@"; }

fail() {
  if [ "$OPTIONAL" = --optional ]; then
    echo "Horovod is left out: $1; scalebench install horovod tries again" >&2
  else
    # Commands of the compiler are thousands of characters long, and errors seldom in the last lines.
    [ ! -s "$log" ] || { grep -E ' error: |ERROR|\*\*\*' "$log" | tail -n 12; tail -n 8 "$log"; } | cut -c 1-240 >&2 || true
    echo "Horovod was not installed: $1" >&2
  fi
  exit 1
}

# The compilers are a process group of their own, which ends with this script, and before its folder goes.
stop() {
  trap '' INT TERM HUP
  if [ -n "$building" ]; then
    kill -TERM -- "-$building" 2>/dev/null || true
    for _ in {1..30}; do
      kill -0 -- "-$building" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL -- "-$building" 2>/dev/null || true
  fi
  exit "$1"
}
trap 'rm -rf ${work:+"$work"} ${unkept:+"$unkept"}' EXIT
trap 'stop 130' INT
trap 'stop 143' TERM HUP

# shellcheck source=scalebench/cli/commands/install/horovod_choice.sh
. "$HERE/horovod_choice.sh"

make_jobs() {
  local cores free_kib
  cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
  free_kib=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null || true)
  jobs=$((${free_kib:-$((cores << 21))} >> 21)) # 2 GiB each
  jobs=$((jobs < 1 ? 1 : jobs > cores ? cores : jobs))
}

build_environment() {
  unset MFLAGS MAKELEVEL HOROVOD_GPU_OPERATIONS # of the make that called us; and of what was chosen since
  export MAKEFLAGS="-j$jobs" CMAKE_POLICY_VERSION_MINIMUM=3.5 TMPDIR="$work" LDFLAGS=-s
  export SCALEBENCH_CXX="${CXX:-g++}" CXX="$HERE/horovod_cxx.sh"
  export HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MXNET=1
  if [ "$torch" = none ]; then export HOROVOD_WITHOUT_PYTORCH=1; else export HOROVOD_WITH_PYTORCH=1; fi
  if [ "$tensorflow" = none ]; then export HOROVOD_WITHOUT_TENSORFLOW=1; else export HOROVOD_WITH_TENSORFLOW=1; fi
  if [ "$mpi" = nompi ]; then export HOROVOD_WITHOUT_MPI=1; else export HOROVOD_WITH_MPI=1; fi
  # Horovod pins C++11 for its CUDA kernels, which it compiles wherever PyTorch has CUDA; of two standards nvcc takes
  # the last.
  export NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:+$NVCC_APPEND_FLAGS }-std=c++17"
  if [ "$gpu" = nccl ]; then
    export HOROVOD_GPU_OPERATIONS=NCCL
    if takes_nccl_package; then # it has no libnccl.so, by which a linker looks for a library
      mkdir "$work/nccl"
      ln -s "$nccl_package/lib/libnccl.so.2" "$work/nccl/libnccl.so"
      export HOROVOD_NCCL_INCLUDE="$nccl_package/include" HOROVOD_NCCL_LIB="$work/nccl" HOROVOD_NCCL_LINK=SHARED
    fi
  fi
  if [ "$torch_cuda" = cpu ]; then
    return 0
  elif [ "$gpu" = cpu ]; then
    hide_cuda
  else
    CUDA_HOME=$(dirname "$(dirname "$nvcc")")
    export CUDA_HOME HOROVOD_CUDA_HOME="$CUDA_HOME" PATH="$CUDA_HOME/bin:$PATH"
  fi
}

# Horovod's CMake files build for CUDA if torch.utils.cpp_extension finds any nvcc, or only a folder /usr/local/cuda.
hide_cuda() {
  printf '%s\n' 'import contextlib, sys' 'if "cpp_extension" in " ".join(sys.orig_argv):' \
    '    with contextlib.suppress(ImportError):' '        from torch.utils import cpp_extension' \
    '        cpp_extension.CUDA_HOME = None' >"$work/sitecustomize.py"
  export PYTHONPATH="$work${PYTHONPATH:+:$PYTHONPATH}"
}

# The wheel goes to its place at the end, whole; until then everything lies in $work.
build() {
  local status=0 mark
  apt_get "${CXX:-g++}" g++ || fail "there is no ${CXX:-g++}: apt-get install g++"
  apt_get cmake cmake || fail "there is no cmake: apt-get install cmake"
  apt_get make make || fail "there is no make: apt-get install make"
  make_jobs
  log=$WHEELS/$key.log
  echo "building Horovod $HOROVOD (torch $torch, tensorflow $tensorflow, $mpi, $gpu):" \
    "3 to 8 minutes on two cores, 3 to 4 GiB of memory; log: $log"
  mark=$(cksum <<<"$key" | cut -d ' ' -f 1)
  ! has flock || rm -rf "$WHEELS/.build-$mark".* # of a build that was killed: we hold the lock
  work=$(mktemp -d "$WHEELS/.build-$mark.XXXXXX")
  set -m
  (
    build_environment
    pip install 'setuptools<81' wheel "${RUNTIME[@]}" &&
      # Without pip's own cache of wheels, which knows the version of Horovod and not what it was built for.
      "$PYTHON" -m pip wheel --verbose --no-input --no-cache-dir --no-deps --no-build-isolation --no-binary horovod \
        --wheel-dir "$work/wheel" "horovod==$HOROVOD"
  ) >"$log" 2>&1 </dev/null 9>&- &
  building=$!
  set +m
  wait "$building" || status=$?
  building=''
  [ "$status" -eq 0 ] || unkept='' # the log stays
  [ "$status" -eq 0 ] || fail "it does not build (exit status $status), see $log"
  log=''
  mkdir -p "$WHEELS/$key"
  mv -f "$work"/wheel/horovod-*.whl "$WHEELS/$key/"
}

find_wheel() {
  local found
  wheel=''
  for found in "$WHEELS/$key"/horovod-*.whl; do
    if [ -s "$found" ]; then wheel=$found; fi
  done
  [ -n "$wheel" ]
}

# What is installed is run: others may neither have put it there nor be able to replace it.
trust() {
  local path
  for path in "$@"; do
    if [ ! -O "$path" ] && [ -z "$(find "$path" -prune -user 0)" ]; then
      fail "$path is another user's; remove it, or set SCALEBENCH_WHEELS=/another/folder"
    fi
    if [ -n "$(find "$path" -prune -perm -0002)" ]; then
      fail "everybody can write $path: chmod o-w, or set SCALEBENCH_WHEELS=/another/folder"
    fi
  done
}

mark_of_installed() { inspect | cut -d ' ' -f 5; }

install_wheel() {
  rm -f "$STAMP"
  pip install "${RUNTIME[@]}" || fail "pip could not install ${RUNTIME[*]}"
  if ! pip install --no-deps --no-index --force-reinstall "$wheel" || ! inspect "${frameworks[@]}"; then
    rm -rf "${WHEELS:?}/$key"
    pip uninstall --yes horovod || true
    fail "what was built does not import"
  fi
  echo "$key $(mark_of_installed)" >"$STAMP"
}

# there: whether what is installed is what would be built.
there() { [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$key $installed" ] && echo "Horovod $HOROVOD is there"; }

choose
if there; then exit 0; fi
for note in "${notes[@]}"; do echo "Horovod $note"; done
[ -n "$WHEELS" ] || WHEELS=$(mktemp -d) unkept=$WHEELS # no home, no cache
if ! mkdir -p "$WHEELS" 2>/dev/null || [ ! -w "$WHEELS" ]; then
  fail "$WHEELS cannot be written; set SCALEBENCH_WHEELS=/another/folder"
fi
WHEELS=$(cd "$WHEELS" && pwd)
trust "$WHEELS"
if has flock; then # two checkouts may share the folder
  exec 9>"$WHEELS/$key.lock"
  if ! flock --nonblock 9; then
    echo "waiting for another build of the same Horovod"
    flock 9
    installed=$(mark_of_installed) # by another call for this environment, perhaps
    if there; then exit 0; fi
  fi
fi
if ! find_wheel; then
  build
  find_wheel || fail "the build left no wheel, see $WHEELS/$key.log"
fi
trust "$WHEELS/$key" "$wheel"
install_wheel
