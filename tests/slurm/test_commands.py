"""The commands of SLURM, output and errors, and a partition; the texts are those of SLURM 22.05."""

import re

import pytest

from scalebench.core.errors import InputError
from scalebench.slurm import commands
from scalebench.slurm.commands import JobRefused, Slurm, SlurmError, SlurmUnreachable, SubmitLimit, classify_error
from scalebench.slurm.partition import (
    SINFO_FORMAT,
    PartitionNode,
    count_gpus,
    count_gpus_by_type,
    parse_limit_minutes,
    parse_sinfo,
    read_partition,
)
from tests.builders.runs import find_running, wait_until
from tests.slurm.builders import SINFO


def test_a_command_is_searched_in_the_folder_or_on_the_path(tools, tmp_path, monkeypatch):
    tools.put("sbatch", out="h1\nh2\n", err="a warning\n")
    assert tools.slurm.path("sbatch") == str(tools.folder / "sbatch") and not tools.slurm.has("srun")
    assert tools.slurm.run("sbatch", "show", "h[1-2] $HOME;") == "h1\nh2\n"
    assert tools.calls("sbatch") == ["show h[1-2] $HOME;"], "arguments are passed unchanged"
    monkeypatch.setenv("PATH", str(tools.folder))
    assert Slurm().path("sbatch") == str(tools.folder / "sbatch")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Slurm("~/slurm bin").has("sbatch")


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


POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
FAILED = "Batch job submission failed: "  # before the reason, behind `sbatch: error: `
OF_SBATCH = {
    JobRefused: [
        f"invalid partition specified: nosuch; {FAILED}Invalid partition name specified",
        f"{FAILED}Requested node configuration is not available",
        f"Memory specification can not be satisfied; {FAILED}Requested node configuration is not available",
        "Invalid generic resource (gres) specification",
        f"{FAILED}Requested reservation is invalid",
        f"{FAILED}Invalid feature specification",
        f"{FAILED}Invalid node name specified",
        "Invalid --mail-type specification",
        f"{FAILED}Invalid account or account/partition combination specified",
        f"{FAILED}Invalid qos specification",
        f"QOSMaxNodePerJobLimit; {FAILED}{POLICY}",
        f"{FAILED}User's group not permitted to use this partition",
    ],
    SlurmUnreachable: [f"{FAILED}Socket timed out on send/recv operation"],
    SubmitLimit: [
        f"AssocMaxSubmitJobLimit; {FAILED}{POLICY}",
        f"QOSMaxSubmitJobPerUserLimit; {FAILED}{POLICY}",
        f"{FAILED}{POLICY}",
        f"Slurm temporarily unable to accept job, sleeping and retrying; {FAILED}Resource temporarily unavailable",
    ],
    SlurmError: [f"{FAILED}Requested partition configuration not available now"],
}
CONTACT = "Unable to contact slurm controller (connect failure)"
PERSIST = "slurm_persist_conn_open_without_init: failed to open persistent connection to host:h0:17900: "
PERSIST += "Connection refused"
PRINTED = [
    (JobRefused, "/usr/bin/sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n",
     "unrecognized option '--bogus'"),
    (SlurmUnreachable, f"slurm_load_jobs error: {CONTACT}\n", CONTACT),
    (SlurmUnreachable, f"sacct: error: {PERSIST}\nsacct: error: Sending PersistInit msg: Connection refused\n",
     f"{PERSIST}; Sending PersistInit msg: Connection refused"),
    (SlurmUnreachable,
     "sacct: error: fetch_config: DNS SRV lookup failed\nsacct: fatal: Could not establish a configuration source\n",
     "fetch_config: DNS SRV lookup failed; Could not establish a configuration source"),
    (SlurmError, "Slurm accounting storage is disabled\n", "Slurm accounting storage is disabled"),
    (SlurmError, "slurm_load_jobs error: Invalid job id specified\n", "Invalid job id specified"),
    (SlurmError, "", "sbatch ended with exit code 3 and printed nothing"),
]  # fmt: skip


def test_errors_are_classified_and_in_one_line(tools):
    cases = list(PRINTED)
    for kind, lines in OF_SBATCH.items():
        for line in lines:
            printed = "".join(f"sbatch: error: {part}\n" for part in line.split("; "))
            cases.append((kind, printed, line.replace(FAILED, "")))
    for kind, printed, line in cases:
        error = classify_error("sbatch", 3, printed)
        assert (type(error), str(error)) == (kind, line)
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


SCONTROL = "PartitionName=main AllowAccounts=p_a,p_b AllowQos=ALL\n   MaxNodes={} MaxTime=01:00:00 MinNodes=0\n"


@pytest.mark.parametrize(("max_nodes", "expected"), [("1", 1), ("UNLIMITED", None)])
def test_limits_of_a_job(tools, max_nodes, expected):
    tools.put("sinfo", SINFO)
    tools.put("scontrol", SCONTROL.format(max_nodes))
    partition = read_partition(tools.slurm, None)
    assert (partition.name, [node.name for node in partition.nodes]) == ("main", ["h1", "h2"])
    assert (partition.max_nodes, partition.limit_minutes) == (expected, 60)
    assert (partition.accounts, partition.qos) == (["p_a", "p_b"], None)
    assert tools.calls("scontrol") == ["show partition main"]
    with pytest.raises(InputError, match="no partition 'alpa'; did you mean 'alpha'"):
        read_partition(tools.slurm, "alpa")
    tools.put("scontrol", code=1)
    assert read_partition(tools.slurm, "alpha").accounts is None
