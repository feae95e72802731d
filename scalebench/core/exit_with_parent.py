"""Ties a process to the life of the one that started it (Linux). Layer 2, on the standard library alone.

It is a program too: `python leash.py PARENT_PID COMMAND...` becomes COMMAND, tied to PARENT_PID. A function that
subprocess runs between fork and exec could do the same, but is not safe where the parent has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1
LAUNCHER = "SCALEBENCH_LAUNCHER"  # host:pid of the program that was started so
REMOTE = "remote"  # its value where daemons start the ranks, which then do not descend from that program


def exit_with(parent: int, sign: signal.Signals) -> None:
    """Have the kernel send `sign` to this process when process `parent`, which started it, is gone.

    The kernel goes by the thread that started it: start a process and wait for it in the same thread.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, sign)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def command(parent: int, words: list[str]) -> list[str]:
    """Return the command that runs `words` tied to `parent`: isolated and without packages, which starts faster."""
    return [sys.executable, "-I", "-S", __file__, str(parent), *words]


def exit_with_launcher() -> None:
    """Tie this process to the one that started it, and end now if the program in LAUNCHER is gone already.

    Orphans may be adopted by a sub-reaper, so that a parent with process id 1 is no reliable test.
    """
    parent = os.getppid()
    exit_with(parent, signal.SIGKILL)
    host, _, pid = os.environ.get(LAUNCHER, "").rpartition(":")
    if host == socket.gethostname() and sys.platform.startswith("linux") and int(pid) not in ancestors(parent):
        os._exit(1)


def ancestors(pid: int) -> list[int]:
    """Return process `pid`, the one that started it, and so on, as far as this user may see."""
    pids = []
    while pid > 1:
        pids.append(pid)
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            break
    return pids


def main(arguments: list[str]) -> None:
    # SIGTERM: mpirun then ends its processes on every host, and removes what it keeps in /tmp and /dev/shm.
    exit_with(int(arguments[0]), signal.SIGTERM)
    if os.environ.get(LAUNCHER) != REMOTE:
        os.environ[LAUNCHER] = f"{socket.gethostname()}:{os.getpid()}"
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
