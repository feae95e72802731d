"""What sinfo says of a partition, read and compared."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.spec import Config, HardwareSpec, MeasureSpec, SlurmSpec
from scalebench.verbs import partition
from scalebench.verbs.claims import DIFFERS, OK, UNCHECKED, Claim
from scalebench.verbs.partition import Node, gpus, minutes, of_partition, parse

# As SLURM 22.05 prints it, but for the names.
SINFO = """\
taurusi8001|alpha|mixed|96|2:24:2|990000|gpu:8(S:0-1)|7-00:00:00|(null)
taurusi8002|alpha|idle~|96|2:24:2|990000|gpu:8(S:0-1)|7-00:00:00|(null)
taurusi8003|alpha|down*|96|2:24:2|990000|gpu:8(S:0-1)|7-00:00:00|(null)
h1|main*|idle|8|1:8:1|8000|gpu:a100:2,nvme:1|1:00:00|ssd,big
h2|main*|drained|8|1:8:1|8000|gpu:a100:2|1:00:00|ssd
"""
NODES = parse(SINFO)
ALPHA = HardwareSpec(
    "alpha", devices="cuda", gpus_per_node=8, cpus_per_node=48, max_nodes=3, memory_bytes=10**12, here=False,
    scheduler="slurm", slurm=SlurmSpec(partition="alpha", exclusive=True),
)  # fmt: skip


def told(hardware: dict[str, Any] | None = None, nodes: list[Node] = NODES, **slurm: Any) -> dict[str, Claim]:
    wants = dataclasses.replace(ALPHA.slurm, **slurm)
    config = Config(hardware=dataclasses.replace(ALPHA, slurm=wants, **(hardware or {})), measure=MeasureSpec())
    return {line.key: line for line in of_partition(config, nodes)}


def test_lines_of_sinfo() -> None:
    assert NODES[0] == Node("taurusi8001", "alpha", False, "mixed", 96, 48, 990000 * 2**20, "gpu:8(S:0-1)", 10080, ())
    assert (NODES[3].partition, NODES[3].default, NODES[3].features) == ("main", True, ("ssd", "big"))
    assert [node.usable for node in NODES] == [True, True, False, True, False]
    assert parse("\nslurm_load_partitions: Unable to contact\nh1|main|idle|8+|1:8:1|8000|x|1:00|y\n") == []


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("1:00:00", 60), ("7-00:00:00", 10080), ("30:00", 30), ("1:30", 1.5), ("infinite", None), ("n/a", None)],
)
def test_time_limits(limit: str, expected: float | None) -> None:
    assert minutes(limit) == expected


@pytest.mark.parametrize(
    ("gres", "kind", "count"),
    [
        ("gpu:8(S:0-1)", None, 8),
        ("gpu:a100:8(S:0-1),nvme:1", None, 8),
        ("gpu:a100:4,gpu:v100:2", None, 6),
        ("gpu:a100:4,gpu:v100:2", "v100", 2),
        ("gpu:2", "a100", 0),
        ("gpu", None, 1),
        ("(null)", None, 0),
        ("craynetwork:4,shard:gpu", None, 0),
    ],
)
def test_gpus_of_a_node(gres: str, kind: str | None, count: int) -> None:
    assert gpus(gres, kind) == count


def test_a_partition_that_is_as_said() -> None:
    assert [dataclasses.astuple(line) for line in told().values()] == [
        ("slurm.partition", "alpha", "2 of 3 nodes up", OK),
        ("max_nodes", "3", "3 nodes", OK),
        ("cpus_per_node of the partition", "48", "3 x 48 cores (96 CPUs)", OK),
        ("memory_bytes of the partition", "1,000 GB", "3 x 1,038 GB", OK),
        ("slurm.time_minutes", "null: 62, by measure.timeout_s", "limit 10080 minutes", OK),
        ("slurm.gres", "gpu:8", "3 x gpu:8(S:0-1)", OK),
    ]


def test_nodes_that_differ() -> None:
    mixed = [*NODES[:2], dataclasses.replace(NODES[2], cores=32, cpus=32, memory_bytes=2**39, gres="gpu:4")]
    found = told({"max_nodes": 34}, mixed)
    keys = ["max_nodes", "cpus_per_node of the partition", "memory_bytes of the partition", "slurm.gres"]
    assert [found[key].verdict for key in keys] == [DIFFERS] * 4
    assert found["slurm.gres"].here == "2 x gpu:8(S:0-1), gpu:4"


def test_a_job_without_gpus_asks_for_none() -> None:
    assert "slurm.gres" not in told({"devices": "cpu"})
    assert "slurm.gres" not in told(gres="")


@pytest.mark.parametrize(("kind", "verdict"), [("a100", OK), ("A100", OK), ("v100", DIFFERS)])
def test_the_kind_of_gpu_that_is_asked_for(kind: str, verdict: str) -> None:
    line = told({"gpus_per_node": 2}, partition="main", gres=f"gpu:{kind}:{{gpus}}")["slurm.gres"]
    assert (line.said, line.verdict) == (f"gpu:{kind}:2", verdict)


def test_no_such_partition() -> None:
    (line,) = told(partition="alpa").values()
    assert line == Claim("slurm.partition", "alpa", "no partition 'alpa'; did you mean 'alpha'?", DIFFERS)
    (line,) = told(nodes=[]).values()
    assert line.here == "no partition 'alpha'; known: none"


def test_the_default_partition() -> None:
    found = told({"gpus_per_node": 2}, partition=None)
    assert found["slurm.partition"] == Claim("slurm.partition", "null: main", "1 of 2 nodes up", OK)
    (line,) = told(nodes=NODES[:3], partition=None).values()
    assert (line.here, line.verdict) == ("no default partition; known: alpha", DIFFERS)


def test_a_partition_without_a_node_that_is_up() -> None:
    assert told(nodes=NODES[2:3])["slurm.partition"].verdict == DIFFERS


@pytest.mark.parametrize(
    ("asked", "verdict"), [(30, OK), (60, OK), (61, DIFFERS), (None, DIFFERS)]
)  # null asks for the 60 minutes of measure.timeout_s, and 2 to start
def test_the_time_that_a_job_asks_for(asked: int | None, verdict: str) -> None:
    assert told(partition="main", time_minutes=asked)["slurm.time_minutes"].verdict == verdict
    unlimited = [dataclasses.replace(node, limit_minutes=None) for node in NODES]
    assert told(nodes=unlimited, time_minutes=asked)["slurm.time_minutes"].verdict == OK


@pytest.mark.parametrize(("asked", "verdict"), [("ssd", OK), ("hdd", DIFFERS), ("ssd&big", UNCHECKED)])
def test_features(asked: str, verdict: str) -> None:
    line = told(partition="main", constraint=asked)["slurm.constraint"]
    assert (line.here, line.verdict) == ("features big, ssd", verdict)


def test_the_format_has_as_many_fields_as_are_read() -> None:
    assert partition.FORMAT.count("|") == SINFO.splitlines()[0].count("|") == 8
