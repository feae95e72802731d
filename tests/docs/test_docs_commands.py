"""Every command in the documentation is accepted as it is written: runs are planned, other commands are parsed."""

import importlib
import re
import shlex
import shutil
from importlib.metadata import distributions
from pathlib import Path

import pytest

from scalebench.__main__ import COMMANDS, build_parsers, main
from scalebench.config import resolve, support
from scalebench.config.compose import compose_config
from scalebench.core.errors import InputError
from tests.builders.plugins import clear_plugin_caches
from tests.conftest import ROOT
from tests.docs.test_docs import OWN_FILES, PAGES

PLUGINS = [folder.name for folder in sorted(ROOT.glob("plugins/scalebench-*"))]
# docs/guides/plugins.md is about a plugin that has to be installed first (test_plugin_from_template.py), and CHANGELOG
# about earlier versions.
DOCUMENTED = [page for page in PAGES if page.name not in ("plugins.md", "CHANGELOG.md")]


def shell_commands(text):
    """Return the arguments of every `scalebench ...` in a page: lines of shell blocks, indented blocks, steps of a CI,
    and code within text."""
    blocks = re.findall(r"^ *```(?:sh|yaml)\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
    code = re.sub(r" +#.*", "", "\n".join(blocks))
    lines = re.findall(r"^ *(?:- run: )?(?:python -m )?scalebench((?: [^#\n]*)?)$", code, re.MULTILINE)
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += re.findall(r"^    python -m scalebench( [^#\n]*)$", prose, re.MULTILINE)
    return [line.strip() for line in [*lines, *re.findall(r"`(?:python -m )?scalebench( [^`\n]*)`", prose)]]


def table_commands(text):
    """Return the overrides in the second column of a table, which leaves out the word scalebench."""
    return re.findall(r"^\|[^|\n]*\| `((?:--multirun |sweep=|strategy=)[^`\n]*)`", text, flags=re.MULTILINE)


def comment_commands(text):
    """Return the arguments of the commands in the comments of a YAML file, which may begin with a variable."""
    lines = re.findall(r"^# +(?:[A-Z_\d]+=\S+ )?(?:python -m )?scalebench ([^\n]*)$", text, re.MULTILINE)
    return [line for line in lines if "=" in line.split()[0] or line.split()[0] in ("--multirun", *COMMANDS)]


def documented_commands(enabled):
    """Map the arguments of every documented command to the file that has it first. Plugins are those in `enabled`."""
    plugin_pages = [ROOT / "plugins" / name / "README.md" for name in enabled]
    places = {}
    for path in [*DOCUMENTED, *plugin_pages, *sorted(ROOT.glob("conf/**/*.yaml"))]:
        text = path.read_text(encoding="utf-8")
        commands = comment_commands(text) if path.suffix == ".yaml" else shell_commands(text) + table_commands(text)
        for command in commands:
            if not command.startswith(("--help", "--version")):
                places.setdefault(tuple(shlex.split(command)), str(path.relative_to(ROOT)))
    return places


def is_run(arguments):
    return not arguments or "=" in arguments[0] or arguments[0] == "--multirun"


@pytest.fixture
def enabled_plugins(monkeypatch):
    installed = {distribution.name for distribution in distributions()}
    names = [name for name in PLUGINS if name in installed]
    monkeypatch.setenv("SCALEBENCH_PLUGINS", ",".join(names))
    clear_plugin_caches()
    yield names
    clear_plugin_caches()


@pytest.fixture
def find_problem(tmp_path_factory, monkeypatch, capsys):
    """Return the function that plans a run, and returns the error of a command that is refused."""
    own = tmp_path_factory.mktemp("own")
    for name, code in OWN_FILES.items():
        (own / name).write_text(code)
    shutil.copytree(ROOT / "examples", own / "examples")
    shutil.copy(ROOT / "examples/train_ddp.py", own / "train.py")
    monkeypatch.chdir(own)
    archive = own / "cifar-10-python.tar.gz"
    archive.touch()  # a plan does not open it
    monkeypatch.syspath_prepend(str(own))
    monkeypatch.setenv("PYTHONPATH", f"{own}:{ROOT}")
    monkeypatch.setenv("SCALEBENCH_CIFAR10", str(archive))
    (own / "images").mkdir()
    monkeypatch.setenv("SCALEBENCH_IMAGENET", str(own / "images"))
    monkeypatch.setattr(support, "find_launch_problem", lambda *arguments: None)  # looking at Horovod takes seconds

    def plan(arguments):
        dry = () if "dry_run=true" in arguments else ("dry_run=true",)
        status = main([*dry, *arguments])  # what stands after -- is for the user's program
        printed = capsys.readouterr()
        if status < 2 and "nothing was " not in printed.out:
            return f"no plan: {printed.out}"
        return None if status < 2 else printed.err  # 1: all runs are unsupported on this machine

    return plan


def list_files():
    return sorted(path for path in Path().iterdir() if path.name != "__pycache__")


@pytest.mark.parametrize("of_sweeps", [False, pytest.param(True, marks=pytest.mark.slow)])  # tests/conf plans sweeps
def test_every_documented_run_is_planned(of_sweeps, enabled_plugins, find_problem):
    before = list_files()
    runs = {
        command: place
        for command, place in documented_commands(enabled_plugins).items()
        if is_run(command) and of_sweeps == any(word.startswith("sweep=") for word in command)
    }
    assert {"README.md", "docs/quickstart.md"} < set(runs.values())
    assert ("sweep=demo" if of_sweeps else "gpus=1,2") in {word for command in runs for word in command}
    problems = {command: find_problem(command) for command in runs}
    assert {f"{runs[c]}: {shlex.join(c)}": problem for c, problem in problems.items() if problem} == {}
    assert list_files() == before


def test_every_setting_beside_a_flag_composes():
    """Settings stand alone in the tables for people who come from tf_cnn_benchmarks."""
    text = (ROOT / "docs/studies/from-tf-cnn-benchmarks.md").read_text(encoding="utf-8")
    settings = [line for line in re.findall(r"`([a-z_.]+=[^`\n]*)`", text) if not line.startswith("sweep=")]
    assert len(settings) > 20
    for line in dict.fromkeys(settings):
        resolve.check_config(compose_config(line.split()))


def test_every_other_documented_command_is_parsed(enabled_plugins):
    commands = {c: place for c, place in documented_commands(enabled_plugins).items() if not is_run(c)}
    assert {"show", "report", "doctor", "list", "compare", "new", "check"} <= {command[0] for command in commands}
    problems = {f"{place}: {shlex.join(command)}": parsing_problem(command) for command, place in commands.items()}
    assert {command: problem for command, problem in problems.items() if problem} == {}


def parsing_problem(command):
    name, *arguments = command
    if name not in COMMANDS:
        return "no such command"
    parser = build_parsers()[name]
    importlib.import_module(f"scalebench.cli.commands.{name}").add_arguments(parser)
    try:
        parser.read(arguments)
    except InputError as error:
        return str(error)
    return None
