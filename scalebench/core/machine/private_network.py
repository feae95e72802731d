"""A network of its own for the processes of a run that would open ports to everybody (Linux).

TensorFlow's servers listen on every interface of a machine, take no address to listen on, and do for anybody who
connects what they do for their own run: they read and write files as the user. On one machine such a run therefore gets
a network namespace with nothing but a loopback interface. A strategy has the option `open_port` where its framework is
like that; with open_port=true its processes stay in the machine's network.

Open MPI's mpirun and ranks listen on every interface, too, also with oob_tcp_if_include=lo and btl_tcp_if_include=lo
(4.1.4). They have no service that reads or writes files, so that a run goes on, flagged, where there is no namespace.

It is a program, too, which uses the standard library only: without arguments it makes a namespace, and with
`DESCRIPTORS COMMAND...` it becomes COMMAND in one. A function that subprocess runs between fork and exec could do the
same, but is not safe where the parent has threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalebench.core.spec import Config

OPEN_PORT = "open_port"  # the option of a strategy
CLONE_NEWUSER, CLONE_NEWNET = 0x1000_0000, 0x4000_0000  # linux/sched.h
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h
BATCH_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")  # of what Open MPI knows
READY = "ready"
NOT_ALLOWED = {"net": "root may not make one", "user net": "no user namespace"}


def is_wanted(config: Config) -> bool:
    """Return whether the processes of a run get a private network where one is possible: they are all on this machine,
    would open ports to everybody, and open_port=true does not accept that."""
    strategy, on_this_machine = config.strategy, config.hardware.this_machine and not config.hardware.hosts
    # An mpirun that a batch system allows several nodes would not reach them, nor the batch system itself.
    is_mpi_alone = strategy.launcher == "mpi" and not any(name in os.environ for name in BATCH_VARIABLES)
    opens_ports = OPEN_PORT in strategy.options or is_mpi_alone
    return on_this_machine and opens_ports and not strategy.options.get(OPEN_PORT)


def opens_ports(config: Config) -> bool:
    """Return whether strangers reach the processes of a run in a way that its row is flagged for. Those of Open MPI on
    several hosts have to listen, and are not."""
    return _find_problem(config) is not None if is_wanted(config) else OPEN_PORT in config.strategy.options


def explain_refusal(config: Config) -> str | None:
    """Return why a run is refused that would serve strangers, with the way out; None where it is not."""
    strategy = config.strategy
    if OPEN_PORT not in strategy.options or not is_wanted(config) or (reason := _find_problem(config)) is None:
        return None
    return (
        f"{strategy.name} would let everybody who reaches this machine read and write files as you: "
        f"{strategy.framework} listens on all interfaces, and a network of its own is not possible here ({reason}); "
        f"where nobody else reaches it, strategy.options.{OPEN_PORT}=true runs it all the same"
    )


def _find_problem(config: Config) -> str | None:
    is_by_hand = config.strategy.launcher == "by_hand"  # in the network of a shell
    return "agents start its processes" if is_by_hand else find_kernel_problem()


@functools.lru_cache(maxsize=1)
def find_kernel_problem() -> str | None:
    """Return why this machine or container allows no private network; None where it does."""
    try:
        PrivateNetwork().close()
    except OSError as error:
        return error.strerror or str(error)
    return None


@contextlib.contextmanager
def private_network(config: Config) -> Iterator[PrivateNetwork | None]:
    """Make the private network of a run, which closes after the processes were started in it; None where it has none.

    Raises OSError where one is needed and not possible.
    """
    if not is_wanted(config) or (OPEN_PORT not in config.strategy.options and find_kernel_problem() is not None):
        yield None
        return
    with PrivateNetwork() as network:
        yield network


class PrivateNetwork:
    """A network namespace in which only a loopback interface is, which lives as long as a process in it, or as this.

    Raises OSError where the kernel or a container does not allow one.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        # The maker waits for the end of its input, which the block closes, and ends.
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
            assert maker.stdout is not None
            answer = maker.stdout.readline().strip()
            if not answer.startswith(READY):
                raise OSError(0, answer or "the namespace's maker ended without a word")
            # The paths are those of the user namespace, where there is one, and of the network namespace.
            paths = [f"/proc/{maker.pid}/ns/{kind}" for kind in answer.split()[1:]]
            self.descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs `command` in this network, to be started with these descriptors open."""
        return [sys.executable, "-I", "-S", __file__, ",".join(map(str, self.descriptors)), *command]

    def close(self) -> None:
        """Let go of the namespace, in which processes may stay. May be called twice."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def __enter__(self) -> PrivateNetwork:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _call(function: str, *arguments: int) -> None:
    """Call a function of the C library; OSError with its reason where it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _make() -> str:
    """Move this process into a new network namespace, with its loopback up. Return the kinds of its new namespaces,
    outermost first.

    A user needs a user namespace around it. Root does without: in one it would lose its rights to the files of others.
    """
    import fcntl

    user, group = os.geteuid(), os.getegid()
    kinds = "net" if user == 0 else "user net"
    try:
        _call("unshare", CLONE_NEWNET if kinds == "net" else CLONE_NEWUSER | CLONE_NEWNET)
    except OSError as error:
        raise OSError(error.errno, f"{NOT_ALLOWED[kinds]}: {error.strerror}") from error
    if kinds == "user net":
        # Everybody stays who they are, so that files belong to the user as before. Other groups keep their rights, too.
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
    return kinds


def enter_namespaces(descriptors: Iterable[int]) -> None:
    """Move this process, which has one thread, into the namespaces of these descriptors, and close them."""
    for descriptor in descriptors:
        _call("setns", descriptor, 0)
        os.close(descriptor)


def main(arguments: list[str]) -> None:
    """Make a namespace and keep it until the input ends; or become the command in the arguments in a namespace."""
    if arguments:
        enter_namespaces([int(number) for number in arguments[0].split(",")])
        os.execvp(arguments[1], arguments[1:])
    try:
        print(READY, _make(), flush=True)
    except OSError as error:
        print(error.strerror or error, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
