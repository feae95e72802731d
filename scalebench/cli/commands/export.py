"""`scalebench export [DIR...] --to NAME`: pass finished runs on to a tracker; docs/guides/notebook.md."""

from __future__ import annotations

import argparse
from pathlib import Path

from scalebench.cli.commands.arguments import FOLDERS_HELP, CommandParser, folders_or_newest
from scalebench.core.errors import InputError
from scalebench.core.spec import TRACKERS
from scalebench.core.untrusted import clean_line


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("paths", metavar="DIR", nargs="*", help=FOLDERS_HELP)
    parser.add_argument("--to", required=True, choices=TRACKERS, help="Weights & Biases or MLflow")
    parser.add_argument("--out", metavar="FOLDER", help="where files go; default: a folder of that name in the first")
    parser.add_argument("--project", default="scalebench", help="of W&B, or the experiment of MLflow")


def main(options: argparse.Namespace) -> int:
    from scalebench.report import trackers  # imports pandas, for which `--help` need not wait

    trackers.check_installed(options.to)
    paths = [Path(path) for path in folders_or_newest(options.paths)]
    out = None if options.out is None else Path(options.out)
    try:
        lines = trackers.export(options.to, paths, out, options.project)
    except OSError as error:
        raise InputError(f"{error.filename or 'export'}: {error.strerror or error}; choose another --out") from error
    print("\n".join(map(clean_line, lines)))
    return 0
