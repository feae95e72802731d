"""The report in a terminal: the overview of a sweep's runs, and the details of one run.

What was not measured is a dash and its reason. docs/explain/measuring.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from scalebench.analysis import step_breakdown, throughput, user_program
from scalebench.analysis.attribution.causes import AttributedRun, find_causes
from scalebench.analysis.columns import interval_cells
from scalebench.analysis.ranking import join_with_and, list_advice
from scalebench.analysis.rows import generalisation_gap
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core import units
from scalebench.core.machine.peak_flops import TERA
from scalebench.core.result import Result, first_point_at_target
from scalebench.core.stats.steady_state import MIN_BLOCKS
from scalebench.core.units import format_bytes, format_count, format_number, format_percent, format_seconds
from scalebench.core.untrusted import clean_line, clean_text, find_run_file
from scalebench.report.document import THROUGHPUT
from scalebench.report.flag_text import format_flag
from scalebench.report.report_data import read_operations
from scalebench.report.sections import (
    answer,
    attribution,
    batches,
    collectives,
    memory,
    operations,
    parallelism,
    steps,
    training,
)  # fmt: skip
from scalebench.report.tables import STATUS_CHIPS, format_throughput
from scalebench.report.terminal_table import CHIP_STYLES, Part, RunTable, make_fact_table, make_rich_table, render

if TYPE_CHECKING:
    from scalebench.analysis.load import Survey

FactRows = list[tuple[str, str]]


def make_overview(runs: Survey, width: int, wide: bool = False) -> Iterator[Part]:
    """Yield what the terminal shows of a sweep: configurations, the answer, trainings, memory, batches, kinds of
    parallelism, and the operations that some runs measured on request. `width` is in characters; `wide` asks for all
    columns."""
    curves, estimate_ratio = make_curves(runs.pooled), runs.configurations.estimate_ratio
    winners: set[str] = set()  # also the one device to stay on
    for advice in list_advice(curves, estimate_ratio):
        pairs = advice.rows if advice.kind in ("take", "tied") else [advice.one_device] if advice.kind == "stay" else []
        winners |= {pair[1]["run_id"] for pair in pairs if pair is not None}
    yield from RunTable(runs.pooled, runs.baseline_label).list_parts(width, winners, wide)
    yield from _make_paragraph(answer.list_terminal_sentences(curves, estimate_ratio), "bold")
    yield from render(training.make_terminal_tables(runs.frame, wide))
    yield from _make_paragraph(training.list_terminal_sentences(runs.frame))
    if (memory_table := memory.make_terminal_table(runs.pooled)) is not None:
        yield make_rich_table(memory_table)
        yield from _make_paragraph(memory.list_terminal_sentences(runs.pooled, estimate_ratio))
    yield from _make_paragraph(batches.list_terminal_sentences(curves, estimate_ratio))
    yield from render(parallelism.make_terminal_blocks(runs.pooled, estimate_ratio))
    if runs.probe_folders:
        measured, transfers = read_operations(runs.probe_folders)
        yield ""
        if len(measured):
            yield from render(collectives.make_collective_tables(measured))
            yield from collectives.list_comparisons(measured)
        if len(transfers):
            yield from render([collectives.make_bandwidth_table(transfers)])


def _make_paragraph(sentences: Sequence[str], style: str = "") -> Iterator[Part]:
    if sentences:
        yield ""
        yield from (Text(clean_text(sentence), style) for sentence in sentences)


def make_outcome_line(
    result: Result, folder: Path, head: str = "", settings: Sequence[str] = (), note: str = ""
) -> Text:
    """Return `✓ [1/6] ddp 2 devices seed=1  16,581 samples/s ± 3.9 %  14 s` for a run that has ended, or why it has no
    figure: `head` is its place in the sweep, `settings` distinguish it from others, `note` replaces the seconds that
    its processes were alive."""
    scale, repeats = result.scale, result.spec.get("measure", {}).get("repeats") or 1
    name = " ".join([scale.strategy, format_count(scale.gpus, "device"), *settings])
    name += f", repeat {scale.repeat + 1} of {max(repeats, scale.repeat + 1)}" if repeats > 1 else ""
    if result.status == "ok":
        quality, wall_s, turns = result.quality, result.phases.wall_s, "" if result.cohort is None else " in turns"
        # A training also has the level that it reached; a search has its largest batch alone.
        level = f"{quality.metric_name} {quality.metric:.3g}" if quality.curve and quality.metric is not None else ""
        cells = interval_cells(THROUGHPUT, throughput.Measurement(result).throughput)
        figure = format_throughput({**cells, "interval_over": None}, " samples/s")
        if quality.max_batch is not None:
            figure, level = describe_largest_batch(result), ""
        texts = [figure, level, note or ("" if wall_s is None else f"{wall_s:.0f} s{turns}")]
        texts += list_model_remarks(result)
    else:
        log = f" (log: {folder / result.log})" if result.log and find_run_file(folder, result.log) else ""
        texts = [f"{result.status}: {result.reason}{log}"]
    symbol = {"ok": "✓", "unsupported": "-"}.get(result.status, "✗")
    parts = [" ".join(filter(None, [symbol, head, clean_line(name)])), *map(clean_line, texts)]
    line = Text("  ".join(filter(None, parts)), "dim" if result.status == "unsupported" else "")
    line.stylize(CHIP_STYLES[STATUS_CHIPS.get(result.status, "bad")], 0, 1)
    return line


def list_model_remarks(result: Result) -> list[str]:
    """List what was remarked on a user's model, each sentence once."""
    return list(dict.fromkeys(text for rank in result.ranks for text in rank.model_remarks.values()))


