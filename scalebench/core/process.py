"""Starting processes and waiting for them, as the launchers, the monitor and SLURM's commands need it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from scalebench.core.untrusted import clean_line

MAX_ERROR_CHARACTERS = 1000  # the way out stands at the end of a line
POLL_INTERVAL_S = 0.02
FIRST_INTERVAL_S = 0.0002  # of a wait that may be short; then longer ones, up to POLL_INTERVAL_S
# Each of these ends a program that does not handle it: Ctrl-C and Ctrl-\, a scheduler's SIGTERM and its warnings before
# that, and the SIGHUP of a terminal that was closed or of a connection that was lost.
ENDING_SIGNALS = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
# Set by the launcher for rank 0: the address of this host on which it waits for the other ranks; "": all interfaces.
LISTEN_ADDRESS = "SCALEBENCH_LISTEN_ADDRESS"
USER_FOLDERS = "SCALEBENCH_USER_FOLDERS"  # set for workers: where modules of the user's are besides the current folder
NODE_AGENT = "scalebench.runner.node_agent"  # the module that is started on each node, and by mpirun for each rank
KEY_VARIABLE = "SCALEBENCH_AGENT_KEY"  # of agents: the key by which they and their program know each other
RANK_ADDRESSES = "SCALEBENCH_ADDRESSES"  # set by the launcher for every rank: host:port of all ranks in order


class Cancellation(threading.Event):
    """Set by the program's signal handlers: a mere exception can get lost in a __del__."""

    number: int | None = None  # the last signal

    def reset(self) -> None:
        self.number = None
        self.clear()

    @property
    def by_hang_up(self) -> bool:
        """Return whether the user's terminal is gone."""
        return self.number == signal.SIGHUP

    @property
    def by_user(self) -> bool:
        """Return whether it was Ctrl-C, so that there is a user to ask."""
        return self.number in (None, signal.SIGINT)


cancelled = Cancellation()


def build_python_command(*arguments: str) -> list[str]:
    """Return the command that runs this Python with these arguments.

    With -P no file of the current folder, such as a user's profile.py, takes the place of one of Python's modules.
    Without it only where scalebench itself is found in the current folder alone, as in a checkout.
    """
    is_installed = str(Path(__file__).parents[2]) in map(os.path.realpath, sys.path[1:])
    return [sys.executable, *(["-P"] if is_installed else []), *arguments]


def ask_python(script: str, *arguments: str, limit_s: float) -> tuple[list[str] | None, str]:
    """Run a script in a Python of its own. Return the words that it prints after ANSWER, and "", or None and in a few
    words why there are none."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            build_python_command("-c", script, *arguments), env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"no answer in {limit_s:.0f} s"
    answers = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    if done.returncode == 0 and answers:
        return answers[0], ""
    errors = [line.strip() for line in done.stderr.splitlines() if line.strip()] if done.returncode > 0 else []
    return None, (errors or [f"exit status {done.returncode}"])[-1]


def replace_unprintable() -> None:
    """Have standard output and standard error replace what their encoding lacks, which would end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class StartError(OSError):
    """A process could not be started."""


@contextlib.contextmanager
def as_start_errors() -> Iterator[None]:
    """Raise an OSError of the block as StartError."""
    try:
        yield
    except OSError as error:
        raise StartError(*error.args) from error


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Sleep until the condition holds or the time is over, and return whether it held."""
    deadline_s, interval_s = time.monotonic() + limit_s, FIRST_INTERVAL_S
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(interval_s)
        interval_s = min(2 * interval_s, POLL_INTERVAL_S)
    return True


def process_exists(pid: int) -> bool:
    """Return whether there is such a process, also one that /proc hides because it is somebody else's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def is_process_alive(pid: int, started_at_s: float) -> bool:
    """Return whether the process that started at this time, in seconds since the epoch, still runs.

    Process numbers are used again, so the number alone does not say.
    """
    import psutil

    if pid <= 0:  # in a file that somebody else wrote
        return False
    try:
        return bool(abs(psutil.Process(pid).create_time() - started_at_s) < 1.0)
    except psutil.Error:
        return False


