"""The section on operations: those that take the time of a step, what GPUs do in it, and the traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalebench.analysis import step_breakdown, throughput
from scalebench.analysis.columns import select_heads
from scalebench.analysis.scaling_curves import group_curves
from scalebench.core import units
from scalebench.core.probe_record import Profile
from scalebench.core.result import Result
from scalebench.core.untrusted import find_run_file
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.report_data import ReportData, list_detailed_runs, list_left_out_runs, name_runs
from scalebench.report.report_data import Row as RunRow
from scalebench.report.sections import steps

MAX_PROFILED_RUNS = 6
MAX_OPERATIONS = 10
MAX_NAME_LENGTH = 60
GPU_CAPTION = (
    "By the union of the times of kernels under the profiler, over the step without it; the wait for the host is what "
    "they leave. Means over the ranks."
)
TRACE_CAPTION = "A trace opens in the browser: drop the file into ui.perfetto.dev, or load it in chrome://tracing."


def list_blocks(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield the parts of a step, then the operations of the best and the largest runs, and all traces."""
    curves = report_data.curves
    if not curves:
        return
    rows = list_detailed_runs(report_data)
    names, row_of = name_runs(rows), {row["run_id"]: row for row in rows}
    # The fastest run of each group comes first, then the run on the most devices of each curve.
    groups = ([row for curve in members for row in curve.rows] for _, members in group_curves(curves))
    best = [max(members, key=lambda row: float(row[doc.THROUGHPUT]))["run_id"] for members in groups]
    selection = dict.fromkeys(map(str, [*best, *(curve.rows[-1]["run_id"] for curve in curves)]))
    run_ids = [run_id for run_id in selection if run_id in row_of]
    text = "Where the time of a step goes was not measured: these runs have no probes (measure.probes)."
    yield from [*steps.step_groups(report_data)] or [doc.Paragraph(text)]
    without: dict[str, list[str]] = {}  # reason -> runs
    gpu_rows: list[tuple[str, doc.Tags, Mapping[str, Any]]] = []
    for number, run_id in enumerate(run_ids[:MAX_PROFILED_RUNS]):
        result, name, tags = report_data.result(run_id), names[run_id], doc.get_tags(row_of[run_id])
        if (profile := _get_profile(result)) is None:
            without.setdefault(_explain_missing_profile(result), []).append(name)
            continue
        yield make_operations_table(profile, f"operations-{number}", f"Top operations: {name}", tags)
        yield doc.Paragraph(f"{name}: {describe_collectives(result)}.", tags=tags)
        cells = step_breakdown.gpu_cells(result, throughput.Measurement(result).step_s)
        if (sentence := describe_gpus(cells)) is not None:
            yield doc.Paragraph(f"{name}: {sentence}.", tags=tags)
            gpu_rows.append((name, tags, cells))
    runs, tags_of_runs = [name for name, _, _ in gpu_rows], [tags for _, tags, _ in gpu_rows]
    series = [doc.Series(verb, runs, [cells[column] for _, _, cells in gpu_rows], point_tags=tags_of_runs)
              for column, verb in GPU_PARTS.items()]  # fmt: skip
    axes, title = (doc.Axis("run"), doc.Axis("share of a step", percent=True)), "What the GPUs do in a step"
    yield doc.Chart("gpu-time", title, *axes, series, "stacked", GPU_CAPTION)
    yield from (doc.Paragraph(f"No operations of {'; '.join(runs)}: {reason}.") for reason, runs in without.items())
    yield from doc.note_left_out(MAX_PROFILED_RUNS, len(run_ids), "best and largest runs have their operations shown")
    yield _make_trace_table(report_data, rows, names)
    yield from list_left_out_runs(report_data)


def make_run_blocks(result: Result) -> Iterator[doc.Table | str]:
    """Yield the largest operations of rank 0 for the terminal, and the shares of collectives."""
    profile = _get_profile(result)
    if profile is None:
        yield f"top operations: - ({_explain_missing_profile(result)})"
        return
    title = f"top operations of rank 0, {profile.steps} steps under the profiler, which slows them down"
    yield make_operations_table(profile, "operations", title)
    yield describe_collectives(result)
    if (sentence := describe_gpus(step_breakdown.gpu_cells(result, throughput.Measurement(result).step_s))) is not None:
        yield sentence