def list_program_facts(result: Result) -> FactRows:
    """List what was seen of a user's program; nothing of other runs."""
    script = result.ranks[0].script if result.ranks else None
    if script is None:
        return []
    of = f" of {script.optimizers} optimizers" if script.optimizers > 1 else ""
    other = {"call": "a call of scalebench.step", "batch": "a batch"}
    step = other.get(script.step_kind, "a batch of fit" if script.leader is None else f"a step of {script.leader}{of}")
    facts = [("a step is", f"{step}; {script.steps:,} in all")]
    kinds = join_with_and(user_program.name_pauses(result))
    outside = f"the measured time, in no rate: {kinds}" if kinds else "the measured time"
    for name, share, text in (
        ("beside training", user_program.pause_share(result), outside),
        ("waits for samples", user_program.data_wait_share(result), "a step"),
        ("scalebench's hooks", user_program.hooks_share(result), "a step"),
    ):
        if share is not None:
            facts.append((name, f"{format_percent(share)} of {text}"))
    return facts


def describe_largest_batch(result: Result) -> str:
    """Return `the largest batch is 21 per device, 42 global; 22 does not fit within 500 MB a process (7 tries)`. Raises
    ValueError for a run that did not search for it, or in vain."""
    search = result.quality.max_batch
    if search is None or search.batch_per_device is None:
        raise ValueError(f"{result.run_id} found no largest batch")
    batch, gpus = search.batch_per_device, result.scale.gpus
    tries = f"{len(search.trials)} {'try' if len(search.trials) == 1 else 'tries'}"
    within = "" if search.limit_bytes is None else f" within {format_bytes(search.limit_bytes)} a process"
    if search.bounded_by == "data":
        samples = f"{batch * gpus} of the {result.workload.train_samples} training samples"
        reason = f"it fits{within}, and the data set has no larger one ({samples}; {tries}): raise dataset.size"
    else:
        smallest = min(trial.batch_per_device for trial in search.trials if trial.status != "ok")
        reason = f"{smallest} does not fit{within or ' into memory'} ({tries})"
    return f"the largest batch is {batch} per device, {batch * gpus} global; {reason}"


def make_details(result: Result, folder: Path, case: AttributedRun | None = None) -> Iterator[Part]:
    """Yield the details of a successful run in `folder`: where the time of a step goes, and what the run used. `case`
    holds its lost efficiency, if it has a baseline."""
    if result.status != "ok":
        return
    yield f"{folder}: {result.scale.strategy} gpus={result.scale.gpus}"
    facts = [*list_headline(result), *list_training_facts(result)]
    facts += [("model", text) for text in list_model_remarks(result)]
    data, rate = result.workload, throughput.Measurement(result).throughput
    of_training = None if rate is None else rate.value
    reading = steps.describe_slow_reading(data.dataset, data.read_samples_per_s, "the training", of_training)
    facts += [] if reading is None else [("data", reading)]
    yield make_fact_table([*facts, *list_program_facts(result), *list_files(result, folder)])
    yield from render(parallelism.make_stage_blocks(result))
    if any(rank.probes is None for rank in result.ranks):
        yield f"where the time of a step goes was not measured: {step_breakdown.explain_missing_probes(result)}"
    else:
        yield "where the time of a step goes"
        yield make_rich_table(steps.make_run_breakdown(result))
        yield from render(operations.make_run_blocks(result))
    if case is not None:
        yield "where the lost efficiency went"
        yield make_rich_table(attribution.make_run_table(case.attribution))
        yield from (cause.sentence() for cause in find_causes(case))
    if usage := list_usage(result):
        yield "what the run used"
        yield make_fact_table(usage)


