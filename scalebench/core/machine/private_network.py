"""A network of its own for the processes of a run that would open ports to everybody (Linux).

TensorFlow's servers listen on every interface of a machine, take no address to listen on, and do for anybody who
connects what they do for their own run: they read and write files as the user. On one machine such a run therefore gets
a network namespace with nothing but a loopback interface. A strategy has the option `open_port` where its framework is
like that; with open_port=true its processes stay in the machine's network.

Open MPI's mpirun and ranks listen on every interface, too, also with oob_tcp_if_include=lo and btl_tcp_if_include=lo
(4.1.4). They have no service that reads or writes files, so that a run goes on, flagged, where there is no namespace.

The namespace is made by unshare and entered by nsenter, both of util-linux.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalebench.core.spec import Config

OPEN_PORT = "open_port"  # the option of a strategy
BATCH_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")  # of what Open MPI knows
# Runs in the namespace: sets its loopback up (SIOCSIFFLAGS with IFF_UP), and holds it until its input ends.
HOLDER = """
import fcntl, socket, struct, sys
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, struct.pack("16sh14x", b"lo", 1))
print("ready", flush=True)
sys.stdin.read()
"""


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
        # A user needs a user namespace around it, in which everybody stays who they are, so that files belong to the
        # user as before. Root does without: in one it would lose its rights to the files of others.
        kinds = ["net"] if os.geteuid() == 0 else ["user", "net"]
        user = [] if kinds == ["net"] else ["--user", "--map-current-user", "--keep-caps"]
        holder = subprocess.Popen(
            ["unshare", *user, "--net", sys.executable, "-I", "-S", "-c", HOLDER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        with holder:  # whose input the block closes, so that it ends
            assert holder.stdout is not None
            if (answer := holder.stdout.readline().strip()) != "ready":
                raise OSError(0, answer or "unshare ended without a word")
            opened = {kind: os.open(f"/proc/{holder.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds}
        self.descriptors = list(opened.values())
        self._options = [f"--{kind}=/proc/self/fd/{descriptor}" for kind, descriptor in opened.items()]

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs `command` in this network, to be started with these descriptors open."""
        return ["nsenter", "--preserve-credentials", *self._options, "--", *command]

    def close(self) -> None:
        """Let go of the namespace, in which processes may stay. May be called twice."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def __enter__(self) -> PrivateNetwork:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
