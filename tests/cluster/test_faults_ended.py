"""Jobs that end from outside: cancelled while running or pending, out of time, preempted."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fault_cases import case, cases, started
from tests.cluster.fault_cases import no_job_left as no_job_left

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.usefixtures("no_job_left")]
CANCELLED, LATE, LOW, WAITING, GOOD = range(5)


def test_every_end_from_outside_has_its_row_and_the_rest_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """Each job fills a node."""
    told = {
        "cancelled": case("cancelled", gpus=2, lasting=True),
        "late": case("late", gpus=2, lasting=True),
        "low": case("low", gpus=2, lasting=True, slurm="partition: low"),
        "waiting": case("waiting", gpus=2, lasting=True, slurm='lines: ["--begin=now+600"]'),
        "good": case("good", gpus=2),
    }
    with started(cluster, tmp_path / "sweep", *cases(tmp_path / "cases", **told)) as program:
        cluster.slurm("scancel", program.working(CANCELLED, 2))
        cluster.slurm("scancel", program.until(WAITING, "PENDING"))
        late = program.working(LATE, 2)
        soon = datetime.now() + timedelta(seconds=4)  # that SLURM rounds a limit up to a minute is no matter here
        cluster.slurm("scontrol", "update", f"JobId={late}", f"EndTime={soon:%Y-%m-%dT%H:%M:%S}")
        low = program.working(LOW, 2)
        cluster.slurm("srun", "--partition=main", "--nodes=2", "--ntasks-per-node=2", "true", limit_s=120.0)
        status, said = program.ended()
        rows = [program.row(number) for number in range(5)]
    assert [row.status for row in rows] == ["cancelled", "timeout", "cancelled", "cancelled", "ok"], said
    assert "was cancelled" in str(rows[CANCELLED].reason) and "CANCELLED" in str(rows[CANCELLED].reason)
    assert "was cancelled" in str(rows[WAITING].reason) and "CANCELLED" in str(rows[WAITING].reason)
    assert f"SLURM job {late} ran out of its time limit" in str(rows[LATE].reason)
    assert rows[LOW].reason == f"SLURM job {low} was preempted: it had to make room for another job (PREEMPTED)"
    schedulers = [row.scheduler for row in rows]
    states = [None if each is None else each.state for each in schedulers]
    assert states[:4] == ["CANCELLED", "TIMEOUT", "PREEMPTED", "CANCELLED"]
    nodes = [None if each is None else len(each.nodes) for each in schedulers]
    assert nodes == [1, 1, 1, 0, 1]
    assert status == 1, said
