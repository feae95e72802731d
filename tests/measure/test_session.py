"""A rank's phases and progress, and what a session leaves of a strategy that cannot do all, or fails."""

import itertools
import math
import os
import time
from types import SimpleNamespace

import pytest

from scalebench.core.probe_record import COLLECTIVES
from scalebench.core.result import RankRecord, TimelineRecord
from scalebench.core.run_folder import progress_path
from scalebench.core.spec import DatasetSpec, StrategySpec
from scalebench.measure import progress
from scalebench.measure.progress import ProgressFile, RankProgress, read_progress, rss_peak_bytes
from scalebench.measure.session import NO_TIMELINE_FILE, Session, WrongBackend, complete_record
from scalebench.measure.train_to_target import Diverged
from scalebench.runner.collect import read_ranks
from scalebench.strategies.base import PARTS, LossPart, NotMeasured, Strategy, WrongGroup
from scalebench.strategies.simulated import Simulated
from tests.builders.runs import rank, simulated_spec
from tests.builders.sweeps import make_curve

PHASES = ["setup", "warmup", "measure", "evaluate", "probes", "close"]


class Alone(Simulated):
    """Rank 0 of a group whose other ranks it never waits for."""

    def setup(self): ...


class WithoutProbes(Strategy):
    def setup(self): ...

    def step(self, batch):
        return LossPart(float(batch.samples), batch.samples)

    def synchronize(self): ...

    def broadcast(self, value):
        return value

    def backend_used(self): ...

    def evaluate(self, source):
        return {"mse": 1.0}


def run_session(tmp_path, spec, kind=Simulated):
    record, strategy = RankRecord(0, "here", os.getpid()), kind(spec, 0)
    Session(spec, strategy, record, ProgressFile(tmp_path, 0, os.getpid())).run()
    return record, strategy


def test_phases_come_in_order_and_are_marked(tmp_path):
    calls, closed = [], []

    class Recording(Simulated):
        def __getattribute__(self, name):
            calls.append(name)
            return super().__getattribute__(name)

        def feed(self, source):
            try:
                yield from source
            finally:
                closed.append(True)

    record, _ = run_session(tmp_path, simulated_spec(), Recording)
    assert list(record.marks_s) == PHASES and closed == [True]
    assert list(record.marks_s.values()) == sorted(record.marks_s.values())
    order = ["shard", "setup", "num_params", "feed", "train", "step", "peak_memory_bytes", "evaluate"]
    assert [name for name in dict.fromkeys(calls) if name in order] == order
    # Probes come last; to close is the worker's part.
    last = ["evaluate", "message_sizes", "versions", "backend_used"]
    assert [name for name, _ in itertools.groupby(calls) if name in (*last, "close")] == last
    assert read_progress(tmp_path, 0).phase == "close"


def test_a_session_fills_the_record_and_reports_how_long_its_last_steps_took(tmp_path, monkeypatch):
    reported = []
    monkeypatch.setattr(ProgressFile, "update", lambda self, *state, step_s=None: reported.append((state, step_s)))
    record, _ = run_session(tmp_path, simulated_spec(options={"message_bytes": 77, "step_s": 0.004}, size=80))
    assert (record.train_samples, record.steps_per_epoch, record.params) == (60, 6, None)
    assert (record.metrics, record.message_bytes, record.backend_used) == ({"mse": 0.0}, [77], None)
    assert record.peak_memory_bytes == [None]
    assert record.warmup_block_steps == 1 and len(record.warmup_block_s) == len(record.warmup_losses) >= 16
    assert record.block_steps >= 1
    assert len(record.block_s) == len(record.block_samples) == len(record.block_losses) > 0
    losses = [loss for loss in record.warmup_losses + record.block_losses if loss is not None]
    assert losses[0] == 1.0 and losses == sorted(losses, reverse=True), "1/k at step k"
    blocks = [*record.warmup_block_s, *[block_s / record.block_steps for block_s in record.block_s]]
    first, *others = [step_s for (steps, *_), step_s in reported if steps]
    assert first is None and others == pytest.approx(blocks[1:])  # of a first step nothing is estimated


def test_a_strategy_without_probes_has_nulls_and_a_reason(tmp_path):
    measure = {"probes": True, "probe_s": 0.2, "collectives": True, "bandwidth": True, "timeline": True}
    record, _ = run_session(tmp_path, simulated_spec(2, measure=measure), WithoutProbes)
    assert record.block_s and record.metrics == {"mse": 1.0}
    assert (record.params, record.message_bytes, record.stages, record.state_bytes) == (None, [], [], [])
    assert record.probes.fixed_batch_s and not record.probes.sync_off_s
    probes = ["exposed", "imbalance", "isolated", *PARTS, "copy", "profile", *COLLECTIVES, "send_one_way", "memcpy"]
    assert record.probes.reasons.keys() >= set(probes)
    assert record.probes.reasons["profile"] == "simulated has no profiler"
    assert record.timeline.reason == "simulated has no timeline of its own"


