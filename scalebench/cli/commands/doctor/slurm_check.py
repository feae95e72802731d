"""What SLURM answers on this host, checked against a hardware YAML, for `scalebench doctor`."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalebench.cli.commands.doctor.check_result import (
    DIFFERS,
    OK,
    UNCHECKED,
    CheckResult,
    check_value,
    format_size,
    is_near,
    join_counted,
)
from scalebench.core.errors import unknown_name_message
from scalebench.core.spec import Config, HardwareSpec, SlurmSpec
from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.slurm.resources import START_ALLOWANCE_S

PYXIS_OPTION = "--container-image"  # an option that srun has with the plugin only
# Of sinfo, a line for each node: host name, partition (* marks the default), state, CPUs, sockets:cores:threads, MiB,
# gres, time limit, features.
SINFO_FORMAT = "%n|%P|%T|%c|%z|%m|%G|%l|%f"
UNUSABLE_STATES = ("down", "drain", "fail", "unknown", "error", "future", "inval")


@dataclass(frozen=True)
class PartitionNode:
    """One node of a partition."""

    name: str
    partition: str
    default: bool  # this partition is the one that jobs go to which name none
    state: str
    cpus: int  # as SLURM counts them: threads where it hands out threads
    cores: int
    memory_bytes: int
    gres: str
    limit_minutes: float | None  # None: no limit
    features: tuple[str, ...]

    @property
    def usable(self) -> bool:
        return not self.state.lower().startswith(UNUSABLE_STATES) and not self.state.endswith("*")


def check_slurm(slurm: Slurm, config: Config) -> tuple[list[CheckResult], list[PartitionNode]]:
    """Check what SLURM answers, and return the nodes of the partition. Nothing is changed or started."""
    wants = config.hardware.slurm
    if not slurm.has("sbatch"):
        where = wants.bin or "the PATH"
        return _report_no_answer(f"no sbatch on {where}; hardware.slurm.bin names its folder")
    try:
        version = slurm.run("sbatch", "--version").strip()
        nodes = parse_sinfo(slurm.run("sinfo", "--noheader", "--Node", f"--format={SINFO_FORMAT}"))
    except SlurmError as error:
        return _report_no_answer(str(error))
    used = select_nodes(nodes, wants.partition)
    lines = [CheckResult("scheduler", "slurm", f"{version}, {slurm.path('sbatch')}", OK)]
    lines += check_partition(config, nodes)
    lines += _check_admission(slurm, wants, used[0].partition) if used else []
    return [*lines, *_check_mpi(slurm, wants), *_check_container_runtime(slurm, wants)], used


def _report_no_answer(reason: str) -> tuple[list[CheckResult], list[PartitionNode]]:
    return [CheckResult("scheduler", "slurm", reason, DIFFERS)], []


def _parse_allowed_names(shown: str, key: str) -> list[str] | None:
    """The names after `key=` in what scontrol shows of a partition; None where it takes all."""
    found = re.search(rf"(?:^|\s){key}=(\S+)", shown)
    return None if found is None or found[1] == "ALL" else found[1].split(",")


def _check_admission(slurm: Slurm, wants: SlurmSpec, name: str) -> list[CheckResult]:
    """Account, QOS and reservation. Whether the user belongs to an account, only sbatch knows for sure."""
    shown = _run_or_empty(slurm, "scontrol", "show", "partition", name) if wants.account or wants.qos else ""
    lines = []
    for key, wanted, allowed in (("account", wants.account, "AllowAccounts"), ("qos", wants.qos, "AllowQos")):
        names = _parse_allowed_names(shown, allowed)
        if wanted is not None and names is None:
            actual = f"partition {name} takes all" if shown else "scontrol does not say"
            lines.append(CheckResult(f"slurm.{key}", wanted, f"{actual}; whether you may, sbatch says", UNCHECKED))
        elif wanted is not None and names is not None:
            actual = f"partition {name} takes {', '.join(names)}"
            lines.append(CheckResult(f"slurm.{key}", wanted, actual, OK if wanted in names else DIFFERS))
    if wants.reservation is not None:
        known = (
            f"ReservationName={wants.reservation}" in _run_or_empty(slurm, "scontrol", "show", "reservation").split()
        )
        actual = "is there" if known else "no such reservation"
        lines.append(CheckResult("slurm.reservation", wants.reservation, actual, OK if known else DIFFERS))
    return lines


def _check_mpi(slurm: Slurm, wants: SlurmSpec) -> list[CheckResult]:
    """What starts ranks of MPI."""
    if wants.mpi == "mpirun":
        return [_check_program("slurm.mpi", "mpirun", "a line of slurm.setup may load it")]
    names = re.findall(r"^\s+(\S+)$", _run_or_empty(slurm, "srun", "--mpi=list"), re.MULTILINE)
    verdict = UNCHECKED if not names else OK if wants.mpi in names else DIFFERS
    return [
        CheckResult("slurm.mpi", wants.mpi, f"srun has {', '.join(names)}" if names else "srun does not say", verdict)
    ]


def _check_container_runtime(slurm: Slurm, wants: SlurmSpec) -> list[CheckResult]:
    """What opens the image."""
    if wants.container is None:
        return []
    if wants.container_runtime != "pyxis":
        return [_check_program("slurm.container_runtime", wants.container_runtime, "the nodes may have it")]
    there = PYXIS_OPTION in _run_or_empty(slurm, "srun", "--help")
    actual = f"srun has {'' if there else 'no '}{PYXIS_OPTION}"
    return [CheckResult("slurm.container_runtime", "pyxis", actual, OK if there else DIFFERS)]


def _check_program(key: str, name: str, otherwise: str) -> CheckResult:
    found = shutil.which(name)
    actual = found or f"not on the PATH of this host; {otherwise}"
    return CheckResult(key, name, actual, OK if found else UNCHECKED)


def _run_or_empty(slurm: Slurm, name: str, *words: str) -> str:
    """The output of a command; empty where it fails."""
    try:
        return slurm.run(name, *words)
    except SlurmError:
        return ""


def parse_sinfo(text: str) -> list[PartitionNode]:
    """Nodes of what `sinfo --Node --format=SINFO_FORMAT` prints; other lines are ignored."""
    found = []
    for line in text.splitlines():
        parts = line.strip().split("|")
        shape = re.fullmatch(r"(\d+):(\d+):(\d+)", parts[4]) if len(parts) == 9 else None
        if shape is None or not (parts[3].isdigit() and parts[5].isdigit()):
            continue
        name, partition, state, cpus, _, mib, gres, limit, features = parts
        cores = int(shape[1]) * int(shape[2])
        marks = tuple(word for word in features.split(",") if word != "(null)")
        fields = (name, partition.rstrip("*"), partition.endswith("*"), state, int(cpus), cores)
        found.append(PartitionNode(*fields, int(mib) * 2**20, gres, parse_limit_minutes(limit), marks))
    return found


def parse_limit_minutes(limit: str) -> float | None:
    """SLURM's D-HH:MM:SS, HH:MM:SS, MM:SS; None for infinite and what is not set."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60


