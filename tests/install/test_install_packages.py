"""The scripts that bring a browser and a SLURM for the tests: they do nothing where one is, and never fail."""

import subprocess
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.conftest import ROOT

BASH = "/bin/bash"


class Script(NamedTuple):
    """A script, the programs that it looks for, the packages that have them, and its line without root."""

    name: str
    programs: list[str]
    packages: str
    without_root: str


BROWSER = Script(
    "install_browser.sh",
    ["chromium", "chromedriver"],
    "chromium chromium-driver",
    "no browser for the tests of reports, which are skipped: sudo apt-get install {} brings one",
)
SLURM = Script(
    "install_slurm.sh",
    "slurmctld slurmd sbatch munged slurmdbd mariadbd mariadb-admin ip tc faketime".split(),
    "slurmctld slurmd slurm-client munge slurmdbd mariadb-server mariadb-client iproute2 faketime",
    "no SLURM for the tests of clusters, which are skipped: sudo apt-get install {} brings it",
)
both = pytest.mark.parametrize("script", [BROWSER, SLURM], ids=["browser", "slurm"])
Put = Callable[[str, str], None]


@pytest.fixture
def put(tmp_path):
    """Return a function that adds a program to the folder that is all of PATH; apt-get lists in `asked` what for."""
    (tmp_path / "bin").mkdir()

    def program(name, text):
        path = tmp_path / "bin" / name
        path.write_text(f"#!{BASH}\n{text}\n")
        path.chmod(0o755)

    program("timeout", 'shift\nexec "$@"')
    program("id", "echo 0")
    program("apt-get", f'echo "$*" >>{tmp_path}/asked')
    return program


def call(script, folder):
    """What the script said and what it asked for; it always ends well."""
    command = [BASH, str(ROOT / "scripts" / script.name)]
    done = subprocess.run(command, env={"PATH": f"{folder}/bin"}, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    requested = folder / "asked"
    return done.stdout.strip(), requested.read_text().splitlines() if requested.exists() else []


@both
def test_what_is_there_stays(script, put, tmp_path):
    for name in script.programs:
        put(name, "exit 1")
    assert call(script, tmp_path) == ("", [])


@both
def test_all_packages_in_one_call(script, put, tmp_path):
    stated, requested = call(script, tmp_path)
    assert stated.replace(" and ", " ") == f"installing {script.packages}"
    assert requested == [f"install --quiet --quiet --yes --no-install-recommends {script.packages}"]


def test_only_what_is_missing(put, tmp_path):
    for name in SLURM.programs[:-1]:
        put(name, "exit 1")
    assert call(SLURM, tmp_path)[0] == "installing faketime"


@both
def test_lists_of_packages_are_fetched_where_the_first_try_fails(script, put, tmp_path):
    put("apt-get", f'echo "$1" >>{tmp_path}/asked\n[ "$1" = update ]')
    stated, requested = call(script, tmp_path)
    assert requested == ["install", "update", "install"]
    assert stated.endswith(f"skipped: apt-get install {script.packages} did not go well")


@both
def test_without_root_or_apt_get_it_says_what_to_do(script, put, tmp_path):
    put("id", "echo 1000")
    assert call(script, tmp_path) == (script.without_root.format(script.packages), [])
    (tmp_path / "bin" / "apt-get").unlink()
    programs = " and ".join(script.programs) if script is BROWSER else script.packages
    assert call(script, tmp_path)[0].endswith(f"there is no apt-get; install {programs}")
