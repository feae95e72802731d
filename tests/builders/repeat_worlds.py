"""Made-up sweeps whose truth is known: log throughputs of configurations in repeats, on machines of many kinds."""

from collections import Counter
from dataclasses import dataclass

import msgspec
import numpy as np
from scipy.signal import lfilter

from scalebench.analysis.ranking import advise, rank_rows
from scalebench.core.stats.log_means import LogMean
from scalebench.core.stats.moderated_variance import RepeatTable

BLOCK_SD = 0.002  # of the log throughput of one repeat, by its blocks
RATE = 100.0
ROUNDS = 100  # of a repeat in turns: the 30 s of the default settings, in three repeats
MEMORY = float(np.exp(-0.1 / 2.0))  # correlation of the machine's speed from one slot of 0.1 s to the next: for 2 s


@dataclass(frozen=True)
class World:
    """How repeats vary, as standard deviations of log throughput."""

    name: str
    start: float  # from start to start of one configuration
    drift: float = 0.0  # common to all configurations of a repeat
    unlike: float = 0.0  # of the logarithms of the configurations' own deviations
    wild: float = 1.0  # how many times as much the first configuration varies
    slow: float = 0.0  # share of starts that are slower by 15 %
    stalls: float = 0.0  # in a repeat on the average, each 3 % of its time
    machine: float = 0.0  # within a repeat, from second to second; configurations take turns

    def draw(self, rng, configurations, repeats):
        """Return log throughputs around 0, a row for each configuration."""
        scale = self.start * np.exp(self.unlike * rng.standard_normal(configurations))
        scale[0] *= self.wild
        levels = np.hypot(scale, BLOCK_SD)[:, None] * rng.standard_normal((configurations, repeats))
        levels -= 0.15 * (rng.random((configurations, repeats)) < self.slow)
        if self.stalls:
            levels -= 0.03 * rng.poisson(self.stalls, (configurations, repeats))
        if self.machine:
            levels += self.machine * np.stack([draw_turns(rng, configurations) for _ in range(repeats)], axis=1)
        return levels + self.drift * rng.standard_normal(repeats)

    @property
    def mean(self):
        """What the log throughputs vary around."""
        return -0.15 * self.slow - 0.03 * self.stalls


def draw_turns(rng, configurations):
    """Return the mean level of a machine that varies by 1 in the slots of each configuration: one in each round, in
    random order."""
    steps = np.sqrt(1 - MEMORY**2) * rng.standard_normal(ROUNDS * configurations)
    steps[0] = rng.standard_normal()
    speed = lfilter([1.0], [1.0, -MEMORY], steps).reshape(ROUNDS, configurations)
    mean = rng.permuted(speed, axis=1).mean(axis=0)
    return mean


WORLDS = (
    World("equal starts", 0.0),
    World("starts differ by 1 %", 0.01),
    World("3 %", 0.03),
    World("10 %", 0.10),
    World("3 %, and the machine by 5 % from repeat to repeat", 0.03, drift=0.05),
    World("3 %, unlike", 0.03, unlike=0.5),
    World("1 %, and stalls: one of 3 % in each repeat on the average", 0.01, stalls=1.0),
    World("3 %, one of them six times as much", 0.03, wild=6.0),
)
IN_TURNS = World("2.5 %, in turns on a machine that varies by 15 %", 0.025, machine=0.15)
BIMODAL = World("1 %, a quarter of the starts slower by 15 %", 0.01, slow=0.25)


def make_table(levels):
    return RepeatTable({number: dict(enumerate(row)) for number, row in enumerate(levels.tolist())})


def sweeps(world, trials, configurations, repeats, seed=0):
    rng = np.random.default_rng(seed)
    return (world.draw(rng, configurations, repeats) for _ in range(trials))


