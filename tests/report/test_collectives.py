"""Collective operations and bandwidths for people."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from scalebench.crossover import collectives
from scalebench.probe_records import Collective, Probes, Transfer
from scalebench.report.sections.sync import (
    format_rate,
    format_time,
    make_bandwidth_table,
    make_collective_tables,
)
from scalebench.report.terminal import make_rich_table
from scalebench.results import Result
from scalebench.transfers import transfers
from tests.helpers import rank, record

KIBIBYTE = 2**10


def run(strategy: str, **times_s: dict[int, float]) -> Result:
    """One operation took so long by size, within 1 %."""
    measured = [
        Collective(name, size, 1, [0.99 * taken_s, 1.01 * taken_s, taken_s])
        for name, by_size in times_s.items()
        for size, taken_s in by_size.items()
    ]
    return record(strategy, 2, ranks=[rank(k, probes=Probes(collectives=measured)) for k in range(2)])


def printed(table: Table) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return [line.strip() for line in out.getvalue().splitlines() if line.strip()]


def test_tables() -> None:
    results = [
        run("ddp_gloo", all_reduce={KIBIBYTE: 1e-3, 4 * KIBIBYTE: 1.024e-3}, reduce={KIBIBYTE: 1e-3}),
        run("horovod_mpi", all_reduce={KIBIBYTE: 2e-5, 16 * KIBIBYTE: 2.0}),
    ]
    first, second = make_collective_tables(collectives(results))
    lines = printed(make_rich_table(first, first.title))
    assert lines[0] == "all_reduce on 2 devices (torch, cpu)"
    assert lines[1].split() == ["size", "ddp_gloo", "(95", "%)", "busbw", "horovod_mpi", "(95", "%)", "busbw"]
    assert lines[3].split("  ")[0] == "1 KiB" and "1 ms ± 2 %" in lines[3] and "20 µs ± 2 %" in lines[3]
    assert "1.02 MB/s" in lines[3]  # busbw of two ranks is algbw: 1024 B in 1 ms
    assert "1.02 ms" in lines[4] and "µs" not in lines[4]  # not measured with the other
    assert lines[5].startswith("16 KiB") and "2 s ± 2 %" in lines[5]
    assert printed(make_rich_table(second, second.title))[0].startswith("reduce on 2 devices")


def test_bandwidth() -> None:
    measured = [
        Transfer("send_both_ways", 0, 1, 10**9, 1, [1.0, 1.0]),
        Transfer("send_one_way", 1, 0, 10**9, 1, [0.5, 0.5]),
        Transfer("memcpy", 1, 1, 10**9, 1, [1.0, 1.0]),
        Transfer("memcpy_all", None, None, 10**9, 1, [0.1, 1.0]),
    ]
    result = record("ddp_gloo", 2, ranks=[rank(k, probes=Probes(bandwidth=measured)) for k in range(2)])
    lines = printed(make_rich_table(make_bandwidth_table(transfers([result])), "bandwidth"))
    assert [line.split()[2:4] for line in lines[-4:]] == [
        ["send_both_ways", "0"], ["send_one_way", "1"], ["memcpy", "1"], ["memcpy_all", "all"],
    ]  # fmt: skip
    assert "0 <-> 1" in lines[-4] and lines[-4].endswith("2 [2, 2]")
    assert "1 -> 0" in lines[-3] and lines[-3].endswith("2 [2, 2]")
    assert lines[-1].endswith("3.64")  # its upper limit is unknown


def test_rates() -> None:
    assert [format_rate(r) for r in (12.0, 1.5e4, 2.34e7, 5e10)] == ["12 B/s", "15 kB/s", "23.4 MB/s", "50 GB/s"]


def test_times() -> None:
    assert [format_time(t) for t in (1.234e-6, 9.996e-4, 0.0123, 1.5)] == ["1.23 µs", "1e+03 µs", "12.3 ms", "1.5 s"]
