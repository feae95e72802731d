"""The groups behind the meshes of sharded strategies, of processes and GPUs that are not there."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from scalebench.strategies.torch.sharded.fsdp import Fsdp, Hsdp


@pytest.fixture
def four_processes():
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def strategy(kind, **options):
    made = object.__new__(kind)
    made.device = torch.device("cuda:0")
    made.spec = SimpleNamespace(processes=4, nodes=1, group_timeout_s=77.0)
    made.options = SimpleNamespace(**options)
    return made


@pytest.mark.usefixtures("four_processes")
def test_a_mesh_of_all_processes_has_the_group_itself():
    """Another one would have the backend that PyTorch prefers for GPUs, and its own time limit."""
    mesh = strategy(Fsdp).build_mesh()
    assert mesh.get_group() is dist.group.WORLD and mesh.size() == 4


@pytest.mark.usefixtures("four_processes")
def test_groups_along_the_axes_have_the_time_limit_of_the_run(monkeypatch):
    made, new_group = [], dist.new_group

    def record(ranks=None, timeout=None, **more):
        made.append((ranks, timeout))
        return new_group(ranks, timeout, **more)

    monkeypatch.setattr(dist.distributed_c10d, "new_group", record)
    mesh = strategy(Hsdp, shards=2).build_mesh()
    assert mesh.mesh_dim_names == ("copy", "shard") and mesh.mesh.tolist() == [[0, 1], [2, 3]]
    assert made and {timeout for _, timeout in made} == {timedelta(seconds=77)}
    groups = [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in ("copy", "shard")]
    assert groups == [[0, 2], [0, 1]]
