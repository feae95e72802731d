"""Plan a sweep: overrides become checked runs, with their repeats, the baselines that they need, and their folders."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.override_parser.types import Override, RangeSweep

from scalebench.cluster.commands import find_site
from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import refuse_folder_with_result, refuse_successful_run
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE, RunKey, is_owned, read_run_key, refuse_foreign_folder
from scalebench.core.spec import SWEEP_REPEATS, RunSpec, has_stop

TURN_LAUNCHERS = ("local", "mpi")
MAX_RUNS = 10_000  # all are composed and checked before the first: some 10 ms each, and 90 ms for files of its own
OWN_JOBS = "each run is a job of its own"
MAX_COHORT_RUNS = 16  # a round should be short beside the changes of the machine
KEPT = "done before, kept"  # of a run that resume=true does not repeat


@dataclass(eq=False)
class SweepRun:
    """A single run, or one run of a sweep."""

    overrides: list[str]
    spec: RunSpec
    added: bool = False  # a baseline that the user has not named
    earlier: Path | None = None  # folder of an equal run that was successful (resume)
    adopted: Path | None = None  # folder of an equal run whose job still runs (resume)
    bare: str | None = None  # fingerprint of its baseline without a wrapper
    number: int = 0  # in its sweep, and by default the name of its folder
    folder: Path = Path()  # its own, once it has a number
    may_go_on: bool = False  # with further repeats: how many there are has been left to the sweep
    place: int | None = None  # among the runs that the user has named
    tried_turns: bool = False  # beside others, among which there was no room for it
    key: RunKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.spec.fingerprint, self.spec.config.repeat)

    @property
    def starts(self) -> bool:
        """Return whether processes are to be started for it."""
        return self.earlier is None and self.spec.can_start

    def expect(self) -> tuple[str, str]:
        """Return the status that it will have, as far as a plan shows, and why no processes are started for it."""
        if self.earlier is not None:
            return "ok", KEPT
        if self.spec.plugin_error is not None:
            return "failed", f"will fail: {self.spec.plugin_error}"
        return ("ok", "") if self.spec.can_start else ("unsupported", f"unsupported: {self.spec.unsupported}")

    def with_repeat(self, repeat: int) -> SweepRun:
        """Return the same run as another repeat. Nothing else differs, so that it need not be composed again."""
        if self.spec.repeats == 1:
            return self
        config = dataclasses.replace(self.spec.config, repeat=repeat)
        others = [override for override in self.overrides if not _sets(override, "repeat=")]
        spec = dataclasses.replace(self.spec, config=config)
        overrides = [*others, f"repeat={repeat}"]
        return SweepRun(overrides, spec, self.added, bare=self.bare, may_go_on=self.may_go_on, place=self.place)


def _sets(override: str, *beginnings: str) -> bool:
    """Return whether the override, also one with a +, ++ or ~ before its key, begins with one of these."""
    return override.lstrip("+~").startswith(beginnings)


def check_size(overrides: Sequence[Override]) -> None:
    """Raise InputError where Hydra would list more than MAX_RUNS runs of these overrides, before it does so, or where
    one of them names a value twice."""
    counts = []
    for override in (override for override in overrides if override.is_discrete_sweep()):
        values = override.value()
        # Hydra lists a range before it shuffles it.
        listed = values.range() if isinstance(values, RangeSweep) else override.sweep_string_iterator()
        texts = list(map(str, itertools.islice(listed, MAX_RUNS + 1)))
        if twice := next((text for text, count in Counter(texts).items() if count > 1), None):
            key = override.get_key_element()
            raise InputError(f"{key} has the value {twice} twice: write it once; measure.repeats=N repeats runs")
        counts.append(len(texts))
    _refuse_too_many(math.prod(counts))


def _refuse_too_many(runs: int) -> None:
    if runs > MAX_RUNS:
        raise InputError(
            f"this sweep has more than {MAX_RUNS:,} runs; divide it into several of fewer values or repeats"
        )


def plan_sweep(overrides: Sequence[Sequence[str]], resolve_run: Callable[[Sequence[str]], RunSpec]) -> list[SweepRun]:
    """Return the runs of a sweep in order, each once, with missing baselines before their first use.

    `measure.repeats`, three by default, unrolls: all runs of one repeat, then those of the next, so that a slow drift
    of the machine spreads evenly over them. `measure.order=random` shuffles within each repeat, in the same way for the
    same seed.

    Raise InputError or a composition error for the first override that is wrong, before anything starts.
    """

    @functools.cache  # runs of one sweep share many baselines
    def resolve_cached(*arguments: str) -> RunSpec:
        return resolve_run(arguments)

    requested = [SweepRun(list(arguments), resolve_cached(*arguments)) for arguments in overrides]
    if all(run.spec.config.repeat == 0 for run in requested):  # else the sweep numbers its repeats itself
        requested = list(map(_with_default_repeats, requested))
    for place, run in enumerate(requested):
        run.place = place
        repeat, repeats = run.spec.config.repeat, run.spec.repeats
        if repeats > 1 and repeat != 0:  # 0 is the default, also in the files of sweeps
            raise InputError(
                f"repeat={repeat} and measure.repeats={repeats}: the latter makes repeats 0 to {repeats - 1} by "
                "itself; leave one of them out"
            )
    _refuse_too_many(sum(run.spec.repeats for run in requested))
    groups = [(*_make_baselines(run, resolve_cached), run) for run in requested]
    requested_keys = {run.with_repeat(repeat).key for run in requested for repeat in range(run.spec.repeats)}
    planned: dict[RunKey, SweepRun] = {}
    for repeat in range(max((run.spec.repeats for run in requested), default=1)):
        for *baselines, run in groups:
            if repeat >= run.spec.repeats:
                continue
            repeated = [baseline.with_repeat(repeat) for baseline in baselines]
            missing = [baseline for baseline in repeated if baseline.key not in requested_keys]
            for each in (*missing, run.with_repeat(repeat)):
                planned.setdefault(each.key, each)
    runs = list(planned.values())
    # Scripts share ports, folders and GPU memory where they are alive together.
    is_shuffled = {"random": True, "auto": any(run.spec.config.script.path is not None for run in runs)}
    if any(is_shuffled.get(run.spec.config.measure.order, False) for run in runs):
        random.Random(runs[0].spec.config.seed).shuffle(runs)
        runs.sort(key=lambda run: run.spec.config.repeat)
    _check_rounds(runs)
    return runs


def _with_default_repeats(run: SweepRun) -> SweepRun:
    """Return a requested run with SWEEP_REPEATS where measure.repeats is open. A training to a stop, a search, a
    debugged run and one that cannot happen here are done once."""
    config = run.spec.config
    is_done_once = has_stop(config.train.stop) or config.measure.search != "none" or config.debug
    if config.measure.repeats is not None or is_done_once or not run.spec.can_start:
        return run
    config = dataclasses.replace(config, measure=dataclasses.replace(config.measure, repeats=SWEEP_REPEATS))
    overrides = [*run.overrides, f"measure.repeats={SWEEP_REPEATS}"]
    return SweepRun(overrides, dataclasses.replace(run.spec, config=config), may_go_on=True)


def plan_further_repeat(planned: Sequence[SweepRun], repeat: int) -> list[SweepRun]:
    """Return the runs of one more repeat: of those whose number of repeats was left to the sweep, and of their
    baselines. All of them, so that they take turns as before."""
    firsts = [run for run in planned if run.may_go_on and run.spec.can_start and run.spec.config.repeat == 0]
    if repeat >= min((run.spec.config.measure.max_repeats for run in firsts), default=0):
        return []
    return list({run.key: run for run in (first.with_repeat(repeat) for first in firsts)}.values())


def cohort_key(spec: RunSpec) -> tuple[int, str, str] | None:
    """Return a key that is equal for runs of a sweep that take turns with each other; None for one that takes none."""
    settings = spec.config.measure
    in_rounds = settings.order == "rounds" or (settings.order == "auto" and spec.config.script.path is None)
    if not spec.can_start or spec.config.debug or not in_rounds or turns_reason(spec):
        return None
    return spec.config.repeat, spec.config.model.name, spec.config.hardware.name


def turns_reason(spec: RunSpec) -> str | None:
    """Return why a run is always measured by itself; None where it can take turns with others."""
    config = spec.config
    if has_stop(config.train.stop):
        return "it trains to a stop"
    if config.measure.search != "none":
        return "it searches for a batch size"
    if config.strategy.launcher not in TURN_LAUNCHERS:
        return f"its ranks are started {config.strategy.launcher.replace('_', ' ')}"
    hardware = config.hardware
    if find_site(hardware) == "queue" and hardware.slurm.jobs == "per_run":
        return OWN_JOBS
    if config.hardware.hosts:
        return "its ranks are on several hosts"
    return None


def find_unit(
    rest: Sequence[SweepRun], planned: list[SweepRun], unused: Iterator[int], alone: Collection[SweepRun] = ()
) -> list[SweepRun]:
    """Return the first run of `rest` and those that take turns with it, the reference first. `alone` take no turns.

    Where the bare baselines of these runs have taken turns with others, they are planned once more, with numbers that
    are `unused`: ratios between the runs of different cohorts rest on baselines in each.
    """

    def key_of(run: SweepRun) -> object:
        return None if run.earlier is not None or run in alone else cohort_key(run.spec)

    key = key_of(rest[0])
    if key is None:
        return [rest[0]]
    bares = {run.bare for run in planned}
    unit = [run for run in rest if key_of(run) == key]
    unit = sorted(unit, key=lambda run: run.spec.fingerprint not in bares)[:MAX_COHORT_RUNS]
    present = {run.spec.fingerprint for run in unit}
    baselines = []
    for bare in dict.fromkeys(run.bare for run in unit):
        same = (run for run in planned if run.spec.fingerprint == bare and cohort_key(run.spec) == key)
        if bare not in present and (run := next(same, None)) is not None:
            baselines.append(dataclasses.replace(run, added=True, earlier=None, number=next(unused)))
    planned += baselines
    return [*baselines, *unit]


def plan_jobs(runs: Sequence[SweepRun], planned: list[SweepRun], unused: Iterator[int]) -> list[list[list[SweepRun]]]:
    """Return the jobs that do these runs, as lists of units, which follow each other and whose runs take turns.
    Baselines are added as in `find_unit`. Raise InputError where hardware.slurm differs within a job.

    Runs of one size share a job. A training to a stop and a search take no turns and may be long: each has its own.
    """
    groups: dict[object, list[SweepRun]] = {}
    for run in runs:
        config = run.spec.config
        way = config.hardware.slurm.jobs
        is_own = way == "per_run" or has_stop(config.train.stop) or config.measure.search != "none"
        size = (run.spec.gpus, config.hardware.name, repr(config.hardware.slurm))
        groups.setdefault(run if is_own else "one job" if way == "one" else size, []).append(run)
    if len({repr(run.spec.config.hardware.slurm) for run in groups.get("one job", [])}) > 1:
        raise InputError("hardware.slurm.jobs=one: hardware.slurm differs between the runs of this sweep")
    jobs = []
    for rest in groups.values():
        units: list[list[SweepRun]] = []
        while rest:
            units.append(find_unit(rest, planned, unused))
            rest = [run for run in rest if run not in units[-1]]
        jobs.append(units)
    return jobs


def _check_rounds(planned: Sequence[SweepRun]) -> None:
    """Raise InputError where measure.order=rounds cannot be what happens."""
    keys = [cohort_key(run.spec) for run in planned]
    in_rounds = [run.spec for run in planned if run.spec.config.measure.order == "rounds" and run.spec.can_start]
    for spec in in_rounds:
        settings, reason = spec.config.measure, turns_reason(spec)
        if reason is not None:
            way_out = "set hardware.slurm.jobs=per_size, or leave it out" if reason == OWN_JOBS else "leave it out"
            raise InputError(f"measure.order=rounds: {spec.label} cannot take turns, since {reason}; {way_out}")
        if settings.slot_s > settings.max_s:
            raise InputError(
                f"measure.slot_s={settings.slot_s:g} is longer than measure.max_s={settings.max_s:g}, the time that "
                "each run has in all rounds"
            )
    for spec in in_rounds:
        if keys.count(cohort_key(spec)) == 1:
            raise InputError(f"measure.order=rounds: {spec.label} has no other run to take turns with; leave it out")


def _make_baselines(run: SweepRun, resolve_cached: Callable[..., RunSpec]) -> list[SweepRun]:
    """Return the bare and self runs that `run` is compared with; none for a run that cannot happen here.

    With baseline=bare there are no self runs. With baseline=attribution, strong scaling also gets both at the batch
    that each device has, where that is a whole number.
    """
    spec = run.spec
    if spec.config.baseline == "none" or not spec.can_start:
        return []
    others = [override for override in run.overrides if not _sets(override, "gpus=")]
    baselines = []
    strategy = spec.config.strategy
    name = strategy.baseline
    # A strategy that is its own baseline gets one where its options are not the defaults: Keras' loop against the
    # plain one.
    has_changed_options = strategy.framework != "none" and strategy.options != strategy_option_defaults(strategy.name)
    if name is not None and (name != strategy.name or has_changed_options):
        neutral = [override for override in others if not _sets(override, "strategy=", "strategy.")]
        baselines.append([*neutral, f"strategy={name}", "gpus=1"])
    if spec.gpus > 1 and spec.config.baseline != "bare":
        baselines.append([*others, "gpus=1"])
    batch_per_device, remainder = divmod(spec.global_batch, spec.gpus)
    if spec.config.baseline == "attribution" and spec.config.scaling == "strong" and spec.gpus > 1 and not remainder:
        batch = ["scaling=weak", "train.global_batch=null", f"train.batch_per_device={batch_per_device}"]
        batch_keys = tuple(override.partition("=")[0] + "=" for override in batch)
        baselines += [[word for word in baseline if not _sets(word, *batch_keys)] + batch for baseline in baselines]
    runs = [
        SweepRun(baseline, resolve_cached(*baseline), added=True, may_go_on=run.may_go_on) for baseline in baselines
    ]
    bare = next((baseline.spec.fingerprint for baseline in runs if baseline.spec.config.strategy.name == name), None)
    for each in (run, *runs):
        each.bare = bare
    return [baseline for baseline in runs if baseline.spec.can_start]


def find_swept_keys(planned: Sequence[SweepRun]) -> set[str]:
    """Return the keys of which runs were planned with several values, without strategy, gpus and repeat: these and the
    other keys tell two runs of a sweep apart."""
    values: dict[str, set[str]] = {}
    for run in planned:
        for override in run.overrides:
            key, _, value = override.lstrip("+").partition("=")
            values.setdefault(key, set()).add(value)
    return {key for key, several in values.items() if len(several) > 1} - {"strategy", "gpus", "repeat"}


def check_question(question: str | None, planned: Sequence[SweepRun]) -> None:
    """Raise InputError where the answer is to be about a key of which the planned runs have one value."""
    swept = {*find_swept_keys(planned), "strategy", "gpus"}
    if question is not None and question not in swept:
        raise InputError(
            f"sweep.question={question}: this sweep has one value of it; name one of {', '.join(sorted(swept))}, or "
            "sweep.question=null for an answer about each"
        )


def name_settings(overrides: Sequence[str], keys: set[str]) -> list[str]:
    """Return `seed=1` of each of these keys that the overrides of a run set, by the last part of its name, or all of
    an argument's."""
    pairs = [override.lstrip("+").partition("=")[::2] for override in overrides]
    return [
        f"{key.partition('script.args.')[2] or key.rpartition('.')[2]}={value}" for key, value in pairs if key in keys
    ]


