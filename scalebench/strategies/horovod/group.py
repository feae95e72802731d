"""Horovod under either framework: its options, the environment variables that set them, and joining its group."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import horovod
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from scalebench.core import config_files
from scalebench.core.spec import RunSpec
from scalebench.strategies import refusals
from scalebench.strategies.base import NotMeasured, check_group, listen_for_ranks

MEBIBYTE = 2**20
# A user's environment must not set it: the timeline's writer keeps a core busy between its events, and would slow down
# what is measured. measure.timeline=true writes a timeline afterwards.
TIMELINE_VARIABLE = "HOROVOD_TIMELINE"


def horovod_variables(spec: RunSpec, options: Any) -> dict[str, str | None]:
    """Return the variables for Horovod's options and transport, which it reads when it starts; None: unset.

    Defaults are left unset, since autotune does not vary values that are set.
    """
    transport = "mpi" if spec.config.strategy.launcher == "mpi" else "gloo"  # of the controller and of CPU tensors
    values = {
        "HOROVOD_FUSION_THRESHOLD": ("fusion_threshold_mb", int(options.fusion_threshold_mb * MEBIBYTE)),
        "HOROVOD_CYCLE_TIME": ("cycle_time_ms", options.cycle_time_ms),
        "HOROVOD_CACHE_CAPACITY": ("cache_capacity", options.cache_capacity),
        "HOROVOD_HIERARCHICAL_ALLREDUCE": ("hierarchical_allreduce", int(options.hierarchical_allreduce)),
        "HOROVOD_AUTOTUNE": ("autotune", int(options.autotune)),
    }
    defaults = config_files.strategy_option_defaults("horovod")  # Horovod's own
    variables = {
        name: None if getattr(options, key) == defaults[key] else str(value) for name, (key, value) in values.items()
    }
    return {"HOROVOD_CONTROLLER": transport, "HOROVOD_CPU_OPERATIONS": transport, **variables}


MPI_THREAD_MULTIPLE = 3  # in Open MPI and in MPICH; the level that Horovod requests
# The tensor in which a number is sent, in a timeline: PyTorch's has our name, TensorFlow's that of its operation.
NUMBER = re.compile(r'scalebench\.number|"HorovodBroadcast"')
POLL_INTERVAL_S = 0.05
OTHER_MPI = (  # under the mpirun of another MPI each process is rank 0 of 1, and would scale perfectly
    "the mpirun that started them may be of another MPI than Horovod's: put the right one first on the PATH, rebuild "
    "Horovod with the other (scalebench install horovod), or use it over Gloo"
)
JOIN_S = 120.0  # that the ranks of a user's program have to find each other
MAX_TIMELINE_DELAY_S = 60.0


REBUILD = "scalebench install horovod rebuilds it"
TRANSPORT_REMEDIES = {
    "MPI": "apt-get install openmpi-bin libopenmpi-dev, then scalebench install horovod",
    "Gloo": REBUILD,
    "NCCL": "HOROVOD_GPU_OPERATIONS=NCCL scalebench install horovod, on a machine with nvcc and NCCL",
}
NO_TENSORFLOW_NCCL = "its operations for it do not compile with TensorFlow; use strategy=multiworker_nccl"


def build_reasons(hvd: ModuleType, spec: RunSpec) -> refusals.Reasons:
    """Yield why this build of Horovod cannot carry the gradients of a run, each with the way out."""
    strategy = spec.config.strategy
    carrier = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}.get(strategy.backend or "auto")
    built = f"Horovod {horovod.__version__} was built"
    # The processes connect over MPI or Gloo, whatever carries the gradients then.
    for name in ("MPI" if strategy.launcher == "mpi" else "Gloo", carrier):
        if name is not None and not getattr(hvd, f"{name.lower()}_built")():
            is_left_out = name == "NCCL" and strategy.framework == "tensorflow"
            yield f"{built} without {name}: {NO_TENSORFLOW_NCCL if is_left_out else TRANSPORT_REMEDIES[name]}"
    # Horovod decides when it is built how tensors travel between GPUs (CreateOperationManager in its operations.cc).
    if spec.device == "cuda" and carrier in ("MPI", "Gloo") and hvd.nccl_built():
        yield (
            f"{built} with NCCL, which then carries all gradients on GPUs: use strategy=horovod_nccl, or for {carrier} "
            "HOROVOD_GPU_OPERATIONS=none scalebench install horovod"
        )
    # Without CUDA the copy of a gradient to host memory is started, and its end is not waited for before the gradient
    # is sent (DoAllreduceCudaOnCPU in its mpi_ops_v2.cc): ranks would average what was in that memory before.
    if spec.device == "cuda" and strategy.framework == "torch" and not hvd.cuda_built():
        yield (
            f"{built} without CUDA, and would average gradients on GPUs before they are copied: with nvcc of the CUDA "
            f"version of PyTorch on the PATH, {REBUILD}"
        )


class HorovodGroup:
    """This process's membership in Horovod's group, which it joins on construction, as every process of the run has to.

    Over MPI, ranks find each other through mpirun; otherwise through Horovod's rendezvous server at
    MASTER_ADDR:MASTER_PORT, which rank 0 runs meanwhile.
    """

    def __init__(
        self,
        hvd: ModuleType,
        spec: RunSpec,
        rank: int,
        options: Any,
        tensor: Callable[[list[float]], Any],
        scope: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        """`hvd` is horovod.torch or horovod.tensorflow, `tensor` makes one of its framework's within `scope`."""
        refusals.refuse(refusals.horovod_rule(spec, options))
        refusals.refuse(build_reasons(hvd, spec))
        self._hvd, self._spec, self._rank, self._tensor, self._scope = hvd, spec, rank, tensor, scope
        self._mpi = MpiLibrary(hvd) if spec.config.strategy.launcher == "mpi" else None
        if os.environ.pop(TIMELINE_VARIABLE, None) is not None:
            print(
                f"{TIMELINE_VARIABLE} is left out, its writer would be measured too: use measure.timeline=true",
                flush=True,
            )
        variables = {**horovod_variables(spec, options), **_rank_variables(spec, rank, spec.group_timeout_s)}
        self._can_restart = variables["HOROVOD_CYCLE_TIME"] is None
        # The file of all timelines: Horovod writes nothing to another one while an event of the last one is left.
        self._timeline = Path(tempfile.gettempdir(), f"scalebench-timeline-{uuid.uuid4().hex}", "timeline.json")
        for name, value in variables.items():
            os.environ.pop(name, None)  # the config's options override the user's environment
            if value is not None:
                os.environ[name] = value
        self._join(int(os.environ["MASTER_PORT"]))

    def broadcast(self, value: float) -> float:
        """Return rank 0's value on every rank."""
        with self._scope():
            return float(self._hvd.broadcast(self._tensor([value]), root_rank=0, name="scalebench.number")[0])

    def sum(self, values: list[float]) -> list[float]:
        """Return the sums of the values over all ranks."""
        with self._scope():
            name = f"scalebench.sum.{len(values)}"
            return list(self._hvd.allreduce(self._tensor(values), op=self._hvd.Sum, name=name).numpy().tolist())

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return self._hvd.broadcast_object(value, root_rank=0, name="scalebench.object")

    @contextlib.contextmanager
    def record_timeline(self, train: Callable[[], None]) -> Iterator[Path]:
        """Have rank 0's background thread write a timeline of `train`, and yield its path, where it is within the
        block. Horovod reads that setting when it starts, so it is restarted before and after.
        """
        if not self._can_restart:
            # It then fuses up to 1 MiB, and crashes where a fusion threshold is set too (BayesianParameter::SetValue in
            # horovod/common/parameter_manager.cc writes to the places of values that have become fixed).
            raise NotMeasured(
                "Horovod 0.28 shows what it sends only after a restart, which does not keep "
                "strategy.options.cycle_time_ms: leave that at its default to see it"
            )
        os.environ[TIMELINE_VARIABLE] = str(self._timeline)
        try:
            self._timeline.parent.mkdir()
            self._timeline.touch()
            self._rejoin()
            train()
            self.broadcast(0.0)  # appears in the timeline after everything else, and nothing before has its name
            deadline_s = time.monotonic() + MAX_TIMELINE_DELAY_S
            # What is not written when Horovod stops is lost.
            while self._rank == 0 and not NUMBER.search(self._timeline.read_text(errors="replace")):
                if time.monotonic() > deadline_s:
                    raise RuntimeError(
                        f"Horovod's timeline was not written within {MAX_TIMELINE_DELAY_S:g} s; is the disk full?"
                    )
                time.sleep(POLL_INTERVAL_S)
            del os.environ[TIMELINE_VARIABLE]
            self._rejoin()
            yield self._timeline
        finally:
            os.environ.pop(TIMELINE_VARIABLE, None)
            shutil.rmtree(self._timeline.parent, ignore_errors=True)

    def leave(self) -> None:
        """Leave the group. May be called twice."""
        self._hvd.shutdown()
        if self._mpi is not None:
            self._mpi.finalize()

    def _rejoin(self) -> None:
        listener = listen_for_ranks(0) if self._rank == 0 and self._mpi is None else None
        port = int(self.broadcast(0.0 if listener is None else listener.getsockname()[1]))
        self._hvd.shutdown()
        self._join(port, listener)

    def _join(self, port: int, listener: socket.socket | None = None) -> None:
        server = None
        if self._mpi is None:
            server = open_rendezvous(self._rank, port, self._spec.group_timeout_s, listener)
        try:
            self._hvd.init()
        finally:
            if server is not None:
                server.shutdown()
                server.server_close()
        position = self._hvd.rank(), self._hvd.size()
        check_group(self._spec, self._rank, "Horovod", position, "" if self._mpi is None else OTHER_MPI)


