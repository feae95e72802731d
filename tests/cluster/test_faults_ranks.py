"""A rank on the second node that takes too much memory, or is killed; and a killed parent in the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fault_cases import Program, case, cases, started
from tests.cluster.fault_cases import no_job_left as no_job_left

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.usefixtures("no_job_left")]
GREEDY = 'import os\nif os.environ.get("RANK") == "3":\n    kept = b"x" * 600_000_000\n'
MEMORY, WORKER, KEEPER, PARENT, GOOD = range(5)
ROOT = Path(__file__).resolve().parents[2]


def test_the_reason_of_killed_ranks_is_reported_and_other_runs_go_on(cluster: Cluster, tmp_path: Path) -> None:
    """Four ranks on two nodes."""
    (tmp_path / "greedy").mkdir()
    (tmp_path / "greedy" / "sitecustomize.py").write_text(GREEDY)
    path = f', PYTHONPATH: "{tmp_path}/greedy:{ROOT}"'
    told = {
        "memory": case("memory", gpus=4, lasting=True, slurm="memory: 400M", variables=path),
        "worker": case("worker", gpus=4, lasting=True),
        "keeper": case("keeper", gpus=4, lasting=True),
        "parent": case("parent", gpus=4, lasting=True, slurm="memory: 20M"),  # it takes more itself
        "good": case("good", gpus=4),
    }
    with started(cluster, tmp_path / "sweep", *cases(tmp_path / "cases", **told)) as program:
        program.working(WORKER, 4)
        cluster.on("node2", "kill", "-KILL", str(_pids(program, WORKER, 3)["worker"]))
        program.working(KEEPER, 4)
        cluster.on("node2", "kill", "-KILL", str(_pids(program, KEEPER, 3)["keeper"]))
        status, said = program.ended()
        rows = [program.row(number) for number in range(5)]
    assert [row.status for row in rows] == ["oom", "failed", "failed", "oom", "ok"], said
    step = rows[MEMORY].scheduler
    assert step is not None and f"SLURM: StepId={step.job_id}.0 exceeded memory limit" in str(rows[MEMORY].reason)
    assert rows[WORKER].reason == "rank 3 was killed by SIGKILL"
    assert rows[KEEPER].reason == "rank 3 was killed by SIGKILL"
    batch = rows[PARENT].scheduler
    assert batch is not None and f"StepId={batch.job_id}.batch exceeded memory limit" in str(rows[PARENT].reason)
    assert rows[PARENT].log == "job.log"
    assert all(rank.hostname == node for rank, node in zip(rows[GOOD].ranks, _nodes(cluster), strict=True))
    assert status == 1, said


def _pids(program: Program, number: int, rank: int) -> dict[str, object]:
    """Of a rank and its keeper, in the numbers of their node."""
    found: dict[str, object] = json.loads((program.folder / str(number) / f"pid{rank}.json").read_text())
    return found


def _nodes(cluster: Cluster) -> list[str]:
    return [node for node in cluster.nodes for _ in range(2)]
