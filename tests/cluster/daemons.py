"""The programs of a cluster: munge, a database, slurmdbd and slurmctld on the head, slurmd on each node."""

import os
import stat

from tests.cluster import slurm_files
from tests.cluster.hosts import daemon, on
from tests.cluster.processes import running, until
from tests.cluster.settings import HEAD, ClusterError

LIMIT_S = 60.0


def write_files(settings):
    folder = settings.folder
    for name in ("etc", "state", "log", "run", "munge", "clock", "gpus", "hosts", "unshared"):
        (folder / name).mkdir(exist_ok=True)
    for node in settings.node_names:
        (folder / f"spool.{node}").mkdir(exist_ok=True)
        (folder / f"tmp.{node}").mkdir(exist_ok=True)
    for number in range(settings.gpus):
        _device(folder / "gpus" / f"gpu{number}")
    _write(folder / "etc" / "hosts", slurm_files.hosts(settings))
    _write(folder / "etc" / "slurm.conf", slurm_files.slurm_conf(settings))
    _write(folder / "etc" / "slurmdbd.conf", slurm_files.slurmdbd_conf(settings), 0o600)
    _write(folder / "etc" / "gres.conf", slurm_files.gres_conf(settings))
    _write(folder / "etc" / "cgroup.conf", slurm_files.cgroup_conf())
    _write(folder / "etc" / "task_prolog", slurm_files.task_prolog(settings), 0o755)
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
        daemon(settings, HEAD, ["slurmctld"])
    for node in settings.node_names:
        if running(settings.folder, node, "slurmd") is None:
            daemon(settings, node, ["slurmd"])


def wait_for_nodes(settings):
    """Until every node can take jobs or has one."""
    states = []

    def ready():
        try:
            states[:] = on(settings.folder, HEAD, "sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()
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
        daemon(settings, HEAD, ["munged", *words, *files, f"--seed-file={folder}/munge/seed"])


def _database(settings):
    folder, socket = settings.folder, f"--socket={settings.folder}/mysql.sock"
    data = f"--datadir={folder}/mysql"
    if not (folder / "mysql" / "mysql" / "db.frm").exists():
        words = ["--no-defaults", "--user=root", data, "--auth-root-authentication-method=socket", "--skip-test-db"]
        on(folder, HEAD, "mariadb-install-db", *words, limit_s=120.0)
    if running(folder, HEAD, "mariadbd") is None:
        small = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0"]
        words = ["--no-defaults", "--user=root", data, socket, "--skip-networking", "--innodb-lock-wait-timeout=900"]
        pid_file = f"--pid-file={folder}/run/mysql.pid"
        # The only one that has no way to go into the background itself.
        daemon(settings, HEAD, ["sh", "-c", '"$@" &', "sh", "mariadbd", *words, *small, pid_file])
    until(lambda: _answers(folder, "mariadb-admin", "--no-defaults", socket, "ping"), LIMIT_S, "the database")


def _accounts(settings):
    folder = settings.folder
    if running(folder, HEAD, "slurmdbd") is None:
        daemon(settings, HEAD, ["slurmdbd"], MYSQL_UNIX_PORT=f"{folder}/mysql.sock")
    asked = ("sacctmgr", "--noheader", "--parsable2", "list", "cluster", "format=cluster")
    until(lambda: _answers(folder, *asked), LIMIT_S, "slurmdbd")
    if slurm_files.CLUSTER_NAME not in on(folder, HEAD, *asked).split():
        on(folder, HEAD, "sacctmgr", "--immediate", "--quiet", "add", "cluster", slurm_files.CLUSTER_NAME)


def _device(path):
    """A character device, as SLURM wants it of what is a GPU: another door to /dev/null."""
    if not path.exists():
        os.mknod(path, stat.S_IFCHR | 0o600, os.stat(os.devnull).st_rdev)


def _answers(folder, *words):
    try:
        on(folder, HEAD, *words, limit_s=5.0)
    except ClusterError:
        return False
    return True


def _write(path, text, mode=0o644):
    path.write_text(text)
    path.chmod(mode)
