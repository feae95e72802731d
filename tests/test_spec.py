"""The resolved run as a file."""

from __future__ import annotations

from pathlib import Path

from scalebench.spec import Config, Place, RunSpec, read_spec, write_spec
from tests.helpers import simulated_spec


def run_spec() -> RunSpec:
    config = Config(gpus=2)
    config.strategy.options = {"step_s": 0.5, "fault": "none"}
    config.hardware.links = {"intra_node": None}
    places = [Place(rank, rank, 0, [rank], [rank], 1) for rank in range(2)]
    return RunSpec(config, "cpu", 2, 1, places, 75, 150, "0123456789abcdef", ["oversubscribed"], "no GPU")


def test_a_run_survives_its_file(tmp_path: Path) -> None:
    spec = run_spec()
    write_spec(spec, tmp_path)
    assert read_spec(tmp_path) == spec


def test_label_and_processes() -> None:
    spec = run_spec()
    spec.config.strategy.name = "ddp"
    assert (spec.label, spec.processes) == ("ddp gpus=2", 2)


def test_a_hang_is_noticed_by_the_launcher_first() -> None:
    """A rank that waits for another gives up only after the launcher has seen that none makes progress."""
    spec = simulated_spec(measure={"hang_s": 7.0})
    assert spec.group_timeout_s > 7.0
    spec.config.debug = True
    assert spec.group_timeout_s >= 3600
