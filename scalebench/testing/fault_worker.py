"""A worker that goes wrong: `python -m scalebench.testing.fault_worker FOLDER`, as fault.json there says. Layer 3.

It fails where every strategy passes, whatever owns its loop: while a batch is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scalebench.core.json_files import read_json
from scalebench.core.spec import RunSpec
from scalebench.measure.session import Session
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import Strategy
from scalebench.strategies.simulated import fail
from scalebench.workloads.source import Source

FAULT_FILE = "fault.json"


def spoil(strategy: Strategy, fault: str, batch: int) -> None:
    """Have `strategy` go wrong in the named way (adapters.simulated.fail) when it draws that batch."""
    feed = strategy.feed

    def spoiled(source: Source) -> Iterable[Any]:
        def batches() -> Iterator[Any]:
            for number, drawn in enumerate(feed(source)):
                if number == batch:
                    fail(fault)
                yield drawn

        return batches()

    strategy.feed = spoiled  # type: ignore[method-assign]


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    told = read_json(folder / FAULT_FILE)

    def body(spec: RunSpec, strategy: Strategy, *rest: Any) -> None:
        if strategy.place.rank == told["rank"]:
            spoil(strategy, told["fault"], told["batch"])
        Session(spec, strategy, *rest).run()

    return run_rank(folder, body)


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
