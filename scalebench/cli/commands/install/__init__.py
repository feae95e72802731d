"""`scalebench install horovod`: build Horovod for the frameworks of the Python that runs this.

The scripts beside this file do the work, so that a checkout and an installed wheel build it alike.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scalebench.cli.commands.arguments import CommandParser
from scalebench.core.errors import InputError

HOROVOD_SCRIPT = Path(__file__).with_name("horovod.sh")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("package", metavar="horovod", help="what pip alone cannot build beside today's frameworks")


def main(options: argparse.Namespace) -> int:
    """Become the script, so that its exit status and its answer to Ctrl-C are those of the command."""
    if options.package != "horovod":
        raise InputError(f"install builds horovod, not '{options.package}'; pip install brings all other packages")
    sys.stdout.flush()
    environment = {**os.environ, "SCALEBENCH_PYTHON": sys.executable}
    try:
        os.execvpe("bash", ["bash", str(HOROVOD_SCRIPT)], environment)
    except FileNotFoundError:
        raise InputError("install horovod needs bash, which is not on the PATH: apt-get install bash") from None
