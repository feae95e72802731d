"""From a composed config to checked runs, and from a sweep's runs to all that it needs. Layer 4."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from scalebench.config.compose import to_config
from scalebench.config.resolve import resolve
from scalebench.core import result as results
from scalebench.core.config_files import option_defaults
from scalebench.core.errors import InputError
from scalebench.core.result import Result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.spec import RunSpec


@dataclass
class Job:
    """One run of a sweep, by its overrides."""

    overrides: list[str]
    spec: RunSpec
    added: bool = False  # a baseline that nobody asked for by name
    earlier: Path | None = None  # folder of an equal run that went well (resume)
    key: tuple[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.spec.fingerprint, self.spec.config.repeat)

    @property
    def repeats(self) -> int:
        return self.spec.config.measure.repeats

    def again(self, repeat: int) -> Job:
        """The same run as the repeat of that number. Equal but for it, so that nothing is composed anew."""
        if self.repeats == 1:
            return self
        config = dataclasses.replace(self.spec.config, repeat=repeat)
        words = [word for word in self.overrides if not word.startswith("repeat=")]
        return Job([*words, f"repeat={repeat}"], dataclasses.replace(self.spec, config=config), self.added)


Compose = Callable[[Sequence[str]], DictConfig]


def plan(overrides: Sequence[Sequence[str]], compose: Compose) -> list[Job]:
    """The runs of a sweep in order, each once, with the baselines that are missing before their first use.

    `measure.repeats` unrolls: all runs of one repeat, then those of the next, so that a slow drift of the machine
    spreads evenly over them. `measure.order=random` shuffles within each repeat, alike for the same seed.

    Raises InputError or a composition error for the first override that is wrong, before anything starts.
    """

    @functools.cache  # runs of one sweep have many baselines in common
    def resolved(*words: str) -> RunSpec:
        return resolve(to_config(compose(words)))

    asked = [Job(list(words), resolved(*words)) for words in overrides]
    for job in asked:
        _refuse_two_ways(job)
    wanted = [(*_baselines(job, resolved), job) for job in asked]
    known = {job.again(repeat).key for job in asked for repeat in range(job.repeats)}
    jobs: list[Job] = []
    placed: set[tuple[str, int]] = set()
    for repeat in range(max((job.repeats for job in asked), default=1)):
        for *extra, job in wanted:
            if repeat >= job.repeats:
                continue
            missing = [e.again(repeat) for e in extra if e.again(repeat).key not in known]
            for each in (*missing, job.again(repeat)):
                if each.key not in placed:
                    placed.add(each.key)
                    jobs.append(each)
    return _ordered(jobs)


def _refuse_two_ways(job: Job) -> None:
    repeat = job.spec.config.repeat
    if job.repeats > 1 and repeat != 0:  # 0 is what everything starts from, also in the files of sweeps
        raise InputError(
            f"repeat={repeat} and measure.repeats={job.repeats}: the latter makes repeats 0 to {job.repeats - 1} by "
            "itself; leave one of them out"
        )


def _ordered(jobs: list[Job]) -> list[Job]:
    if not any(job.spec.config.measure.order == "random" for job in jobs):
        return jobs
    shuffled = list(jobs)
    random.Random(jobs[0].spec.config.seed).shuffle(shuffled)
    return sorted(shuffled, key=lambda job: job.spec.config.repeat)


def _baselines(job: Job, resolved: Callable[..., RunSpec]) -> list[Job]:
    """The bare and self runs that `job` is compared with; none for what cannot run here anyway.

    baseline=bare: no self runs. baseline=ladder: in strong scaling also both at the batch that each device has, where
    that is a whole number.
    """
    spec = job.spec
    if spec.config.baseline == "none" or not spec.starts:
        return []
    own = [w for w in job.overrides if not w.startswith("gpus=")]
    wanted = []
    strategy = spec.config.strategy
    name = strategy.baseline
    # One that is its own baseline, with other options than it comes with: Keras' loop against the plain one.
    varied = strategy.framework != "none" and strategy.options != option_defaults(strategy.name)
    if name is not None and (name != strategy.name or varied):
        neutral = [w for w in own if not w.startswith(("strategy=", "strategy."))]
        wanted.append([*neutral, f"strategy={name}", "gpus=1"])
    if spec.gpus > 1 and spec.config.baseline != "bare":
        wanted.append([*own, "gpus=1"])
    local, uneven = divmod(spec.global_batch, spec.gpus)
    if spec.config.baseline == "ladder" and spec.config.scaling == "strong" and spec.gpus > 1 and not uneven:
        batch = ["scaling=weak", "train.global_batch=null", f"train.batch_per_device={local}"]
        told = tuple(word.partition("=")[0] + "=" for word in batch)
        wanted += [[word for word in words if not word.startswith(told)] + batch for words in wanted]
    extra = [Job(words, resolved(*words), added=True) for words in wanted]
    return [e for e in extra if e.spec.starts]


def earlier_results(root: Path) -> dict[tuple[str, int], Path]:
    """(fingerprint, repeat) -> folder of the latest run below `root` that went well; bad files are passed over."""
    found: dict[tuple[str, int], tuple[str, Path]] = {}
    for path in sorted(root.rglob(RESULT_FILE)):
        try:
            result = results.read_result(path)
        except InputError:
            continue
        if result.status == "ok":
            key = (result.fingerprint, result.scale.repeat)
            found[key] = max(found.get(key, ("", path.parent)), (result.started_at, path.parent))
    return {key: folder for key, (_, folder) in found.items()}


def exit_status(done: Sequence[Result]) -> int:
    """0: all asked runs ok or unsupported; 1: any other status among them."""
    return 0 if all(result.status in ("ok", "unsupported") for result in done) else 1
