"""The plan of a sweep: its runs in order, each once, and the baselines that they are compared with."""

import dataclasses
import itertools
import os

import pytest

from scalebench.config.compose import compose, to_config
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.core.json_files import write_json
from scalebench.core.machine import machine
from scalebench.core.result import write_result
from scalebench.sweeps import plan as plan_module
from tests.builders.runs import record

BASE = ["hardware=cpu", "dataset.size=1000", "measure.repeats=1"]


@pytest.fixture(autouse=True)
def cpu_only(monkeypatch):
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)


def on_cpu(words, base=BASE):
    return resolve(to_config(compose([*base, *words])))


def plan(*words):
    """Plan the full product of `key=a,b` words, the last key varying fastest, as Hydra's sweeper makes it."""
    values = [[f"{word.partition('=')[0]}={v}" for v in word.partition("=")[2].split(",")] for word in words]
    return plan_module.plan_sweep([list(line) for line in itertools.product(*values)], on_cpu)


def describe(planned):
    """Return strategy and devices of each run; `+` marks an added baseline."""
    return [f"{'+' if run.added else ''}{run.spec.config.strategy.name} {run.spec.gpus}" for run in planned]


USUAL = "+bare_torch 1, +ddp_gloo 1, ddp_gloo 2"
STRONG = "scaling=strong train.global_batch=20 strategy=ddp_gloo"
PLANS = {
    "strategy=ddp_gloo gpus=2,4": f"{USUAL}, ddp_gloo 4",
    "strategy=ddp_gloo,lightning_ddp_gloo gpus=2": f"{USUAL}, +lightning_ddp_gloo 1, lightning_ddp_gloo 2",
    "strategy=ddp_gloo,bare_torch gpus=2,1": "ddp_gloo 2, ddp_gloo 1, bare_torch 2, bare_torch 1",
    "strategy=simulated gpus=2": "+simulated 1, simulated 2",
    "strategy=ddp_nccl gpus=2": "ddp_nccl 2",  # which cannot happen here
    "baseline=bare strategy=ddp_gloo,lightning_ddp_gloo gpus=2": "+bare_torch 1, ddp_gloo 2, lightning_ddp_gloo 2",
    "baseline=none strategy=ddp_gloo gpus=2,1": "ddp_gloo 2, ddp_gloo 1",
    "strategy=ddp_gloo strategy.baseline=horovod_nccl gpus=2": "+ddp_gloo 1, ddp_gloo 2",  # an unsupported one
    "strategy=ddp_gloo baseline=attribution gpus=2": USUAL,
    f"{STRONG} baseline=auto gpus=2": USUAL,
    f"{STRONG} baseline=attribution gpus=3": "+bare_torch 1, +ddp_gloo 1, ddp_gloo 3",  # none at an uneven local batch
    "strategy=bare_torch gpus=1,1": "bare_torch 1",
    "strategy=ddp_gloo baseline=none gpus=null,2": "ddp_gloo 2",  # gpus=null means two workers here
}


@pytest.mark.parametrize("words", PLANS)
def test_baselines_come_once_and_before_their_first_use(words):
    assert describe(plan(*words.split())) == PLANS[words].split(", ")


def test_baselines_keep_every_other_override_and_take_the_local_batch():
    words = ("seed=7", "strategy=ddp_gloo", "strategy.options.bucket_cap_mb=1.0", "train.batch_per_device=5", "gpus=2")
    bare, own, requested = plan(*words)
    assert {job.spec.config.seed for job in (bare, own, requested)} == {7}
    assert {job.spec.batch_per_device for job in (bare, own, requested)} == {5}
    assert own.spec.config.strategy.options["bucket_cap_mb"] == 1.0
    assert bare.spec.config.strategy.options == {}
    # Strong scaling gets both baselines at the local batch.
    planned = plan(*STRONG.split(), "baseline=attribution", "gpus=4")
    assert describe(planned) == ["+bare_torch 1", "+ddp_gloo 1"] * 2 + ["ddp_gloo 4"]
    batches = [(run.spec.batch_per_device, run.spec.config.scaling) for run in planned]
    assert batches == [(20, "strong"), (20, "strong"), (5, "weak"), (5, "weak"), (5, "strong")]


