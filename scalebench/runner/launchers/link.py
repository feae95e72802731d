"""The connection between a program and the agents that start ranks for it: an address, a key, and JSON messages.

An agent connects outward; the program listens on one address while a run lasts. Both sides first prove that they have
the key, without sending it. A message is four bytes with the length of its JSON; what is longer than any message, or is
none of those below, ends the connection.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import random
import socket
import threading
from pathlib import Path
from typing import Any, Literal

import msgspec

from scalebench.config.placement import parse_ports
from scalebench.core.errors import InputError
from scalebench.core.json_files import decoding
from scalebench.core.run_folder import Turn
from scalebench.core.spec import HardwareSpec
from scalebench.measure.nodes import NodeReport
from scalebench.measure.progress import RankProgress
from scalebench.runner.launchers.rank_environment import (
    LOOPBACK,
    find_interface_address,
    find_own_address,
    is_this_host,
    split_address,
)

MAX_MESSAGE_BYTES = 16 << 20  # the facts of a node with its environment have some 100 KB
PART_BYTES = 4 << 20  # of a file in one message, where they take a third more
NONCE_BYTES, PROOF_BYTES = 32, 32
PROGRAM, AGENT = b"program", b"agent"  # so that neither side can send back the proof that it got
HANDSHAKE_LIMIT_S = 10.0
# A host that is gone without a word, as by a cable, is noticed after the sum of these.
IDLE_S, PROBE_INTERVAL_S, PROBES = 5, 2, 5
LOST_AFTER_S = IDLE_S + PROBE_INTERVAL_S * PROBES


class Message(msgspec.Struct, tag=str.lower, forbid_unknown_fields=True):
    pass


class Hello(Message):
    """The first message of an agent, by which the program knows the ranks that it is to start."""

    seat: str  # the name of its node; the number of its rank, where mpirun or a command started it for that one
    host: str
    processes: int | None = None  # of the run, as the command of the user's counts them


class Start(Message):
    """The answer: which ranks to start, and how."""

    folder: str  # of the run
    spec: str  # what spec.json has there
    written_ns: int  # when it was written, by which an agent that sees that folder knows it
    works_in: str | None  # None: where the agent is
    run_id: str
    module: str
    ranks: list[int]
    addresses: list[str]  # host:port of all ranks


class Refuse(Message):
    """The other answer; also from an agent that cannot start its ranks."""

    reason: str


class Started(Message):
    pids: dict[int, int]  # by rank


class Progress(Message):
    state: RankProgress


class Exit(Message):
    rank: int
    code: int  # negative: the signal
    terminated: bool  # a signal of the program that started the agent came before its end


class Report(Message):
    """Facts of the node: at the start, and again at the end."""

    report: NodeReport


class Part(Message):
    """A part of a file for the run's folder, from a node that does not see it; those of a file come in order."""

    name: str
    is_first: bool
    content: bytes


class Over(Message):
    """All ranks of the agent have ended, and it has nothing more to report."""


class Paused(Message):
    resident_bytes: dict[int, int | None]  # by rank


class Stopped(Message):
    """The answer to `stacks`: the ranks that a signal had stopped."""

    ranks: list[int]


class Order(Message):
    """An order to an agent about its ranks; after `stacks` they write their stacks into their logs."""

    action: Literal["warm_up", "pause", "resume", "stacks", "end"]
    turn: Turn | None = None  # that begins as they resume
    grace_s: float = 0.0  # before the end


ToAgent = Start | Refuse | Order
ToProgram = Hello | Refuse | Started | Progress | Exit | Report | Part | Over | Paused | Stopped


class WrongKey(ValueError):
    """The other side does not have the key."""


class Link:
    """One end of a connection. Several threads may send; one receives."""

    def __init__(self, connection: socket.socket, key: str, own: bytes, other: bytes) -> None:
        """Prove the key to the other side; WrongKey, OSError."""
        self._socket, self._sending = connection, threading.Lock()
        if connection.family != socket.AF_UNIX:
            for level, name, value in (
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S),
                (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S),
                (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES),
                (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * LOST_AFTER_S),  # of what is not acknowledged
            ):
                connection.setsockopt(level, name, value)
        connection.settimeout(HANDSHAKE_LIMIT_S)
        nonce = os.urandom(NONCE_BYTES)
        connection.sendall(nonce)
        challenge = self._read(NONCE_BYTES)
        connection.sendall(hmac.digest(key.encode(), own + challenge + nonce, "sha256"))
        proof = hmac.digest(key.encode(), other + nonce + challenge, "sha256")
        if not hmac.compare_digest(self._read(PROOF_BYTES), proof):
            raise WrongKey("the other side has another key")
        connection.settimeout(None)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        content = msgspec.json.encode(message)
        with self._sending:
            self._socket.sendall(len(content).to_bytes(4, "big") + content)

    def receive(self, kinds: Any) -> Any:
        """Wait for the next message, which is one of `kinds`; EOFError when the other side has closed the connection,
        OSError when it is lost, ValueError for anything else."""
        length = int.from_bytes(self._read(4), "big")
        if length > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {length:,} bytes")
        content = self._read(length)
        try:
            with decoding:
                return msgspec.json.decode(content, type=kinds)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not a message: {error}") from error

    def leave(self) -> None:
        """Close it for this process alone, where another has it, too."""
        self._socket.close()

    def close(self) -> None:
        """Close it; another thread that receives then gets EOFError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            part = self._socket.recv(min(size - len(content), 1 << 16))
            if not part:
                raise EOFError("the connection was closed")
            content += part
        return bytes(content)


def connect(address: str, key: str) -> Link:
    """Connect to the program that listens at HOST:PORT, or at a path on this machine; InputError where it is not there
    or has another key."""
    try:
        if address.startswith("/"):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(address)
        else:
            connection = socket.create_connection(split_address(address), HANDSHAKE_LIMIT_S)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"no scalebench waits for agents at {address} ({reason}); is its run over?") from error
    try:
        return Link(connection, key, AGENT, PROGRAM)
    except (OSError, EOFError, WrongKey) as error:
        connection.close()
        raise InputError(f"the program at {address} has another key: that of another run?") from error


def listen(hardware: HardwareSpec, hosts: list[str]) -> tuple[socket.socket, str]:
    """Listen for agents on `hosts`, on one address and, where they are set, one of hardware.ports; return the socket
    and HOST:PORT."""
    others = [host for host in hosts if not is_this_host(host)]
    host = None if others else LOOPBACK
    if host is None and hardware.interface is not None:
        host = find_interface_address(hardware.interface)
    host = host or find_own_address(others[0]) or socket.gethostname()
    ports = [0] if hardware.ports is None or not others else list(parse_ports(hardware.ports))
    random.shuffle(ports)
    for port in ports:
        with contextlib.suppress(OSError):
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.create_server(address[:2], family=family, reuse_port=False)
            name = f"[{host}]" if ":" in host else host
            return listener, f"{name}:{listener.getsockname()[1]}"
    raise OSError(f"agents cannot connect: no port of {hardware.ports or 'this host'} is free on {host}")


def listen_in(folder: Path) -> tuple[socket.socket, str]:
    """Listen for agents on this machine, also in another network namespace, at a file in a folder for this user alone;
    return the socket and its path."""
    listener, path = socket.socket(socket.AF_UNIX), str(folder / "agents")
    listener.bind(path)
    listener.listen()
    return listener, path
