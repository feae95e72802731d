"""The columns of the frame, which do not depend on its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.stats.estimates import Estimate

if TYPE_CHECKING:
    import pandas as pd

DTYPES = ("nullable", "numpy")
RATE = "throughput_samples_per_s"
TEXT, COUNT, NUMBER, TRUTH = "string", "Int64", "Float64", "boolean"  # kinds of values in pandas


@dataclass(frozen=True)
class Column:
    """A column of the frame; its unit stands at the end of its name.

    Repeats that differ become the mean of numbers, all texts, or true where all are. `pool` names another way: the
    first one, each word once (union), null unless there is only one value, the smallest or the largest, and what is
    computed from the throughputs of all repeats (ratio).
    """

    name: str
    kind: str
    about: str = ""  # in docs/reference/results.md, whose order this is
    limits: bool = False  # it has two more columns with its 95 % interval
    pool: str = ""

    @property
    def limit_names(self) -> tuple[str, ...]:
        return limit_names(self.name) if self.limits else ()


def limit_names(name: str) -> tuple[str, str]:
    """Return the names of the columns with the 95 % interval of a figure."""
    stem = name.removesuffix("_samples_per_s")
    return f"{stem}_low", f"{stem}_high"


COLUMNS = (
    Column("run_id", TEXT, "of the run; unique", pool="first"),
    Column("started_at", TEXT, "UTC", pool="first"),
    Column("status", TEXT, "see below"),
    Column("reason", TEXT, "one line, of every status but ok", pool="first"),
    Column("path", TEXT, "folder of the run", pool="first"),
    Column("fingerprint", TEXT, "of the config without repeat, paths and queueing"),
    Column("repeat", COUNT, "number of this start", pool="only"),
    Column("seed", COUNT, "of initial weights and the order of samples"),
    Column("model", TEXT),
    Column("dataset", TEXT),
    Column("strategy", TEXT),
    Column("framework", TEXT),
    Column("framework_version", TEXT),
    Column("backend_used", TEXT, "what carried the gradients, as observed"),
    Column("hardware", TEXT, "name in the config"),
    Column("gpus", COUNT, "devices"),
    Column("nodes", COUNT),
    Column("processes", COUNT),
    Column("scaling", TEXT, "weak or strong"),
    Column("batch_per_device", COUNT, "samples per step"),
    Column("global_batch", COUNT, "samples per step over all devices"),
    Column("precision", TEXT, "requested"),
    Column("data_format", TEXT, "requested"),
    Column("feed", TEXT, "where batches come from"),
    Column("model_params", COUNT),
    Column("gradient_bytes", COUNT, "of one step"),
    Column("flops_per_sample", NUMBER, "of training, counted"),
    Column("throughput_samples_per_s", NUMBER, "all devices, steady state", limits=True, pool="ratio"),
    Column("interval_over", TEXT, "repeats or blocks: what the limits are over"),
    Column("in_turns", TRUTH, "it took turns with other runs, so that ratios to them are formed within rounds"),
    Column("step_s", NUMBER, "mean"),
    Column("step_s_median", NUMBER, "over blocks"),
    Column("step_s_p95", NUMBER, "over blocks"),
    Column("step_cv", NUMBER, "standard deviation over mean, over blocks"),
    Column("epoch_s", NUMBER, "at this throughput"),
    Column("steps_per_epoch", COUNT),
    Column("launch_s", NUMBER, "null where the launching program is on another host"),
    Column("setup_s", NUMBER),
    Column("warmup_s", NUMBER),
    Column("warmup_steps", COUNT),
    Column("steady_after_steps", COUNT, "end of warm-up; null: no steady state within the bounds"),
    Column("measured_s", NUMBER),
    Column("measured_steps", COUNT),
    Column("wall_s", NUMBER, "of the whole run"),
    Column("steady", TRUTH, "no drift detected; null below 16 blocks"),
    Column("flags", TEXT, "see below", pool="union"),
    Column("baseline_self_id", TEXT, "run_id of the same strategy on one device"),
    Column("baseline_bare_id", TEXT, "run_id of one device without a wrapper"),
    Column("baseline_given_id", TEXT, "run_id of the one that --baseline names"),
    Column("speedup_self", NUMBER, "throughput over that baseline's", limits=True, pool="ratio"),
    Column("speedup_bare", NUMBER, "likewise", limits=True, pool="ratio"),
    Column("speedup_given", NUMBER,
           "likewise; null for another model, sample shape or batch", limits=True, pool="ratio"),
    Column("efficiency_self", NUMBER, "speedup / (gpus / the baseline's gpus)", limits=True, pool="ratio"),
    Column("efficiency_bare", NUMBER, "likewise", limits=True, pool="ratio"),
    Column("efficiency_given", NUMBER, "likewise", limits=True, pool="ratio"),
    Column("overhead_share", NUMBER, "1 - self / bare on one device: cost of the wrapper", limits=True),
    Column("mfu", NUMBER,
           "throughput x flops_per_sample / (gpus x peak FLOP/s at precision_used); null: one of them is unknown"),
    Column("sync_isolated_s", NUMBER, "gradient synchronization by itself, slowest rank", limits=True),
    Column("sync_exposed_s", NUMBER, "step with synchronization minus without", limits=True),
    Column("sync_exposed_share", NUMBER, "of the step of the repeat that was probed"),
    Column("sync_per_epoch_s", NUMBER, "exposed"),
    Column("syncs_per_epoch", COUNT, "messages"),
    Column("sync_negotiate_s", NUMBER,
           "Horovod's timeline, rank 0: until all ranks have announced a tensor; phases overlap"),
    Column("sync_queue_s", NUMBER, "likewise: waiting in its queue"),
    Column("sync_memcpy_s", NUMBER, "likewise: in and out of the fusion buffer"),
    Column("sync_allreduce_s", NUMBER, "likewise: sending"),
    Column("imbalance_s", NUMBER, "wait for the slowest device: largest - mean; part of exposed", limits=True),
    Column("data_s", NUMBER, "cost of drawing a batch beside the device's work", limits=True),
    Column("data_share", NUMBER, "of the step of the repeat that was probed"),
    Column("copy_s", NUMBER, "of a batch to the device; null on CPUs", limits=True),
    Column("read_samples_per_s", NUMBER,
           "of a user's Dataset, by one process before the run; null: other data, or not measured"),
    Column("forward_s", NUMBER, limits=True),
    Column("backward_s", NUMBER, limits=True),
    Column("optimizer_s", NUMBER, limits=True),
    Column("collective_kernel_share", NUMBER, "of all operations' own time, under the profiler"),
    Column("collective_step_share", NUMBER, "of the step's wall time, under the profiler"),
    Column("gpu_compute_share", NUMBER,
           "of a step: kernels but NCCL's, by the union of their times under the profiler"),
    Column("gpu_communication_share", NUMBER,
           "likewise: NCCL's kernels, which also wait for their peers, while no other computes"),
    Column("gpu_hidden_share", NUMBER, "of the time of NCCL's kernels: while others compute"),
    Column("gpu_copy_share", NUMBER, "of a step: copies and fills of memory while no kernel runs"),
    Column("host_wait_share", NUMBER,
           "of a step: what the GPU's other times leave, in which the host has started no kernel"),
    Column("kernel_wait_share", NUMBER, "of a step: no kernel runs though the next is started"),
    Column("gpu_kernels_per_step", NUMBER, "that a GPU runs"),
    Column("gpu_util_mean", NUMBER, "share of time in which some kernel ran, not how much of the GPU"),
    Column("gpu_power_w_mean", NUMBER, "all GPUs together"),
    Column("energy_j", NUMBER, "all GPUs, measured phase; without the rest of the machine"),
    Column("energy_from", TEXT, "the GPU's counter, or the integral of power"),
    Column("energy_j_per_sample", NUMBER, "of the GPUs alone"),
    Column("energy_j_per_epoch", NUMBER, "of the GPUs alone"),
    Column("energy_j_to_target", NUMBER, "mean power of the GPUs x time_to_target_s"),
    Column("device_hours_per_epoch", NUMBER, "gpus x epoch_s"),
    Column("device_hours_to_target", NUMBER, "gpus x time_to_target_s"),
    Column("peak_memory_bytes", COUNT, "of the fullest GPU's allocator; null on CPUs", pool="max"),
    Column("rss_peak_bytes", COUNT, "resident, of the largest rank", pool="max"),
    Column("rss_anon_bytes_max", COUNT, "resident without mapped files, all ranks", pool="max"),
    Column("state_bytes", COUNT, "weights, gradients, optimizer state kept between steps, fullest device"),
    Column("sm_clock_mhz_min", NUMBER, "lowest sample", pool="min"),
    Column("sm_clock_mhz_mean", NUMBER),
    Column("mem_clock_mhz_min", NUMBER, "lowest sample", pool="min"),
    Column("mem_clock_mhz_mean", NUMBER),
    Column("throttle_reasons", TEXT, "in nvidia-smi's words; empty: none", pool="union"),
    Column("gpu_temperature_c_max", NUMBER, pool="max"),
    Column("cpu_util_mean", NUMBER, "share of the run's cores, used by any program"),
    Column("cpu_util_ours_mean", NUMBER, "used by the ranks"),
    Column("cpu_cores_others_mean", NUMBER, "cores used by other programs"),
    Column("other_programs", TEXT, "the largest of them, over the whole run", pool="union"),
    Column("net_sent_bytes_per_s", NUMBER, "all interfaces but the loopback"),
    Column("net_received_bytes_per_s", NUMBER, "likewise"),
    Column("pcie_sent_bytes_per_step", NUMBER, "all GPUs, by their counters, mean rate x step_s"),
    Column("pcie_received_bytes_per_step", NUMBER, "likewise"),
    Column("nvlink_sent_bytes_per_step", NUMBER, "likewise"),
    Column("nvlink_received_bytes_per_step", NUMBER, "likewise"),
    Column("disk_read_bytes_per_s", NUMBER, "whole machine"),
    Column("disk_written_bytes_per_s", NUMBER, "whole machine"),
    Column("swap_in_bytes", COUNT, "whole machine"),
    Column("swap_out_bytes", COUNT, "whole machine"),
    Column("final_loss", NUMBER,
           "mean per sample over the last 10 steps; compare it between runs that trained to the same step"),
    Column("metric_name", TEXT),
    Column("metric", NUMBER, "validation"),
    Column("train_metric", NUMBER, "on training samples"),
    Column("generalisation_gap", NUMBER, "how much worse on validation samples than on training samples"),
    Column("best_metric", NUMBER, "best point of the curve"),
    Column("time_to_target_s", NUMBER, "null unless train.stop.target was reached"),
    Column("speedup_target_self", NUMBER, "ratio of times to the target"),
    Column("speedup_target_bare", NUMBER, "likewise"),
    Column("stopped_by", TEXT, "epochs, steps, seconds or target"),
    Column("target", NUMBER, "train.stop.target"),
    Column("trained_s", NUMBER, "seconds of steps, without evaluations"),
    Column("trained_steps", COUNT),
    Column("trained_epochs", NUMBER),
    Column("first_step_s", NUMBER, "includes compiling"),
    Column("evaluate_s", NUMBER, "all evaluations"),
    Column("points", COUNT, "of the curve"),
    Column("precision_used", TEXT, "observed"),
    Column("data_format_used", TEXT, "observed; with the layout of the kernels where that is another one"),
    Column("compiler_used", TEXT, "observed: inductor, xla or none"),
    Column("prefetch", TEXT),
    Column("options", TEXT, "of the strategy"),
    Column("model_options", TEXT, "of the model"),
    Column("device_ids", TEXT, "chosen devices"),
    Column("bind", TEXT, "which cores processes got"),
    Column("environment", TEXT, "variables that the hardware's YAML set"),
    Column("transports", TEXT, "NCCL's, by pair of ranks (NCCL_DEBUG=INFO)"),
    Column("machine", TEXT, "processor, cores, memory, GPUs in words"),
    Column("job_id", TEXT, "SLURM's"),
    Column("queued_s", NUMBER, "from submission to start"),
    Column("layout", TEXT, "order of devices over nodes"),
    Column("optimizer", TEXT),
    Column("learning_rate", NUMBER, "after the rule, or that of the user's optimizer; null: it has several"),
    Column("learning_rate_rule", TEXT),
    Column("base_batch", COUNT, "global batch that the configured rate is for"),
    Column("weight_decay", NUMBER),
    Column("accumulate", COUNT, "micro-batches per step"),
    Column("max_batch_per_device", COUNT, "found by measure=max_batch"),
    Column("memory_limit_bytes", COUNT, "of that search"),
    Column("training_id", TEXT, "equal where only seed and repeat differ"),
    Column("train_options", TEXT, "other changed keys of train"),
    Column("stages", COUNT, "that the model is cut into"),
    Column("micro_batches", COUNT, "per batch"),
    Column("stage_balance", NUMBER, "mean work of the stages / largest; 1 is even"),
    Column("bubble_share", NUMBER, "1 - work of all stages / (stages x step_s)"),
    Column("bubble_share_expected", NUMBER, "(p - 1) / (m + p - 1), p stages, m micro-batches"),
    Column("pause_share", NUMBER,
           "of the measured time of your own program: evaluation, saving, ends of epochs; in no rate"),
    Column("data_wait_share", NUMBER, "of its training: waiting for its next batch"),
)  # fmt: skip
FRAME_COLUMNS = [name for column in COLUMNS for name in (column.name, *column.limit_names)]
COLUMN_KINDS = {column.name: column.kind for column in COLUMNS} | {"repeats": COUNT}  # limits are numbers


def interval_cells(name: str, estimate: Estimate | None) -> dict[str, Any]:
    """Return the columns of a figure and its limits; an infinite one, which the data do not give, is null."""
    figures = (None,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)
    cells = (None if figure is None or math.isinf(figure) else figure for figure in figures)
    return dict(zip((name, *limit_names(name)), cells, strict=True))


def estimate_of(row: Mapping[str, Any], name: str) -> Estimate | None:
    """Return the figure of such columns; a limit that is null there is infinite."""
    value, low, high = (row[column] for column in (name, *limit_names(name)))
    limits = -math.inf if low is None else low, math.inf if high is None else high
    return None if value is None else Estimate(value, *limits)


def make_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], **more_kinds: str) -> pd.DataFrame:
    """Return these rows as a frame with the types of COLUMNS, those without a kind numbers; a cell that a row lacks is
    null."""
    import pandas as pd

    cells, kinds = {name: [row.get(name) for row in rows] for name in columns}, COLUMN_KINDS | more_kinds
    return pd.DataFrame({name: pd.array(values, dtype=kinds.get(name, NUMBER)) for name, values in cells.items()})


def convert_types(frame: pd.DataFrame, dtypes: str = "nullable") -> pd.DataFrame:
    """Return a frame for programs: `started_at` as datetimes in UTC, `flags` as lists, and with dtypes="numpy" plain
    numpy columns, whose missing numbers are NaN. Raise InputError for other dtypes."""
    import pandas as pd

    if dtypes not in DTYPES:
        raise InputError(f"dtypes={dtypes!r}: {unknown_name_message('kind of columns', dtypes, DTYPES)}")
    columns = {str(name): frame[name] for name in frame.columns}
    if dtypes == "numpy":
        columns = {name: _to_numpy(column) for name, column in columns.items()}
    if "started_at" in columns:
        times = frame["started_at"].astype(object)
        columns["started_at"] = pd.to_datetime(times, utc=True, format="ISO8601", errors="coerce")
    if "flags" in columns:
        words = [[] if pd.isna(text) else text.split() for text in frame["flags"]]
        columns["flags"] = pd.Series(words, frame.index, dtype=object)
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
