"""Start a test cluster or its missing parts, and stop it with all that runs on it."""

import contextlib
import dataclasses
import shutil
import time

import psutil

from tests.cluster import daemons, hosts, links, slurm_files
from tests.cluster.processes import everything
from tests.cluster.settings import (
    FOLDER_VARIABLE,
    HEAD,
    LONGEST_FOLDER,
    SETTINGS_FILE,
    SWITCH,
    ClusterError,
    obstacle,
    read_settings,
)

LIMIT_S = 20.0


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


def down(folder):
    """Whether there was anything. Nothing is asked to end: what it leaves unfinished lies in the folder, which goes."""
    end, some = time.monotonic() + LIMIT_S, False
    while found := everything(folder):  # again: one may have started another since we looked
        if time.monotonic() > end:
            raise ClusterError(f"processes of {folder} do not end: {[process.pid for process in found]}")
        some = True
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)
    if not (folder / SETTINGS_FILE).exists():
        return some
    shutil.rmtree(folder)
    return True
