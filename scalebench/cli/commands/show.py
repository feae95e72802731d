"""`scalebench show [DIR...]`: print the table of finished runs, and where their time goes.

Files that cannot be read are named on stderr and left out: a sweep that still runs, or was killed, has some. The exit
status is 2 only where none can be read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scalebench.cli.commands.arguments import FOLDERS_HELP, CommandParser, folders_or_newest, read_row
from scalebench.report.sections.attribution import make_attributor
from scalebench.sweeps.console import Console


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("DIR", nargs="*", help=FOLDERS_HELP)
    parser.add_argument("--wide", action="store_true", help="all columns, however wide the terminal is")
    parser.add_argument(
        "--run", metavar="N", type=read_row, help="only the details of run N, as the table numbers them"
    )
    parser.add_argument("--details", action="store_true", help="where the time of every run went")
    parser.add_argument("--baseline", metavar="RUN", help="also give speedups over this run: its folder or run_id")


def main(options: argparse.Namespace) -> int:
    console = Console(are_runs=False)
    folders = folders_or_newest(options.DIR)
    if options.run is not None:
        console.print_run(folders, options.run)
        return 0
    survey = console.print_table(folders, options.baseline, options.wide)
    if unfinished := survey.files.unfinished_folders:
        more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
        console.print_error(f"no result in {unfinished[0]}{more}: still running, or ended before it could write one")
    run_folders = list(dict.fromkeys(Path(str(path)) for path in survey.frame["path"]))
    if options.details or len(run_folders) == 1:
        attribute = make_attributor(survey.frame)
        for folder in run_folders:
            console.print_details(folder, attribute)
    return 0
