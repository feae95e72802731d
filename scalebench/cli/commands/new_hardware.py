"""`scalebench new hardware NAME --partition P`: write the YAML of a SLURM partition from what sinfo and scontrol say.

It holds the lines that differ between clusters, and stands on conf/hardware/slurm.yaml for all others.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.cli.commands.arguments import refuse_unwritable
from scalebench.cli.commands.new import NO_ROOM, TEMPLATES, YAML_WORDS, make_environment
from scalebench.cluster.commands import Slurm, SlurmError
from scalebench.cluster.partition import Partition, PartitionNode, count_gpus_by_type, read_partition
from scalebench.cluster.resources import START_ALLOWANCE_S
from scalebench.core import config_files
from scalebench.core.errors import InputError
from scalebench.core.spec import MeasureSpec
from scalebench.core.units import format_bytes

GROUP = "hardware"
TEMPLATE = TEMPLATES / "hardware.yaml.jinja"
HARDWARE_NAME = r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*"  # of a file, and on the command line
DEFAULT_JOB_MINUTES = (MeasureSpec().timeout_s + START_ALLOWANCE_S) / 60


@dataclass(frozen=True)
class NodeShape:
    """The devices, cores and memory that every node of a partition has at least."""

    nodes: int
    devices: str  # cuda or cpu
    devices_per_node: int
    gpu_type: str  # as the cluster names it; empty where it names none, or without GPUs
    cores: int
    memory_bytes: int
    notes: list[str]  # in what the nodes differ; the smallest figure counts

    @property
    def devices_text(self) -> str:
        """Return `4 x h100`, or `2 CPU workers`."""
        if self.devices == "cuda":
            return f"{self.devices_per_node} x {self.gpu_type or 'GPU'}"
        return "1 CPU worker" if self.devices_per_node == 1 else f"{self.devices_per_node} CPU workers"


def main(options: argparse.Namespace) -> int:
    """Write FOLDER/hardware/NAME.yaml, and print what it says and what to type next."""
    _check_name(options.name)
    path = Path(options.into, GROUP, f"{options.name}.yaml")
    if path.exists():
        raise InputError(f"{path} is there already; take another name, or remove it")
    try:
        partition = read_partition(Slurm(options.bin), options.partition)
    except SlurmError as error:
        hint = "" if options.bin else "; run this on a login node, or name the folder of sinfo with --bin"
        raise InputError(f"SLURM does not describe its partitions: {error}{hint}") from None
    shape = describe_nodes(partition.nodes, cpu_only=options.cpu)
    text = render_yaml(options.name, partition, shape, options.bin)
    with refuse_unwritable(path, NO_ROOM):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    _print_next_steps(options.name, path, partition, shape)
    return 0


def describe_nodes(nodes: Sequence[PartitionNode], cpu_only: bool = False) -> NodeShape:
    """Return what the nodes have in common: of several types of GPU the most frequent one, on CPU nodes a worker for
    each socket."""
    totals: Counter[str] = Counter()
    for node in nodes:
        totals.update({} if cpu_only else count_gpus_by_type(node.gres))
    notes = []
    gpu_type, devices = "", "cpu"
    if totals:
        devices, gpu_type = "cuda", max(totals, key=lambda name: totals[name])
        others = [f"{count} x {name or 'GPUs without a type'}" for name, count in totals.items() if name != gpu_type]
        notes += [f"the partition has other GPUs, too: {', '.join(others)}"] if others else []
        nodes = [node for node in nodes if gpu_type in count_gpus_by_type(node.gres)]
    counts = [count_gpus_by_type(node.gres)[gpu_type] if totals else node.sockets for node in nodes]
    figures = {
        "GPUs" if totals else "sockets": counts,
        "cores": [node.cores for node in nodes],
        "GiB of memory": [node.memory_bytes // 2**30 for node in nodes],
    }
    notes += [
        f"nodes have {min(v)} to {max(v)} {name}: the fewest count" for name, v in figures.items() if len({*v}) > 1
    ]
    memory_bytes = min(node.memory_bytes for node in nodes)
    return NodeShape(len(nodes), devices, min(counts), gpu_type, min(figures["cores"]), memory_bytes, notes)


def render_yaml(name: str, partition: Partition, shape: NodeShape, bin: str | None) -> str:
    """Return the text of the file. Strings of the cluster are quoted, since a partition may be called `no`."""
    limit = partition.limit_minutes
    environment = make_environment(TEMPLATE.parent)
    environment.filters["yaml"] = lambda each: f"{each:_}" if isinstance(each, int) else json.dumps(each)
    return environment.get_template(TEMPLATE.name).render(
        name=name,
        partition=partition,
        shape=shape,
        max_nodes=min(shape.nodes, partition.max_nodes or shape.nodes),
        up=sum(node.usable for node in partition.nodes),
        memory=format_bytes(shape.memory_bytes),
        minutes=int(limit) if limit is not None and limit < DEFAULT_JOB_MINUTES else None,
        bin=None if bin is None else str(Path(bin).expanduser().absolute()),
    )


def _check_name(name: str) -> None:
    if not re.fullmatch(HARDWARE_NAME, name) or name.lower() in YAML_WORDS:
        raise InputError(f"'{name}' cannot be hardware={name}: use letters, digits, - and _, such as my_cluster")
    if (present := config_files.list_options(GROUP).get(name)) is not None:
        raise InputError(f"hardware '{name}' is there already, in {present}; take another name")


def _print_next_steps(name: str, path: Path, partition: Partition, shape: NodeShape) -> None:
    nodes = "1 node" if shape.nodes == 1 else f"{shape.nodes} nodes"
    size = f"{shape.cores} cores, {format_bytes(shape.memory_bytes)}"
    print(f"{path}: partition {partition.name}, {nodes} with {shape.devices_text}, {size}")
    for note in shape.notes:
        print(f"  {note}")
    chosen = f"--config-dir {shlex.quote(str(path.parents[1]))} hardware={name}"
    print("\nSLURM does not say which account pays, and what the links carry: add it there. Then check, plan and run:")
    print(f"  scalebench doctor {chosen}")
    print(f"  scalebench {chosen} gpus={shape.devices_per_node * min(2, shape.nodes)} dry_run=true")
    print(f"  scalebench {chosen} gpus={shape.devices_per_node} measure=quick")
