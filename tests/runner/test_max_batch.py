"""The search for the largest batch: its tries, result and failures, with stand-ins for the ranks, and for real."""

import dataclasses
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis import load
from scalebench.core.result import RankRecord, read_result
from scalebench.core.run_folder import RESULT_FILE, RUN_ID_VARIABLE, rank_record_path, try_folder, write_rank_file
from scalebench.core.spec import DatasetSpec, StopSpec, TrainSpec, read_spec, write_spec
from scalebench.measure.progress import RankProgress
from scalebench.report import terminal
from scalebench.runner import batch_tries, max_batch, memory_limit
from scalebench.runner.batch_tries import RESOLUTION, largest_batch, max_samples_per_device
from scalebench.runner.launchers import local
from scalebench.runner.launchers.supervise import GroupExit
from scalebench.runner.max_batch import estimate_try_counts
from scalebench.runner.parent import run_spec
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache
from tests.builders.runs import find_run_processes, rank, simulated_config, simulated_spec

SETTINGS = {"search": "max_batch", "memory_limit_bytes": 10**9, "probes": True, "monitor": True, "evaluate": True}


def ok(spec, folder):
    for k in range(spec.processes):
        samples = [spec.batch_per_device * 2] * 4
        memory = {"peak_memory_bytes": [5, None], "reserved_memory_bytes": [7 + k]}  # what is reserved must fit
        record = rank(k, [1.0] * 4, samples, rss_anon_peak_bytes=spec.global_batch + k, **memory)
        write_rank_file(rank_record_path(folder, k), record)
    return GroupExit([0] * spec.processes, 5.0, 2.0)


def oom(spec, folder):
    record = RankRecord(0, "node", 1, status="oom", reason="out of memory: MemoryError", failed_at_s=1.0)
    write_rank_file(rank_record_path(folder, 0), record)
    return GroupExit([1] + [None] * (spec.processes - 1), 5.0, 2.0, [0])


def aborted(words):
    def end(spec, folder):
        (folder / "rank1.log").write_text(f"begun\n{words}\n")
        return GroupExit([None, -6], 5.0, 2.0, [1])

    return end


def hung(words):
    def end(spec, folder):
        (folder / "rank0.log").write_text(f"{words}\n")
        return GroupExit(
            [None, None], 5.0, 2.0, timeout="no rank made progress for 9 s (measure.hang_s)", timeout_at_s=9.0
        )

    return end


@pytest.fixture
def stand_in(monkeypatch):
    """Has every try end as `beyond` says for more than `border` samples per device, and well up to it."""

    def place(border, beyond=oom):
        tries = []

        def launch(request):
            spec, folder = request.spec, request.folder
            assert read_spec(folder) == spec
            assert folder.name.removesuffix("_again") == f"try_{spec.batch_per_device}"
            tries.append(spec)
            monkeypatch.setenv(RUN_ID_VARIABLE, request.run_id)  # the ranks have it, and this is them
            request.on_progress([RankProgress(0, 1, "measure", 0.0)])
            return (ok if spec.batch_per_device <= border else beyond)(spec, folder)

        monkeypatch.setattr(local, "launch", launch)
        return tries

    return place


def searching(gpus=2, batch=10, measure=None, **changes):
    changes = {"train": TrainSpec(batch_per_device=batch), "size": 4000, **changes}
    return simulated_spec(gpus, measure=SETTINGS | (measure or {}), **changes)


def tried(result):
    assert result.quality.max_batch is not None
    return [(each.batch_per_device, each.status) for each in result.quality.max_batch.trials]


