"""The test cluster behaves like a real one, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster import clocks, processes
from tests.cluster.cluster import Cluster
from tests.cluster.fixture import PREFIX, clear_left
from tests.cluster.settings import HEAD, ClusterError

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
LIMIT_S = 90.0  # of what SLURM gets round to sooner or later


@pytest.fixture
def own(cluster: Cluster) -> Iterator[Cluster]:
    """Another cluster, for a test that breaks it: beside that of the session."""
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        another = Cluster.start(Path(folder).resolve(), NODES="1", ACCOUNTING="no")
        try:
            yield another
        finally:
            another.stop()


def state_of(cluster: Cluster, job: str) -> str:
    return cluster.slurm("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


def wait_for(cluster: Cluster, job: str, *states: str) -> str:
    processes.until(lambda: state_of(cluster, job) in states, LIMIT_S, f"{' or '.join(states)} of job {job}")
    return state_of(cluster, job)


def submit(cluster: Cluster, folder: Path, script: str, *options: str) -> str:
    words = ["--parsable", f"--output={folder}/job.log", "--no-requeue", *options, f"--wrap={script}"]
    return cluster.slurm("sbatch", *words, cwd=folder).strip()


def test_a_job_over_two_nodes_and_its_accounts(cluster: Cluster, tmp_path: Path) -> None:
    script = 'srun sh -c "echo \\$SLURM_PROCID \\$(hostname) \\$CUDA_VISIBLE_DEVICES"; exit 3'
    job = submit(cluster, tmp_path, script, "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2")
    assert wait_for(cluster, job, "FAILED", "COMPLETED") == "FAILED"
    said = (tmp_path / "job.log").read_text().splitlines()
    assert {"0 node1 0,1", "1 node2 0,1"} <= set(said)
    asked = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,ExitCode,NodeList")
    processes.until(lambda: cluster.slurm(*asked).strip() == "FAILED|3:0|node[1-2]", LIMIT_S, "the job's account")


def test_nodes_are_machines_of_their_own(cluster: Cluster) -> None:
    seen = {node: cluster.on(node, "hostname").strip() for node in cluster.nodes}
    assert seen == {node: node for node in cluster.nodes}
    assert cluster.on("node1", "ls", "/sys/class/net").split() == ["eth0", "lo"]
    cluster.on("node1", "touch", f"{cluster.unshared}/seen", "/dev/shm/seen")
    assert cluster.on("node1", "ls", str(cluster.unshared)).split() == ["seen"]
    assert cluster.on("node2", "ls", str(cluster.unshared), "/dev/shm").split() == ["/dev/shm:", f"{cluster.unshared}:"]
    assert list(cluster.unshared.iterdir()) == []
    assert str(os.getpid()) not in cluster.on("node1", "ls", "/proc").split()


def test_nothing_of_it_is_on_an_address_of_the_machine(cluster: Cluster) -> None:
    ours = {process.pid for process in processes.everything(cluster.folder)}
    assert len(ours) > 10
    assert not {found.pid for found in psutil.net_connections("inet")} & ours
    assert not any(
        address.address.startswith("10.77.0.") for each in psutil.net_if_addrs().values() for address in each
    )
    assert not any(cluster.folder.name in str(path) for path in Path("/etc").glob("netns/*"))


def test_a_cut_cable_is_a_dead_node_until_it_is_mended(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "srun sleep 600", "--nodes=2")
    wait_for(cluster, job, "RUNNING")
    try:
        cluster.cut("node2")
        wait_for(cluster, job, "NODE_FAIL")
    finally:
        cluster.mend("node2")
    asked = ("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T")
    processes.until(lambda: cluster.slurm(*asked).split() == ["idle", "idle"], LIMIT_S, "two idle nodes")


def test_a_job_of_the_low_partition_gives_way(cluster: Cluster, tmp_path: Path) -> None:
    low = submit(cluster, tmp_path, "sleep 600", "--partition=low", "--nodes=2", "--exclusive")
    wait_for(cluster, low, "RUNNING")
    cluster.slurm("srun", "--partition=main", "--nodes=2", "true")
    assert state_of(cluster, low) == "PREEMPTED"


def test_a_task_with_more_memory_than_requested_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    grow = "import time; kept = bytes(b'x' * 400_000_000); time.sleep(60)"
    job = submit(cluster, tmp_path, f'srun python3 -c "{grow}"; exit 7', "--mem=100")
    assert wait_for(cluster, job, "FAILED", "COMPLETED") == "FAILED"  # the shell's word, not OUT_OF_MEMORY
    assert "exceeded memory limit" in (tmp_path / "job.log").read_text()


@pytest.mark.skipif(clocks.library() is None, reason="needs libfaketime: scripts/install_slurm.sh")
def test_the_clock_of_one_node_is_wrong(cluster: Cluster) -> None:
    words = ("srun", "--nodes=2", "--label", "python3", "-c", "import time; print(time.time())")
    cluster.clock("node2", 120.0)
    try:
        times = dict(line.split(": ") for line in cluster.slurm(*words).splitlines())
    finally:
        cluster.clock("node2", 0.0)
    assert float(times["1"]) - float(times["0"]) == pytest.approx(120.0, abs=30.0)


def test_without_accounting(own: Cluster) -> None:
    with pytest.raises(ClusterError, match="Slurm accounting storage is disabled"):
        own.slurm("sacct")
    assert not (own.bin_nosacct / "sacct").exists()
    said = subprocess.run([str(own.bin_nosacct / "squeue"), "-h"], capture_output=True, text=True, timeout=30)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


@pytest.mark.parametrize(("host", "name"), [("node1", "bash"), ("node1", "slurmd"), (HEAD, "munged"), (HEAD, "bash")])
def test_up_repairs_what_is_broken(own: Cluster, host: str, name: str) -> None:
    broken = processes.running(own.folder, host, name)
    assert broken is not None
    broken.kill()
    broken.wait(10)
    again = Cluster.start(own.folder, NODES="1", ACCOUNTING="no")
    assert again.slurm("srun", "hostname").split() == ["node1"]


def test_down_leaves_nothing(own: Cluster, tmp_path: Path) -> None:
    submit(own, tmp_path, "setsid sleep 612 & srun sleep 612")
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
    own.folder.mkdir()  # for its TemporaryDirectory


def test_the_next_session_stops_what_a_killed_one_left(cluster: Cluster) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{gone.pid}-")).resolve()
    Cluster.start(folder, NODES="1", ACCOUNTING="no")
    clear_left()
    assert not folder.exists()
    assert processes.everything(folder) == []
    assert cluster.slurm("srun", "hostname").strip() in cluster.nodes


def test_a_second_up_changes_nothing(cluster: Cluster) -> None:
    before = {process.pid for process in processes.marked(cluster.folder)}
    begin = time.monotonic()
    Cluster.start(cluster.folder, NODES="2", ACCOUNTING="yes", RATE="1gbit")
    assert {process.pid for process in processes.marked(cluster.folder)} == before
    assert time.monotonic() - begin < LIMIT_S
    with pytest.raises(ClusterError, match="other settings"):
        Cluster.start(cluster.folder, NODES="3")
