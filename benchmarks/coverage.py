"""How often intervals over repeats hold the truth, and how often the best strategy is found, in made-up sweeps.

The table of docs/explain/measuring.md. Takes about a minute; the figures are the same in each run of it.
"""

from __future__ import annotations

import os

from tests.builders.repeat_worlds import BIMODAL, IN_TURNS, WORLDS, World, advise_beside, cover, rank_many

TRIALS = int(os.environ.get("BENCHMARK_TRIALS", "2000"))
LEAD = 0.1


def main() -> None:
    print(f"{TRIALS} sweeps of five configurations each: share of 95 % intervals that hold the truth [half-width]")
    print("| repeats differ by | throughput, 3 | ratio, 3 | throughput, 5 | ratio, 5 |\n" + 5 * "| --- " + "|")
    for world in (*WORLDS, IN_TURNS, BIMODAL):
        cells = [cell for repeats in (3, 5) for cell in format_cover(world, repeats)]
        print(f"| {world.name} | {' | '.join(cells)} |")
    print(f"\nshare of sweeps of three repeats that name a best strategy: wrongly / rightly, of a lead of {LEAD:.0%}")
    counts = (2, 3, 4, 8)
    print(f"| repeats differ by | {' | '.join(f'{count} strategies' for count in counts)} |\n" + 5 * "| --- " + "|")
    for world in (WORLDS[1], World("2 %", 0.02), *WORLDS[2:]):
        print(f"| {world.name} | {' | '.join(format_ranking(world, count) for count in counts)} |")
    print("\nshare of sweeps beside other programs that advise two devices / one device, by how fast two really are")
    speedups = (0.97, 1.0, 1.03, 1.2)
    print(f"| others take up to | {' | '.join(f'{speedup:g} times' for speedup in speedups)} |\n" + 5 * "| --- " + "|")
    for taken in (0.0, 0.1, 0.3):
        cells = ["{:.3f} / {:.3f}".format(*advise_beside(TRIALS, speedup, taken)) for speedup in speedups]
        print(f"| {taken:.0%} | {' | '.join(cells)} |")
    blind = advise_beside(TRIALS, 1.03, 0.1, flags="")[1]
    print(f"without a look at other programs, of 10 %: one device wrongly in {blind:.3f}")


def format_cover(world: World, repeats: int) -> list[str]:
    throughput, ratio, width, ratio_width = cover(world, TRIALS, repeats=repeats)
    return [f"{throughput:.3f} [{100 * width:.1f} %]", f"{ratio:.3f} [{100 * ratio_width:.1f} %]"]


def format_ranking(world: World, strategies: int) -> str:
    """Wrong is another one than the first, where all are equal."""
    _, wrong = rank_many(world, TRIALS // 2, strategies)
    found, _ = rank_many(world, TRIALS // 2, strategies, [LEAD])
    return f"{wrong:.3f} / {found:.2f}"
