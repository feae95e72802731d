"""The columns of the frame and their types, which do not depend on its rows."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from scalebench.core.errors import InputError, unknown_name_message

if TYPE_CHECKING:
    import pandas as pd

DTYPES = ("nullable", "numpy")
RATE = "throughput_samples_per_s"
FRAME_COLUMNS = (
    "run_id started_at status reason path fingerprint repeat seed model dataset strategy framework "
    "framework_version backend_used hardware gpus nodes processes scaling batch_per_device global_batch "
    "precision data_format feed model_params gradient_bytes flops_per_sample throughput_samples_per_s "
    "throughput_low throughput_high interval_over in_turns step_s epoch_s steps_per_epoch launch_s setup_s warmup_s "
    "warmup_steps measured_s measured_steps wall_s steady flags baseline_self_id baseline_bare_id speedup_self "
    "speedup_self_low speedup_self_high speedup_bare speedup_bare_low speedup_bare_high efficiency_self "
    "efficiency_self_low efficiency_self_high efficiency_bare efficiency_bare_low efficiency_bare_high mfu "
    "sync_isolated_s sync_exposed_s sync_exposed_share sync_per_epoch_s imbalance_s data_share forward_s "
    "backward_s optimizer_s gpu_util_mean gpu_power_w_mean energy_j_per_sample peak_memory_bytes "
    "sm_clock_mhz_min mem_clock_mhz_min throttle_reasons cpu_util_mean rss_peak_bytes final_loss metric_name "
    "metric time_to_target_s precision_used data_format_used compiler_used prefetch options "
    "read_samples_per_s overhead_share overhead_share_low overhead_share_high "
    "steady_after_steps syncs_per_epoch sync_isolated_s_low sync_isolated_s_high sync_exposed_s_low "
    "sync_exposed_s_high imbalance_s_low imbalance_s_high data_s data_s_low data_s_high copy_s "
    "copy_s_low copy_s_high forward_s_low forward_s_high backward_s_low backward_s_high optimizer_s_low "
    "optimizer_s_high collective_kernel_share collective_step_share device_ids bind environment transports "
    "energy_j energy_from sm_clock_mhz_mean mem_clock_mhz_mean gpu_temperature_c_max cpu_util_ours_mean "
    "cpu_cores_others_mean rss_anon_bytes_max net_sent_bytes_per_s net_received_bytes_per_s disk_read_bytes_per_s "
    "disk_written_bytes_per_s swap_in_bytes swap_out_bytes "
    "baseline_given_id speedup_given speedup_given_low speedup_given_high efficiency_given efficiency_given_low "
    "efficiency_given_high device_hours_per_epoch device_hours_to_target energy_j_per_epoch energy_j_to_target "
    "machine job_id queued_s layout "
    "optimizer learning_rate learning_rate_rule base_batch weight_decay accumulate stopped_by target trained_s "
    "trained_steps trained_epochs train_metric generalisation_gap best_metric first_step_s evaluate_s points "
    "speedup_target_self speedup_target_bare max_batch_per_device memory_limit_bytes "
    "training_id train_options model_options "
    "stages micro_batches stage_balance bubble_share bubble_share_expected state_bytes "
    "step_s_median step_s_p95 step_cv "
    "sync_negotiate_s sync_queue_s sync_memcpy_s sync_allreduce_s "
    "sync_input_s sync_input_s_low sync_input_s_high sync_weights_out_s sync_weights_out_s_low "
    "sync_weights_out_s_high sync_output_s sync_output_s_low sync_output_s_high sync_gradients_in_s "
    "sync_gradients_in_s_low sync_gradients_in_s_high "
    "pcie_sent_bytes_per_step pcie_received_bytes_per_step nvlink_sent_bytes_per_step nvlink_received_bytes_per_step "
    "pause_share data_wait_share "
    "gpu_compute_share gpu_communication_share gpu_hidden_share gpu_copy_share host_wait_share kernel_wait_share "
    "gpu_kernels_per_step"
).split()
TEXT_COLUMNS = (
    "run_id started_at status reason path fingerprint model dataset strategy framework framework_version "
    "backend_used hardware scaling precision data_format feed interval_over flags baseline_self_id "
    "baseline_bare_id throttle_reasons metric_name precision_used data_format_used compiler_used prefetch options "
    "device_ids bind environment transports energy_from baseline_given_id machine job_id layout "
    "optimizer learning_rate_rule stopped_by training_id train_options model_options"
).split()
COUNT_COLUMNS = (
    "repeat seed gpus nodes processes batch_per_device global_batch model_params gradient_bytes "
    "steps_per_epoch warmup_steps measured_steps peak_memory_bytes rss_peak_bytes "
    "steady_after_steps syncs_per_epoch rss_anon_bytes_max swap_in_bytes swap_out_bytes "
    "base_batch accumulate trained_steps points max_batch_per_device memory_limit_bytes "
    "stages micro_batches state_bytes"
).split()
COLUMN_KINDS = {
    **dict.fromkeys(TEXT_COLUMNS, "string"),
    **dict.fromkeys((*COUNT_COLUMNS, "repeats"), "Int64"),
    "steady": "boolean",
    "in_turns": "boolean",
}  # the others are Float64

# The descriptions of columns in docs/reference/results.md; `_low` and `_high` of a figure are its 95 % interval.
COLUMN_DESCRIPTIONS = {
    "run_id": "of the run; unique",
    "started_at": "UTC",
    "status": "see below",
    "reason": "one line, of every status but ok",
    "path": "folder of the run",
    "fingerprint": "of the config without repeat, paths and queueing",
    "repeat": "number of this start",
    "seed": "of initial weights and the order of samples",
    "model": "",
    "dataset": "",
    "strategy": "",
    "framework": "",
    "framework_version": "",
    "backend_used": "what carried the gradients, as observed",
    "hardware": "name in the config",
    "gpus": "devices",
    "nodes": "",
    "processes": "",
    "scaling": "weak or strong",
    "batch_per_device": "samples per step",
    "global_batch": "samples per step over all devices",
    "precision": "requested",
    "data_format": "requested",
    "feed": "where batches come from",
    "model_params": "",
    "gradient_bytes": "of one step",
    "flops_per_sample": "of training, counted",
    "throughput_samples_per_s": "all devices, steady state",
    "interval_over": "repeats or blocks: what the limits are over",
    "in_turns": "it took turns with other runs, so that ratios to them are formed within rounds",
    "step_s": "mean",
    "step_s_median": "over blocks",
    "step_s_p95": "over blocks",
    "step_cv": "standard deviation over mean, over blocks",
    "epoch_s": "at this throughput",
    "steps_per_epoch": "",
    "launch_s": "null where the launching program is on another host",
    "setup_s": "",
    "warmup_s": "",
    "warmup_steps": "",
    "steady_after_steps": "end of warm-up; null: no steady state within the bounds",
    "measured_s": "",
    "measured_steps": "",
    "wall_s": "of the whole run",
    "steady": "no drift detected; null below 16 blocks",
    "flags": "see below",
    "baseline_self_id": "run_id of the same strategy on one device",
    "baseline_bare_id": "run_id of one device without a wrapper",
    "baseline_given_id": "run_id of the one that --baseline names",
    "speedup_self": "throughput over that baseline's",
    "speedup_bare": "likewise",
    "speedup_given": "likewise; null for another model, sample shape or batch",
    "efficiency_self": "speedup / (gpus / the baseline's gpus)",
    "efficiency_bare": "likewise",
    "efficiency_given": "likewise",
    "overhead_share": "1 - self / bare on one device: cost of the wrapper",
    "mfu": "throughput x flops_per_sample / (gpus x peak FLOP/s at precision_used); null: one of them is unknown",
    "sync_isolated_s": "gradient synchronization by itself, slowest rank",
    "sync_exposed_s": "step with synchronization minus without",
    "sync_exposed_share": "of the step of the repeat that was probed",
    "sync_per_epoch_s": "exposed",
    "syncs_per_epoch": "messages",
    "sync_input_s": "one copy of the weights or shards: slices of a batch to the devices; parts of exposed sync",
    "sync_weights_out_s": "likewise: weights to the devices",
    "sync_output_s": "likewise: outputs to where they are merged, and their gradients back",
    "sync_gradients_in_s": "likewise: gradients to the weights",
    "sync_negotiate_s": "Horovod's timeline, rank 0: until all ranks have announced a tensor; phases overlap",
    "sync_queue_s": "likewise: waiting in its queue",
    "sync_memcpy_s": "likewise: in and out of the fusion buffer",
    "sync_allreduce_s": "likewise: sending",
    "imbalance_s": "wait for the slowest device: largest - mean; part of exposed",
    "data_s": "cost of drawing a batch beside the device's work",
    "data_share": "of the step of the repeat that was probed",
    "copy_s": "of a batch to the device; null on CPUs",
    "read_samples_per_s": "of a user's Dataset, by one process before the run; null: other data, or not measured",
    "forward_s": "",
    "backward_s": "",
    "optimizer_s": "",
    "collective_kernel_share": "of all operations' own time, under the profiler",
    "collective_step_share": "of the step's wall time, under the profiler",
    "gpu_compute_share": "of a step: kernels but NCCL's, by the union of their times under the profiler",
    "gpu_communication_share": "likewise: NCCL's kernels, which also wait for their peers, while no other computes",
    "gpu_hidden_share": "of the time of NCCL's kernels: while others compute",
    "gpu_copy_share": "of a step: copies and fills of memory while no kernel runs",
    "host_wait_share": "of a step: what the GPU's other times leave, in which the host has started no kernel",
    "kernel_wait_share": "of a step: no kernel runs though the next is started",
    "gpu_kernels_per_step": "that a GPU runs",
    "gpu_util_mean": "share of time in which some kernel ran, not how much of the GPU",
    "gpu_power_w_mean": "all GPUs together",
    "energy_j": "all GPUs, measured phase; without the rest of the machine",
    "energy_from": "the GPU's counter, or the integral of power",
    "energy_j_per_sample": "of the GPUs alone",
    "energy_j_per_epoch": "of the GPUs alone",
    "energy_j_to_target": "mean power of the GPUs x time_to_target_s",
    "device_hours_per_epoch": "gpus x epoch_s",
    "device_hours_to_target": "gpus x time_to_target_s",
    "peak_memory_bytes": "of the fullest GPU's allocator; null on CPUs",
    "rss_peak_bytes": "resident, of the largest rank",
    "rss_anon_bytes_max": "resident without mapped files, all ranks",
    "state_bytes": "weights, gradients, optimizer state kept between steps, fullest device",
    "sm_clock_mhz_min": "lowest sample",
    "sm_clock_mhz_mean": "",
    "mem_clock_mhz_min": "lowest sample",
    "mem_clock_mhz_mean": "",
    "throttle_reasons": "in nvidia-smi's words; empty: none",
    "gpu_temperature_c_max": "",
    "cpu_util_mean": "share of the run's cores, used by any program",
    "cpu_util_ours_mean": "used by the ranks",
    "cpu_cores_others_mean": "cores used by other programs",
    "net_sent_bytes_per_s": "all interfaces but the loopback",
    "net_received_bytes_per_s": "likewise",
    "pcie_sent_bytes_per_step": "all GPUs, by their counters, mean rate x step_s",
    "pcie_received_bytes_per_step": "likewise",
    "nvlink_sent_bytes_per_step": "likewise",
    "nvlink_received_bytes_per_step": "likewise",
    "disk_read_bytes_per_s": "whole machine",
    "disk_written_bytes_per_s": "whole machine",
    "swap_in_bytes": "whole machine",
    "swap_out_bytes": "whole machine",
    "final_loss": "mean per sample over the last 10 steps; compare it between runs that trained to the same step",
    "metric_name": "",
    "metric": "validation",
    "train_metric": "on training samples",
    "generalisation_gap": "how much worse on validation samples than on training samples",
    "best_metric": "best point of the curve",
    "time_to_target_s": "null unless train.stop.target was reached",
    "speedup_target_self": "ratio of times to the target",
    "speedup_target_bare": "likewise",
    "stopped_by": "epochs, steps, seconds or target",
    "target": "train.stop.target",
    "trained_s": "seconds of steps, without evaluations",
    "trained_steps": "",
    "trained_epochs": "",
    "first_step_s": "includes compiling",
    "evaluate_s": "all evaluations",
    "points": "of the curve",
    "precision_used": "observed",
    "data_format_used": "observed; with the layout of the kernels where that is another one",
    "compiler_used": "observed: inductor, xla or none",
    "prefetch": "",
    "options": "of the strategy",
    "model_options": "of the model",
    "device_ids": "chosen devices",
    "bind": "which cores processes got",
    "environment": "variables that the hardware's YAML set",
    "transports": "NCCL's, by pair of ranks (NCCL_DEBUG=INFO)",
    "machine": "processor, cores, memory, GPUs in words",
    "job_id": "SLURM's",
    "queued_s": "from submission to start",
    "layout": "order of devices over nodes",
    "optimizer": "",
    "learning_rate": "after the rule, or that of the user's optimizer; null: it has several",
    "learning_rate_rule": "",
    "base_batch": "global batch that the configured rate is for",
    "weight_decay": "",
    "accumulate": "micro-batches per step",
    "max_batch_per_device": "found by measure=max_batch",
    "memory_limit_bytes": "of that search",
    "training_id": "equal where only seed and repeat differ",
    "train_options": "other changed keys of train",
    "stages": "that the model is cut into",
    "micro_batches": "per batch",
    "stage_balance": "mean work of the stages / largest; 1 is even",
    "bubble_share": "1 - work of all stages / (stages x step_s)",
    "bubble_share_expected": "(p - 1) / (m + p - 1), p stages, m micro-batches",
    "pause_share": "of the measured time of your own program: evaluation, saving, ends of epochs; in no rate",
    "data_wait_share": "of its training: waiting in its DataLoader",
}  # fmt: skip


def make_frame(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Return these rows as a frame with fixed column types; a cell that a row lacks is null.

    Each column is made by itself: pandas takes several times as long to guess types from dictionaries, and to cast.
    """
    import pandas as pd

    if not rows:
        return pd.DataFrame({name: pd.array([], dtype=COLUMN_KINDS.get(name, "Float64")) for name in columns})
    try:
        cells = list(zip(*map(itemgetter(*columns), rows), strict=True))
    except KeyError:
        cells = [tuple(row.get(name) for row in rows) for name in columns]
    nulls: dict[str, Any] = {}  # by kind: many columns hold nothing else
    return pd.DataFrame({name: _make_array(name, values, nulls) for name, values in zip(columns, cells, strict=True)})