def test_a_rank_that_rank_0_does_not_reach_fails(tmp_path):
    """Each process is in a group of its own, in which it is the root: together they would scale perfectly."""
    spec = simulated_spec(2)
    record, progress = RankRecord(1, "here", os.getpid()), ProgressFile(tmp_path, 1, os.getpid())
    with pytest.raises(WrongGroup, match=r"^simulated: the broadcast of rank 0 reached rank 1 as that of rank 1$"):
        Session(spec, WithoutProbes(spec, 1), record, progress).run()
    assert record.block_s == []


def test_a_trainer_that_ends_too_early_or_gives_no_number_fails_the_run(tmp_path):
    """The figures of one that ends as Lightning's does, at a limit that a hook, a callback or a variable has set, are
    of few steps. Where the last update spoils the weights, no loss shows it, and JSON has no such number."""

    class Impatient(Simulated):
        def train(self, loop):
            for batch, _ in zip(loop, range(9), strict=False):
                loop.done(self.step(batch))

    class Spoilt(Simulated):
        def evaluate(self, source):
            return {"mse": math.nan}

    with pytest.raises(RuntimeError, match=r"^simulated ended the training too early, after 9 steps"):
        run_session(tmp_path, simulated_spec(), Impatient)
    with pytest.raises(Diverged, match=r"^mse is nan after step \d+; lower train.learning_rate$"):
        run_session(tmp_path, simulated_spec(), Spoilt)
    spec, record = simulated_spec(options={"fault": "raise", "fault_phase": "evaluate"}), RankRecord(0, "here", 1)
    with pytest.raises(RuntimeError, match="failed as configured"):
        Session(spec, Simulated(spec, 0), record, ProgressFile(tmp_path, 0, 1)).run()
    assert list(record.marks_s) == ["setup", "warmup", "measure", "evaluate"]
    assert record.block_s and record.backend_used is None


def test_phases_of_synchronization_are_recorded_without_a_timeline(tmp_path):
    class WithPhases(Alone):
        def sync_phases(self):
            if self.options.message_bytes == 0:
                raise NotMeasured("nothing was synchronized")
            return 5, {"negotiate_s": 0.1, "queue_s": 0.2, "memcpy_s": 0.0, "allreduce_s": 0.4}

    for message_bytes, timeline in ((0, None), (8, TimelineRecord(None, NO_TIMELINE_FILE, 5, 0.1, 0.2, 0.0, 0.4))):
        options = {"message_bytes": message_bytes, "sync_s": 0.001}
        record, _ = run_session(tmp_path, simulated_spec(2, options=options), WithPhases)
        assert record.timeline == timeline and not record.probe_failures


def test_without_validation_there_is_no_evaluate_phase(tmp_path):
    nothing = DatasetSpec("materials", size=64, validation_share=0.0)
    for changes in ({"measure": {"evaluate": False}}, {"dataset": nothing}):
        record, _ = run_session(tmp_path, simulated_spec(**changes))
        assert list(record.marks_s) == [phase for phase in PHASES if phase != "evaluate"]
        assert record.metrics == {}


def test_another_backend_than_the_requested_one_is_a_failure(tmp_path):
    """Replicas that silently do not average gradients must not be taken for the strategy."""
    for backend, message in (("gloo", "simulated requested gloo"), ("auto", "requested any backend")):
        strategy = StrategySpec("simulated", baseline="simulated", backend=backend)
        with pytest.raises(WrongBackend, match=f"{message}, but the gradients were carried by nothing"):
            run_session(tmp_path, simulated_spec(gpus=2, strategy=strategy), Alone)
        record, _ = run_session(tmp_path, simulated_spec(strategy=strategy))
        assert record.backend_used is None, "one device needs none"


