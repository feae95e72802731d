"""Which transfers are measured, and how often; on a clock that only they advance."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.core.spec import MeasureSpec
from scalebench.measure import timing
from scalebench.measure.bandwidth import (
    HOST_COPY_BYTES,
    TRANSFER_BYTES,
    TRANSFER_COPIES,
    Route,
    list_routes,
    measure_bandwidth,
)
from tests.measure.fake_strategy import FakeStrategy

SETTINGS = MeasureSpec(block_s=0.05, probe_s=2.0)


def test_routes_of_cpus() -> None:
    assert list_routes(1, "cpu") == [Route("memcpy", 0, 0)]
    three = list_routes(3, "cpu")
    assert [(r.source, r.target) for r in three if r.kind == "send_one_way"] == [
        (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1),
    ]  # fmt: skip
    assert [(r.source, r.target) for r in three if r.kind == "send_both_ways"] == [(0, 1), (0, 2), (1, 2)]
    assert [r.kind for r in three if r.source is None] == ["send_ring", "memcpy_all"]
    assert [r.source for r in three if r.kind == "memcpy"] == [0, 1, 2]


def test_routes_of_gpus() -> None:
    kinds = {route.kind for route in list_routes(2, "cuda")}
    between = {f"{way}_{pattern}" for way in ("send", "peer", "staged") for pattern in ("one_way", "both_ways", "ring")}
    with_host = {"memcpy", "host_to_device", "device_to_host", "host_both_ways"}
    assert kinds == between | with_host | {f"{kind}_all" for kind in with_host}


def test_blocks_and_sizes() -> None:
    fake = FakeStrategy(lambda kind, source, target, size: size / (2e9 if kind == "memcpy_all" else 1e10))
    measured, reasons = measure_bandwidth(fake, SETTINGS, fake.clock)
    assert reasons == {} and len(measured) == len(list_routes(2, "cpu"))
    for each in measured:
        memory = each.kind.startswith("memcpy")
        assert each.size_bytes == (HOST_COPY_BYTES if memory else TRANSFER_BYTES)
        once_s = each.size_bytes / (2e9 if each.kind == "memcpy_all" else 1e10)
        assert each.repeats == max(1, round(0.05 / once_s))
        assert each.block_s == pytest.approx([each.repeats * once_s] * 8)


def test_the_slowest_rank_sets_the_repeats() -> None:
    """Rank 0 takes no part in a transfer from 1 to 2, and waits for its end at the next broadcast."""

    class Waiting(FakeStrategy):
        pending_s = 0.0

        def collective(self, kind: str, source: int | None, target: int | None, size: int) -> Any:
            elsewhere = source not in (None, 0) and target != 0

            def action() -> None:
                if elsewhere:
                    self.pending_s += 0.01
                else:
                    self.now_s += 0.01

            return action

        transfer = collective

        def broadcast(self, value: float) -> float:
            self.now_s, self.pending_s = self.now_s + self.pending_s, 0.0
            return super().broadcast(value)

    fake = Waiting(lambda *what: 0.0, gpus=3)
    measured, _ = measure_bandwidth(fake, SETTINGS, fake.clock)
    assert {each.repeats for each in measured} == {5}


def test_each_kind_that_a_strategy_lacks_has_one_reason() -> None:
    fake = FakeStrategy(lambda kind, *rest: -1.0 if kind.startswith("send") else 1e-3, gpus=3)
    measured, reasons = measure_bandwidth(fake, SETTINGS, fake.clock)
    assert reasons == {f"send_{way}": f"no send_{way} here" for way in ("one_way", "both_ways", "ring")}
    assert {each.kind for each in measured} == {"memcpy", "memcpy_all"}


def test_transfers_too_large_for_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = dataclasses.make_dataclass("Memory", ["available"])
    monkeypatch.setattr(timing.psutil, "virtual_memory", lambda: memory(2 * TRANSFER_COPIES * TRANSFER_BYTES))
    fake = FakeStrategy(lambda *what: 1e-3)
    measured, reasons = measure_bandwidth(fake, SETTINGS, fake.clock)
    assert {each.kind for each in measured} == {"send_one_way", "send_both_ways", "send_ring"}
    assert reasons["memcpy"] == "memcpy of 256 MiB would take 2 GiB of memory here, and 512 MiB are available"
