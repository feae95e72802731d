"""Start the test cluster, or its missing parts: make cluster-up [NODES=2] [RATE=1gbit] [ACCOUNTING=no]."""

import dataclasses
import sys
import time

from tests.cluster import daemons, hosts, links, slurm_files
from tests.cluster.down import down
from tests.cluster.settings import (
    FOLDER_VARIABLE,
    HEAD,
    LONGEST_FOLDER,
    SWITCH,
    ClusterError,
    chosen_folder,
    from_environment,
    obstacle,
    read_settings,
    usual_folder,
)


def up(settings):
    """Have the cluster as `settings` say. What runs already stays; ClusterError says why there is none."""
    reason = obstacle(settings.accounting)
    if reason is not None:
        raise ClusterError(reason)
    _claim(settings)
    if any(hosts.holder(settings.folder, host) is None for host in (SWITCH, HEAD)):
        # All cables end in the one, the daemons hang on the other. Without them a new cluster is sooner right than
        # the old one, whose controller would wait for jobs that are gone.
        down(settings.folder)
        settings.folder.mkdir(parents=True, exist_ok=True)
    daemons.write_files(settings)
    settings.write()
    hosts.start(settings, SWITCH)
    links.lay_switch(settings.folder)
    for host in settings.hosts:
        hosts.start(settings, host)
        links.connect(settings, host)
    for node in settings.node_names:
        links.mend(settings, node)
        links.shape(settings, node, settings.rate)
    slurm_files.write_commands(settings.folder)
    daemons.start(settings)
    daemons.wait_for_nodes(settings)


def _claim(settings):
    """Have the folder, empty or with the same cluster."""
    folder, there = settings.folder, read_settings(settings.folder)
    if len(str(folder)) > LONGEST_FOLDER:
        raise ClusterError(f"{folder}: a test cluster's folder has at most {LONGEST_FOLDER} letters, for its sockets")
    if any(letter in str(folder) for letter in " '\"%$,()"):
        raise ClusterError(f"{folder}: a test cluster's folder has no spaces, quotes, brackets, commas, % or $")
    if there is None and folder.exists() and any(folder.iterdir()):
        raise ClusterError(f"{folder} holds something else; set {FOLDER_VARIABLE}=/another/folder")
    if there is not None and dataclasses.replace(there, rate=settings.rate) != settings:
        raise ClusterError(f"{folder} has a test cluster of other settings ({there}): make cluster-down first")
    folder.mkdir(parents=True, exist_ok=True)


def main():
    begin = time.monotonic()
    folder = chosen_folder()
    new = read_settings(folder) is None
    try:
        settings = from_environment(folder)
        up(settings)
    except ClusterError as error:
        print(f"cluster-up: {error}", file=sys.stderr)
        return 1
    except BaseException:
        if new:
            down(folder)
        raise
    elsewhere = f"{FOLDER_VARIABLE}={folder} " if folder != usual_folder() else ""
    print(f"{', '.join(settings.node_names)} are up after {time.monotonic() - begin:.0f} s; {folder}/bin has sbatch")
    print(f"  {elsewhere}scalebench hardware=testcluster strategy=ddp_gloo gpus=4")
    print(f"  {elsewhere}python -m tests.cluster.links node1 100mbit | cut | mend")
    print(f"  {elsewhere}make cluster-down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
