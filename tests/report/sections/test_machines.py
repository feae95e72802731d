"""Pages of machines, and in what runs differ."""

import dataclasses

import pytest

from scalebench.core.machine.gpus import Gpu
from scalebench.report.document import Paragraph, Table
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import machines
from tests.builders.runs import MACHINE
from tests.builders.sweeps import run, sweep, write_results

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
