"""The section `machines` of a report: what the runs ran on, and in what that differs."""

from __future__ import annotations

from collections.abc import Iterator

from scalebench.core.result import Result
from scalebench.core.units import format_count
from scalebench.report import document as doc
from scalebench.report import machine_text, spec
from scalebench.report.flag_text import to_text
from scalebench.report.report_data import ReportData, list_detailed_runs, list_left_out_runs, name_runs

MAX_MACHINES = 12
MAX_RUN_NAMES = 4  # listed for one value
NamedResult = tuple[str, Result]


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if there is no run."""
    rows = list_detailed_runs(report_data)
    if not rows:
        return None
    names = name_runs(rows)
    by_hardware: dict[str, list[NamedResult]] = {}
    for row in rows:
        run = (names[row["run_id"]], report_data.result(row["run_id"]))
        by_hardware.setdefault(to_text(row["hardware"]), []).append(run)
    blocks: list[doc.Block] = []
    for number, (hardware, runs) in enumerate(by_hardware.items()):
        blocks += _make_difference_table(number, hardware, runs)
    by_machine: dict[tuple[str, ...], list[NamedResult]] = {}  # by its name and hardware
    for name, result in (run for members in by_hardware.values() for run in members):
        machine = result.machine
        facts = machine_text.list_hardware_facts(machine), machine_text.make_link_matrix(machine)
        by_machine.setdefault((machine.hostname, *map(str, facts)), []).append((name, result))
    machines = list(by_machine.values())
    for number, members in enumerate(machines[:MAX_MACHINES]):
        blocks += _make_machine_tables(number, members)
    blocks += doc.note_left_out(MAX_MACHINES, len(machines), "machines are shown")
    blocks += list_left_out_runs(report_data)
    return doc.Section("machines", "Machines", blocks)


def _make_difference_table(number: int, hardware: str, runs: list[NamedResult]) -> Iterator[doc.Block]:
    """List the differences within one hardware of the config, whose runs are drawn and compared together."""
    differences = machine_text.find_differences(runs)
    if not differences:
        return
    tags, hosts = {"hardware": hardware}, {result.machine.hostname for _, result in runs}
    where = "one machine" if len(hosts) == 1 else f"{len(hosts)} machines"
    yield doc.Paragraph(
        f"The runs of hardware {hardware}, on {where}, differ in machine or software, as listed below. Where that "
        "affects what was measured, the runs do not compare.",
        "warning",
        tags,
    )
    rows = []
    for fact, value, names in ((fact, *item) for fact, values in differences.items() for item in values.items()):
        more = f"; and {len(names) - MAX_RUN_NAMES} more" if len(names) > MAX_RUN_NAMES else ""
        text = f"{format_count(len(names), 'run')}: {'; '.join(names[:MAX_RUN_NAMES])}{more}"
        rows.append((tags, [fact, value, doc.Cell(text, len(names))]))
    heads, title = ("fact", "value", "runs"), f"What differs: hardware {hardware}"
    yield spec.make_table(f"machine-differences-{number}", title, heads, rows, heads)


def _make_machine_tables(number: int, runs: list[NamedResult]) -> Iterator[doc.Block]:
    machine, hardware = runs[0][1].machine, {result.scale.hardware for _, result in runs}
    tags = {"hardware": next(iter(hardware))} if len(hardware) == 1 else {}
    facts = list(machine_text.list_hardware_facts(machine).items())
    facts += _merge_facts([machine_text.list_software_facts(result) for _, result in runs], None)
    facts += _merge_facts([machine_text.list_variables(result.machine) for _, result in runs], machine_text.NOT_SET)
    caption = f"{format_count(len(runs), 'run')}. Variables and versions are as the runs found them."
    heads, rows = ["fact", "value"], [(tags, fact) for fact in facts]
    yield spec.make_table(f"machine-{number}", machine.hostname, heads, rows, heads, caption)
    if (matrix := machine_text.make_link_matrix(machine)) is not None:
        heads = ["", *(f"GPU {other}" for other in range(len(matrix)))]
        padded = [(tags, [f"GPU {gpu}", *links, *[""] * len(matrix)][: len(heads)]) for gpu, links in enumerate(matrix)]
        title, caption = f"How the GPUs of {machine.hostname} are connected", "In the terms of `nvidia-smi topo -m`."
        yield spec.make_table(f"machine-{number}-links", title, heads, padded, heads, caption)


def _merge_facts(facts: list[machine_text.Facts], absent: str | None) -> list[tuple[str, str]]:
    """Return each fact once, with all values that runs on one machine had."""
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    values = {name: dict.fromkeys(of_run.get(name, absent) for of_run in facts) for name in names}
    return [(name, "; ".join(value for value in each if value is not None)) for name, each in values.items()]
