"""Horovod's options, the variables that set them, and joining its group."""

import dataclasses
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("horovod", reason="Horovod is not installed; make horovod")

from scalebench.config.resolve import resolve
from scalebench.core.spec import RankPlacement, StrategySpec
from scalebench.runner.launchers.rank_environment import find_free_ports
from scalebench.strategies.base import Unsupported, WrongGroup
from scalebench.strategies.horovod import group
from scalebench.strategies.horovod import tensorflow as horovod_tensorflow
from scalebench.strategies.horovod.group import HorovodOptions
from scalebench.strategies.horovod.lightning import LightningHorovod
from scalebench.strategies.horovod.torch import HorovodTorch
from tests.builders.runs import simulated_config, simulated_spec


def spec(name="horovod_mpi", launcher="mpi", backend="mpi", gpus=2, **train):
    made = resolve(simulated_config(size=1000, gpus=gpus))
    made.config.strategy = StrategySpec(name, framework="torch", launcher=launcher, backend=backend)
    made.config.train = dataclasses.replace(made.config.train, **train)
    return made


GLOO = spec("horovod_gloo", "local", "gloo")


def test_variables_of_options():
    """Autotune does not vary a value that is set, even to Horovod's default."""
    transport = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    actual = group.horovod_variables(GLOO, HorovodOptions())
    assert {name: value for name, value in actual.items() if value is not None} == transport
    assert {"HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_AUTOTUNE"} < set(actual)
    actual = group.horovod_variables(spec(), HorovodOptions())
    assert (actual["HOROVOD_CONTROLLER"], actual["HOROVOD_CPU_OPERATIONS"]) == ("mpi", "mpi")
    for chosen, name, value in (
        ({"fusion_threshold_mb": 0.5}, "HOROVOD_FUSION_THRESHOLD", "524288"),
        ({"cycle_time_ms": 2.5}, "HOROVOD_CYCLE_TIME", "2.5"),
        ({"cache_capacity": 0}, "HOROVOD_CACHE_CAPACITY", "0"),
        ({"hierarchical_allreduce": True}, "HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
        ({"autotune": True}, "HOROVOD_AUTOTUNE", "1"),
    ):
        assert group.horovod_variables(GLOO, HorovodOptions(**chosen))[name] == value


def test_a_strategy_refuses_what_its_plan_does():
    with pytest.raises(Unsupported, match="Adasum needs Horovod's MPI operations"):
        group.HorovodGroup(None, GLOO, 0, HorovodOptions(op="adasum"))
    for kind, reason in ((HorovodTorch, "take op=average"), (LightningHorovod, "averages gradients")):
        run = spec(accumulate=2)
        run.config.strategy.options = {"op": "adasum"}
        with pytest.raises(Unsupported, match=reason):
            kind(run, 0)


def test_isolated_synchronization_sends_the_same_buffers_again(monkeypatch):
    """Making them takes longer than sending them within a host, and is no part of it."""
    sent = []
    monkeypatch.setattr(horovod_tensorflow.hvd, "allreduce", lambda tensor, **keywords: sent.append(tensor))
    one = horovod_tensorflow.HorovodTensorFlow(GLOO, 0)
    one.devices = ["/CPU:0"]
    for _ in range(2):
        one.run_isolated_sync([400, 8])
    assert [len(each) for each in sent] == [100, 2, 100, 2]
    assert sent[0] is sent[2] and sent[1] is sent[3]


@pytest.mark.gpu
def test_lightning_trains_on_the_gpu_by_its_number_in_this_process():
    """Where SLURM shows each rank its own GPU, that is 0, whatever its number on the node."""
    one = LightningHorovod(GLOO, 0)
    one.place, one.device = dataclasses.replace(one.place, devices=[1]), torch.device("cuda", 0)
    assert one.trainer_arguments()["devices"] == [0]


class FakeMpi:
    """Open MPI's library as Horovod is linked to it."""

    def MPI_Init_thread(self, *arguments):
        return 0

    def MPI_Get_library_version(self, text, length):
        text.value = b"Open MPI v4.1.4, package: Debian OpenMPI"
        return 0


@pytest.mark.parametrize(
    ("rank", "position"), [(1, (0, 1)), (0, (0, 1)), (1, (0, 2)), (1, (1, 3)), pytest.param(1, (1, 2), id="as it is")]
)
def test_a_group_of_another_size_or_order_is_refused(rank, position, monkeypatch):
    """Under the mpirun of another MPI than Horovod's each process is rank 0 of 1, and would scale perfectly."""
    monkeypatch.setattr(group.os, "environ", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9", "PMI_RANK": str(rank)})
    mpi = SimpleNamespace(_basics=SimpleNamespace(MPI_LIB_CTYPES=FakeMpi()))
    hvd = SimpleNamespace(init=lambda: None, rank=lambda: position[0], size=lambda: position[1], mpi_ops=mpi)
    if position == (rank, 2):
        group.HorovodGroup(hvd, spec(), rank, HorovodOptions())
        return
    with pytest.raises(WrongGroup) as caught:
        group.HorovodGroup(hvd, spec(), rank, HorovodOptions())
    assert str(caught.value) == (
        f"Horovod has rank {rank} of 2 as rank {position[0]} of {position[1]}, so that the ranks would not train "
        "together; an mpirun with PMI (MPICH or Intel MPI) started the processes, and Horovod was built with Open MPI "
        "v4.1.4: put the mpirun of that MPI first on the PATH, build Horovod anew with the other (scalebench install "
        "horovod), or use it over Gloo"
    )


def test_waiting_for_a_late_rank_0():
    port, arrived = find_free_ports(1)[0], []

    def wait():
        group._wait_for_server("127.0.0.1", port, 30.0)
        arrived.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    opened = time.monotonic()
    with group._rendezvous_server(socket.create_server(("127.0.0.1", port))):
        waiting.join()
        with pytest.raises(OSError):  # another address of this host, on which Horovod's own server would listen too
            socket.create_connection(("127.0.0.2", port))
    assert arrived[0] >= opened


def test_waiting_for_a_missing_rank_0():
    port = find_free_ports(1)[0]
    with pytest.raises(
        RuntimeError, match=f"^rank 0 did not open its rendezvous at 127.0.0.1:{port}: Connection refused"
    ):
        group._wait_for_server("127.0.0.1", port, 0.1)


@pytest.mark.parametrize(("rank", "local", "cross"), [(0, (0, 3), (0, 2)), (2, (2, 3), (0, 1)), (4, (1, 2), (1, 2))])
def test_position_of_each_rank(rank, local, cross, monkeypatch):
    """Two nodes have three and two ranks; pairs are (rank, size) on the node and among equal local ranks."""
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    spec = simulated_spec(gpus=2)
    spec.places = [RankPlacement(k, k % 3, k // 3, [k % 3], [], 1) for k in range(5)]
    actual = group._rank_variables(spec, rank, 7.0)
    numbers = {name.removeprefix("HOROVOD_"): value for name, value in actual.items()}
    assert (numbers["RANK"], numbers["SIZE"]) == (str(rank), "5")
    assert (numbers["LOCAL_RANK"], numbers["LOCAL_SIZE"]) == tuple(map(str, local))
    assert (numbers["CROSS_RANK"], numbers["CROSS_SIZE"]) == tuple(map(str, cross))
    assert numbers["HOSTNAME"] == f"node{rank // 3}"
    assert (numbers["GLOO_RENDEZVOUS_ADDR"], numbers["GLOO_IFACE"]) == ("node1", "ib0")
    assert numbers["GLOO_TIMEOUT_SECONDS"] == "7"
