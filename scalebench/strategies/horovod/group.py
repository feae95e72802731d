"""Horovod under either framework: its options, the environment variables that set them, and joining its group."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from scalebench.core import config_files
from scalebench.core.spec import RunSpec
from scalebench.strategies import refusals
from scalebench.strategies.base import check_group, listen_for_ranks

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
MAX_LIBRARY_VERSION = 8192  # MPI_MAX_LIBRARY_VERSION_STRING: 256 in Open MPI, 8192 in MPICH
# Each launcher is known by a variable that it sets.
LAUNCHERS = {
    "OMPI_COMM_WORLD_RANK": "Open MPI's mpirun",
    "SLURM_STEP_ID": "srun",
    "PMI_RANK": "an mpirun with PMI (MPICH or Intel MPI)",
    "PMIX_RANK": "an mpirun with PMIx",
}
# The tensor in which a number is sent, in a timeline: PyTorch's has our name, TensorFlow's that of its operation.
NUMBER = re.compile(r'scalebench\.number|"HorovodBroadcast"')
POLL_INTERVAL_S = 0.05
JOIN_S = 120.0  # that the ranks of a user's program have to find each other
MAX_TIMELINE_DELAY_S = 60.0


class HorovodGroup:
    """This process's membership in Horovod's group, which it joins on construction, as every process of the run has to.

    Over MPI, ranks find each other through mpirun; otherwise through Horovod's rendezvous server at
    MASTER_ADDR:MASTER_PORT, which rank 0 runs meanwhile.
    """

    def __init__(self, hvd: ModuleType, spec: RunSpec, rank: int, options: Any) -> None:
        """`hvd` is horovod.torch or horovod.tensorflow."""
        refusals.refuse(refusals.horovod_rule(spec, options))
        self._hvd, self._spec, self._rank, self._timeout_s = hvd, spec, rank, spec.group_timeout_s
        self._mpi = MpiLibrary(hvd) if spec.config.strategy.launcher == "mpi" else None
        if os.environ.pop(TIMELINE_VARIABLE, None) is not None:
            print(
                f"{TIMELINE_VARIABLE} is left out, its writer would be measured too: use measure.timeline=true",
                flush=True,
            )
        # The file of all timelines: Horovod writes nothing to another one while an event of the last one is left.
        self.timeline = Path(tempfile.gettempdir(), f"scalebench-timeline-{uuid.uuid4().hex}", "timeline.json")
        self._observes = spec.observes_sync
        variables = {**horovod_variables(spec, options), **_rank_variables(spec, rank, self._timeout_s)}
        for name, value in variables.items():
            os.environ.pop(name, None)  # the config's options override the user's environment
            if value is not None:
                os.environ[name] = value
        if self._observes:
            self._request_timeline()
        port = int(os.environ["MASTER_PORT"])
        self._join(port, listen_for_ranks(port) if self._serves else None)

    @contextlib.contextmanager
    def record_timeline(self, broadcast: Callable[[float], float]) -> Iterator[None]:
        """Have rank 0's background thread write its timeline to `timeline` within this context.

        Horovod reads that setting when it starts, so it is restarted before and after, unless this launch only
        observes: then the timeline begins with the group, and this can be done once. `broadcast` returns rank 0's
        number.
        """
        if self._observes:
            yield
            self._complete_timeline(broadcast)
            return
        self._request_timeline()
        try:
            self._rejoin(broadcast)
            yield
            self._complete_timeline(broadcast)
        finally:
            del os.environ[TIMELINE_VARIABLE]
        self._rejoin(broadcast)

    def _request_timeline(self) -> None:
        self.timeline.parent.mkdir()
        os.environ[TIMELINE_VARIABLE] = str(self.timeline)

    def _complete_timeline(self, broadcast: Callable[[float], float]) -> None:
        broadcast(0.0)  # appears in the timeline after everything else, and nothing before has its name
        if self._rank == 0:
            _wait_for_event(NUMBER, self.timeline)

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return self._hvd.broadcast_object(value, root_rank=0, name="scalebench.object")

    def leave(self) -> None:
        """Leave the group. May be called twice."""
        self._hvd.shutdown()
        if self._mpi is not None:
            self._mpi.finalize()

    def _rejoin(self, broadcast: Callable[[float], float]) -> None:
        listener = listen_for_ranks(0) if self._serves else None
        port = int(broadcast(0.0 if listener is None else listener.getsockname()[1]))
        self._hvd.shutdown()
        self._join(port, listener)

    def _join(self, port: int, listener: socket.socket | None) -> None:
        with contextlib.ExitStack() as stack:
            if self._mpi is None:
                os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
                if listener is not None:
                    stack.enter_context(_rendezvous_server(listener))
                else:
                    _wait_for_server(os.environ["MASTER_ADDR"], port, self._timeout_s)
            self._hvd.init()
        way_out = "" if self._mpi is None else self._mpi.explain_launch()
        check_group(self._spec, self._rank, "Horovod", (self._hvd.rank(), self._hvd.size()), way_out)

    @property
    def _serves(self) -> bool:
        """Return whether this rank runs Horovod's rendezvous server, for which there is none over MPI."""
        return self._rank == 0 and self._mpi is None


