"""The section collectives, and the terminal's tables of it."""

from scalebench.analysis import collectives
from scalebench.core.result import CollectiveRecord, ProbeRecord, TransferRecord
from scalebench.report import tables
from scalebench.report.document import Chart, Table
from scalebench.report.sections import collectives as section
from scalebench.report.sections.collectives import make_bandwidth_table, make_collective_tables
from tests.builders.runs import rank, record
from tests.report.section_blocks import cell_texts, get_block, get_series, select_blocks, write_report_data

KIBIBYTE = 2**10


def collective_run(strategy, **times_s):
    """Make a run whose operations took these seconds by size, within 1 %."""
    measured = [
        CollectiveRecord(name, size, 1, [0.99 * taken_s, 1.01 * taken_s, taken_s])
        for name, by_size in times_s.items()
        for size, taken_s in by_size.items()
    ]
    return record(strategy, 2, ranks=[rank(k, probes=ProbeRecord(collectives=measured)) for k in range(2)])


def test_tables():
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


def test_limits_of_several_runs_are_over_repeats():
    """Three starts of 1, 1.1 and 1.2 ms: Student's t with 2 degrees of freedom, 4.303 * 0.1 / sqrt(3) = 0.248 ms."""
    starts = [collective_run("ddp_gloo", all_reduce={KIBIBYTE: taken_s}) for taken_s in (1e-3, 1.1e-3, 1.2e-3)]
    (table,) = make_collective_tables(collectives.make_collective_table(starts))
    assert cell_texts(table)[0][1] == "1.1 ms ± 23 %" and "over its blocks" in table.caption
    (table,) = make_collective_tables(collectives.make_collective_table(starts[:2]))
    assert cell_texts(table)[0][1] == "1.05 ms"  # two starts have no limits


def test_bandwidth():
    measured = [
        TransferRecord("send_both_ways", 0, 1, 10**9, 1, [1.0, 1.0]),
        TransferRecord("send_one_way", 1, 0, 10**9, 1, [0.5, 0.5]),
        TransferRecord("memcpy", 1, 1, 10**9, 1, [1.0, 1.0]),
        TransferRecord("memcpy_all", None, None, 10**9, 1, [0.1, 1.0]),
    ]
    result = record("ddp_gloo", 2, ranks=[rank(k, probes=ProbeRecord(bandwidth=measured)) for k in range(2)])
    rows = [
        [row[2], row[3], row[6]] for row in cell_texts(make_bandwidth_table(collectives.make_bandwidth_table([result])))
    ]
    assert rows == [
        ["send_both_ways", "0 <-> 1", "2 [2, 2]"],
        ["send_one_way", "1 -> 0", "2 [2, 2]"],
        ["memcpy", "1", "1 [1, 1]"],
        ["memcpy_all", "all", "3.64"],  # its upper limit is unknown
    ]


def test_curves_and_matrices(tmp_path):
    """The page draws what the frames hold: times with limits, bus bandwidths, and a matrix for each way."""
    sizes = {KIBIBYTE: 1e-3, 4 * KIBIBYTE: 2e-3}
    results = [collective_run(name, all_reduce=sizes, reduce=sizes) for name in ("ddp_gloo", "horovod_mpi")]
    ways = [TransferRecord("send_one_way", 0, 1, 10**9, 1, [0.5, 0.5]),
            TransferRecord("send_latency", 1, 0, 4, 10, [2e-4, 2e-4])]  # fmt: skip
    for rank_record in results[0].ranks:
        rank_record.probes.bandwidth = ways
    for number, result in enumerate(results):
        result.run_id = f"run{number}"
    report_data = write_report_data(tmp_path, results)
    made = section.section(report_data)
    assert [chart.id for chart in select_blocks(made, Chart)] == [
        "collectives-0-time", "collectives-0-busbw", "collectives-1-time", "collectives-1-busbw",
    ]  # fmt: skip
    line = get_series(get_block(made, Chart, "collectives-0-time"), "horovod_mpi")
    assert (line.x, line.y) == ([KIBIBYTE, 4 * KIBIBYTE], [1e-3, 2e-3])
    assert all(low < y < high for y, (low, high) in zip(line.y, line.limits, strict=True))
    assert get_series(get_block(made, Chart, "collectives-0-busbw"), "ddp_gloo").y == [1.024e6, 2.048e6]
    one_way, latency = select_blocks(made, Table, "bandwidth-matrix")
    assert one_way.title == "send_one_way (GB/s): ddp_gloo on 2 devices" and cell_texts(one_way)[0] == ["0", "", "2"]
    assert latency.title == "send_latency (us): ddp_gloo on 2 devices" and cell_texts(latency)[1] == ["1", "20", ""]
    names = tables.name_operation_tables(*report_data.operations)
    assert {name: len(frame) for name, frame in names.items()} == {"collectives": 8, "bandwidth": 2}


def test_no_section_without_measurements(tmp_path):
    assert section.section(write_report_data(tmp_path, [record("ddp_gloo", 2)])) is None
