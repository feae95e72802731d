"""A partition, from the lines of sinfo and scontrol."""

import re

import pytest

from scalebench.core.errors import InputError
from scalebench.slurm.partition import (
    SINFO_FORMAT,
    PartitionNode,
    count_gpus,
    count_gpus_by_type,
    parse_limit_minutes,
    parse_sinfo,
    read_partition,
)
from tests.slurm.builders import SINFO

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
