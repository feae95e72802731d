"""What came of trainings, as a table and in sentences. Layer 3."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from scalebench.report import runs, tables, units
from scalebench.report.blocks import Cell, Row, Table
from scalebench.report.drawing import tags
from scalebench.report.words import text
from scalebench.results import LOWER_IS_BETTER
from scalebench.stats import Interval
from scalebench.time_to_target import Figure, Outcome, outcomes

if TYPE_CHECKING:
    import pandas as pd

MOST_SENTENCES = 12
FIRST = ("run", "gpus", "batch per device", "global batch", "rule", "learning rate")
COMPARED = ("bare", "self")
CAPTION = (
    "Means over seeds with 95 % intervals by Student's t, where there are three seeds or more and all have the figure. "
    "Seconds are of training: the first update, which compiles, and evaluation are not in them. The gap is how much "
    "worse the metric is on validation samples than on samples that were trained on. Speedup to target is the "
    "baseline's time to target over the run's own, seed by seed; beside it, the speedup in throughput, which knows "
    "nothing of what was learned."
)


def names(found: Sequence[Outcome]) -> dict[str, str]:
    """training_id -> `ddp_gloo on 2 devices, batch per device 75`: what tells it from the others here."""
    told = runs.names(runs.plain([one.first for one in found]))
    return {one.first["training_id"]: told[one.first["run_id"]] for one in found}


def table(id: str, title: str, found: Sequence[Outcome], named: Mapping[str, str]) -> Table:
    metric = text(found[0].first["metric_name"]) or "metric"
    kinds = [kind for kind in COMPARED if any(one.figures[f"speedup_{kind}"][0] is not None for one in found)]
    targets = any(one.target is not None for one in found)
    aimed = ["target", "reached", "epochs to target", "time to target (95 %)"] if targets else []
    ratios = [f"{what} {kind}" for kind in kinds for what in _ratio_heads(targets)]
    heads = [*FIRST, "epochs", "seconds of training", f"{metric} (95 %)", "gap", *aimed, *ratios, "stopped by"]
    rows = []
    for one in found:
        cells = [*_setting(one, named), *_ends(one), *(_aimed(one) if targets else [])]
        cells += [_ratio(one.figures[name]) for kind in kinds for name in _ratio_columns(kind, targets)]
        rows.append(Row([*cells, _cell(", ".join(one.stopped_by))], tags(one.first)))
    return Table(id, title, heads, rows, frozenset(heads[1:-1]) - {"rule", "reached"}, CAPTION)


def sentences(frame: pd.DataFrame) -> list[str]:
    """For the terminal, whose table has a row a seed: when trainings of several seeds got to their target, the soonest
    first; those that never did last."""
    found = [one for one in outcomes(frame) if one.target is not None and one.seeds > 1]
    named = names(found)
    made = [sentence(one, named[one.first["training_id"]]) for one in sorted(found, key=_soonest)]
    more = [f"{len(made) - MOST_SENTENCES} more trainings: see the report"] if len(made) > MOST_SENTENCES else []
    return made[:MOST_SENTENCES] + more


def sentence(one: Outcome, name: str) -> str:
    """`ddp_gloo on 2 devices: mse 0.0005 after 12.3 s of training [11.9, 12.7], 4.2 epochs; 3 of 5 seeds reached it`"""
    metric = f"{text(one.first['metric_name']) or 'metric'} {one.target:g}"
    if not one.reached:
        seeds = f" with any of {one.seeds} seeds" if one.seeds > 1 else ""
        return f"{name}: {metric} was not reached{seeds}{_failed(one)}"
    said = f"{name}: {metric} after {_duration(one.figures['time_to_target_s'])} of training"
    epochs = one.figures["epochs_to_target"][0]
    return f"{said}, {epochs:.3g} epochs{_by_seeds(one)}" if epochs is not None else f"{said}{_by_seeds(one)}"


def goodness(metric: str) -> str:
    return "lower is better" if metric.startswith(LOWER_IS_BETTER) else "higher is better"


def soonest(found: Iterable[Outcome]) -> list[Outcome]:
    """Those of which every seed got to the target, the soonest first."""
    return sorted((one for one in found if one.reached == one.seeds), key=_soonest)


def _soonest(one: Outcome) -> tuple[bool, float]:
    time_s = one.figures["time_to_target_s"][0]
    return time_s is None, time_s or 0.0


def _by_seeds(one: Outcome) -> str:
    return f"; {_reached(one)} seeds reached it{_failed(one)}" if one.seeds > 1 else ""


def _failed(one: Outcome) -> str:
    return f", {one.failed} failed" if one.failed else ""


def _reached(one: Outcome) -> str:
    return f"{one.reached} of {one.seeds}"


def _setting(one: Outcome, named: Mapping[str, str]) -> list[Cell]:
    row = one.first
    rule = text(row["learning_rate_rule"])
    base = f" from {row['base_batch']:,}" if row["base_batch"] is not None and rule != "none" else ""
    rate = row["learning_rate"]
    return [
        _cell(named[row["training_id"]]),
        Cell(str(row["gpus"]), row["gpus"]),
        *(Cell(f"{row[name]:,}", row[name]) for name in ("batch_per_device", "global_batch")),
        _cell(f"{rule}{base}"),
        Cell("" if rate is None else f"{rate:.4g}", rate),
    ]


def _ends(one: Outcome) -> list[Cell]:
    epochs, gap = one.figures["trained_epochs"][0], one.figures["generalisation_gap"]
    return [
        Cell("" if epochs is None else f"{epochs:.3g}", epochs),
        _seconds(one.figures["trained_s"]),
        Cell(level(one.figures["metric"]), one.figures["metric"][0]),
        Cell(level(gap), gap[0]),
    ]


def _aimed(one: Outcome) -> list[Cell]:
    epochs = one.figures["epochs_to_target"][0]
    return [
        Cell("" if one.target is None else f"{one.target:g}", one.target),
        _cell("" if one.target is None else f"{_reached(one)} seeds"),
        Cell("" if epochs is None else f"{epochs:.3g}", epochs),
        _seconds(one.figures["time_to_target_s"]),
    ]


def _ratio_heads(targets: bool) -> list[str]:
    return ["to target over", "samples/s over"] if targets else ["samples/s over"]


def _ratio_columns(kind: str, targets: bool) -> list[str]:
    return [f"speedup_target_{kind}", f"speedup_{kind}"] if targets else [f"speedup_{kind}"]


def _ratio(figure: Figure) -> Cell:
    value, interval = figure
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Cell(tables.ratio({"x": value, "x_low": low, "x_high": high}, "x"), value)


def _seconds(figure: Figure) -> Cell:
    return Cell("" if figure[0] is None else _duration(figure), figure[0])


def _duration(figure: Figure) -> str:
    value, interval = figure
    assert value is not None
    return units.duration(interval or Interval(value, value, value))


def level(figure: Figure) -> str:
    """`0.00048 [0.00041, 0.00055]`"""
    value, interval = figure
    if value is None:
        return ""
    return f"{value:.4g}" if interval is None else f"{value:.4g} [{interval.low:.3g}, {interval.high:.3g}]"


def _cell(shown: str) -> Cell:
    return Cell(shown, shown or None)
