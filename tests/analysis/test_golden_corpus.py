"""Five recorded sweeps (golden/corpus, see its README) load into the same tables as on the day they were recorded.

After a wanted change of figures, columns or words, `python -m tests.analysis.test_golden_corpus` writes the expected
tables anew, and `git diff` shows what changed.
"""

import dataclasses
import json
import math
from pathlib import Path

import pytest

import scalebench
from scalebench.analysis import comparison, load, ranking, scaling_curves, time_to_target
from scalebench.analysis.comparison.rows import load_compared_runs
from scalebench.analysis.load import load_configurations
from scalebench.analysis.scaling_curves import make_curves, plain_rows
from scalebench.core.stats.estimates import Estimate
from scalebench.report.comparison import make_json

CORPUS = Path(__file__).parents[1] / "golden" / "corpus"
EXPECTED_FILE = "expected.json"
SWEEPS = ("repeats", "failures", "attribution", "target", "two_nodes")
COMPARED_KEYS = ("strategy", "gpus", "seed", "train.learning_rate", "train.batch_per_device")
THRESHOLD = 0.03  # of throughput, for the verdict of a comparison
KEPT_EFFICIENCY = 0.8
RELATIVE_TOLERANCE = 1e-12  # sums of a processor with other vector units end in other digits


def compute(folder):
    """All tables that are read from a recorded sweep, by name; rows of frames have null as None."""
    runs, pooled, configurations = scalebench.load(folder), scalebench.pooled(folder), load_configurations(folder)
    curves, estimate_ratio = make_curves(pooled), configurations.estimate_ratio
    against = [(curve, kind) for curve in curves for kind in ("bare", "self")]
    tables = {
        "frame": rows_of(runs, folder),
        "pooled": rows_of(pooled, folder),
        "named_baseline": against_named_baseline(folder, runs),
        "attribution": rows_of(scalebench.attribution(folder)),
        "collectives": rows_of(scalebench.collectives(folder)),
        "bandwidth": rows_of(scalebench.bandwidth(folder)),
        "time_to_target": rows_of(time_to_target.make_training_table(load.load(folder))),
        "ranking": [plain([each, each.certainty]) for each in ranking.rank_curves(curves, estimate_ratio)],
        "curves": plain(curves),
        "slopes": [plain([scaling_curves.fit_slope(curve, kind),
                          scaling_curves.find_scaling_limit(curve, KEPT_EFFICIENCY, kind)])
                   for curve, kind in against],
        "node_boundaries": [plain(scaling_curves.find_node_boundaries(curve, estimate_ratio)) for curve in curves],
    }  # fmt: skip
    return tables | comparison_tables(folder)


def plain(value):
    """Return a figure with its limits, a part of the analysis by its fields, and of a row of the frame its run_id."""
    if isinstance(value, Estimate):
        return [value.value, *value.limits]
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return value.get("run_id", value)
    return [*map(plain, value)] if isinstance(value, list | tuple) else value


def rows_of(table, folder=None):
    """The rows of a frame; with `folder` their paths are relative to it. Hashes that identify trainings are numbered
    in the order in which they come, since they change with the name of any config key."""
    rows_found = plain_rows(table)
    trainings = {}
    for row in rows_found:
        if folder is not None:
            row["path"] = Path(row["path"]).relative_to(folder).as_posix()
        if row.get("training_id") is not None:
            row["training_id"] = trainings.setdefault(row["training_id"], f"training {len(trainings)}")
    return rows_found


def against_named_baseline(folder, runs):
    """Return what `--baseline RUN` adds to the pooled rows, where RUN is the first measured one."""
    run_id = next(run_id for run_id, status in zip(runs["run_id"], runs["status"], strict=True) if status == "ok")
    table = scalebench.pooled(folder, baseline=run_id)
    return rows_of(table[["run_id", *(name for name in table.columns if "given" in name)]])


def comparison_tables(folder):
    """`scalebench compare`: the first repeat with the later ones (with all runs, where there is one repeat), and the
    values of each of COMPARED_KEYS, as their JSON has them: the head, and a row for each list in it."""
    runs = load_compared_runs([folder])
    first = [run for run in runs if run.record.scale.repeat == 0]
    later = [run for run in runs if run.record.scale.repeat > 0] or runs
    compared = {"repeats": comparison.compare(first, later, threshold=THRESHOLD)}
    compared |= {key: comparison.compare_by(runs, key, threshold=THRESHOLD) for key in COMPARED_KEYS}
    trees = {key: json.loads(make_json(each, 0)) for key, each in compared.items()}
    return {f"comparison by {key}": [{name: tree[name] for name in ("status", "refusal", "notes")},
                                     *tree["contrasts"], *tree["unpaired"]]
            for key, tree in trees.items()}  # fmt: skip


def differences(now, expected, place):
    """A line for each value that is not as expected; a cell that is missing is null."""
    if isinstance(now, dict) and isinstance(expected, dict):
        for name in {**expected, **now}:
            yield from differences(now.get(name), expected.get(name), f"{place}.{name}")
    elif isinstance(now, list) and isinstance(expected, list) and len(now) == len(expected):
        for number, pair in enumerate(zip(now, expected, strict=True)):
            yield from differences(*pair, f"{place}[{number}]")
    elif isinstance(now, float) and isinstance(expected, float):
        if not math.isclose(now, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-15):
            yield f"{place}: {now!r}, expected {expected!r}"
    elif type(now) is not type(expected) or now != expected:
        yield f"{place}: {now!r}, expected {expected!r}"


def write_expected(sweep):
    """One line for each row, so that a diff names the rows that changed."""
    tables = []
    for name, rows in compute(CORPUS / sweep).items():
        lines = ",\n".join(json.dumps(row, allow_nan=False, separators=(",", ":")) for row in rows)
        tables.append(f"{json.dumps(name)}: [\n{lines}\n]" if rows else f"{json.dumps(name)}: []")
    text = "{\n" + ",\n".join(tables) + "\n}\n"
    (CORPUS / sweep / EXPECTED_FILE).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_recorded_sweep_reads_as_it_did(sweep):
    now, expected = compute(CORPUS / sweep), json.loads((CORPUS / sweep / EXPECTED_FILE).read_text(encoding="utf-8"))
    assert list(now) == list(expected)
    lines = list(differences(now, expected, sweep))
    assert not lines, "\n".join([f"{len(lines)} values differ, the first of them:", *lines[:20]])


if __name__ == "__main__":
    for each in SWEEPS:
        write_expected(each)