def prepare_program(spec: RunSpec, rank: int) -> None:
    """Set what Horovod's start needs in a user's program, as horovodrun would: variables, and on rank 0 the server by
    which ranks find each other, for as long as the process lives."""
    transport = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    os.environ.update(transport | _rank_variables(spec, rank, JOIN_S))
    open_rendezvous(rank, int(os.environ["MASTER_PORT"]), JOIN_S)


class MpiLibrary:
    """MPI, initialized here instead of by Horovod, which would also finalize it.

    A process can do that only once, and Horovod has to start more than once.
    """

    def __init__(self, hvd: ModuleType) -> None:
        self._library = hvd.mpi_ops._basics.MPI_LIB_CTYPES  # Horovod's extension, which is linked to its MPI
        provided = ctypes.c_int()
        if self._library.MPI_Init_thread(None, None, MPI_THREAD_MULTIPLE, ctypes.byref(provided)) != 0:
            raise RuntimeError("MPI_Init_thread failed; the lines above are its own")
        self._joined = True

    def finalize(self) -> None:
        if self._joined:
            self._joined = False
            self._library.MPI_Finalize()


def _rank_variables(spec: RunSpec, rank: int, timeout_s: float) -> dict[str, str]:
    """Return the variables from which Horovod's Gloo controller reads this rank's position; over MPI it uses MPI's."""
    place = spec.places[rank]
    # One process of each node that has so many processes has this local rank.
    across = [p for p in spec.places if p.local_rank == place.local_rank]
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(spec.processes),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(sum(p.node == place.node for p in spec.places)),
        "HOROVOD_CROSS_RANK": str([p.rank for p in across].index(rank)),
        "HOROVOD_CROSS_SIZE": str(len(across)),
        "HOROVOD_HOSTNAME": f"node{place.node}",  # names the group of local ranks
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": os.environ["MASTER_ADDR"],
        "HOROVOD_GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME", ""),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(int(timeout_s)),
    }


