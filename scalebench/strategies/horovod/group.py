"""This process's membership in Horovod's group, under either framework.

Which collective operations Horovod has, with either framework.

Options of the Horovod strategies, and the environment variables that carry them to its background thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import NotMeasured, Unsupported

# Ours -> Horovod's. What is missing here, Horovod has not.
OPERATIONS = {
    "all_reduce": "allreduce",
    "broadcast": "broadcast",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
}


def check(library: object, name: str) -> None:
    """NotMeasured where this Horovod has no such operation. `library` is horovod.torch or horovod.tensorflow."""
    if name not in OPERATIONS:
        raise NotMeasured(f"Horovod has no {name}")
    if not hasattr(library, OPERATIONS[name]):
        raise NotMeasured(f"this Horovod has no {name} yet; 0.28 has")


MEBIBYTE = 2**20
# What a user's environment must not set behind the back of the spec. The timeline's writer keeps a core busy
# between its events, so that it would slow down what is measured: measure.timeline=true writes one afterwards.
TIMELINE = "HOROVOD_TIMELINE"


@dataclass
class HorovodOptions:
    """Defaults are those of Horovod 0.28.1 (horovod/common/operations.cc)."""

    fusion_threshold_mb: float = 128.0  # MiB; gradients that are ready in one cycle travel together up to this size
    cycle_time_ms: float = 1.0  # between two looks of the background thread at what is ready
    cache_capacity: int = 1024  # tensors whose negotiation is remembered; 0: none
    hierarchical_allreduce: bool = False  # NCCL within a node, MPI between nodes
    autotune: bool = False  # Horovod tries thresholds and cycle times while it trains, also while it is measured
    compression: str = "none"  # none | fp16: what gradients travel in
    op: str = "average"  # average | adasum


def options_check(spec: RunSpec, options: HorovodOptions) -> None:
    """Unsupported for what this kind of run cannot do."""
    backend, name = spec.config.strategy.backend, spec.config.strategy.name
    if options.op == "adasum":
        if spec.config.strategy.launcher != "mpi":
            raise Unsupported(f"Adasum needs Horovod's MPI operations, which {name} does not use; take horovod_mpi")
        if spec.processes & (spec.processes - 1):
            raise Unsupported(f"Adasum adds up in pairs, and {spec.processes} processes are no power of two")
        if spec.config.train.precision == "float16":
            raise Unsupported("Adasum takes its steps before a scaled loss is put right; use bfloat16")
    if not is_default(options, "cycle_time_ms") and not is_default(options, "fusion_threshold_mb"):
        raise Unsupported(
            "Horovod 0.28.1 with both cycle_time_ms and fusion_threshold_mb set crashes when it is started anew, "
            "which shows what carried the gradients; set one of them"
        )
    if options.hierarchical_allreduce and (backend != "nccl" or spec.config.strategy.launcher != "mpi"):
        raise Unsupported(
            f"hierarchical_allreduce is NCCL within a node and MPI between nodes, and {name} is not: "
            f"use strategy=horovod_nccl strategy.launcher=mpi"
        )


def environment(spec: RunSpec, options: HorovodOptions) -> dict[str, str | None]:
    """Variables that Horovod reads when it starts, but for those that say where this process stands; None: unset.

    Defaults are left unset: what is set by hand is kept from autotune.
    """
    over_mpi = spec.config.strategy.launcher == "mpi"
    transport = "mpi" if over_mpi else "gloo"  # of the controller, and of tensors on the CPU
    as_given = {
        "HOROVOD_FUSION_THRESHOLD": ("fusion_threshold_mb", int(options.fusion_threshold_mb * MEBIBYTE)),
        "HOROVOD_CYCLE_TIME": ("cycle_time_ms", options.cycle_time_ms),
        "HOROVOD_CACHE_CAPACITY": ("cache_capacity", options.cache_capacity),
        "HOROVOD_HIERARCHICAL_ALLREDUCE": ("hierarchical_allreduce", int(options.hierarchical_allreduce)),
        "HOROVOD_AUTOTUNE": ("autotune", int(options.autotune)),
    }
    chosen = {name: None if is_default(options, key) else str(value) for name, (key, value) in as_given.items()}
    return {"HOROVOD_CONTROLLER": transport, "HOROVOD_CPU_OPERATIONS": transport, **chosen}


def is_default(options: HorovodOptions, key: str) -> bool:
    return bool(getattr(options, key) == getattr(HorovodOptions(), key))


def forgets_fusion(options: HorovodOptions) -> bool:
    """Whether Horovod fuses otherwise once it was started anew: with a cycle time of its own 0.28.1 then takes 1 MiB
    for the threshold (BayesianParameter::SetValue in horovod/common/parameter_manager.cc)."""
    return not is_default(options, "cycle_time_ms")


MPI_THREAD_MULTIPLE = 3  # of Open MPI and of MPICH; what Horovod asks for
LOOK_S = 0.05
CATCH_UP_S = 60.0


class Membership:
    """Joins when it is made; every process of the run has to.

    Over MPI the ranks find each other through mpirun, otherwise at MASTER_ADDR:MASTER_PORT through Horovod's own
    rendezvous server, which rank 0 keeps for as long as that takes.
    """

    def __init__(self, hvd: ModuleType, spec: RunSpec, rank: int, options: HorovodOptions) -> None:
        """`hvd` is horovod.torch or horovod.tensorflow."""
        options_check(spec, options)
        self._hvd, self._rank, self._timeout_s = hvd, rank, spec.group_timeout_s
        self._mpi = MpiLibrary(hvd) if spec.config.strategy.launcher == "mpi" else None
        if os.environ.pop(TIMELINE, None) is not None:
            print(f"{TIMELINE} is left out, its writer would be measured too: use measure.timeline=true", flush=True)
        for name, value in {
            **environment(spec, options),
            **_place(spec, rank, self._timeout_s),
        }.items():
            os.environ.pop(name, None)  # options are the config's, whatever stands in the user's environment
            if value is not None:
                os.environ[name] = value
        self._join(int(os.environ["MASTER_PORT"]))

    @contextlib.contextmanager
    def recorded(self, path: Path, share: Callable[[float], float]) -> Iterator[None]:
        """Within this, rank 0's background thread writes its timeline to `path`; `share` broadcasts rank 0's number.

        Horovod settles that when it starts, so it is started anew before and after. `path` has to be the same in all
        calls: with another one it writes nothing while an event of the last is left.
        """
        os.environ[TIMELINE] = str(path)
        try:
            self._rejoin(share)
            yield
            share(0.0)  # a broadcast stands in the timeline after everything else
            if self._rank == 0:
                _wait_for("BROADCAST", path)
        finally:
            del os.environ[TIMELINE]
        self._rejoin(share)

    def leave(self) -> None:
        """May be called twice."""
        self._hvd.shutdown()
        if self._mpi is not None:
            self._mpi.finalize()

    def _rejoin(self, share: Callable[[float], float]) -> None:
        port = int(share(_free_port() if self._rank == 0 else 0.0))
        self._hvd.shutdown()
        self._join(port)

    def _join(self, port: int) -> None:
        with contextlib.ExitStack() as stack:
            if self._mpi is None:
                os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
                if self._rank == 0:
                    stack.enter_context(_rendezvous_server(port))
                else:
                    _wait_for_server(os.environ["MASTER_ADDR"], port, self._timeout_s)
            self._hvd.init()


class MpiLibrary:
    """MPI is initialised here and not by Horovod, which would finalise it as well: that can be done once per process,
    and Horovod is to start more than once."""

    def __init__(self, hvd: ModuleType) -> None:
        self._library = hvd.mpi_ops._basics.MPI_LIB_CTYPES  # Horovod's extension, linked to the MPI that it calls
        provided = ctypes.c_int()
        if self._library.MPI_Init_thread(None, None, MPI_THREAD_MULTIPLE, ctypes.byref(provided)) != 0:
            raise RuntimeError("MPI_Init_thread failed; the lines above are its own")
        self._joined = True

    def finalize(self) -> None:
        if self._joined:
            self._joined = False
            self._library.MPI_Finalize()


def _place(spec: RunSpec, rank: int, timeout_s: float) -> dict[str, str]:
    """Where this process stands, as Horovod's Gloo controller reads it; under MPI it asks MPI."""
    place = spec.places[rank]
    # One process of each node has this local rank, as long as nodes have as many.
    across = [p for p in spec.places if p.local_rank == place.local_rank]
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(spec.processes),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(sum(p.node == place.node for p in spec.places)),
        "HOROVOD_CROSS_RANK": str([p.rank for p in across].index(rank)),
        "HOROVOD_CROSS_SIZE": str(len(across)),
        "HOROVOD_HOSTNAME": f"node{place.node}",  # a name of the group of local ranks
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": os.environ["MASTER_ADDR"],
        "HOROVOD_GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME", ""),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(int(timeout_s)),
    }


@contextlib.contextmanager
def _rendezvous_server(port: int) -> Iterator[None]:
    try:
        server = RendezvousHTTPServer(("", port), RendezvousHandler, 0)
    except OSError as error:
        raise RuntimeError(f"port {port} of the rendezvous was taken by another program; run it again") from error
    thread = threading.Thread(target=server.serve_forever, args=(LOOK_S,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _wait_for_server(host: str, port: int, limit_s: float) -> None:
    """Horovod itself tries three times within two seconds, which rank 0 may not have made its start in."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((host, port), timeout=limit_s).close()
            return
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"rank 0 did not open its rendezvous at {host}:{port}: {error.strerror}") from error
            time.sleep(LOOK_S)


def _wait_for(word: str, path: Path) -> None:
    """Until the writer has come to it; what it has not written when Horovod stops is lost."""
    deadline_s = time.monotonic() + CATCH_UP_S
    while not (path.exists() and word in path.read_text(errors="replace")):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"Horovod's timeline was not written within {CATCH_UP_S:g} s; is the disk full?")
        time.sleep(LOOK_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
