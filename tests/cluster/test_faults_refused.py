"""Jobs that SLURM refuses, or accepts and never starts: unsupported with its reason, and the sweep goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scalebench.core.result import Result, read_result
from tests.cluster.cluster import Cluster
from tests.cluster.fault_cases import case, cases, run
from tests.cluster.fault_cases import no_job_left as no_job_left

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.usefixtures("no_job_left")]

# What sbatch says at once.
REFUSED = {
    "partition": ("partition: nowhere", "invalid partition specified: nowhere; Invalid partition name specified"),
    "kind": ('lines: ["--gpus=tesla:1"]', "Requested node configuration is not available"),
    "gres": ('lines: ["--gpus=99"]', "Requested node configuration is not available"),
    "resource": ('lines: ["--gres-flags=none"]', "Invalid --gres-flags specification"),
    "memory": ("memory: 900G", "Memory specification can not be satisfied"),
    "node": ('lines: ["--nodelist=node77"]', "Invalid node name specified"),
    "option": ('lines: ["--no-such-option=1"]', "unrecognized option '--no-such-option=1'"),
    "licence": ('lines: ["--licenses=none_of_it"]', "Invalid license specification"),
}


@pytest.fixture
def narrow(cluster: Cluster) -> Iterator[None]:
    """Partition `short` gives a job one node."""
    cluster.slurm("scontrol", "update", "PartitionName=short", "MaxNodes=1")
    yield
    cluster.slurm("scontrol", "update", "PartitionName=short", "MaxNodes=UNLIMITED")


def test_a_refusal_of_sbatch_is_a_result_with_its_reason(cluster: Cluster, tmp_path: Path) -> None:
    told = {name: case(name, slurm=slurm) for name, (slurm, _) in REFUSED.items()} | {"good": case("good")}
    status, said = run(cluster, tmp_path / "sweep", *cases(tmp_path / "cases", **told))
    rows = [_row(tmp_path / "sweep", number) for number in range(len(told))]
    assert [row.status for row in rows] == ["unsupported"] * len(REFUSED) + ["ok"], said
    for row, (name, (_, words)) in zip(rows, REFUSED.items(), strict=False):
        assert words in (row.reason or ""), name
        assert "sbatch" not in (row.reason or "") and "\n" not in (row.reason or ""), name
        assert words in said
    assert status == 0, said


def test_a_job_that_would_wait_forever_is_removed_from_the_queue(
    cluster: Cluster, tmp_path: Path, narrow: None
) -> None:
    """A job that waits for its turn stays."""
    told = {
        "nodes": case("nodes", gpus=5, more="gpus_per_node: 1\nmax_nodes: 5"),  # more than there are
        "minutes": case("minutes", slurm="partition: short, time_minutes: 2"),
        "one_node": case("one_node", gpus=3, slurm="partition: short, time_minutes: 1"),
        "turn": case("turn", slurm='lines: ["--begin=now+8"]'),
    }
    status, said = run(cluster, tmp_path / "sweep", *cases(tmp_path / "cases", **told))
    rows = [_row(tmp_path / "sweep", number) for number in range(len(told))]
    assert [row.status for row in rows] == ["unsupported"] * 3 + ["ok"], said
    reasons = [row.reason or "" for row in rows]
    for reason, words in zip(reasons, ("PartitionNodeLimit", "PartitionTimeLimit", "PartitionNodeLimit"), strict=False):
        assert f"cannot start ({words})" in reason or "cannot start (PartitionConfig)" in reason
    assert all(row.scheduler is not None and row.scheduler.job_id.isdigit() for row in rows)
    assert status == 0, said


def _row(folder: Path, number: int) -> Result:
    return read_result(folder / str(number) / "result.json")
