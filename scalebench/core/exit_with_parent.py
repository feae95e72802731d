"""A process that ends when the process that started it ends (Linux).

It is a program too: `python exit_with_parent.py PARENT_PID COMMAND...` becomes COMMAND, tied to PARENT_PID. A function
that subprocess runs between fork and exec could do the same, but is not safe where the parent has threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "SCALEBENCH_PARENT_PID"  # process id of the program that started a rank or a monitor
LAUNCHER_VARIABLE = "SCALEBENCH_LAUNCHER"  # host:pid of the program that was started this way
REMOTE_LAUNCHER = "remote"  # its value where daemons start the ranks, which then are not descendants of that program


def tie_to_parent(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this signal to this process when process `parent`, which started it, is gone.

    The kernel watches the thread that started it: start a process and wait for it in the same thread.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def tied_command(parent: int, command: list[str]) -> list[str]:
    """Return a command that runs `command` tied to `parent`, by a Python without packages, which starts faster."""
    return [sys.executable, "-I", "-S", __file__, str(parent), *command]


def tie_to_launcher() -> None:
    """Tie this process to the one that started it, and end now if the program in LAUNCHER is gone already.

    Orphans may be adopted by a sub-reaper, so that a parent with process id 1 is not a reliable test.
    """
    parent = os.getppid()
    tie_to_parent(parent, signal.SIGKILL)
    host, _, pid = os.environ.get(LAUNCHER_VARIABLE, "").rpartition(":")
    if host == socket.gethostname() and sys.platform.startswith("linux") and int(pid) not in ancestors(os.getpid()):
        os._exit(1)


def ancestors(pid: int) -> list[int]:
    """Return process `pid`, its parent, and so on but for the first process, as far as this user may see."""
    import psutil  # not above: as a program this file is run by a Python without packages

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [each.pid for each in (process, *process.parents()) if each.pid > 1]
    return []


def main(arguments: list[str]) -> None:
    """Become the command in the arguments, tied to the process whose number comes first."""
    # SIGTERM: mpirun then ends its processes on every host, and removes what it keeps in /tmp and /dev/shm.
    tie_to_parent(int(arguments[0]), signal.SIGTERM)
    if os.environ.get(LAUNCHER_VARIABLE) != REMOTE_LAUNCHER:
        os.environ[LAUNCHER_VARIABLE] = f"{socket.gethostname()}:{os.getpid()}"
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
