"""Which sizes are measured, how often, and when it is over; on a clock that only the operations move."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.core.result import COLLECTIVES
from scalebench.core.spec import MeasureSpec, Place
from scalebench.measure import collectives
from scalebench.measure.collectives import SIZES, measure, usable_sizes
from tests.measure.fake_strategy import Fake

SETTINGS = MeasureSpec(block_s=0.05, probe_s=2.0)
LARGEST = 256 * 2**20
Memory = dataclasses.make_dataclass("Memory", ["available"])


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """memory(bytes) -> so much is available from now on; at first enough."""

    def available(count: int) -> None:
        monkeypatch.setattr(collectives.psutil, "virtual_memory", lambda: Memory(count))

    available(2**40)
    return available


def latency_and_rate(name: str, size_bytes: int) -> float:
    return 2e-3 + size_bytes / 1e9


def run(fake: Fake, **changes: Any) -> Any:
    return measure(fake, dataclasses.replace(SETTINGS, **changes), fake.clock)


def test_sizes() -> None:
    assert (SIZES[0], SIZES[-1], len(SIZES)) == (4, LARGEST, 14)
    assert usable_sizes("all_reduce", 3) == list(SIZES)
    assert usable_sizes("all_gather", 2) == list(SIZES[1:])
    assert usable_sizes("all_to_all", 4) == list(SIZES[1:])
    assert usable_sizes("reduce_scatter", 3)[:4] == [12, 60, 252, 1020]
    assert usable_sizes("scatter", 5, [4, 16, 20, 24]) == [20]


def test_every_operation_and_size_takes_its_time() -> None:
    found, reasons = run(Fake(latency_and_rate))
    assert reasons == {}
    wanted = [(name, size) for name in COLLECTIVES for size in usable_sizes(name, 2)]
    assert [(one.name, one.size_bytes) for one in found] == wanted
    for one in found:
        each_s = latency_and_rate(one.name, one.size_bytes)
        assert one.block_s == pytest.approx([one.repeats * each_s] * len(one.block_s))
        # A block fills an eighth of the operation's share of the time, or is a single long operation.
        block_s = 2.0 / 14 / 8
        assert one.repeats == max(1, round(block_s / each_s))
        share_s = 2.0 / 14  # of one size
        assert len(one.block_s) == max(3, min(8, round(share_s / (one.repeats * each_s))))


def test_a_short_block_is_asked_for() -> None:
    found, _ = run(Fake(latency_and_rate), block_s=0.008)
    assert found[0].repeats == 4 and len(found[0].block_s) == 8


def test_calls_before_the_blocks_do_not_count() -> None:
    calls: list[int] = []

    class Slow(Fake):
        def collective(self, *what: Any) -> Any:
            action, mine = super().collective(*what), len(calls)
            calls.append(0)

            def slow_at_first() -> None:
                calls[mine] += 1
                self.now_s += 100.0 if calls[mine] <= 2 else 0.0
                action()

            return slow_at_first

    found, reasons = run(Slow(latency_and_rate))
    plain, _ = run(Fake(latency_and_rate))
    assert reasons == {} and all(max(one.block_s) < 10.0 for one in found)
    assert [(one.repeats, len(one.block_s)) for one in found] == [(one.repeats, len(one.block_s)) for one in plain]


def test_larger_sizes_are_left_out_where_one_would_take_too_long() -> None:
    found, reasons = run(Fake(lambda name, size: 1e-3 + 1e-6 * size if name == "gather" else 1e-3))
    largest = max(one.size_bytes for one in found if one.name == "gather")
    assert largest == 2**20  # 1.05 s; the next would take 4.2 s
    assert reasons == {"gather": "not above 1 MiB: one more would take about 4.2 s"}
    assert max(one.size_bytes for one in found if one.name == "scatter") == LARGEST


def test_unsupported_operations_are_told_and_the_others_measured() -> None:
    fake = Fake(lambda name, size: -1.0 if name in ("reduce", "all_to_all") else 2e-3)
    found, reasons = run(fake)
    assert reasons == {"reduce": "no reduce here", "all_to_all": "no all_to_all here"}
    assert {one.name for one in found} == set(COLLECTIVES) - {"reduce", "all_to_all"}
    assert [name for name, _ in fake.asked].count("reduce") == 1


def test_sizes_without_room_in_memory_are_left_out(memory: Any) -> None:
    memory(6 * 64 * 2**20)
    found, reasons = run(Fake(latency_and_rate))
    assert {name: max(one.size_bytes for one in found if one.name == name) for name in COLLECTIVES} == dict.fromkeys(
        COLLECTIVES, 64 * 2**20
    )
    assert reasons["reduce"] == "buffers of 256 MiB would take 1.5 GiB of memory here, and 384 MiB are available"


def test_all_devices_of_a_node_want_their_part_of_the_memory(memory: Any) -> None:
    memory(6 * 64 * 2**20)
    fake = Fake(latency_and_rate)
    fake.spec = dataclasses.replace(fake.spec, places=[Place(0, 0, 0, [0, 1, 2, 3], [], 1)])
    assert max(one.size_bytes for one in run(fake)[0]) == 16 * 2**20
    fake.spec = dataclasses.replace(fake.spec, device="cuda")
    assert max(one.size_bytes for one in run(fake)[0]) == LARGEST


def test_one_device() -> None:
    fake = Fake(latency_and_rate, gpus=1)
    assert run(fake) == ([], dict.fromkeys(COLLECTIVES, collectives.ALONE))
    assert fake.asked == []


def test_every_rank_does_as_rank_0_does() -> None:
    """A rank that is slower, and has less memory, takes the same way."""
    zero = Fake(lambda name, size: 2e-3 + size / 1e8)
    found, reasons = run(zero)
    one = Fake(lambda name, size: 9e-3 + size / 2e7, told=zero.said)
    others, told = run(one)
    assert one.said == zero.said and one.asked == zero.asked and told == reasons
    assert [(c.name, c.size_bytes, c.repeats, len(c.block_s)) for c in others] == [
        (c.name, c.size_bytes, c.repeats, len(c.block_s)) for c in found
    ]


def test_a_sign_of_life_before_each_size() -> None:
    fake, signs = Fake(latency_and_rate), []
    found, _ = measure(fake, SETTINGS, fake.clock, lambda: signs.append(len(fake.asked)))
    assert signs == list(range(len(found)))
