"""Nodes of the test cluster are apart, its links have their stated rates, and it leaves nothing behind."""

import json
import os
import shutil
import subprocess
import sys
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


# Of two ranks in an all-reduce each sends half of the values for the other to add up, and the other half's sums back:
# all of the bytes go over each link, each way. A packet of Ethernet carries 1448 bytes of them in 1514. A link at rest
# lets the first 128 KiB through at once, and the rest at its rate. Besides, the ranks wait for each other about once:
# what an all-reduce of 4 bytes takes.
PROGRAM = Path(__file__).with_name("all_reduce.py")
LARGE_BYTES, SMALL_BYTES = 100_000_000, 610_000  # the small ones are the gradients of the materials CNN
RATE_BITS_PER_S = 1e9
PACKET = 1514 / 1448
BURST_BYTES = 128 * 1024
TOLERANCE = 0.10
ATTEMPTS = 4


def wire_s(gradient_bytes, burst_bytes):
    """Seconds of a link for so many bytes of values, with so much of its bucket full."""
    return (gradient_bytes * PACKET - burst_bytes) * 8 / RATE_BITS_PER_S


def measured(cluster, large_bytes=LARGE_BYTES):
    variables = f"ALL,GLOO_SOCKET_IFNAME=eth0,MASTER_ADDR={cluster.nodes[0]},MASTER_PORT=29400"
    ranks = [f"--nodelist={','.join(cluster.nodes[:2])}", "--ntasks-per-node=1", f"--export={variables}"]
    program = [sys.executable, str(PROGRAM), str(large_bytes), str(SMALL_BYTES)]
    return json.loads(cluster.slurm("srun", *ranks, *program, limit_s=120))


def test_all_reduces_take_the_time_of_the_link(cluster):
    best = {}
    for _ in range(ATTEMPTS):  # whatever else runs here makes them slower; nothing makes them faster than the wire
        for name, seconds in measured(cluster).items():
            best[name] = min(seconds, best.get(name, seconds))
        theory = {
            "large_s": wire_s(LARGE_BYTES, BURST_BYTES) + best["empty_s"],
            "small_s": wire_s(SMALL_BYTES, BURST_BYTES) + best["empty_s"],
            "small_in_a_row_s": wire_s(SMALL_BYTES, 0),
        }
        found = {name: best[name] / theory[name] for name in theory}
        if all(abs(ratio - 1) <= TOLERANCE for ratio in found.values()):
            return
    raise AssertionError(f"measured over theory: {found}, {best}")


def test_a_tenth_of_the_rate_takes_ten_times_as_long(cluster):
    node = cluster.nodes[1]
    try:
        cluster.rate(node, "100mbit")
        slow = measured(cluster, SMALL_BYTES)["small_in_a_row_s"]
    finally:
        cluster.rate(node, "1gbit")
    assert slow == pytest.approx(10 * wire_s(SMALL_BYTES, 0), rel=TOLERANCE)
