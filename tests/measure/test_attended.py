"""What nodes told, as a part of the record."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from pathlib import Path

import pytest

from scalebench.gpus import Gpu
from scalebench.machine import Machine
from scalebench.measure import attended
from scalebench.measure.node import NodeFacts, facts_path
from scalebench.records import write_json
from scalebench.spec import RunSpec
from tests.helpers import MACHINE, rank, record, simulated_spec

GPU = Gpu(0, "made up", "GPU-0", 2**35, 1410, 1215, 400.0, 0, None)


def facts(node: int, over: bool = True, **machine: object) -> NodeFacts:
    told: Machine = dataclasses.replace(MACHINE, **{"hostname": f"n{node}", **machine})  # type: ignore[arg-type]
    return NodeFacts(node, 2 * node, told, [], over)


def on_nodes(count: int) -> RunSpec:
    spec = dataclasses.replace(simulated_spec(), nodes=count)
    spec.config.hardware.scheduler = "slurm"
    return spec


def leave(folder: Path, told: NodeFacts) -> None:
    write_json(facts_path(folder, told.node), asdict(told))


def test_the_machine_is_that_of_the_first_node() -> None:
    result = record()
    attended.tell(result, [facts(0), facts(1), facts(2)])
    assert result.machine.hostname == "n0" and [m.hostname for m in result.other_machines or []] == ["n1", "n2"]
    assert result.flags == []


def test_a_part_of_the_others_is_none() -> None:
    result = record()
    attended.tell(result, [None, facts(1), None])
    assert result.machine.hostname == MACHINE.hostname and result.other_machines is None
    attended.tell(result, [facts(0)])
    assert result.machine.hostname == "n0" and result.other_machines is None
    attended.tell(result, [])  # launched here
    assert result.machine.hostname == "n0"


@pytest.mark.parametrize(
    ("other", "flagged"),
    [
        ({"cpu_model": "another processor"}, True),
        ({"memory_bytes": 2**34}, True),
        ({"cpus_physical": 4}, True),
        ({"gpus": [GPU]}, True),
        ({"cpus": 1, "cpus_allowed": [1], "memory_limit_bytes": 2**30}, False),  # what the job was given there
        ({"memory_bytes": 2**33 - 2**28}, False),  # what a kernel keeps for itself
    ],
)
def test_nodes_that_are_not_alike(other: dict[str, object], flagged: bool) -> None:
    result = record()
    attended.tell(result, [facts(0), facts(1), facts(2, **other)])
    assert result.flags == ["unequal_nodes"] * flagged


def test_more_gpus_of_the_same_kind_are_alike() -> None:
    result = record()
    attended.tell(result, [facts(0, gpus=[GPU]), facts(1, gpus=[GPU, GPU])])
    assert result.flags == []


def test_clocks_that_differ() -> None:
    result = record(ranks=[rank(0), rank(1, clock_offset_s=0.2)])
    attended.tell(result, [facts(0), facts(1)])
    assert result.flags == ["clocks_differ"]


def test_nodes_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attended, "WELL_S", 0.1)
    monkeypatch.setattr(attended, "LATE_S", 0.0)
    spec = on_nodes(2)
    leave(tmp_path, facts(0))
    leave(tmp_path, facts(1, over=False))
    told = attended.wait(spec, tmp_path, went_well=True)
    assert [node is not None and node.over for node in told] == [True, False]  # the limit is kept
    monkeypatch.setattr(attended, "WELL_S", 60.0)
    original, looks = attended._read, []

    def late(folder: Path, node: int) -> NodeFacts | None:
        looks.append(node)
        if len(looks) == 6:
            leave(folder, facts(1))
        return original(folder, node)

    monkeypatch.setattr(attended, "_read", late)
    told = attended.wait(spec, tmp_path, went_well=True)
    assert [node is not None and node.over for node in told] == [True, True]
    assert looks.count(0) == 1  # who is done is not asked again


def test_half_a_file_is_none(tmp_path: Path) -> None:
    facts_path(tmp_path, 0).write_text('{"node": 0')
    assert attended.read_nodes(on_nodes(1), tmp_path) == [None]
    assert attended.read_nodes(simulated_spec(), tmp_path) == []  # launched here: whatever lies there
