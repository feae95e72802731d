"""Clocks of nodes that are wrong: libfaketime in the environment of a node's tasks."""

from __future__ import annotations

import glob
from pathlib import Path

from tests.cluster.settings import ClusterError

LIBRARIES = "/usr/lib/*/faketime/libfaketime.so.1"


def library() -> str | None:
    """libfaketime of the distribution; None where it is not installed."""
    return next(iter(sorted(glob.glob(LIBRARIES))), None)


def shift(folder: Path, node: str, offset_s: float) -> None:
    """Tasks that start on the node from now on see a clock ahead by `offset_s`; what counts seconds stays right."""
    path, preload = folder / "clock" / node, library()
    if offset_s == 0:
        path.unlink(missing_ok=True)
        return
    if preload is None:
        raise ClusterError("a wrong clock needs libfaketime: scripts/install_slurm.sh (or make test-all) brings it")
    variables = {"LD_PRELOAD": preload, "FAKETIME": f"{offset_s:+g}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    path.write_text("".join(f"export {name}={value}\n" for name, value in variables.items()))
