"""`python -m tests.truth.link_worker FOLDER`: scalebench.runner.worker in the network namespace of its rank."""

import ctypes
import os
import sys

from scalebench.core.process import LISTEN_ADDRESS
from scalebench.runner import worker

NAMESPACES = "TRUTH_NAMESPACES"  # path of each rank's, by commas
ADDRESS = "10.77.0.{}"
CLONE_NEWNET = 0x40000000


def enter(path):
    """Move this thread, from which all later ones come, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns", path)


if __name__ == "__main__":
    enter(os.environ[NAMESPACES].split(",")[int(os.environ["RANK"])])
    os.environ |= {"MASTER_ADDR": ADDRESS.format(1), LISTEN_ADDRESS: ADDRESS.format(1), "GLOO_SOCKET_IFNAME": "eth0"}
    worker.exit_without_cleanup(worker.main(sys.argv[1:]))
