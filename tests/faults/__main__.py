"""`python -m tests.faults` writes the table of docs/reference/faults.md; pytest runs its rows."""

from pathlib import Path

from scalebench.core.json_files import write_text
from tests.faults.table import FAULTS, planned_rows, untried

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/faults.md"
BEGIN, END = "<!-- written by python -m tests.faults -->", "<!-- end of what it writes -->"


def replace_table(page):
    """Return the page with the table of faults as the tests have it now."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{format_table()}\n{END}{rest.partition(END)[2]}"


def format_table():
    """Return a row for each fault: how its run has to end, and the number of phases in which that is tried."""
    rows = planned_rows()
    columns = list(dict.fromkeys(map(_column, rows)))
    lines = [" | ".join(["| fault", "row, exit status", "reason has", *columns]) + " |"]
    lines.append("| --- | --- | --- |" + " --- |" * len(columns))
    for fault in FAULTS:
        tried = [_column(row) for row in rows if row.fault == fault]
        expected = fault.expected
        reason = expected.reason.format(rank="N", where="rank N: ").strip()
        cells = [fault.text, f"{expected.status}, {expected.exit_code}", reason]
        lines.append("| " + " | ".join([*cells, *(str(tried.count(column) or "") for column in columns)]) + " |")
    lines += ["", f"{len(rows)} combinations. Not tried:", ""]
    return "\n".join([*lines, *(f"- {name}: {reason}." for name, reason in untried().items()), ""])


def _column(row):
    """Return the column of the table that a row is part of: its framework, or the launcher of simulated ranks."""
    if not row.family.is_real:
        return "simulated" if row.launcher == "local" else "mpirun, by hand"
    return row.family.framework


if __name__ == "__main__":
    write_text(PAGE, replace_table(PAGE.read_text(encoding="utf-8")))
