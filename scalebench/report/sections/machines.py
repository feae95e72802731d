"""The section on machines: which ones the runs were on, and in what these differ."""

from __future__ import annotations

from collections.abc import Iterator

from scalebench.analysis.identity import group_by
from scalebench.core.result import Result
from scalebench.core.units import format_count
from scalebench.report import document as doc
from scalebench.report import machine_text, spec
from scalebench.report.report_data import ReportData, list_detailed_runs, list_left_out_runs, name_runs

MAX_RUN_NAMES = 4  # listed for one value
NamedResult = tuple[str, Result]


def list_blocks(report_data: ReportData) -> Iterator[doc.Block]:
    rows = list_detailed_runs(report_data)
    names = name_runs(rows)
    runs = [(names[row["run_id"]], report_data.result(row["run_id"])) for row in rows]
    hardware = group_by(zip(rows, runs, strict=True), lambda pair: str(pair[0]["hardware"]))
    by_hardware = {name: [run for _, run in pairs] for name, pairs in hardware.items()}
    for number, (name, members) in enumerate(by_hardware.items()):
        yield from _list_differences(number, name, members)

    def describe_machine(run: NamedResult) -> tuple[str, ...]:
        machine = run[1].machine
        facts = machine_text.list_hardware_facts(machine), machine_text.make_link_matrix(machine)
        return (machine.hostname, *map(str, facts))

    machines = group_by((run for members in by_hardware.values() for run in members), describe_machine).values()
    for number, members in enumerate(machines):
        yield from _make_machine_tables(number, members)
    if rows:
        yield from list_left_out_runs(report_data)


def _list_differences(number: int, hardware: str, runs: list[NamedResult]) -> Iterator[doc.Block]:
    """List the differences within one hardware of the config, whose runs are drawn and compared together."""
    tags, hosts = {"hardware": hardware}, {result.machine.hostname for _, result in runs}
    where = "one machine" if len(hosts) == 1 else f"{len(hosts)} machines"
    rows = []
    for fact, values in machine_text.find_differences(runs).items():
        for value, names in values.items():
            listed = "; ".join(doc.limit_texts(names, MAX_RUN_NAMES, "and {} more"))
            text = f"{format_count(len(names), 'run')}: {listed}"
            rows.append((tags, {"fact": fact, "value": value, "runs": doc.Cell(text, len(names))}))
    if rows:
        text = f"The runs of hardware {hardware}, on {where}, differ in machine or software, as listed below."
        yield doc.Paragraph(f"{text} Where that affects what was measured, the runs do not compare.", "warning", tags)
    title = f"What differs: hardware {hardware}"
    yield spec.make_table(f"machine-differences-{number}", title, rows, ("fact", "value", "runs"))


def _make_machine_tables(number: int, runs: list[NamedResult]) -> Iterator[doc.Table]:
    machine, hardware = runs[0][1].machine, {result.scale.hardware for _, result in runs}
    tags = {"hardware": next(iter(hardware))} if len(hardware) == 1 else {}
    facts = list(machine_text.list_hardware_facts(machine).items())
    facts += _merge_facts([machine_text.list_software_facts(result) for _, result in runs], None)
    facts += _merge_facts([machine_text.list_variables(result.machine) for _, result in runs], machine_text.NOT_SET)
    caption = f"{format_count(len(runs), 'run')}. Variables and versions are as the runs found them."
    rows = [(tags, {"fact": fact, "value": value}) for fact, value in facts]
    yield spec.make_table(f"machine-{number}", machine.hostname, rows, ("fact", "value"), caption)
    matrix = machine_text.make_link_matrix(machine) or []
    heads = [f"GPU {gpu}" for gpu in range(len(matrix))]
    link_rows = [(tags, {"": head, **dict.fromkeys(heads), **dict(zip(heads, links, strict=False))})
                 for head, links in zip(heads, matrix, strict=True)]  # fmt: skip
    title, caption = f"How the GPUs of {machine.hostname} are connected", "In the terms of `nvidia-smi topo -m`."
    yield spec.make_table(f"machine-{number}-links", title, link_rows, heads, caption)


def _merge_facts(facts: list[machine_text.Facts], absent: str | None) -> list[tuple[str, str]]:
    """Return each fact once, with all values that runs on one machine had."""
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    values = {name: dict.fromkeys(of_run.get(name, absent) for of_run in facts) for name in names}
    return [(name, "; ".join(value for value in each if value is not None)) for name, each in values.items()]
