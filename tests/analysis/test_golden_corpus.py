"""Five recorded sweeps (golden/corpus, see its README) load into the same tables as on the day they were recorded.

After a wanted change of figures, columns or words, `python -m tests.analysis.test_golden_corpus` writes the expected
tables anew, and `git diff` shows what changed.
"""

import json
import math
from pathlib import Path

import pytest

import scalebench
from scalebench.analysis import comparison, load, ranking, scaling_curves, time_to_target
from scalebench.analysis.comparison.rows import load_compared_runs
from scalebench.analysis.load import load_configurations
from scalebench.analysis.scaling_curves import make_curves, plain_rows
from scalebench.report.comparison import make_json

CORPUS = Path(__file__).parents[1] / "golden" / "corpus"
EXPECTED_FILE = "expected.json"
SWEEPS = ("repeats", "failures", "attribution", "target", "two_nodes")
COMPARED_KEYS = ("strategy", "gpus", "seed", "train.learning_rate", "train.batch_per_device")
THRESHOLD = 0.03  # of throughput, for the verdict of a comparison
KEPT_EFFICIENCY = 0.8
RELATIVE_TOLERANCE = 1e-12  # sums of a processor with other vector units end in other digits


def compute(folder):
    """All tables that are read from a recorded sweep: rows of plain values, None for null, by the name of the table."""
    runs, pooled, configurations = scalebench.load(folder), scalebench.pooled(folder), load_configurations(folder)
    all_curves, estimate_ratio = make_curves(pooled), configurations.estimate_ratio
    tables = {
        "frame": rows_of(runs, folder),
        "pooled": rows_of(pooled, folder),
        "named_baseline": against_named_baseline(folder, runs),
        "attribution": rows_of(scalebench.attribution(folder)),
        "collectives": rows_of(scalebench.collectives(folder)),
        "bandwidth": rows_of(scalebench.bandwidth(folder)),
        "time_to_target": rows_of(time_to_target.make_training_table(load.load(folder))),
        "ranking": list(ranking_rows(all_curves, estimate_ratio)),
        "curves": [row for curve in all_curves for row in curve_rows(curve)],
        "slopes": [row for curve in all_curves for row in slope_rows(curve)],
        "node_boundaries": [row for curve in all_curves for row in node_boundary_rows(curve, estimate_ratio)],
    }
    return tables | comparison_tables(folder)


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


def ranking_rows(all_curves, estimate_ratio):
    """A row for the best of each contest, and for each of its rivals in their order."""
    for contest in ranking.rank_curves(all_curves, estimate_ratio):
        group = {f"group.{name}": text for name, text in contest.group.items()}
        common = {**group, "gpus": contest.gpus, "best": contest.best, "certainty": contest.certainty}
        yield {**common, "run_id": contest.row["run_id"], "rival": None}
        for rival in contest.rivals:
            ratio = dict(
                zip(("ratio", "ratio_low", "ratio_high"), (rival.ratio.value, *rival.ratio.limits), strict=True)
            )
            yield {**common, "run_id": rival.row["run_id"], "rival": rival.name, **ratio, "verdict": rival.verdict}


def curve_rows(curve):
    """The points of a scaling curve; their figures stand in the pooled row of the same run_id."""
    group = {f"group.{name}": text for name, text in curve.group.items()}
    for row in curve.rows:
        yield {"curve": curve.name, **group, **curve.tags, "gpus": row["gpus"], "run_id": row["run_id"]}


def slope_rows(curve):
    """The line through the points of a scaling curve, and how many devices keep an efficiency."""
    for against in ("bare", "self"):
        row = {"curve": curve.name, "against": against}
        line = scaling_curves.fit_slope(curve, against)
        if line is not None:
            (low, high), value = line.speedup.limits, line.speedup.value
            row |= {"slope": value, "slope_low": low, "slope_high": high, "intercept": line.intercept}
        limit = scaling_curves.find_scaling_limit(curve, KEPT_EFFICIENCY, against)
        counts = {"most_devices": limit.gpus, "most_devices_surely": limit.certain_gpus}
        yield row | counts | {"most_measured": limit.largest_measured}


def node_boundary_rows(curve, estimate_ratio):
    """Yield what a scaling curve loses where it continues on another node."""
    for jump in scaling_curves.find_node_boundaries(curve, estimate_ratio):
        before, after = jump.rows
        devices = {"gpus_before": before["gpus"], "gpus_after": after["gpus"], "nodes_after": after["nodes"]}
        (low, high), (efficiency_before, efficiency_after) = jump.ratio.limits, jump.efficiencies
        limits = {"ratio": jump.ratio.value, "ratio_low": low, "ratio_high": high}
        efficiencies = {"efficiency_before": efficiency_before, "efficiency_after": efficiency_after}
        yield {"curve": curve.name, **devices, **efficiencies, **limits}


def comparison_tables(folder):
    """`scalebench compare`: the first repeat with the later ones (with all runs, where there is one repeat), and the
    values of each of COMPARED_KEYS."""
    runs = load_compared_runs([folder])
    first = [run for run in runs if run.record.scale.repeat == 0]
    later = [run for run in runs if run.record.scale.repeat > 0] or runs
    compared = {"repeats": comparison.compare(first, later, threshold=THRESHOLD)}
    compared |= {key: comparison.compare_by(runs, key, threshold=THRESHOLD) for key in COMPARED_KEYS}
    return {f"comparison by {key}": list(comparison_rows(actual)) for key, actual in compared.items()}


def comparison_rows(rows_found):
    """The JSON of a comparison as rows: of the comparison, its contrasts with their differences and pairs, and of what
    has no partner."""
    tree = json.loads(make_json(rows_found, 0))
    yield {"row": "comparison", **{key: tree[key] for key in ("status", "refusal", "notes")}}
    for contrast in tree["contrasts"]:
        names = {"a": contrast["a"], "b": contrast["b"]}
        yield {"row": "contrast", **{key: value for key, value in contrast.items() if not isinstance(value, list)}}
        yield from ({"row": "difference", **names, **_flat(actual, "")} for actual in contrast["differences"])
        yield from ({"row": "pair", **names, **_flat(pair, "")} for pair in contrast["pairs"])
    yield from ({"row": "unpaired", **_flat(actual, "")} for actual in tree["unpaired"])


def _flat(tree, above):
    """Nested mappings as one, with dotted keys."""
    rows_found = {}
    for name, value in tree.items():
        key = f"{above}{name}"
        rows_found |= _flat(value, f"{key}.") if isinstance(value, dict) else {key: value}
    return rows_found


def equal(actual, other):
    if isinstance(actual, float) and isinstance(other, float):
        return math.isclose(actual, other, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-15)
    return type(actual) is type(other) and bool(actual == other)


def differences(now, expected):
    """A line for each cell that is not as expected; a cell that is missing is null."""
    if len(now) != len(expected):
        yield f"{len(now)} rows, expected {len(expected)}"
    for number, (row, other) in enumerate(zip(now, expected, strict=False)):
        name = " ".join(str(other[key]) for key in ("run_id", "part", "strategy", "curve") if other.get(key))
        for column in dict.fromkeys([*other, *row]):
            if not equal(row.get(column), other.get(column)):
                yield f"row {number} ({name}), column {column}: {row.get(column)!r}, expected {other.get(column)!r}"


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
    lines = [f"{sweep}: {table}: {line}" for table in expected for line in differences(now[table], expected[table])]
    assert not lines, "\n".join([f"{len(lines)} cells differ, the first of them:", *lines[:20]])


if __name__ == "__main__":
    for each in SWEEPS:
        write_expected(each)
