"""Stop the test cluster with all that runs on it, and remove its folder: make cluster-down."""

import contextlib
import shutil
import sys
import time

import psutil

from tests.cluster.processes import everything
from tests.cluster.settings import SETTINGS_FILE, ClusterError, chosen_folder

LIMIT_S = 20.0


def down(folder):
    """Whether there was anything. Nothing is asked to end: what it leaves unfinished lies in the folder, which goes."""
    killed = _kill_all(folder)
    if not (folder / SETTINGS_FILE).exists():
        return killed
    shutil.rmtree(folder)
    return True


def _kill_all(folder):
    """End all processes of the cluster, and say whether there were any."""
    end, some = time.monotonic() + LIMIT_S, False
    while found := everything(folder):  # again: one may have started another since we looked
        if time.monotonic() > end:
            raise ClusterError(f"processes of {folder} do not end: {[process.pid for process in found]}")
        some = True
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)
    return some


def main():
    folder = chosen_folder()
    try:
        print(f"{folder} is down" if down(folder) else f"there is no test cluster in {folder}")
    except (ClusterError, OSError) as error:
        print(f"cluster-down: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
