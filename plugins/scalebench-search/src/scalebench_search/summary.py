"""Summarize a search: its trials as a table and a file, the best one as a command."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.markup import escape

from scalebench.core.json_files import write_text
from scalebench.sweeps.console import Console
from scalebench_search.study import Study, Trial

TRIALS_FILE, BEST_FILE = "trials.csv", "best.yaml"
MAX_ROWS = 30  # of the table; the file has all
SEARCH_KEYS = (
    *("hydra.sweep.dir", "hydra.mode", "hydra/sweeper", "resume", "baseline"),
    *("sweep.max_minutes", "sweep.report"),
)


def write_files(search: Study, folder: Path, arguments: Sequence[str]) -> None:
    """Write trials.csv and best.yaml in the sweep's folder; called after each trial, so that both outlive a crash."""
    keys = list(search.space.searched)
    rows = [["trial", "run", "state", search.settings.objective, *keys, "status", "reason"]]
    for trial in sorted(search.trials(), key=lambda trial: trial.number):
        values = [word.partition("=")[2] for word in trial.overrides] or [""] * len(keys)
        value = "" if trial.value is None else repr(trial.value)
        rows.append([str(trial.number), str(trial.run), trial.state, value, *values, trial.status, trial.reason])
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(folder / TRIALS_FILE, text.getvalue())
    best = search.best
    if best is not None and best.value is not None:
        about = {
            "objective": search.settings.objective,
            "label": search.label,
            "better": "more" if search.more_is_better else "less",
            "value": best.value,
            "trial": best.number,
            "run": str(best.run),  # the folder beside this file
            "overrides": best.overrides,
            "command": command(best, arguments),
        }
        write_text(folder / BEST_FILE, OmegaConf.to_yaml(OmegaConf.create(about)))


def print_summary(search: Study, folder: Path, arguments: Sequence[str], console: Console) -> None:
    """Print the trials and the best one, also of a search that was stopped."""
    trials, best = search.trials(), search.best
    if not trials:
        return
    console.rich.print(table(search, trials))
    if (more := len(trials) - MAX_ROWS) > 0:
        console.print_line(f"and {more} more in {folder / TRIALS_FILE}")
    if best is None:
        console.print_line(f"no trial has a {search.label}; {folder / TRIALS_FILE} says why")
        return
    console.print_line(f"best: {search.label} {best.value:.4g} of trial {best.number} ({folder / BEST_FILE})")
    console.print_line(f"again: {command(best, arguments)}")


def heading(search: Study, number: int, overrides: Sequence[str]) -> str:
    """Return the line above a trial: its settings, and the best value so far."""
    best = search.best
    so_far = "" if best is None else f" (best: {search.label} {best.value:.4g} of trial {best.number})"
    return f"trial {number} ({number + 1} of {search.settings.n_trials}): {' '.join(map(_short, overrides))}{so_far}"


def table(search: Study, trials: Sequence[Trial]) -> Any:
    from rich import box
    from rich.table import Table

    made = Table(title=f"trials, the best {search.label} first", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("trial", search.label):
        made.add_column(name, justify="right")
    for key in search.space.searched:
        made.add_column(escape(key.rpartition(".")[2]), justify="right", overflow="fold")
    made.add_column("remarks", overflow="fold")
    for trial in trials[:MAX_ROWS]:
        values = [_short(word).partition("=")[2] for word in trial.overrides] or [""] * len(search.space.searched)
        value = "" if trial.value is None else f"{trial.value:.4g}"
        made.add_row(str(trial.number), value, *map(escape, values), escape(remark(trial)))
    return made


def remark(trial: Trial) -> str:
    words = [trial.status] if trial.status not in ("ok", "") else []
    return ": ".join([*words, *([trial.reason] if trial.reason else [])])


def command(trial: Trial, arguments: Sequence[str]) -> str:
    """Return the command for one run with the settings of a trial, from the arguments of the search."""
    searched = {word.partition("=")[0].lstrip("+") for word in trial.overrides}
    kept = []
    for word in arguments:
        key = word.partition("=")[0].lstrip("+")
        of_search = key in (*SEARCH_KEYS, *searched) or key.startswith("hydra.sweeper.")
        if not of_search and word not in ("--multirun", "-m"):
            kept.append(word)
    # A file of conf/sweep also has the settings of its runs.
    single = ["hydra.mode=RUN"] if any(word.startswith("sweep=") for word in kept) else []
    return f"scalebench {shlex.join([*kept, *single, *trial.overrides])}"


def _short(word: str) -> str:
    """Shorten an override: `learning_rate=0.00132`, the last part of the key, four digits of a number."""
    key, _, value = word.partition("=")
    number = re.fullmatch(r"-?\d+\.\d+(e[+-]?\d+)?|-?\d+e[+-]?\d+", value)
    return f"{key.rpartition('.')[2]}={float(value):.4g}" if number else f"{key.rpartition('.')[2]}={value}"
