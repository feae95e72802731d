"""What a sweep varied besides devices and strategies, such as the batch or the precision, and the rows that differ in
nothing else: the answer to the question that was asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scalebench.analysis.columns import RATE
from scalebench.analysis.identity import INPUT_COLUMNS, KEY_VALUE_COLUMNS, SETTING_COLUMNS
from scalebench.analysis.ranking import is_control
from scalebench.analysis.scaling_curves import LENGTH, Curve, format_batch
from scalebench.analysis.user_program import PROGRAM
from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.sweep_file import find_places, find_sweep

BATCH = "batch"
# They differ between sessions or seeds, follow from others, or make another model.
OTHER_COLUMNS = ("seed", "framework_version", "learning_rate_rule", "model_options")
COLUMNS = (BATCH, LENGTH, *(name for name in (*INPUT_COLUMNS, *SETTING_COLUMNS) if name not in OTHER_COLUMNS))
BATCH_KEYS = dict.fromkeys(("train.batch_per_device", "train.global_batch"), BATCH)  # as they are swept
ABSENT = "default"  # value of a key that a row does not set, where its strategy has no default
Settings = dict[str, str]


@dataclass(frozen=True)
class Contrast:
    """Rows that differ in one key only, in the order of the sweep: the first one is the base of the others."""

    key: str
    strategy: str  # or the file of a user's program
    gpus: int
    rows: list[tuple[str, dict[str, Any]]]  # (value of the key, cells)


def find_contrasts(curves: Sequence[Curve]) -> list[Contrast]:
    """Return a contrast for each key that was varied: that of the most values, then of the most devices, then of the
    fastest strategy. Keys that change together have none, but for a script's own batch size and the batch; where the
    sweeps name their question, no other key has one."""
    places_in = cache(find_places)

    def find_place(pair: tuple[Curve, dict[str, Any]]) -> float:
        folder = Path(pair[1]["path"])
        return places_in(folder.parent).get(folder.name, math.inf)

    rows = [(curve, row) for curve in curves for row in curve.rows if not is_control(row["strategy"])]
    sweeps = map(find_sweep, {Path(row["path"]).parent for _, row in rows})
    questions = {sweep.question for sweep in sweeps if sweep is not None and sweep.question}
    rows.sort(key=find_place)  # so that the first value is that of `compare --by`
    settings = _read_settings([row for _, row in rows])

    def change_together(key: str, other: str) -> bool:
        pairs = {(each[key], each[other]) for each in settings}
        return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})

    def is_in_question(key: str) -> bool:
        columns = {BATCH_KEYS.get(question, question.rpartition(".")[2]) for question in questions}
        in_columns = (f" {row.get(column)}" for _, row in rows for column in columns & {*KEY_VALUE_COLUMNS})
        return not columns or key in columns or any(f" {key}=" in text for text in in_columns)

    varied = [key for key in (settings[0] if settings else {}) if len({each[key] for each in settings}) > 1]
    contrasts: dict[str, Contrast] = {}
    for key in filter(is_in_question, varied):
        together = [other for other in varied if change_together(key, other)]
        if set(together) - ({key} if key in COLUMNS and key != LENGTH else {key, BATCH}):
            continue
        parts: dict[Any, Contrast] = {}
        for (curve, row), values in zip(rows, settings, strict=True):
            group = [text for name, text in curve.group.items() if name not in (BATCH, LENGTH)]
            rest = [text for name, text in values.items() if name not in together]
            name = "model" if row["strategy"] == PROGRAM else "strategy"  # a program is named by its file
            part = Contrast(key, curve.tags[name], row["gpus"], [])
            part = parts.setdefault((*group, row["strategy"], row["gpus"], *rest), part)
            if values[key] not in dict(part.rows):
                part.rows.append((values[key], row))
        longest = max(parts.values(), key=lambda part: (len(part.rows), part.gpus, max(r[RATE] for _, r in part.rows)))
        if len(longest.rows) > 1:
            contrasts[key] = longest
    return list(contrasts.values())


def _read_settings(rows: Sequence[dict[str, Any]]) -> list[Settings]:
    """Return what each row has for every key that one of them has: words of key=value, then the batch, then columns."""
    columns = [name for name in KEY_VALUE_COLUMNS if name not in OTHER_COLUMNS]
    texts = [" ".join(filter(None, (row.get(name) for name in columns))) for row in rows]
    words = [dict(word.partition("=")[::2] for word in text.split()) for text in texts]
    keys = list(dict.fromkeys(key for each in words for key in each))
    return [
        {key: own.get(key) or str(strategy_option_defaults(row["strategy"]).get(key, ABSENT)).lower() for key in keys}
        | {BATCH: format_batch(row)}
        | {name: str(row.get(name)) for name in COLUMNS[1:]}
        for row, own in zip(rows, words, strict=True)
    ]
