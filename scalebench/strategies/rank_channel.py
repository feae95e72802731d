"""A connection between the ranks of a run that needs no framework: rank 0 sends its numbers to all others."""

from __future__ import annotations

import contextlib
import os
import struct
import time
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from scalebench.core.run_folder import RUN_ID_VARIABLE
from scalebench.strategies.base import listen_address

JOIN_TIMEOUT_S = 30.0  # the time that ranks have to connect
NUMBER = struct.Struct("d")


class Late(RuntimeError):
    """Another rank did not come to the broadcast within its time; the message names it."""


class RankChannel:
    """Rank 0's connections to the others, or on other ranks the one to rank 0; authenticated by the id of the run."""

    def __init__(self, rank: int, processes: int, port: int) -> None:
        self._rank = rank
        self._peers = connect_ranks(rank, processes, port)

    def broadcast(self, value: float, limit_s: float | None = None) -> float:
        """Return rank 0's value on every rank, when every rank has called it. Raise Late where another rank takes
        longer than `limit_s`, and EOFError or OSError where one has ended."""
        if self._rank:
            self._peers[0].send_bytes(NUMBER.pack(value))
            if limit_s is not None and not self._peers[0].poll(limit_s):
                raise Late("another rank")
            return float(NUMBER.unpack(self._peers[0].recv_bytes())[0])
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        waiting: list[Any] = list(self._peers)
        while waiting:
            ready = wait(waiting, None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise Late(f"rank {self._peers.index(waiting[0]) + 1}")
            for peer in ready:
                peer.recv_bytes()  # type: ignore[union-attr]
                waiting.remove(peer)
        for peer in self._peers:
            peer.send_bytes(NUMBER.pack(value))
        return value

    def wait_for_others(self, limit_s: float) -> None:
        """Wait on rank 0 until all others have closed their ends, at most so long."""
        deadline_s = time.monotonic() + limit_s
        waiting: list[Any] = list(self._peers) if self._rank == 0 else []
        while waiting and (ready := wait(waiting, max(0.0, deadline_s - time.monotonic()))):
            for peer in ready:
                try:
                    peer.recv_bytes()  # type: ignore[union-attr]
                except (EOFError, OSError):
                    waiting.remove(peer)

    def close(self) -> None:
        """Close this end. May be called twice."""
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.close()
        self._peers = []


def connect_ranks(rank: int, processes: int, port: int) -> list[Connection]:
    """Return rank 0's connections to the others in order of rank, or on other ranks the one to rank 0."""
    host = os.environ["MASTER_ADDR"]
    key = os.environ.get(RUN_ID_VARIABLE, "").encode() or None
    if rank == 0:
        with _listen((listen_address(), port), processes, key) as listener:
            listener._listener._socket.settimeout(JOIN_TIMEOUT_S)  # type: ignore[attr-defined]
            peers: dict[int, Connection] = {}
            for _ in range(processes - 1):
                try:
                    peer = listener.accept()
                except TimeoutError as error:
                    message = f"only {len(peers) + 1} of {processes} ranks met within {JOIN_TIMEOUT_S:g} s"
                    raise TimeoutError(message) from error
                peers[int(NUMBER.unpack(peer.recv_bytes())[0])] = peer
        return [peers[r] for r in sorted(peers)]
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    while True:
        try:
            peer = Client((host, port), authkey=key)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    peer.send_bytes(NUMBER.pack(rank))
    return [peer]


def _listen(address: tuple[str, int], backlog: int, key: bytes | None) -> Listener:
    try:
        return Listener(address, backlog=backlog, authkey=key)
    except OSError as error:
        host, port = address
        where = host or "this host"
        raise OSError(f"cannot listen on port {port} of {where} ({error.strerror}); run it again") from error
