"""Folders, networks and programs that a hardware YAML counts on, beside those of this host, for `scalebench doctor`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from scalebench import system_files
from scalebench.machine import cache_folder
from scalebench.spec import Config, HardwareSpec
from scalebench.verbs.claims import DIFFERS, OK, UNCHECKED, Claim, claim

GB = 10**9
SHARED = (
    "nfs nfs4 lustre gpfs beegfs ceph cephfs glusterfs afs panfs wekafs pvfs2 orangefs ocfs2 gfs2 9p cifs smb3".split()
)
IMAGES = (".sif", ".simg", ".img", ".sqsh", ".squashfs")


def of_node(hardware: HardwareSpec) -> list[Claim]:
    """What each node has to have: a network, an interface, a folder to copy the data to."""
    found = [_between(hardware), _interface(hardware), _stage(hardware)]
    return [line for line in found if line.said != "null" or line.key == "links.inter_node"]


def of_all(config: Config) -> list[Claim]:
    """What this host and the nodes have to have in common."""
    stores = {"folder of results": Path.cwd(), "Python": Path(sys.executable), "scalebench": Path(__file__).parents[1]}
    cache = Path(config.dataset.cache).expanduser() if config.dataset.cache else cache_folder()
    mounts = [(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]
    return [_shared(name, path, mounts) for name, path in {**stores, "data sets": cache}.items()]


def file_system(path: Path, mounts: Sequence[tuple[str, str]]) -> str | None:
    """The type of the file system that a path lies on: of the deepest of the mounts (folder, type) above it."""
    above = [(len(Path(folder).parts), kind) for folder, kind in mounts if path.is_relative_to(folder)]
    return max(above, key=lambda found: found[0])[1] if above else None


def _shared(name: str, path: Path, mounts: Sequence[tuple[str, str]]) -> Claim:
    """That a file system is one of a network is all that one host can tell; that the nodes mount it, a job shows."""
    kind = file_system(path.absolute(), mounts)
    shared = kind in SHARED or (kind or "").startswith("fuse.")
    told = f"{path} on {kind or 'an unknown file system'}"
    note = "" if shared else ": is that a disk of this host only?"
    return Claim(name, "the same on all nodes", told + note, OK if shared else UNCHECKED)


def _between(hardware: HardwareSpec) -> Claim:
    said = hardware.links.get("inter_node")
    ports = infiniband()
    line = claim("links.inter_node", said, ", ".join(ports) or "no InfiniBand port", bool(ports))
    return line if "infiniband" in (said or "").lower() else replace(line, verdict=UNCHECKED)


def infiniband() -> list[str]:
    """Ports of this host and their rates, such as 'mlx5_0 200 Gb/sec (4X HDR)'. RoCE is Ethernet, and left out."""
    ports = sorted(system_files.ROOT.glob("sys/class/infiniband/*/ports/*"))
    mine = [port for port in ports if system_files.read(port, "link_layer").strip() == "InfiniBand"]
    return [f"{port.parts[-3]} {system_files.read(port, 'rate').strip()}".strip() for port in mine]


def _interface(hardware: HardwareSpec) -> Claim:
    names = sorted(psutil.net_if_addrs())
    there = hardware.interface in names
    return claim("interface", hardware.interface, "is there" if there else f"only {' '.join(names)}", there)


def _stage(hardware: HardwareSpec) -> Claim:
    """A folder that is not there will be made."""
    where = Path(os.path.expandvars(hardware.stage or "/")).expanduser()
    if "$" in str(where):
        return Claim("stage", hardware.stage or "null", "names a variable that is not set here", UNCHECKED)
    above = next(folder for folder in (where, *where.absolute().parents) if folder.exists())
    usable = above.is_dir() and os.access(above, os.W_OK)
    state = f"{shutil.disk_usage(above).free / GB:,.0f} GB free" if usable else f"{above} cannot be written to"
    return claim("stage", hardware.stage, state if above == where or not usable else f"to be made, {state}", usable)


def container(hardware: HardwareSpec) -> list[Claim]:
    """The image of the ranks: a file that can be read here, or an address, which a node fetches."""
    image = hardware.slurm.container
    if image is None:
        return []
    path = Path(image).expanduser()
    if "://" in image or not (path.is_absolute() or path.suffix in IMAGES):
        return [Claim("slurm.container", image, "an address, which the nodes fetch", UNCHECKED)]
    readable = path.exists() and os.access(path, os.R_OK)
    told = "can be read" if readable else "cannot be read" if path.exists() else "no such file"
    return [Claim("slurm.container", image, told, OK if readable else DIFFERS)]
