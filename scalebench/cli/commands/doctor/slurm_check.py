"""Check the answers of SLURM's commands on this host against a hardware YAML, for `scalebench doctor`."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Sequence

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
from scalebench.core.errors import InputError
from scalebench.core.spec import Config, HardwareSpec, SlurmSpec
from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.slurm.partition import (
    PartitionNode,
    count_gpus,
    count_gpus_by_type,
    describe_no_partition,
    describe_partition,
    parse_allowed_names,
    read_nodes,
    select_nodes,
)
from scalebench.slurm.resources import START_ALLOWANCE_S, WHOLE_CORES_HINT, job_options

PYXIS_OPTION = "--container-image"  # an option of srun that only the plugin adds


def check_slurm(slurm: Slurm, config: Config) -> tuple[list[CheckResult], list[PartitionNode]]:
    """Check the answers of SLURM's commands, and return the nodes of the partition. Nothing is changed or started."""
    wants = config.hardware.slurm
    if not slurm.has("sbatch"):
        where = wants.bin or "the PATH"
        return _report_no_answer(f"no sbatch on {where}; hardware.slurm.bin names its folder")
    try:
        version = slurm.run("sbatch", "--version").strip()
        nodes = read_nodes(slurm)
    except SlurmError as error:
        return _report_no_answer(str(error))
    used = select_nodes(nodes, wants.partition)
    lines = [CheckResult("scheduler", "slurm", f"{version}, {slurm.path('sbatch')}", OK)]
    lines += check_partition(config, nodes)
    lines += _check_admission(slurm, wants, used[0].partition) if used else []
    return [*lines, *_check_mpi(slurm, wants), *_check_container_runtime(slurm, wants)], used


def _report_no_answer(reason: str) -> tuple[list[CheckResult], list[PartitionNode]]:
    return [CheckResult("scheduler", "slurm", reason, DIFFERS)], []


def _check_admission(slurm: Slurm, wants: SlurmSpec, name: str) -> list[CheckResult]:
    """Check account, QOS and reservation. Whether the user belongs to an account, only sbatch can decide."""
    shown = describe_partition(slurm, name) if wants.account or wants.qos else ""
    lines = []
    for key, wanted, allowed in (("account", wants.account, "AllowAccounts"), ("qos", wants.qos, "AllowQos")):
        names = parse_allowed_names(shown, allowed)
        if wanted is not None and names is None:
            actual = f"partition {name} takes all" if shown else "scontrol does not show it"
            lines.append(CheckResult(f"slurm.{key}", wanted, f"{actual}; sbatch decides whether you may", UNCHECKED))
        elif wanted is not None and names is not None:
            actual = f"partition {name} takes {', '.join(names)}"
            lines.append(CheckResult(f"slurm.{key}", wanted, actual, OK if wanted in names else DIFFERS))
    if wants.reservation is not None:
        reservations = _run_or_empty(slurm, "scontrol", "show", "reservation").split()
        exists = f"ReservationName={wants.reservation}" in reservations
        actual = "is there" if exists else "no such reservation"
        lines.append(CheckResult("slurm.reservation", wants.reservation, actual, OK if exists else DIFFERS))
    return lines


def _check_mpi(slurm: Slurm, wants: SlurmSpec) -> list[CheckResult]:
    """Check the program that starts MPI ranks."""
    if wants.mpi == "mpirun":
        return [_check_program("slurm.mpi", "mpirun", "a line of slurm.setup may load it")]
    names = re.findall(r"^\s+(\S+)$", _run_or_empty(slurm, "srun", "--mpi=list"), re.MULTILINE)
    verdict = UNCHECKED if not names else OK if wants.mpi in names else DIFFERS
    return [
        CheckResult(
            "slurm.mpi", wants.mpi, f"srun has {', '.join(names)}" if names else "srun does not list any", verdict
        )
    ]


def _check_container_runtime(slurm: Slurm, wants: SlurmSpec) -> list[CheckResult]:
    """Check the program that runs the container image."""
    if wants.container is None:
        return []
    if wants.container_runtime != "pyxis":
        return [_check_program("slurm.container_runtime", wants.container_runtime, "the nodes may have it")]
    has_pyxis = PYXIS_OPTION in _run_or_empty(slurm, "srun", "--help")
    actual = f"srun has {'' if has_pyxis else 'no '}{PYXIS_OPTION}"
    return [CheckResult("slurm.container_runtime", "pyxis", actual, OK if has_pyxis else DIFFERS)]


