"""`load`: result.json files -> one pandas DataFrame, one row per run, the same columns for every strategy. Layer 1."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench import analysis, nccl_log, probed
from scalebench.configs import option_defaults
from scalebench.results import RESULT_FILE, Result, read_result
from scalebench.spec import InputError
from scalebench.stats import Interval

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "run_id started_at status reason path fingerprint repeat seed model dataset strategy framework "
    "framework_version backend_used hardware gpus nodes processes scaling batch_per_device global_batch "
    "precision data_format feed model_params gradient_bytes flops_per_sample throughput_samples_per_s "
    "throughput_low throughput_high interval_over step_s epoch_s updates_per_epoch launch_s setup_s warmup_s "
    "warmup_steps measured_s measured_steps wall_s steady flags baseline_self_id baseline_bare_id speedup_self "
    "speedup_self_low speedup_self_high speedup_bare speedup_bare_low speedup_bare_high efficiency_self "
    "efficiency_self_low efficiency_self_high efficiency_bare efficiency_bare_low efficiency_bare_high mfu "
    "sync_isolated_s sync_exposed_s sync_exposed_share sync_per_epoch_s straggler_wait_s data_share forward_s "
    "backward_s optimizer_s gpu_util_mean gpu_power_w_mean energy_j_per_sample peak_memory_bytes "
    "sm_clock_mhz_min mem_clock_mhz_min throttle_reasons cpu_util_mean rss_peak_bytes final_loss metric_name "
    "metric time_to_target_s precision_used data_format_used compiler_used prefetch options "
    "overhead_share overhead_share_low overhead_share_high "
    "warmup_found_steps exchanges_per_epoch sync_isolated_s_low sync_isolated_s_high sync_exposed_s_low "
    "sync_exposed_s_high straggler_wait_s_low straggler_wait_s_high data_s data_s_low data_s_high copy_s "
    "copy_s_low copy_s_high forward_s_low forward_s_high backward_s_low backward_s_high optimizer_s_low "
    "optimizer_s_high collective_kernel_share collective_step_share device_ids bind environment transports "
    "energy_j energy_from sm_clock_mhz_mean mem_clock_mhz_mean gpu_temperature_c_max cpu_util_ours_mean "
    "cpu_cores_others_mean rss_anon_bytes_max net_sent_bytes_per_s net_received_bytes_per_s disk_read_bytes_per_s "
    "disk_written_bytes_per_s swap_in_bytes swap_out_bytes"
).split()
TEXT = (
    "run_id started_at status reason path fingerprint model dataset strategy framework framework_version "
    "backend_used hardware scaling precision data_format feed interval_over flags baseline_self_id "
    "baseline_bare_id throttle_reasons metric_name precision_used data_format_used compiler_used prefetch options "
    "device_ids bind environment transports energy_from"
).split()
COUNTS = (
    "repeat seed gpus nodes processes batch_per_device global_batch model_params gradient_bytes "
    "updates_per_epoch warmup_steps measured_steps peak_memory_bytes rss_peak_bytes "
    "warmup_found_steps exchanges_per_epoch rss_anon_bytes_max swap_in_bytes swap_out_bytes"
).split()


def find(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """All result.json files at or below `paths`, each once, sorted; InputError for a path without any."""
    found: dict[Path, Path] = {}
    for given in map(Path, paths):
        below = [given] if given.is_file() else sorted(given.rglob(RESULT_FILE))
        if not below:
            raise InputError(f"no {RESULT_FILE} at or below {given}; give the folder of a run or a sweep")
        for path in below:
            found.setdefault(path.resolve(), path)
    return sorted(found.values())


def load(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> pd.DataFrame:
    """One row per run found at or below `path` (one or several folders or result.json files).

    Seconds, bytes, samples/s as the column names say; null means not measured. Speedups, efficiencies, overheads
    are against the one-device rows among these. Raises InputError for a file that cannot be read.
    """
    return frame(*read(path))


def read(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[list[Result], list[Path]]:
    """The records at or below `path`, and the folder of each."""
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    files = find(paths)
    return [read_result(file) for file in files], [file.parent for file in files]


def frame(results: Sequence[Result], folders: Sequence[Path]) -> pd.DataFrame:
    """Rows of these records, in order, with the column types of every scalebench frame."""
    baselines = analysis.Baselines.among(results)
    return typed([row(result, folder, baselines) for result, folder in zip(results, folders, strict=True)], COLUMNS)


def typed(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Rows as a frame whose column types do not depend on them."""
    import pandas as pd

    kinds = dict.fromkeys(TEXT, "string") | dict.fromkeys([*COUNTS, "repeats"], "Int64") | {"steady": "boolean"}
    return pd.DataFrame(rows, columns=list(columns)).astype({name: kinds.get(name, "Float64") for name in columns})


