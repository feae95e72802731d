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
  # Its XLA operations include headers that no TensorFlow wheel has; without this name the file is empty.
  case "$argument" in *xla_mpi_ops.cc) arguments+=(-UTENSORFLOW_VERSION) ;; esac
done
exec "${SCALEBENCH_CXX:-g++}" "${arguments[@]}"
