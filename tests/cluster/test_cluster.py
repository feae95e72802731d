"""The test cluster behaves like a real one, its links have their stated rates, and it leaves nothing behind."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster import hosts, processes
from tests.cluster.cluster import PREFIX, Cluster, clear_left
from tests.cluster.fault_cases import state_of
from tests.cluster.settings import HEAD, ClusterError

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
LIMIT_S = 90.0  # of what SLURM gets round to sooner or later


@pytest.fixture
def own(cluster):
    """Another cluster, for a test that breaks it: beside that of the session."""
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        another = Cluster.start(Path(folder).resolve(), NODES="1", ACCOUNTING="no")
        try:
            yield another
        finally:
            another.stop()


def wait_for(cluster, job, *states):
    processes.until(lambda: state_of(cluster, job) in states, LIMIT_S, f"{' or '.join(states)} of job {job}")
    return state_of(cluster, job)


def submit(cluster, folder, script, *options):
    words = ["--parsable", f"--output={folder}/job.log", "--no-requeue", *options, f"--wrap={script}"]
    return cluster.slurm("sbatch", *words, cwd=folder).strip()


def test_a_job_over_two_nodes_and_its_accounts(cluster, tmp_path):
    script = 'srun sh -c "echo \\$SLURM_PROCID \\$(hostname) \\$CUDA_VISIBLE_DEVICES"; exit 3'
    job = submit(cluster, tmp_path, script, "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2")
    assert wait_for(cluster, job, "FAILED", "COMPLETED") == "FAILED"
    said = (tmp_path / "job.log").read_text().splitlines()
    assert {"0 node1 0,1", "1 node2 0,1"} <= set(said)
    asked = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,ExitCode,NodeList")
    processes.until(lambda: cluster.slurm(*asked).strip() == "FAILED|3:0|node[1-2]", LIMIT_S, "the job's account")


def test_nodes_are_machines_of_their_own(cluster):
    seen = {node: cluster.on(node, "hostname").strip() for node in cluster.nodes}
    assert seen == {node: node for node in cluster.nodes}
    assert cluster.on("node1", "ls", "/sys/class/net").split() == ["eth0", "lo"]
    cluster.on("node1", "touch", f"{cluster.unshared}/seen", "/dev/shm/seen")
    assert cluster.on("node1", "ls", str(cluster.unshared)).split() == ["seen"]
    assert cluster.on("node2", "ls", str(cluster.unshared), "/dev/shm").split() == ["/dev/shm:", f"{cluster.unshared}:"]
    assert list(cluster.unshared.iterdir()) == []
    assert str(os.getpid()) not in cluster.on("node1", "ls", "/proc").split()


def test_nothing_of_it_is_on_an_address_of_the_machine(cluster):
    ours = {process.pid for process in processes.everything(cluster.folder)}
    assert len(ours) > 10
    assert not {found.pid for found in psutil.net_connections("inet")} & ours
    addresses = [address.address for each in psutil.net_if_addrs().values() for address in each]
    assert not any(address.startswith("10.77.0.") for address in addresses)
    assert not any(cluster.folder.name in str(path) for path in Path("/etc").glob("netns/*"))


def test_a_cut_cable_is_a_dead_node_until_it_is_mended(cluster, tmp_path):
    job = submit(cluster, tmp_path, "srun sleep 600", "--nodes=2")
    wait_for(cluster, job, "RUNNING")
    try:
        cluster.cut("node2")
        wait_for(cluster, job, "NODE_FAIL")
    finally:
        cluster.mend("node2")
    asked = ("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T")
    processes.until(lambda: cluster.slurm(*asked).split() == ["idle", "idle"], LIMIT_S, "two idle nodes")


def test_a_job_of_the_low_partition_gives_way(cluster, tmp_path):
    low = submit(cluster, tmp_path, "sleep 600", "--partition=low", "--nodes=2", "--exclusive")
    wait_for(cluster, low, "RUNNING")
    cluster.slurm("srun", "--partition=main", "--nodes=2", "true")
    assert state_of(cluster, low) == "PREEMPTED"


def test_a_task_with_more_memory_than_requested_is_killed(cluster, tmp_path):
    grow = "import time; kept = bytes(b'x' * 400_000_000); time.sleep(60)"
    job = submit(cluster, tmp_path, f'srun python3 -c "{grow}"; exit 7', "--mem=100")
    assert wait_for(cluster, job, "FAILED", "COMPLETED") == "FAILED"  # the shell's word, not OUT_OF_MEMORY
    assert "exceeded memory limit" in (tmp_path / "job.log").read_text()


@pytest.mark.skipif(hosts.faketime_library() is None, reason="needs libfaketime: scripts/install_slurm.sh")
def test_the_clock_of_one_node_is_wrong(cluster):
    words = ("srun", "--nodes=2", "--label", "python3", "-c", "import time; print(time.time())")
    cluster.clock("node2", 120.0)
    try:
        times = dict(line.split(": ") for line in cluster.slurm(*words).splitlines())
    finally:
        cluster.clock("node2", 0.0)
    assert float(times["1"]) - float(times["0"]) == pytest.approx(120.0, abs=30.0)


def test_without_accounting(own):
    with pytest.raises(ClusterError, match="Slurm accounting storage is disabled"):
        own.slurm("sacct")
    assert not (own.bin_nosacct / "sacct").exists()
    said = subprocess.run([str(own.bin_nosacct / "squeue"), "-h"], capture_output=True, text=True, timeout=30)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


@pytest.mark.parametrize(("host", "name"), [("node1", "bash"), ("node1", "slurmd"), (HEAD, "munged"), (HEAD, "bash")])
def test_up_repairs_what_is_broken(own, host, name):
    broken = processes.running(own.folder, host, name)
    assert broken is not None
    broken.kill()
    broken.wait(10)
    again = Cluster.start(own.folder, NODES="1", ACCOUNTING="no")
    assert again.slurm("srun", "hostname").split() == ["node1"]


def test_down_leaves_nothing(own, tmp_path):
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
    with pytest.raises(ClusterError, match="other settings"):
        Cluster.start(cluster.folder, NODES="3")


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
    node = cluster.nodes[0]
    variables = f"ALL,GLOO_SOCKET_IFNAME=eth0,MASTER_ADDR={node},MASTER_PORT=29400"
    ranks = [f"--nodelist={','.join(cluster.nodes[:2])}", "--ntasks-per-node=1", f"--export={variables}"]
    program = [sys.executable, str(PROGRAM), str(large_bytes), str(SMALL_BYTES)]
    found = json.loads(cluster.slurm("srun", *ranks, *program, limit_s=120))
    return found


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