def compute_exit_status(statuses: Collection[str], strict: bool = False) -> int:
    """Return 0 where a run is ok and all others are ok or unsupported; with `strict`, only where all are ok.

    Unsupported runs are rows of a sweep, but where no run at all could be done, such as a single unsupported one,
    nothing of what was requested is there, and the status is 1.
    """
    accepted = {"ok"} if strict else {"ok", "unsupported"}
    return 0 if accepted.issuperset(statuses) and (not statuses or "ok" in statuses) else 1


def number_runs(
    planned: Sequence[SweepRun], first: int = 0, present: Mapping[int, RunKey] | None = None
) -> Iterator[int]:
    """Number these runs: one that is `present` in the folder of a resumed sweep keeps its number, and the others get
    those from `first` on that no run has. Return the numbers after these, for baselines that are repeated."""
    taken = present or {}
    own = {key: number for number, key in taken.items()}
    unused = (number for number in itertools.count(first) if number not in taken)
    for run in planned:
        run.number = own[run.key] if run.key in own else next(unused)
    return unused


def find_numbers(sweep_dir: Path, earlier: Mapping[RunKey, Path]) -> dict[int, RunKey]:
    """Map the number of each run in the folder of a sweep, whatever became of it, to its key. Of equal runs the last is
    that of `earlier`, or the first one."""
    keys: dict[int, RunKey] = {}
    for folder in sweep_dir.glob("[0-9]*"):
        if re.fullmatch(r"0|[1-9]\d*", folder.name, re.ASCII) and (key := read_run_key(folder)) is not None:
            keys[int(folder.name)] = key
    last_is_own = sorted(keys, key=lambda number: (earlier.get(keys[number]) == sweep_dir / str(number), -number))
    return {number: keys[number] for number in last_is_own}


