"""What the keeper of a node's first rank leaves of it, with the real monitor and the real machine."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

import pytest

from scalebench.measure import attended, node
from scalebench.measure.monitor import series_path
from scalebench.measure.monitor.series import read_series
from scalebench.measure.node import attend_node, attended_by_nodes, facts_path
from scalebench.spec import Place, RunSpec, write_spec
from tests.helpers import simulated_config, simulated_spec

PLACES = [Place(0, 0, 0, [0], [], 1), Place(1, 1, 0, [1], [], 1), Place(2, 0, 1, [0], [], 1)]


def on_nodes(folder: Path, monitor: bool = True) -> RunSpec:
    """A run on two nodes, described in `folder`."""
    spec = simulated_spec(measure={"monitor": monitor})
    spec = dataclasses.replace(spec, nodes=2, places=PLACES)
    spec.config.hardware.hosts = ["a:2", "b:1"]
    write_spec(spec, folder)
    return spec


def test_who_attends() -> None:
    config = simulated_config()
    assert not attended_by_nodes(simulated_spec())
    for hardware in ({"scheduler": "slurm"}, {"hosts": ["a:2"]}):
        changed = dataclasses.replace(config, hardware=dataclasses.replace(config.hardware, **hardware))
        assert attended_by_nodes(dataclasses.replace(simulated_spec(), config=changed))
    by_hand = dataclasses.replace(config, strategy=dataclasses.replace(config.strategy, launcher="by_hand"))
    assert attended_by_nodes(dataclasses.replace(simulated_spec(), config=by_hand))


def test_the_second_node_tells_of_itself(tmp_path: Path) -> None:
    spec = on_nodes(tmp_path)
    with attend_node(spec, tmp_path, 1, 2):
        pass
    assert attended.read_nodes(spec, tmp_path)[0] is None  # of the other one nobody knows anything
    facts = attended.read_nodes(spec, tmp_path)[1]
    assert facts is not None and (facts.node, facts.rank, facts.over, facts.monitor_reason) == (1, 2, True, None)
    assert facts.machine.hostname == platform.node() and facts.oom_killed in (False, None)
    assert read_series(series_path(tmp_path, 1)).values("memory", "available_bytes")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["machine1.json", "monitor1.parquet", "spec.json"]


def test_without_a_monitor_the_machine_is_told_all_the_same(tmp_path: Path) -> None:
    spec = on_nodes(tmp_path, monitor=False)
    with attend_node(spec, tmp_path, 0, 0):
        pass
    facts = attended.read_nodes(spec, tmp_path)[0]
    assert facts is not None and facts.monitor_reason == "measure.monitor=false"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["machine0.json", "spec.json"]


@pytest.mark.parametrize(("hosts", "rank"), [(["a:2", "b:1"], 1), ([], 0)], ids=["second rank", "launched here"])
def test_who_has_nothing_to_attend(tmp_path: Path, hosts: list[str], rank: int) -> None:
    spec = on_nodes(tmp_path)
    spec.config.hardware.hosts = hosts
    with attend_node(spec, tmp_path, 0, rank):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["spec.json"]


def test_a_machine_that_cannot_be_told_is_no_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(node.machine, "detect", broken)
    with attend_node(on_nodes(tmp_path), tmp_path, 0, 0):
        pass
    assert not facts_path(tmp_path, 0).exists() and series_path(tmp_path).exists()


def test_an_out_of_memory_kill_on_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr(node.machine, "oom_kills", lambda: next(counts))
    spec = on_nodes(tmp_path, monitor=False)
    with attend_node(spec, tmp_path, 0, 0):
        pass
    assert attended.oom_killed(attended.read_nodes(spec, tmp_path))
