"""The interface of the test cluster for tests; and `cluster`, one of the session's own, for tests with the marker
`cluster`."""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cluster import hosts
from tests.cluster.daemons import down
from tests.cluster.settings import FOLDER_VARIABLE, ClusterError, Settings, obstacle, read_settings

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 180.0
PREFIX = "scalebench-testcluster-of-"


@dataclass(frozen=True)
class Cluster:
    """A running cluster. Nodes are named as in `nodes`; all of them and the machine share every folder but one."""

    settings: Settings

    @classmethod
    def start(cls, folder, **variables):
        """As make cluster-up does it; `variables` such as NODES="3"."""
        _call("up", folder, variables)
        settings = read_settings(folder)
        if settings is None:
            raise ClusterError(f"there is no cluster in {folder}")
        return cls(settings)

    def stop(self):
        _call("down", self.folder, {})

    @property
    def folder(self):
        return self.settings.folder

    @property
    def bin(self):
        """sbatch and the others, for the shell of the machine."""
        return self.folder / "bin"

    @property
    def bin_nosacct(self):
        """The same commands, as where there is no accounting."""
        return self.folder / "bin-nosacct"

    @property
    def nodes(self):
        return self.settings.node_names

    @property
    def unshared(self):
        """A folder that is another one on each host, and on the machine."""
        return self.folder / "unshared"

    @property
    def environment(self):
        """Variables of a `python -m scalebench hardware=testcluster`."""
        return {**os.environ, FOLDER_VARIABLE: str(self.folder)}

    def slurm(self, name, *words, limit_s=60.0, cwd=None):
        """What a command of SLURM says, such as `cluster.slurm("squeue", "-h")`. ClusterError where it fails."""
        done = subprocess.run(
            [str(self.bin / name), *words], capture_output=True, text=True, timeout=limit_s, cwd=cwd, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"{name} ends with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def node_states(self):
        return self.slurm("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split()

    def on(self, host, *words, limit_s=30.0):
        """What a command on a node, or on the head, says, outside any job."""
        return hosts.on(self.folder, host, *words, limit_s=limit_s)

    def cut(self, node):
        hosts.cut(self.settings, node)

    def mend(self, node):
        hosts.mend(self.settings, node)

    def clock(self, node, offset_s):
        """Have the tasks that start on a node from now on see a clock that is ahead by so much; 0 puts it right."""
        hosts.shift_clock(self.folder, node, offset_s)


def _call(command, folder, variables):
    """In a process of its own: what it starts is no child of ours."""
    environment = {**os.environ, **variables, FOLDER_VARIABLE: str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster", command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode != 0:
        raise ClusterError(done.stderr.strip() or f"cluster-{command} ends with {done.returncode}")


@contextmanager
def temporary_cluster(**variables):
    """In a folder outside of pytest's: sockets want short names. Skips where there can be none."""
    if (reason := obstacle(variables.get("ACCOUNTING") != "no")) is not None:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")).resolve()
    try:
        yield Cluster.start(folder, **variables)
    finally:
        down(folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster():
    """Two nodes."""
    clear_left()
    with temporary_cluster(NODES="2", RATE="1gbit", ACCOUNTING="yes") as made:
        yield made


def clear_left():
    """Stop clusters of sessions that were killed: their folders carry the number of a process that is gone."""
    for folder in Path(tempfile.gettempdir()).resolve().glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            down(folder)
            shutil.rmtree(folder, ignore_errors=True)