def list_headline(result: Result) -> FactRows:
    """List throughput, model FLOPs utilization, warm-up, and whether the series was steady."""
    measured = throughput.Measurement(result)
    rate, rows = measured.throughput, []
    if rate is not None and math.isfinite(rate.low):
        rows.append(("throughput", f"{units.format_rate(rate, 'samples/s')}, 95 % over blocks of this repeat"))
    elif rate is not None:
        rows.append(("throughput", f"{format_number(rate.value)} samples/s, too few blocks for an interval"))
    mfu, peak = measured.mfu, throughput.peak_flops(result)
    if mfu is not None and peak is not None:
        peaks = f"{format_number(peak / TERA)} TFLOP/s, the peak of its devices at {result.workload.precision_used}"
        rows.append(("MFU", f"{format_percent(mfu)} of {peaks}"))
    steadiness = "yes, no drift detected" if measured.steady else f"no: {format_flag('drifts')}"
    if measured.steady is None:
        blocks = min((len(rank.block_s) for rank in result.ranks), default=0)
        steadiness = f"unknown: {blocks} of the {MIN_BLOCKS} blocks that it takes; a larger measure.min_s gives more"
    if any("sigterm" in rank.settings_used for rank in result.ranks):
        rows.append(("step", SIGTERM_BROADCAST))
    first, end = result.ranks[0], result.ranks[0].steady_after_steps
    steps = len(first.warmup_block_s) * (first.warmup_block_steps or 0)
    over = f"its end was not found within {steps:,} steps"
    if end is not None:
        end_s = sum(first.warmup_block_s[: end // (first.warmup_block_steps or 1)])
        over = f"over after {end:,} steps, {format_seconds(end_s)}"
    left_out = f"{steps:,} steps and {format_seconds(sum(first.warmup_block_s))} were left out"
    return [*rows, ("warm-up", f"{over}; {left_out}"), ("steady", steadiness)]


def list_training_facts(result: Result) -> FactRows:
    """List how long a training to a stop was, how good the model became, and when it reached its target; nothing for a
    run that measured its throughput."""
    quality, curve = result.quality, result.quality.curve
    if not curve:
        return []
    last, metric = curve[-1], quality.metric_name or ""
    length = f"{last.epochs:.3g} epochs, {last.step:,} steps, {format_seconds(last.train_s)}"
    if quality.first_step_s is not None:
        length += f" and {format_seconds(quality.first_step_s)} for the first step, which compiles"
    facts = [("training", length if quality.stopped_by is None else f"{length}; stopped by {quality.stopped_by}")]

    if (value := last.metrics.get(metric)) is not None:
        level, gap = f"{metric} {value:.4g}", generalisation_gap(metric, value, last.train_metrics.get(metric))
        if gap is not None:
            level += f", {abs(gap):.3g} {'worse' if gap >= 0 else 'better'} than on training samples"
        facts.append(("validation", level))

    target = (result.spec.get("train", {}).get("stop") or {}).get("target")
    if target is not None:
        point, how = first_point_at_target(curve, metric, target), "was not reached"
        if point is not None:
            how = f"after {format_seconds(point.train_s)} of training, {point.epochs:.3g} epochs"
        facts.append(("target", f"{metric} {target:g} {how}"))

    evaluate_s = format_seconds(sum(point.evaluate_s for point in curve))
    points = f"{len(curve):,} {'point' if len(curve) == 1 else 'points'}"
    return [*facts, ("evaluation", f"{points}, {evaluate_s}, outside the training's seconds")]


def list_files(result: Result, folder: Path) -> FactRows:
    """List the traces and the monitor's series, as far as they are in the run's folder: a record may name any file."""
    files = [("trace", result.trace, " (opens in ui.perfetto.dev or chrome://tracing)")]
    traces = [(rank.rank, rank.probes.trace) for rank in result.ranks if rank.probes is not None]
    files += [(f"trace of rank {rank}", name, ", not merged") for rank, name in traces]
    files.append(("monitor", result.monitor.file, ""))
    return [(kind, f"{folder / name}{note}") for kind, name, note in files if name and find_run_file(folder, name)]


SIGTERM_BROADCAST = (
    "includes Lightning's broadcast before each batch, by which ranks learn of a SIGTERM, and the wait for it; "
    "strategy.options.sigterm=never leaves them out"
)
# Fields of the monitor's record by row, with their text and format; fields that were not measured are left out.
USAGE_ROWS: dict[str, list[tuple[str, str, Callable[[Any], str]]]] = {
    "processor cores": [
        ("cpu_util_mean", "{} of those the run may use were busy", format_percent),
        ("cpu_util_ours_mean", "{} with the run's processes", format_percent),
        ("cpu_cores_others_mean", "other programs took {} cores' worth", format_number),
        ("other_programs", "the largest of them {}", " ".join),
    ],
    "memory at most": [
        ("rss_bytes_max", "{}, all ranks together", format_bytes),
        ("rss_anon_bytes_max", "{} without mapped files", format_bytes),
        ("memory_available_bytes_min", "{} of the machine were left", format_bytes),
    ],
    "swapped": [("swap_in_bytes", "{} in", format_bytes), ("swap_out_bytes", "{} out", format_bytes)],
    "GPUs": [
        ("gpu_util_mean", "busy {} of the time", format_percent),
        ("gpu_power_w_mean", "{} W, all together", format_number),
        ("energy_j", "{} J", format_number),
        ("gpu_temperature_c_max", "{} degrees C at most", format_number),
    ],
    "GPU clocks": [
        ("sm_clock_mhz_mean", "cores {} MHz", format_number),
        ("sm_clock_mhz_min", "at least {}", format_number),
        ("mem_clock_mhz_mean", "memory {} MHz", format_number),
        ("mem_clock_mhz_min", "at least {}", format_number),
        ("throttle_reasons", "{}", lambda names: f"held back by {' '.join(names)}" if names else "not throttled"),
    ],
    "network": [
        ("net_sent_bytes_per_s", "{}/s sent", format_bytes),
        ("net_received_bytes_per_s", "{}/s received", format_bytes),
        ("loopback_bytes_per_s", "{}/s within the machine", format_bytes),
        ("infiniband_sent_bytes_per_s", "{}/s sent over InfiniBand", format_bytes),
        ("infiniband_received_bytes_per_s", "{}/s received over InfiniBand", format_bytes),
    ],
    "disks": [
        ("disk_read_bytes_per_s", "{}/s read", format_bytes),
        ("disk_written_bytes_per_s", "{}/s written", format_bytes),
    ],
}


def list_usage(result: Result) -> FactRows:
    """List what the run used of processors, memory, GPUs, network and disks: measured by the monitor while blocks were
    timed, and by each rank for itself."""
    rows = []
    for name, fields in USAGE_ROWS.items():
        values = [(getattr(result.monitor, field), template, show) for field, template, show in fields]
        rows.append((name, ", ".join(text.format(show(value)) for value, text, show in values if value is not None)))
    ranks = result.ranks
    uuids_by_name: dict[str, list[str]] = {}  # in the order of ranks, with as much as CUDA_VISIBLE_DEVICES needs
    for gpu in (gpu for rank in ranks for gpu in rank.gpus if gpu is not None):
        name, _, uuid = gpu.rpartition(" ")
        uuids_by_name.setdefault(name, []).append("-".join(uuid.split("-")[:2]))
    rows.append(("GPUs used", "; ".join(f"{name}: {' '.join(uuids)}" for name, uuids in uuids_by_name.items())))
    peaks = {
        "{}": _find_largest([rank.rss_peak_bytes for rank in ranks]),
        "{} without mapped files": _find_largest([rank.rss_anon_peak_bytes for rank in ranks]),
        "{} on a device": _find_largest([peak for rank in ranks for peak in rank.peak_memory_bytes]),
    }
    texts = [text.format(format_bytes(peak)) for text, peak in peaks.items() if peak is not None]
    rows.append(("memory of a rank at most", ", ".join(texts)))
    if (state := _find_largest([state for rank in ranks for state in rank.state_bytes or [None]])) is not None:
        parameters = result.workload.model_params
        each = f", {state / parameters:.1f} B a parameter" if parameters else ""
        text = f"{format_bytes(state)} of weights, gradients and optimizer's state{each}"
        rows.append(("state of a device", text))
    rows.append(("left out", ", ".join(dict.fromkeys(name for rank in ranks for name in rank.left_out or []))))
    rows.append(("not measured", result.monitor.reason or ""))
    return [(name, text) for name, text in rows if text]


def _find_largest(values: Sequence[int | None]) -> int | None:
    """Return the largest value, None unless all are known."""
    measured = [value for value in values if value is not None]
    return max(measured) if measured and len(measured) == len(values) else None
