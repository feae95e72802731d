"""What the documentation says is there: its links lead somewhere, its commands compose."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from scalebench.__main__ import COMMANDS
from scalebench.config import resolve
from scalebench.config.compose import compose_config
from tests.builders.configs import sweep_choices
from tests.builders.runs import in_parallel
from tests.conf.test_yaml_files import load
from tests.conftest import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*.md"), ROOT / "multirun/README.md"]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def shell_commands(text: str) -> list[str]:
    """Arguments of every `scalebench ...` in a page: lines of shell blocks, steps of a CI, and code within text."""
    blocks = re.findall(r"^ *```(?:sh|yaml)\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
    code = re.sub(r" +#.*", "", "\n".join(blocks))
    lines = re.findall(r"^ *(?:- run: )?(?:python -m )?scalebench((?: [^#\n]*)?)$", code, re.MULTILINE)
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [line.strip() for line in [*lines, *re.findall(r"`(?:python -m )?scalebench( [^`\n]*)`", prose)]]


def own_functions(folder: Path) -> dict[str, str]:
    """Where processes find a user's own functions, as the page about them has them."""
    page = (ROOT / "docs/guides/own-model.md").read_text(encoding="utf-8")
    for name, code in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", page, re.DOTALL):
        (folder / name).write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}


RESULTS_COMMANDS = {"show", "report", "compare"}  # which need some


@pytest.mark.slow
def test_commands_of_the_readme(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each is accepted; none is started."""
    env = {**os.environ, **own_functions(tmp_path_factory.mktemp("own"))}
    commands = [shlex.split(command) for command in shell_commands((ROOT / "README.md").read_text(encoding="utf-8"))]
    commands = [arguments for arguments in commands if arguments[:1] not in ([verb] for verb in RESULTS_COMMANDS)]
    assert len(commands) >= 5
    for arguments in commands:
        dry = arguments if arguments[:1] in (["list"], ["doctor"], ["new"], ["check"]) else [*arguments, "dry_run=true"]
        if dry[:1] in (["new"], ["check"]):
            dry = [dry[0], "--help"]
        program = [sys.executable, "-m", "scalebench", *dry]
        done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
    assert not list(tmp_path.iterdir())


def told(page: str) -> list[dict[str, str]]:
    """Overrides in a page, those of each command and each `key=value`; one run for each value of a sweep."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = [line.removeprefix("--multirun ") for line in shell_commands(text)]
    lines = [line for line in lines if line and line.split()[0] not in COMMANDS]
    lines += re.findall(r"`([a-z_.]+=[^`\n]*)`", text)
    actual = []
    for line in lines:
        choices = {key: value.split(",") for key, _, value in (word.partition("=") for word in line.split())}
        for number in range(max(map(len, choices.values()))):
            run = {key: values[number % len(values)] for key, values in choices.items()}
            actual.append(run)  # a sweep composes this before any of its runs
            if "sweep" in run:
                actual.append({**first_run(run["sweep"]), **run})
    seen: set[tuple[str | None, str, str]] = set()
    kept = []
    for run in actual:  # each word once within a sweep: composing is what this costs
        new = {(run.get("sweep"), key, value) for key, value in run.items()} - seen
        kept += [run] if new else []
        seen |= new
    return kept


def first_run(sweep: str) -> dict[str, str]:
    params = load(f"sweep/{sweep}.yaml")["hydra"]["sweeper"]["params"]
    return {key: sweep_choices(values)[0] for key, values in params.items()}


@pytest.mark.parametrize(
    "page", ["studies/from-tf-cnn-benchmarks.md", pytest.param("studies/index.md", marks=pytest.mark.slow)]
)
def test_overrides_of_the_studies(page: str) -> None:
    """Each composes, of options and settings that there are."""
    assert len(told(page)) > 20
    for run in told(page):
        resolve.check_config(compose_config([f"{key}={value}" for key, value in run.items()]))
        GlobalHydra.instance().clear()


def lines_of_the_docs() -> list[list[str]]:
    """Arguments of every command in every page, and of every command in a table."""
    actual: dict[tuple[str, ...], None] = {}
    for page in PAGES:
        # Of a plugin that has to be installed first (test_plugin_from_template.py); and of earlier versions.
        if page.name in ("plugins.md", "CHANGELOG.md"):
            continue
        text = page.read_text(encoding="utf-8")
        lines = shell_commands(text)
        lines += re.findall(r"^\|[^|\n]*\| `((?:sweep|strategy)=[^`\n]*)`", text, flags=re.MULTILINE)
        actual |= dict.fromkeys(tuple(shlex.split(line)) for line in lines)
    return [list(arguments) for arguments in actual]


def test_commands_of_the_docs() -> None:
    firsts = [arguments[0] for arguments in lines_of_the_docs() if arguments]
    verbs = [word for word in firsts if "=" not in word and word[0] != "-"]
    assert set(verbs) <= set(COMMANDS) and {"show", "report", "doctor", "list", "compare", "new"} <= set(verbs)


def test_commands_are_found_in_a_page() -> None:
    page = (
        "scalebench is a word. `scalebench show a`\n\n```sh\nscalebench gpus=1  # one\nscalebench\n```\n"
        "   ```yaml\n   - run: scalebench compare b\n   ```\n```console\n$ scalebench check c\n```\n"
    )
    assert shell_commands(page) == ["gpus=1", "", "compare b", "show a"]


@pytest.mark.slow
def test_every_command_of_the_docs_lists_its_runs(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With dry_run=true: none is started. Sweeps over several values need no --multirun within a table."""
    archive = tmp_path_factory.mktemp("data") / "cifar-10-python.tar.gz"  # listing runs does not open it
    archive.touch()
    own = own_functions(tmp_path_factory.mktemp("own"))
    every = lines_of_the_docs()
    lines = [arguments for arguments in every if not arguments or "=" in arguments[0] or arguments[0] == "--multirun"]
    assert len(lines) > 50

    def listed(arguments: tuple[str, ...]) -> str:
        many = any("," in word.partition("=")[2] for word in arguments) and not any(
            w.startswith("sweep=") for w in arguments
        )
        given = ["--multirun", *arguments] if many and "--multirun" not in arguments else list(arguments)
        command = [sys.executable, "-m", "scalebench", *given, "dry_run=true"]
        env = {**os.environ, **own, "SCALEBENCH_CIFAR10": str(archive), "SCALEBENCH_PLUGINS": "scalebench-search"}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
        return done.stderr or "failed" if done.returncode else ""

    wrong = in_parallel(listed, [tuple(arguments) for arguments in lines], at_once=2)
    assert {" ".join(arguments): stated for arguments, stated in wrong.items() if stated} == {}
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.real
def test_benchmarks_run(tmp_path: Path) -> None:
    """They still do what they are for; what they print is for people."""
    env = {**os.environ, "BENCHMARK_LAUNCHES": "1", "BENCHMARK_RUNS": "1000", "BENCHMARK_SOAK_RUNS": "20"}
    program = [sys.executable, "-m", "benchmarks"]
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for subject in ("hand-written loop", "growth of anonymous memory", "loading / parsing"):
        assert subject in done.stdout


def test_the_code_of_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, on a recorded sweep."""
    (tmp_path / "multirun").symlink_to(ROOT / "tests/golden/corpus/target")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/guides/notebook.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 3
    exec("\n".join(blocks), {})
    assert "time_to_target_s" in capsys.readouterr().out
