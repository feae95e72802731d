"""`scalebench doctor hardware=NAME`: check this host, and SLURM, against a hardware YAML."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
from rich import box
from rich.table import Table

import scalebench
from scalebench.cli.commands.arguments import compose_overrides, count_verdicts, make_console
from scalebench.cluster import site_check
from scalebench.cluster.commands import Slurm, in_allocation
from scalebench.cluster.kubectl import Kubectl
from scalebench.cluster.site_check import (
    DIFFERS,
    OK,
    UNCHECKED,
    CheckResult,
    check_value,
    format_size,
    is_near,
    join_counted,
)
from scalebench.config import resolve
from scalebench.core.errors import InputError
from scalebench.core.machine import machine
from scalebench.core.machine.machine import Machine, cache_folder, find_file_system
from scalebench.core.spec import Config, HardwareSpec

BRANDS = {"nvidia", "geforce", "tesla"}  # left out by some drivers
MODEL_SUFFIXES = {"ti", "super"}  # a GTX 1070 Ti is not a GTX 1070
NETWORK_FILE_SYSTEMS = (
    "nfs nfs4 lustre gpfs beegfs ceph cephfs glusterfs afs panfs wekafs pvfs2 orangefs ocfs2 gfs2 9p cifs smb3".split()
)


def main(overrides: list[str], config_dir: str | None) -> int:
    """Print the table. Return 1 where something differs. Raise InputError for overrides that cannot be composed."""
    config = compose_hardware(overrides, config_dir)
    arguments = [*([f"--config-dir={config_dir}"] if config_dir is not None else []), *overrides]
    results, hint = check_host(config, machine.detect_machine(), arguments)
    table = Table("key", f"hardware={config.hardware.name} has", "here", "", box=box.SIMPLE_HEAD)
    for line in results:
        table.add_row(line.key, line.expected, line.actual, line.verdict)
    console = make_console()
    console.print(table)
    console.print(count_verdicts(results, {verdict: verdict for verdict in (OK, DIFFERS, UNCHECKED)}))
    if hint is not None:
        console.print(hint, soft_wrap=True)  # a command, to be copied in one piece
    return 1 if any(line.verdict == DIFFERS for line in results) else 0


def compose_hardware(overrides: list[str], config_dir: str | None = None) -> Config:
    """Compose and check the config of a run with these overrides; `config_dir` has YAML files of the user."""
    for override in overrides:
        if "=" not in override:
            raise InputError(f"doctor takes hardware=NAME and settings, not '{override}'")
    names = [override.partition("=")[2] for override in overrides if override.startswith("hardware=")]
    if not names or "," in names[-1]:
        raise InputError("doctor compares this host with one hardware YAML: doctor hardware=NAME")
    search = []
    if config_dir is not None:
        folder = Path(config_dir).absolute()
        if not folder.is_dir():
            raise InputError(f"--config-dir: {folder} is not a folder")
        search = [f"hydra.searchpath=[{folder.as_uri()}]"]
    config = compose_overrides(overrides, *search)
    resolve.check_config(config)
    return config


def check_host(config: Config, host: Machine, arguments: Sequence[str]) -> tuple[list[CheckResult], str | None]:
    """Return all lines and, where this host is not a node, the command that checks one."""
    hardware = config.hardware
    if hardware.scheduler == "kubernetes":  # whose nodes can only be seen from pods
        problem = Kubectl(hardware.kubernetes.namespace).find_problem()
        return [check_value("cluster", "JobSet v1alpha2", problem or "JobSet v1alpha2", problem is None)], None
    is_in_job = in_allocation()
    node = check_node(hardware, host, is_in_job)
    if hardware.scheduler != "slurm":
        return node + (check_shared_folders(config) if hardware.hosts or hardware.max_nodes > 1 else []), None
    slurm_results, nodes = site_check.check_slurm(Slurm(hardware.slurm.bin), config)
    name = site_check.find_node_name(host, nodes)
    job = f", in job {os.environ['SLURM_JOB_ID']}" if is_in_job else ""
    same: bool | None = True if nodes else None
    if name is None:  # the YAML does not describe this host
        node = [replace(line, actual=f"{line.actual} (not a node)", verdict=UNCHECKED) for line in node]
        kind, same = "no node of it: a login node?" if nodes else "unknown whether it is one", None
        actual = f"{host.hostname}, {kind}{job}"
    elif nodes and name not in [node.name for node in nodes]:
        actual, same = f"{name}, of another partition{job}", False
    else:
        actual = f"{name}{job}"
    place = check_value("this host", f"a node of {hardware.slurm.partition or 'the default partition'}", actual, same)
    results = [place, *slurm_results, *node, *site_check.check_container(hardware), *check_shared_folders(config)]
    return results, site_check.make_srun_hint(hardware, arguments) if name is None and nodes else None


def check_node(hardware: HardwareSpec, host: Machine, in_job: bool = False) -> list[CheckResult]:
    """Check the devices, cores, memory, network interface and copy folder of a node. A job may have only some of the
    node's GPUs, so that fewer than expected are not a difference then."""
    results = []
    if hardware.devices != "cpu":
        count, expected = len(host.gpus), hardware.gpus_per_node
        is_part = in_job and expected is not None and count < expected
        actual = f"{count}, as this job was given" if is_part else str(count)
        results.append(check_value("gpus_per_node", expected, actual, None if is_part else expected == count))
        names, model = [gpu.name for gpu in host.gpus if gpu.name], hardware.gpu_model
        same = all(is_same_model(model or "", name) for name in names)
        results.append(check_value("gpu_model", model, join_counted(names), same))
        sizes, size = [gpu.memory_bytes for gpu in host.gpus if gpu.memory_bytes], hardware.gpu_memory_bytes
        same = all(is_near(size, each) for each in sizes)
        results.append(check_value("gpu_memory_bytes", format_size(size), join_counted(map(format_size, sizes)), same))
    cores, wanted = host.cpus_physical or host.cpus, hardware.cpus_per_node
    usable = f", {host.cpus} for this process" if host.cpus < cores else ""
    results.append(check_value("cpus_per_node", wanted, f"{cores} cores{usable}", wanted == cores))
    memory, available = hardware.memory_bytes, host.memory_bytes
    results.append(check_value("memory_bytes", format_size(memory), format_size(available), is_near(memory, available)))
    if hardware.interface is not None:
        interfaces = sorted(psutil.net_if_addrs())
        is_there = hardware.interface in interfaces
        actual = "is there" if is_there else f"only {' '.join(interfaces)}"
        results.append(check_value("interface", hardware.interface, actual, is_there))
    return [*results, _check_copy_folder(hardware.node_copy)] if hardware.node_copy is not None else results


