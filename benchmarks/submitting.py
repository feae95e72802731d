"""The overhead of scalebench for a SLURM job: the same ranks submitted by it, and by a hand-written script.

On the test cluster of `make cluster-up`. Target: under 1 s a run, from the command to the result.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

from scalebench.cluster.commands import Slurm
from scalebench.cluster.submit import submit_job
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.spec import RunSpec, write_spec
from scalebench.runner.jobs import JobFollower, PlannedJob
from scalebench.runner.parent import RunRequest

LAUNCHES = 7
OVERRIDES = (
    "hardware=testcluster strategy=simulated gpus=4 dataset.size=1000 measure=quick measure.min_s=0 measure.max_s=0.2 "
    "measure.evaluate=false measure.probes=false measure.monitor=false"
).split()
BY_HAND = """#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --partition=main --time=10 --output={folder}/job.log
export MASTER_ADDR=$SLURMD_NODENAME MASTER_PORT=27501 WORLD_SIZE=4 SCALEBENCH_RUN_ID=by_hand
srun --cpu-bind=none --cpus-per-task=1 sh -c 'RANK=$SLURM_PROCID exec {python} -m scalebench.runner.worker {folder}'
"""


def main() -> None:
    spec = resolve(compose_config(OVERRIDES))
    if spec.unsupported is not None:
        print(f"not measured: {spec.unsupported} (make cluster-up)")
        return
    slurm = Slurm(spec.config.hardware.slurm.bin)
    scalebench_s: list[float] = []
    by_hand_s: list[float] = []
    for _ in range(LAUNCHES):  # alternating, so that both have the same conditions
        for times_s, submit in ((by_hand_s, by_hand), (scalebench_s, by_scalebench)):
            with tempfile.TemporaryDirectory(prefix="scalebench-") as name:
                times_s.append(submit(spec, slurm, Path(name)))
                _idle(slurm)
    ours_s, hand_s = statistics.median(scalebench_s), statistics.median(by_hand_s)
    print(
        f"by hand {hand_s:.2f} s, by scalebench {ours_s:.2f} s: {ours_s - hand_s:+.2f} s, {ours_s / hand_s:.2f} times",
        flush=True,
    )


def by_scalebench(spec: RunSpec, slurm: Slurm, folder: Path) -> float:
    begin_s = time.monotonic()
    follower = JobFollower(slurm, submit=lambda specs, path: submit_job(specs, path, [math.inf]))
    ((_, result),) = follower.follow([PlannedJob(folder, [[RunRequest(0, spec, folder)]])])
    elapsed_s = time.monotonic() - begin_s
    assert result.status == "ok", result.reason
    return elapsed_s


def by_hand(spec: RunSpec, slurm: Slurm, folder: Path) -> float:
    """Return the seconds until SLURM reports the job as over. The queue is queried far more often than is acceptable
    outside of a benchmark."""
    begin_s = time.monotonic()
    write_spec(spec, folder)
    (folder / "job.sh").write_text(BY_HAND.format(folder=folder, python=sys.executable))
    job_id = slurm.run("sbatch", "--parsable", str(folder / "job.sh")).strip()
    while slurm.run("squeue", "--noheader", "--states=PENDING,RUNNING", f"--jobs={job_id}").strip():
        time.sleep(0.1)
    elapsed_s = time.monotonic() - begin_s
    assert len(list(folder.glob("rank*.json"))) == spec.processes, (folder / "job.log").read_text()
    return elapsed_s


def _idle(slurm: Slurm) -> None:
    while set(slurm.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split()) != {"idle"}:
        time.sleep(0.2)


if __name__ == "__main__":
    main()
