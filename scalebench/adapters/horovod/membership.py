"""This process's membership in Horovod's group, under either framework."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from scalebench.adapters.horovod import options as horovod_options
from scalebench.adapters.horovod.options import TIMELINE, HorovodOptions
from scalebench.spec import RunSpec

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
        horovod_options.check(spec, options)
        self._hvd, self._rank, self._timeout_s = hvd, rank, spec.group_timeout_s
        self._mpi = MpiLibrary(hvd) if spec.config.strategy.launcher == "mpi" else None
        if os.environ.pop(TIMELINE, None) is not None:
            print(f"{TIMELINE} is left out, its writer would be measured too: use measure.timeline=true", flush=True)
        for name, value in {
            **horovod_options.environment(spec, options),
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
