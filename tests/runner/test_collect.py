"""Exit codes and rank files -> one status, one reason, one record."""

import dataclasses
import json
import signal
import socket

import pytest

from scalebench.core.machine import machine
from scalebench.core.result import CurvePoint
from scalebench.core.run_folder import rank_record_path
from scalebench.core.spec import DatasetSpec, StopSpec, TrainSpec
from scalebench.runner import collect, memory_limit
from scalebench.runner.launchers.supervise import GroupExit
from tests.builders.runs import MACHINE, rank, simulated_spec

NOW = collect.RunId("an id", "now")


def assemble(spec, ranks, outcome, **parts):
    return collect.assemble_result(spec, NOW, outcome, collect.ResultParts(ranks=list(ranks), **parts))


KILLED = -signal.SIGKILL


def ended(*codes, **changes):
    """Return the exit of a group with these codes, the first failure being the first seen."""
    first = [i for i, code in enumerate(codes) if code not in (None, 0)][:1]
    return GroupExit(
        **{"exit_codes": list(codes), "started_at_s": 100.0, "wall_s": 9.0, "died_first": first, **changes}
    )


def timed_out(*codes, **changes):
    return ended(*codes, timeout="no progress", timeout_at_s=109.0, died_first=[], **changes)


def failed(number, at_s, reason="RuntimeError: broke", status="failed"):
    return rank(number, status=status, reason=reason, failed_at_s=at_s)


