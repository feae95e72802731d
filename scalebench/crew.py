"""Thousands of records read by several processes: `python -m scalebench.crew` is one of them. Layer 1.

Each gets the names of its files on standard input and answers with a line of JSON for each. It ends by itself when they
are done, or when nobody listens any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from scalebench.figures import Figures
from scalebench.processors import usable_cpus
from scalebench.results import Scale, read_result
from scalebench.rows import figures_of
from scalebench.spec import InputError
from scalebench.stats import Interval

FILES_EACH = 400  # at the least: a process takes as long to start as it takes for so many
MOST = 8  # processes
LIMIT_S = 600.0
Answer = Figures | str  # or one line that says why there are no figures


def read(file: Path) -> Answer:
    try:
        return figures_of(read_result(file), file.parent)
    except InputError as error:
        return str(error)


def read_all(files: Sequence[Path]) -> Iterator[Answer]:
    """The answer for each file, in order; by several processes where there are files and cores enough."""
    count = min(len(files) // FILES_EACH, len(usable_cpus()), MOST)
    if count < 2:
        yield from map(read, files)
        return
    shares = [files[number::count] for number in range(count)]
    with ThreadPoolExecutor(count) as threads:
        told = [_unpacked(output, share) for output, share in zip(threads.map(_ask, shares), shares, strict=True)]
    for number in range(len(files)):
        yield next(told[number % count])


def _ask(files: Sequence[Path]) -> bytes:
    """What a process says of these files; cut short, or nothing, where it cannot be started or comes to grief."""
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    # One thread each: what they reckon with is small.
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", "scalebench.crew"],
            input=json.dumps([str(file) for file in files]).encode(),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, timeout=LIMIT_S,
        ).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return b""


def _unpacked(output: bytes, files: Sequence[Path]) -> Iterator[Answer]:
    """The answer for each of the files; what is missing from the output is read here."""
    keys: list[str] = []
    lines = iter(output.splitlines()[:-1])  # the last one says that nothing is missing from the one before
    for file in files:
        line = next(lines, None)
        yield read(file) if line is None else unpacked(json.loads(line), keys)


def packed(answer: Answer, numbers: dict[str, int]) -> Any:
    """As JSON can hold it. Keys that were told before are their numbers: there are few different ones, and they are the
    greater part of it."""
    if isinstance(answer, str):
        return answer
    keys = [numbers.get(key, key) for key in answer.keys]
    for key in answer.keys:
        numbers.setdefault(key, len(numbers))
    value, interval = answer.throughput
    limits = None if interval is None else [interval.value, interval.low, interval.high]
    return [
        answer.run_id, answer.started_at, answer.status, answer.reason, answer.fingerprint, vars(answer.scale),
        answer.started.isoformat(), keys, answer.placement, answer.as_it_comes, [value, limits], answer.sample,
        answer.cells, answer.on_request,
    ]  # fmt: skip


def unpacked(plain: Any, keys: list[str]) -> Answer:
    """What was packed. `keys` are those told before, to which new ones are added."""
    if isinstance(plain, str):
        return plain
    run_id, started_at, status, reason, fingerprint, scale, started, own_keys, *rest = plain
    placement, as_it_comes, throughput, sample, cells, on_request = rest
    keys += [sys.intern(key) for key in own_keys if isinstance(key, str)]
    without, with_strategy = (keys[key] if isinstance(key, int) else sys.intern(key) for key in own_keys)
    variables, bind, first = placement
    value, limits = throughput
    return Figures(
        run_id, started_at, status, reason, fingerprint, Scale(**scale), datetime.fromisoformat(started),
        (without, with_strategy),
        (tuple((name, text) for name, text in variables), bind, first), as_it_comes,
        (value, None if limits is None else Interval(*limits)), sys.intern(sample), cells, on_request,
    )  # fmt: skip


def main() -> None:
    numbers: dict[str, int] = {}
    for name in json.load(sys.stdin):
        print(json.dumps(packed(read(Path(name)), numbers)))
    print("null")


if __name__ == "__main__":
    main()
