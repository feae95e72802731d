"""Nodes of the test cluster are apart, and it leaves nothing behind."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster import daemons, processes
from tests.cluster.cluster import PREFIX, Cluster, clear_left, temporary_cluster
from tests.cluster.settings import HEAD, ClusterError, Settings, obstacle

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
LIMIT_S = 90.0  # of what SLURM gets round to sooner or later


@pytest.fixture
def own(cluster):
    """Another cluster, for a test that breaks it: beside that of the session."""
    with temporary_cluster(NODES="1", ACCOUNTING="no") as another:
        yield another


def test_nodes_are_machines_of_their_own(cluster):
    seen = {node: cluster.on(node, "hostname").strip() for node in cluster.nodes}
    assert seen == {node: node for node in cluster.nodes}
    assert cluster.on("node1", "ls", "/sys/class/net").split() == ["eth0", "lo"]
    cluster.on("node1", "touch", f"{cluster.unshared}/seen", "/dev/shm/seen")
    assert cluster.on("node1", "ls", str(cluster.unshared)).split() == ["seen"]
    assert cluster.on("node2", "ls", str(cluster.unshared), "/dev/shm").split() == ["/dev/shm:", f"{cluster.unshared}:"]
    assert list(cluster.unshared.iterdir()) == []
    assert str(os.getpid()) not in cluster.on("node1", "ls", "/proc").split()
    # Nothing of it is on an address of the machine.
    ours = {process.pid for process in processes.everything(cluster.folder)}
    assert len(ours) > 10
    assert not {found.pid for found in psutil.net_connections("inet")} & ours
    addresses = [address.address for each in psutil.net_if_addrs().values() for address in each]
    assert not any(address.startswith("10.77.0.") for address in addresses)
    assert not any(cluster.folder.name in str(path) for path in Path("/etc").glob("netns/*"))


@pytest.mark.parametrize(("host", "name"), [("node1", "bash"), ("node1", "slurmd"), (HEAD, "munged"), (HEAD, "bash")])
def test_up_repairs_what_is_broken(own, host, name):
    broken = processes.running(own.folder, host, name)
    assert broken is not None
    broken.kill()
    broken.wait(10)
    again = Cluster.start(own.folder, NODES="1", ACCOUNTING="no")
    assert again.slurm("srun", "hostname").split() == ["node1"]


def test_down_leaves_nothing(own, tmp_path):
    words = ["--parsable", f"--output={tmp_path}/job.log", "--no-requeue", "--wrap=setsid sleep 612 & srun sleep 612"]
    own.slurm("sbatch", *words, cwd=tmp_path)
    with subprocess.Popen([str(own.bin / "salloc"), "sleep", "612"], stderr=subprocess.DEVNULL) as waiting:
        try:
            processes.until(lambda: own.slurm("squeue", "-h", "-o", "%T").split() == ["RUNNING"] * 2, 30, "both jobs")
            own.stop()
            assert waiting.wait(10) != 0
        finally:
            waiting.kill()
    assert not own.folder.exists()
    assert processes.everything(own.folder) == []
    assert not [p.pid for p in psutil.process_iter(["cmdline"]) if "612" in (p.info["cmdline"] or [])]
    assert str(own.folder) not in Path("/proc/mounts").read_text()


def test_the_next_session_stops_what_a_killed_one_left(cluster):
    with subprocess.Popen(["true"]) as gone:
        pass
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{gone.pid}-")).resolve()
    Cluster.start(folder, NODES="1", ACCOUNTING="no")
    clear_left()
    assert not folder.exists()
    assert processes.everything(folder) == []
    assert cluster.slurm("srun", "hostname").strip() in cluster.nodes


def test_a_second_up_changes_nothing(cluster):
    before = {process.pid for process in processes.marked(cluster.folder)}
    begin = time.monotonic()
    Cluster.start(cluster.folder, NODES="2", ACCOUNTING="yes", RATE="1gbit")
    assert {process.pid for process in processes.marked(cluster.folder)} == before
    assert time.monotonic() - begin < LIMIT_S


def test_a_folder_that_is_no_place_for_it_is_not_touched(tmp_path, monkeypatch):
    """Names that sockets or settings cannot have, other files, and a cluster of other settings."""
    monkeypatch.setattr(daemons, "obstacle", lambda accounting: None)
    for name in ("with space", "a" * 100, "100%"):
        with pytest.raises(ClusterError, match="folder has"):
            daemons.up(Settings(tmp_path / name))
        assert not (tmp_path / name).exists()
    monkeypatch.setattr(daemons, "LONGEST_FOLDER", 1000)
    (tmp_path / "mine").touch()
    with pytest.raises(ClusterError, match="holds something else"):
        daemons.up(Settings(tmp_path))
    assert not daemons.down(tmp_path)
    assert (tmp_path / "mine").exists()
    Settings(tmp_path, nodes=2).write()
    with pytest.raises(ClusterError, match="make cluster-down first"):
        daemons.up(Settings(tmp_path, nodes=3))


def test_what_this_machine_lacks_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("slurmctld", "mariadbd") else f"/bin/{name}")
    assert "needs slurmctld, mariadbd: make test-all (scripts/install_slurm.sh)" in obstacle()
    assert "mariadbd" not in obstacle(accounting=False)
    refused = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted\n")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in obstacle()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: refused)
    assert obstacle().endswith("not allowed here: unshare: unshare failed: Operation not permitted")
