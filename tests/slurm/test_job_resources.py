"""Nodes, tasks, cores, GPUs and memory of a job, and the step that starts its ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.core.errors import InputError
from scalebench.core.spec import RankPlacement
from scalebench.slurm.resources import JobGeometry, job_geometry, srun_command, time_limit_minutes
from tests.slurm.builders import FOLDER, GPU_NODES, ROLES, run
from tests.slurm.builders import places as places

KEEPER = ["-m", "scalebench.runner.launchers.rank_agent", str(FOLDER), "scalebench.runner.worker"]
PYTHON = "/home/user/venv/bin/python"


def words_of(*arguments: Any, **more: Any) -> list[str]:
    words = srun_command(*arguments, **more)
    assert words[-4:] == KEEPER
    return words[:-4]


@pytest.mark.parametrize(
    ("gpus", "told", "wanted"),
    [
        (1, {}, JobGeometry(1, 1, 1, True, 4, False)),
        (2, {}, JobGeometry(1, 2, 2, True, 4, False)),
        (3, {}, JobGeometry(2, 3, 2, False, 4, False)),
        (4, {"memory": "64G", "exclusive": True}, JobGeometry(2, 4, 2, True, 4, False, memory="64G")),
        (16, {"nodes": GPU_NODES, "exclusive": True}, JobGeometry(2, 16, 8, True, 6, False, 8, "gpu:8", "0")),
        (9, {"nodes": GPU_NODES, "gres": "gpu:a100:{gpus}"}, JobGeometry(2, 9, 8, False, 6, False, 8, "gpu:a100:8")),
        (3, {"nodes": GPU_NODES, "gres": ""}, JobGeometry(1, 3, 3, True, 6, False, 3)),
        (2, {"nodes": GPU_NODES | {"device_ids": [1, 5]}}, JobGeometry(1, 2, 2, True, 6, False, 6, "gpu:6")),
        (2, {"strategy": {"processes": "one_for_all"}}, JobGeometry(1, 1, 1, True, 8, False)),
        (2, {"strategy": {"processes": ROLES}}, JobGeometry(1, 4, 4, True, 2, False)),
        (4, {"strategy": {"processes": ROLES}}, JobGeometry(2, 6, 4, False, 2, False)),
        (2, {"nodes": {"cpus_per_node": 3}, "strategy": {"processes": ROLES}}, JobGeometry(1, 4, 4, True, 1, True)),
        (2, {"nodes": {"cpus_per_device": 8}}, JobGeometry(1, 2, 2, True, 4, False)),
        (2, {"nodes": {"cpus_per_node": None, "cpus_per_device": 8}}, JobGeometry(1, 2, 2, True, 8, False)),
    ],
)
def test_what_a_run_asks_for(gpus: int, told: dict[str, Any], wanted: JobGeometry) -> None:
    assert job_geometry(run(gpus, **told)) == wanted


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 16), st.booleans())
def test_a_node_is_never_asked_for_more_cores_than_it_has(gpus: int, each: int, cores: int, roles: bool) -> None:
    nodes = {"gpus_per_node": each, "cpus_per_node": cores, "max_nodes": 12}
    spec = run(gpus, nodes, {"processes": ROLES} if roles else None)
    shape = job_geometry(spec)
    assert shape.overcommit or shape.tasks_per_node * shape.cpus_per_task <= cores
    assert shape.nodes * shape.tasks_per_node >= shape.tasks == spec.processes
    assert shape.even == (shape.nodes * shape.tasks_per_node == shape.tasks)


@pytest.mark.parametrize(
    ("told", "timeout_s", "minutes"), [(None, 3600.0, 62), (None, 3601.0, 63), (5, 3600.0, 5), (None, 60.0, 3)]
)
def test_the_time_limit_leaves_time_to_start(told: int | None, timeout_s: float, minutes: int) -> None:
    spec = run(1, time_minutes=told)
    spec.config.measure.timeout_s = timeout_s
    assert time_limit_minutes(spec) == minutes


@pytest.mark.usefixtures("places")
class TestRankCommand:
    def test_as_many_on_each_node(self) -> None:
        assert words_of(run(4), FOLDER) == [
            "srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=4", "--cpu-bind=none",
            "--kill-on-bad-exit=0", PYTHON,
        ]  # fmt: skip

    def test_within_a_larger_allocation_the_nodes_are_named(self) -> None:
        words = words_of(run(4), FOLDER, hosts=["h2", "h2", "h5", "h5"], bin="/opt/slurm/bin")
        assert words[0] == "/opt/slurm/bin/srun" and "--nodelist=h2,h5" in words

    def test_unequally_many_are_dealt_out_by_a_file(self) -> None:
        words = words_of(run(3), FOLDER, hosts=["h1", "h1", "h2"])
        assert words[1:4] == ["--nodes=2", "--ntasks=3", "--distribution=arbitrary"]
        assert not any("nodelist" in word or "per-node" in word for word in words)

    def test_more_ranks_than_cores(self) -> None:
        spec = run(2, {"cpus_per_node": 3}, {"processes": ROLES})
        assert "--overcommit" in words_of(spec, FOLDER) and "--overcommit" not in words_of(run(2), FOLDER)

    def test_mpi_through_srun_is_for_strategies_with_mpi_only(self) -> None:
        mpi = {"launcher": "mpi"}
        assert "--mpi=pmix" in words_of(run(2, None, mpi, mpi="pmix"), FOLDER)
        assert not any("--mpi" in word for word in words_of(run(2, mpi="pmix"), FOLDER))
        assert not any("--mpi" in word for word in words_of(run(2, None, mpi), FOLDER))

    def test_further_options_stand_before_the_program(self) -> None:
        words = words_of(run(2, srun=["--overlap", "--label=yes"]), FOLDER)
        assert words[-3:-1] == ["--overlap", "--label=yes"] and words[-1] == PYTHON
        with pytest.raises(InputError, match="--nodes comes from"):
            srun_command(run(2, srun=["--nodes=1"]), FOLDER)

    def test_another_module(self) -> None:
        assert srun_command(run(1), FOLDER, "other.module")[-1] == "other.module"


def test_ranks_may_stand_anywhere_as_long_as_their_nodes_are_in_order() -> None:
    spec = dataclasses.replace(
        run(3), places=[RankPlacement(rank, 0, node, [0], [], 1) for rank, node in enumerate([0, 1, 1])]
    )
    assert (job_geometry(spec).tasks_per_node, job_geometry(spec).even) == (2, False)