def test_the_result_is_that_of_the_largest_batch_that_fits(stand_in, tmp_path):
    tries = stand_in(100)
    spec = searching(batch=75)
    result = run_spec(spec, tmp_path / "run")
    answer = result.quality.max_batch
    assert (answer.batch_per_device, answer.bounded_by) == (97, "memory")
    assert answer.limit_bytes == 10**9
    assert tried(result) == [(75, "ok"), (150, "oom"), (112, "oom"), (93, "ok"), (102, "oom"), (97, "ok")]
    assert (result.status, result.reason, result.log) == ("ok", None, None)
    assert (result.scale.batch_per_device, result.scale.global_batch) == (97, 194)
    assert result.ranks[0].block_samples == [194] * 4 and result.spec["train"]["batch_per_device"] == 97
    assert result.fingerprint == spec.fingerprint, "which resume=true looks for"
    assert answer.trials[0].throughput_samples_per_s == pytest.approx(2 * 75 * 2)
    assert [(t.rss_anon_bytes_max, t.peak_memory_bytes) for t in answer.trials[:2]] == [(151, 8), (None, None)]
    assert read_result(tmp_path / "run" / RESULT_FILE) == result
    (row,) = load.load(tmp_path / "run").to_dict("records")
    assert (row["max_batch_per_device"], row["memory_limit_bytes"], row["batch_per_device"]) == (97, 10**9, 97)
    assert len(tries) == 6
    expected = "the largest batch is 97 per device, 194 global; 102 does not fit within 1.00 GB a process (6 tries)"
    assert terminal.describe_largest_batch(result) == expected


def test_a_try_trains_a_few_steps_and_nothing_else(stand_in, tmp_path):
    tries = stand_in(100)
    train = TrainSpec(10, schedule="cosine", warmup_epochs=1.0, stop=StopSpec(epochs=3))
    run_spec(searching(train=train), tmp_path / "run")
    for spec in tries:
        measure, train = spec.config.measure, spec.config.train
        assert not any([measure.probes, measure.monitor, measure.evaluate]) and measure.search == "none"
        assert measure.memory_limit_bytes == 10**9
        assert (train.stop, train.schedule, train.warmup_epochs) == (StopSpec(), "constant", 0.0)
        assert train.batch_per_device == spec.batch_per_device == spec.global_batch // 2


def test_a_search_leaves_one_result_and_the_files_of_each_try(stand_in, tmp_path):
    """Files of a search that was killed are removed."""
    for name in (".", "try_77"):
        (tmp_path / "run" / name).mkdir(parents=True, exist_ok=True)
        write_spec(searching(), tmp_path / "run" / name)
        (tmp_path / "run" / name / "rank0.json").touch()
    stand_in(10)
    result = run_spec(searching(batch=8), tmp_path / "run")
    assert tried(result)[-1] == (11, "oom") and result.scale.batch_per_device == 10
    assert [each.status for each in result.ranks] == ["ok", "ok"], "of the best try, which was not the last"
    folders = ["try_10", "try_11", "try_12", "try_16", "try_8"]
    assert sorted(os.listdir(tmp_path / "run")) == ["result.json", "spec.json", *folders]
    assert sorted(os.listdir(tmp_path / "run" / "try_10")) == ["rank0.json", "rank1.json", "try.json"]
    assert len(load.load(tmp_path)) == 1, "a try is no run"


def test_the_data_set_may_bound_the_batch(stand_in, tmp_path):
    stand_in(10**6)
    lines = []
    result = run_spec(
        searching(batch=700), tmp_path / "run", lambda ranks: lines.extend(p.metric or p.phase for p in ranks)
    )
    answer = result.quality.max_batch
    assert (answer.batch_per_device, answer.bounded_by) == (1500, "data")
    assert tried(result) == [(700, "ok"), (1400, "ok"), (1500, "ok")]
    tries = [f"try {k}: batch {batch} per device" for k, batch in enumerate((700, 1400, 1500), 1)]
    assert lines == [line for each in tries for line in (f"{each}, measure", f"{each} fits")]
    assert "has no larger one (3000 of the 1000 training" in terminal.describe_largest_batch(result)


