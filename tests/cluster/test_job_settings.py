"""The settings of a job: set-up lines, options, the starter of MPI ranks, an image; and facts of its nodes."""

import subprocess
import sys

import pytest

from scalebench.core.process import NODE_AGENT
from tests.builders.launching import NEEDS_MPIRUN

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
# In place of Apptainer, which is not in the distribution: shows its words, and runs the rest on the node itself.
STAND_IN = """\
#!/bin/sh
echo "$@" >>{log}
while [ "$1" != {image} ]; do shift; done
shift
IN_IMAGE=yes exec "$@"
"""


def row(program, text, status=0):
    done = program.run(f"{text} baseline=none")
    assert (done.status, done.err) == (status, ""), done.out
    (found,) = program.rows().values()
    return found


@NEEDS_MPIRUN
@pytest.mark.real
@pytest.mark.horovod
@pytest.mark.parametrize("gpus", [3, 4])
def test_srun_starts_ranks_of_mpi(gpus, program):
    words = [str(program.cluster.bin / "srun"), "--mpi=list"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if "pmix" not in said.stdout + said.stderr:
        pytest.skip("this SLURM has no plugin for PMIx")
    found = row(program, f"strategy=horovod_mpi gpus={gpus} hardware.slurm.mpi=pmix")
    assert (found.status, found.reason, found.scale.backend_used) == ("ok", None, "mpi")
    first, second = program.cluster.nodes
    assert [rank.hostname for rank in found.ranks] == [first, first, second, second][:gpus]
    assert not (program.sweep / "0" / "mpirun.log").exists()


def test_setup_lines_and_options_take_effect(program):
    words = """hardware.slurm.setup='["export NCCL_DEBUG=WARN"]' hardware.slurm.lines='["--comment=words of mine"]'"""
    found = row(program, f"strategy=simulated gpus=4 {words}")
    assert found.status == "ok" and found.machine.environment["NCCL_DEBUG"] == "WARN"
    (job,) = program.ids()
    assert "Comment=words of mine" in program.cluster.slurm("scontrol", "show", "job", job)


def test_a_yaml_written_from_what_slurm_says_runs(program):
    words = ["new", "hardware", "mine", "--partition", "main", "--cpu", "--bin", str(program.cluster.bin)]
    command = [sys.executable, "-m", "scalebench", *words]
    subprocess.run(command, cwd=program.folder, env=program.environment, timeout=60, check=True)
    found = row(program, f"--config-dir {program.folder} hardware=mine strategy=simulated gpus=2")
    assert (found.status, found.scale.nodes, found.scale.hardware) == ("ok", 2, "mine")
    slurm = found.spec["hardware"]["slurm"]
    assert (slurm["partition"], slurm["time_minutes"], slurm["exclusive"]) == ("main", 60, True)


def test_options_of_the_step_take_effect(program):
    found = row(program, """strategy=simulated gpus=4 hardware.slurm.srun='["--no-such-option"]'""", status=1)
    assert found.status == "failed" and "no-such-option" in (found.reason or ""), found.reason


@pytest.mark.real
def test_ranks_run_in_an_image(program):
    """In a stand-in for Apptainer: that it is asked for the right thing, and that what it starts works."""
    image, log = program.folder / "torch.sif", program.folder / "apptainer.calls"
    command = program.bin / "apptainer"
    command.write_text(STAND_IN.format(log=log, image=image))
    command.chmod(0o755)
    settings = f"container={image}", f"container_python={sys.executable}", """container_mounts='["/opt:/opt"]'"""
    settings += (f"""setup='["export PATH={program.bin}:$PATH"]'""",)
    words = " ".join(f"hardware.slurm.{setting}" for setting in settings)
    found = row(program, f"strategy=ddp_gloo gpus=4 {words}")
    assert (found.status, found.reason) == ("ok", None)
    calls = log.read_text().splitlines()
    folder = program.sweep / "0"
    mounts = f"{folder}:{folder},{program.cache}:{program.cache},/opt:/opt"
    assert len(calls) == 2, "an agent on each node"
    for call in calls:
        command = f"exec --bind {mounts} {image} {sys.executable} -P -m {NODE_AGENT} "
        assert call.startswith(command) and call.endswith(" --node SLURMD_NODENAME")
