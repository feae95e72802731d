"""The search space: Hydra's choices, ranges and intervals become optuna's distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from scalebench.core.errors import InputError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

EXAMPLE = "'train.learning_rate=tag(log, interval(1e-5, 1e-1))'"
NOT_SEARCHED = {
    "seed": "the luckiest of its values would win",
    "repeat": "the luckiest of its values would win",
    "baseline": "a search has no baselines",
    "resume": "it is a setting of the search",
    "dry_run": "it is a setting of the search",
    "debug": "it is a setting of the search",
}


@dataclass
class SearchSpace:
    """Keys with their distributions, and the overrides that are the same in every trial."""

    searched: dict[str, BaseDistribution] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # as they were typed
    fixed: list[str] = field(default_factory=list)
    steps: dict[str, list[float]] = field(default_factory=dict)  # the values of each range

    def overrides(self, values: dict[str, Any]) -> list[str]:
        """Return the overrides that set these values."""
        return [f"{key}={self._text(key, values[key])}" for key in self.searched]

    def corners(self) -> Iterator[dict[str, Any]]:
        """Yield values that together cover every choice and both ends of every range."""
        ends = {key: _ends(distribution) for key, distribution in self.searched.items()}
        first = {key: values[0] for key, values in ends.items()}
        yield first
        for key, values in ends.items():
            for value in values[1:]:
                yield {**first, key: value}

    def _text(self, key: str, value: Any) -> str:
        if key in self.steps:  # sums of steps are off by a rounding error
            value = min(self.steps[key], key=lambda step: abs(step - value))
        return value if isinstance(value, str) else repr(value)


def parse_space(overrides: Sequence[Override]) -> SearchSpace:
    """Read a search space. The last override of a key wins, as everywhere. Raise InputError for a key or a range that
    cannot be searched."""
    last = {override.get_key_element(): override for override in overrides}
    space = SearchSpace()
    for key, override in last.items():
        if not override.is_sweep_override():
            space.fixed.append(str(override.input_line))
            continue
        name = key.lstrip("+")
        if name in NOT_SEARCHED or name.startswith("sweep."):
            reason = NOT_SEARCHED.get(name, "it is a setting of the search")
            raise InputError(f"{name} cannot be searched: {reason}; give one value")
        space.searched[key] = _distribution(name, override)
        if isinstance(override.value(), RangeSweep):
            space.steps[key] = _steps(name, override.value())
        space.texts[key] = str(override.input_line).partition("=")[2]
    if not space.searched:
        raise InputError(f"there is nothing to search: give a range, as in {EXAMPLE}, or choices, as in gpus=1,2")
    return space


def _distribution(key: str, override: Override) -> BaseDistribution:
    from optuna import distributions

    value = override.value()
    tags = getattr(value, "tags", set())
    if unknown := tags - {"log"}:
        raise InputError(f"{key}: a search knows the tag log, and not '{min(unknown)}'")
    if isinstance(value, IntervalSweep):
        return _interval(key, value)
    if tags:
        raise InputError(f"{key}: tag(log, ...) is for an interval, as in {EXAMPLE}")
    if isinstance(value, RangeSweep):
        return _range(key, value)
    return distributions.CategoricalDistribution(list(dict.fromkeys(override.sweep_string_iterator())))


def _interval(key: str, value: IntervalSweep) -> BaseDistribution:
    from optuna import distributions

    low, high, log = value.start, value.end, "log" in value.tags
    if low is None or high is None or not low < high:
        raise InputError(f"{key}=interval({low:g}, {high:g}) should begin below its end")
    if log and low <= 0:
        raise InputError(f"{key}=tag(log, interval({low:g}, {high:g})) should begin above 0, which has no logarithm")
    if isinstance(low, int) and isinstance(high, int):
        return distributions.IntDistribution(low, high, log=log)
    return distributions.FloatDistribution(low, high, log=log)


def _range(key: str, value: RangeSweep) -> BaseDistribution:
    from optuna import distributions

    steps = _steps(key, value)
    if all(isinstance(step, int) for step in steps):
        return distributions.IntDistribution(int(steps[0]), int(steps[-1]), step=abs(int(value.step)))
    return distributions.FloatDistribution(steps[0], steps[-1], step=abs(float(value.step)))


def _steps(key: str, value: RangeSweep) -> list[float]:
    """Return the values of a range in ascending order, without its end, as in Python."""
    if value.start is None or value.stop is None or value.step == 0:
        raise InputError(f"{key}: a range has a beginning, an end and a step that is not 0, as in range(1, 8, 2)")
    if all(isinstance(number, int) for number in (value.start, value.stop, value.step)):
        steps: list[float] = sorted(value.range())
    else:  # in decimals as they are written: Hydra's own sums of floats run past the end of range(0.1, 0.4, 0.1)
        start, stop, step = (Decimal(str(number)) for number in (value.start, value.stop, value.step))
        count = max(0, math.ceil((stop - start) / step))
        steps = sorted(float(start + number * step) for number in range(count))
    if steps:
        return steps
    raise InputError(f"{key}=range({value.start:g}, {value.stop:g}, {value.step:g}) holds no value")


def _ends(distribution: Any) -> list[Any]:
    choices = getattr(distribution, "choices", None)
    return list(choices) if choices is not None else [distribution.low, distribution.high]