def prepare_program(spec: RunSpec, rank: int) -> None:
    """Set what Horovod's start needs in a user's program, as horovodrun would: variables, and on rank 0 the server by
    which ranks find each other, for as long as the process lives."""
    port = int(os.environ["MASTER_PORT"])
    variables = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", **_rank_variables(spec, rank, JOIN_S)}
    os.environ.update(variables | {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)})
    if rank == 0:
        server = _RendezvousServer(listen_for_ranks(port))
        threading.Thread(target=server.serve_forever, args=(POLL_INTERVAL_S,), daemon=True).start()
    else:
        _wait_for_server(os.environ["MASTER_ADDR"], port, JOIN_S)


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

    def explain_launch(self) -> str:
        """Name the MPI that started this process and the one that Horovod is linked to, which have to be the same."""
        text, length = ctypes.create_string_buffer(MAX_LIBRARY_VERSION), ctypes.c_int()
        self._library.MPI_Get_library_version(text, ctypes.byref(length))
        built_with = text.value.decode(errors="replace").partition(",")[0].strip() or "an unknown MPI"
        launcher = next((name for variable, name in LAUNCHERS.items() if variable in os.environ), "an unknown program")
        return (
            f"{launcher} started the processes, and Horovod was built with {built_with}: put the mpirun of that MPI "
            "first on the PATH, build Horovod anew with the other (scalebench install horovod), or use it over Gloo"
        )

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


@contextlib.contextmanager
def _rendezvous_server(listener: socket.socket) -> Iterator[None]:
    server = _RendezvousServer(listener)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_INTERVAL_S,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _wait_for_server(host: str, port: int, limit_s: float) -> None:
    """Wait until rank 0's server accepts connections; Horovod itself gives up after three attempts in two seconds."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((host, port), timeout=limit_s).close()
            return
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"rank 0 did not open its rendezvous at {host}:{port}: {error.strerror}") from error
            time.sleep(POLL_INTERVAL_S)


def _wait_for_event(pattern: re.Pattern[str], path: Path) -> None:
    """Wait until the timeline has such an event; events that are not written when Horovod stops are lost."""
    deadline_s = time.monotonic() + MAX_TIMELINE_DELAY_S
    while not (path.exists() and pattern.search(path.read_text(errors="replace"))):
        if time.monotonic() > deadline_s:
            raise RuntimeError(
                f"Horovod's timeline was not written within {MAX_TIMELINE_DELAY_S:g} s; is the disk full?"
            )
        time.sleep(POLL_INTERVAL_S)