def count_gpus(gres: str, kind: str | None = None) -> int:
    """GPUs in SLURM's words, of one kind or of all: 'gpu:a100:8(S:0-1),nvme:1' -> 8."""
    found = re.findall(r"(?:^|,)gpu(?::([A-Za-z_][^:,()]*))?(?::(\d+))?(?=[(,]|$)", gres)
    return sum(int(count or 1) for name, count in found if kind is None or name.lower() == kind.lower())


def select_nodes(nodes: Sequence[PartitionNode], name: str | None) -> list[PartitionNode]:
    """The nodes of the partition of that name; of the default one where none is named."""
    return [node for node in nodes if (node.default if name is None else node.partition == name)]


def check_partition(config: Config, nodes: Sequence[PartitionNode]) -> list[CheckResult]:
    """Check the nodes of the YAML's partition. A job may get any of them, so each has to fit."""
    hardware, slurm = config.hardware, config.hardware.slurm
    nodes_used = select_nodes(nodes, slurm.partition)
    if not nodes_used:
        return [_report_no_partition(slurm.partition, sorted({node.partition for node in nodes}))]
    up = sum(node.usable for node in nodes_used)
    cores, name = hardware.cpus_per_node, slurm.partition or f"null: {nodes_used[0].partition}"
    rows = [
        check_value("slurm.partition", name, f"{up} of {len(nodes_used)} nodes up", up > 0),
        check_value("max_nodes", hardware.max_nodes, f"{len(nodes_used)} nodes", len(nodes_used) >= hardware.max_nodes),
        _check_each_node(
            "cpus_per_node", cores, nodes_used, _format_cores, lambda node: cores in (node.cores, node.cpus)
        ),
        _check_memory(hardware, nodes_used),
        _check_time_limit(config, nodes_used),
    ]
    if hardware.devices == "cuda" and slurm.gres:
        rows.append(_check_gres(hardware, nodes_used))
    return rows if slurm.constraint is None else [*rows, _check_constraint(slurm.constraint, nodes_used)]


