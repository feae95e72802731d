"""The section `learning` of a report: losses over updates, epochs and seconds, and what validation says. Layer 3."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scalebench.report import runs, units
from scalebench.report.blocks import Axis, Block, Cell, Chart, Row, Section, Series, Table, Words
from scalebench.report.drawing import MOST_CURVES, tags
from scalebench.report.evidence import Evidence
from scalebench.report.losses import Learning, learning
from scalebench.report.thinning import thin
from scalebench.report.words import text

MOST_POINTS = 300  # of a line
MOST_GROUPS = 8
CAPTION = (
    "Training loss, mean over each block of updates and all ranks, drawn at the block's end; warm-up is in it. "
    "Of several launches of a configuration, the first one. "
    f"Where there are more than {MOST_POINTS} blocks, the lowest and the highest of each stretch are drawn."
)
COLUMNS = ("run", "updates", "epochs", "seconds of training", "training loss at the end", "validation")


def section(evidence: Evidence) -> Section | None:
    """None where no run has a loss."""
    firsts = set(evidence.pooled["run_id"])  # launches of one configuration and seed learn alike
    rows = [row for row in runs.detailed(evidence) if row["run_id"] in firsts and row["final_loss"] is not None]
    rows = [row for row in rows if row["status"] == "ok"]
    groups: dict[tuple[str, str], list[runs.Row]] = {}
    for row in rows:
        groups.setdefault((text(row["model"]), text(row["dataset"])), []).append(row)
    if not groups:
        return None
    blocks: list[Block] = []
    for number, (group, members) in enumerate(list(groups.items())[:MOST_GROUPS]):
        blocks += _group(evidence, number, " on ".join(group), members)
    if len(groups) > MOST_GROUPS:
        blocks.append(Words(f"Shown are {MOST_GROUPS} of {len(groups)} pairs of a model and a data set."))
    if said := runs.left_out(evidence):
        blocks.append(Words(said))
    return Section("learning", "Loss while training", blocks, folded=True)


def _group(evidence: Evidence, number: int, title: str, rows: list[runs.Row]) -> Iterator[Block]:
    drawn = runs.first_launches(rows, MOST_CURVES)
    names = runs.names(rows)
    found = {row["run_id"]: learning(evidence.result(row["run_id"])) for row in drawn}
    epoch = {row["run_id"]: evidence.result(row["run_id"]).workload.train_samples for row in drawn}

    def chart(kind: str, axis: str, over: Callable[[str, Learning], Sequence[float]]) -> Chart:
        series = []
        for row in drawn:
            own = found[row["run_id"]]
            points = thin(own.points(over(row["run_id"], own)), MOST_POINTS)
            series.append(Series(names[row["run_id"]], [x for x, _ in points], [y for _, y in points], tags=tags(row)))
        loss = Axis("training loss", from_zero=False)
        return Chart(
            f"learning-{number}-{kind}", f"Loss over {axis}: {title}", Axis(axis), loss, series, caption=CAPTION
        )

    yield chart("updates", "updates", lambda _, own: own.updates)
    if all(epoch.values()):
        yield chart("epochs", "epochs", lambda run_id, own: [seen / (epoch[run_id] or 1) for seen in own.samples])
    else:
        yield chart("samples", "samples", lambda _, own: own.samples)
    yield chart("seconds", "seconds of training", lambda _, own: own.seconds)
    yield _table(number, title, drawn, names, found, epoch)
    if len(drawn) < len(rows):
        yield Words(f"{len(drawn)} of {len(rows)} configurations of {title} are drawn.")


def _table(
    number: int,
    title: str,
    rows: list[runs.Row],
    names: dict[str, str],
    found: dict[str, Learning],
    epoch: dict[str, int | None],
) -> Table:
    made = []
    for row in rows:
        own, of_epoch = found[row["run_id"]], epoch[row["run_id"]]
        epochs = own.samples[-1] / of_epoch if of_epoch else None
        metric = f"{text(row['metric_name'])} {row['metric']:.4g}" if row["metric"] is not None else ""
        cells = [
            Cell(names[row["run_id"]], names[row["run_id"]]),
            Cell(f"{own.updates[-1]:,}", own.updates[-1]),
            Cell("" if epochs is None else f"{epochs:.3g}", epochs),
            Cell(units.seconds(own.seconds[-1]), own.seconds[-1]),
            Cell(f"{row['final_loss']:.4g}", row["final_loss"]),
            Cell(metric, row["metric"]),
        ]
        made.append(Row(cells, tags(row)))
    return Table(
        f"learning-{number}-ends",
        f"Where training ended: {title}",
        COLUMNS,
        made,
        frozenset(COLUMNS[1:]),
        _about([row["stopped_by"] is not None for row in rows]),
    )


def _about(to_stop: list[bool]) -> str:
    """How long these runs are: whether each trained to a stop."""
    measured = (
        "as long as their figures take to measure, not as long as training would be: a lower loss at the end may only "
        "mean more updates. Their validation figure is taken once, after the last measured block."
    )
    stopped = (
        "as long as train.stop says. Their seconds are without the first update, which compiles, and the validation "
        "figure is that of the last point of the curve, which the section on training draws. The loss at the end is "
        "that of the last whole block."
    )
    if all(to_stop):
        return f"Runs are {stopped}"
    return (
        f"Runs that train to a stop are {stopped} The others are {measured}" if any(to_stop) else f"Runs are {measured}"
    )
