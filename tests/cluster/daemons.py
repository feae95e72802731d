"""A test cluster: the settings of SLURM, its programs (munge, a database, slurmdbd and slurmctld on the head, slurmd on
each node), and its commands for a shell of the machine: FOLDER/bin/sbatch and the others."""

import contextlib
import dataclasses
import os
import shutil
import stat
import time
from pathlib import Path

import psutil

from tests.cluster import hosts
from tests.cluster.processes import everything, network, running, until
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

LIMIT_S = 60.0
DOWN_LIMIT_S = 20.0
TEMPLATES = Path(__file__).with_name("etc")
CLUSTER_NAME = "testcluster"
DBD_PORT = 6819


def read_template(file, /, **words):
    return (TEMPLATES / file).read_text().format(**words)


def make_files(settings):
    """Return the text of each file in etc/."""
    folder, address, cores = settings.folder, settings.address(HEAD), settings.cpus // settings.threads
    words = {"folder": folder, "address": address, "port": DBD_PORT, "head": HEAD}
    nodes = "\n".join(
        f"NodeName={node} NodeAddr={settings.address(node)} Boards=1 SocketsPerBoard=1 CoresPerSocket={cores} "
        f"ThreadsPerCore={settings.threads} RealMemory={settings.memory_mib} Gres=gpu:{settings.gpus} State=UNKNOWN"
        for node in settings.node_names
    )
    accounting = (
        read_template("accounting.conf", **words)
        if settings.accounting
        else "AccountingStorageType=accounting_storage/none"
    )
    names = [f"{settings.address(host)} {host}" for host in settings.hosts]
    # What a job gets that asks for none: a job of one rank needs the memory of a framework.
    memory = f"DefMemPerCPU={settings.memory_mib // settings.cpus}"
    gpus = f"{folder}/gpus/gpu[0-{settings.gpus - 1}]"
    return {
        "hosts": "\n".join(["127.0.0.1 localhost", *names]) + "\n",
        "slurm.conf": read_template(
            "slurm.conf", **words, cluster=CLUSTER_NAME, accounting=accounting, nodes=nodes, memory=memory
        ),
        "slurmdbd.conf": read_template("slurmdbd.conf", **words),
        # GPUs are device files to SLURM; which, is nobody's business here, as no plugin holds jobs to them.
        "gres.conf": f"AutoDetect=off\nNodeName=node[1-{settings.nodes}] Name=gpu File={gpus}\n",
        "cgroup.conf": "CgroupAutomount=no\nConstrainCores=no\nConstrainDevices=no\nConstrainRAMSpace=no\n",
        "task_prolog": read_template("task_prolog", folder=folder),
    }


COMMANDS = "sbatch squeue sacct scancel scontrol sinfo srun salloc sacctmgr".split()
NEED_ACCOUNTING = ("sacct", "sacctmgr")


def write_commands(folder):
    """bin/ has all commands; bin-nosacct/ is that of a cluster that keeps no accounts."""
    process = hosts.holder(folder, HEAD)
    if process is None:
        raise ClusterError(f"there is no head in the test cluster of {folder}")
    words = {"folder": folder, "pid": process.pid, "network": network(process.pid), "stay": hosts.STAY}
    for where in ("bin", "bin-nosacct"):
        (folder / where).mkdir(exist_ok=True)
    for name in COMMANDS:
        program = shutil.which(name)
        text = read_template("command", **words, name=name, program=program, namespaces=" ".join(hosts.NAMESPACES))
        path = folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
        link = folder / "bin-nosacct" / name
        if name not in NEED_ACCOUNTING and not link.is_symlink():
            link.symlink_to(path)


def write_files(settings):
    folder = settings.folder
    for name in ("etc", "state", "log", "run", "munge", "clock", "gpus", "hosts", "unshared"):
        (folder / name).mkdir(exist_ok=True)
    for node in settings.node_names:
        (folder / f"spool.{node}").mkdir(exist_ok=True)
        (folder / f"tmp.{node}").mkdir(exist_ok=True)
    for number in range(settings.gpus):  # character devices, as SLURM wants it: other doors to /dev/null
        if not (gpu := folder / "gpus" / f"gpu{number}").exists():
            os.mknod(gpu, stat.S_IFCHR | 0o600, os.stat(os.devnull).st_rdev)
    for name, text in make_files(settings).items():
        (folder / "etc" / name).write_text(text)
        (folder / "etc" / name).chmod({"slurmdbd.conf": 0o600, "task_prolog": 0o755}.get(name, 0o644))
    (folder / "munge").chmod(0o700)
    key = folder / "munge" / "key"
    if not key.exists():
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))


