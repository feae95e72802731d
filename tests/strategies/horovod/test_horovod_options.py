"""Options of the Horovod strategies: what they become, and which do not go together."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.config.resolve import resolve
from scalebench.core.config_files import option_defaults
from scalebench.core.spec import RunSpec, StrategySpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.horovod import group
from scalebench.strategies.horovod.group import HorovodOptions
from tests.builders.runs import simulated_config


def spec(
    name: str = "horovod_mpi", launcher: str = "mpi", backend: str = "mpi", gpus: int = 2, **train: Any
) -> RunSpec:
    made = resolve(simulated_config(size=1000, gpus=gpus))
    made.config.strategy = StrategySpec(name, framework="torch", launcher=launcher, backend=backend)
    made.config.train = dataclasses.replace(made.config.train, **train)
    return made


GLOO = spec("horovod_gloo", "local", "gloo")


NAMES = [f"horovod_{of}" for of in "nccl mpi gloo tensorflow_nccl tensorflow_mpi tensorflow_gloo".split()]


@pytest.mark.parametrize("name", [*NAMES, "lightning_horovod"])
def test_the_yaml_has_all_of_them(name: str) -> None:
    assert option_defaults(name) == dataclasses.asdict(HorovodOptions())


def test_defaults_are_left_to_horovod() -> None:
    """A value set by hand is one that autotune leaves alone, also when it is Horovod's own."""
    transport = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    found = group.environment(GLOO, HorovodOptions())
    assert {name: value for name, value in found.items() if value is not None} == transport
    assert {"HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_AUTOTUNE"} < set(found)


@pytest.mark.parametrize(
    ("chosen", "name", "value"),
    [
        ({"fusion_threshold_mb": 0.5}, "HOROVOD_FUSION_THRESHOLD", "524288"),
        ({"cycle_time_ms": 2.5}, "HOROVOD_CYCLE_TIME", "2.5"),
        ({"cache_capacity": 0}, "HOROVOD_CACHE_CAPACITY", "0"),
        ({"hierarchical_allreduce": True}, "HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
        ({"autotune": True}, "HOROVOD_AUTOTUNE", "1"),
    ],
)
def test_what_is_chosen_reaches_horovod(chosen: dict[str, Any], name: str, value: str) -> None:
    assert group.environment(GLOO, HorovodOptions(**chosen))[name] == value


def test_under_mpirun_everything_travels_over_mpi() -> None:
    found = group.environment(spec(), HorovodOptions())
    assert (found["HOROVOD_CONTROLLER"], found["HOROVOD_CPU_OPERATIONS"]) == ("mpi", "mpi")


@pytest.mark.parametrize(
    ("run", "chosen", "told"),
    [
        (GLOO, {"op": "adasum"}, "Adasum needs Horovod's MPI operations"),
        (spec(gpus=3), {"op": "adasum"}, "3 processes are no power of two"),
        (spec(precision="float16"), {"op": "adasum"}, "use bfloat16"),
        (spec(), {"hierarchical_allreduce": True}, "NCCL within a node"),
        (spec("horovod_nccl", "local", "nccl"), {"hierarchical_allreduce": True}, "launcher=mpi"),
        (spec(), {"cycle_time_ms": 5.0, "fusion_threshold_mb": 1.0}, "set one of them"),
    ],
)
def test_what_does_not_go_together(run: RunSpec, chosen: dict[str, Any], told: str) -> None:
    with pytest.raises(Unsupported, match=told) as caught:
        group.options_check(run, HorovodOptions(**chosen))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("run", [GLOO, spec(), spec("horovod_nccl", "local", "nccl")])
def test_what_does(run: RunSpec) -> None:
    group.options_check(run, HorovodOptions())
    group.options_check(spec(), HorovodOptions(op="adasum", compression="fp16", fusion_threshold_mb=0.0))
    group.options_check(spec("horovod_nccl", "mpi", "nccl"), HorovodOptions(hierarchical_allreduce=True))
