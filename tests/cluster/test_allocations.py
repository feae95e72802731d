"""Runs inside an existing allocation: ranks start as its job steps, and nothing is submitted."""

import shlex
import subprocess

import pytest

from tests.builders.launching import NEEDS_MPIRUN
from tests.cluster.program import LIMIT_S, Done

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.real, pytest.mark.horovod, NEEDS_MPIRUN]
STRATEGIES = ("ddp_gloo", "horovod_mpi", "simulated")


def shell(program, text):
    """The command line that somebody types."""
    return shlex.join(program.words(text))


def in_salloc(program, options, text):
    """From the shell that salloc gives, which stands on the head: no rank does."""
    done = subprocess.run(
        [str(program.cluster.bin / "salloc"), *options.split(), "sh", "-c", f"hostname >&2; {shell(program, text)}"],
        cwd=program.folder, env=program.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not line.startswith("salloc: ")]
    assert lines[:1] == ["head"]
    return Done(done.returncode, done.stdout, "\n".join(lines[1:]), 0.0)


def checked(program, rows):
    """Each run that went well within one job, on its nodes."""
    assert not program.ids() and not program.calls("sbatch")
    for row in rows.values():
        assert (row.scale.strategy, row.status, row.reason) == (row.scale.strategy, "ok", None)
        assert row.scheduler is not None and row.scheduler.job_id == rows[0].scheduler.job_id
        assert (row.scheduler.nodes, row.scheduler.queued_s) == (program.cluster.nodes[: row.scale.nodes], None)
        filled = [node for node in program.cluster.nodes for _ in range(2)]
        assert [rank.hostname for rank in row.ranks] == filled[: row.scale.gpus]
        told = [row.machine.hostname, *(machine.hostname for machine in row.other_machines or [])]
        assert told == row.scheduler.nodes, "of the nodes, and not of where the program stands"
        yield row.scale.strategy, row.scale.gpus


@pytest.mark.parametrize("options", ["-N2 -n4", "-N2 -n3"])
def test_salloc(options, program):
    """Also where SLURM counts fewer tasks on a node than there are ranks."""
    done = in_salloc(program, f"{options} --overcommit", f"strategy={','.join(STRATEGIES)} gpus=3,4 baseline=none")
    assert (done.status, done.err) == (0, ""), done.out
    assert set(checked(program, program.rows())) == {(name, gpus) for name in STRATEGIES for gpus in (3, 4)}


def test_a_batch_script(program):
    """It stands on the first node."""
    log = program.folder / "script.log"
    words = f"{shell(program, 'strategy=ddp_gloo,horovod_mpi gpus=2,4 baseline=none')}; echo status $? on $(hostname)"
    options = f"--wait --nodes=2 --ntasks-per-node=2 --output={log} --parsable".split()
    said = subprocess.run(
        [str(program.cluster.bin / "sbatch"), *options, f"--wrap={words}"],
        cwd=program.folder, env=program.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert f"status 0 on {program.cluster.nodes[0]}" in log.read_text()
    assert len(list(checked(program, rows := program.rows()))) == 4
    assert {row.scheduler.job_id for row in rows.values() if row.scheduler} == {said.stdout.strip()}


def test_more_nodes_than_it_has(program):
    done = in_salloc(program, "-N1 -n2", "strategy=simulated,horovod_mpi gpus=2,4 baseline=none")
    assert (done.status, done.err) == (0, "")
    lacking = "gpus=4 need 2 nodes, and this job has 1 node; ask for more, or lower gpus"
    told = {(row.scale.gpus, row.status, row.reason) for row in program.rows().values()}
    assert told == {(2, "ok", None), (4, "unsupported", lacking)}
