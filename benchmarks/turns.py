"""Taking turns: the idle time between two slots, and what parked processes and the parent use of the cores."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.runner.parent import RunRequest
from scalebench.sweeps.cohort import Cohort, Member
from scalebench.workloads import datasets

STRATEGIES = (
    "simulated", "ddp_gloo", "lightning_ddp_gloo", "fsdp_gloo", "pipeline_1f1b", "horovod_gloo", "horovod_mpi",
    "mirrored", "multiworker_ring", "parameter_server",
)  # fmt: skip
PARKED_S = 10.0
SETTINGS = (
    "gpus=2", "dataset.size=4000", "measure.probes=false", "measure.evaluate=false", "measure.warmup_steps=10",
    "measure.warmup_max_s=3", "measure.block_s=0.02", "measure.min_s=4", "measure.max_s=6",
)  # fmt: skip


def main() -> None:
    strategies = [name for name in STRATEGIES if (spec := _spec(name)).can_start and datasets.prepare(spec.config)]
    print(f"CPU time of a parked run of two ranks over {PARKED_S:g} s, and its handing over to a simulated run")
    for name in strategies:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name:22s} {_describe(name, Path(folder))}", flush=True)


def _spec(strategy: str) -> RunSpec:
    return resolve(compose_config([f"strategy={strategy}", *SETTINGS]))


def _describe(strategy: str, folder: Path) -> str:
    runs = [
        RunRequest(number, _spec(name), folder / str(number)) for number, name in enumerate(("simulated", strategy))
    ]
    cohort = ParkedCohort(runs, lambda progress: None)
    results = [result for _, result in cohort.run()]
    if {result.status for result in results} != {"ok"}:
        return "; ".join(str(result.reason) for result in results)
    gaps_s = _gaps_s([result.ranks[0] for result in results])
    return (
        f"parked {cohort.parked_cpu_s:.2f} s, idle between slots {1e3 * statistics.median(gaps_s):.1f} ms (at most "
        f"{1e3 * max(gaps_s):.1f}), parent {cohort.parent_share:.1%} of a core during the rounds"
    )


class ParkedCohort(Cohort):
    """A cohort whose runs all stay parked for a while before their first round."""

    parked_cpu_s = parent_share = 0.0

    def _do_rounds(self, members: list[Member]) -> None:
        ranks = psutil.Process().children(recursive=True)
        before_s = _cpu_s(ranks)
        time.sleep(PARKED_S)
        self.parked_cpu_s = _cpu_s(ranks) - before_s
        begin_s, begin_cpu_s = time.monotonic(), time.process_time()
        super()._do_rounds(members)
        self.parent_share = (time.process_time() - begin_cpu_s) / (time.monotonic() - begin_s)


def _cpu_s(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes if process.is_running()]
    return sum(each.user + each.system for each in times)


def _gaps_s(ranks: list[RankRecord]) -> list[float]:
    """Return the seconds from the last step of a slot to the first one of the next slot, which is another run's.

    The first block of a slot is not kept; it counts as long as the others of its run.
    """
    slots = []
    for rank in ranks:
        blocks = zip(rank.block_rounds, rank.block_started_at_s, rank.block_s, strict=True)
        for _, group in itertools.groupby(blocks, key=lambda block: block[0]):
            slot = list(group)
            slots.append((slot[0][1] - statistics.median(rank.block_s), slot[-1][1] + slot[-1][2], rank.pid))
    slots.sort()
    return [b[0] - a[1] for a, b in itertools.pairwise(slots) if a[2] != b[2]]


if __name__ == "__main__":
    main()
