"""All probes of one rank with a strategy on a clock of the test; figures against known truth are in tests/truth."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from scalebench.core.probe_record import Profile
from scalebench.core.result import RankRecord
from scalebench.core.spec import StrategySpec
from scalebench.measure.probes import NO_SYNC, ONE_DEVICE, InterleavedBlocks, ProbeRunner, Variant
from scalebench.strategies.base import PARTS, LossPart, NotMeasured
from scalebench.strategies.simulated import Simulated
from scalebench.workloads import datasets
from tests.builders.runs import simulated_spec

STEP_S, SYNC_S, PART_S, COPY_S = 0.010, 0.004, {"forward": 0.003, "backward": 0.008, "optimizer": 0.010}, 0.001


class Timed(Simulated):
    """A rank that never waits for its peers. `lacks` names the methods that it cannot do."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, spec):
        super().__init__(spec, 0)
        self.now_s, self.syncing, self.switched, self.switch_s = 0.0, True, False, 0.0
        self.events = []
        self.during = {}  # method -> whether synchronization was on

    def take(self, method, seconds):
        if method in self.lacks:
            raise NotMeasured(f"no {method} here")
        self.during.setdefault(method, set()).add(self.syncing)
        self.now_s += seconds

    def set_gradient_sync(self, on):
        self.take("set_gradient_sync", 0.0)
        self.syncing, self.switched = on, True
        self.events.append("on" if on else "off")

    def step(self, batch):
        self.take("step", STEP_S + SYNC_S * self.syncing + self.switch_s * self.switched)
        self.switched = False
        self.events.append(f"step {batch}")
        return LossPart(1.0, 1)

    def synchronize(self):
        self.events.append("synchronize")

    def partial_step(self, batch, until):
        self.take(until, PART_S[until])

    def run_isolated_sync(self, sizes):
        self.take("run_isolated_sync", SYNC_S * len(sizes))

    def copy_batch(self, batch):
        self.take("copy", COPY_S)

    def profile(self, steps, trace):
        self.take("profile", 0.1)
        if trace is not None:
            trace.write_bytes(b"")
        return Profile(steps, 0.02)

    def broadcast(self, value):
        self.events.append("barrier")
        return value


def run_probes(folder, kind=Timed, gpus=2, message_bytes=(8, 8), device="cpu", **changes):
    measure = {"block_s": 0.05, "probe_s": 2.0, **changes.pop("measure", {})}
    spec = replace(simulated_spec(gpus, measure=measure, **changes), device=device)
    strategy, reports = kind(spec), []
    train, _ = datasets.open_sources(spec, 0, gpus)
    report = lambda: reports.append(strategy.now_s)  # noqa: E731
    rank = RankRecord(0, "here", 1, message_bytes=list(message_bytes))
    runner = ProbeRunner(spec, strategy, STEP_S + SYNC_S, rank, report, lambda: strategy.now_s)
    runner.run_step_probes(train)
    runner.run_profile(folder)
    assert not rank.probe_failures
    return runner.record, strategy, reports


def test_every_quantity_is_measured_in_blocks_for_about_the_configured_time(tmp_path):
    record, strategy, reports = run_probes(tmp_path)
    assert record.reasons == {}
    assert record.steps == 4, "about block_s"
    (local,) = record.local_step_s
    parts = {part: record.part_steps * seconds for part, seconds in PART_S.items()}
    for seconds, blocks in (
        (record.steps * (STEP_S + SYNC_S), record.sync_on_s),
        (record.steps * STEP_S, record.sync_off_s),
        (record.steps * STEP_S, record.fixed_batch_s),
        (STEP_S, local),
        (record.isolated_sync_repeats * 2 * SYNC_S, record.isolated_sync_s),
        (record.copy_repeats * COPY_S, record.copy_s),
        *((seconds, getattr(record, f"{part}_s")) for part, seconds in parts.items()),
    ):
        assert len(blocks) >= 4 and blocks == pytest.approx([seconds] * len(blocks))
    assert record.profile == Profile(5, 0.02) and record.trace is None
    assert len(reports) >= 6, "signs of life between probes"
    assert strategy.syncing
    assert all(strategy.during[part] == {False} for part in PARTS), "parts are timed without synchronization"
    assert strategy.during["profile"] == strategy.during["run_isolated_sync"] == {True}
    assert strategy.during["step"] == {True, False}
    record, _, _ = run_probes(tmp_path, measure={"trace": True})
    assert record.trace == "trace0.json.gz" and (tmp_path / record.trace).exists()
    short, long = (run_probes(tmp_path, measure={"probe_s": seconds})[1].now_s for seconds in (1.0, 4.0))
    assert 3 * short < long < 5 * short


