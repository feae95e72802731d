"""Loading many runs, their report, and the table of 100. The promise is 1,000 runs (BENCHMARK_RUNS=1000) loaded in 2 s
and their report in 6 s on a quiet machine, and 10,000 runs loaded in 25 s and 1 GB.

Records of 1 to 4 ranks, 64 to 256 blocks each, with probes: 15 to 80 kB. Each figure is of a new interpreter; as
machines differ, and may be in use, processor time is printed as well, and the time of parsing the same files as JSON.

Measured in processor time on a machine whose two cores were in use: 1,000 runs of 37 kB loaded in 2.2 s, 0.6 s of which
import the libraries, and reported in 6.7 s; 10,000 runs loaded in 17.5 s and 0.4 GB, and reported in 28 s and 0.6 GB.
Several processes took 2.7 s and 17.7 s of processor time; they shorten the wait on idle cores only.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from scalebench.core.result import write_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.spec import TrainSpec
from tests.builders import sweeps

RUNS = int(os.environ.get("BENCHMARK_RUNS", "10000"))
REPEATS = 3
PARSE = "[json.loads(path.read_text()) and None for path in pathlib.Path(sys.argv[1]).glob('*/*.json')]"
LOAD = "from scalebench.analysis.load import survey; survey(sys.argv[1])"
REPORT = "from scalebench.__main__ import main; main(['report', sys.argv[1]])"
SHOW = "from scalebench.__main__ import main; main(['show', sys.argv[1]])"
PROGRAM = """
import json, pathlib, resource, sys, time
begin_s = time.perf_counter()
{}
spent_s = time.perf_counter() - begin_s
own = resource.getrusage(resource.RUSAGE_SELF)
print(spent_s, own.ru_utime + own.ru_stime, own.ru_maxrss * 1024)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        many, few = Path(name) / "many", Path(name) / "few"
        size = make(many, RUNS)
        make(few, 100)
        print(f"{RUNS} runs of {size / RUNS / 1000:.0f} kB on the average")
        _, parsed_cpu_s, *_ = measure(PARSE, many)
        loaded_s, cpu_s, peak_bytes = measure(LOAD, many)
        print(
            f"frame and pooled frame: {loaded_s:.1f} s, {cpu_s:.1f} s of processors, {1e3 * cpu_s / RUNS:.2f} ms a run"
        )
        print(f"processor time, loading / parsing: {cpu_s / parsed_cpu_s:.2f}")
        print(f"peak memory: {peak_bytes / 2**20:.0f} MiB")
        page_s, page_cpu_s, *_ = measure(REPORT, many)
        print(f"their report, with loading: {page_s:.1f} s, {page_cpu_s:.1f} s of processors")
        table_s, table_cpu_s, *_ = sorted(measure(SHOW, few) for _ in range(5))[2]
        print(f"table of 100 runs: {table_s:.2f} s, {table_cpu_s:.2f} s of processor time")


def measure(statement: str, folder: Path) -> list[float]:
    """Return (seconds, processor seconds, peak bytes)."""
    command = [sys.executable, "-c", PROGRAM.format(statement), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return [float(text) for text in done.stdout.splitlines()[-1].split()]


def make(folder: Path, count: int) -> int:
    """Write runs of sweeps with repeats in numbered folders, and return their bytes. A few are generated, the others
    are copies with ids of their own, in sweeps over the batch."""
    chance = random.Random(0)
    strategies = [("bare_torch", 1), *((s, n) for s in sweeps.EFFICIENCY for n in (1, 2, 4))]
    texts: list[str] = []
    for repeat in range(REPEATS):
        for strategy, gpus in strategies:
            blocks, noise = chance.choice((64, 128, 256, 256)), chance.choice((0.01, 0.05, 0.2))
            train = TrainSpec(batch_per_device=777)
            result = sweeps.run(strategy, gpus, repeat, noise, blocks, minute=len(texts), train=train)
            where = folder / "made"
            where.mkdir(parents=True, exist_ok=True)
            texts.append(write_result(result, where).read_text())
            (where / RESULT_FILE).unlink()
    where.rmdir()
    for number in range(count):
        sweep, which = divmod(number, len(texts))
        text = texts[which].replace('"run_id": "', f'"run_id": "{sweep}-', 1).replace(" 777", f" {sweep + 1}")
        (folder / str(number)).mkdir()
        (folder / str(number) / RESULT_FILE).write_text(
            text.replace('"fingerprint": "', f'"fingerprint": "{sweep}-', 1)
        )
    return sum(path.stat().st_size for path in folder.glob(f"*/{RESULT_FILE}"))