def find_earlier_results(sweep_dir: Path) -> dict[RunKey, Path]:
    """Map (fingerprint, repeat) to the folder of a successful run: the sweep's own, which nothing may replace, else
    the latest of the sweeps beside it. Unreadable files are skipped, and results of other users, who may write what
    they like into a shared folder."""
    latest: dict[RunKey, tuple[bool, str, Path]] = {}
    paths = {*sweep_dir.parent.rglob(RESULT_FILE), *sweep_dir.rglob(RESULT_FILE)}  # the latter may be a link
    for path in sorted(paths):
        if not (is_owned(path) and is_owned(path.parent)):
            continue
        try:
            result = read_result(path)
        except InputError:
            continue
        if result.status == "ok":
            key = (result.fingerprint, result.scale.repeat)
            candidate = (sweep_dir in path.parents, result.started_at, path.parent)
            latest[key] = max(latest.get(key, candidate), candidate)
    return {key: folder for key, (_, _, folder) in latest.items()}


def check_folders(planned: Sequence[SweepRun], is_resumed: bool) -> None:
    """Raise InputError for the folder of a run that is neither empty nor a run's, or holds a result, of a resumed sweep
    another successful one. Nothing has been touched then."""
    for run in planned:
        if not is_resumed:
            refuse_folder_with_result(run.folder)
        elif run.earlier != run.folder:
            refuse_successful_run(run.folder)
        refuse_foreign_folder(run.folder)