def cover(world, trials, configurations=5, repeats=3):
    """Return the share of intervals that hold the truth, of the throughput of the first configuration and of its ratio
    to the second, and the median half-widths of both (shares)."""
    held, widths = np.zeros(2), []
    for levels in sweeps(world, trials, configurations, repeats):
        table = make_table(levels)
        means = (table.mean(0, levels[0]), table.difference(0, 1, levels[0] - levels[1]))
        estimates = [mean.to_estimate() for mean in means]
        truths = np.exp([world.mean, 0.0])
        held += [one.low <= truth <= one.high for one, truth in zip(estimates, truths, strict=True)]
        widths.append([one.relative_half_width() for one in estimates])
    return (*(held / trials), *np.median(widths, axis=0))


def cover_further(world, trials, configurations=5, most=6, half_width=0.1):
    """Return the share of intervals that hold the truth, as `cover`, and the mean number of repeats, of sweeps that go
    on while the limits of a ratio to the first configuration are wider than that."""
    held, counts = np.zeros(2), []
    for levels in sweeps(world, trials, configurations, most):
        for repeats in range(3, most + 1):
            part = levels[:, :repeats]
            table = make_table(part)
            ratios = [table.difference(k, 0, part[k] - part[0]).to_estimate() for k in range(1, configurations)]
            if max(ratio.relative_half_width() for ratio in ratios) <= half_width:
                break
        counts.append(repeats)
        estimates = (table.mean(0, part[0]).to_estimate(), ratios[0])
        truths = np.exp([world.mean, 0.0])
        held += [each.low <= truth <= each.high for each, truth in zip(estimates, truths, strict=True)]
    return (*(held / trials), float(np.mean(counts)))


def make_rows(levels, **cells):
    """Return rows `0`, `1`, ... of a sweep whose configurations these are, and what estimates their ratios."""
    table = make_table(levels)

    def estimate_ratio(row, base):
        if row is base:
            return LogMean(0.0)
        difference = table.difference(row["name"], base["name"], levels[row["name"]] - levels[base["name"]])
        return msgspec.structs.replace(difference, in_rounds=bool(cells.get("in_turns")))

    cells = {"interval_over": "repeats", "flags": None, "repeats": levels.shape[1], **cells}
    rows = [
        (str(k), {**cells, "name": k, "run_id": str(k), "throughput_samples_per_s": RATE * float(np.exp(row.mean()))})
        for k, row in enumerate(levels)
    ]
    return rows, estimate_ratio


def rank_levels(levels):
    """Rank strategies `0`, `1`, ... as a sweep whose configurations these are."""
    rows, estimate_ratio = make_rows(levels)
    return rank_rows({}, 2, rows, estimate_ratio)


def advise_beside(trials, speedup, taken, flags="busy_machine", repeats=3):
    """Return the shares of sweeps that advise two devices, and one, where two are really so many times as fast, starts
    differ by 1 %, and other programs take up to this share of the time of two devices in a repeat. They take a quarter
    of that from one device, which moves to a free core while two wait for the slower one."""
    rng, said = np.random.default_rng(0), Counter()
    for levels in sweeps(WORLDS[1], trials, 2, repeats, seed=1):
        share = taken * rng.random(repeats)
        levels = levels + np.log([1 - share / 4, speedup * (1 - share)])
        rows, estimate_ratio = make_rows(levels, flags=flags if taken else None, in_turns=True)
        for (_, row), gpus in zip(rows, (1, 2), strict=True):
            row |= {"gpus": gpus, "baseline_bare_id": "0"}
        rankings = [rank_rows({}, row["gpus"], [(name, row)], estimate_ratio) for name, row in rows]
        said[advise(rankings, {name: (name, row) for name, row in rows}, estimate_ratio).kind] += 1
    return said["take"] / trials, said["stay"] / trials


def rank_many(world, trials, strategies, leads=(), repeats=3):
    """Return the shares of sweeps in which the first strategy is said to be the best, and in which another one is;
    `leads` are added to the log throughputs of the first strategies."""
    said = [0, 0]
    for levels in sweeps(world, trials, strategies, repeats):
        levels[: len(leads)] += np.array(leads)[:, None] if leads else 0.0
        ranking = rank_levels(levels)
        if ranking.certainty == "best":
            said[ranking.best != "0"] += 1
    return said[0] / trials, said[1] / trials
