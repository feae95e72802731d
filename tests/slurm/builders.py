"""Runs on clusters that do not exist, and shell scripts that stand in for the commands of SLURM."""

import math
from pathlib import Path

from scalebench.cluster import submit
from scalebench.cluster.commands import Slurm
from scalebench.core.spec import HardwareSpec, SlurmSpec, StrategySpec
from tests.builders.configs import make_spec

FOLDER = Path("/scratch/user/sweep/3")
ROLES = {"roles": {"chief": 1, "ps": 1, "worker": "gpus"}}
CPU_NODES = {
    "name": "cluster", "devices": "cpu", "gpus_per_node": 2, "cpus_per_node": 8, "max_nodes": 4, "this_machine": False,
    "scheduler": "slurm",
}  # fmt: skip
GPU_NODES = CPU_NODES | {"devices": "cuda", "gpus_per_node": 8, "cpus_per_node": 48}


# As SLURM 22.05 prints it, but for the names.
SINFO = """\
taurusi8001|alpha|mixed|96|2:24:2|990000|gpu:8(S:0-1)|7-00:00:00|(null)
taurusi8002|alpha|idle~|96|2:24:2|990000|gpu:8(S:0-1)|7-00:00:00|(null)
taurusi8003|alpha|down*|96|2:24:2|990000|gpu:8(S:0-1)|7-00:00:00|(null)
h1|main*|idle|8|1:8:1|8000|gpu:a100:2,nvme:1|1:00:00|ssd,big
h2|main*|drained|8|1:8:1|8000|gpu:a100:2|1:00:00|ssd
"""


def run(gpus, nodes=None, strategy=None, **slurm):
    """Make a run of the simulated strategy on `nodes`; `slurm` are keys of hardware.slurm."""
    hardware = HardwareSpec(**(CPU_NODES | (nodes or {})), slurm=SlurmSpec(**slurm))
    return make_spec(gpus=gpus, hardware=hardware, strategy=StrategySpec("simulated", **(strategy or {})))


class Tools:
    """A folder of commands, each of which appends its arguments to NAME.calls, one line per call."""

    def __init__(self, folder):
        self.folder = folder / "slurm bin"
        self.folder.mkdir()
        self.slurm = Slurm(str(self.folder))

    def put(self, name, out="", err="", code=0, then=""):
        for stream, text in (("out", out), ("err", err)):
            (self.folder / f"{name}.{stream}").write_text(text)
        path = self.folder / name
        path.write_text(
            f'#!/bin/sh\nhere="{self.folder}"\necho "$*" >> "$here/{name}.calls"\n{then}\n'
            f'cat "$here/{name}.out"; cat "$here/{name}.err" >&2; exit {code}\n'
        )
        path.chmod(0o755)

    def calls(self, name):
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def environment(self):
        """Return what a command wrote by `env > "$here/env"`."""
        lines = (self.folder / "env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


def render(spec, folder):
    """Return the script of a job of this run alone, of whose length nothing is known."""
    return submit.render_script([spec], folder, [math.inf])