def print_error(line: str) -> None:
    """Print a line on stderr, without the middle of a very long one; nowhere if that cannot be written."""
    line = clean_line(line)
    if len(line) > MAX_ERROR_CHARACTERS:
        line = f"{line[: MAX_ERROR_CHARACTERS * 2 // 3]} [...] {line[-MAX_ERROR_CHARACTERS // 3 :]}"
    with contextlib.suppress(OSError):
        print(f"scalebench: {line}", file=sys.stderr)


def drop_output() -> None:
    """Discard standard output from now on, with what is still in its buffer."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as sink:
        os.dup2(sink.fileno(), sys.stdout.fileno())


def describe_error(error: BaseException) -> str:
    """Return an error in one line, one for want of memory with the limits of this process: under them an import fails
    for want of a segment, and a MemoryError or the SystemError of a library in C says nothing."""
    line = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        line = ": ".join(str(part) for part in (error.filename, error.strerror) if part is not None)
    if not isinstance(error, (MemoryError, ImportError, SystemError)) and getattr(error, "errno", None) != errno.ENOMEM:
        return line
    import resource

    limits = {"ulimit -v": resource.RLIMIT_AS, "ulimit -d": resource.RLIMIT_DATA}
    sizes = {name: resource.getrlimit(limit)[0] for name, limit in limits.items()}
    parts = [f"{name} is {size >> 10:,} KiB" for name, size in sizes.items() if size != resource.RLIM_INFINITY]
    return "; ".join([line, *parts])


def read_anonymous_bytes(pid: int | None) -> int | None:
    """Return the anonymous memory of a process of this host; None where it cannot be read."""
    import psutil

    if pid is None:
        return None
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return None
    return int(memory.rss - memory.shared)


class ProcessStat(NamedTuple):
    state: str  # as in proc_pid_stat(5): T is stopped by a signal, t by a debugger
    parent: int
    cpu_s: float  # that it has used
    name: str  # of its program: up to 15 characters


def read_process_stat(pid: int) -> ProcessStat | None:
    """Return a process's state, parent, CPU seconds and name; None when it is gone.

    Read from /proc directly: psutil opens several files for each process.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")  # the name may contain anything
        fields, name = rest.split(), head.partition(b"(")[2].decode(errors="replace")
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return ProcessStat(fields[0].decode(), int(fields[1]), cpu_s, name)
    except (OSError, ValueError, IndexError):
        return None


def kill_descendants_of_ranks(name: str, value: str) -> None:
    """Kill the processes of this user whose environment is that of a rank and has this variable with this value: what a
    program has started in sessions of their own, which the end of its process group does not reach (Linux)."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            variables = process.environ()  # the monitor has only the first
            if variables.get(name) == value and RANK_ADDRESSES in variables and process.pid != os.getpid():
                process.kill()


class CpuMeter:
    """The CPU seconds that some processes of this host have used, with the processes that they had started by now."""

    def __init__(self, pids: Sequence[int]) -> None:
        import psutil

        self._pids: list[int] = []
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                self._pids += [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]

    def read_s(self) -> float:
        """Return the seconds of those that still exist."""
        return sum(stat.cpu_s for pid in self._pids if (stat := read_process_stat(pid)))


@contextlib.contextmanager
def interrupt_at_signals() -> Iterator[None]:
    """Make each of ENDING_SIGNALS end a run as Ctrl-C does: no process is left, and the result is recorded as
    cancelled. What is ignored already stays so: nohup has SIGHUP ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and cancelled.by_hang_up:
            return  # the kernel sends one, and so does the shell
        cancelled.number = number
        cancelled.set()
        raise KeyboardInterrupt

    cancelled.reset()
    try:
        with _signals_handled_by(interrupt):
            yield
    finally:
        cancelled.reset()


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Delay ENDING_SIGNALS until the end of the block: an interrupted start would lose track of its process."""
    received: list[int] = []
    with _signals_handled_by(lambda number, frame: received.append(number)):
        yield
    if received:
        signal.raise_signal(received[0])


@contextlib.contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore ENDING_SIGNALS within the block, where files must be written completely."""
    with _signals_handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _signals_handled_by(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    previous = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    previous = {number: handler for number, handler in previous.items() if handler != signal.SIG_IGN}
    try:
        for number in previous:
            signal.signal(number, handler)
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)
