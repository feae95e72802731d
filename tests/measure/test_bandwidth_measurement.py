"""Which transfers are measured, and how often; on a clock that only they move."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.core.spec import MeasureSpec
from scalebench.measure import bandwidth, collectives
from scalebench.measure.bandwidth import MEMORY_BYTES, SIZE_BYTES, Route, measure, routes
from tests.measure.fake_strategy import Fake

SETTINGS = MeasureSpec(block_s=0.05, probe_s=2.0)


def test_routes_of_cpus() -> None:
    assert routes(1, "cpu") == [Route("memcpy", 0, 0)]
    three = routes(3, "cpu")
    assert [(r.source, r.target) for r in three if r.kind == "send_one_way"] == [
        (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1),
    ]  # fmt: skip
    assert [(r.source, r.target) for r in three if r.kind == "send_both_ways"] == [(0, 1), (0, 2), (1, 2)]
    assert [r.kind for r in three if r.source is None] == ["send_ring", "memcpy_all"]
    assert [r.source for r in three if r.kind == "memcpy"] == [0, 1, 2]


def test_routes_of_gpus() -> None:
    kinds = {route.kind for route in routes(2, "cuda")}
    between = {f"{way}_{pattern}" for way in ("send", "peer", "staged") for pattern in ("one_way", "both_ways", "ring")}
    alone = {"memcpy", "host_to_device", "device_to_host", "host_both_ways"}
    assert kinds == between | alone | {f"{kind}_all" for kind in alone}


def test_blocks_and_sizes() -> None:
    fake = Fake(lambda kind, source, target, size: size / (2e9 if kind == "memcpy_all" else 1e10))
    found, reasons = measure(fake, SETTINGS, fake.clock)
    assert reasons == {} and len(found) == len(routes(2, "cpu"))
    for one in found:
        memory = one.kind.startswith("memcpy")
        assert one.size_bytes == (MEMORY_BYTES if memory else SIZE_BYTES)
        each_s = one.size_bytes / (2e9 if one.kind == "memcpy_all" else 1e10)
        assert one.repeats == max(1, round(0.05 / each_s))
        assert one.block_s == pytest.approx([one.repeats * each_s] * 8)


def test_the_slowest_rank_sets_the_repeats() -> None:
    """Rank 0 has no part in a transfer from 1 to 2, and waits where it ends."""

    class Waiting(Fake):
        pending_s = 0.0

        def collective(self, kind: str, source: int | None, target: int | None, size: int) -> Any:
            apart = source not in (None, 0) and target != 0

            def action() -> None:
                if apart:
                    self.pending_s += 0.01
                else:
                    self.now_s += 0.01

            return action

        transfer = collective

        def broadcast(self, value: float) -> float:
            self.now_s, self.pending_s = self.now_s + self.pending_s, 0.0
            return super().broadcast(value)

    fake = Waiting(lambda *what: 0.0, gpus=3)
    found, _ = measure(fake, SETTINGS, fake.clock)
    assert {one.repeats for one in found} == {5}


def test_what_a_strategy_lacks_is_told_once() -> None:
    fake = Fake(lambda kind, *rest: -1.0 if kind.startswith("send") else 1e-3, gpus=3)
    found, reasons = measure(fake, SETTINGS, fake.clock)
    assert reasons == {f"send_{way}": f"no send_{way} here" for way in ("one_way", "both_ways", "ring")}
    assert {one.kind for one in found} == {"memcpy", "memcpy_all"}


def test_no_room_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = dataclasses.make_dataclass("Memory", ["available"])
    monkeypatch.setattr(collectives.psutil, "virtual_memory", lambda: memory(2 * bandwidth.COPIES * SIZE_BYTES))
    fake = Fake(lambda *what: 1e-3)
    found, reasons = measure(fake, SETTINGS, fake.clock)
    assert {one.kind for one in found} == {"send_one_way", "send_both_ways", "send_ring"}
    assert reasons["memcpy"] == "memcpy of 256 MiB would take 2 GiB of memory here, and 512 MiB are available"
