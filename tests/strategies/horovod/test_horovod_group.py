"""Horovod's options, the variables that set them, joining its group, and reading its timeline, with recorded ones."""

import dataclasses
import json
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.config.resolve import resolve
from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.json_files import read_json
from scalebench.core.spec import RankPlacement, StrategySpec
from scalebench.runner.launchers.rank_environment import find_free_ports
from scalebench.strategies.base import Unsupported, WrongGroup
from scalebench.strategies.horovod import group
from scalebench.strategies.horovod.lightning import LightningHorovod
from scalebench.strategies.horovod.timeline import CARRIER_BACKENDS, PHASES, ObservedSync, read_timeline, union_length
from tests.builders.runs import simulated_config, simulated_spec

pytest.importorskip("horovod", reason="Horovod is not installed; make horovod")


def spec(name="horovod_mpi", launcher="mpi", backend="mpi", gpus=2, **train):
    made = resolve(simulated_config(size=1000, gpus=gpus))
    made.config.strategy = StrategySpec(
        name, framework="torch", launcher=launcher, backend=backend, options=strategy_option_defaults("horovod")
    )
    made.config.train = dataclasses.replace(made.config.train, **train)
    return made


def options(**chosen):
    return SimpleNamespace(**{**strategy_option_defaults("horovod"), **chosen})


GLOO = spec("horovod_gloo", "local", "gloo")


def test_variables_of_options():
    """Autotune does not vary a value that is set, even to Horovod's default."""
    transport = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    actual = group.horovod_variables(GLOO, options())
    assert {name: value for name, value in actual.items() if value is not None} == transport
    assert {"HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_AUTOTUNE"} < set(actual)
    actual = group.horovod_variables(spec(), options())
    assert (actual["HOROVOD_CONTROLLER"], actual["HOROVOD_CPU_OPERATIONS"]) == ("mpi", "mpi")
    for chosen, name, value in (
        ({"fusion_threshold_mb": 0.5}, "HOROVOD_FUSION_THRESHOLD", "524288"),
        ({"cycle_time_ms": 2.5}, "HOROVOD_CYCLE_TIME", "2.5"),
        ({"cache_capacity": 0}, "HOROVOD_CACHE_CAPACITY", "0"),
        ({"hierarchical_allreduce": True}, "HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
        ({"autotune": True}, "HOROVOD_AUTOTUNE", "1"),
    ):
        assert group.horovod_variables(GLOO, options(**chosen))[name] == value


def test_a_strategy_refuses_what_its_plan_does():
    with pytest.raises(Unsupported, match="3 processes are not a power of two"):
        group.HorovodGroup(None, spec(gpus=3), 0, options(op="adasum"), list)


BUILT = "Horovod 0.28.1 was built "
NO_MPI = f"{BUILT}without MPI: apt-get install openmpi-bin libopenmpi-dev, then scalebench install horovod"
NO_GLOO = f"{BUILT}without Gloo: scalebench install horovod rebuilds it"
NO_NCCL = (
    f"{BUILT}without NCCL: HOROVOD_GPU_OPERATIONS=NCCL scalebench install horovod, on a machine with nvcc and NCCL"
)
NO_TENSORFLOW_NCCL = (
    f"{BUILT}without NCCL: its operations for it do not compile with TensorFlow; use strategy=multiworker_nccl"
)
ALL_OVER_NCCL = f"{BUILT}with NCCL, which then carries all gradients on GPUs: use strategy=horovod_nccl, or for"
NO_CUDA = f"{BUILT}without CUDA, and would average gradients on GPUs before they are copied"


@pytest.mark.gpu
@pytest.mark.parametrize(("features", "framework", "backend", "launcher", "device", "reason"), [
    ("mpi gloo", "torch", "gloo", "local", "cpu", None),
    ("mpi gloo", "torch", "mpi", "mpi", "cpu", None),
    ("mpi gloo", "tensorflow", "auto", "local", "cpu", None),
    ("mpi gloo", "torch", "nccl", "local", "cuda", NO_NCCL),
    ("mpi gloo", "tensorflow", "nccl", "local", "cuda", NO_TENSORFLOW_NCCL),
    ("mpi gloo nccl cuda", "torch", "nccl", "mpi", "cuda", None),
    ("gloo nccl", "torch", "nccl", "mpi", "cuda", NO_MPI),
    ("gloo", "torch", None, "mpi", "cpu", NO_MPI),
    ("mpi", "torch", "auto", "local", "cpu", NO_GLOO),
    ("mpi gloo nccl cuda", "torch", "gloo", "local", "cuda", f"{ALL_OVER_NCCL} Gloo "),
    ("mpi gloo nccl cuda", "torch", "mpi", "mpi", "cuda", f"{ALL_OVER_NCCL} MPI "),
    ("mpi gloo nccl cuda", "torch", "gloo", "local", "cpu", None),
    # One without CUDA does not wait for gradients on GPUs; TensorFlow copies tensors of operations on CPUs itself.
    ("gloo", "torch", "gloo", "local", "cuda", NO_CUDA),
    ("gloo cuda", "torch", "gloo", "local", "cuda", None),
    ("gloo", "tensorflow", "gloo", "local", "cuda", None),
    ("gloo", "torch", "gloo", "local", "cpu", None),
])  # fmt: skip
def test_a_rank_refuses_what_its_build_cannot_carry(features, framework, backend, launcher, device, reason):
    made = spec("horovod", launcher, backend)
    made.config.strategy.framework, made.device = framework, device
    hvd = SimpleNamespace(
        **{f"{name}_built": lambda name=name: name in features.split() for name in ("mpi", "gloo", "nccl", "cuda")}
    )
    first = next(iter(group.build_reasons(hvd, made)), None)
    assert (first is None) == (reason is None) and (first or "").startswith(reason or "")


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


@pytest.mark.parametrize(
    ("rank", "position"), [(1, (0, 1)), (0, (0, 1)), (1, (0, 2)), (1, (1, 3)), pytest.param(1, (1, 2), id="as it is")]
)
def test_a_group_of_another_size_or_order_is_refused(rank, position, monkeypatch):
    """Under the mpirun of another MPI than Horovod's each process is rank 0 of 1, and would scale perfectly."""
    monkeypatch.setattr(group.os, "environ", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9", "PMI_RANK": str(rank)})
    mpi = SimpleNamespace(_basics=SimpleNamespace(MPI_LIB_CTYPES=FakeMpi()))
    hvd = SimpleNamespace(init=lambda: None, rank=lambda: position[0], size=lambda: position[1], mpi_ops=mpi)
    hvd.mpi_built = lambda: True
    if position == (rank, 2):
        group.HorovodGroup(hvd, spec(), rank, options(), list)
        return
    with pytest.raises(WrongGroup) as caught:
        group.HorovodGroup(hvd, spec(), rank, options(), list)
    assert str(caught.value) == (
        f"Horovod has rank {rank} of 2 as rank {position[0]} of {position[1]}, so that the ranks would not train "
        f"together; {group.OTHER_MPI}"
    )


def test_waiting_for_a_late_or_missing_rank_0(monkeypatch):
    monkeypatch.setattr(group.os, "environ", {"MASTER_ADDR": "127.0.0.1"})
    port, arrived = find_free_ports(1)[0], []

    def wait():
        group.open_rendezvous(1, port, 30.0)
        arrived.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    opened = time.monotonic()
    server = group.open_rendezvous(0, port, 30.0)
    waiting.join()
    with pytest.raises(OSError):  # another address of this host, on which Horovod's own server would listen too
        socket.create_connection(("127.0.0.2", port))
    server.shutdown()
    server.server_close()
    assert arrived[0] >= opened
    reason = f"^rank 0 did not open its rendezvous at 127.0.0.1:{port}: Connection refused"
    with pytest.raises(RuntimeError, match=reason):
        group.open_rendezvous(1, port, 0.1)


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


RECORDINGS = Path(__file__).parents[2] / "golden" / "recordings"


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "message_bytes", "phases_us"), [
    ("horovod_nccl_fused", [2600], {"negotiate_s": 100, "queue_s": 50, "memcpy_s": 30, "allreduce_s": 200}),
    ("horovod_nccl_unfused", [2560, 40], {"negotiate_s": 100, "queue_s": 214, "memcpy_s": 0, "allreduce_s": 251}),
    # NCCL within the nodes, then MPI between them: it is NCCL's message, and its seconds reach to the last part.
    ("horovod_hierarchical", [2600], {"negotiate_s": 100, "queue_s": 20, "memcpy_s": 90, "allreduce_s": 480}),
])  # fmt: skip
def test_timelines_of_gpus(name, message_bytes, phases_us):
    observed = read_timeline(read_json(RECORDINGS / f"{name}.json"), 2)
    assert (observed.backend, observed.message_bytes) == ("nccl", message_bytes)
    assert {key: round(seconds * 1e6) for key, seconds in observed.phases_s.items()} == phases_us


