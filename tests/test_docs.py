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

from scalebench import cli, jobs, resolve
from tests.conf.sweep_choices import sweep_choices
from tests.conf.test_conf import load
from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/*.md"), ROOT / "multirun/README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def commands() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^python -m scalebench[^#\n]*", text, flags=re.MULTILINE)
    return [command.strip() for command in found if "show" not in command]


def test_commands_of_the_readme(tmp_path: Path) -> None:
    """Each is accepted; none is started."""
    assert len(commands()) >= 5
    for command in commands():
        words = shlex.split(command)[3:]
        dry = words if words in (["strategies"], ["doctor"]) else [*words, "dry_run=true"]
        done = subprocess.run(
            [sys.executable, "-m", "scalebench", *dry], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert not list(tmp_path.iterdir())


def told(page: str) -> list[dict[str, str]]:
    """Overrides in a page, those of each command and each `key=value`; one run for each value of a sweep."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = re.findall(r"python -m scalebench (?:--multirun )?([^#\n`]*)", text)
    lines += re.findall(r"`([a-z_.]+=[^`\n]*)`", text)
    found = []
    for line in lines:
        choices = {key: value.split(",") for key, _, value in (word.partition("=") for word in line.split())}
        for number in range(max(map(len, choices.values()))):
            run = {key: values[number % len(values)] for key, values in choices.items()}
            found.append(run)  # a sweep composes this before any of its runs
            if "sweep" in run:
                found.append({**first_run(run["sweep"]), **run})
    return found


def first_run(sweep: str) -> dict[str, str]:
    params = load(f"sweep/{sweep}.yaml")["hydra"]["sweeper"]["params"]
    return {key: sweep_choices(values)[0] for key, values in params.items()}


@pytest.mark.parametrize("page", ["from-tf-cnn-benchmarks.md", "studies.md"])
def test_overrides_of_the_studies(page: str) -> None:
    """Each composes, of options and settings that there are."""
    assert len(told(page)) > 20
    for run in told(page):
        resolve.check(jobs.to_config(cli.compose([f"{key}={value}" for key, value in run.items()])))
        GlobalHydra.instance().clear()


@pytest.mark.slow
@pytest.mark.real
def test_benchmarks_run(tmp_path: Path) -> None:
    """They still do what they are for; what they print is for people."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks"],
        cwd=ROOT,
        env={**os.environ, "BENCHMARK_LAUNCHES": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "hand-written loop" in done.stdout
    assert "growth of anonymous memory" in done.stdout
