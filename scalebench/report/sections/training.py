"""The section `training` of a report: how good models became over epochs and over seconds, and when they reached their
target. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalebench.report import points, training_table
from scalebench.report.blocks import Axis, Block, Chart, Section, Series, Words
from scalebench.report.drawing import MOST_CURVES, tags
from scalebench.report.evidence import Evidence
from scalebench.report.words import text
from scalebench.results import LOWER_IS_BETTER
from scalebench.time_to_target import Outcome, outcomes

MOST_GROUPS = 8
MOST_SEEDS = 10  # of a line
DECADE = 10.0  # from the least to the largest figure, above which an axis is logarithmic
SEVERAL = (
    "Lines are means over seeds as far as all seeds went, bands 95 % intervals over three seeds or more; of seeds that "
    "were evaluated after other numbers of updates, the first one. "
)
POINTS = "Taken at the points of the training, between two updates and outside its clock. "


def section(evidence: Evidence) -> Section | None:
    """None where no run trained to a stop and ended well."""
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    found = [one for one in outcomes(evidence.frame) if one.launches]
    for one in found:
        key = tuple(text(one.first[name]) for name in ("model", "dataset", "metric_name", "hardware", "machine"))
        groups.setdefault(key, []).append(one)
    if not groups:
        return None
    machines = len({key[3:] for key in groups}) > 1
    blocks: list[Block] = []
    for number, (key, members) in enumerate(list(groups.items())[:MOST_GROUPS], 1):
        where = f", hardware {key[3]} ({key[4]})" if machines else ""
        blocks += _group(evidence, number, f"{key[0]} on {key[1]}{where}", members)
    if len(groups) > MOST_GROUPS:
        blocks.append(Words(f"Shown are {MOST_GROUPS} of {len(groups)} groups of a model, a data set and a machine."))
    return Section("training", "Training: accuracy and time to target", blocks)


def _group(evidence: Evidence, number: int, title: str, found: Sequence[Outcome]) -> Iterator[Block]:
    named = training_table.names(found)
    yield from _answers(found, named)
    drawn = [_drawn(evidence, one, named[one.first["training_id"]]) for one in found[:MOST_CURVES]]
    yield from _charts(number, title, text(found[0].first["metric_name"]), drawn, _targets(found))
    if len(drawn) < len(found):
        yield Words(f"{len(drawn)} of {len(found)} trainings of {title} are drawn.")
    yield training_table.table(f"training-{number}-ends", f"What came of training: {title}", found, named)


def _answers(found: Sequence[Outcome], named: dict[str, str]) -> Iterator[Words]:
    """For each target which training got to it first."""
    for target in _targets(found):
        aimed = [one for one in found if one.target == target]
        first = training_table.soonest(aimed)
        if first:
            said = training_table.sentence(first[0], named[first[0].first["training_id"]])
            yield Words(f"Soonest at the target: {said}.", tags=tags(first[0].first))
        if missed := sum(one.reached < one.seeds for one in aimed):
            metric = text(aimed[0].first["metric_name"])
            with_seeds = " with every seed" if any(one.seeds > 1 for one in aimed) else ""
            yield Words(f"{missed} of {len(aimed)} trainings did not reach {metric} {target:g}{with_seeds}.")


def _targets(found: Sequence[Outcome]) -> list[float]:
    return sorted({one.target for one in found if one.target is not None})


def _drawn(evidence: Evidence, one: Outcome, name: str) -> points.Drawn:
    rows = one.by_seed[:MOST_SEEDS]
    curves = [evidence.result(row["run_id"]).quality.curve for row in rows]
    return points.Drawn(name, tags(one.first), curves)


def _charts(
    number: int, title: str, metric: str, drawn: Sequence[points.Drawn], targets: Sequence[float]
) -> Iterator[Chart]:
    several = SEVERAL if any(len(one.curves) > 1 for one in drawn) else ""
    better = f"{metric}, {training_table.goodness(metric)}. "
    told = (
        ("epochs", "Validation", points.validation(metric), points.epochs, f"Validation {better}", targets),
        ("seconds", "Validation", points.validation(metric), points.seconds, f"Validation {better}", targets),
        ("trained", "Samples trained on", points.on_trained(metric), points.epochs, f"Of as many samples that were "
         f"trained on, with dropout off: {better}", ()),
        ("gap", "Generalisation gap", points.gap(metric), points.epochs, f"How much worse {metric} is on validation "
         f"samples than on samples that were trained on; above 0 is worse. ", ()),
    )  # fmt: skip
    for kind, head, of, over, about, levels in told:
        series = [one for each in drawn if (one := points.series(each, of, over)) is not None]
        if series:
            x = Axis("seconds of training" if over is points.seconds else "epochs")
            y = Axis(metric, log=_log(metric, series) and kind != "gap", from_zero=False)
            lines = [*series, *_levels(metric, levels, series, drawn[0].tags["model"])]
            name = f"{head}, {metric} over {x.title}: {title}"
            yield Chart(f"training-{number}-{kind}", name, x, y, lines, "lines", f"{about}{POINTS}{several}".strip())


def _log(metric: str, series: Sequence[Series]) -> bool:
    """Whether these errors go over more than a decade."""
    known = [y for one in series for y in one.y if y is not None]
    return metric.startswith(LOWER_IS_BETTER) and min(known) > 0 and max(known) > DECADE * min(known)


def _levels(metric: str, targets: Sequence[float], series: Sequence[Series], model: str) -> Iterator[Series]:
    """The targets as lines across."""
    places = [float(x) for one in series for x in one.x]
    for target in targets:
        ends = [min(places), max(places)] if max(places) > min(places) else [min(places)]
        name = f"target {metric} {target:g}"
        yield Series(name, ends, [target] * len(ends), tags={"model": model}, style="ideal")