def with_repeat(planned):
    return [(job.spec.config.repeat, name) for job, name in zip(planned, describe(planned), strict=True)]


@pytest.mark.parametrize(
    "words", [["gpus=2,4", "measure.repeats=3"], ["repeat=0,1,2", "gpus=2,4"]], ids=["unrolled", "named"]
)
def test_repeats_come_with_their_baselines_one_after_the_other(words):
    """So that a slow drift of the machine spreads evenly over all runs; a repeat keeps the fingerprint."""
    named = words[0].startswith("repeat")
    planned = plan(*words[:named], "strategy=ddp_gloo", *words[named:])
    once = ["+bare_torch 1", "+ddp_gloo 1", "ddp_gloo 2", "ddp_gloo 4"]
    assert with_repeat(planned) == [(repeat, name) for repeat in range(3) for name in once]
    assert len({job.spec.fingerprint for job in planned}) == 4 and len({job.key for job in planned}) == 12


def test_a_sweep_starts_what_it_measures_three_times():
    for words, repeats in (
        ("gpus=2", 3),
        ("repeat=0 gpus=2", 3),  # as the files of sweeps have it
        ("gpus=2 measure.repeats=2", 2),
        ("gpus=2 measure.repeats=1", 1),
        ("gpus=2 train.stop.steps=3", 1),
        ("gpus=2 measure=max_batch", 1),
        ("gpus=2 measure.search=max_batch", 1),
        ("gpus=2 debug=true", 1),
        ("gpus=2 strategy=ddp_nccl", 1),  # which cannot happen here
    ):
        lines = [["strategy=ddp_gloo", "baseline=none", *words.split()]]
        planned = plan_module.plan_sweep(lines, lambda line: on_cpu(line, BASE[:2]))
        assert [run.spec.config.repeat for run in planned] == list(range(repeats))
        for run in planned:
            assert resolve(to_config(compose([*BASE[:2], *run.overrides]))) == run.spec
            assert run.spec.repeats == repeats


def test_the_question_is_a_key_that_is_swept():
    planned = plan("strategy=ddp_gloo", "gpus=1,2", "train.precision=float32,bfloat16")
    for question in (None, "gpus", "train.precision"):
        plan_module.check_question(question, planned)
    with pytest.raises(InputError, match="=seed: this sweep has one value of it; name one of gpus, str"):
        plan_module.check_question("seed", planned)
    keys = plan_module.find_swept_keys(planned)
    assert plan_module.name_settings(planned[-1].overrides, keys) == ["precision=bfloat16"]
    assert plan_module.name_settings(["++script.args.a.b=1"], {"script.args.a.b"}) == ["a.b=1"]


def test_a_repeat_is_what_its_overrides_compose_to():
    # Repeats are not composed for the plan, and are when they run; the files of sweeps set repeat=0.
    planned = plan("strategy=ddp_gloo", "repeat=0", "gpus=2", "measure.repeats=2")
    assert [word for word in planned[-1].overrides if "repeat" in word] == ["measure.repeats=2", "repeat=1"]
    for job in planned:
        assert on_cpu(job.overrides) == job.spec
    assert plan("strategy=bare_torch", "gpus=1")[0].overrides == ["strategy=bare_torch", "gpus=1"], "one adds none"
    # A sweep that numbers its repeats makes no others.
    lines = [["strategy=ddp_gloo", f"repeat={number}", "gpus=2"] for number in (0, 1)]
    planned = plan_module.plan_sweep(lines, lambda line: on_cpu(line, BASE[:2]))
    assert [run.spec.config.repeat for run in planned] == [0, 0, 0, 1, 1, 1]
    assert {run.spec.repeats for run in planned} == {1}, "each is measured completely"
    # Runs may differ in their repeats and the same run is done as often as most.
    lines = [["strategy=bare_torch", f"seed={n}", "gpus=1", f"measure.repeats={n}"] for n in (1, 2, 3)]
    planned = [(job.spec.config.repeat, job.spec.config.seed) for job in plan_module.plan_sweep(lines, on_cpu)]
    assert planned == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    planned = plan("baseline=none", "strategy=ddp_gloo", "measure.repeats=1,2", "gpus=1,2")
    assert with_repeat(planned) == [(repeat, f"ddp_gloo {gpus}") for repeat in (0, 1) for gpus in (1, 2)]


