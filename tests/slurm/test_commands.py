"""The commands of SLURM 22.05: their output and errors, a partition, states of jobs, and polling."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.cluster import commands
from scalebench.cluster.commands import JobRefused, Slurm, SlurmError, SlurmUnreachable, classify_error
from scalebench.cluster.job_states import JobState, classify_end, is_over, parse_states, query_jobs, why_never_starts
from scalebench.cluster.partition import (
    SINFO_FORMAT,
    PartitionNode,
    count_gpus,
    count_gpus_by_type,
    parse_limit_minutes,
    parse_sinfo,
    read_partition,
)
from scalebench.core.errors import InputError
from scalebench.core.result import STATUSES
from tests.builders.runs import find_running, wait_until
from tests.conftest import ROOT
from tests.slurm.builders import SINFO


def read_golden(name):
    """Return the parts of a file: the line after `== `, and the text below it, which is what a command has printed."""
    text = (ROOT / f"tests/golden/slurm/{name}.txt").read_text(encoding="utf-8")
    return re.findall(r"^== (.*)\n((?:(?!== ).*\n)*)", text, re.MULTILINE)


def test_a_command_is_searched_in_the_folder_or_on_the_path(tools, tmp_path, monkeypatch):
    tools.put("sbatch", out="h1\nh2\n", err="a warning\n")
    assert tools.slurm.path("sbatch") == str(tools.folder / "sbatch") and tools.slurm.path("srun") is None
    assert tools.slurm.run("sbatch", "show", "h[1-2] $HOME;") == "h1\nh2\n"
    assert tools.calls("sbatch") == ["show h[1-2] $HOME;"], "arguments are passed unchanged"
    monkeypatch.setenv("PATH", str(tools.folder))
    assert Slurm().path("sbatch") == str(tools.folder / "sbatch")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Slurm("~/slurm bin").path("sbatch")


def test_variables_that_change_the_output_are_not_passed_on(tools, monkeypatch):
    for name in ("SQUEUE_STATES", "SACCT_FORMAT", "LC_ALL", "SLURM_TIME_FORMAT", "SLURM_CONF"):
        monkeypatch.setenv(name, "user")
    tools.put("squeue", then='env > "$here/env"')
    tools.slurm.run("squeue")
    environment = tools.environment()
    expected = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_CONF": "user"}
    assert expected.items() <= environment.items()
    assert not {"SQUEUE_STATES", "SACCT_FORMAT"} & environment.keys()
    tools.slurm.run("squeue", environment={"PATH": "/usr/bin:/bin", "LC_ALL": "user"})
    assert tools.environment()["LC_ALL"] == "user"


def test_a_missing_or_broken_command_is_unreachable(tools, monkeypatch):
    with pytest.raises(SlurmUnreachable, match=r"there is no sbatch in .*slurm bin"):
        tools.slurm.run("sbatch")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SlurmUnreachable, match=r"no sbatch on the PATH; set hardware\.slurm\.bin"):
        Slurm().run("sbatch")
    (tools.folder / "sbatch").write_text("#!/no/such/shell\n")
    (tools.folder / "sbatch").chmod(0o755)
    with pytest.raises(SlurmUnreachable, match="cannot be run: No such file"):
        tools.slurm.run("sbatch")


def test_a_hanging_command_is_killed_with_its_children(tools):
    tools.put("squeue", then='cat /proc/$$/stat > "$here/stat"; sleep 300 & echo $! > "$here/pid"; wait')
    with pytest.raises(SlurmUnreachable, match=r"squeue did not answer within 0\.3 s"):
        tools.slurm.run("squeue", timeout_s=0.3)
    number, *others = (tools.folder / "stat").read_text().split()
    assert others[4] == number, "in its own session, where no Ctrl-C arrives"
    wait_until(lambda: not find_running([int((tools.folder / "pid").read_text())]))


def test_errors_are_classified_and_in_one_line(tools):
    for expected, printed in read_golden("errors"):
        error = classify_error("sbatch", 3, printed)
        assert f"{type(error).__name__}: {error}" == expected
    assert len(commands.shorten_message("x" * 5000)) == commands.MAX_MESSAGE_CHARACTERS
    tools.put("sacct", out="Slurm accounting storage is disabled\n", code=1)
    with pytest.raises(SlurmError, match=r"^Slurm accounting storage is disabled$"):
        tools.slurm.run("sacct")
    tools.put("sbatch", out="noise\n", err="sbatch: error: Invalid qos specification\n", code=1)
    with pytest.raises(JobRefused, match=r"^Invalid qos specification$"):
        tools.slurm.run("sbatch")


NODES = parse_sinfo(SINFO)


def test_lines_of_sinfo():
    assert SINFO_FORMAT.count("|") == SINFO.splitlines()[0].count("|") == 8
    assert NODES[0] == PartitionNode(
        "taurusi8001", "alpha", False, "mixed", 96, 48, 2, 990000 * 2**20, "gpu:8(S:0-1)", 10080, ()
    )
    assert (NODES[3].partition, NODES[3].default, NODES[3].features) == ("main", True, ("ssd", "big"))
    assert [node.usable for node in NODES] == [True, True, False, True, False]
    assert parse_sinfo("\nslurm_load_partitions: Unable to contact\nh1|main|idle|8+|1:8:1|8000|x|1:00|y\n") == []
    limits = {"1:00:00": 60, "7-00:00:00": 10080, "30:00": 30, "1:30": 1.5, "infinite": None, "n/a": None}
    assert {limit: parse_limit_minutes(limit) for limit in limits} == limits


def test_gpus_of_a_node():
    counts = {
        ("gpu:8(S:0-1)", None): 8, ("gpu:a100:8(S:0-1),nvme:1", None): 8, ("gpu:a100:4,gpu:v100:2", None): 6,
        ("gpu:a100:4,gpu:v100:2", "v100"): 2, ("gpu:2", "a100"): 0, ("gpu", None): 1,
        ("gpu:3090:4,gpu:2080ti:2(S:0,2)", "3090"): 4, ("gpu:1g.5gb:7,gpu:a100_3g.20gb:2", "1g.5gb"): 7,
        ("gpu:a100", "a100"): 1, ("gpumem:80G,gpu_slots:2", None): 0, ("(null)", None): 0,
        ("craynetwork:4,shard:gpu", None): 0,
    }  # fmt: skip
    assert {case: count_gpus(*case) for case in counts} == counts
    assert count_gpus_by_type("gpu:a100:4(S:0),gpu:v100:2,gpu:1,nvme:1") == {"a100": 4, "v100": 2, "": 1}
    for gres in ("gpu:a100:b:4", "gpu=4", "gpu:a100:4:2(S:0)", "gpu:"):
        with pytest.raises(InputError, match=re.escape(f"gres 'nvme:1,{gres}'") + r": .* should be gpu\[:TYPE\]"):
            count_gpus_by_type(f"nvme:1,{gres}")


SCONTROL = "PartitionName=main\n   MaxNodes={} MaxTime=01:00:00 MinNodes=0\n"


@pytest.mark.parametrize(("max_nodes", "expected"), [("1", 1), ("UNLIMITED", None)])
def test_limits_of_a_job(tools, max_nodes, expected):
    tools.put("sinfo", SINFO)
    tools.put("scontrol", SCONTROL.format(max_nodes))
    partition = read_partition(tools.slurm, None)
    assert (partition.name, [node.name for node in partition.nodes]) == ("main", ["h1", "h2"])
    assert (partition.max_nodes, partition.limit_minutes) == (expected, 60)
    assert tools.calls("scontrol") == ["show partition main"]
    with pytest.raises(InputError, match="no partition 'alpa'; did you mean 'alpha'"):
        read_partition(tools.slurm, "alpa")
    tools.put("scontrol", code=1)
    assert read_partition(tools.slurm, "alpha").max_nodes is None


PRINTED = dict(read_golden("jobs"))


def test_what_squeue_and_sacct_print():
    """Older versions write local times."""
    states = parse_states(PRINTED["squeue"])
    assert states["5"] == JobState("5", "PENDING", "PartitionNodeLimit", submitted_at_s=1795232069.0, limit="1:00:00")
    assert states["17"] == JobState("17", "TIMEOUT", "TimeLimit", "h[1-2]", 1795232248.0, 1795232200.0, "1:00")
    assert states["7"].reason is None
    assert states["13"].started_at_s is None, "the time of the cancellation is no start"
    array = states["20_[1-9%2]"]
    assert array.reason == "Nodes required for job are DOWN, DRAINED or reserved|(x)" and array.started_at_s is None
    (old,) = parse_states("7|RUNNING|h1|2026-11-21T03:34:29|2026-11-21T03:34:09|1:00|None").values()
    assert old.started_at_s is not None and old.submitted_at_s == old.started_at_s - 20
    states = parse_states(PRINTED["sacct"])
    assert list(states) == ["1", "2", "14", "17", "18", "30+0"], "job steps are not jobs"
    assert (states["2"].state, states["2"].node_list, states["14"].started_at_s) == ("CANCELLED", None, 1795232248.0)
    assert states["30+0"].state == "CANCELLED"
    for text in ("", "No jobs in the system\n", "slurm_load_jobs error: Invalid job id\n", "12|RUNNING\n", "||||||\n"):
        assert parse_states(text) == {}


texts = st.text(string.ascii_letters + string.digits + "[]-_,.:()%+= ", min_size=0, max_size=12)


@given(st.integers(1, 10**9), texts, texts, texts, st.text("abc|,= ()\t", max_size=20))
def test_any_text_about_a_job_is_parsed(number, state, nodes, at, reason):
    line = f"{number}|{state}|{nodes}|{at}|{at}|{at}"
    for states in (parse_states(f"{line}|{reason}"), parse_states(line)):
        (job,) = states.values()
        assert job.job_id == str(number) and isinstance(is_over(job), bool)
        status, text = classify_end(job)
        assert status in STATUSES and str(number) in text and "\n" not in text


def test_the_end_of_a_job_is_one_line():
    for end, line in read_golden("ends"):
        (job,) = parse_states(line).values()
        assert ": ".join(classify_end(job)) == end
    assert [is_over(JobState("12", name)) for name in ("TELEPORTED", "COMPLETING", "TIMEOUT")] == [False, False, True]


def test_some_pending_jobs_can_never_start():
    for reason in ("PartitionNodeLimit", "QOSMaxWallDurationPerJobLimit", "AssocMaxGRESPerNode", "QOSMinGRES"):
        job = JobState("12", "PENDING", reason)
        obstacle = why_never_starts(job)
        assert classify_end(job) == ("unsupported", obstacle)
        assert obstacle.startswith(f"SLURM job 12 cannot start ({reason}): ")
    assert why_never_starts(JobState("12", "FAILED", "BadConstraints"))
    for reason in ("QOSMaxGRESPerUser", "AssocGrpCpuLimit", "AssocMaxJobsLimit", "Resources", None):
        assert why_never_starts(JobState("12", "PENDING", reason)) is None
    assert why_never_starts(JobState("12", "PENDING", "ReqNodeNotAvail, UnavailableNodes:h1")) is None
    for state in ("CANCELLED", "RUNNING"):
        assert why_never_starts(JobState("12", state, "PartitionConfig")) is None


def test_states_are_those_of_the_queue_or_of_accounting(tools):
    tools.put("squeue", out="1|RUNNING|h1|1795232248|1795232200|1:00|None\n")
    tools.put("sacct", out="2|FAILED|h1|1795232248|1795232200|00:01:00\n3|RUNNING|h1|1|1|1:00\n")
    states = query_jobs(tools.slurm, ["1", "2", "3"])
    assert {job_id: state.state for job_id, state in states.items()} == {"1": "RUNNING", "2": "FAILED"}, "it is behind"
    (queue,), (accounting,) = tools.calls("squeue"), tools.calls("sacct")
    assert "--states=all" in queue and "--user=" in queue
    assert "--job" not in queue, "squeue fails for numbers of jobs that left the queue"
    assert "--jobs=2,3" in accounting and "--allocations" in accounting
    assert query_jobs(tools.slurm, ["1"]).keys() == {"1"} and len(tools.calls("sacct")) == 1
    tools.put("sacct", err="Slurm accounting storage is disabled\n", code=1)
    assert query_jobs(tools.slurm, ["1", "2"]).keys() == {"1"}
    tools.put("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(SlurmUnreachable, match="Unable to contact slurm controller"):
        query_jobs(tools.slurm, ["1"])
