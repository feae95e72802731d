# What Horovod is to be built for here. Sourced by horovod.sh, whose variables and functions it uses.
# shellcheck shell=bash disable=SC2034

# apt_get COMMAND PACKAGE...: whether the command is there, after an attempt to install it where that is allowed.
apt_get() {
  local command=$1 root=()
  shift
  if has "$command"; then return 0; fi
  if [ "${SCALEBENCH_APT:-yes}" = no ] || ! has apt-get; then return 1; fi
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || return 1
    root=(sudo -n)
  fi
  echo "installing $* with apt-get"
  # The lists of a fresh container are empty, those of an old one name what is no longer there.
  { "${root[@]}" apt-get -qq update && "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install \
    --no-install-recommends -o DPkg::Lock::Timeout=60 "$@"; } >/dev/null 2>&1 </dev/null || true
  has "$command"
}

mpi_name() {
  local banner version
  banner=$(mpirun --version 2>&1 | head -n 3 || true)
  version=$(grep -oE '[0-9]+(\.[0-9]+)+' <<<"$banner" | head -n 1 || true)
  case "$banner" in
    *"Open MPI"*) echo "openmpi$version" ;;
    *Intel*) echo "intelmpi$version" ;;
    *) echo "mpi$version" ;;
  esac
}

# What a wheel is tied to beside its Python packages: the instructions that Horovod asks for, and the C library.
machine_name() {
  local flag found=''
  for flag in avx f16c fma; do
    if grep -qsw -m 1 "$flag" /proc/cpuinfo; then found+="-$flag"; fi
  done
  found=${HOROVOD_BUILD_ARCH_FLAGS-$found}
  echo "$(uname -m)$found-$(getconf GNU_LIBC_VERSION 2>/dev/null || uname -s)" | tr -cs 'A-Za-z0-9._\n' '-'
}

# Sets nvcc and its CUDA version, both empty without one. Horovod's build looks for it in three ways; it gets this one.
find_nvcc() {
  local candidate
  nvcc='' nvcc_cuda=''
  for candidate in "${HOROVOD_CUDA_HOME:+$HOROVOD_CUDA_HOME/bin/nvcc}" "$(command -v nvcc || true)" \
    "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    [ -x "$candidate" ] || continue
    nvcc=$candidate
    nvcc_cuda=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9][0-9.]*\).*/\1/p' | head -n 1 || true)
    return 0
  done
}

# What a build with CUDA lacks here, in a line. Headers of another major version do not compile with PyTorch's.
cuda_lacks() {
  local wanted=${torch_cuda%%.*}
  if [ "$torch_cuda" = cpu ]; then
    echo "a CUDA build of PyTorch"
  elif [ -z "$nvcc" ]; then
    echo "nvcc"
  elif [ "${nvcc_cuda%%.*}" != "$wanted" ]; then
    echo "nvcc of CUDA $wanted as PyTorch $torch ($nvcc is of CUDA ${nvcc_cuda:-unknown};" \
      "HOROVOD_CUDA_HOME=/usr/local/cuda-$torch_cuda names another)"
  fi
}

nccl_lacks() {
  has_nccl_header || echo "nccl.h"
  cuda_lacks
}

# The package that PyTorch's own wheel brings (nccl_package) is the NCCL that PyTorch uses.
has_nccl_header() {
  local folder
  if takes_nccl_package; then return 0; fi
  for folder in "${HOROVOD_NCCL_INCLUDE:-}" "${HOROVOD_NCCL_HOME:-}/include" "${CUDA_HOME:-/usr/local/cuda}/include" \
    /usr/include; do
    if [ -e "$folder/nccl.h" ]; then return 0; fi
  done
  return 1
}

takes_nccl_package() {
  [ "$nccl_package" != none ] && [ -z "${HOROVOD_NCCL_INCLUDE:-}${HOROVOD_NCCL_HOME:-}" ]
}

has_gpu() {
  case "${SCALEBENCH_GPU:-}" in
    yes | no) [ "$SCALEBENCH_GPU" = yes ] ;;
    '') has nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q GPU ;;
    *) fail "SCALEBENCH_GPU=$SCALEBENCH_GPU should be yes or no" ;;
  esac
}

# Sets gpu (nccl; cuda: gradients on GPUs are copied through host memory; cpu), and takes TensorFlow out where it does
# not go with NCCL.
choose_gpu() {
  local lacks no_cuda
  find_nvcc
  gpu=cpu no_cuda=$(cuda_lacks)
  [ -n "$no_cuda" ] || gpu=cuda
  lacks=$(nccl_lacks | paste -sd , | sed 's/,/, /g')
  case "${HOROVOD_GPU_OPERATIONS:-auto}" in
    none) ;;
    NCCL)
      [ -z "$lacks" ] || fail "HOROVOD_GPU_OPERATIONS=NCCL needs $lacks"
      gpu=nccl
      ;;
    auto)
      if has_gpu && [ -z "$lacks" ]; then
        gpu=nccl
      elif has_gpu && { [ "$gpu" = cuda ] || [ "$torch_cuda" = cpu ]; }; then
        notes+=("without NCCL, which needs $lacks")
      fi
      ;;
    *) fail "HOROVOD_GPU_OPERATIONS=$HOROVOD_GPU_OPERATIONS should be NCCL or none" ;;
  esac
  if [ "$gpu" = cpu ] && [ "$torch_cuda" != cpu ]; then
    notes+=("for training on CPUs alone; on GPUs it needs $no_cuda")
  fi
  if [ "$gpu" = nccl ] && [ "$tensorflow" != none ]; then
    notes+=("without TensorFlow, with which the GPU operations do not compile: HOROVOD_GPU_OPERATIONS=none has it")
    tensorflow=none
  fi
}

# Sets torch, tensorflow (versions or none), torch_cuda (a version or cpu), nccl_package (a folder or none), mpi, gpu, frameworks, notes (what is left
# out), installed (the mark of what is there now), and key, the name of the wheel's folder: all that the wheel is tied
# to.
choose() {
  local abi
  notes=() frameworks=()
  [ -x "$PYTHON" ] || fail "there is no $PYTHON"
  read -r abi torch torch_cuda tensorflow installed nccl_package < <(inspect) ||
    fail "$PYTHON cannot tell which packages it has"
  [ "$torch$tensorflow" != nonenone ] || fail "$PYTHON has neither PyTorch nor TensorFlow: pip install 'scalebench-train[torch]'"
  mpi=nompi
  if [ "${HOROVOD_WITHOUT_MPI:-0}" = 1 ]; then
    notes+=("without MPI, as HOROVOD_WITHOUT_MPI=1 asks")
  elif apt_get mpicxx openmpi-bin libopenmpi-dev; then
    mpi=$(mpi_name)
  else
    notes+=("with Gloo alone, since there is no MPI: apt-get install openmpi-bin libopenmpi-dev, then scalebench install horovod")
  fi
  choose_gpu
  [ "$torch" = none ] || frameworks+=(torch)
  [ "$tensorflow" = none ] || frameworks+=(tensorflow)
  key="horovod$HOROVOD-$abi-torch$torch-tensorflow$tensorflow-$mpi-$gpu-$(machine_name)"
}
