"""`scalebench show DIR... [--details] [--baseline RUN] [--reference NAME,...]`: the table of finished runs, where their
time goes, and published figures below it.

Files that cannot be read are named on stderr and left out: a sweep that goes on, or was killed, has some. The exit
status is 2 only where not one could be read.
"""

from __future__ import annotations

from pathlib import Path

from scalebench import published
from scalebench.report.console import Console
from scalebench.report.sections.attribution import make_attribution_records
from scalebench.report.terminal import make_references
from scalebench.verbs.arguments import Parser


def main(arguments: list[str]) -> int:
    parser = Parser("show", "the table of the runs at or below folders")
    parser.add_argument("DIR", nargs="+", help="folder of a run or a sweep, such as multirun, or a result.json")
    parser.add_argument("--details", action="store_true", help="of every run; those of a single one are always shown")
    parser.add_argument("--baseline", metavar="RUN", help="speedups over this run too: its folder or its run_id")
    parser.add_argument("--reference", metavar="NAME,...", default="", help="published studies to show below")
    chosen = parser.parse_args(arguments)
    names = [name.strip() for name in chosen.reference.split(",") if name.strip()]
    published.rows(names)  # a name that is none is told before anything is printed
    console = Console()
    found = console.table(chosen.DIR, chosen.baseline)
    folders = list(dict.fromkeys(Path(str(path)) for path in found.frame["path"]))
    records = make_attribution_records(found.frame)
    for folder in folders if chosen.details or len(folders) == 1 else []:
        console.details(folder, records)
    for table in make_references(found.frame, names) if names else []:
        console.rich.print(table)
    return 0
