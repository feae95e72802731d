"""A partition as sinfo tells it, beside what a hardware YAML says of it, for `scalebench doctor`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalebench.slurm.geometry import STARTING_S
from scalebench.spec import Config, HardwareSpec
from scalebench.suggest import no_such
from scalebench.verbs.claims import DIFFERS, OK, UNCHECKED, Claim, claim, counted, near, size

# Of sinfo, a line for each node: host name, partition (* marks the default), state, CPUs, sockets:cores:threads, MiB,
# gres, time limit, features.
FORMAT = "%n|%P|%T|%c|%z|%m|%G|%l|%f"
UNUSABLE = ("down", "drain", "fail", "unknown", "error", "future", "inval")


@dataclass(frozen=True)
class Node:
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
        return not self.state.lower().startswith(UNUSABLE) and not self.state.endswith("*")


def parse(text: str) -> list[Node]:
    """Nodes of what `sinfo --Node --format=FORMAT` prints; lines that are none are passed over."""
    found = []
    for line in text.splitlines():
        parts = line.strip().split("|")
        shape = re.fullmatch(r"(\d+):(\d+):(\d+)", parts[4]) if len(parts) == 9 else None
        if shape is None or not (parts[3].isdigit() and parts[5].isdigit()):
            continue
        name, partition, state, cpus, _, mib, gres, limit, features = parts
        cores = int(shape[1]) * int(shape[2])
        marks = tuple(word for word in features.split(",") if word != "(null)")
        whole = (name, partition.rstrip("*"), partition.endswith("*"), state, int(cpus), cores)
        found.append(Node(*whole, int(mib) * 2**20, gres, minutes(limit), marks))
    return found


def minutes(limit: str) -> float | None:
    """SLURM's D-HH:MM:SS, HH:MM:SS, MM:SS; None for infinite and what is not set."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, whole, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + whole + seconds / 60


def gpus(gres: str, kind: str | None = None) -> int:
    """GPUs in SLURM's words, of one kind or of all: 'gpu:a100:8(S:0-1),nvme:1' -> 8."""
    found = re.findall(r"(?:^|,)gpu(?::([A-Za-z_][^:,()]*))?(?::(\d+))?(?=[(,]|$)", gres)
    return sum(int(count or 1) for name, count in found if kind is None or name.lower() == kind.lower())


def chosen(nodes: Sequence[Node], name: str | None) -> list[Node]:
    """The nodes of the partition of that name; of the default one where none is named."""
    return [node for node in nodes if (node.default if name is None else node.partition == name)]


def of_partition(config: Config, nodes: Sequence[Node]) -> list[Claim]:
    """What the YAML says of the nodes of its partition. A job may get any of them: each has to be as said."""
    hardware, slurm = config.hardware, config.hardware.slurm
    mine = chosen(nodes, slurm.partition)
    if not mine:
        return [_no_partition(slurm.partition, sorted({node.partition for node in nodes}))]
    up = sum(node.usable for node in mine)
    cores, name = hardware.cpus_per_node, slurm.partition or f"null: {mine[0].partition}"
    rows = [
        claim("slurm.partition", name, f"{up} of {len(mine)} nodes up", up > 0),
        claim("max_nodes", hardware.max_nodes, f"{len(mine)} nodes", len(mine) >= hardware.max_nodes),
        _each("cpus_per_node", cores, mine, _cores, lambda node: cores in (node.cores, node.cpus)),
        _memory(hardware, mine),
        _limit(config, mine),
    ]
    if hardware.devices == "cuda" and slurm.gres:
        rows.append(_gres(hardware, mine))
    return rows if slurm.constraint is None else [*rows, _constraint(slurm.constraint, mine)]


def _no_partition(wanted: str | None, known: Sequence[str]) -> Claim:
    if wanted is None:
        return Claim("slurm.partition", "null", f"no default partition; known: {', '.join(known) or 'none'}", DIFFERS)
    return Claim("slurm.partition", wanted, no_such("partition", wanted, known), DIFFERS)


def _each(
    key: str, said: object, nodes: Sequence[Node], told: Callable[[Node], str], same: Callable[[Node], bool]
) -> Claim:
    return claim(f"{key} of the partition", said, counted([told(node) for node in nodes]), all(map(same, nodes)))


def _memory(hardware: HardwareSpec, nodes: Sequence[Node]) -> Claim:
    said = hardware.memory_bytes
    told = [str(size(node.memory_bytes)) for node in nodes]
    same = all(near(said, node.memory_bytes) for node in nodes)
    return claim("memory_bytes of the partition", size(said), counted(told), same)


def _cores(node: Node) -> str:
    return f"{node.cores} cores" if node.cores == node.cpus else f"{node.cores} cores ({node.cpus} CPUs)"


def _gres(hardware: HardwareSpec, nodes: Sequence[Node]) -> Claim:
    """As many GPUs as said, of the kind that slurm.gres asks for."""
    kind = re.match(r"gpu:([A-Za-z_][^:]*):", hardware.slurm.gres)
    said = hardware.gpus_per_node
    asked = None if said is None else hardware.slurm.gres.replace("{gpus}", str(said))
    same = [gpus(node.gres, kind[1] if kind else None) == said for node in nodes]
    return claim("slurm.gres", asked, counted([node.gres for node in nodes]), all(same))


def _limit(config: Config, nodes: Sequence[Node]) -> Claim:
    """The job's time against the partition's limit; a job that wants more would wait for ever or be refused."""
    asked = config.hardware.slurm.time_minutes
    wants = asked or math.ceil((config.measure.timeout_s + STARTING_S) / 60)
    limits = [node.limit_minutes for node in nodes if node.limit_minutes is not None]
    said = str(asked) if asked is not None else f"null: {wants}, by measure.timeout_s"
    here = f"limit {min(limits):.0f} minutes" if limits else "no limit"
    return claim("slurm.time_minutes", said, here, not limits or wants <= min(limits))


def _constraint(asked: str, nodes: Sequence[Node]) -> Claim:
    """One feature can be looked up; what joins several by & or | is sbatch's to judge."""
    known = sorted({feature for node in nodes for feature in node.features})
    here = f"features {', '.join(known) or 'none'}"
    if not re.fullmatch(r"[\w.-]+", asked):
        return Claim("slurm.constraint", asked, here, UNCHECKED)
    return Claim("slurm.constraint", asked, here, OK if asked in known else DIFFERS)