def _get_profile(result: Result) -> Profile | None:
    probes = result.ranks[0].probes if result.ranks else None
    return None if probes is None else probes.profile


def _explain_missing_profile(result: Result) -> str:
    if any(rank.probes is None for rank in result.ranks):
        return "they were run without probes"
    return step_breakdown.unmeasured_reasons(result).get("profile", "there is no profile")


def make_operations_table(profile: Profile, table_id: str, title: str, tags: doc.Tags | None = None) -> doc.Table:
    """Make the table of the operations with the largest own time."""
    rows = []
    has_devices = len({operation.device for operation in profile.operations[:MAX_OPERATIONS]}) > 1
    for operation in profile.operations[:MAX_OPERATIONS]:
        name = operation.name
        text = name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 3]}..."
        share = operation.self_s / profile.kernel_s if profile.kernel_s else None
        rows.append((tags or {}, {
            "operation": doc.Cell(text, name), **({"device": operation.device} if has_devices else {}),
            "calls per step": doc.Cell(f"{operation.calls:,.4g}", operation.calls),
            "own time per step": (operation.self_s, units.format_seconds),
            "of all operations": doc.Cell("-" if share is None else units.format_percent(share), share),
            "collective": "collective" if operation.collective else "",
        }))  # fmt: skip
    caption = (
        f"The largest by own time, on rank 0, over {profile.steps} steps under the framework's profiler, which "
        "slows them down: the times compare with each other, but not with the step's own."
    )
    return spec.make_table(table_id, title, rows, ("device", "collective"), caption)


def describe_collectives(result: Result) -> str:
    """Give both shares of collectives in one sentence, since they are easily confused."""
    of_kernels, of_steps = step_breakdown.collective_shares(result)
    if of_kernels is None or of_steps is None:
        return "collectives: the profile shows no operation that carries data between devices"
    return (
        f"collectives: {units.format_percent(of_kernels)} of the time of all operations, "
        f"{units.format_percent(of_steps)} of the wall time of a step; much of it may overlap with computing, and "
        "exposed sync is what they add to a step"
    )


GPU_PARTS = select_heads("gpu_compute_share gpu_communication_share gpu_copy_share host_wait_share kernel_wait_share")


def describe_gpus(row: Mapping[str, Any]) -> str | None:
    """Return in a sentence what the GPUs of a row do in a step; None where that is not known."""
    parts = [(verb, row[name]) for name, verb in GPU_PARTS.items() if row.get(name) is not None]
    if not parts:
        return None
    shares = ", ".join(f"{verb} {units.format_percent(share)}" for verb, share in parts)
    hidden = row.get("gpu_hidden_share")
    beside = "" if hidden is None else f"; {units.format_percent(hidden)} of communication is hidden behind computing"
    return f"of a step the GPUs {shares}; {row['gpu_kernels_per_step']:,.0f} kernels a step{beside}"


def _make_trace_table(report_data: ReportData, rows: Sequence[RunRow], names: dict[str, str]) -> doc.Table:
    """Link the traces, of all ranks or of one."""
    links = []
    for row in rows:
        result = report_data.result(row["run_id"])
        traces = [("all ranks", result.trace)]
        traces += [(f"rank {rank.rank}", rank.probes.trace) for rank in result.ranks if rank.probes is not None]
        for ranks, file in traces:
            path = None if file is None else find_run_file(report_data.folders[row["run_id"]], file)
            if path is not None:
                link = report_data.make_link(path)
                values = {"run": names[row["run_id"]], "of": ranks, "file": doc.Cell(link, link, link)}
                links.append((doc.get_tags(row), values))
    return spec.make_table("traces", "Traces", links, ("run", "of", "file"), TRACE_CAPTION)
