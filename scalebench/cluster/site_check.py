"""A site beside its hardware YAML: what SLURM's commands on this host answer, as lines of `scalebench doctor`."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.cluster import partition
from scalebench.cluster.commands import Slurm, SlurmError, SlurmUnreachable, SubmitLimit, in_allocation
from scalebench.cluster.partition import PartitionNode
from scalebench.cluster.resources import NAME_KEYS, START_ALLOWANCE_S, WHOLE_CORES_HINT, job_options
from scalebench.cluster.submit import format_options, submission_environment
from scalebench.core.errors import InputError
from scalebench.core.machine.machine import Machine
from scalebench.core.spec import Config, HardwareSpec, SlurmSpec

OK, DIFFERS, UNCHECKED = "ok", "differs", "not checked"
SIZE_TOLERANCE = 0.1  # "64 GB" may be 64 * 10^9 or 64 * 2^30 bytes, less what the firmware keeps
IMAGE_SUFFIXES = (".sif", ".simg", ".img", ".sqsh", ".squashfs")
PYXIS_OPTION = "--container-image"  # an option of srun that only the plugin adds


@dataclass(frozen=True)
class CheckResult:
    """One line of the doctor's table."""

    key: str
    expected: str  # the value in the YAML
    actual: str
    verdict: str


def check_value(key: str, expected: object, actual: str | None, same: bool | None) -> CheckResult:
    """Compare one value. It is not checked where the YAML has none, where that of the host is unknown, and where
    nothing here can judge it, so that `same` is None."""
    verdict = UNCHECKED if None in (expected, actual, same) else OK if same else DIFFERS
    return CheckResult(key, "null" if expected is None else str(expected), actual or "unknown", verdict)


def is_near(expected: int | None, actual: int | None) -> bool:
    return expected is not None and actual is not None and abs(expected - actual) <= SIZE_TOLERANCE * expected


def format_size(size_bytes: int | None) -> str | None:
    if size_bytes is None:
        return None
    return f"{size_bytes / 1e9:,.0f} GB" if size_bytes >= 1e10 else f"{size_bytes / 1e9:.1f} GB"


def join_counted(texts: Iterable[str | None]) -> str | None:
    """Join texts and count equal ones: ['a', 'b', 'a'] -> '2 x a, b'. None where there are none."""
    counts = Counter(texts).items()
    return ", ".join(str(text) if count == 1 else f"{count} x {text}" for text, count in counts) or None


def check_slurm(slurm: Slurm, config: Config) -> tuple[list[CheckResult], list[PartitionNode]]:
    """Check the answers of SLURM's commands, and return the nodes of the partition. Nothing is changed or started."""
    wants = config.hardware.slurm
    try:
        if slurm.path("sbatch") is None:
            raise SlurmError(f"no sbatch on {wants.bin or 'the PATH'}; hardware.slurm.bin names its folder")
        version = slurm.run("sbatch", "--version").strip()
        nodes = partition.read_nodes(slurm)
    except SlurmError as error:
        return [check_value("scheduler", "slurm", str(error), False)], []
    used = partition.select_nodes(nodes, wants.partition)
    lines = [check_value("scheduler", "slurm", f"{version}, {slurm.path('sbatch')}", True)]
    lines += check_partition(config, nodes)
    return [*lines, _check_job(slurm, config.hardware), *_check_programs(slurm, wants)], used


def check_partition(config: Config, nodes: Sequence[PartitionNode]) -> Iterator[CheckResult]:
    """Check the nodes of the YAML's partition, of several kinds those with the GPUs of slurm.gres. A job may get any of
    them, so the YAML has the figures of the smallest."""
    hardware, slurm = config.hardware, config.hardware.slurm
    used = partition.select_nodes(nodes, slurm.partition)
    if not used:
        reason = partition.describe_no_partition(slurm.partition, nodes)
        yield check_value("slurm.partition", slurm.partition or "null", reason, False)
        return
    wants_gpus = hardware.devices == "cuda" and bool(slurm.gres)
    if wants_gpus:
        try:
            types = partition.count_gpus_by_type(slurm.gres.replace("{gpus}", "1"))
            kind = next(iter(types), None) or None
            used = [node for node in used if partition.count_gpus(node.gres, kind)] or used
        except InputError as error:
            yield check_value("slurm.gres", slurm.gres, str(error), False)
            return
    up, name = sum(node.usable for node in used), slurm.partition or f"null: {used[0].partition}"
    yield check_value("slurm.partition", name, f"{up} of {len(used)} nodes up", up > 0)
    yield check_value("max_nodes", hardware.max_nodes, f"{len(used)} nodes", len(used) >= hardware.max_nodes)
    cores = hardware.cpus_per_node
    sizes = {min(node.cores for node in used)}
    if job_options(slurm).get("hint") != WHOLE_CORES_HINT:  # the user's own options count threads
        sizes.add(min(node.cpus for node in used))
    texts = [f"{node.cores} cores" + (f" ({node.cpus} CPUs)" if node.cores != node.cpus else "") for node in used]
    yield check_value("cpus_per_node of the partition", cores, join_counted(texts), cores in sizes)
    memory, smallest = hardware.memory_bytes, min(node.memory_bytes for node in used)
    actual = join_counted(format_size(node.memory_bytes) for node in used)
    yield check_value("memory_bytes of the partition", format_size(memory), actual, is_near(memory, smallest))
    # A job that is longer than the partition's limit waits forever or is refused.
    minutes = slurm.time_minutes or math.ceil((config.measure.timeout_s + START_ALLOWANCE_S) / 60)
    limit = min((node.limit_minutes for node in used if node.limit_minutes is not None), default=math.inf)
    expected = slurm.time_minutes if slurm.time_minutes is not None else f"null: {minutes}, by measure.timeout_s"
    actual = f"limit {limit:.0f} minutes" if limit < math.inf else "no limit"
    yield check_value("slurm.time_minutes", expected, actual, minutes <= limit)
    if wants_gpus:
        gpus = hardware.gpus_per_node
        wanted = None if gpus is None else slurm.gres.replace("{gpus}", str(gpus))
        same = min(partition.count_gpus(node.gres, kind) for node in used) == gpus
        yield check_value("slurm.gres", wanted, join_counted(node.gres for node in used), same)


