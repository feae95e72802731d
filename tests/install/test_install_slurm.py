"""The script that brings a SLURM for the tests: it does nothing where one is, and never fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

BASH = "/bin/bash"
PROGRAMS = "slurmctld slurmd sbatch munged slurmdbd mariadbd mariadb-admin ip tc faketime".split()
PACKAGES = "slurmctld slurmd slurm-client munge slurmdbd mariadb-server mariadb-client iproute2 faketime"
TIMEOUT = 'shift\nexec "$@"'


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!{BASH}\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that is all of PATH; `asked` lists what apt-get was asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder, "timeout", TIMEOUT)
    program(folder, "id", "echo 0")
    program(folder, "apt-get", f'echo "$*" >>{tmp_path}/asked')
    return folder


def call(folder: Path) -> tuple[str, list[str]]:
    """What the script said and what it asked for; it always ends well."""
    done = subprocess.run(
        [BASH, str(ROOT / "scripts" / "install_slurm.sh")],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    requested = folder.parent / "asked"
    return done.stdout.strip(), requested.read_text().splitlines() if requested.exists() else []


def test_what_is_there_stays(installed: Path) -> None:
    for name in PROGRAMS:
        program(installed, name, "exit 1")
    assert call(installed) == ("", [])


def test_all_packages_in_one_call(installed: Path) -> None:
    stated, requested = call(installed)
    assert stated == f"installing {PACKAGES}"
    assert requested == [f"install --quiet --quiet --yes --no-install-recommends {PACKAGES}"]


def test_only_what_is_missing(installed: Path) -> None:
    for name in PROGRAMS[:-1]:
        program(installed, name, "exit 1")
    assert call(installed)[0] == "installing faketime"


def test_lists_of_packages_are_fetched_where_the_first_try_fails(installed: Path, tmp_path: Path) -> None:
    program(installed, "apt-get", f'echo "$1" >>{tmp_path}/asked\n[ "$1" = update ]')
    stated, requested = call(installed)
    assert requested == ["install", "update", "install"]
    assert stated.endswith(f"skipped: apt-get install {PACKAGES} did not go well")


def test_without_root_it_says_what_to_do(installed: Path) -> None:
    program(installed, "id", "echo 1000")
    stated = f"no SLURM for the tests of clusters, which are skipped: sudo apt-get install {PACKAGES} brings it"
    assert call(installed) == (stated, [])


def test_without_apt_get_it_says_what_to_do(installed: Path) -> None:
    (installed / "apt-get").unlink()
    assert call(installed)[0].endswith(f"there is no apt-get; install {PACKAGES}")