PROBE_METHODS = {
    "state_bytes": "state_bytes", "message_sizes": "message_bytes", "set_gradient_sync": "exposed",
    "run_isolated_sync": "isolated", "partial_step": "forward", "copy_batch": "copy", "profile": "profile",
    "collective": "collectives", "transfer": "bandwidth", "stages": "stages", "backend_used": "backend_used",
    "settings_used": "settings_used", "record_timeline": "timeline", "versions": "versions",
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("method", PROBE_METHODS)
def test_a_probe_that_raises_leaves_the_throughput(method, tmp_path, monkeypatch, capfd):
    """Whatever a GPU's libraries raise after the measurement is a null with its reason."""

    def fail(*_):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(Simulated, method, fail)
    measure = {"probes": True, "probe_s": 0.2, "collectives": True, "bandwidth": True, "timeline": True}
    spec = simulated_spec(2, options={"message_bytes": 77, "sync_s": 0.001}, measure=measure)
    record, _ = run_session(tmp_path, spec, Alone)
    assert record.status == "ok" and record.block_s and list(record.marks_s) == PHASES
    error = "RuntimeError: CUDA error: out of memory"
    quantity = PROBE_METHODS[method]
    assert record.probe_failures == dict.fromkeys(record.probe_failures, error) and quantity in record.probe_failures
    assert "in fail" in capfd.readouterr().err, "the log of the rank has the traceback"
    if quantity in ("exposed", "isolated", "forward", "copy", "profile", "collectives", "bandwidth"):
        assert record.probes.reasons[quantity] == error
    if method != "partial_step":
        went_on = record.probes.optimizer_s or "longer than measure.probe_s" in record.probes.reasons["optimizer"]
        assert went_on, "the other probes"
    if method == "record_timeline":
        assert record.timeline.reason == error


def test_the_record_is_on_disk_before_evaluation_and_before_the_first_probe(tmp_path):
    """Evaluation may need more memory than training: where it fails, the throughput stands."""
    saved = []

    class Looking(Alone):
        def evaluate(self, source):
            saved.extend(read_ranks(tmp_path, 1))
            return super().evaluate(source)

        def message_sizes(self):
            saved.extend(read_ranks(tmp_path, 1))
            return []

    record, _ = run_session(tmp_path, simulated_spec(2), Looking)
    first, headline = saved
    assert first.status == headline.status == "ok" and first.block_s == headline.block_s == record.block_s
    assert record.metrics and not first.metrics and headline.metrics == record.metrics
    assert "end" in headline.marks_s and "probes" not in headline.marks_s and "end" not in record.marks_s


def test_each_write_updates_the_peak_of_memory_and_the_end_processor_time(tmp_path):
    record = RankRecord(0, "here", 1)
    complete_record(record, SimpleNamespace(rss_anon_peak_bytes=5))
    assert record.rss_anon_peak_bytes == 5
    assert record.rss_peak_bytes > 1 << 20 and record.cpu_s > 0
    assert list(record.marks_s) == ["end"]
    file = ProgressFile(tmp_path, 0, 77)
    assert file.rss_anon_peak_bytes is None
    file.enter_phase("setup")
    before = file.rss_anon_peak_bytes
    assert 1 << 20 < before <= rss_peak_bytes()
    held = bytearray(os.urandom(1 << 16) * 1024)  # 64 MiB, each page of its own
    file.enter_phase("measure")
    during = file.rss_anon_peak_bytes
    assert during >= before + (32 << 20)
    del held
    file.enter_phase("close")
    assert file.rss_anon_peak_bytes == during, "it is a peak"


@pytest.fixture
def now(monkeypatch):
    clock = SimpleNamespace(s=50.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.s)
    monkeypatch.setattr(time, "time", lambda: 1000.0 + clock.s)
    return clock


def test_progress_is_written_at_once_on_a_new_phase_and_at_most_twice_a_second_within_one(now, tmp_path):
    file = ProgressFile(tmp_path, 3, 77)
    assert read_progress(tmp_path, 3) is None
    file.update(5, 50, 1.0, 1.5, "mse 0.01")
    current = read_progress(tmp_path, 3)
    assert (current.epoch, current.metric, current.samples_per_s) == (1.5, "mse 0.01", 50.0)
    file.enter_phase("setup")
    assert read_progress(tmp_path, 3) == RankProgress(3, 77, "setup", 1050.0)
    file.enter_phase("measure", 30.0)
    assert read_progress(tmp_path, 3) == RankProgress(3, 77, "measure", 1050.0, limit_s=30.0)
    assert os.listdir(tmp_path) == ["progress3.json"]
    ProgressFile(tmp_path, 0, 77).update(1, 10, 0.0)
    current = read_progress(tmp_path, 0)
    assert (current.steps, current.samples_per_s) == (1, None), "without time there is no throughput"
    file = ProgressFile(tmp_path, 0, 77)
    file.enter_phase("measure", 30.0)
    now.s += progress.WRITE_INTERVAL_S / 2
    file.update(10, 100, 0.2)
    assert read_progress(tmp_path, 0) == RankProgress(0, 77, "measure", 1050.0, limit_s=30.0)
    now.s += progress.WRITE_INTERVAL_S / 2
    for steps, samples, elapsed_s in ((20, 200, 0.5), (30, 300, 0.6)):
        file.update(steps, samples, elapsed_s)
        assert read_progress(tmp_path, 0) == RankProgress(0, 77, "measure", 1050.5, 20, 400.0, 0.5, 30.0)
    for text in ("", "{", "[]", "3", '{"rank": 0}', '{"rank": 0, "new": 1}'):
        progress_path(tmp_path, 0).write_text(text)
        assert read_progress(tmp_path, 0) is None


def test_a_session_reports_the_epoch_and_metric_of_its_training(now, tmp_path):
    file = ProgressFile(tmp_path, 0, 77)
    session = Session(simulated_spec(), SimpleNamespace(spec=simulated_spec()), rank(), file)
    source = SimpleNamespace(steps_per_epoch=50)
    session._report_training(SimpleNamespace(steps=75, samples=750, train_s=3.0, train=source, curve=[]))
    current = read_progress(tmp_path, 0)
    assert (current.steps, current.epoch, current.metric) == (75, 1.5, None)
    now.s += progress.WRITE_INTERVAL_S
    points = make_curve([0.5, 0.25])
    session._report_training(SimpleNamespace(steps=100, samples=1000, train_s=4.0, train=source, curve=points))
    current = read_progress(tmp_path, 0)
    assert (current.epoch, current.metric, current.samples_per_s) == (2.0, "mse 0.25", 250.0)
