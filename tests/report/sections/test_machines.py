"""Pages of machines, and in what runs differ."""

import dataclasses

import pytest

from scalebench.core.machine.gpus import Gpu
from scalebench.report.document import Paragraph, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import machines
from tests.builders.runs import MACHINE
from tests.builders.sweeps import failed_run, run, sweep, write_results
from tests.report.section_blocks import cell_texts

GPUS = [Gpu(number, "A100", f"GPU-{number}", 40 * 2**30, 1410, 1215, 400.0, 0, None) for number in range(2)]
TOPOLOGY = [["X", "PIX"], ["PIX", "X"]]
ACCESS = {"read": [["X", "CNS"], ["CNS", "X"]]}
WITH_GPUS = dataclasses.replace(
    MACHINE, gpus=GPUS, topology=TOPOLOGY, peer_access=ACCESS, driver_version="550.54", cuda_driver_version="12.4",
    versions={"torch": "2.9"}, environment={"NCCL_DEBUG": "<script>alert(1)</script>"}, git_commit="abc",
    container="docker",
)  # fmt: skip


def make_section(folder):
    section = machines.section(load_report_data([folder]))
    return section


def tables_by_id(section):
    return {block.id: block for block in section.blocks if isinstance(block, Table)}


def test_one_machine_has_one_page_and_no_warning(tmp_path):
    sweep(tmp_path, ["ddp_gloo"], gpus=(1, 2), machine=WITH_GPUS)
    section = make_section(tmp_path)
    pages = tables_by_id(section)
    assert list(pages) == ["machine-0", "machine-0-links"]
    assert not [block for block in section.blocks if isinstance(block, Paragraph)]
    facts = dict(cell_texts(pages["machine-0"]))
    assert pages["machine-0"].title == "node" and pages["machine-0"].caption.startswith("2 runs.")
    assert facts["machine"] == "2 x A100, 2 cores, 8 GiB"
    assert facts["GPU 1"].startswith("A100, 40 GiB, 400 W, NUMA node 0, SM up to 1410 MHz")
    assert facts["driver"] == "550.54, CUDA up to 12.4" and facts["PIX pairs"] == "0-1"
    assert (facts["package torch"], facts["git commit"], facts["container"]) == ("2.9", "abc", "docker")
    assert facts["$NCCL_DEBUG"] == "<script>alert(1)</script>"
    assert not [value for value in facts.values() if "--multirun" in value]
    links = pages["machine-0-links"]
    assert links.columns == ("", "GPU 0", "GPU 1")
    assert cell_texts(links)[0] == ["GPU 0", "X", "PIX, no peer access (CNS)"]


def test_differences_stand_first_and_warn(tmp_path):
    other = dataclasses.replace(WITH_GPUS, hostname="other", driver_version="535.1", environment={})
    write_results(
        tmp_path, [run("ddp_gloo", 1, machine=WITH_GPUS), run("ddp_gloo", 2, machine=other), failed_run(machine=other)]
    )
    section = make_section(tmp_path)
    warning, table = section.blocks[:2]
    assert isinstance(warning, Paragraph) and warning.kind == "warning" and "2 machines" in warning.text
    assert isinstance(table, Table) and table.rows[0].tags == {"hardware": "cpu"}
    rows = cell_texts(table)
    assert ["driver", "550.54, CUDA up to 12.4", "1 run: ddp_gloo on 1 device"] in rows
    assert ["driver", "535.1, CUDA up to 12.4", "2 runs: ddp_gloo on 2 devices; ddp_gloo on 8 devices"] in rows
    assert ["$NCCL_DEBUG", "not set", "2 runs: ddp_gloo on 2 devices; ddp_gloo on 8 devices"] in rows
    assert not [row for row in rows if row[0] == "GPU 0"]
    assert {"machine-0", "machine-1"} <= set(tables_by_id(section))


def test_software_that_changed_on_one_machine_is_one_page_with_a_warning(tmp_path):
    newer = dataclasses.replace(WITH_GPUS, versions={"torch": "2.10"})
    write_results(tmp_path, [run("ddp_gloo", 1, machine=WITH_GPUS), run("ddp_gloo", 2, machine=newer)])
    section = make_section(tmp_path)
    assert "on one machine, differ" in section.blocks[0].text
    assert dict(cell_texts(tables_by_id(section)["machine-0"]))["package torch"] == "2.9; 2.10"
    assert "machine-1" not in tables_by_id(section)


def test_a_machine_that_was_rebuilt_is_another(tmp_path):
    limited = [dataclasses.replace(gpu, power_limit_w=250.0) for gpu in GPUS]
    rebuilt = dataclasses.replace(WITH_GPUS, gpus=limited)
    write_results(tmp_path, [run("ddp_gloo", 1, machine=WITH_GPUS), run("ddp_gloo", 2, machine=rebuilt)])
    pages = tables_by_id(make_section(tmp_path))
    assert (
        "250 W" in dict(cell_texts(pages["machine-1"]))["GPU 0"]
        and "400 W" in dict(cell_texts(pages["machine-0"]))["GPU 0"]
    )


def test_hardware_of_another_name_may_differ(tmp_path):
    remote = run("ddp_gloo", 2, machine=dataclasses.replace(WITH_GPUS, hostname="there"))
    remote.scale.hardware = "alpha"
    write_results(tmp_path, [run("ddp_gloo", 1), remote])
    section = make_section(tmp_path)
    assert list(tables_by_id(section)) == ["machine-0", "machine-1", "machine-1-links"]
    assert tables_by_id(section)["machine-1"].rows[0].tags == {"hardware": "alpha"}


@pytest.mark.parametrize("topology", [[["X"], ["PIX", "X", "SYS"]], [["X", "PIX"], []]])
def test_a_matrix_that_is_none_is_shown_as_far_as_it_goes(tmp_path, topology):
    sweep(tmp_path, ["ddp_gloo"], gpus=(1,), machine=dataclasses.replace(WITH_GPUS, topology=topology))
    links = tables_by_id(make_section(tmp_path))["machine-0-links"]
    assert all(len(row.cells) == len(links.columns) for row in links.rows)


def test_many_machines_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(machines, "MAX_MACHINES", 1)
    write_results(
        tmp_path, [run("ddp_gloo", n, machine=dataclasses.replace(MACHINE, hostname=f"n{n}")) for n in (1, 2)]
    )
    section = make_section(tmp_path)
    assert list(tables_by_id(section)) == ["machine-0"]
    assert section.blocks[-1] == Paragraph("1 of 2 machines are shown.")