def _check_program(key: str, name: str, hint: str) -> CheckResult:
    path = shutil.which(name)
    actual = path or f"not on the PATH of this host; {hint}"
    return CheckResult(key, name, actual, OK if path else UNCHECKED)


def _run_or_empty(slurm: Slurm, name: str, *arguments: str) -> str:
    """Return the output of a command; empty where it fails."""
    try:
        return slurm.run(name, *arguments)
    except SlurmError:
        return ""


def check_partition(config: Config, nodes: Sequence[PartitionNode]) -> list[CheckResult]:
    """Check the nodes of the YAML's partition, of several kinds those with the GPUs of slurm.gres. A job may get any of
    them, so the YAML has the figures of the smallest."""
    hardware, slurm = config.hardware, config.hardware.slurm
    nodes_used = select_nodes(nodes, slurm.partition)
    if not nodes_used:
        return [
            CheckResult(
                "slurm.partition", slurm.partition or "null", describe_no_partition(slurm.partition, nodes), DIFFERS
            )
        ]
    if hardware.devices == "cuda" and slurm.gres:
        try:
            kind = next(iter(count_gpus_by_type(slurm.gres.replace("{gpus}", "1"))), None) or None
            nodes_used = [node for node in nodes_used if count_gpus(node.gres, kind)] or nodes_used
        except InputError as error:
            return [CheckResult("slurm.gres", slurm.gres, str(error), DIFFERS)]
    up = sum(node.usable for node in nodes_used)
    counts_cores = job_options(slurm).get("hint") == WHOLE_CORES_HINT  # else threads, as the user's own options say
    cores, name = hardware.cpus_per_node, slurm.partition or f"null: {nodes_used[0].partition}"
    rows = [
        check_value("slurm.partition", name, f"{up} of {len(nodes_used)} nodes up", up > 0),
        check_value("max_nodes", hardware.max_nodes, f"{len(nodes_used)} nodes", len(nodes_used) >= hardware.max_nodes),
        check_value(
            "cpus_per_node of the partition",
            cores,
            join_counted(list(map(_format_cores, nodes_used))),
            cores == min(node.cores for node in nodes_used)
            or (not counts_cores and cores == min(node.cpus for node in nodes_used)),
        ),
        _check_memory(hardware, nodes_used),
        _check_time_limit(config, nodes_used),
    ]
    if hardware.devices == "cuda" and slurm.gres:
        expected = hardware.gpus_per_node
        wanted = None if expected is None else slurm.gres.replace("{gpus}", str(expected))
        same = min(count_gpus(node.gres, kind) for node in nodes_used) == expected
        rows.append(check_value("slurm.gres", wanted, join_counted([node.gres for node in nodes_used]), same))
    return rows if slurm.constraint is None else [*rows, _check_constraint(slurm.constraint, nodes_used)]


def _check_memory(hardware: HardwareSpec, nodes: Sequence[PartitionNode]) -> CheckResult:
    expected = hardware.memory_bytes
    sizes = [str(format_size(node.memory_bytes)) for node in nodes]
    same = is_near(expected, min(node.memory_bytes for node in nodes))
    return check_value("memory_bytes of the partition", format_size(expected), join_counted(sizes), same)


def _format_cores(node: PartitionNode) -> str:
    return f"{node.cores} cores" if node.cores == node.cpus else f"{node.cores} cores ({node.cpus} CPUs)"


def _check_time_limit(config: Config, nodes: Sequence[PartitionNode]) -> CheckResult:
    """Check the job's time against the partition's limit: a longer job waits for ever or is refused."""
    wanted = config.hardware.slurm.time_minutes
    wants = wanted or math.ceil((config.measure.timeout_s + START_ALLOWANCE_S) / 60)
    limits = [node.limit_minutes for node in nodes if node.limit_minutes is not None]
    expected = str(wanted) if wanted is not None else f"null: {wants}, by measure.timeout_s"
    actual = f"limit {min(limits):.0f} minutes" if limits else "no limit"
    return check_value("slurm.time_minutes", expected, actual, not limits or wants <= min(limits))


def _check_constraint(wanted: str, nodes: Sequence[PartitionNode]) -> CheckResult:
    """Check a constraint of one feature. Only sbatch can judge one that joins several by & or |."""
    known_features = sorted({feature for node in nodes for feature in node.features})
    actual = f"features {', '.join(known_features) or 'none'}"
    if not re.fullmatch(r"[\w.-]+", wanted):
        return CheckResult("slurm.constraint", wanted, actual, UNCHECKED)
    return CheckResult("slurm.constraint", wanted, actual, OK if wanted in known_features else DIFFERS)
