"""Nodes whose clocks differ, and the work of each node, on the test cluster."""

import pytest

from scalebench.core.run_folder import monitor_path
from scalebench.measure.monitor.time_series import read_series
from tests.cluster import hosts

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
LIMIT_S = 240.0
AHEAD_S = 100.0
SHORT = "measure.min_s=2 measure.max_s=2 measure.block_s=0.01 measure.monitor=true"


# For Python alone: under libfaketime 0.9.10 its sleep, which is until a moment of the clock that counts seconds, fails.
AHEAD = f"import time; real = time.time; time.time = lambda: real() + {AHEAD_S}"


@pytest.fixture
def skewed(cluster):
    """The second node's clock is ahead."""
    if hosts.faketime_library() is None:
        pytest.skip("a wrong clock needs libfaketime: make test-all installs it")
    cluster.clock(cluster.nodes[1], AHEAD_S)
    yield cluster
    cluster.clock(cluster.nodes[1], 0.0)


@pytest.fixture
def skewed_python(cluster, tmp_path):
    """The same, for programs in Python."""
    (tmp_path / "sitecustomize.py").write_text(AHEAD)
    (cluster.folder / "clock" / cluster.nodes[1]).write_text(f"export PYTHONPATH={tmp_path}\n")
    yield cluster
    cluster.clock(cluster.nodes[1], 0.0)


def run(program, strategy, *more):
    """Four ranks on two nodes."""
    program.run(f"{SHORT} gpus=4 strategy={strategy}", *more, several=False)
    return program.row()


def test_each_node_tells_of_itself_by_its_own_clock(skewed, program):
    folder = program.sweep
    result = run(program, "ddp_gloo")
    assert result.status == "ok", result.reason
    assert "clocks_differ" in result.flags and "unequal_nodes" not in result.flags
    assert [rank.clock_offset_s for rank in result.ranks[:2]] == [None, None]
    assert [rank.clock_offset_s for rank in result.ranks[2:]] == pytest.approx([AHEAD_S] * 2, abs=0.05)
    assert [result.machine.hostname, *(m.hostname for m in result.other_machines or [])] == skewed.nodes
    m = result.monitor
    assert m.reason is None and m.cpu_util_ours_mean is not None and m.cpu_util_ours_mean > 0
    assert m.net_sent_bytes_per_s > 0
    begin_s = [read_series(monitor_path(folder, node)).times_s("cpu", "cores")[0] for node in range(2)]
    assert begin_s[1] - begin_s[0] == pytest.approx(AHEAD_S, abs=AHEAD_S / 2)
    assert not list(folder.glob("machine*.json")) and not list(folder.glob("pid*.json"))


def test_the_first_failure_is_reported_despite_different_clocks(skewed_python, program):
    """The others tell of lost connections, and by their clocks a minute and more before."""
    options = ("fault", "raise"), ("fault_phase", "step"), ("fault_rank", "2"), ("fault_step", "50")
    result = run(program, "simulated", *(f"strategy.options.{name}={value}" for name, value in options))
    assert result.status == "failed" and (result.reason or "").startswith("rank 2: "), result.reason
    told = {rank.rank: rank.failed_at_s for rank in result.ranks if rank.failed_at_s is not None}
    assert len(told) > 1 and min(told, key=lambda rank: told[rank]) != 2  # as they stand


def test_the_data_set_is_copied_once_per_node(cluster, program):
    """To a folder that is another one on each node."""
    stage = cluster.unshared / "stage"
    result = run(program, "simulated", f"hardware.node_copy={stage}")
    assert result.status == "ok", result.reason
    for node in cluster.nodes:
        (copy,) = [name for name in cluster.on(node, "ls", str(stage)).split() if not name.endswith(".lock")]
        assert copy.startswith("materials-")
        assert set(cluster.on(node, "ls", f"{stage}/{copy}").split()) == {"inputs.npy", "targets.npy", "meta.json"}
    assert not stage.exists()