def test_the_backend_of_the_messages_and_events_of_an_earlier_file():
    """Events that were pending when Horovod stopped are in the next file."""
    fused = (RECORDINGS / "horovod_nccl_fused.json").read_text()
    made = {carrier: json.loads(fused.replace("NCCL_ALLREDUCE", carrier)) for carrier in CARRIER_BACKENDS}
    assert {carrier: read_timeline(each, 2).backend for carrier, each in made.items()} == CARRIER_BACKENDS
    assert read_timeline(made["NCCL_ALLREDUCE"] + made["MPI_ALLREDUCE"], 4).backend == "mpi+nccl"
    assert read_timeline([], 3) == ObservedSync(None, [], dict.fromkeys(PHASES, 0.0))
    pending = [{"ph": "E", "ts": 1, "pid": 1}, {"ph": "E", "ts": 2, "pid": 1, "args": {}}]
    assert read_timeline(pending + made["NCCL_ALLREDUCE"], 2) == read_timeline(made["NCCL_ALLREDUCE"], 2)


def test_tensors_of_any_type_have_a_size():
    """The indices of sparse gradients are int64."""
    sizes = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int64": 8, "uint8": 1, "bool": 1}
    for dtype, size_bytes in sizes.items():
        args = {"dtype": dtype, "shape": "[2, 5]"}
        sent = [{"ph": "B", "ts": 1, "pid": 1, "name": "GLOO_ALLREDUCE"}, {"ph": "E", "ts": 2, "pid": 1, "args": args}]
        assert read_timeline(sent, 2).message_bytes == [10 * size_bytes]


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair))))


@given(spans)
def test_union_of_spans(pairs):
    """Compare with the number of covered unit intervals."""
    covered = {unit for begin, end in pairs for unit in range(begin, end)}
    assert union_length([(float(a), float(b)) for a, b in pairs]) == len(covered)
