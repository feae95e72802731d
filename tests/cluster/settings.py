"""The settings of a test cluster: its folder, nodes and links. They are stored in the folder for later commands."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "SCALEBENCH_TESTCLUSTER"
SETTINGS_FILE = "settings.json"
HEAD = "head"
SWITCH = "switch"
# A Unix socket's path ends at 107 bytes, and munge's lies in the folder.
LONGEST_FOLDER = 107 - len("/munge.socket.lock")


class ClusterError(Exception):
    """Why there is no cluster, or not the one that was asked for, in one line."""


@dataclass(frozen=True)
class Settings:
    """Nodes pretend to have `cpus` processors, `memory_mib` of memory and `gpus` GPUs, whatever the machine has."""

    folder: Path
    nodes: int = 2
    cpus: int = 2
    gpus: int = 2
    memory_mib: int = 6000
    rate: str = "1gbit"  # of each node's link, both ways, as tc writes it; "none": as fast as the machine copies
    accounting: bool = True

    @property
    def node_names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    @property
    def hosts(self) -> list[str]:
        """All that have an address: the head, where the controller runs, and the nodes."""
        return [HEAD, *self.node_names]

    def address(self, host: str) -> str:
        return f"10.77.0.{10 + self.hosts.index(host)}"  # in a network of its own: the same for every cluster

    def write(self) -> None:
        words = {**dataclasses.asdict(self), "folder": str(self.folder)}
        (self.folder / SETTINGS_FILE).write_text(json.dumps(words, indent=2) + "\n")


def usual_folder() -> Path:
    return Path(tempfile.gettempdir()).resolve() / "scalebench-testcluster"


def chosen_folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or usual_folder()).resolve()


def from_environment(folder: Path) -> Settings:
    """Settings of `make cluster-up NODES=3 RATE=100mbit ACCOUNTING=no`."""
    usual = Settings(folder)
    try:
        nodes, cpus = int(os.environ.get("NODES", usual.nodes)), int(os.environ.get("CPUS", usual.cpus))
    except ValueError as error:
        raise ClusterError(f"NODES and CPUS are numbers: {error}") from None
    if not 1 <= nodes <= 99:
        raise ClusterError(f"NODES={nodes}: a cluster has 1 to 99 nodes here")
    accounting = os.environ.get("ACCOUNTING", "yes") not in ("no", "0", "false")
    return Settings(folder, nodes, cpus, rate=os.environ.get("RATE", usual.rate), accounting=accounting)


def read_settings(folder: Path) -> Settings | None:
    """Those of the cluster in `folder`; None where there is none."""
    try:
        words = json.loads((folder / SETTINGS_FILE).read_text())
    except FileNotFoundError:
        return None
    return Settings(**{**words, "folder": Path(words["folder"])})
