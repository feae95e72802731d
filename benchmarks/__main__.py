"""Run all benchmarks, or those named."""

from __future__ import annotations

import importlib
import sys

from scalebench.core.errors import unknown_name_message

NAMES = (
    "loop_overhead", "ddp_loop", "own_step", "gpu", "start_up", "turns", "submitting", "load_10000", "coverage", "soak",
    "resnet50", "predict_error", "decoding",
)  # fmt: skip


def main() -> int:
    chosen = sys.argv[1:] or NAMES
    for name in chosen:
        if name not in NAMES:
            print(unknown_name_message("benchmark", name, NAMES), file=sys.stderr)
            return 2
    for name in chosen:
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
