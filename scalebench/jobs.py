"""From a composed config to checked runs, and from a sweep's runs to all that it needs. Layer 4."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from scalebench import results
from scalebench.configs import option_defaults
from scalebench.records import from_dict
from scalebench.resolve import resolve
from scalebench.results import RESULT_FILE, Result
from scalebench.spec import Config, InputError, RunSpec
from scalebench.suggest import no_such


def to_config(composed: DictConfig) -> Config:
    """The typed spine as a plain dataclass, every interpolation resolved. InputError for a missing value."""
    tree = {}
    fields = [f.name for f in dataclasses.fields(Config)]
    for key in composed:
        if key != "hydra" and key not in fields:
            raise InputError(no_such("key", str(key), fields))
        if key != "hydra":  # whose own interpolations only resolve within a job
            node = composed[key]
            plain = OmegaConf.is_config(node)
            tree[key] = OmegaConf.to_container(node, resolve=True, throw_on_missing=True) if plain else node
    try:
        return from_dict(Config, tree)
    except ValueError as error:
        raise InputError(str(error)) from error


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


Compose = Callable[[Sequence[str]], DictConfig]


def plan(overrides: Sequence[Sequence[str]], compose: Compose) -> list[Job]:
    """The runs of a sweep in order, each once, with the baselines that are missing before their first use.

    Raises InputError or a composition error for the first override that is wrong, before anything starts.
    """
    asked = [Job(list(words), resolve(to_config(compose(words)))) for words in overrides]
    known = {job.key for job in asked}
    jobs: list[Job] = []
    placed: set[tuple[str, int]] = set()
    for job in asked:
        for extra in _baselines(job, compose):
            if extra.key not in known:
                known.add(extra.key)
                jobs.append(extra)
        if job.key not in placed:
            placed.add(job.key)
            jobs.append(job)
    return jobs


def _baselines(job: Job, compose: Compose) -> list[Job]:
    """The bare and self runs that `job` is compared with; none for what cannot run here anyway."""
    spec = job.spec
    if spec.config.baseline == "none" or spec.unsupported is not None:
        return []
    own = [w for w in job.overrides if not w.startswith("gpus=")]
    wanted = []
    strategy = spec.config.strategy
    name = strategy.baseline
    # One that is its own baseline, with other options than it comes with: Keras' loop against the plain one.
    varied = strategy.framework != "none" and strategy.options != option_defaults(strategy.name)
    if name is not None and (name != strategy.name or varied):
        neutral = [w for w in own if not w.startswith(("strategy=", "strategy."))]
        wanted.append([*neutral, f"strategy='{name}'", "gpus=1"])
    if spec.gpus > 1:
        wanted.append([*own, "gpus=1"])
    extra = [Job(words, resolve(to_config(compose(words))), added=True) for words in wanted]
    return [e for e in extra if e.spec.unsupported is None]


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
