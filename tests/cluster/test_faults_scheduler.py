"""A scheduler with less information: no accounting, a short memory of the queue, a controller that is lost or down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import processes
from tests.cluster.cluster import Cluster
from tests.cluster.fault_cases import JOB_LIMIT_S, LASTING, SHORT, run, started
from tests.cluster.fault_cases import no_job_left as no_job_left

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.usefixtures("no_job_left")]
# Jobs that are over are in no queue, as some minutes later everywhere.
FORGETS = '#!/bin/bash\nexec {bin}/squeue "${{@/#--states=all/--states=PD,R,CF}}"\n'
NOTHING = '#!/bin/sh\n[ "$*" = "--oneliner show job" ] || exec {bin}/scontrol "$@"\necho "No jobs in the system"\n'


def commands(cluster: Cluster, folder: Path, **other: str) -> Path:
    """SLURM's without sacct, some of them changed."""
    folder.mkdir()
    for path in cluster.bin_nosacct.iterdir():
        if path.name in other:
            (folder / path.name).write_text(other[path.name])
            (folder / path.name).chmod(0o755)
        else:
            (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.parametrize("forgotten", ["nothing", "by the queue", "by all"])
def test_a_killed_job_is_not_waited_for_without_accounts(cluster: Cluster, tmp_path: Path, forgotten: str) -> None:
    """All of its processes are killed at once, so that none leaves a word."""
    squeue, scontrol = FORGETS.format(bin=cluster.bin), NOTHING.format(bin=cluster.bin)
    changed = {"nothing": {}, "by the queue": {"squeue": squeue}, "by all": {"squeue": squeue, "scontrol": scontrol}}
    bin = commands(cluster, tmp_path / "bin", **changed[forgotten])
    with started(cluster, tmp_path / "run", *LASTING, "gpus=2", f"hardware.slurm.bin={bin}") as program:
        job = program.working(None, 2)
        cluster.slurm("scancel", "--batch", "--signal=KILL", job)
        status, said = program.ended()
        row = program.row()
    assert (status, row.status) == (1, "failed"), said
    if forgotten == "by all":
        assert row.reason == f"SLURM does not list job {job} any more, and it left no result.json"
    else:
        assert (row.reason or "").startswith(f"SLURM job {job} failed (FAILED, "), row.reason


@pytest.fixture
def away(cluster: Cluster, tmp_path: Path) -> Path:
    """A file; as long as it is there, the commands ask where no controller listens."""
    conf = tmp_path / "slurm.conf"
    told = (cluster.folder / "etc" / "slurm.conf").read_text()
    conf.write_text(f"{told}SlurmctldPort=1\nMessageTimeout=2\n")
    flag = tmp_path / "away"
    flag.touch()
    return flag


def without_controller(cluster: Cluster, tmp_path: Path, flag: Path) -> str:
    changed = {}
    for name in ("sbatch", "squeue", "scontrol", "scancel"):
        text = (cluster.bin / name).read_text()
        assert "export SLURM_CONF=" in text
        # The cluster's own, with another controller in its settings.
        line = next(line for line in text.splitlines() if line.startswith("export SLURM_CONF="))
        changed[name] = text.replace(line, f"{line}\n[ ! -e {flag} ] || export SLURM_CONF={flag.parent}/slurm.conf")
    return f"hardware.slurm.bin={commands(cluster, tmp_path / 'bin', **changed)}"


def test_a_controller_that_is_away_is_a_row_and_the_sweep_ends(cluster: Cluster, tmp_path: Path, away: Path) -> None:
    bin = without_controller(cluster, tmp_path, away)
    words = [*SHORT, "--multirun", "gpus=1,2", bin]
    with started(cluster, tmp_path / "sweep", *words) as program:
        status, said = program.ended()
        rows = [program.row(0), program.row(1)]
    assert [row.status for row in rows] == ["failed", "failed"], said
    for row in rows:
        assert "it could not be submitted: Unable to contact slurm controller" in (row.reason or ""), row.reason
        assert "\n" not in (row.reason or "")
    assert status == 1, said
    away.unlink()
    status, said = run(cluster, tmp_path / "sweep", *words, "resume=true")
    assert status == 0, said


def test_a_controller_that_starts_anew_costs_no_run(cluster: Cluster, tmp_path: Path, away: Path) -> None:
    """It is away when jobs are submitted, and again while they run."""
    bin = without_controller(cluster, tmp_path, away)
    words = [*SHORT, "measure.max_s=15", "measure.min_s=15", "strategy.options.step_s=0.02", bin]
    with started(cluster, tmp_path / "run", *words) as program:
        processes.until((tmp_path / "run" / "slurm" / "job.sh").exists, JOB_LIMIT_S, "the job's script")
        away.unlink()
        program.working(None, 1)
        away.touch()
        status, said = program.ended()
        row = program.row()
    away.unlink()
    assert (status, row.status, row.reason) == (0, "ok", None), said