@pytest.mark.gpu
@pytest.mark.parametrize(("probe_s", "most_s"), [(1.0, 5.0), (3.0, 10.0)])
def test_on_a_gpu_the_longer_blocks_do_not_lengthen_the_probes(probe_s, most_s, tmp_path):
    record, strategy, _ = run_probes(tmp_path, device="cuda", measure={"block_s": 0.02, "probe_s": probe_s})
    assert record.reasons == {} and 3.0 * probe_s < strategy.now_s < most_s
    assert record.steps * (STEP_S + SYNC_S) >= 0.1, "the queue of a GPU is drained at the end of each block"


@pytest.mark.parametrize(("gpus", "others"), [(2, set()), (1, {"isolated"})])
def test_probes_of_many_steps_are_left_out_where_steps_are_slow(tmp_path, gpus, others):
    record, strategy, _ = run_probes(tmp_path, gpus=gpus, measure={"probe_s": 0.01})
    assert set(record.reasons) == {"exposed", "data", "imbalance", *PARTS} | others
    why = "a step takes 0.014 s, longer than measure.probe_s: raise that to have its parts measured"
    assert [record.reasons[name] for name in ("data", *PARTS)] == [why] * 4
    assert {record.reasons["exposed"], record.reasons["imbalance"]} == {why if gpus > 1 else ONE_DEVICE}
    assert record.profile is not None and record.copy_s and bool(record.isolated_sync_s) == (gpus > 1)
    assert "step" not in strategy.during and strategy.syncing


@pytest.mark.parametrize(("lacks", "unmeasured"), [
    ({"set_gradient_sync"}, {"exposed", "imbalance"}),
    ({"run_isolated_sync"}, {"isolated"}),
    ({"copy"}, {"copy"}),
    ({"profile"}, {"profile"}),
    ({"optimizer"}, {"optimizer"}),
    (set(PARTS), set(PARTS)),
])  # fmt: skip
def test_a_probe_that_a_strategy_lacks_is_left_out_with_its_reason(lacks, unmeasured, tmp_path):
    kind = type("Limited", (Timed,), {"lacks": frozenset(lacks)})
    record, strategy, _ = run_probes(tmp_path, kind)
    assert set(record.reasons) == unmeasured
    assert all(reason.startswith("no ") for reason in record.reasons.values())
    assert record.sync_on_s and record.fixed_batch_s
    assert bool(record.sync_off_s) == bool(record.local_step_s) == ("set_gradient_sync" not in lacks)
    assert bool(record.isolated_sync_s) == ("run_isolated_sync" not in lacks)
    assert bool(record.forward_s) == ("forward" not in lacks)
    assert bool(record.optimizer_s) == ("optimizer" not in lacks)
    assert strategy.syncing
    if "set_gradient_sync" in lacks:  # the feed is measured with synchronization
        assert record.fixed_batch_s == pytest.approx(record.sync_on_s) and strategy.during["step"] == {True}


