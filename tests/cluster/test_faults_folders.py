"""Folders that some or all nodes cannot access, and a folder that two programs use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scalebench.core.result import Result, read_result
from tests.cluster.cluster import Cluster
from tests.cluster.fault_cases import LASTING, SHORT, run, started
from tests.cluster.fault_cases import no_job_left as no_job_left
from tests.cluster.settings import HEAD

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.usefixtures("no_job_left")]


@pytest.fixture
def unshared(cluster: Cluster) -> Iterator[Path]:
    """A folder that is another one on each host."""
    folder = cluster.unshared / "results"
    yield folder
    for host in (HEAD, *cluster.nodes):
        cluster.on(host, "rm", "-rf", str(folder))


def test_a_folder_that_no_node_sees(cluster: Cluster, tmp_path: Path, unshared: Path) -> None:
    """The program is on the head, and its results would be there."""
    status, said = run(cluster, unshared, *SHORT, "--multirun", "gpus=1,4", host=HEAD)
    rows = [_copied(cluster, HEAD, unshared / str(number), tmp_path) for number in range(2)]
    assert [row.status for row in rows] == ["failed", "failed"], said
    for number, row in enumerate(rows):
        assert (row.reason or "").endswith(
            f" and left nothing in {unshared / str(number)}: the nodes do not see this folder; "
            "set hydra.sweep.dir (or hydra.run.dir) to one that they share"
        ), row.reason
    assert status == 1


def test_a_folder_that_one_node_does_not_see(cluster: Cluster, tmp_path: Path, unshared: Path) -> None:
    """The program is on the first node, and so is the job's. There SLURM's commands are the system's own."""
    first, second = cluster.nodes
    words = [*SHORT, "gpus=4", "hardware.slurm.bin=null"]
    variables = {"SLURM_CONF": str(cluster.folder / "etc" / "slurm.conf")}
    status, said = run(cluster, unshared, *words, host=first, variables=variables)
    row = _copied(cluster, first, unshared, tmp_path)
    assert row.status == "failed", said
    assert (row.reason or "").startswith(f"{second} cannot read {unshared / 'spec.json'}"), row.reason
    assert "a file system that all its hosts share" in (row.reason or "")
    assert status == 1


def test_two_sweeps_in_one_folder(cluster: Cluster, tmp_path: Path) -> None:
    """The second is refused, and harms nothing; one in another folder runs beside the first."""
    sweep = tmp_path / "sweep"
    with started(cluster, sweep, *LASTING, "--multirun", "gpus=2") as first:
        job = first.working(0, 2)
        before = sorted(path.name for path in (sweep / "0").iterdir())
        status, said = run(cluster, sweep, *SHORT, "--multirun", "gpus=1")
        assert (status, len(said.splitlines())) == (2, 1), said
        assert f"uses {sweep}; wait for its end, or choose another folder" in said
        assert before == sorted(path.name for path in (sweep / "0").iterdir())
        status, said = run(cluster, tmp_path / "another", *SHORT, "--multirun", "gpus=1")
        assert (status, read_result(tmp_path / "another" / "0" / "result.json").status) == (0, "ok"), said
        assert first.until(0, "RUNNING") == job
        cluster.slurm("scancel", job)
        status, said = first.ended()
        assert (status, first.row(0).status) == (1, "cancelled"), said


@pytest.mark.parametrize("sweep", [False, True])
def test_a_job_that_was_left_behind_is_not_spoilt(cluster: Cluster, tmp_path: Path, sweep: bool) -> None:
    """Its program was killed. The same words are refused, and wait for it with resume=true."""
    folder, words = tmp_path / "left", [*LASTING, "gpus=2", *(["--multirun"] if sweep else [])]
    number = 0 if sweep else None
    with started(cluster, folder, *words) as first:
        job = first.working(number, 2)
        first.process.kill()
    status, said = run(cluster, folder, *words)
    assert (status, len(said.splitlines())) == (2, 1), said
    assert f"job {job} of" in said and "resume=true" in said
    with started(cluster, folder, *words, "resume=true") as again:
        again.until_said("1 running")
        assert again.job(number) == job
        cluster.slurm("scancel", job)
        status, said = again.ended()
        row = again.row(number)
        assert (status, row.status) == (1, "cancelled"), said
        assert row.scheduler is not None and row.scheduler.job_id == job


def _copied(cluster: Cluster, host: str, folder: Path, tmp_path: Path) -> Result:
    """The row that is to be seen on that host only."""
    copy = tmp_path / "copied.json"
    copy.write_text(cluster.on(host, "cat", str(folder / "result.json")))
    return read_result(copy)
