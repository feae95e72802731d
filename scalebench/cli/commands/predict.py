"""`scalebench predict [DIR...]`: what more devices would give, from the runs below one or more folders."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.cli.commands.arguments import (
    FOLDERS_HELP,
    CommandParser,
    folders_or_newest,
    read_count,
    read_counts,
    read_efficiency,
    read_names,
)
from scalebench.core.errors import InputError, unknown_name_message

if TYPE_CHECKING:
    from scalebench.analysis.prediction.predictions import Check, PredictedGroup
    from scalebench.analysis.scaling_curves import Curve
    from scalebench.core.result import Result
    from scalebench.report.document import Table

MIN_MOST = 1024  # devices up to which scaling is looked at, where none are named


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("DIR", nargs="*", help=FOLDERS_HELP)
    parser.add_argument("--hardware", metavar="NAME", help="its nodes, links and memory instead of those measured on")
    counts = parser.add_mutually_exclusive_group()
    counts.add_argument(
        "--gpus", metavar="N,...", type=read_counts, default=[], help="numbers of devices; default: the next doublings"
    )
    counts.add_argument(
        "--most", metavar="N", type=read_count, help="all doublings up to N devices; looks at every number up to N"
    )
    parser.add_argument("--strategy", metavar="NAME,...", type=read_names, default=[], help="only these")
    parser.add_argument(
        "--batch", metavar="N", type=read_count, help="samples of a device in a step, instead of those measured"
    )
    parser.add_argument(
        "--efficiency", metavar="SHARE", type=read_efficiency, default=0.8, help="lowest useful one; default 0.8"
    )
    parser.add_argument("--check", action="store_true", help="predict the measured rows from the smaller ones")
    parser.add_argument("--csv", action="store_true", help="print the predictions as CSV")


def main(options: argparse.Namespace) -> int:
    counts, most = options.gpus, options.most
    hardware = None if options.hardware is None else _read_hardware(options.hardware)
    folders = folders_or_newest(options.DIR)

    from scalebench.analysis import load, scaling_curves
    from scalebench.analysis.prediction import predictions
    from scalebench.core.result import read_result
    from scalebench.core.run_folder import RESULT_FILE
    from scalebench.report.sections import prediction as section
    from scalebench.sweeps.console import Console

    read_path = cache(lambda path: read_result(Path(path) / RESULT_FILE))

    def read(row: Any) -> Result:
        return read_path(str(row["path"]))

    curves = scaling_curves.make_curves(load.survey(folders).pooled)
    measured = [curve for curve in curves if read(curve.rows[0]).spec.get("strategy", {}).get("max_gpus") != 1]
    if not measured:
        raise InputError(f"{', '.join(folders)}: no strategy has an ok run; scalebench show says why")
    curves = _choose(measured, options.strategy)
    if options.check:
        return _check(predictions.check_curves(curves, read))
    if most is not None:
        counts = [count for count in (2**k for k in range(most.bit_length())) if count < most] + [most]
    counts = sorted(set(counts)) or section.choose_counts(curves)
    groups = predictions.predict_curves(curves, read, hardware, options.batch, measured)
    if not any(group.predictions for group in groups):
        reasons = dict.fromkeys(f"{name}: {reason}" for group in groups for name, reason in group.reasons.items())
        raise InputError("; ".join(filter(None, [*reasons, _describe_mixture(curves)])))
    if mixture := _describe_mixture(curves):
        Console.print_error(mixture)
    if options.csv:
        _print_csv(groups, counts)
        return 0
    for group in groups:
        paragraphs = section.make_paragraphs(group, counts, options.efficiency, most or max(MIN_MOST, counts[-1]))
        first, *others = [paragraph.text for paragraph in paragraphs]
        _print([first, section.make_table(group, counts), *others])
    return 0


def _read_hardware(name: str) -> dict[str, Any]:
    from scalebench.core.config_files import list_options, read_yaml

    files = list_options("hardware")
    if name not in files:
        raise InputError(f"{unknown_name_message('hardware', name, files)} (--hardware)")
    return {"name": name, **read_yaml(files[name])}


def _choose(curves: Sequence[Curve], names: Sequence[str]) -> list[Curve]:
    strategies = {curve.tags["strategy"] for curve in curves}
    for name in names:
        if name not in strategies:
            raise InputError(f"{unknown_name_message('measured strategy', name, strategies)} (--strategy)")
    return [curve for curve in curves if not names or curve.tags["strategy"] in names]


def _describe_mixture(curves: Iterable[Curve]) -> str:
    """Say which workloads and machines are mixed; empty for one of them."""
    values: dict[str, dict[str, None]] = {}
    for name, text in (item for curve in curves for item in curve.group.items()):
        values.setdefault(name, {})[text] = None
    mixed = [f"{name} {', '.join(texts)}" for name, texts in values.items() if len(texts) > 1]
    return f"runs differ ({'; '.join(mixed)}) and are predicted apart: name the folders of one" if mixed else ""


def _check(checks: Sequence[Check]) -> int:
    from scalebench.report.sections.prediction import make_check_table

    if not checks:
        raise InputError("nothing to check: no row can be predicted from smaller ones of its curve; measure gpus=1,2,4")
    for _, members in itertools.groupby(checks, lambda check: check.curve.group):
        table = make_check_table(list(members))
        _print([table, table.caption])
    return 0


def _print(blocks: Iterable[Table | str]) -> None:
    from scalebench.report.terminal_table import render
    from scalebench.sweeps.console import Console

    console = Console(are_runs=False)
    for part in render(blocks):
        console.print_part(part)


def _print_csv(groups: Iterable[PredictedGroup], counts: Sequence[int]) -> None:
    import pandas as pd

    from scalebench.analysis.columns import interval_cells
    from scalebench.analysis.scaling_curves import format_group_title

    rows = []
    predictions = [(group, prediction) for group in groups for prediction in group.predictions]
    for (group, prediction), count in itertools.product(predictions, counts):
        forecast = prediction.forecast(count)
        fits = forecast.fits  # else it runs nowhere, at no rate
        rows.append({
            "group": format_group_title(group.group), "strategy": prediction.name, "devices": count,
            "batch_per_device": forecast.batch,
            **interval_cells("throughput_samples_per_s", forecast.throughput if fits else None),
            **interval_cells("efficiency", forecast.efficiency if fits else None),
            "limited_by": forecast.limited_by, "fits": fits,
            "device_hours_per_epoch": forecast.device_hours_per_epoch if fits else None,
            "measured_samples_per_s": prediction.find_measured(count),
        })  # fmt: skip
    pd.DataFrame(rows).to_csv(sys.stdout, index=False)