def test_what_there_is_not_is_not_measured(tmp_path):
    record, _, _ = run_probes(tmp_path, gpus=1)
    assert record.reasons == dict.fromkeys(("exposed", "imbalance", "isolated"), ONE_DEVICE)
    assert record.sync_on_s and record.fixed_batch_s and record.forward_s and not record.sync_off_s
    strategy = StrategySpec("simulated", baseline="simulated", independent=True)
    record, _, _ = run_probes(tmp_path, strategy=strategy)
    assert record.reasons == dict.fromkeys(("exposed", "imbalance", "isolated"), NO_SYNC)
    record, _, _ = run_probes(tmp_path, message_bytes=())
    assert record.reasons == {"isolated": "simulated does not know the sizes of its messages"}
    record, _, _ = run_probes(tmp_path, type("Remote", (Timed,), {"why_new_batches": lambda self: "elsewhere"}))
    assert set(record.reasons) == {"data"} and not record.fixed_batch_s


ON, OFF, FIXED = Variant("on"), Variant("off", sync=False), Variant("fixed", sync=False, new_batches=False)


LOADING_S, SWITCH_S = 100.0, 1e4


def interleave(variants, steps, rounds, ahead=0):
    """Return blocks that have been trained, and their strategy, which draws batches ahead of its steps."""
    strategy = Timed(simulated_spec(2))
    strategy.switch_s = SWITCH_S

    def load():
        for number in itertools.count():
            strategy.now_s += LOADING_S
            yield number

    blocks, drawn = InterleavedBlocks(strategy, load(), variants, steps, rounds, lambda: strategy.now_s), []
    for batch in blocks.loop:
        drawn.append(batch)
        if len(drawn) > ahead:
            strategy.step(drawn.pop(0))
            if blocks.loop.done(None):
                break
    return blocks, strategy


def batches_of_steps(strategy):
    return [int(event.split()[1]) for event in strategy.events if event.startswith("step")]


def test_each_variant_is_timed_as_often_in_blocks_that_all_ranks_begin_together():
    for steps, rounds in ((1, 1), (1, 4), (3, 2), (5, 3)):
        blocks, _ = interleave([ON, OFF, FIXED], steps, rounds)
        step_seconds = ((ON, STEP_S + SYNC_S + LOADING_S), (OFF, STEP_S + LOADING_S), (FIXED, STEP_S))
        for variant, step_s in step_seconds:
            assert blocks.seconds(variant) == pytest.approx([steps * step_s] * rounds)
    _, strategy = interleave([ON, OFF], 2, 2)
    # Waits for the device at both ends.
    block = ["barrier", "synchronize", "step", "synchronize", "synchronize", "step", "step", "synchronize"]
    expected = ["on", *block, "off", *block, "off", *block, "on", *block]
    assert [event.split()[0] for event in strategy.events] == expected


def test_a_held_batch_is_the_first_of_the_feed():
    """It is full, and one that was drawn later may be the smaller one at the end of an epoch."""
    blocks, strategy = interleave([ON, FIXED], 2, 2)
    assert blocks.first_batch == 0
    assert batches_of_steps(strategy) == [0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 5]
    for ahead in (1, 2):  # a trainer that draws ahead gets the batches of each block, too
        assert batches_of_steps(interleave([ON, FIXED], 3, 1, ahead)[1]) == [0, 1, 2, 3, 0, 0, 0, 0]


def test_rounds_with_a_pause_of_a_users_program_are_left_out():
    """In the second block rank 0 saves; each block has a step that is not timed, and one that is."""
    program = SimpleNamespace(has_program=True, synchronize=lambda: None, broadcast=lambda value: value)
    ticks = itertools.count()
    variants = [Variant("new"), Variant("same", new_batches=False)]
    blocks = InterleavedBlocks(program, iter(range(100)), variants, 1, 4, clock=lambda: next(ticks))
    for step, _ in enumerate(blocks.loop):
        blocks.loop.done(LossPart(None, 1, "saving" if step == 3 else ""))
    assert [len(blocks.seconds(variant)) for variant in variants] == [3, 3]
