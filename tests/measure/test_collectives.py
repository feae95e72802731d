"""Which collectives and transfers are measured, on a clock that only they advance, and what those of ranks give."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import read_record, write_json
from scalebench.core.probe_record import COLLECTIVES, ProbeRecord
from scalebench.core.spec import MeasureSpec, RankPlacement, write_spec
from scalebench.measure import collectives, timing
from scalebench.measure.collectives import MESSAGE_SIZES, ONE_DEVICE, list_message_sizes, measure_collectives
from scalebench.runner import launchers
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import NotMeasured, Probes
from tests.builders.runs import simulated_spec
from tests.strategies.builders import exchange_tensors

SETTINGS = MeasureSpec(block_s=0.05, probe_s=2.0)
LARGEST = 256 * 2**20
Memory = dataclasses.make_dataclass("Memory", ["available"])


class FakeStrategy(Probes):
    """One rank; `rank_0_values` are the values that rank 0 broadcasts, in order, for a rank other than 0."""

    def __init__(self, seconds, gpus=2, rank_0_values=None):
        """`seconds(name, size_bytes)` of an operation, or of a transfer `(kind, source, target, size_bytes)`."""
        self.spec = simulated_spec(gpus)
        self.now_s, self.seconds = 0.0, seconds
        self.requests = []
        self.broadcasts = []
        self._rank_0_values = None if rank_0_values is None else iter(rank_0_values)

    def clock(self):
        return self.now_s

    def broadcast(self, value):
        value = value if self._rank_0_values is None else next(self._rank_0_values)
        self.broadcasts.append(value)
        return value

    def synchronize(self):
        pass

    def collective(self, *request):
        self.requests.append(request)
        taken_s = self.seconds(*request)
        if taken_s < 0:
            raise NotMeasured(f"no {request[0]} here")

        def action():
            self.now_s += taken_s

        return action

    transfer = collective


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    def set_available(count):
        monkeypatch.setattr(timing.psutil, "virtual_memory", lambda: Memory(count))

    set_available(2**40)
    return set_available


def latency_and_rate(name, size_bytes):
    return 2e-3 + size_bytes / 1e9


def run(fake, **changes):
    return measure_collectives(fake, dataclasses.replace(SETTINGS, **changes), fake.clock)


def test_message_sizes_and_routes():
    assert (MESSAGE_SIZES[0], MESSAGE_SIZES[-1], len(MESSAGE_SIZES)) == (4, LARGEST, 14)
    assert list_message_sizes("all_reduce", 3) == list(MESSAGE_SIZES)
    assert list_message_sizes("all_gather", 2) == list(MESSAGE_SIZES[1:])
    assert list_message_sizes("all_to_all", 4) == list(MESSAGE_SIZES[1:])
    assert list_message_sizes("reduce_scatter", 3)[:4] == [12, 60, 252, 1020]
    assert list_message_sizes("scatter", 5, [4, 16, 20, 24]) == [20]
    assert collectives.list_routes(1, "cpu") == [collectives.Route("memcpy", 0, 0)]
    three = collectives.list_routes(3, "cpu")
    kinds = ("one_way", "both_ways")
    ways = {kind: [(r.source, r.target) for r in three if r.kind == f"send_{kind}"] for kind in kinds}
    both = [(0, 1), (0, 2), (1, 2)]
    assert ways == {"one_way": sorted([*both, *((b, a) for a, b in both)]), "both_ways": both}
    assert [r.kind for r in three if r.source is None] == ["send_ring", "memcpy_all"]
    assert [r.source for r in three if r.kind == "memcpy"] == [0, 1, 2]
    kinds = {route.kind for route in collectives.list_routes(2, "cuda")}
    patterns = ("latency", "one_way", "both_ways", "ring")
    between = {f"{way}_{pattern}" for way in ("send", "peer", "staged") for pattern in patterns}
    with_host = {"memcpy", "device_copy", "host_to_device", "device_to_host", "host_both_ways"}
    assert kinds == between | with_host | {f"{kind}_all" for kind in with_host}


def test_every_operation_and_size_is_measured_for_its_share_of_the_time():
    fake, signs = FakeStrategy(latency_and_rate), []
    measured, reasons = measure_collectives(fake, SETTINGS, fake.clock, lambda: signs.append(len(fake.requests)))
    assert reasons == {} and signs == list(range(len(measured))), "a sign of life before each size"
    expected = [(name, size) for name in COLLECTIVES for size in list_message_sizes(name, 2)]
    assert [(each.name, each.size_bytes) for each in measured] == expected
    share_s = 2.0 / 14  # of one size
    for each in measured:
        once_s = latency_and_rate(each.name, each.size_bytes)
        assert each.block_s == pytest.approx([each.repeats * once_s] * len(each.block_s))
        # A block fills an eighth of the operation's share of the time, or is a single long operation.
        assert each.repeats == max(1, round(share_s / 8 / once_s))
        assert len(each.block_s) == max(3, min(8, round(share_s / (each.repeats * once_s))))
    measured, _ = run(FakeStrategy(latency_and_rate), block_s=0.008)
    assert measured[0].repeats == 4 and len(measured[0].block_s) == 8, "at most as long as requested"
    fake = FakeStrategy(latency_and_rate, gpus=1)
    assert run(fake) == ([], dict.fromkeys(COLLECTIVES, ONE_DEVICE)) and fake.requests == []


def test_calls_before_the_blocks_do_not_count():
    calls = []

    class Slow(FakeStrategy):
        def collective(self, *what):
            action, number = super().collective(*what), len(calls)
            calls.append(0)

            def slow_at_first():
                calls[number] += 1
                self.now_s += 100.0 if calls[number] <= 2 else 0.0
                action()

            return slow_at_first

    measured, reasons = run(Slow(latency_and_rate))
    plain, _ = run(FakeStrategy(latency_and_rate))
    assert reasons == {} and all(max(each.block_s) < 10.0 for each in measured)
    assert [shape_of(each) for each in measured] == [shape_of(each) for each in plain]


def shape_of(collective):
    return collective.name, collective.size_bytes, collective.repeats, len(collective.block_s)


def test_what_would_take_too_long_or_is_not_supported_is_left_out_with_a_reason():
    measured, reasons = run(FakeStrategy(lambda name, size: 1e-3 + 1e-6 * size if name == "gather" else 1e-3))
    largest = max(each.size_bytes for each in measured if each.name == "gather")
    assert largest == 2**20  # 1.05 s; the next would take 4.2 s
    assert reasons == {"gather": "not above 1 MiB: one more would take about 4.2 s"}
    assert max(each.size_bytes for each in measured if each.name == "scatter") == LARGEST
    fake = FakeStrategy(lambda name, size: -1.0 if name in ("reduce", "all_to_all") else 2e-3)
    measured, reasons = run(fake)
    assert reasons == {"reduce": "no reduce here", "all_to_all": "no all_to_all here"}
    assert {each.name for each in measured} == set(COLLECTIVES) - {"reduce", "all_to_all"}
    assert [name for name, _ in fake.requests].count("reduce") == 1


def test_sizes_and_transfers_too_large_for_memory_are_left_out(memory):
    memory(6 * 64 * 2**20)
    fake = FakeStrategy(latency_and_rate)
    measured, reasons = run(fake)
    largest = {name: max(each.size_bytes for each in measured if each.name == name) for name in COLLECTIVES}
    assert largest == dict.fromkeys(COLLECTIVES, 64 * 2**20)
    assert reasons["reduce"] == "buffers of 256 MiB would take 1.5 GiB of memory here, and 384 MiB are available"
    # All devices of a node share its memory, and GPUs have their own.
    fake.spec = dataclasses.replace(fake.spec, places=[RankPlacement(0, 0, 0, [0, 1, 2, 3], [], 1)])
    assert max(each.size_bytes for each in run(fake)[0]) == 16 * 2**20
    fake.spec = dataclasses.replace(fake.spec, device="cuda")
    assert max(each.size_bytes for each in run(fake)[0]) == LARGEST
    memory(2 * collectives.TRANSFER_COPIES * collectives.TRANSFER_BYTES)
    fake = FakeStrategy(lambda *what: 1e-3)
    measured, reasons = collectives.measure_bandwidth(fake, SETTINGS, fake.clock)
    assert {each.kind for each in measured} == {"send_latency", "send_one_way", "send_both_ways", "send_ring"}
    assert reasons["memcpy"] == "memcpy of 256 MiB would take 2 GiB of memory here, and 512 MiB are available"


def test_every_rank_follows_rank_0():
    """A rank that is slower, and has less memory, measures the same."""
    rank_0 = FakeStrategy(lambda name, size: 2e-3 + size / 1e8)
    measured, reasons = run(rank_0)
    rank_1 = FakeStrategy(lambda name, size: 9e-3 + size / 2e7, rank_0_values=rank_0.broadcasts)
    others, other_reasons = run(rank_1)
    assert rank_1.broadcasts == rank_0.broadcasts and rank_1.requests == rank_0.requests and other_reasons == reasons
    assert [shape_of(each) for each in others] == [shape_of(each) for each in measured]


def test_blocks_and_sizes_of_transfers_and_a_reason_for_each_kind_that_a_strategy_lacks():
    fake = FakeStrategy(lambda kind, source, target, size: size / (2e9 if kind == "memcpy_all" else 1e10))
    measured, reasons = collectives.measure_bandwidth(fake, SETTINGS, fake.clock)
    assert reasons == {} and len(measured) == len(collectives.list_routes(2, "cpu"))
    for each in measured:
        memory = each.kind.startswith("memcpy")
        small = collectives.LATENCY_BYTES if each.kind == "send_latency" else collectives.TRANSFER_BYTES
        assert each.size_bytes == (collectives.HOST_COPY_BYTES if memory else small)
        once_s = each.size_bytes / (2e9 if each.kind == "memcpy_all" else 1e10)
        assert each.repeats == min(collectives.MAX_TRANSFERS, max(1, round(0.05 / once_s)))
        assert each.block_s == pytest.approx([each.repeats * once_s] * 8)
    fake = FakeStrategy(lambda kind, *rest: -1.0 if kind.startswith("send") else 1e-3, gpus=3)
    measured, reasons = collectives.measure_bandwidth(fake, SETTINGS, fake.clock)
    assert reasons == {f"send_{way}": f"no send_{way} here" for way in ("latency", "one_way", "both_ways", "ring")}
    assert {each.kind for each in measured} == {"memcpy", "memcpy_all"}


def test_the_slowest_rank_sets_the_repeats():
    """Rank 0 takes no part in a transfer from 1 to 2, and waits for its end at the next broadcast."""

    class Waiting(FakeStrategy):
        pending_s = 0.0

        def collective(self, kind, source, target, size):
            elsewhere = source not in (None, 0) and target != 0

            def action():
                if elsewhere:
                    self.pending_s += 0.01
                else:
                    self.now_s += 0.01

            return action

        transfer = collective

        def broadcast(self, value):
            self.now_s, self.pending_s = self.now_s + self.pending_s, 0.0
            return super().broadcast(value)

    fake = Waiting(lambda *what: 0.0, gpus=3)
    measured, _ = collectives.measure_bandwidth(fake, SETTINGS, fake.clock)
    assert {each.repeats for each in measured} == {5}


def test_a_block_has_its_calls_and_one_synchronization():
    now, events = SimpleNamespace(s=0.0), []

    def take(event, seconds):
        events.append(event)
        now.s += seconds

    group = SimpleNamespace(
        synchronize=lambda: take("synchronize", 10.0), broadcast=lambda value: take("barrier", 1000.0) or value
    )
    seconds = timing.time_blocks(group, lambda: take("call", 1.0), repeats=3, blocks=2, clock=lambda: now.s)
    assert seconds == [13.0, 13.0]
    assert events == ["barrier", *["call"] * 3, "synchronize"] * 2


SIZES = (4, 16, 4096, 65536)
TRANSFERS = (65536, 262144)


def sent(name, size_bytes, ranks, rank):
    """Of one rank; small whole numbers, whose sums are exact."""
    count = size_bytes // 4 // (ranks if name in ("all_gather", "gather") else 1)
    return (np.arange(count) % 1000 + 1000 * rank + 1).astype(np.float32)


def body(spec, strategy, record, progress):
    """A rank that does every operation once, then measures them and bandwidth, on small buffers."""
    strategy.setup()
    arrays = {}
    for name in COLLECTIVES:
        for size in list_message_sizes(name, spec.gpus, SIZES):
            try:
                action = strategy.collective(name, size)
            except NotMeasured:
                break
            results = exchange(strategy, action, lambda rank, name=name, size=size: sent(name, size, spec.gpus, rank))
            arrays |= {f"{name} {size} {rank}": result for rank, result in results.items()}
    np.savez(progress.folder / f"results{record.rank}.npz", **arrays)
    settings = spec.config.measure
    collectives.MAX_OPERATION_S = 600.0  # sizes here are far apart, and the machine may be busy
    found = ProbeRecord()
    found.collectives, found.reasons = measure_collectives(strategy, settings, sizes=SIZES)
    found.bandwidth, reasons = collectives.measure_bandwidth(strategy, settings, sizes=TRANSFERS)
    found.reasons |= reasons
    write_json(progress.folder / f"probes{record.rank}.json", found)


def exchange(strategy, action, values):
    """Return the results of an operation by rank, or by replica under tf.distribute, for what each sends."""
    if hasattr(action, "message"):  # of torch.distributed
        return exchange_tensors(action, values)
    if hasattr(action, "send"):  # of Horovod
        rank = strategy.library.rank()
        return {rank: action.send(strategy.to_tensor(values(rank))).numpy()}
    replicas = []

    def of_replica(context):
        replicas.append(context.replica_id_in_sync_group)
        return values(replicas[-1])

    (result,) = action.run([strategy.strategy.experimental_distribute_values_from_function(of_replica)])
    return {replica: part.numpy() for replica, part in zip(replicas, result, strict=True)}


RANK = "tests.measure.test_collectives"  # this file, at whose end its ranks begin
WORDS = ("gpus=2", "measure.block_s=0.002", "measure.probe_s=0.1", "measure.hang_s=60", "dataset.size=1000")


def launch(strategy, folder):
    spec = resolve(compose_config([f"strategy={strategy}", *WORDS]))
    if spec.unsupported is not None:
        pytest.skip(spec.unsupported)
    folder.mkdir(exist_ok=True)
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "collectives", module=RANK)
    assert ended.exit_codes == [0] * spec.processes, (folder / "rank0.log").read_text()[-3000:]
    arrays = {}
    for rank in range(spec.processes):
        with np.load(folder / f"results{rank}.npz") as found:
            arrays |= dict(found)
    probes = [read_record(folder / f"probes{k}.json", ProbeRecord) for k in range(spec.processes)]
    return SimpleNamespace(arrays=arrays, probes=probes)  # arrays by operation, size and rank


def expected(name, size, rank):
    inputs = [sent(name, size, 2, r) for r in range(2)]
    whole = sum(inputs[1:], inputs[0])
    of_rank = {
        "all_reduce": lambda: whole,
        "reduce": lambda: whole,
        "broadcast": lambda: inputs[0],
        "all_gather": lambda: np.concatenate(inputs),
        "gather": lambda: np.concatenate(inputs),
        "reduce_scatter": lambda: np.split(whole, 2)[rank],
        "scatter": lambda: np.split(inputs[0], 2)[rank],
        "all_to_all": lambda: np.concatenate([np.split(one, 2)[rank] for one in inputs]),
    }
    return None if name in ("reduce", "gather") and rank else of_rank[name]()


def check(left, operations):
    """Every result is right, and every operation was measured at every size, alike on all ranks."""
    assert {key.partition(" ")[0] for key in left.arrays} == operations
    for name in operations:
        for size in list_message_sizes(name, 2, SIZES):
            for rank in range(2):
                right, found = expected(name, size, rank), left.arrays.get(f"{name} {size} {rank}")
                assert (right is None) == (found is None), (name, size, rank)
                if right is not None:
                    np.testing.assert_array_equal(found, right, err_msg=f"{name} {size} {rank}")
    wanted = [(name, size) for name in COLLECTIVES if name in operations for size in list_message_sizes(name, 2, SIZES)]
    alike = [[(c.name, c.size_bytes, c.repeats, len(c.block_s)) for c in one.collectives] for one in left.probes]
    assert [one[:2] for one in alike[0]] == wanted and alike == [alike[0]] * len(alike)
    assert all(c.repeats >= 1 and len(c.block_s) >= 3 and min(c.block_s) > 0 for c in left.probes[0].collectives)
    assert set(COLLECTIVES) - operations == left.probes[0].reasons.keys() & set(COLLECTIVES)


@pytest.mark.slow
@pytest.mark.real
def test_ddp_gloo(tmp_path):
    left = launch("ddp_gloo", tmp_path / "run")
    check(left, set(COLLECTIVES))
    zero, one = ([(t.kind, t.source, t.target, t.size_bytes) for t in p.bandwidth] for p in left.probes)
    small, large = TRANSFERS
    assert zero == one == [
        ("send_latency", 0, 1, 4), ("send_latency", 1, 0, 4),
        ("send_one_way", 0, 1, small), ("send_one_way", 1, 0, small), ("send_both_ways", 0, 1, small),
        ("send_ring", None, None, small), ("memcpy", 0, 0, large), ("memcpy", 1, 1, large),
        ("memcpy_all", None, None, large),
    ]  # fmt: skip
    assert all(len(t.block_s) >= 3 and t.repeats >= 1 for p in left.probes for t in p.bandwidth)
    assert left.probes[0].reasons == {}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("strategies", "operations", "lacking", "reason"), [
    (["horovod_gloo", "horovod_mpi", "horovod_tensorflow_gloo", "lightning_horovod"],
     {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"}, "gather", "Horovod has no gather"),
    (["multiworker_ring", "mirrored", "mirrored_reduce_cpu"], {"all_reduce", "all_gather"}, "broadcast",
     "only all_reduce and all_gather"),
    (["mirrored_hierarchical"], {"all_reduce"}, "all_gather", "leaves it to another"),  # which is not measured
], ids=["horovod", "tensorflow", "falling back"])  # fmt: skip
def test_strategies_with_some_operations(strategies, operations, lacking, reason, tmp_path, subtests):
    for strategy in strategies:
        with subtests.test(strategy):
            left = launch(strategy, tmp_path / strategy)
            check(left, operations)
            assert reason in left.probes[0].reasons[lacking]
            kinds = {transfer.kind for transfer in left.probes[0].bandwidth}
            assert ("memcpy" in kinds) == ("horovod" in strategy and "tensorflow" not in strategy)
            assert "horovod" in strategy or not kinds
            if "horovod" in strategy:
                assert left.probes[0].reasons["send_one_way"].startswith(strategy)


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
