"""`python -m tests.faults [REGEX]` runs the rows of the table whose names match, and writes the page of the results.

Rows are named `fault, phase, strategy, launcher`. `--page` only writes the page from the results of earlier runs.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalebench.core.json_files import read_json, write_text
from tests.faults.harness import describe_machine, missing_requirement, run_row
from tests.faults.table import FAULTS, Expected, Row, covering_sample, planned_rows, untried

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).resolve().parents[2] / "docs/reference/faults.md"
BEGIN, END = "<!-- written by python -m tests.faults -->", "<!-- end of what python -m tests.faults writes -->"
_lock = threading.Lock()


def read_results() -> dict[str, dict[str, Any]]:
    """Return the last result of each row by its name; a row that was never run is not in it."""
    return dict(read_json(RESULTS)) if RESULTS.exists() else {}


def record_result(row: Row, result: dict[str, Any]) -> None:
    """Add the result of a row to the file, one line for each."""
    with _lock:
        results = {**read_results(), str(row): result}
        names = [str(planned) for planned in planned_rows()]
        lines = [f" {json.dumps(name)}: {json.dumps(results[name])}" for name in names if name in results]
        write_text(RESULTS, "{\n" + ",\n".join(lines) + "\n}\n")


def run_rows(rows: Sequence[Row], at_once: int) -> bool:
    """Run rows beside each other, record their results, and return whether all ended as expected."""
    scratch = Path(tempfile.mkdtemp(prefix="faults"))

    def run(row: Row) -> bool:
        result: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "machine": describe_machine()}
        reason = missing_requirement(row)
        if reason is not None:
            record_result(row, {**result, "not_run": reason})
            print(f"not run  {row}: {reason}", flush=True)
            return True
        folder = scratch / str(rows.index(row))
        outcome = run_row(row, folder, scratch / "data")
        shutil.rmtree(folder, ignore_errors=True)
        held = not outcome.problems
        result |= {"held": held, "status": outcome.status, "took_s": outcome.took_s}
        record_result(row, result if held else {**result, "problem": outcome.problems[0][:300]})
        print(f"{'held    ' if held else 'FAILED  '} {row}: {outcome.status}, {outcome.took_s} s", flush=True)
        for problem in outcome.problems:
            print(f"    {problem}", flush=True)
        return held

    try:
        with ThreadPoolExecutor(at_once) as pool:
            return all(list(pool.map(run, rows)))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def replace_table(page: str) -> str:
    """Return the page with the present table and results in it."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{format_results()}\n{END}{rest.partition(END)[2]}"


def format_results() -> str:
    """Return the part of the page that is made of the table and of the results."""
    rows, results = planned_rows(), read_results()
    ran = [results[str(row)] for row in rows if "held" in results.get(str(row), {})]
    failed = [row for row in rows if results.get(str(row), {}).get("held") is False]
    dates, machines = sorted({result["date"] for result in ran}), Counter(result["machine"] for result in ran)
    when = f"last run {dates[-1]} on {machines.most_common(1)[0][0]}" if ran else "no run yet"
    summary = (
        f"**{len(rows)} combinations are planned, {len(ran)} were run: {len(ran) - len(failed)} ended as expected, "
        f"{len(failed)} did not** ({when})."
    )
    columns = list(dict.fromkeys(map(_column, rows)))
    head = " | ".join(["| fault", "row, exit status", "reason has", *columns]) + " |"
    table = [head, "| --- | --- | --- |" + " --- |" * len(columns)]
    for fault in FAULTS:
        cells = [
            _slowest([results.get(str(row), {}) for row in rows if row.fault == fault and _column(row) == column])
            for column in columns
        ]
        status, code, reason = fault.expected.status or "none", fault.expected.exit_code, _show_reason(fault.expected)
        table.append(" | ".join([f"| {fault.text}", f"{status}, {code}", reason, *cells]) + " |")
    lines = [summary, "", *table, "", *_failures(failed, results), "Not tried:", ""]
    lines += [f"- {name}: {reason}." for name, reason in untried().items()]
    return "\n".join([*lines, *_not_run(rows, results), ""])


def _column(row: Row) -> str:
    """Return the column of the table that a row is part of: its framework, or the launcher of simulated ranks."""
    if not row.family.is_real:
        return "simulated" if row.launcher == "local" else "mpirun, torchrun"
    return row.family.framework


def _show_reason(expected: Expected) -> str:
    """Return the reason of a row with the rank that fails as N."""
    return expected.reason.format(rank="N", where="rank N: ").strip()


def _slowest(results: Sequence[dict[str, Any]]) -> str:
    """Return the seconds of the slowest of these results; empty where there are none."""
    if not all(result.get("held", True) for result in results):
        return "**fails**"
    took_s = [result["took_s"] for result in results if "held" in result]
    return f"{max(took_s):.0f}" if took_s else "not run" if results else ""


def _failures(failed: Sequence[Row], results: dict[str, dict[str, Any]]) -> list[str]:
    if not failed:
        return []
    lines = [f"- {row}: {results[str(row)]['problem']}" for row in failed]
    return ["What does not end as expected:", "", *lines, ""]


def _not_run(rows: Sequence[Row], results: dict[str, dict[str, Any]]) -> list[str]:
    missing = [results.get(str(row), {}) for row in rows if "held" not in results.get(str(row), {})]
    reasons = Counter(result.get("not_run", "not run yet") for result in missing)
    return [f"- {count} planned combinations: {reason}." for reason, count in reasons.items()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("rows", nargs="?", default=".*", metavar="REGEX", help="the rows to run; all by default")
    parser.add_argument("--at-once", type=int, default=4, help="rows that run beside each other (default: 4)")
    parser.add_argument("--missing", action="store_true", help="only rows that have not been run, or that failed")
    parser.add_argument("--sample", action="store_true", help="only those of `make test`")
    parser.add_argument("--page", action="store_true", help="run nothing")
    options = parser.parse_args()
    rows = [] if options.page else [row for row in planned_rows() if re.fullmatch(options.rows, str(row))]
    if options.sample:
        sample = covering_sample(planned_rows())
        rows = [row for row in rows if row in sample]
    if options.missing:
        rows = [row for row in rows if not read_results().get(str(row), {}).get("held")]
    succeeded = run_rows(rows, options.at_once)
    write_text(PAGE, replace_table(PAGE.read_text(encoding="utf-8")))
    print(f"{len(rows)} rows; {PAGE}")
    return 0 if succeeded else 1


if __name__ == "__main__":
    raise SystemExit(main())
