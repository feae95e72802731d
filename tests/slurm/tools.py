"""Programs that stand in for the commands of SLURM: shell scripts in a folder of the test."""

from __future__ import annotations

from pathlib import Path

from scalebench.slurm.commands import Slurm


class Tools:
    """Each call of a command leaves its words in NAME.calls, a line each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "slurm bin"
        self.folder.mkdir()
        self.slurm = Slurm(str(self.folder))

    def put(self, name: str, out: str = "", err: str = "", code: int = 0, then: str = "") -> None:
        """A command that prints these, after the shell has done `then`."""
        for stream, text in (("out", out), ("err", err)):
            (self.folder / f"{name}.{stream}").write_text(text)
        path = self.folder / name
        path.write_text(
            f'#!/bin/sh\nhere="{self.folder}"\necho "$*" >> "$here/{name}.calls"\n{then}\n'
            f'cat "$here/{name}.out"; cat "$here/{name}.err" >&2; exit {code}\n'
        )
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []
