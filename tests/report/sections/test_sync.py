"""The section sync."""

import dataclasses

from scalebench.report.document import Chart, Table
from scalebench.report.sections import sync
from tests.builders import sweeps
from tests.report.section_blocks import (
    SCRIPT,
    block_text,
    get_block,
    get_column,
    get_series,
    select_blocks,
    write_report_data,
)


def test_sync_of_an_epoch_over_its_steps(tmp_path):
    runs = [sweeps.run("ddp_gloo", n) for n in (2, 4)]
    for result, steps in zip(runs, (50, 25), strict=True):
        result.workload.steps_per_epoch = steps
    report_data = write_report_data(tmp_path, runs)
    series = get_series(get_block(sync.section(report_data), Chart, "sync-epoch"), "ddp_gloo")
    assert series.x == [50, 25]
    assert series.y == [float(value) for value in report_data.pooled["sync_per_epoch_s"]]
    assert list(series.notes) == ["2 devices, 100 messages an epoch", "4 devices, 50 messages an epoch"]


def change_probes(result, **changes):
    """Return the run with these fields of its probes changed on all ranks."""
    for rank_record in result.ranks:
        rank_record.probes = dataclasses.replace(rank_record.probes, **changes)
    return result


def test_what_is_missing_has_its_reason(tmp_path):
    reasons = {"exposed": f"it cannot be switched off {SCRIPT}"}
    runs = [change_probes(sweeps.run("ddp_gloo", 2), sync_off_s=[], fixed_batch_s=[], reasons=reasons)]
    runs.append(change_probes(sweeps.run("horovod_gloo", 2), isolated_sync_s=[], sync_off_s=[], reasons={}))
    runs.append(sweeps.run("lightning_ddp_gloo", 2))
    for rank_record in runs[-1].ranks:
        rank_record.probes = None
    report_data = write_report_data(tmp_path, runs)
    section = sync.section(report_data)
    table = get_block(section, Table)
    remarks = get_column(table, "remarks")
    assert remarks["ddp_gloo 2"] == f"exposed sync: it cannot be switched off {SCRIPT}"
    assert remarks["horovod_gloo 2"] == "exposed sync, isolated sync: too few blocks for a figure"
    assert remarks["lightning_ddp_gloo 2"] == sync.NO_PROBES
    assert get_column(table, "exposed sync") == dict.fromkeys(remarks)
    assert select_blocks(section, Chart, "sync-sync-exposed") == select_blocks(section, Chart, "sync-epoch") == []
    assert get_column(table, "isolated sync")["ddp_gloo 2"] is not None
    assert SCRIPT in block_text(table)
