"""Facts of machines, and in what runs differ."""

import dataclasses

from scalebench.core.machine.gpus import Gpu
from scalebench.report import machine_text
from tests.builders.runs import MACHINE, rank, record

GPU = Gpu(0, "A100", None, 40 * 2**30, 1410, 1215, 400.0, 0, None, pcie_generation_max=4, pcie_width_max=16)


def result_on(versions=None, framework_versions=None, **changes):
    machine = dataclasses.replace(MACHINE, versions=versions or {}, **changes)
    return record("ddp", 1, machine=machine, ranks=[rank(0, [0.1], versions=framework_versions or {})])


def test_what_an_idle_link_happened_to_be_is_no_difference():
    slow, fast = (
        dataclasses.replace(GPU, pcie_generation=now, pcie_width=16, sm_clock_mhz=100 * now) for now in (1, 4)
    )
    assert machine_text.find_differences([("a", result_on(gpus=[slow])), ("b", result_on(gpus=[fast]))]) == {}
    assert machine_text.list_hardware_facts(result_on(gpus=[slow]).machine)["GPU 0"].endswith("PCIe 4 x16")


def test_hardware_variables_versions_and_commits_differ():
    limited = dataclasses.replace(GPU, power_limit_w=250.0)
    first = result_on({"torch": "2.9"}, {"torch": "2.9", "nccl": "2.27"}, gpus=[GPU], git_commit="abc")
    second = result_on(
        {"torch": "2.8"}, {"torch": "2.8", "nccl": "2.26"}, gpus=[limited], environment={"NCCL_ALGO": "Ring"}
    )
    differences = machine_text.find_differences([("a", first), ("b", second)])
    assert set(differences) == {"GPU 0", "git commit", "package torch", "nccl, of torch", "$NCCL_ALGO"}
    assert differences["package torch"] == {"2.9": ["a"], "2.8": ["b"]}
    assert differences["$NCCL_ALGO"] == {"not set": ["a"], "Ring": ["b"]}
    assert differences["git commit"] == {"abc": ["a"], "unknown": ["b"]}


def test_a_package_that_is_not_there_is_no_other_version():
    assert machine_text.find_differences([("a", result_on({"torch": "2.9"})), ("b", result_on())]) == {}
    assert machine_text.find_differences([("a", result_on(gpus=[GPU])), ("b", result_on())])["GPU 0"]["none"] == ["b"]
