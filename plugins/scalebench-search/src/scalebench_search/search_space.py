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
    **dict.fromkeys(("seed", "repeat"), "the luckiest of its values would win"),
    **dict.fromkeys(("resume", "dry_run", "debug"), "it is a setting of the search"),
    "baseline": "a search has no baselines",
}


@dataclass
class SearchSpace:
    """Keys with their distributions, and the overrides that are the same in every trial."""

    searched: dict[str, BaseDistribution] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # as they were typed
    fixed: list[str] = field(default_factory=list)
    steps: dict[str, list[float]] = field(default_factory=dict)  # of each range, whose distribution is of their indices

    def overrides(self, values: dict[str, Any]) -> list[str]:
        """Return the overrides that set these values."""
        chosen = {key: self.steps[key][values[key]] if key in self.steps else values[key] for key in self.searched}
        return [f"{key}={value if isinstance(value, str) else repr(value)}" for key, value in chosen.items()]

    def corners(self) -> Iterator[dict[str, Any]]:
        """Yield values that together cover every choice and both ends of every range."""
        ends: dict[str, Sequence[Any]] = {
            key: getattr(each, "choices", None) or (getattr(each, "low", None), getattr(each, "high", None))
            for key, each in self.searched.items()
        }
        first = {key: values[0] for key, values in ends.items()}
        yield first
        yield from ({**first, key: value} for key, values in ends.items() for value in values[1:])


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
        reason = NOT_SEARCHED["resume"] if name.startswith("sweep.") else NOT_SEARCHED.get(name)
        if reason is not None:
            raise InputError(f"{name} cannot be searched: {reason}; give one value")
        if isinstance(override.value(), RangeSweep):
            space.steps[key] = _list_steps(name, override.value())
        space.searched[key] = _create_distribution(name, override, space.steps.get(key))
        space.texts[key] = str(override.input_line).partition("=")[2]
    if not space.searched:
        raise InputError(f"there is nothing to search: give a range, as in {EXAMPLE}, or choices, as in gpus=1,2")
    return space


def _create_distribution(key: str, override: Override, steps: list[float] | None) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    tags = getattr(value, "tags", set())
    if unknown := tags - {"log"}:
        raise InputError(f"{key}: a search knows the tag log, and not '{min(unknown)}'")
    if not isinstance(value, IntervalSweep):
        if tags:
            raise InputError(f"{key}: tag(log, ...) is for an interval, as in {EXAMPLE}")
        if steps is not None:
            return IntDistribution(0, len(steps) - 1)
        return CategoricalDistribution(list(dict.fromkeys(override.sweep_string_iterator())))
    low, high = value.start, value.end
    if low is None or high is None or not low < high:
        raise InputError(f"{key}=interval({low:g}, {high:g}) should begin below its end")
    if tags and low <= 0:
        raise InputError(f"{key}=tag(log, interval({low:g}, {high:g})) should begin above 0, which has no logarithm")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=bool(tags))
    return FloatDistribution(low, high, log=bool(tags))


def _list_steps(key: str, value: RangeSweep) -> list[float]:
    """Return the values of a range in ascending order, without its end, as in Python."""
    if value.start is None or value.stop is None or value.step == 0:
        raise InputError(f"{key}: a range has a beginning, an end and a step that is not 0, as in range(1, 8, 2)")
    is_whole = all(isinstance(number, int) for number in (value.start, value.stop, value.step))
    # In decimals as they are written: Hydra's own sums of floats run past the end of range(0.1, 0.4, 0.1).
    start, stop, step = (Decimal(str(number)) for number in (value.start, value.stop, value.step))
    count = max(0, math.ceil((stop - start) / step))
    steps = sorted((int if is_whole else float)(start + number * step) for number in range(count))
    if not steps:
        raise InputError(f"{key}=range({value.start:g}, {value.stop:g}, {value.step:g}) holds no value")
    return steps
