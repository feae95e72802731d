"""The report in a terminal: the overview of a sweep's runs, and the details of one run.

What was not measured is a dash and its reason. docs/explain/measuring.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from scalebench.analysis import step_breakdown, throughput, user_program
from scalebench.analysis.attribution.causes import AttributedRun, find_causes
from scalebench.analysis.columns import COLUMNS, interval_cells
from scalebench.analysis.ranking import join_with_and, list_advice
from scalebench.analysis.rows import summarize_run
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core import units
from scalebench.core.result import Result
from scalebench.core.untrusted import clean_line, clean_text, find_run_file
from scalebench.report import document as doc
from scalebench.report import sections, tables
from scalebench.report.flag_text import explain_flag
from scalebench.report.report_data import read_operations
from scalebench.report.terminal_table import CHIP_STYLES, Part, RunTable, UncutTable, make_rich_table, make_text, render

if TYPE_CHECKING:
    from scalebench.analysis.load import Survey

# Columns of the frame; those without a value are left out.
RUN_COLUMNS = (
    "throughput_samples_per_s tokens_per_s tokens_per_s_per_device step_s step_s_p95 epoch_s mfu warmup_s warmup_steps "
    "steady_after_steps steady trained_epochs trained_steps trained_s first_step_s stopped_by metric_name metric "
    "train_metric generalisation_gap target time_to_target_s evaluate_s points read_samples_per_s pause_share "
    "data_wait_share"
).split()
USAGE_COLUMNS = (
    "cpu_util_mean cpu_util_ours_mean cpu_cores_others_mean other_programs rss_peak_bytes rss_anon_bytes_max "
    "peak_memory_bytes state_bytes swap_in_bytes swap_out_bytes gpu_util_mean gpu_power_w_mean energy_j energy_from "
    "gpu_temperature_c_max sm_clock_mhz_mean sm_clock_mhz_min mem_clock_mhz_mean mem_clock_mhz_min throttle_reasons "
    "net_sent_bytes_per_s net_received_bytes_per_s disk_read_bytes_per_s disk_written_bytes_per_s"
).split()
SIGTERM_BROADCAST = (
    "includes Lightning's broadcast before each batch, by which ranks learn of a SIGTERM, and the wait for it; "
    "strategy.options.sigterm=never leaves them out"
)


def make_overview(runs: Survey, width: int, wide: bool = False) -> Iterator[Part]:
    """Yield what the terminal shows of a sweep: configurations, trainings, memory, batches, the operations that some
    runs measured on request, and the answer. `width` is in characters; `wide` asks for all columns and tables."""
    curves, estimate_ratio = make_curves(runs.pooled), runs.configurations.estimate_ratio
    winners: set[str] = set()  # The one device to stay on is one of them.
    for advice in list_advice(curves, estimate_ratio):
        pairs = advice.rows if advice.kind in ("take", "tied") else [advice.one_device] if advice.kind == "stay" else []
        winners |= {pair[1]["run_id"] for pair in pairs if pair is not None}
    yield from RunTable(runs.pooled, runs.baseline_label).list_parts(width, winners, wide)
    yield from render(sections.training.make_terminal_tables(runs.frame, wide))
    yield from _make_paragraph(sections.training.list_terminal_sentences(runs.frame))
    if wide and (memory_table := sections.memory.make_terminal_table(runs.pooled)) is not None:
        yield make_rich_table(memory_table)
    yield from _make_paragraph(sections.memory.list_terminal_sentences(runs.pooled, estimate_ratio))
    yield from _make_paragraph(sections.batches.list_terminal_sentences(curves, estimate_ratio))
    if runs.probe_folders:
        measured, transfers = read_operations(runs.probe_folders)
        yield ""
        if len(measured):
            yield from render(sections.collectives.make_collective_tables(measured))
        if len(transfers):
            yield from render([sections.collectives.make_bandwidth_table(transfers)])
    # The answer is the last thing that a reader sees of a long output.
    yield from _make_paragraph(sections.answer.list_terminal_sentences(curves, estimate_ratio), "bold")


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
    name = " ".join([scale.strategy, units.format_count(scale.gpus, "device"), *settings])
    name += f", repeat {scale.repeat + 1} of {max(repeats, scale.repeat + 1)}" if repeats > 1 else ""
    if result.status == "ok":
        quality, wall_s, turns = result.quality, result.phases.wall_s, "" if result.cohort is None else " in turns"
        # A training also has the level that it reached; a search has its largest batch alone.
        level = f"{quality.metric_name} {quality.metric:.3g}" if quality.curve and quality.metric is not None else ""
        rate = throughput.Measurement(result).throughput
        cells = interval_cells(doc.THROUGHPUT, rate) | throughput.token_cells(result, rate)
        figure = tables.format_throughput({**cells, "interval_over": None}, " samples/s")
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
    line.stylize(CHIP_STYLES[tables.STATUS_CHIPS.get(result.status, "bad")], 0, 1)
    return line


def list_model_remarks(result: Result) -> list[str]:
    """List what was remarked on a user's model, each sentence once."""
    return list(dict.fromkeys(text for rank in result.ranks for text in rank.model_remarks.values()))