CASES = {
    "all ok": (ended(0, 0), [rank(0), rank(1)], False, ("ok", None, None)),
    "all ok, another process of the host was killed": (ended(0), [rank(0)], True, ("ok", None, None)),
    "one raised, the other followed": (
        ended(1, 1), [failed(0, 105.2, "EOFError: EOFError"), failed(1, 105.1)], False,
        ("failed", "rank 1: RuntimeError: broke", 1),
    ),
    "one of one raised": (ended(1), [failed(0, 105.0)], False, ("failed", "RuntimeError: broke", 0)),
    "one raised, the other was ended": (
        ended(None, 1), [None, failed(1, 105.0)], False, ("failed", "rank 1: RuntimeError: broke", 1),
    ),
    "out of memory": (
        ended(0, 1), [rank(0), failed(1, 105.0, "out of memory: MemoryError", "oom")], False,
        ("oom", "rank 1: out of memory: MemoryError", 1),
    ),
    "unsupported is the status of the group": (
        ended(1, 1), [failed(0, 105.0), failed(1, 104.0, "needs a GPU", "unsupported")], False,
        ("unsupported", "needs a GPU", 1),
    ),
    "killed, the other reports a lost connection": (
        ended(1, KILLED, died_first=[1]), [failed(0, 105.0, "EOFError: EOFError"), None], False,
        ("failed", "rank 1 was killed by SIGKILL", 1),
    ),
    "killed for memory by the kernel": (
        ended(None, KILLED), [None, None], True,
        ("oom", "rank 1 was killed by the kernel, which ran out of memory", 1),
    ),
    "another signal is not the kernel's for memory": (
        ended(-signal.SIGSEGV), [None], True, ("failed", "rank 0 was killed by SIGSEGV", 0),
    ),
    "exited without a reason": (
        ended(None, 7), [None, None], False, ("failed", "rank 1 ended with exit status 7 and without a reason", 1),
    ),
    "crashed after its figures": (ended(0, -signal.SIGSEGV), [rank(0), rank(1)], False, ("ok", None, 1)),
    "hangs after its figures": (timed_out(0, None), [rank(0), rank(1)], False, ("ok", None, 1)),
    "its launcher died after its figures": (
        ended(None, None, broken="mpirun was killed"), [rank(0), rank(1)], False, ("ok", None, 0),
    ),
    "its launcher died before one had its figures": (
        ended(None, None, broken="mpirun was killed"), [rank(0), None], False, ("failed", "mpirun was killed", None),
    ),
    "reached SLURM's time limit after its figures": (
        ended(1, 1, outcome=("timeout", "time limit")), [rank(0), rank(1)], False, ("ok", None, 0),
    ),
    "reached SLURM's time limit before one had its figures": (
        ended(1, 1, outcome=("timeout", "time limit")), [rank(0), failed(1, 105.0)], False,
        ("timeout", "time limit", None),
    ),
    "was cancelled after its figures": (
        ended(1, 1, outcome=("cancelled", "by somebody")), [rank(0), rank(1)], False,
        ("cancelled", "by somebody", None),
    ),
    "a service was killed after the figures": (
        ended(KILLED, None, services={0: "ps"}), [None, rank(1)], False, ("ok", None, 1),
    ),
    "a service hangs after the figures": (
        timed_out(None, None, services={0: "ps"}), [None, rank(1)], False, ("ok", None, 1),
    ),
    "no record in spite of exit status 0": (
        ended(0, 0), [rank(0), None], False, ("failed", "rank 1 ended with exit status 0 and without a reason", 1),
    ),
    "services are ended with the chief": (
        ended(0, None, None, services={1: "ps", 2: "worker"}), [rank(0), None, None], False, ("ok", None, None),
    ),
    "a service was killed": (
        ended(None, None, KILLED, services={1: "ps", 2: "worker"}), [None, None, None], False,
        ("failed", "rank 2 (worker) was killed by SIGKILL", 2),
    ),
    "a service recorded why": (
        ended(None, 1, None, services={1: "ps", 2: "worker"}), [None, failed(1, 105.0), None], False,
        ("failed", "rank 1: RuntimeError: broke", 1),
    ),
    "a service exited without a reason": (
        ended(None, 0, died_first=[1], services={1: "ps"}), [None, None], False,
        ("failed", "rank 1 (ps) ended with exit status 0 and without a reason", 1),
    ),
    "the chief failed": (
        ended(1, None, services={1: "ps"}), [failed(0, 105.0), None], False,
        ("failed", "rank 0: RuntimeError: broke", 0),
    ),
    "the chief hangs, and not its services": (
        timed_out(None, None, services={0: "ps"}), [None, None], False, ("timeout", "no progress", 1),
    ),
    "hangs": (timed_out(None, None), [None, None], False, ("timeout", "no progress", 0)),
    "hangs while the other has ended": (timed_out(0, None), [rank(0), None], False, ("timeout", "no progress", 1)),
    "is stopped": (
        timed_out(None, None, None, stopped=[2]), [None, None, None], False,
        ("timeout", "no progress; rank 2 is stopped", 2),
    ),
    "failed, then hung in closing": (
        timed_out(None, None), [None, failed(1, 104.0)], False, ("failed", "rank 1: RuntimeError: broke", 1),
    ),
    "fails after being ended for hanging": (
        timed_out(None, None), [None, failed(1, 109.5, "EOFError: EOFError")], False, ("timeout", "no progress", 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_exits_and_records_become_one_outcome(case):
    end, ranks, oom_kill, expected = case
    outcome = collect.classify_exit(end, ranks, oom_kill)
    assert (outcome.status, outcome.reason, outcome.rank) == expected
    assert (outcome.launched_at_s, outcome.wall_s) == (100.0, 9.0)
    assert (outcome.probe_failure is not None) == (outcome.status == "ok" and outcome.rank is not None)


@pytest.mark.parametrize(("code", "log", "small", "reason"), [
    (-signal.SIGABRT,
     "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  20 vs  16\nlater\n", None,
     "killed by SIGABRT; the last error in its log: what(): 20 vs 16"),
    (-signal.SIGSEGV, "Fatal Python error: Segmentation fault\n\n", None, None),
    (-signal.SIGSEGV, "all is well\n", None, "killed by SIGSEGV"),
    (-signal.SIGBUS, "", "/dev/shm has 64 MB", "killed by SIGBUS; /dev/shm has 64 MB"),
    (-signal.SIGABRT, "", "/dev/shm has 64 MB", "killed by SIGABRT"),
    (-signal.SIGKILL, "ValueError: of another time\n", None, "killed by SIGKILL"),
    (-signal.SIGABRT, None, None, "killed by SIGABRT"),
])  # fmt: skip
def test_a_rank_that_a_fault_killed_has_the_last_error_of_its_log_in_its_reason(
    code, log, small, reason, tmp_path, monkeypatch
):
    monkeypatch.setattr(memory_limit, "small_shared_memory_reason", lambda: small)
    if log is not None:
        (tmp_path / "rank1.log").write_text(log)
    outcome = collect.classify_exit(ended(0, code), [rank(0), None], False, tmp_path)
    cause = "killed by SIGSEGV; the last error in its log: Fatal Python error: Segmentation fault"
    assert outcome.reason == f"rank 1 was {reason or cause}"


@pytest.mark.parametrize(("independent", "status"), [(False, "failed"), (True, "ok")])
def test_ranks_that_counted_different_steps_did_not_train_together(independent, status):
    """As where each process is in a group of its own, whose throughputs would add up to a perfect scaling."""
    ranks = [rank(0, [0.1] * 5, warmup_block_s=[0.1] * 3, warmup_block_steps=1)]
    ranks.append(rank(1, [0.1] * 4, warmup_block_s=[0.1] * 3, warmup_block_steps=1))
    outcome = collect.classify_exit(ended(0, 0), ranks, False, independent=independent)
    assert outcome.status == status
    if not independent:
        assert outcome.reason == "rank 0 trained 13 steps and rank 1 11: they did not train together"
    assert collect.classify_exit(ended(0, 0), [ranks[0], dataclasses.replace(ranks[0], rank=1)], False).status == "ok"


def test_a_missing_or_incomplete_record_is_none(tmp_path):
    complete = dataclasses.asdict(rank(0, [0.1]))
    odd = [json.dumps(complete | change) for change in ({"pid": "x"}, {"later": 1})]
    texts = [json.dumps(complete), None, json.dumps(complete)[:-5], "", "[]", *odd]
    for number, text in enumerate(texts):
        if text is not None:
            rank_record_path(tmp_path, number).write_text(text)
    # A field that is not known is ignored, as in every record.
    assert collect.read_ranks(tmp_path, len(texts)) == [rank(0, [0.1]), *[None] * 5, rank(0, [0.1])]


MARKS_S = {
    "launch": 100.5, "setup": 101.0, "warmup": 103.0, "measure": 106.0, "probes": 110.0, "close": 110.5, "end": 112.0,
}  # fmt: skip


def test_the_record_of_a_run_that_is_ok(monkeypatch):
    monkeypatch.setattr(machine, "detect_machine", lambda: MACHINE)
    spec = simulated_spec(gpus=2, repeat=3, seed=4)
    spec.flags, spec.read_samples_per_s = ["oversubscribed"], 50.0
    ranks = [
        rank(0, [0.1, 0.2], last_loss_sum=30.0, last_loss_samples=30, marks_s=MARKS_S,
             metrics={"mse": 0.5, "mae": 2.0}, params=7, versions={"none": "1"}, message_bytes=[8, 8],
             backend_used="gloo", settings_used={"precision": "float32"}, learning_rate=0.03),
        rank(1, [0.1, 0.2], last_loss_sum=20.0, last_loss_samples=10),
    ]  # fmt: skip
    result = assemble(spec, ranks, collect.RunOutcome("ok", launched_at_s=100.0, wall_s=13.0))
    assert (result.run_id, result.started_at) == ("an id", "now")
    assert (result.status, result.reason, result.log) == ("ok", None, None)
    assert (result.fingerprint, result.flags, result.ranks) == (spec.fingerprint, ["oversubscribed"], ranks)
    assert result.flags is not spec.flags
    assert result.spec == dataclasses.asdict(spec.config)
    p = result.phases
    assert (p.launch_s, p.setup_s, p.warmup_s, p.measure_s) == (0.5, 2.0, 3.0, 4.0)
    assert (p.evaluate_s, p.probes_s, p.close_s, p.wall_s) == (None, 0.5, 1.5, 13.0)
    w, s, q = result.workload, result.scale, result.quality
    assert (w.model_params, w.gradient_bytes, w.train_samples, w.steps_per_epoch) == (7, 28, 1000, 100)
    assert w.read_samples_per_s == 50.0
    assert (s.framework_version, s.backend_used, s.gpus, s.processes, s.repeat, s.seed) == ("1", "gloo", 2, 2, 3, 4)
    assert (s.batch_per_device, s.global_batch, s.independent, s.baseline_bare) == (10, 20, False, "simulated")
    assert (w.precision, w.precision_used, q.learning_rate) == ("float32", "float32", 0.03), "the optimizer's"
    assert q.final_loss == (1.0 * 30 + 2.0 * 10) / 40, "the last steps of all ranks, by samples"
    assert (q.metric_name, q.metric, q.metrics) == ("mse", 0.5, {"mse": 0.5, "mae": 2.0})
    assert result.sync.message_bytes == [8, 8]


def test_the_record_of_a_run_without_rank_records():
    spec = simulated_spec(dataset=DatasetSpec("materials", size=64, path="/data/mine.npz"))
    result = assemble(spec, [None], collect.RunOutcome("failed", "rank 0 was killed by SIGKILL", 0))
    assert (result.status, result.reason) == ("failed", "rank 0 was killed by SIGKILL")
    assert (result.log, result.ranks, result.workload.dataset) == (None, [], "/data/mine.npz")
    assert (result.workload.model_params, result.scale.framework_version, result.phases.launch_s) == (None, None, None)
    assert (result.quality.final_loss, result.quality.metric, result.sync.message_bytes) == (None, None, [])


def trained_rank(number, train_s, blocks):
    """Return a rank that evaluated twice, once in warm-up."""
    points = [
        CurvePoint(10, 0.5, 50, train_s / 2, 1e-3, 0.9, 50, {"mse": 0.4}, {"mse": 0.3}, 0.5, 104.0),
        CurvePoint(20, 1.0, 100, train_s, 1e-3, 0.5, 50, {"mse": 0.2}, {"mse": 0.1}, 1.5, 109.0),
    ]
    return rank(
        number, blocks, marks_s=MARKS_S, metrics={"mse": 0.2}, curve=points, stopped_by="target",
        first_step_s=train_s / 4, last_loss_sum=25.0, last_loss_samples=50,
    )  # fmt: skip


def test_the_record_of_a_training():
    spec = simulated_spec(2, train=TrainSpec(10, stop=StopSpec(target=0.3), learning_rate_rule="linear", base_batch=10))
    ranks = [trained_rank(0, 4.0, [0.1]), trained_rank(1, 8.0, [0.1])]
    ranks[0].learning_rate = 2e-3
    result = assemble(spec, ranks, collect.RunOutcome("ok"))
    q, p = result.quality, result.phases
    assert (q.time_to_target_s, q.stopped_by, q.first_step_s) == (8.0, "target", 2.0), "of the slowest rank"
    assert q.learning_rate == 2e-3 and [point.loss_samples for point in q.curve] == [100, 100]
    assert (q.metric_name, q.metric, q.final_loss) == ("mse", 0.2, 0.5)
    assert (p.warmup_s, p.measure_s, p.evaluate_s, p.probes_s) == (2.5, 2.5, 2.0, 0.5)
    assert result.flags == []
    # A training that ended in warmup is flagged.
    spec = simulated_spec(train=TrainSpec(10, stop=StopSpec(steps=20)))
    result = assemble(spec, [trained_rank(0, 4.0, [])], collect.RunOutcome("ok"))
    assert (result.flags, result.quality.final_loss) == (["over_in_warmup"], 0.5)
    assert result.quality.time_to_target_s is None, "it had no target"
    assert assemble(spec, [trained_rank(0, 4.0, [])], collect.RunOutcome("failed", "gone", 0)).flags == []


def on_gpus(hosts, *gpus):
    return [rank(k, [1.0] * 4, [2] * 4, hostname=hosts[k], gpus=[gpu]) for k, gpu in enumerate(gpus)]


def of_precision(used):
    return [rank(0, [0.1], settings_used={} if used is None else {"precision": used})]


def disturbed(*rounds, flags=()):
    return {"disturbed_rounds": list(rounds), "monitor": collect.MonitorPart(flags=list(flags))}


THREADS = simulated_spec(1).places[0].threads
IN_ROUNDS = [rank(0, block_rounds=[1, 2])]
# The ranks, the precision that was asked for, what else is known of the run, and its flags.
FLAGS = [
    # A network may set its own, such as a policy of Keras; a row that observed none is not accused of it.
    *(
        (of_precision(used), requested, {}, flags)
        for requested, used, *flags in (
            ("float32", "float32"), ("float32", "float16", "precision_differs"), ("bfloat16", "bfloat16+float32"),
            ("float32", "bfloat16+float32", "precision_differs"), ("bfloat16", "float32", "precision_differs"),
            ("tf32", "tf32"), ("float32", None),
        )
    ),
    # Each process sees one GPU, which may be the same: its throughput would be that of a machine with fewer.
    (on_gpus("aa", "A100 GPU-1", "A100 GPU-1"), "float32", {}, ["shared_gpu"]),
    (on_gpus("ab", "A100 GPU-1", "A100 GPU-1"), "float32", {}, []),
    (on_gpus("aa", "A100 GPU-1", "A100 GPU-2"), "float32", {}, []),
    (on_gpus("aa", None, None), "float32", {}, []),
    # A batch fits even where the allocator keeps giving back its cache.
    *(([rank(allocator_retries=n)], "float32", {}, ["memory_full"] if n else []) for n in (3, 0, None)),
    # What a module changed or lacked.
    ([rank(threads=THREADS)], "float32", {}, []),
    ([rank(threads=8)], "float32", {}, ["threads_changed"]),
    ([rank(threads=THREADS, left_out=["train_dataloader"])], "float32", {}, ["loader_left_out"]),
    (
        [rank(threads=THREADS, left_out=["backward", "train_dataloader"])], "float32", {},
        ["hooks_left_out", "loader_left_out"],
    ),
    # The monitor sees nothing where the measured phase was shorter than a second, as with a single slow step.
    (IN_ROUNDS, "float32", disturbed(1, 2), ["busy_machine"]),
    (IN_ROUNDS, "float32", disturbed(1, 2, flags=["busy_machine"]), ["busy_machine"]),
    (IN_ROUNDS, "float32", disturbed(1), []),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("ranks", "precision", "parts", "flags"), FLAGS)
def test_a_run_is_flagged_for_what_its_ranks_found(ranks, precision, parts, flags):
    spec = simulated_spec(len(ranks), train=TrainSpec(10, precision=precision))
    assert assemble(spec, ranks, collect.RunOutcome("ok"), **parts).flags == flags


def on_hosts(*failures):
    """Return failed ranks, from (host, time by its clock, offset of that clock from rank 0's)."""
    return [
        rank(number, status="failed", reason="broke", hostname=host, failed_at_s=at_s, clock_offset_s=offset_s)
        for number, (host, at_s, offset_s) in enumerate(failures)
    ]


def test_the_first_failure_is_determined_across_clocks():
    for ranks, died_first, first in (
        (on_hosts(("a", 105.0, None), ("b", 64.9, -40.0)), [1], 1),
        (on_hosts(("a", 105.0, None), ("b", 65.1, -40.0)), [1], 0),  # records are more precise than observation
        (on_hosts(("a", 105.0, None), ("b", 65.1, None)), [0], 0),  # no offset: the one that was seen to end first
        (on_hosts(("a", 105.0, None), ("a", 104.0, None), ("b", 65.1, None)), [0, 1], 1),
        (on_hosts(("a", 105.0, None), ("b", 65.1, None)), [], 1),
    ):
        assert collect.classify_exit(ended(*[1] * len(ranks), died_first=died_first), ranks, False).rank == first


@pytest.mark.parametrize(("offset_s", "status"), [(None, "timeout"), (50.0, "failed"), (-50.0, "timeout")])
def test_a_failure_is_compared_with_the_timeout_across_clocks(offset_s, status):
    """The timeout is at 109 s by the clock of this host, which is rank 0's."""
    ranks = [None, *on_hosts(("other", 0.0, None), ("other", 150.0, offset_s))[1:]]
    ranks[0] = rank(0, hostname=socket.gethostname())
    assert collect.classify_exit(timed_out(None, None), ranks, False).status == status


def test_launch_time_needs_one_clock():
    for hosts, local, marks_s, launch_s in (
        ([], False, (100.5, 101.0), 0.5),
        ([], False, (99.0, 99.5), 0.0),  # the clock was set back
        (["a:2"], False, (100.5, 101.0), None),
        (["a:2"], True, (100.5, 101.0), 0.5),
    ):
        spec = simulated_spec()
        spec.config.hardware.hosts = hosts
        host = socket.gethostname() if local else "node"
        first = rank(0, hostname=host, marks_s=dict(zip(("launch", "setup"), marks_s, strict=True)))
        assert assemble(spec, [first], collect.RunOutcome("ok", launched_at_s=100.0)).phases.launch_s == launch_s


@pytest.mark.parametrize(("samples", "pauses", "expected"), [
    ([8, 8, 4], [], 8),
    ([8, 8, 0], ["", "", "epoch"], 8),  # a library that draws ahead
    ([8, 8, 0], [], None),  # it keeps its batches from here on
])  # fmt: skip
def test_the_samples_of_a_step_are_unknown_where_blocks_without_a_pause_drew_none(samples, pauses, expected):
    record = dataclasses.replace(rank(0, [0.1] * 3), block_steps=1, block_samples=samples, block_pauses=pauses)
    assert collect.count_samples_per_step([record]) == expected


def test_a_reason_keeps_no_colours_of_the_terminal():
    outcome = collect.RunOutcome("failed", "train.py: \x1b[31mno data\x1b[0m here")
    assert assemble(simulated_spec(), [], outcome).reason == "train.py: no data here"