@pytest.mark.parametrize(("fits_alone", "done", "launched", "answer"), [
    (100, [75, 150, 112, 93, 102, 97], [97], 97),  # its batches in one process, and the answer in its own
    (95, [75, 150, 112, 93, 102, 97], [97, 93], 93),  # a process of its own needs a little more
    (100, [75, 150], [112, 93, 102, 97], 97),  # the process has died in the third try
    (0, [], [75, 37, 18, 9, 4, 2, 1], None),
])  # fmt: skip
def test_one_process_tries_and_another_confirms(fits_alone, done, launched, answer, stand_in, tmp_path, monkeypatch):
    tries, report = stand_in(fits_alone), []
    launch = local.launch

    def start(request):
        if request.module != batch_tries.MODULE:
            return launch(request)
        monkeypatch.setenv(RUN_ID_VARIABLE, request.run_id)
        for number, batch in enumerate(done):
            folder = try_folder(request.folder, batch)
            folder.mkdir()
            status = {"status": "ok" if batch <= 100 else "oom", "marks_s": {"launch": float(number)}}
            write_rank_file(rank_record_path(folder, 0), rank(0, [1.0], [batch], **status))
        return GroupExit([0], 5.0, 2.0)

    monkeypatch.setattr(local, "launch", start)
    monkeypatch.setattr(batch_tries, "can_try_in_one_process", lambda spec: True)
    spec = searching(gpus=1, batch=75)
    result = run_spec(spec, tmp_path / "run", lambda ranks: report.extend(filter(None, (r.metric for r in ranks))))
    assert [spec.batch_per_device for spec in tries] == launched
    search = result.quality.max_batch
    assert search.batch_per_device == answer and result.status == ("oom" if answer is None else "ok")
    assert [batch for batch, _ in tried(result)] == done + launched
    if answer is not None:
        assert result.ranks[0].block_samples == [2 * answer] * 4, "of the last process"
    assert len(report) == len(search.trials) and report[0].startswith("try 1: batch 75 per device ")
    assert max_batch.estimate_launches(spec) == (2, 2)


def test_a_search_is_oom_where_not_even_one_sample_fits(stand_in, tmp_path):
    stand_in(0)
    result = run_spec(searching(batch=3), tmp_path / "run")
    assert (result.status, result.log) == ("oom", "try_1/rank0.log")
    expected = "not even one sample per device fits within 1 GB per process: rank 0: out of memory: MemoryError"
    assert result.reason == expected
    answer = result.quality.max_batch
    assert answer.batch_per_device is None and tried(result) == [(3, "oom"), (1, "oom")]
    (row,) = load.load(tmp_path / "run").to_dict("records")
    assert row["status"] == "oom" and row["memory_limit_bytes"] == 10**9


def test_every_part_of_an_accumulated_step_needs_a_sample(stand_in, tmp_path):
    tries = stand_in(3)
    result = run_spec(searching(train=TrainSpec(8, accumulate=4)), tmp_path / "run")
    assert [spec.batch_per_device for spec in tries] == [8, 4]
    assert result.status == "oom" and "not even 4 samples, one for each part" in str(result.reason)


@pytest.mark.parametrize(("end", "status", "reason"), [
    (aborted("terminate called after throwing an instance of 'std::bad_alloc'"), "ok", None),
    (aborted("RuntimeError: can't start new thread"), "ok", None),
    (hung("  what():  Resource temporarily unavailable"), "ok", None),
    (aborted("a bug"), "failed", "batch 16 per device: rank 1 was killed by SIGABRT"),
    (hung("a bug"), "timeout", "batch 16 per device: no rank made progress for 9 s (measure.hang_s)"),
])  # fmt: skip
def test_a_process_that_died_or_hung_for_memory_is_out_of_memory_and_another_fails_the_run(
    end, status, reason, stand_in, tmp_path
):
    tries = stand_in(8, end)
    result = run_spec(searching(batch=8), tmp_path / "run")
    assert (result.status, result.reason) == (status, reason)
    if status == "ok":
        assert tried(result)[:2] == [(8, "ok"), (16, "oom")]
        assert result.quality.max_batch.trials[1].reason.startswith("out of memory: ")
        return
    assert result.log.startswith("try_16/rank")
    assert tried(result) == [(8, "ok")] and result.quality.max_batch.batch_per_device is None
    assert result.scale.batch_per_device == 16
    assert [spec.config.measure.memory_limit_bytes for spec in tries] == [10**9, 10**9, 2 * 10**9]


