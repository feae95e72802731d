"""A partition as sinfo and scontrol describe it: its nodes, their cores, memory and GPUs, and the limits of a job."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.cluster.commands import Slurm, SlurmError
from scalebench.core.errors import InputError, unknown_name_message

# sinfo prints a line for each node: host name, partition (* marks the default), state, CPUs, sockets:cores:threads,
# MiB, gres, time limit, features.
SINFO_FORMAT = "%n|%P|%T|%c|%z|%m|%G|%l|%f"
UNUSABLE_STATES = ("down", "drain", "fail", "unknown", "error", "future", "inval")
# One kind of GPU in a gres text, with its type where the cluster names one: gpu:a100:8, gpu:3090:4, gpu:1g.5gb:7.
# A number alone is a count: gpu:8.
GPU_PATTERN = re.compile(r"gpu(?::(?!\d+$)([^:]+))?(?::(\d+))?")


@dataclass(frozen=True)
class PartitionNode:
    """One node of a partition."""

    name: str
    partition: str
    default: bool  # jobs that name no partition go to this one
    state: str
    cpus: int  # as SLURM counts them: threads where it allocates threads
    cores: int
    sockets: int
    memory_bytes: int
    gres: str
    limit_minutes: float | None  # None: no limit
    features: tuple[str, ...]

    @property
    def usable(self) -> bool:
        return not self.state.lower().startswith(UNUSABLE_STATES) and not self.state.endswith("*")


@dataclass(frozen=True)
class Partition:
    """A partition: its nodes, of which there is at least one, and what it allows a job."""

    name: str
    nodes: list[PartitionNode]
    max_nodes: int | None  # of one job; None: no limit
    limit_minutes: float | None  # None: no limit


def read_partition(slurm: Slurm, name: str | None) -> Partition:
    """Read a partition; None means the cluster's default. Raise InputError for an unknown one, SlurmError where SLURM
    does not answer."""
    nodes = read_nodes(slurm)
    selected = select_nodes(nodes, name)
    if not selected:
        raise InputError(describe_no_partition(name, nodes))
    max_nodes = None
    with contextlib.suppress(SlurmError):
        max_nodes = re.search(r"\bMaxNodes=(\d+)", slurm.run("scontrol", "show", "partition", selected[0].partition))
    limits = [node.limit_minutes for node in selected if node.limit_minutes is not None]
    limit_minutes = min(limits, default=None)
    return Partition(selected[0].partition, selected, int(max_nodes[1]) if max_nodes else None, limit_minutes)


def read_nodes(slurm: Slurm) -> list[PartitionNode]:
    """Return the nodes of all partitions. Raise SlurmError where SLURM does not answer."""
    return parse_sinfo(slurm.run("sinfo", "--noheader", "--Node", f"--format={SINFO_FORMAT}"))


def describe_no_partition(name: str | None, nodes: Sequence[PartitionNode]) -> str:
    """Explain that there is no such partition, or no default."""
    partitions = sorted({node.partition for node in nodes})
    if name is None:
        return f"no default partition; known: {', '.join(partitions) or 'none'}"
    return unknown_name_message("partition", name, partitions)


def parse_sinfo(text: str) -> list[PartitionNode]:
    """Parse the nodes that `sinfo --Node --format=SINFO_FORMAT` prints; other lines are ignored."""
    nodes = []
    for line in text.splitlines():
        parts = line.strip().split("|")
        shape = re.fullmatch(r"(\d+):(\d+):(\d+)", parts[4]) if len(parts) == 9 else None
        if shape is None or not (parts[3].isdigit() and parts[5].isdigit()):
            continue
        name, partition, state, cpus, _, mib, gres, limit, features = parts
        sockets = int(shape[1])
        names = tuple(feature for feature in features.split(",") if feature != "(null)")
        fields = (name, partition.rstrip("*"), partition.endswith("*"), state, int(cpus), sockets * int(shape[2]))
        nodes.append(PartitionNode(*fields, sockets, int(mib) * 2**20, gres, parse_limit_minutes(limit), names))
    return nodes


def parse_limit_minutes(limit: str) -> float | None:
    """Parse SLURM's D-HH:MM:SS, HH:MM:SS or MM:SS; None for an infinite limit, or none at all."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60


def count_gpus_by_type(gres: str) -> Counter[str]:
    """Count the GPUs of each type in a gres text, under "" those without one: 'gpu:a100:8(S:0-1),nvme:1' -> a100: 8.

    Raise InputError for GPUs in another form, which would else look like a node without any."""
    counts: Counter[str] = Counter()
    for part in re.sub(r"\([^()]*\)", "", gres).split(","):
        if not re.match(r"gpu(?![\w.-])", part):
            continue
        match = GPU_PATTERN.fullmatch(part)
        if match is None:
            raise InputError(f"gres '{gres}': '{part}' should be gpu[:TYPE][:COUNT]; write the hardware YAML by hand")
        counts[match[1] or ""] += int(match[2] or 1)
    return counts


def count_gpus(gres: str, kind: str | None = None) -> int:
    """Count the GPUs of one type, in any case of its letters, or of all types in a gres text."""
    counts = count_gpus_by_type(gres)
    return sum(count for name, count in counts.items() if kind is None or name.lower() == kind.lower())


def select_nodes(nodes: Sequence[PartitionNode], name: str | None) -> list[PartitionNode]:
    """Return the nodes of the partition of that name; those of the default partition where none is named."""
    return [node for node in nodes if (node.default if name is None else node.partition == name)]
