"""Loading 10,000 runs, their report, and the table of 100. Targets on two quiet cores: 3 s, 8 s and 1 s, in 1 GB.

Records of 1 to 4 ranks, 64 to 256 blocks each, with probes: 15 to 80 kB. Each figure is of a new interpreter; as
machines differ, and may be in use, processor time is printed as well, and the time of parsing the same files as JSON.

Measured on two busy cores: 10,000 runs of 36 kB in 12 s of processor time, where records checked in Python took 20 s;
1.5 s of these decode and check them, 5 s compute their figures; 0.4 GB. While entire records were kept, and figures
computed again for each row with this baseline, it was 33 ms a run, and 0.8 GB for the records. The table of 100 runs
took 0.6 s, most of it for importing pandas.
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
both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(spent_s, sum(one.ru_utime + one.ru_stime for one in both), *(one.ru_maxrss * 1024 for one in both))
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        many, few = Path(name) / "many", Path(name) / "few"
        size = make(many, RUNS)
        make(few, 100)
        print(f"{RUNS} runs of {size / RUNS / 1000:.0f} kB on the average")
        _, parsed_cpu_s, *_ = measure(PARSE, many)
        loaded_s, cpu_s, own_bytes, child_bytes = measure(LOAD, many)
        print(
            f"frame and pooled frame: {loaded_s:.1f} s, {cpu_s:.1f} s of processors, {1e3 * cpu_s / RUNS:.2f} ms a run"
        )
        print(f"processor time, loading / parsing: {cpu_s / parsed_cpu_s:.2f}")
        print(
            f"peak memory: {own_bytes / 2**20:.0f} MiB, and {child_bytes / 2**20:.0f} MiB of the largest child process"
        )
        page_s, page_cpu_s, *_ = measure(REPORT, many)
        print(f"their report, with loading: {page_s:.1f} s, {page_cpu_s:.1f} s of processors")
        table_s, table_cpu_s, *_ = sorted(measure(SHOW, few) for _ in range(5))[2]
        print(f"table of 100 runs: {table_s:.2f} s, {table_cpu_s:.2f} s of processor time")


def measure(statement: str, folder: Path) -> list[float]:
    """Return (seconds, processor seconds, peak bytes of the process, peak bytes of its largest child)."""
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
