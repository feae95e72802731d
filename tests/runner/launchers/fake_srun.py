"""A SLURM of shell scripts: srun starts all tasks on this machine, under the node names of the host list."""

from pathlib import Path

import pytest

from scalebench.core.spec import HardwareSpec, SlurmSpec
from tests.builders.runs import simulated_spec

# The srun of a cluster without CPU binding writes it whenever it starts.
NOISE = "srun: cluster configuration lacks support for cpu binding\n"


class StandIn:
    """The commands of SLURM in a job with the nodes n1 and n2."""

    def __init__(self, folder):
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        for name in ("scontrol", "srun"):
            script = Path(__file__).with_name(f"fake_{name}.sh").read_text()
            self.script(name, script.removeprefix("#!/bin/sh\n").format(folder=folder))

    def script(self, name, text):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def spec(self, gpus, per_node=2, **changes):
        """Return a simulated run on its nodes."""
        slurm = SlurmSpec(bin=str(self.bin))
        hardware = HardwareSpec(
            "cpu", devices="cpu", gpus_per_node=per_node, cpus_per_node=per_node, max_nodes=2, bind="none",
            this_machine=False,             scheduler="slurm", slurm=slurm,
        )  # fmt: skip
        spec = simulated_spec(gpus, hardware=hardware, **changes)
        spec.unsupported = None
        return spec

    def step_environment(self):
        """Return the variables of the last srun."""
        return (self.folder / "step_environment.txt").read_text().split()

    def srun_arguments(self):
        """Return the arguments of the last srun."""
        return (self.folder / "srun_arguments.txt").read_text().split()


def variables(monkeypatch, nodes="n[1-2]", tasks="2(x2)"):
    """Set the variables of a job."""
    for name, value in {
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_PARTITION": "main",
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_PROCID": "0",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return a job with stand-ins for the commands of SLURM."""
    variables(monkeypatch)
    (tmp_path / "slurm").mkdir()
    return StandIn(tmp_path / "slurm")
