"""`python -m tests.faults [REGEX]` runs the rows of the table whose names match, and prints how each ended.

Rows are named `fault, phase, strategy, launcher`. `--page` runs nothing, and writes the table of
docs/reference/faults.md.
"""

import argparse
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scalebench.core.json_files import write_text
from tests.faults.harness import missing_requirement, run_row
from tests.faults.table import FAULTS, covering_sample, planned_rows, untried

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/faults.md"
BEGIN, END = "<!-- written by python -m tests.faults --page -->", "<!-- end of what it writes -->"


def run_rows(rows, at_once):
    """Run rows beside each other, print their outcomes, and return whether all ended as expected."""
    scratch = Path(tempfile.mkdtemp(prefix="faults"))

    def run(row):
        if (reason := missing_requirement(row)) is not None:
            print(f"not run  {row}: {reason}", flush=True)
            return True
        folder = scratch / str(rows.index(row))
        outcome = run_row(row, folder, scratch / "data")
        shutil.rmtree(folder, ignore_errors=True)
        verdict = "FAILED  " if outcome.problems else "held    "
        print("\n    ".join([f"{verdict} {row}: {outcome.status}, {outcome.took_s} s", *outcome.problems]), flush=True)
        return not outcome.problems

    try:
        with ThreadPoolExecutor(at_once) as pool:
            return all(list(pool.map(run, rows)))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
        cells = [fault.text, f"{expected.status or 'none'}, {expected.exit_code}", reason]
        lines.append("| " + " | ".join([*cells, *(str(tried.count(column) or "") for column in columns)]) + " |")
    lines += ["", f"{len(rows)} combinations. Not tried:", ""]
    return "\n".join([*lines, *(f"- {name}: {reason}." for name, reason in untried().items()), ""])


def _column(row):
    """Return the column of the table that a row is part of: its framework, or the launcher of simulated ranks."""
    if not row.family.is_real:
        return "simulated" if row.launcher == "local" else "mpirun, torchrun"
    return row.family.framework


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("rows", nargs="?", default=".*", metavar="REGEX", help="the rows to run; all by default")
    parser.add_argument("--at-once", type=int, default=4, help="rows that run beside each other (default: 4)")
    parser.add_argument("--sample", action="store_true", help="only those of `make test`")
    parser.add_argument("--page", action="store_true", help="run nothing, and write the page")
    options = parser.parse_args()
    if options.page:
        write_text(PAGE, replace_table(PAGE.read_text(encoding="utf-8")))
        return 0
    rows = covering_sample(planned_rows()) if options.sample else planned_rows()
    return 0 if run_rows([row for row in rows if re.fullmatch(options.rows, str(row))], options.at_once) else 1


if __name__ == "__main__":
    raise SystemExit(main())