def _check_job(slurm: Slurm, hardware: HardwareSpec) -> CheckResult:
    """Have sbatch judge a job on one node without submitting it: whether there is what the YAML names, and whether the
    user may have it."""
    wants = hardware.slurm
    words = shlex.split(" ".join(_name_resources(hardware)))
    environment = submission_environment(wants)
    accepted: bool | None = True
    try:
        slurm.run("sbatch", "--test-only", "--nodes=1", *words, "--wrap=true", environment=environment)
        answer = "accepted"
    except SlurmError as error:
        answer, accepted = str(error), None if isinstance(error, SlurmUnreachable | SubmitLimit) else False
    return check_value("a job on one node", "accepted", answer, accepted)


def _name_resources(hardware: HardwareSpec) -> list[str]:
    """Return the options of sbatch and srun for one node."""
    slurm, gpus = hardware.slurm, hardware.gpus_per_node if hardware.devices == "cuda" else None
    options = {key: getattr(slurm, key) for key in NAME_KEYS} | {"mem": slurm.memory, "time": slurm.time_minutes}
    options |= job_options(slurm, gpus) | {"exclusive": slurm.exclusive or None}
    if gpus is not None and slurm.gres:
        options["gres"] = slurm.gres.replace("{gpus}", str(gpus))
    return format_options(options)


def _check_programs(slurm: Slurm, wants: SlurmSpec) -> Iterator[CheckResult]:
    """Check what starts MPI ranks, and what runs the container image."""
    if wants.mpi == "mpirun":
        yield _check_program("slurm.mpi", "mpirun", "a line of slurm.setup may load it")
    else:
        names = re.findall(r"^\s+(\S+)$", _run_or_empty(slurm, "srun", "--mpi=list"), re.MULTILINE)
        actual = f"srun has {', '.join(names)}" if names else "srun does not list any"
        yield check_value("slurm.mpi", wants.mpi, actual, wants.mpi in names if names else None)
    if wants.container is not None and wants.container_runtime == "pyxis":
        has_pyxis = PYXIS_OPTION in _run_or_empty(slurm, "srun", "--help")
        actual = f"srun has {'' if has_pyxis else 'no '}{PYXIS_OPTION}"
        yield check_value("slurm.container_runtime", "pyxis", actual, has_pyxis)
    elif wants.container is not None:
        yield _check_program("slurm.container_runtime", wants.container_runtime, "the nodes may have it")


def _check_program(key: str, name: str, hint: str) -> CheckResult:
    path = shutil.which(name)
    return check_value(key, name, path or f"not on the PATH of this host; {hint}", True if path else None)


def _run_or_empty(slurm: Slurm, name: str, *arguments: str) -> str:
    """Return the output of a command; empty where it fails."""
    try:
        return slurm.run(name, *arguments)
    except SlurmError:
        return ""


def find_node_name(host: Machine, nodes: Sequence[PartitionNode]) -> str | None:
    """Return SLURM's name of this host; None where it is not a node: a login node, also within salloc."""
    short = host.hostname.partition(".")[0]
    listed = next((node.name for node in nodes if node.name.partition(".")[0] == short), None)
    return os.environ.get("SLURMD_NODENAME") or listed  # set by slurmd for the processes that it starts


def check_container(hardware: HardwareSpec) -> list[CheckResult]:
    """Check the image of the ranks: a file that is readable here, or an address, which the nodes fetch."""
    image = hardware.slurm.container
    if image is None:
        return []
    path = Path(image).expanduser()
    if "://" in image or not (path.is_absolute() or path.suffix in IMAGE_SUFFIXES):
        return [check_value("slurm.container", image, "an address, which the nodes fetch", None)]
    is_readable = path.exists() and os.access(path, os.R_OK)
    state = "can be read" if is_readable else "cannot be read" if path.exists() else "no such file"
    return [check_value("slurm.container", image, state, is_readable)]


def make_srun_hint(hardware: HardwareSpec, arguments: Sequence[str]) -> str:
    """Return a hint with the command that checks a node."""
    options = [] if in_allocation() else _name_resources(hardware)
    command = [str(Path(hardware.slurm.bin or "") / "srun"), "--nodes=1", "--ntasks=1", *options]
    check = f"{' '.join(command)} scalebench doctor {shlex.join(arguments)}"
    return f"this host is not a node of hardware={hardware.name}; to check one: {check}"