def _report_no_partition(wanted: str | None, known: Sequence[str]) -> CheckResult:
    if wanted is None:
        return CheckResult(
            "slurm.partition", "null", f"no default partition; known: {', '.join(known) or 'none'}", DIFFERS
        )
    return CheckResult("slurm.partition", wanted, unknown_name_message("partition", wanted, known), DIFFERS)


def _check_each_node(
    key: str,
    expected: object,
    nodes: Sequence[PartitionNode],
    describe: Callable[[PartitionNode], str],
    same: Callable[[PartitionNode], bool],
) -> CheckResult:
    return check_value(
        f"{key} of the partition", expected, join_counted([describe(node) for node in nodes]), all(map(same, nodes))
    )


def _check_memory(hardware: HardwareSpec, nodes: Sequence[PartitionNode]) -> CheckResult:
    expected = hardware.memory_bytes
    sizes = [str(format_size(node.memory_bytes)) for node in nodes]
    same = all(is_near(expected, node.memory_bytes) for node in nodes)
    return check_value("memory_bytes of the partition", format_size(expected), join_counted(sizes), same)


def _format_cores(node: PartitionNode) -> str:
    return f"{node.cores} cores" if node.cores == node.cpus else f"{node.cores} cores ({node.cpus} CPUs)"


def _check_gres(hardware: HardwareSpec, nodes: Sequence[PartitionNode]) -> CheckResult:
    """As many GPUs as expected, of the kind that slurm.gres asks for."""
    kind = re.match(r"gpu:([A-Za-z_][^:]*):", hardware.slurm.gres)
    expected = hardware.gpus_per_node
    wanted = None if expected is None else hardware.slurm.gres.replace("{gpus}", str(expected))
    same = [count_gpus(node.gres, kind[1] if kind else None) == expected for node in nodes]
    return check_value("slurm.gres", wanted, join_counted([node.gres for node in nodes]), all(same))


def _check_time_limit(config: Config, nodes: Sequence[PartitionNode]) -> CheckResult:
    """Check the job's time against the partition's limit: a job that wants more waits for ever or is refused."""
    wanted = config.hardware.slurm.time_minutes
    wants = wanted or math.ceil((config.measure.timeout_s + START_ALLOWANCE_S) / 60)
    limits = [node.limit_minutes for node in nodes if node.limit_minutes is not None]
    expected = str(wanted) if wanted is not None else f"null: {wants}, by measure.timeout_s"
    actual = f"limit {min(limits):.0f} minutes" if limits else "no limit"
    return check_value("slurm.time_minutes", expected, actual, not limits or wants <= min(limits))


def _check_constraint(wanted: str, nodes: Sequence[PartitionNode]) -> CheckResult:
    """One feature can be looked up; what joins several by & or | is sbatch's to judge."""
    known = sorted({feature for node in nodes for feature in node.features})
    actual = f"features {', '.join(known) or 'none'}"
    if not re.fullmatch(r"[\w.-]+", wanted):
        return CheckResult("slurm.constraint", wanted, actual, UNCHECKED)
    return CheckResult("slurm.constraint", wanted, actual, OK if wanted in known else DIFFERS)