def start(settings):
    """Start what does not run, in the order in which each needs the ones before."""
    _munge(settings)
    if settings.accounting:
        _database(settings)
        _accounts(settings)
    if running(settings.folder, HEAD, "slurmctld") is None:
        hosts.daemon(settings, HEAD, ["slurmctld"])
    for node in settings.node_names:
        if running(settings.folder, node, "slurmd") is None:
            hosts.daemon(settings, node, ["slurmd"])


def wait_for_nodes(settings):
    """Until every node can take jobs or has one."""
    states = []

    def ready():
        try:
            states[:] = hosts.on(settings.folder, HEAD, "sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()
        except ClusterError as error:
            states[:] = [str(error)]
        usable = [state in ("idle", "mixed", "allocated", "completing") for state in states]
        return len(usable) == settings.nodes and all(usable)

    try:
        until(ready, LIMIT_S, "all nodes")
    except ClusterError as error:
        raise ClusterError(f"{error}: {' '.join(states)}; see {settings.folder}/log") from None


def _munge(settings):
    folder = settings.folder
    if running(folder, HEAD, "munged") is None:
        words = ["--force", "--num-threads=4", f"--key-file={folder}/munge/key", f"--socket={folder}/munge.socket"]
        files = [f"--pid-file={folder}/run/munged.pid", f"--log-file={folder}/log/munged.log"]
        hosts.daemon(settings, HEAD, ["munged", *words, *files, f"--seed-file={folder}/munge/seed"])


def _database(settings):
    folder, socket = settings.folder, f"--socket={settings.folder}/mysql.sock"
    data = f"--datadir={folder}/mysql"
    if not (folder / "mysql" / "mysql" / "db.frm").exists():
        words = ["--no-defaults", "--user=root", data, "--auth-root-authentication-method=socket", "--skip-test-db"]
        hosts.on(folder, HEAD, "mariadb-install-db", *words, limit_s=120.0)
    if running(folder, HEAD, "mariadbd") is None:
        small = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0"]
        words = ["--no-defaults", "--user=root", data, socket, "--skip-networking", "--innodb-lock-wait-timeout=900"]
        pid_file = f"--pid-file={folder}/run/mysql.pid"
        # The only one that has no way to go into the background itself.
        hosts.daemon(settings, HEAD, ["sh", "-c", '"$@" &', "sh", "mariadbd", *words, *small, pid_file])
    until(lambda: _answers(folder, "mariadb-admin", "--no-defaults", socket, "ping"), LIMIT_S, "the database")


def _accounts(settings):
    folder = settings.folder
    if running(folder, HEAD, "slurmdbd") is None:
        hosts.daemon(settings, HEAD, ["slurmdbd"], MYSQL_UNIX_PORT=f"{folder}/mysql.sock")
    asked = ("sacctmgr", "--noheader", "--parsable2", "list", "cluster", "format=cluster")
    until(lambda: _answers(folder, *asked), LIMIT_S, "slurmdbd")
    if CLUSTER_NAME not in hosts.on(folder, HEAD, *asked).split():
        hosts.on(folder, HEAD, "sacctmgr", "--immediate", "--quiet", "add", "cluster", CLUSTER_NAME)


def _answers(folder, *words):
    try:
        hosts.on(folder, HEAD, *words, limit_s=5.0)
    except ClusterError:
        return False
    return True


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
    write_files(settings)
    settings.write()
    hosts.start(settings, SWITCH)
    hosts.lay_switch(settings.folder)
    for host in settings.hosts:
        hosts.start(settings, host)
        hosts.connect(settings, host)
    for node in settings.node_names:
        hosts.mend(settings, node)
        hosts.shape(settings, node, settings.rate)
    write_commands(settings.folder)
    start(settings)
    wait_for_nodes(settings)


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
    end, some = time.monotonic() + DOWN_LIMIT_S, False
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
