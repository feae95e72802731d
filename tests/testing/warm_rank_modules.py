"""What a rank of test_warm_ranks does: `python -m tests.testing.warm_rank_modules FOLDER`, as the file `task` says."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from scalebench.runner.worker import end_with_parent, exit_without_cleanup

FOREVER_S = 600.0


def describe_process():
    """Return what a program can see of the way in which it was started."""
    mask = os.umask(0)
    os.umask(mask)
    return {
        "arguments": sys.argv,
        "name": __name__,
        "main": sys.modules["__main__"].__dict__ is globals(),
        "path": sys.path,
        "folder": os.getcwd(),
        "environment": {name: value for name, value in os.environ.items() if name != "SCALEBENCH_PARENT_PID"},
        "parent": os.environ["SCALEBENCH_PARENT_PID"] == str(os.getppid()),
        "session": os.getsid(0) == os.getpid(),
        "files": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],  # the last is that of the folder
        "input": os.readlink("/proc/self/fd/0"),
        "output": os.readlink("/proc/self/fd/1"),
        "errors": os.readlink("/proc/self/fd/2"),
        "encoding": (sys.stdout.encoding, sys.stdout.errors, getattr(sys.stdout, "write_through", None)),
        "signals": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": threading.active_count(),
        "cores": sorted(os.sched_getaffinity(0)),
        "mask": mask,
    }


def main(folder):
    task = (folder / "task").read_text()
    rank = os.environ["RANK"]
    if task == "describe":
        print(json.dumps(describe_process()))
    elif task == "draw":
        print(json.dumps([hash("a name"), float(np.random.rand()), os.getpid()]))
    elif task == "wait":
        end_with_parent()
        (folder / f"waits{rank}").touch()
        time.sleep(FOREVER_S)
    elif task == "raise":
        raise RuntimeError("as it should")
    return 7 if task == "fail" else 0


if __name__ == "__main__":
    exit_without_cleanup(main(Path(sys.argv[1])))