@pytest.mark.parametrize(("second", "text"), [(ok, "is ok"), (oom, "reports to be out of memory")])
def test_an_unexplained_failure_is_repeated_with_more_memory(second, text, stand_in, tmp_path):
    """TensorFlow fails so: it does not check a null pointer, and ends by SIGSEGV."""

    def end(spec, folder):
        return (second if folder.name.endswith("_again") else aborted("a bug"))(spec, folder)

    tries = stand_in(15, end)
    result = run_spec(searching(batch=15), tmp_path / "run")
    assert [spec.batch_per_device for spec in tries] == [15, 30, 30, 22, 22, 18, 18, 16, 16]
    assert result.status == "ok" and result.quality.max_batch is not None
    expected = f"out of memory: rank 1 was killed by SIGABRT; with 2 GB per process it {text}"
    assert result.quality.max_batch.trials[1].reason == expected
    assert tried(result) == [(15, "ok"), (30, "oom"), (22, "oom"), (18, "oom"), (16, "oom")]


def test_without_more_memory_there_is_no_second_try(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(memory_limit, "raised_limit_bytes", lambda limit, processes: limit)
    tries = stand_in(15, aborted("a bug"))
    assert run_spec(searching(batch=15), tmp_path / "run").status == "failed"
    assert [spec.batch_per_device for spec in tries] == [15, 30]


def test_the_tries_share_the_time_of_the_run(stand_in, tmp_path, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])

    def slow(spec, folder):
        now_s[0] += 20.0
        return oom(spec, folder)

    tries = stand_in(0, slow)
    result = run_spec(searching(batch=32, measure={"timeout_s": 50.0}), tmp_path / "run")
    assert [spec.config.measure.timeout_s for spec in tries] == [50.0, 30.0, 10.0]
    assert result.status == "timeout"
    assert result.reason == "the search was not over after 50 s (measure.timeout_s), before 4 was tried"
    assert result.phases.wall_s == 60.0


