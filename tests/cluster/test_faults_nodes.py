"""Nodes that die under a job: the cable of the second is cut, and that of the first, where the job's program runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.core.result import Result
from tests.cluster import processes
from tests.cluster.cluster import Cluster
from tests.cluster.fault_cases import JOB_LIMIT_S, Program, case, cases, started
from tests.cluster.fault_cases import no_job_left as no_job_left

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.usefixtures("no_job_left")]
NODES = "--noheader", "--Node", "--partition=main", "--format=%T"


def test_a_node_that_dies_is_a_row_and_its_return_brings_the_next(cluster: Cluster, tmp_path: Path) -> None:
    """Four ranks on two nodes. The program waits on the head, which sees the other nodes still."""
    told = {
        "second": case("second", gpus=4, lasting=True),
        "first": case("first", gpus=4, lasting=True),
        "good": case("good", gpus=4),
    }
    with started(cluster, tmp_path / "sweep", *cases(tmp_path / "cases", **told)) as program:
        rows = [_lose(program, cluster, 0, cluster.nodes[1]), _lose(program, cluster, 1, cluster.nodes[0])]
        status, said = program.ended()
        rows.append(program.row(2))
        rows[:2] = [program.row(0), program.row(1)]  # with SLURM's word
    assert [row.status for row in rows] == ["failed", "failed", "ok"], said
    for row in rows[:2]:
        assert row.scheduler is not None and row.scheduler.state == "NODE_FAIL"
        assert row.reason == f"SLURM job {row.scheduler.job_id} lost a node (NODE_FAIL): node[1-2]"
        assert row.scheduler.nodes == cluster.nodes
    assert status == 1, said


def _lose(program: Program, cluster: Cluster, number: int, node: str) -> Result:
    job = program.working(number, 4)
    cluster.cut(node)
    try:
        program.until(number, "NODE_FAIL")
        return program.until_row(number)
    finally:
        cluster.mend(node)
        processes.until(lambda: "down*" not in cluster.slurm("sinfo", *NODES), JOB_LIMIT_S, f"{node} after job {job}")
