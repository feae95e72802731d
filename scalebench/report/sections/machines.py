"""The section `machines` of a report: what the runs ran on, and in what that differs."""

from __future__ import annotations

from collections.abc import Iterator

from scalebench.core.result import Result
from scalebench.core.units import format_count
from scalebench.report import document as doc
from scalebench.report.flag_text import to_text
from scalebench.report.machine_text import (
    NOT_SET,
    Facts,
    find_differences,
    list_hardware_facts,
    list_software_facts,
    list_variables,
    make_link_matrix,
)
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
    blocks = [
        block for number, item in enumerate(by_hardware.items()) for block in _make_difference_table(number, *item)
    ]
    machines = _group_by_machine([run for members in by_hardware.values() for run in members])
    for number, members in enumerate(machines[:MAX_MACHINES]):
        blocks += _make_machine_tables(number, members)
    if len(machines) > MAX_MACHINES:
        blocks.append(doc.Paragraph(f"{MAX_MACHINES} of {len(machines)} machines are shown."))
    blocks += list_left_out_runs(report_data)
    return doc.Section("machines", "Machines", blocks)


def _group_by_machine(runs: list[NamedResult]) -> list[list[NamedResult]]:
    """Group runs by their machine's name and hardware."""
    groups: dict[tuple[str, ...], list[NamedResult]] = {}
    for name, result in runs:
        machine = result.machine
        key = (machine.hostname, str(list_hardware_facts(machine)), str(make_link_matrix(machine)))
        groups.setdefault(key, []).append((name, result))
    return list(groups.values())


def _make_difference_table(number: int, hardware: str, runs: list[NamedResult]) -> Iterator[doc.Block]:
    """List the differences within one hardware of the config, whose runs are drawn and compared together."""
    differences = find_differences(runs)
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
    rows = [
        doc.Row([doc.Cell(fact, fact), doc.Cell(value, value), doc.Cell(_list_names(names), len(names))], tags)
        for fact, values in differences.items()
        for value, names in values.items()
    ]
    columns, title = ("fact", "value", "runs"), f"What differs: hardware {hardware}"
    yield doc.Table(f"machine-differences-{number}", title, columns, rows[: doc.MAX_ROWS])


def _make_machine_tables(number: int, runs: list[NamedResult]) -> Iterator[doc.Block]:
    machine = runs[0][1].machine
    hardware = {result.scale.hardware for _, result in runs}
    tags = {"hardware": next(iter(hardware))} if len(hardware) == 1 else {}
    facts = list(list_hardware_facts(machine).items())
    facts += _merge_facts([list_software_facts(result) for _, result in runs], None)
    facts += _merge_facts([list_variables(result.machine) for _, result in runs], NOT_SET)
    rows = [doc.Row([doc.Cell(name, name), doc.Cell(value, value)], tags) for name, value in facts]
    caption = f"{format_count(len(runs), 'run')}. Variables and versions are as the runs found them."
    yield doc.Table(f"machine-{number}", machine.hostname, ("fact", "value"), rows, caption=caption)
    if (matrix := make_link_matrix(machine)) is not None:
        columns = ("", *(f"GPU {other}" for other in range(len(matrix))))
        padded = ([f"GPU {gpu}", *links, *[""] * len(matrix)][: len(columns)] for gpu, links in enumerate(matrix))
        rows = [doc.Row([doc.Cell(text, text) for text in texts], tags) for texts in padded]
        title, caption = f"How the GPUs of {machine.hostname} are connected", "In the terms of `nvidia-smi topo -m`."
        yield doc.Table(f"machine-{number}-links", title, columns, rows, caption=caption)


def _merge_facts(facts: list[Facts], absent: str | None) -> list[tuple[str, str]]:
    """Return each fact once, with all values that runs on one machine had."""
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    values = {name: dict.fromkeys(of_run.get(name, absent) for of_run in facts) for name in names}
    return [(name, "; ".join(value for value in each if value is not None)) for name, each in values.items()]


def _list_names(names: list[str]) -> str:
    more = f"; and {len(names) - MAX_RUN_NAMES} more" if len(names) > MAX_RUN_NAMES else ""
    return f"{format_count(len(names), 'run')}: {'; '.join(names[:MAX_RUN_NAMES])}{more}"