class _RendezvousServer(RendezvousHTTPServer):
    """Horovod's server on a socket that listens already: its own would listen on all interfaces, or ask the DNS for the
    name of this host."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        super().__init__(listener.getsockname(), RendezvousHandler, 0)

    def server_bind(self) -> None:
        self.socket.close()  # the one that socketserver has made
        self.socket = self._listener
        self.server_name, self.server_port = self.server_address[:2]

    def server_activate(self) -> None:
        """Do nothing: the socket listens."""


def open_rendezvous(
    rank: int, port: int, limit_s: float, listener: socket.socket | None = None
) -> RendezvousHTTPServer | None:
    """Start Horovod's rendezvous server on rank 0, on its `listener` if it has one; on others wait until it accepts
    connections, since Horovod itself gives up after three attempts in two seconds."""
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
    if rank == 0:
        server = _RendezvousServer(listener or listen_for_ranks(port))
        threading.Thread(target=server.serve_forever, args=(POLL_INTERVAL_S,), daemon=True).start()
        return server
    host, deadline_s = os.environ["MASTER_ADDR"], time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((host, port), timeout=limit_s).close()
            return None
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"rank 0 did not open its rendezvous at {host}:{port}: {error.strerror}") from error
            time.sleep(POLL_INTERVAL_S)