def describe_largest_batch(result: Result) -> str:
    """Return `the largest batch is 21 per device, 42 global; 22 does not fit within 500 MB a process (7 tries)`. Raises
    ValueError for a run that did not search for it, or did not find it."""
    search = result.quality.max_batch
    if search is None or search.batch_per_device is None:
        raise ValueError(f"{result.run_id} found no largest batch")
    batch, gpus = search.batch_per_device, result.scale.gpus
    tries = f"{len(search.trials)} {'try' if len(search.trials) == 1 else 'tries'}"
    within = "" if search.limit_bytes is None else f" within {units.format_bytes(search.limit_bytes)} a process"
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
    cells = summarize_run(result, folder).cells
    yield _make_column_table(cells, RUN_COLUMNS)
    yield from render(f"{name}: {text}" for name, text in list_remarks(result, cells, folder))
    yield from render(sections.stages.make_stage_blocks(result))
    if any(rank.probes is None for rank in result.ranks):
        yield f"where the time of a step goes was not measured: {step_breakdown.explain_missing_probes(result)}"
    else:
        yield sections.steps.describe_parts(cells)
        yield _make_column_table(cells, sections.steps.RUN_COLUMNS)
        if missing := sections.steps.explain_missing(result, cells, sections.steps.REASONS):
            yield make_text(f"not measured: {missing}")
        if (timeline := result.sync.timeline) is not None and timeline.reason:
            yield make_text(f"no phases of synchronization: {timeline.reason}")
        yield from render(sections.operations.make_run_blocks(result))
    if case is not None:
        yield "where the lost efficiency went"
        yield make_rich_table(sections.attribution.make_run_table(case.attribution))
        yield from (cause.sentence() for cause in find_causes(case))
    if any(cells[name] is not None for name in USAGE_COLUMNS):
        yield "what the run used"
        yield _make_column_table(cells, USAGE_COLUMNS)


def _make_column_table(cells: Mapping[str, Any], names: Sequence[str]) -> UncutTable:
    """Make a row for each of these columns of the frame that has a value."""
    abouts = {column.name: column.about for column in COLUMNS}
    rows = [
        doc.Row([doc.Cell(name), doc.Cell(tables.make_cell(cells, name).text), doc.Cell(abouts[name])])
        for name in names
        if cells[name] is not None
    ]
    return make_rich_table(doc.Table("columns", "", ("", "", ""), rows), show_header=False)


def list_remarks(result: Result, cells: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """List what no figure says: flags, what was seen of a user's model, data and program, what was left out, and the
    files of the run, as far as they are in its folder: a record may name any file."""
    ranks, data, rate = result.ranks, result.workload, throughput.Measurement(result).throughput
    remarks = [("flag", explain_flag(flag)) for flag in (cells["flags"] or "").split()]
    remarks += [("model", text) for text in list_model_remarks(result)]
    of_training = None if rate is None else rate.value
    reading = sections.steps.describe_slow_reading(data.dataset, data.read_samples_per_s, "the training", of_training)
    remarks += [] if reading is None else [("data", reading)]
    if (script := ranks[0].script) is not None:
        of = f" of {script.optimizers} optimizers" if script.optimizers > 1 else ""
        step = "a batch of fit" if script.leader is None else f"a step of {script.leader}{of}"
        step = {"call": "a call of scalebench.step", "batch": "a batch"}.get(script.step_kind, step)
        remarks.append(("a step is", f"{step}; {script.steps:,} in all"))
        if kinds := user_program.name_pauses(result):
            remarks.append(("pauses", f"in no rate: {join_with_and(kinds)}"))
        if (share := user_program.hooks_share(result)) is not None:
            remarks.append(("scalebench's hooks", f"{units.format_percent(share)} of a step"))
    if any("sigterm" in rank.settings_used for rank in ranks):
        remarks.append(("step", SIGTERM_BROADCAST))
    gpus = dict.fromkeys(gpu for rank in ranks for gpu in rank.gpus if gpu is not None)
    remarks += [("GPUs used", ", ".join(gpus))] if gpus else []
    left_out = dict.fromkeys(name for rank in ranks for name in rank.left_out or [])
    remarks += [("left out", ", ".join(left_out))] if left_out else []
    remarks += [("not measured", result.monitor.reason)] if result.monitor.reason else []
    files = [("trace", result.trace, " (opens in ui.perfetto.dev or chrome://tracing)")]
    files += [(f"trace of rank {rank.rank}", rank.probes.trace, ", not merged") for rank in ranks if rank.probes]
    files.append(("monitor", result.monitor.file, ""))
    files = [each for each in files if each[1] and find_run_file(folder, each[1])]
    return [*remarks, *((kind, f"{folder / name}{note}") for kind, name, note in files if name)]
