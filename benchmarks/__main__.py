"""Run all benchmarks, or those named."""

from __future__ import annotations

import importlib
import sys

from benchmarks import loop_overhead
from scalebench.core.errors import unknown_name_message

NAMES = (
    *loop_overhead.CASES,
    "resnet50",
    "decoding",
    "load_10000",
    "coverage",
    "soak",
    "predict_error",
)


def main() -> int:
    chosen = sys.argv[1:] or NAMES
    for name in chosen:
        if name not in NAMES:
            print(unknown_name_message("benchmark", name, NAMES), file=sys.stderr)
            return 2
    for name in chosen:
        print(f"== {name}", flush=True)
        if name in loop_overhead.CASES:
            loop_overhead.main(name)
        else:
            importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
