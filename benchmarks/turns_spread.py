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
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

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


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[1] if sys.argv[1:] and sys.argv[0].endswith("turns_spread.py") else name)
        run_sweeps(folder)
        print_spread(folder)
        draw_starts(folder).savefig(FIGURE)


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


def draw_starts(folder: Path) -> Figure:
    """Return a picture: the speedup of ddp on 2 devices in each repeat of all sweeps, and in each round of one."""
    repeats: dict[str, list[float]] = {}
    for order, words in ORDERS.items():
        frames = [scalebench.load(folder / f"{order}{number}") for number in range(SWEEPS)]
        rows = [frame[(frame.strategy == "ddp") & (frame.gpus == 2)].sort_values("repeat") for frame in frames]
        repeats[f"repeats, {words}"] = [float(value) for each in rows for value in each.speedup_bare]
    rounds = scalebench.load_rounds(folder / "rounds0").set_index(["repeat", "round"])
    one = rounds[(rounds.strategy == "bare_torch") & (rounds.gpus == 1)].throughput_samples_per_s
    two = rounds[(rounds.strategy == "ddp") & (rounds.gpus == 2)].throughput_samples_per_s
    panels = {**repeats, "rounds of one sweep": list((two / one).dropna().sort_index())}
    figure = Figure((8.6, 3.4), layout="constrained")
    for axes, (title, values) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        axes.plot(values, "o", alpha=0.7)
        axes.set(title=title, xticks=[], ylim=(0, None))
        axes.grid(axis="y")
    figure.supylabel("speedup of ddp on 2")
    return figure


if __name__ == "__main__":
    main()