def test_a_cancelled_search_records_its_tries(stand_in, tmp_path):
    def interrupted(spec, folder):
        (folder / "progress0.json").touch()
        raise KeyboardInterrupt

    stand_in(10, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_spec(searching(batch=10), tmp_path / "run")
    result = read_result(tmp_path / "run" / RESULT_FILE)
    assert (result.status, tried(result), result.ranks) == ("cancelled", [(10, "ok")], [])
    assert sorted(os.listdir(tmp_path / "run" / "try_20")) == ["try.json"]


@pytest.mark.parametrize(("change", "text"), [
    ({"scaling": "strong"}, "scaling=strong keeps the global one"),
    ({"launcher": "by_hand"}, "with strategy.launcher=by_hand a person starts them"),
    ({"hosts": ["a:1"]}, "set measure.memory_limit_bytes"),
    ({"device": "cuda"}, "a GPU has its own memory; leave it out"),
])  # fmt: skip
def test_a_search_is_unsupported_where_it_cannot_work(change, text, stand_in, tmp_path):
    tries = stand_in(100)
    spec = searching(measure={"memory_limit_bytes": None if "hosts" in change else 10**9})
    spec.config.scaling = change.get("scaling", "weak")
    spec.config.strategy.launcher = change.get("launcher", "local")
    spec.config.hardware.hosts = change.get("hosts", [])
    result = run_spec(dataclasses.replace(spec, device=change.get("device", "cpu")), tmp_path / "run")
    assert result.status == "unsupported" and text in str(result.reason) and tries == []


def test_the_memory_limit_is_the_share_of_each_process(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(memory_limit, "limit_per_process_bytes", lambda processes: 12345 * processes)
    tries = stand_in(100)
    run_spec(searching(gpus=3, measure={"memory_limit_bytes": None}), tmp_path / "run")
    assert {spec.config.measure.memory_limit_bytes for spec in tries} == {3 * 12345}
    monkeypatch.setattr(memory_limit, "limit_unsupported_reason", lambda: "an old kernel")
    assert run_spec(searching(), tmp_path / "old").reason == "an old kernel"
    plain = searching(measure={"search": "none", "memory_limit_bytes": None})
    assert max_batch.search_unsupported_reason(plain) is None


def search_order(start, border, maximum, minimum=1):
    """Return (answer, tried batches) where `border` is the largest that fits."""
    batches = []

    def fits(batch):
        batches.append(batch)
        return batch <= border

    return largest_batch(start, maximum, minimum, fits), batches


@given(st.integers(1, 10_000), st.integers(0, 20_000), st.integers(1, 20_000), st.integers(1, 4))
def test_the_answer_is_within_a_sixteenth_and_no_batch_is_tried_twice(start, border, maximum, minimum):
    maximum = max(maximum, minimum)
    answer, batches = search_order(start, border, maximum, minimum)
    assert len(batches) == len(set(batches)) and all(minimum <= batch <= maximum for batch in batches)
    if border < minimum:
        assert answer is None
        return
    best = min(border, maximum)
    assert answer <= best < answer + max(1, answer // RESOLUTION)
    assert answer == best or best >= RESOLUTION
    assert answer in batches


def config_of_size(size, batch=10):
    config = simulated_config(size=size)
    config.dataset.validation_share = 0.25
    return dataclasses.replace(config, train=dataclasses.replace(config.train, batch_per_device=batch))


@given(st.integers(1, 500), st.integers(0, 2000))
def test_a_search_takes_as_many_tries_as_estimated(start, border):
    config = config_of_size(2000, start)
    fewest, maximum = estimate_try_counts(config, 2)
    assert fewest <= len(search_order(start, border, max_samples_per_device(config, 2))[1]) <= maximum


def test_the_training_samples_bound_the_batch(monkeypatch):
    """Samples of a user's files are counted."""
    assert [max_samples_per_device(config_of_size(100), gpus) for gpus in (1, 2, 4)] == [75, 37, 18]
    monkeypatch.setattr(datasets, "prepare", lambda config: "folder")
    monkeypatch.setattr(cache, "open_arrays", lambda folder: ([0] * 40, [0] * 40))
    config = config_of_size(1000)
    config.dataset = DatasetSpec("materials", size=1000, path="own.npz", validation_share=0.25)
    assert max_samples_per_device(config, 3) == 10
    assert estimate_try_counts(config, 3)[1] < 20, "without reading the file"


# The search for the largest batch with real processes.
SEARCH = [sys.executable, "-m", "scalebench", "measure=max_batch", "gpus=2", "dataset.size=30000", "sweep.report=false"]


def search(folder, *words):
    """The row, and what was printed."""
    command = [*SEARCH, *words, f"hydra.run.dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert (folder / RESULT_FILE).exists(), done.stderr
    return read_result(folder / RESULT_FILE), done.stdout


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("strategy", "start", "limit_bytes"), [
    ("ddp_gloo", 4000, 1_200_000_000),
    ("horovod_gloo", 4000, 1_200_000_000),
    ("mirrored", 2000, 1_500_000_000),
    ("multiworker_ring", 1000, 1_500_000_000),
])  # fmt: skip
def test_a_framework_finds_its_largest_batch(strategy, start, limit_bytes, tmp_path):
    folder = tmp_path / "run"
    words = [f"strategy={strategy}", f"train.batch_per_device={start}", f"measure.memory_limit_bytes={limit_bytes}"]
    result, said = search(folder, *words)
    assert (result.status, result.reason) == ("ok", None)
    found = result.quality.max_batch
    assert found.batch_per_device is not None
    assert (found.bounded_by, found.limit_bytes) == ("memory", limit_bytes)
    fits = [each.batch_per_device for each in found.trials if each.status == "ok"]
    too_large = [each for each in found.trials if each.status == "oom"]
    assert max(fits) == found.batch_per_device < min(each.batch_per_device for each in too_large)
    assert all("out of memory" in str(each.reason) for each in too_large)
    assert f"{strategy} 2 devices  the largest batch is {found.batch_per_device} per device" in said
    assert all(each.rss_anon_bytes_max < limit_bytes for each in found.trials if each.rss_anon_bytes_max is not None)
    assert all(find_run_processes(each) == [] for each in folder.glob("try_*"))