def convert_types(frame: pd.DataFrame, dtypes: str = "nullable") -> pd.DataFrame:
    """Return a frame for programs: `started_at` as datetimes in UTC, `flags` as lists, and with dtypes="numpy" plain
    numpy columns, whose missing numbers are NaN. Raise InputError for other dtypes."""
    import pandas as pd

    if dtypes not in DTYPES:
        raise InputError(f"dtypes={dtypes!r}: {unknown_name_message('kind of columns', dtypes, DTYPES)}")
    columns = {str(name): frame[name] for name in frame.columns}
    if dtypes == "numpy":
        columns = {name: _to_numpy(column) for name, column in columns.items()}
    for name in set(columns) & {"started_at"}:
        columns[name] = pd.to_datetime(frame[name].astype(object), utc=True, format="ISO8601", errors="coerce")
    for name in set(columns) & {"flags"}:
        columns[name] = pd.Series([(text or "").split() for text in frame[name].astype(object).where(
            frame[name].notna(), None)], frame.index, dtype=object)  # fmt: skip
    return pd.DataFrame(columns, index=frame.index)


def _to_numpy(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return numbers as int64 where none is missing, else as float64; texts, and truth values with gaps, as objects
    with None."""
    import pandas as pd

    kind, has_gaps = str(column.dtype), bool(column.isna().any())
    if kind in ("Float64", "Int64"):
        return column.astype("float64" if has_gaps or kind == "Float64" else "int64")
    if kind == "boolean" and not has_gaps:
        return column.astype("bool")
    return pd.Series(column.to_numpy(dtype=object, na_value=None), column.index, dtype=object)


def make_typed_frame(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], texts: Sequence[str], counts: Sequence[str]
) -> pd.DataFrame:
    """Return rows as a frame of these columns: texts, whole numbers, and else numbers; null where a row has none."""
    import pandas as pd

    kinds = dict.fromkeys(texts, "string") | dict.fromkeys(counts, "Int64")
    return pd.DataFrame(rows, columns=columns).astype({name: kinds.get(name, "Float64") for name in columns})


def _make_array(name: str, values: Sequence[Any], nulls: dict[str, Any]) -> Any:
    import numpy as np
    import pandas as pd

    kind, count = COLUMN_KINDS.get(name, "Float64"), values.count(None)
    if count == len(values):
        if kind not in nulls:
            nulls[kind] = pd.array(values, dtype=kind)
        return nulls[kind]
    if kind == "Float64":
        figures = np.array(values, np.float64)  # nan for None
        return pd.arrays.FloatingArray(figures, np.isnan(figures))
    if kind == "Int64" and not count and (counts := np.array(values)).dtype == np.int64:
        return pd.arrays.IntegerArray(counts, np.zeros(len(counts), bool))
    return pd.array(values, dtype=kind)
