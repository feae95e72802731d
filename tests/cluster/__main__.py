"""Control the test cluster: make cluster-up and cluster-down, and a cable of it.

python -m tests.cluster up|down
python -m tests.cluster NODE RATE|none|cut|mend
"""

import sys
import time

from tests.cluster import hosts
from tests.cluster.daemons import down, up
from tests.cluster.settings import (
    FOLDER_VARIABLE,
    ClusterError,
    chosen_folder,
    from_environment,
    read_settings,
    usual_folder,
)


def main(words):
    folder = chosen_folder()
    settings = read_settings(folder)
    try:
        if words == ["down"]:
            print(f"{folder} is down" if down(folder) else f"there is no test cluster in {folder}")
        elif words == ["up"]:
            start(folder, settings is None)
        elif settings is None:
            raise ClusterError(f"there is no test cluster in {folder}: make cluster-up")
        elif len(words) != 2:
            raise ClusterError("asks for a node and its cable's new state: 1gbit (or another rate), none, cut or mend")
        elif words[1] in ("cut", "mend"):
            getattr(hosts, words[1])(settings, words[0])
        else:
            hosts.shape(settings, *words)
    except (ClusterError, OSError) as error:
        print(f"tests.cluster: {error}", file=sys.stderr)
        return 1
    return 0


def start(folder, new):
    """Have the cluster, or nothing of it."""
    begin_s = time.monotonic()
    try:
        settings = from_environment(folder)
        up(settings)
    except ClusterError:
        raise
    except BaseException:
        if new:
            down(folder)
        raise
    elsewhere = f"{FOLDER_VARIABLE}={folder} " if folder != usual_folder() else ""
    print(f"{', '.join(settings.node_names)} are up after {time.monotonic() - begin_s:.0f} s; {folder}/bin has sbatch")
    print(f"  {elsewhere}scalebench hardware=testcluster strategy=ddp_gloo gpus=4")
    print(f"  {elsewhere}python -m tests.cluster node1 100mbit | cut | mend")
    print(f"  {elsewhere}make cluster-down")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
