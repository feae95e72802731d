"""Summarize a search: its trials as a table and a file, the best one as a command."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from scalebench.core.json_files import write_text
from scalebench.report import document as doc
from scalebench.report.terminal_table import make_rich_table
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
    keys, best = list(search.space.searched), search.best
    rows = [["trial", "run", "state", search.settings.objective, *keys, "status", "reason"]]
    for trial in sorted(search.rank_trials(), key=lambda trial: trial.number):
        values = [word.partition("=")[2] for word in trial.overrides] or [""] * len(keys)
        outcome, value = trial.outcome, "" if trial.outcome.value is None else repr(trial.outcome.value)
        rows.append([str(trial.number), str(trial.run), outcome.state, value, *values, outcome.status, outcome.reason])
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(folder / TRIALS_FILE, text.getvalue())
    if best is not None:
        about = {
            "objective": search.settings.objective,
            "label": search.label,
            "better": "more" if search.more_is_better else "less",
            "value": best.outcome.value,
            "trial": best.number,
            "run": str(best.run),  # the folder beside this file
            "overrides": best.overrides,
            "command": command(best, arguments),
        }
        write_text(folder / BEST_FILE, OmegaConf.to_yaml(OmegaConf.create(about)))


def print_summary(search: Study, folder: Path, arguments: Sequence[str], console: Console) -> None:
    """Print the trials and the best one, also of a search that was stopped."""
    trials, best = search.rank_trials(), search.best
    if not trials:
        return
    keys = [key.rpartition(".")[2] for key in search.space.searched]
    rows = []
    for trial in trials[:MAX_ROWS]:
        values = [_shorten(word).partition("=")[2] for word in trial.overrides] or [""] * len(keys)
        value = "" if trial.outcome.value is None else f"{trial.outcome.value:.4g}"
        remarks = ": ".join(filter(None, (trial.outcome.status.removeprefix("ok"), trial.outcome.reason)))
        rows.append(doc.Row([doc.Cell(text) for text in (str(trial.number), value, *values, remarks)]))
    columns = ["trial", search.label, *keys, "remarks"]
    console.print_line(f"trials, the best {search.label} first")
    console.rich.print(make_rich_table(doc.Table("trials", "", columns, rows, frozenset(columns[:-1]))))
    if (more := len(trials) - MAX_ROWS) > 0:
        console.print_line(f"and {more} more in {folder / TRIALS_FILE}")
    if best is None:
        console.print_line(f"no trial has a {search.label}; {folder / TRIALS_FILE} says why")
        return
    console.print_line(f"best: {search.label} {best.outcome.value:.4g} of trial {best.number} ({folder / BEST_FILE})")
    console.print_line(f"again: {command(best, arguments)}")


def describe_trial(search: Study, trial: Trial) -> str:
    """Return the line above a trial: its settings, and the best value so far."""
    best, place = search.best, f"trial {trial.number} ({trial.number + 1} of {search.settings.n_trials})"
    so_far = "" if best is None else f" (best: {search.label} {best.outcome.value:.4g} of trial {best.number})"
    return f"{place}: {' '.join(map(_shorten, trial.overrides))}{so_far}"


def command(trial: Trial, arguments: Sequence[str]) -> str:
    """Return the command for one run with the settings of a trial, from the arguments of the search."""
    dropped = {*SEARCH_KEYS, "--multirun", "-m", *(word.partition("=")[0].lstrip("+") for word in trial.overrides)}
    keys = [word.partition("=")[0].lstrip("+") for word in arguments]
    words = [
        word
        for word, key in zip(arguments, keys, strict=True)
        if key not in dropped and not key.startswith("hydra.sweeper.")
    ]
    # A file of conf/sweep also has the settings of its runs.
    single = ["hydra.mode=RUN"] if any(word.startswith("sweep=") for word in words) else []
    return f"scalebench {shlex.join([*words, *single, *trial.overrides])}"


def _shorten(word: str) -> str:
    """Shorten an override: `learning_rate=0.00132`, the last part of the key, four digits of a number."""
    key, _, value = word.partition("=")
    number = re.fullmatch(r"-?\d+\.\d+(e[+-]?\d+)?|-?\d+e[+-]?\d+", value)
    return f"{key.rpartition('.')[2]}={float(value):.4g}" if number else f"{key.rpartition('.')[2]}={value}"
