#!/usr/bin/env bash
# The C++ compiler as Horovod 0.28.1 needs it today. The compiler itself is $SCALEBENCH_CXX, else g++.
set -euo pipefail

arguments=()
for argument in "$@"; do
  # Symbols for a debugger, which the linker drops (-s), are a third of the compiler's work.
  [ "$argument" != -g ] || continue
  # Horovod pins C++14, and today's headers of PyTorch and TensorFlow want 17.
  [ "$argument" != -std=c++14 ] || argument=-std=c++17
  arguments+=("$argument")
  case "$argument" in
    # Its XLA operations include headers that no TensorFlow wheel has; without this name the file is empty.
    *xla_mpi_ops.cc) arguments+=(-UTENSORFLOW_VERSION) ;;
  esac
  # Horovod and its Gloo rely on what other headers include by the way, and those of GCC 13 and newer include less.
  case "$argument" in *.cc) arguments+=(-include stdexcept -include cstdint) ;; esac
done
exec "${SCALEBENCH_CXX:-g++}" "${arguments[@]}"
