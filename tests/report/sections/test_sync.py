"""The section sync, and the terminal's tables of collective operations."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from scalebench.analysis import collectives
from scalebench.core.result import CollectiveRecord, ProbeRecord, Result, TransferRecord
from scalebench.report.document import Chart, Table
from scalebench.report.sections import sync
from scalebench.report.sections.sync import make_bandwidth_table, make_collective_tables
from tests.builders import sweeps
from tests.builders.runs import rank, record
from tests.report.section_blocks import (
    SCRIPT,
    block_text,
    cell_texts,
    get_block,
    get_column,
    get_series,
    select_blocks,
    write_report_data,
)


def test_sync_of_an_epoch_over_its_steps(tmp_path: Path) -> None:
    runs = [sweeps.run("ddp_gloo", n) for n in (2, 4)]
    for result, steps in zip(runs, (50, 25), strict=True):
        result.workload.steps_per_epoch = steps
    report_data = write_report_data(tmp_path, runs)
    series = get_series(get_block(sync.section(report_data), Chart, "sync-epoch"), "ddp_gloo")
    assert series.x == [50, 25]
    assert series.y == [float(value) for value in report_data.pooled["sync_per_epoch_s"]]
    assert list(series.notes) == ["2 devices, 100 messages an epoch", "4 devices, 50 messages an epoch"]


def change_probes(result: Result, **changes: object) -> Result:
    """Return the run with these fields of its probes changed on all ranks."""
    for rank_record in result.ranks:
        rank_record.probes = dataclasses.replace(rank_record.probes, **changes)  # type: ignore[arg-type]
    return result


def test_what_is_missing_has_its_reason(tmp_path: Path) -> None:
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


KIBIBYTE = 2**10


def collective_run(strategy: str, **times_s: dict[int, float]) -> Result:
    """Make a run whose operations took these seconds by size, within 1 %."""
    measured = [
        CollectiveRecord(name, size, 1, [0.99 * taken_s, 1.01 * taken_s, taken_s])
        for name, by_size in times_s.items()
        for size, taken_s in by_size.items()
    ]
    return record(strategy, 2, ranks=[rank(k, probes=ProbeRecord(collectives=measured)) for k in range(2)])


def test_tables() -> None:
    results = [
        collective_run("ddp_gloo", all_reduce={KIBIBYTE: 1e-3, 4 * KIBIBYTE: 1.024e-3}, reduce={KIBIBYTE: 1e-3}),
        collective_run("horovod_mpi", all_reduce={KIBIBYTE: 2e-5, 16 * KIBIBYTE: 2.0}),
    ]
    first, second = make_collective_tables(collectives.make_collective_table(results))
    assert first.title == "all_reduce on 2 devices (torch, cpu)" and second.title.startswith("reduce on 2 devices")
    assert first.columns == ["size", "ddp_gloo (95 %)", "busbw", "horovod_mpi (95 %)", "busbw"]
    assert cell_texts(first) == [
        ["1 KiB", "1 ms ± 2 %", "1.02 MB/s", "20 µs ± 2 %", "51.2 MB/s"],  # busbw of two ranks is algbw: 1024 B in 1 ms
        ["4 KiB", "1.02 ms ± 2 %", "4 MB/s", "", ""],  # not measured with the other
        ["16 KiB", "", "", "2 s ± 2 %", "8.19 kB/s"],
    ]


def test_bandwidth() -> None:
    measured = [
        TransferRecord("send_both_ways", 0, 1, 10**9, 1, [1.0, 1.0]),
        TransferRecord("send_one_way", 1, 0, 10**9, 1, [0.5, 0.5]),
        TransferRecord("memcpy", 1, 1, 10**9, 1, [1.0, 1.0]),
        TransferRecord("memcpy_all", None, None, 10**9, 1, [0.1, 1.0]),
    ]
    result = record("ddp_gloo", 2, ranks=[rank(k, probes=ProbeRecord(bandwidth=measured)) for k in range(2)])
    rows = [
        [row[2], row[3], row[5]] for row in cell_texts(make_bandwidth_table(collectives.make_bandwidth_table([result])))
    ]
    assert rows == [
        ["send_both_ways", "0 <-> 1", "2 [2, 2]"],
        ["send_one_way", "1 -> 0", "2 [2, 2]"],
        ["memcpy", "1", "1 [1, 1]"],
        ["memcpy_all", "all", "3.64"],  # its upper limit is unknown
    ]