def row(result: Result, folder: Path, baselines: analysis.Baselines) -> dict[str, Any]:
    """One run as a row."""
    s, w, p, m, q = result.scale, result.workload, result.phases, result.monitor, result.quality
    value, interval = analysis.throughput(result)
    first, step_s = result.ranks[0] if result.ranks else None, analysis.step_s(result)
    samples_per_epoch = w.train_samples
    cells: dict[str, Any] = {
        "run_id": result.run_id, "started_at": result.started_at, "status": result.status,
        "reason": result.reason, "path": str(folder), "fingerprint": result.fingerprint,
        "repeat": s.repeat, "seed": s.seed, "model": w.model, "dataset": w.dataset, "strategy": s.strategy,
        "framework": s.framework, "framework_version": s.framework_version, "backend_used": s.backend_used,
        "hardware": s.hardware, "gpus": s.gpus, "nodes": s.nodes, "processes": s.processes,
        "scaling": s.scaling, "batch_per_device": s.batch_per_device, "global_batch": s.global_batch,
        "precision": w.precision, "data_format": w.data_format, "feed": w.feed,
        "model_params": w.model_params, "gradient_bytes": w.gradient_bytes,
        "flops_per_sample": w.flops_per_sample,
        **limits("throughput_samples_per_s", "throughput", value, interval),
        "interval_over": "blocks" if interval else None, "step_s": step_s, **probed.cells(result, step_s),
        "epoch_s": samples_per_epoch / value if samples_per_epoch and value else None,
        "updates_per_epoch": w.updates_per_epoch, "launch_s": p.launch_s, "setup_s": p.setup_s,
        "warmup_s": p.warmup_s, "measured_s": p.measure_s, "wall_s": p.wall_s,
        "warmup_steps": _steps(first.warmup_block_s, first.warmup_block_steps) if first else None,
        "measured_steps": _steps(first.block_s, first.block_steps) if first else None,
        **{name: value for name, value in vars(m).items() if name in COLUMNS and name != "reason"},
        "throttle_reasons": joined(m.throttle_reasons), "energy_j_per_sample": _energy_per_sample(result),
        "peak_memory_bytes": _largest(b for r in result.ranks for b in r.peak_memory_bytes),
        "rss_peak_bytes": _largest(r.rss_peak_bytes for r in result.ranks),
        "final_loss": q.final_loss, "metric_name": q.metric_name, "metric": q.metric,
        "time_to_target_s": q.time_to_target_s,
        "precision_used": w.precision_used, "data_format_used": w.data_format_used,
        "compiler_used": w.compiler_used, "prefetch": w.prefetch, "options": _chosen_options(result),
        **_placed(result),
    }  # fmt: skip
    own, bare = baselines.self_of(result), baselines.bare_of(result)
    efficiency = _against(cells, result, "self", own)
    _against(cells, result, "bare", bare)
    cells.update(limits("overhead_share", "overhead_share", *analysis.overhead(own, bare)))
    target = analysis.target_of(result)
    against = analysis.unsteady(result, target)
    cells["steady"] = None if against is None else not against
    cells["flags"] = joined(analysis.flags(result, interval, efficiency, target))
    return cells


def _against(cells: dict[str, Any], result: Result, kind: str, baseline: Result | None) -> Interval | None:
    value, interval = analysis.speedup(result, baseline)
    cells[f"baseline_{kind}_id"] = baseline.run_id if baseline else None
    cells.update(compared(kind, result.scale.gpus, value, interval))
    return analysis.per_device(interval, result.scale.gpus)


def compared(kind: str, gpus: int, speedup: float | None, interval: Interval | None) -> dict[str, float | None]:
    """The columns of a speedup, and of the efficiency that it means, against one device."""
    share = analysis.per_device(interval, gpus)
    return {
        **limits(f"speedup_{kind}", f"speedup_{kind}", speedup, interval),
        **limits(f"efficiency_{kind}", f"efficiency_{kind}", speedup / gpus if speedup else None, share),
    }


def _chosen_options(result: Result) -> str | None:
    """The strategy's options that are not as its YAML has them: `loop=fit`."""
    defaults = option_defaults(result.scale.strategy)
    options = result.spec.get("strategy", {}).get("options") or {}
    return joined([f"{key}={value}" for key, value in options.items() if value != defaults.get(key, value)])


def _placed(result: Result) -> dict[str, str | None]:
    """The devices and variables that were chosen, and what NCCL made of it."""
    hardware = result.spec.get("hardware", {})
    variables = hardware.get("environment") or {}
    return {
        "device_ids": joined([str(number) for number in hardware.get("device_ids") or []]),
        "bind": hardware.get("bind"),
        "environment": joined([f"{name}={value}" for name, value in variables.items()]),
        "transports": nccl_log.summary(result.sync.transports),
    }


def limits(name: str, stem: str, value: float | None, interval: Interval | None) -> dict[str, float | None]:
    """A figure and its limits; one that the data cannot give, infinite in the interval, is null."""
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {name: value, f"{stem}_low": _finite(low), f"{stem}_high": _finite(high)}


def _finite(limit: float | None) -> float | None:
    return None if limit is None or math.isinf(limit) else limit


def _steps(block_s: list[float], block_steps: int | None) -> int | None:
    return None if block_steps is None else len(block_s) * block_steps


def _energy_per_sample(result: Result) -> float | None:
    samples = sum(sum(rank.block_samples) for rank in result.ranks)
    return result.monitor.energy_j / samples if result.monitor.energy_j is not None and samples else None


def _largest(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)


def joined(words: list[str] | None) -> str | None:
    return " ".join(words) if words else None
