"""The scripts that bring a browser and a SLURM for the tests: they do nothing where one is, and never fail."""

import subprocess

import pytest

from tests.conftest import ROOT

# The programs that a script looks for, the packages that have them, and its line without root.
SCRIPTS = {
    "install_browser.sh": (
        "chromium chromedriver",
        "chromium chromium-driver",
        "no browser for the tests of reports, which are skipped: sudo apt-get install {} brings one",
    ),
    "install_slurm.sh": (
        "slurmctld slurmd sbatch munged slurmdbd mariadbd mariadb-admin ip tc faketime",
        "slurmctld slurmd slurm-client munge slurmdbd mariadb-server mariadb-client iproute2 faketime",
        "no SLURM for the tests of clusters, which are skipped: sudo apt-get install {} brings it",
    ),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_is_missing_is_installed_in_one_call_where_that_is_possible(script, tmp_path):
    programs, packages, without_root = SCRIPTS[script]
    asked = tmp_path / "asked"

    def put(name, text):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def call():
        """Return what it printed, and what it asked of apt-get; it always ends well."""
        asked.write_text("")
        command = ["/bin/bash", str(ROOT / "scripts" / script)]
        done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip(), asked.read_text().splitlines()

    put("timeout", 'shift\nexec "$@"')
    put("id", "echo 0")
    put("apt-get", f'echo "$*" >>{asked}')
    printed, requested = call()
    assert printed.replace(" and ", " ") == f"installing {packages}"
    assert requested == [f"install --quiet --quiet --yes --no-install-recommends {packages}"]
    put("apt-get", f'echo "$1" >>{asked}\n[ "$1" = update ]')  # lists of packages are fetched where the first try fails
    printed, requested = call()
    assert requested == ["install", "update", "install"]
    assert printed.endswith(f"skipped: apt-get install {packages} did not go well")
    put("id", "echo 1000")
    assert call() == (without_root.format(packages), [])
    (tmp_path / "apt-get").unlink()
    named = programs.replace(" ", " and ") if script == "install_browser.sh" else packages
    assert call()[0].endswith(f"there is no apt-get; install {named}")
    put("id", "echo 0")
    put("apt-get", f'echo "$*" >>{asked}')
    for name in programs.split()[:-1]:
        put(name, "exit 1")
    assert call()[0].removeprefix("installing ") in ("faketime", "chromium and chromium-driver")
    put(programs.split()[-1], "exit 1")
    assert call() == ("", [])
