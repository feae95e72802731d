"""The settings of a test cluster: its folder, nodes and links. They are stored in the folder for later
commands. And what a test cluster requires of this machine."""

import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "SCALEBENCH_TESTCLUSTER"
SETTINGS_FILE = "settings.json"
COUNTS = ("nodes", "cpus", "threads", "gpus")
HEAD = "head"
SWITCH = "switch"
# A Unix socket's path ends at 107 bytes, and munge's lies in the folder.
LONGEST_FOLDER = 107 - len("/munge.socket.lock")


class ClusterError(Exception):
    """Why there is no cluster, or not the one that was asked for, in one line."""


@dataclass(frozen=True)
class Settings:
    """Nodes pretend to have `cpus` processors, `threads` of them on each core, `memory_mib` of memory and `gpus` GPUs,
    whatever the machine has."""

    folder: Path
    nodes: int = 2
    cpus: int = 2
    threads: int = 1
    gpus: int = 2
    memory_mib: int = 6000
    rate: str = "1gbit"  # of each node's link, both ways, as tc writes it; "none": as fast as the machine copies
    accounting: bool = True

    @property
    def node_names(self):
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    @property
    def hosts(self):
        """All that have an address: the head, where the controller runs, and the nodes."""
        return [HEAD, *self.node_names]

    def address(self, host):
        return f"10.77.0.{10 + self.hosts.index(host)}"  # in a network of its own: the same for every cluster

    def write(self):
        words = {**dataclasses.asdict(self), "folder": str(self.folder)}
        (self.folder / SETTINGS_FILE).write_text(json.dumps(words, indent=2) + "\n")


def usual_folder():
    return Path(tempfile.gettempdir()).resolve() / "scalebench-testcluster"


def chosen_folder():
    return Path(os.environ.get(FOLDER_VARIABLE) or usual_folder()).resolve()


def from_environment(folder):
    """Settings of `make cluster-up NODES=3 RATE=100mbit ACCOUNTING=no`."""
    usual = Settings(folder)
    try:
        counts = {name: int(os.environ.get(name.upper(), getattr(usual, name))) for name in COUNTS}
    except ValueError as error:
        raise ClusterError(f"{', '.join(map(str.upper, COUNTS))} are numbers: {error}") from None
    nodes = counts["nodes"]
    if not 1 <= nodes <= 99:
        raise ClusterError(f"NODES={nodes}: a cluster has 1 to 99 nodes here")
    accounting = os.environ.get("ACCOUNTING", "yes") not in ("no", "0", "false")
    return Settings(folder, **counts, rate=os.environ.get("RATE", usual.rate), accounting=accounting)


def read_settings(folder):
    """Those of the cluster in `folder`; None where there is none."""
    try:
        words = json.loads((folder / SETTINGS_FILE).read_text())
    except FileNotFoundError:
        return None
    return Settings(**{**words, "folder": Path(words["folder"])})


# Program and the Debian package that brings it.
PROGRAMS = {
    "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge", "ip": "iproute2",
    "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux",
}  # fmt: skip
ACCOUNTING_PROGRAMS = {
    "slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server",
    "mariadb-admin": "mariadb-client", "sacctmgr": "slurm-client",
}  # fmt: skip


def obstacle(accounting=True):
    """Why there can be no test cluster here, in one line; None where there can."""
    wanted = {**PROGRAMS, **(ACCOUNTING_PROGRAMS if accounting else {})}
    missing = [name for name in wanted if shutil.which(name) is None]
    if missing:
        packages = " ".join(sorted({wanted[name] for name in missing}))
        return (
            f"the test cluster needs {', '.join(missing)}: make test-all (scripts/install_slurm.sh) installs {packages}"
        )
    if os.geteuid() != 0:
        return "the test cluster needs root, for namespaces and their network"
    words = "unshare --net --uts --ipc --mount --pid --fork --mount-proc ip link add bridge type bridge"
    tried = subprocess.run(words.split(), capture_output=True, text=True, timeout=20)
    if tried.returncode != 0:
        return f"the test cluster needs namespaces with bridges, not allowed here: {' '.join(tried.stderr.split())}"
    return None
