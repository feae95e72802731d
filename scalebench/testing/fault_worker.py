"""A worker with a fault: `python -m scalebench.testing.fault_worker FOLDER` fails as fault.json beside the folder says.

It fails while a batch is drawn, which every strategy does, whatever owns its loop.
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
from scalebench.strategies.simulated import raise_fault
from scalebench.workloads.source import Source

FAULT_FILE = "fault.json"  # beside the run's folder, which holds nothing but files of runs


def inject_fault(strategy: Strategy, fault: str, batch: int) -> None:
    """Make `strategy` fail in the named way (see strategies.simulated.raise_fault) when it draws that batch."""
    feed = strategy.feed

    def feed_with_fault(source: Source) -> Iterable[Any]:
        def batches() -> Iterator[Any]:
            for number, drawn in enumerate(feed(source)):
                if number == batch:
                    raise_fault(fault)
                yield drawn

        return batches()

    strategy.feed = feed_with_fault  # type: ignore[method-assign]


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    settings = read_json(folder.with_name(FAULT_FILE))

    def body(spec: RunSpec, strategy: Strategy, *rest: Any) -> None:
        if strategy.place.rank == settings["rank"]:
            inject_fault(strategy, settings["fault"], settings["batch"])
        Session(spec, strategy, *rest).run()

    return run_rank(folder, body)


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
