"""Which sizes of collectives are measured, and how often; on a clock that only the operations advance."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.core.result import COLLECTIVES
from scalebench.core.spec import MeasureSpec, RankPlacement
from scalebench.measure import timing
from scalebench.measure.collectives import MESSAGE_SIZES, ONE_DEVICE, list_message_sizes, measure_collectives
from tests.measure.fake_strategy import FakeStrategy

SETTINGS = MeasureSpec(block_s=0.05, probe_s=2.0)
LARGEST = 256 * 2**20
Memory = dataclasses.make_dataclass("Memory", ["available"])


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the available memory in bytes, which is plenty at first."""

    def set_available(count: int) -> None:
        monkeypatch.setattr(timing.psutil, "virtual_memory", lambda: Memory(count))

    set_available(2**40)
    return set_available


def latency_and_rate(name: str, size_bytes: int) -> float:
    return 2e-3 + size_bytes / 1e9


def run(fake: FakeStrategy, **changes: Any) -> Any:
    return measure_collectives(fake, dataclasses.replace(SETTINGS, **changes), fake.clock)


def test_sizes_are_rounded_down_to_a_part_for_each_rank() -> None:
    assert (MESSAGE_SIZES[0], MESSAGE_SIZES[-1], len(MESSAGE_SIZES)) == (4, LARGEST, 14)
    assert list_message_sizes("all_reduce", 3) == list(MESSAGE_SIZES)
    assert list_message_sizes("all_gather", 2) == list(MESSAGE_SIZES[1:])
    assert list_message_sizes("all_to_all", 4) == list(MESSAGE_SIZES[1:])
    assert list_message_sizes("reduce_scatter", 3)[:4] == [12, 60, 252, 1020]
    assert list_message_sizes("scatter", 5, [4, 16, 20, 24]) == [20]


def test_every_operation_and_size_is_measured_for_its_share_of_the_time() -> None:
    measured, reasons = run(FakeStrategy(latency_and_rate))
    assert reasons == {}
    expected = [(name, size) for name in COLLECTIVES for size in list_message_sizes(name, 2)]
    assert [(each.name, each.size_bytes) for each in measured] == expected
    for each in measured:
        once_s = latency_and_rate(each.name, each.size_bytes)
        assert each.block_s == pytest.approx([each.repeats * once_s] * len(each.block_s))
        # A block fills an eighth of the operation's share of the time, or is a single long operation.
        block_s = 2.0 / 14 / 8
        assert each.repeats == max(1, round(block_s / once_s))
        share_s = 2.0 / 14  # of one size
        assert len(each.block_s) == max(3, min(8, round(share_s / (each.repeats * once_s))))


def test_a_block_is_at_most_as_long_as_requested() -> None:
    measured, _ = run(FakeStrategy(latency_and_rate), block_s=0.008)
    assert measured[0].repeats == 4 and len(measured[0].block_s) == 8


def test_calls_before_the_blocks_do_not_count() -> None:
    calls: list[int] = []

    class Slow(FakeStrategy):
        def collective(self, *what: Any) -> Any:
            action, number = super().collective(*what), len(calls)
            calls.append(0)

            def slow_at_first() -> None:
                calls[number] += 1
                self.now_s += 100.0 if calls[number] <= 2 else 0.0
                action()

            return slow_at_first

    measured, reasons = run(Slow(latency_and_rate))
    plain, _ = run(FakeStrategy(latency_and_rate))
    assert reasons == {} and all(max(each.block_s) < 10.0 for each in measured)
    assert [(each.repeats, len(each.block_s)) for each in measured] == [
        (each.repeats, len(each.block_s)) for each in plain
    ]


def test_larger_sizes_are_left_out_where_one_would_take_too_long() -> None:
    measured, reasons = run(FakeStrategy(lambda name, size: 1e-3 + 1e-6 * size if name == "gather" else 1e-3))
    largest = max(each.size_bytes for each in measured if each.name == "gather")
    assert largest == 2**20  # 1.05 s; the next would take 4.2 s
    assert reasons == {"gather": "not above 1 MiB: one more would take about 4.2 s"}
    assert max(each.size_bytes for each in measured if each.name == "scatter") == LARGEST


def test_unsupported_operations_have_a_reason_and_the_others_measured() -> None:
    fake = FakeStrategy(lambda name, size: -1.0 if name in ("reduce", "all_to_all") else 2e-3)
    measured, reasons = run(fake)
    assert reasons == {"reduce": "no reduce here", "all_to_all": "no all_to_all here"}
    assert {each.name for each in measured} == set(COLLECTIVES) - {"reduce", "all_to_all"}
    assert [name for name, _ in fake.requests].count("reduce") == 1


def test_sizes_too_large_for_memory_are_left_out(memory: Any) -> None:
    memory(6 * 64 * 2**20)
    measured, reasons = run(FakeStrategy(latency_and_rate))
    assert {
        name: max(each.size_bytes for each in measured if each.name == name) for name in COLLECTIVES
    } == dict.fromkeys(COLLECTIVES, 64 * 2**20)
    assert reasons["reduce"] == "buffers of 256 MiB would take 1.5 GiB of memory here, and 384 MiB are available"


def test_all_devices_of_a_node_share_its_memory(memory: Any) -> None:
    memory(6 * 64 * 2**20)
    fake = FakeStrategy(latency_and_rate)
    fake.spec = dataclasses.replace(fake.spec, places=[RankPlacement(0, 0, 0, [0, 1, 2, 3], [], 1)])
    assert max(each.size_bytes for each in run(fake)[0]) == 16 * 2**20
    fake.spec = dataclasses.replace(fake.spec, device="cuda")
    assert max(each.size_bytes for each in run(fake)[0]) == LARGEST


def test_one_device_has_no_collectives() -> None:
    fake = FakeStrategy(latency_and_rate, gpus=1)
    assert run(fake) == ([], dict.fromkeys(COLLECTIVES, ONE_DEVICE))
    assert fake.requests == []


def test_every_rank_follows_rank_0() -> None:
    """A rank that is slower, and has less memory, measures the same."""
    rank_0 = FakeStrategy(lambda name, size: 2e-3 + size / 1e8)
    measured, reasons = run(rank_0)
    rank_1 = FakeStrategy(lambda name, size: 9e-3 + size / 2e7, rank_0_values=rank_0.broadcasts)
    others, other_reasons = run(rank_1)
    assert rank_1.broadcasts == rank_0.broadcasts and rank_1.requests == rank_0.requests and other_reasons == reasons
    assert [(c.name, c.size_bytes, c.repeats, len(c.block_s)) for c in others] == [
        (c.name, c.size_bytes, c.repeats, len(c.block_s)) for c in measured
    ]


def test_a_sign_of_life_before_each_size() -> None:
    fake, signs = FakeStrategy(latency_and_rate), []
    measured, _ = measure_collectives(fake, SETTINGS, fake.clock, lambda: signs.append(len(fake.requests)))
    assert signs == list(range(len(measured)))
