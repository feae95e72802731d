"""A plugin from `scalebench new` to its wheel, in a fresh environment, as docs/guides/plugins.md prints it."""

import os
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from scalebench.__main__ import run_command
from scalebench.cli.commands import new
from tests.conftest import ROOT
from tests.docs.plugin_page import answers, commands, files

SITE = Path(pytest.__file__).parents[1]  # of these tests: PyTorch and all else that scalebench needs
OFFLINE = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
QUICK = ["measure=quick", "measure.min_s=0", "measure.max_s=0.5"]
ONE_FAULT = ["-m", "pytest", "-q", "-k", "Faults and exit"]  # it stands for all


class Environment:
    """A virtual environment that has what these tests have, but for scalebench, which is installed from its wheel."""

    def __init__(self, folder):
        venv.create(folder / "env", with_pip=False)
        self.bin, self.folder = folder / "env" / "bin", folder / "at work"
        (site,) = (folder / "env" / "lib").glob("python*/site-packages")
        (site / "others.pth").write_text(f"import site; site.addsitedir({str(SITE)!r})\n")
        self.folder.mkdir()
        self.variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SCALEBENCH_PLUGINS")}
        self.variables["SCALEBENCH_CACHE"] = str(folder / "data")
        self.wheel = self.build(ROOT, folder / "dist")
        self.pip(str(self.wheel))

    def run(self, arguments, status=0):
        done = subprocess.run(
            arguments, cwd=self.folder, env=self.variables, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def pip(self, *arguments):
        return self.run(
            [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", *OFFLINE, *arguments]
        )

    def build(self, project, out):
        """Its wheel."""
        self.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(project)])
        (wheel,) = out.glob("*.whl")
        return wheel

    def put_files(self):
        """Those that the page shows, into the plugin; what it shows of pyproject.toml is more of that."""
        for path, text in files().items():
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text((file.read_text() if file.name == "pyproject.toml" else "") + text)

    def printed(self, command):
        """What a command of the page prints here, where it is quick, and its packages come from no index."""
        program, *arguments = shlex.split(command.arguments)
        if program == "cd":
            self.folder = self.folder / arguments[0]
            return ""
        if program == "pip":
            assert arguments[0] == "install"
            if arguments[-1] == ".":
                self.put_files()
            return self.pip(*arguments[1:])
        quick = QUICK if program == "scalebench" and any("strategy=" in word for word in arguments) else []
        return self.run([str(self.bin / program), *arguments, *quick])


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("fresh"))


@pytest.mark.slow
@pytest.mark.real
def test_the_commands_of_the_page(environment):
    """One after the other, each as the page has it."""
    reported = commands()
    assert [shlex.split(command.arguments)[:2] for command in reported][:5] == [
        *(["scalebench", "new"], ["pip", "install"], ["scalebench", "plugins"]),
        *(["scalebench", "strategy=mine"], ["scalebench", "check"]),
    ]
    for command in reported:
        printed = environment.printed(command)
        assert answers(command.answer, printed), f"$ {command.arguments}\n{printed}"
    environment.folder /= "scalebench-mine"
    environment.run([str(environment.bin / "python"), *ONE_FAULT])


@pytest.mark.slow
def test_what_is_published(environment, tmp_path):
    """Wheels have all that is needed: ours the templates, that of a plugin its YAML, and it works uninstalled."""
    prefix = "scalebench/cli/commands/template/"
    inside = {name.removeprefix(prefix) for name in zipfile.ZipFile(environment.wheel).namelist()}
    assert {str(path.relative_to(new.TEMPLATES)) for path in new.TEMPLATES.rglob("*.jinja")} <= inside
    assert run_command("new", ["strategy", "sent"]) == 0
    wheel = environment.build(tmp_path / "scalebench-sent", tmp_path / "dist")
    shutil.rmtree(tmp_path / "scalebench-sent")
    environment.pip(str(wheel))
    listed = environment.run([str(environment.bin / "scalebench"), "list", "strategies"])
    (line,) = [line for line in listed.splitlines() if line.split()[:1] == ["sent"]]
    assert "from scalebench-sent" in listed and " yes " in line
    environment.run([str(environment.bin / "scalebench"), "strategy=sent", "gpus=2", "dry_run=true"])
