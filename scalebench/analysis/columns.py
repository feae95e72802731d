"""The columns of the frame and their types, which do not depend on its rows."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

RATE = "throughput_samples_per_s"
FRAME_COLUMNS = (
    "run_id started_at status reason path fingerprint repeat seed model dataset strategy framework "
    "framework_version backend_used hardware gpus nodes processes scaling batch_per_device global_batch "
    "precision data_format feed model_params gradient_bytes flops_per_sample throughput_samples_per_s "
    "throughput_low throughput_high interval_over step_s epoch_s steps_per_epoch launch_s setup_s warmup_s "
    "warmup_steps measured_s measured_steps wall_s steady flags baseline_self_id baseline_bare_id speedup_self "
    "speedup_self_low speedup_self_high speedup_bare speedup_bare_low speedup_bare_high efficiency_self "
    "efficiency_self_low efficiency_self_high efficiency_bare efficiency_bare_low efficiency_bare_high mfu "
    "sync_isolated_s sync_exposed_s sync_exposed_share sync_per_epoch_s imbalance_s data_share forward_s "
    "backward_s optimizer_s gpu_util_mean gpu_power_w_mean energy_j_per_sample peak_memory_bytes "
    "sm_clock_mhz_min mem_clock_mhz_min throttle_reasons cpu_util_mean rss_peak_bytes final_loss metric_name "
    "metric time_to_target_s precision_used data_format_used compiler_used prefetch options "
    "overhead_share overhead_share_low overhead_share_high "
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
    "training_id train_options "
    "stages micro_batches stage_balance bubble_share bubble_share_expected state_bytes "
    "step_s_median step_s_p95 step_cv"
).split()
TEXT_COLUMNS = (
    "run_id started_at status reason path fingerprint model dataset strategy framework framework_version "
    "backend_used hardware scaling precision data_format feed interval_over flags baseline_self_id "
    "baseline_bare_id throttle_reasons metric_name precision_used data_format_used compiler_used prefetch options "
    "device_ids bind environment transports energy_from baseline_given_id machine job_id layout "
    "optimizer learning_rate_rule stopped_by training_id train_options"
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
}  # the others are Float64


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
