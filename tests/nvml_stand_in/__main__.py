"""Runs a command with the stand-in: `python -m tests.nvml_stand_in hgx_h100 python -m scalebench doctor`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.nvml_stand_in import TABLES, build, variables

if __name__ == "__main__":
    if len(sys.argv) < 3:
        names = ", ".join(sorted(path.stem for path in TABLES.glob("*.json")))
        raise SystemExit(f"usage: python -m tests.nvml_stand_in TABLE COMMAND...; tables: {names}, or a file")
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        raise SystemExit(subprocess.run(sys.argv[2:], env=os.environ | variables(library, sys.argv[1])).returncode)