def test_rounds_are_refused_where_each_run_is_a_job(tmp_path, monkeypatch):
    """Without sbatch, alpha is unsupported here, and nothing could take turns. By default such runs, and others that
    cannot take turns, are done by themselves."""
    (tmp_path / "sbatch").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = "strategy=ddp_gloo", "gpus=1,2", "hardware=alpha", "hardware.this_machine=false"
    with pytest.raises(InputError, match="cannot take turns, since each run is a job of its own"):
        plan(*words, "measure.order=rounds", "hardware.slurm.jobs=per_run")
    plan(*words, "hardware.slurm.jobs=per_run")
    for word in ("train.stop.steps=3", "measure=max_batch", "strategy.launcher=by_hand", "measure.slot_s=40"):
        plan(*words[:2], word)


@pytest.mark.parametrize("repeats", ["measure.repeats=3", pytest.param("repeat=0,1,2", marks=pytest.mark.slow)])
def test_random_order_is_within_each_repeat_and_fixed_by_the_seed(repeats):
    words = ("strategy=ddp_gloo", "gpus=1,2,4,8", repeats)
    in_order, shuffled = with_repeat(plan(*words)), with_repeat(plan("measure.order=random", *words))
    assert [repeat for repeat, _ in shuffled] == [0] * 5 + [1] * 5 + [2] * 5
    assert sorted(shuffled) == sorted(in_order)
    rounds = [[name for repeat, name in shuffled if repeat == number] for number in range(3)]
    assert len(set(map(tuple, rounds))) > 1 and shuffled != in_order
    assert with_repeat(plan("measure.order=random", *words)) == shuffled
    assert with_repeat(plan("seed=1", "measure.order=random", *words)) != shuffled


def test_exit_status():
    for statuses, status, if_strict in (
        ("", 0, 0),
        ("ok", 0, 0),
        ("ok unsupported", 0, 1),
        ("unsupported", 1, 1),
        ("unsupported unsupported", 1, 1),
        *((failed, 1, 1) for failed in ("ok failed", "oom", "timeout", "ok cancelled")),
    ):
        assert plan_module.compute_exit_status(statuses.split()) == status
        assert plan_module.compute_exit_status(statuses.split(), strict=True) == if_strict


def leave(folder, day, fingerprint="f" * 16, **changes):
    folder.mkdir(parents=True)
    started_at = f"2026-01-0{day}T00:00:00.000+00:00"
    write_result(record(started_at=started_at, fingerprint=fingerprint, **changes), folder)
    return folder


def test_earlier_results_are_the_latest_good_ones(tmp_path):
    """But for a run of the sweep itself, which is kept; files that cannot be read are skipped."""
    own = leave(tmp_path / "a" / "0", 2)
    latest = leave(tmp_path / "b" / "0", 3)
    leave(tmp_path / "c" / "0", 1)
    leave(tmp_path / "d" / "0", 4, status="failed")
    other = leave(tmp_path / "d" / "1", 1, "0" * 16)
    (leave(tmp_path / "cut", 5) / "result.json").write_text((own / "result.json").read_text()[:500])
    (tmp_path / "later").mkdir()
    write_json(tmp_path / "later" / "result.json", dataclasses.asdict(record()) | {"schema_version": 99})
    found = {("f" * 16, 0): latest, ("0" * 16, 0): other}
    assert plan_module.find_earlier_results(tmp_path / "new") == found
    assert plan_module.find_earlier_results(tmp_path / "a") == found | {("f" * 16, 0): own}
    assert plan_module.find_earlier_results(tmp_path / "not_there" / "new") == {}
