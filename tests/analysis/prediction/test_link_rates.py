"""The link's two figures come back from synchronizations that were made of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.prediction.link_rates import (
    MeasuredSync,
    fit_link_rate,
    group_syncs_by_link,
    link_key,
)
from scalebench.core.errors import InputError
from scalebench.core.result import CollectiveRecord, ProbeRecord
from tests.builders.parallelism_runs import ddp_run

DATA = {
    "hardware": "cpu", "machine": "a", "framework": "torch", "backend_used": "gloo", "gpus": 2, "nodes": 1,
    "sync_isolated_s": 0.04,
}  # fmt: skip


def record(row):
    return ddp_run(8, 0.1, messages=4)


def gone(row):
    raise InputError("gone")


def test_links_are_those_of_a_backend_on_as_many_devices_of_a_machine():
    rows = [DATA, {**DATA, "gpus": 4}, {**DATA, "sync_isolated_s": None}, {**DATA, "gpus": 1},
            {**DATA, "backend_used": "mpi"}]  # fmt: skip
    actual = group_syncs_by_link(rows, record)
    assert [(key[3:5], len(several)) for key, several in actual.items()] == [
        (("gloo", 2), 1), (("gloo", 4), 1), (("mpi", 2), 1)
    ]  # fmt: skip
    assert actual[link_key(DATA)] == [MeasuredSync(2, 4, 4_000_000, 0.04)]
    assert group_syncs_by_link(rows, gone) == {}


def test_all_reduces_of_about_a_message_tell_the_rate_as_well():
    """Messages of 1 MB; an all-reduce of 64 MB goes through other memory, and a broadcast another way."""
    run = ddp_run(8, 0.1, messages=4)
    times = [("all_reduce", 2**20, 0.011), ("all_reduce", 2**22, 0.041)]
    times += [("all_reduce", 2**26, 9.0), ("broadcast", 2**20, 9.0)]
    for rank in run.ranks:
        rank.probes = rank.probes or ProbeRecord()
        rank.probes.collectives = [CollectiveRecord(name, size, 10, [10 * s] * 3) for name, size, s in times]
    row = {**DATA, "sync_isolated_s": None}
    (syncs,) = group_syncs_by_link([row], lambda _: run).values()
    assert [(sync.messages, sync.size_bytes) for sync in syncs] == [(1, 2**20), (1, 2**22)]
    link = fit_link_rate(syncs)
    assert link is not None and link.bytes_per_s == pytest.approx(3 * 2**20 / 0.03)
    assert link.latency_s == pytest.approx(0.0005)  # a ring of two has two rounds


latencies, bandwidths = st.floats(1e-6, 1e-2), st.floats(1e6, 1e12)


def taken(devices, messages, size_bytes, latency_s, bytes_per_s):
    """A ring: each message in 2 (n - 1) rounds, all bytes but the own part sent twice."""
    seconds = messages * 2 * (devices - 1) * latency_s + 2 * (devices - 1) / devices * size_bytes / bytes_per_s
    return MeasuredSync(devices, messages, size_bytes, seconds)


@given(latencies, bandwidths, st.integers(2, 16))
def test_latency_and_rate_come_back(latency_s, bytes_per_s, devices):
    """Of sizes around the one where half of the time is latency."""
    half = latency_s * bytes_per_s
    actual = fit_link_rate([taken(devices, 1, size * half, latency_s, bytes_per_s) for size in (0.1, 1, 10)])
    assert actual.latency_s is not None
    assert actual.latency_s == pytest.approx(latency_s, rel=1e-6)
    assert actual.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-6)


def test_measurements_that_make_no_link():
    negative = fit_link_rate([MeasuredSync(2, 1, 1e3, 0.5e-6), MeasuredSync(2, 1, 1e6, 1e-3)])
    assert negative.latency_s == 0.0 and 1e9 < negative.bytes_per_s < 2e9, "the small one is twice as fast a byte"
    nothing = [MeasuredSync(1, 1, 1e6, 1e-3), MeasuredSync(2, 1, 0.0, 1e-3), MeasuredSync(2, 1, 1e6, 0.0)]
    assert fit_link_rate([]) is fit_link_rate(nothing) is None
    busy = fit_link_rate([MeasuredSync(2, 1, 1e6, 1e-3), MeasuredSync(2, 1, 1e3, 2e-3)])  # more bytes in less time
    assert busy.latency_s is None and busy.bytes_per_s == pytest.approx(1e9, rel=1e-3)