def is_same_model(expected: str, actual: str) -> bool:
    """Return whether a name of gpu_specs.csv, such as 'A100 SXM4 40GB', matches NVML's 'NVIDIA A100-SXM4-40GB'."""
    wanted, present = (set(re.findall(r"[a-z0-9]+", name.lower())) - BRANDS for name in (expected, actual))
    return wanted <= present and not (present - wanted) & MODEL_SUFFIXES


def check_shared_folders(config: Config) -> list[CheckResult]:
    """Check that folders which this host and the nodes must share are on a network file system. Whether the nodes mount
    it too, only a job can show."""
    cache = Path(config.dataset.cache).expanduser() if config.dataset.cache else cache_folder()
    folders = {"folder of results": Path.cwd(), "Python": Path(sys.executable)}
    folders |= {"scalebench": Path(scalebench.__file__).parent, "data sets": cache}
    results = []
    for name, path in folders.items():
        kind = find_file_system(path.absolute())
        is_shared = kind in NETWORK_FILE_SYSTEMS or (kind or "").startswith("fuse.")
        note = "" if is_shared else ": is that a disk of this host only?"
        actual = f"{path} on {kind or 'an unknown file system'}{note}"
        results.append(check_value(name, "the same on all nodes", actual, True if is_shared else None))
    return results


def _check_copy_folder(node_copy: str) -> CheckResult:
    """Check that the folder for copies of the data exists or can be made."""
    where = Path(os.path.expandvars(node_copy)).expanduser()
    if "$" in str(where):
        return check_value("node_copy", node_copy, "names a variable that is not set here", None)
    above = next(folder for folder in (where, *where.absolute().parents) if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        return check_value("node_copy", node_copy, f"{above} cannot be written to", False)
    free = f"{shutil.disk_usage(above).free / 1e9:,.0f} GB free"
    return check_value("node_copy", node_copy, free if above == where else f"to be made, {free}", True)
