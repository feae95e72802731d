"""The section `machines` of a report: what the runs ran on, and in what that differs. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalebench.core.result import Result
from scalebench.report import machine_text, report_data
from scalebench.report.document import MOST_ROWS, Block, Cell, Row, Section, Table, Words
from scalebench.report.flag_text import text
from scalebench.report.machine_text import NOT_SET, Facts, differences, environment, hardware_facts, software_facts
from scalebench.report.report_data import Evidence

MOST_MACHINES = 12
MOST_NAMES = 4  # of the runs that have a value
Run = tuple[str, Result]  # its name and record


def section(evidence: Evidence) -> Section | None:
    """None without a run."""
    rows = report_data.detailed(evidence)
    if not rows:
        return None
    names = report_data.names(rows)
    by_hardware: dict[str, list[Run]] = {}
    for row in rows:
        run = (names[row["run_id"]], evidence.result(row["run_id"]))
        by_hardware.setdefault(text(row["hardware"]), []).append(run)
    blocks = [block for number, item in enumerate(by_hardware.items()) for block in _differences(number, *item)]
    machines = _machines([run for members in by_hardware.values() for run in members])
    for number, members in enumerate(machines[:MOST_MACHINES]):
        blocks += _page(number, members)
    if len(machines) > MOST_MACHINES:
        blocks.append(Words(f"{MOST_MACHINES} of {len(machines)} machines are told."))
    if said := report_data.left_out(evidence):
        blocks.append(Words(said))
    return Section("machines", "Machines", blocks, folded=True)


def _machines(of_runs: list[Run]) -> list[list[Run]]:
    """Runs by the machine that they ran on: its name, and what it is made of."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for name, result in of_runs:
        machine = result.machine
        key = (machine.hostname, str(hardware_facts(machine)), str(machine_text.links(machine)))
        found.setdefault(key, []).append((name, result))
    return list(found.values())


def _differences(number: int, name: str, of_runs: list[Run]) -> Iterator[Block]:
    """Within one hardware of the config, whose runs are drawn and compared together."""
    hosts = {result.machine.hostname for _, result in of_runs}
    found = differences(of_runs)
    tags = {"hardware": name}
    if not found:
        return
    on = "one machine" if len(hosts) == 1 else f"{len(hosts)} machines"
    yield Words(
        f"The runs of hardware {name}, on {on}, differ in machine or software, as listed below. Where that matters to "
        "what was measured, the runs do not compare.",
        "warning",
        tags,
    )
    rows = [
        Row([Cell(fact, fact), Cell(value, value), Cell(_named(whose), len(whose))], tags)
        for fact, values in found.items()
        for value, whose in values.items()
    ]
    columns = ("what", "is", "in")
    yield Table(f"machine-differences-{number}", f"What differs: hardware {name}", columns, rows[:MOST_ROWS])


def _page(number: int, of_runs: list[Run]) -> Iterator[Block]:
    machine = of_runs[0][1].machine
    tagged = {result.scale.hardware for _, result in of_runs}
    tags = {"hardware": next(iter(tagged))} if len(tagged) == 1 else {}
    facts = [*hardware_facts(machine).items(), *_together([software_facts(result) for _, result in of_runs], None)]
    facts += _together([environment(result.machine) for _, result in of_runs], NOT_SET)
    rows = [Row([Cell(name, name), Cell(value, value)], tags) for name, value in facts]
    caption = f"{_runs(of_runs)}. Variables and versions are as the runs found them."
    yield Table(f"machine-{number}", machine.hostname, ("what", "is"), rows, caption=caption)
    if (matrix := machine_text.links(machine)) is not None:
        columns = ("", *(f"GPU {other}" for other in range(len(matrix))))
        lines = [Row([Cell(word, word) for word in (f"GPU {one}", *_whole(words, len(matrix)))], tags)
                 for one, words in enumerate(matrix)]  # fmt: skip
        yield Table(f"machine-{number}-links", f"How the GPUs of {machine.hostname} are connected", columns, lines,
                    caption="In the words of `nvidia-smi topo -m`.")  # fmt: skip


def _together(facts: list[Facts], absent: str | None) -> list[tuple[str, str]]:
    """Each fact once, with all values that runs on one machine had."""
    names = dict.fromkeys(name for one in facts for name in one)
    values = {name: dict.fromkeys(one.get(name, absent) for one in facts) for name in names}
    return [(name, "; ".join(value for value in found if value is not None)) for name, found in values.items()]


def _whole(words: list[str], count: int) -> list[str]:
    return [*words, *[""] * count][:count]


def _named(whose: list[str]) -> str:
    more = f"; and {len(whose) - MOST_NAMES} more" if len(whose) > MOST_NAMES else ""
    return f"{_runs(whose)}: {'; '.join(whose[:MOST_NAMES])}{more}"


def _runs(found: Sequence[object]) -> str:
    return f"{len(found)} run{'' if len(found) == 1 else 's'}"
