"""The same sweep several times, its runs in turns and one after the other: how far its speedups differ between sweeps.

All but the first sweep of each kind run beside a process that takes a core in bursts. Takes about half an hour; writes
docs/figures/turns.svg. `python -m benchmarks.turns_spread [FOLDER]` keeps the sweeps.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

import scalebench
from scalebench.core.exit_with_parent import tied_command

SWEEPS = 3
ORDERS = {"given": "one after the other", "rounds": "in turns"}
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "turns.svg"
# Computes for 0.2 to 3 s, and sleeps as long: seeded, so that all kinds of sweeps get the same.
BURSTS = """
import random, time
random.seed(1)
while True:
    end_s = time.monotonic() + random.uniform(0.2, 3)
    while time.monotonic() < end_s:
        pass
    time.sleep(random.uniform(0.2, 3))
"""
WIDTH, HEIGHT, LEFT, TOP = 860, 300, 56, 34


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[1] if sys.argv[1:] and sys.argv[0].endswith("turns_spread.py") else name)
        run_sweeps(folder)
        print_spread(folder)
        FIGURE.write_text(draw_starts(folder))


def run_sweeps(folder: Path) -> None:
    """Run the sweeps of both kinds by turns, so that both meet the machine at all its hours."""
    for number, order in itertools.product(range(SWEEPS), ORDERS):
        target = folder / f"{order}{number}"
        if target.exists():
            continue
        begin_s = time.monotonic()
        with take_a_core_in_bursts() if number else contextlib.nullcontext():
            command = ["sweep=demo", "measure.repeats=3", "measure.probes=false", "sweep.report=false"]
            subprocess.run(
                [sys.executable, "-m", "scalebench", *command, f"measure.order={order}", f"hydra.sweep.dir={target}"],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        print(f"{ORDERS[order]}{' beside bursts' if number else ''}: {time.monotonic() - begin_s:.0f} s", flush=True)


@contextlib.contextmanager
def take_a_core_in_bursts() -> Iterator[None]:
    with subprocess.Popen(tied_command(os.getpid(), [sys.executable, "-c", BURSTS])) as process:
        try:
            yield
        finally:
            process.kill()


def print_spread(folder: Path) -> None:
    """Print each speedup of each sweep, and its spread: the standard deviation of its logarithm over the sweeps."""
    spreads: dict[str, list[float]] = {order: [] for order in ORDERS}
    for order, words in ORDERS.items():
        frames = [scalebench.pooled(folder / f"{order}{number}") for number in range(SWEEPS)]
        for strategy, gpus in frames[0][["strategy", "gpus"]].itertuples(index=False):
            rows = [frame[(frame.strategy == strategy) & (frame.gpus == gpus)].iloc[0] for frame in frames]
            if rows[0].status != "ok" or (strategy == "bare_torch" and gpus == 1):
                continue
            spreads[order].append(statistics.stdev(math.log(row.speedup_bare) for row in rows))
            values = ", ".join(
                f"{r.speedup_bare:.2f} [{r.speedup_bare_low:.2f}, {r.speedup_bare_high:.2f}]" for r in rows
            )
            print(f"{words:20s} {strategy:20s} gpus={gpus}: {values}; spread {spreads[order][-1]:.1%}")
    one_by_one, in_turns = (statistics.fmean(spreads[order]) for order in ORDERS)
    print(
        f"mean spread: {one_by_one:.1%} one after the other, {in_turns:.1%} in turns: {one_by_one / in_turns:.1f} times"
    )


def format_speedup(row: pd.Series[float]) -> str:
    return f"{row.speedup_bare:.2f} [{row.speedup_bare_low:.2f}, {row.speedup_bare_high:.2f}]"


def draw_starts(folder: Path) -> str:
    """Return an SVG: the speedup of each repeat of ddp on 2 devices, of all sweeps, and of each round."""
    given = [speedups_of_repeats(folder / f"given{number}") for number in range(SWEEPS)]
    turns = [speedups_of_repeats(folder / f"rounds{number}") for number in range(SWEEPS)]
    rounds = speedups_of_rounds(folder / "rounds0")
    top = 1.1 * max(itertools.chain(*given, *turns, rounds))
    panels = [("repeats, one after the other", given), ("repeats, in turns", turns), ("rounds of one sweep", [rounds])]
    width = (WIDTH - LEFT) / len(panels)
    marks = []
    for at, (title, series) in enumerate(panels):
        left = LEFT + at * width
        marks.append(f'<text x="{left + width / 2:.0f}" y="20" text-anchor="middle">{title}</text>')
        values = list(itertools.chain(*series))
        for number, value in enumerate(values):
            x = left + 14 + (width - 28) * number / max(1, len(values) - 1)
            y = TOP + HEIGHT * (1 - value / top)
            marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#1f77b4" fill-opacity="0.7"/>')
    step = 0.5 if top > 1 else 0.1
    for tick in range(int(top / step) + 1):
        y = TOP + HEIGHT * (1 - tick * step / top)
        marks.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        marks.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick * step:.1f}</text>')
    turned = f'transform="translate(14 {TOP + HEIGHT / 2}) rotate(-90)" text-anchor="middle"'
    label = f"<text {turned}>speedup of ddp on 2</text>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {TOP + HEIGHT + 12}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="13">', label, *marks, "</svg>", ""])


def speedups_of_repeats(folder: Path) -> Sequence[float]:
    frame = scalebench.load(folder)
    rows = frame[(frame.strategy == "ddp") & (frame.gpus == 2)].sort_values("repeat")
    return [float(value) for value in rows.speedup_bare]


def speedups_of_rounds(folder: Path) -> Sequence[float]:
    frame = scalebench.load_rounds(folder)
    keys = ["repeat", "round"]
    one = frame[(frame.strategy == "bare_torch") & (frame.gpus == 1)].set_index(keys).throughput_samples_per_s
    two = frame[(frame.strategy == "ddp") & (frame.gpus == 2)].set_index(keys).throughput_samples_per_s
    ratios: pd.Series[float] = (two / one).dropna().sort_index()
    return [float(value) for value in ratios]


if __name__ == "__main__":
    main()
