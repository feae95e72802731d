"""RunSummary: a record after its own figures were computed, without raw series, so that ten thousand fit in memory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.result import Result, Scale
from scalebench.core.stats.estimates import Estimate

Placement = tuple[tuple[tuple[str, str], ...], str, int]  # environment variables, CPU binding and first device


class RunSummary(msgspec.Struct, frozen=True):  # which pickle writes and reads in less time than a dataclass
    """A run as the rows of other runs need it. The first six fields are copied from its record."""

    run_id: str
    started_at: str
    status: str
    reason: str | None
    fingerprint: str
    scale: Scale
    started: datetime
    comparison_keys: tuple[str, str]  # without and with the strategy
    placement: Placement
    uses_default_options: bool
    throughput: tuple[float | None, Estimate | None]
    sample_key: str
    cells: dict[str, Any]  # of its row in the frame, without those that compare it with other runs
    has_requested_probes: bool  # collective operations or bandwidths, which are measured on request
    cohort: str | None  # of the runs that it took turns with
    round_rates: dict[int, float]  # samples/s by round of the cohort


Run = Result | RunSummary


def start_time(run: Run) -> datetime:
    """Return when a run started; a time without a zone, as in foreign records, is read as UTC."""
    if isinstance(run, RunSummary):
        return run.started
    started = datetime.fromisoformat(run.started_at)
    return started if started.tzinfo is not None else started.replace(tzinfo=UTC)


def uses_default_options(run: Run) -> bool:
    """Return whether all options of the run's strategy have their default values."""
    return run.uses_default_options if isinstance(run, RunSummary) else settings_cells(run)["options"] is None


def settings_cells(result: Result) -> dict[str, str | None]:
    """Return the options of the strategy that differ from its YAML (`loop=fit`), and the configured devices, binding,
    layout and environment variables."""
    hardware, defaults = result.spec.get("hardware", {}), strategy_option_defaults(result.scale.strategy)
    options = (result.spec.get("strategy", {}).get("options") or {}).items()
    variables = (hardware.get("environment") or {}).items()
    changed = [f"{key}={value}" for key, value in options if value != defaults.get(key, value)]
    arguments = ((result.spec.get("script") or {}).get("args") or {}).items()
    return {
        "options": join_words([*changed, *(f"{key}={value}".replace(" ", "") for key, value in arguments)]),
        "environment": join_words([f"{name}={value}" for name, value in variables]),
        "bind": hardware.get("bind"),
        "layout": hardware.get("layout"),
        "device_ids": join_words([str(number) for number in hardware.get("device_ids") or []]),
    }


def join_words(words: list[str] | None) -> str | None:
    return " ".join(words) if words else None
