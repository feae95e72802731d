"""The section data_or_model, and its tables in the terminal."""

from scalebench.analysis.prediction.data_or_model import NO_PROBES_REASON
from scalebench.report.sections import data_or_model
from tests.builders import sweeps
from tests.builders.parallelism_runs import bare_run, ddp_run, make_parallel_run


def compare(*runs):
    by_id = {run.run_id: run for run in runs}
    configurations = sweeps.pool(runs)
    read, estimate_ratio = (lambda row: by_id[row["run_id"]]), configurations.estimate_ratio
    return data_or_model.compare_kinds(configurations.make_frame(), read, estimate_ratio)


def make_pairs():
    """Model parallelism is the faster at 8, where that is predicted, and at 64, where it is not."""
    steps = {64: (0.30, 0.25), 8: (0.10, 0.05)}
    return [
        run
        for batch, (data_s, model_s) in steps.items()
        for run in (
            bare_run(batch),
            ddp_run(batch, data_s, messages=batch // 14 + 1),
            make_parallel_run("model_parallel", batch, model_s),
            make_parallel_run("pipeline_gpipe", batch, None),
        )
    ]


def row_texts(table):
    return [" | ".join(cell.text for cell in row.cells) for row in table.rows]


def list_answers(comparisons):
    return [text for text, _ in data_or_model.make_answers(comparisons)]


def test_a_reason_stands_for_what_is_not_predicted():
    comparisons = compare(bare_run(8, probed=False), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, 0.05))
    assert row_texts(data_or_model.make_table(comparisons, limits=False)) == [
        "mlp | 2 | 8 | data: ddp_gloo |  |  |  | 100 ms | ",
        "mlp | 2 | 8 | model: model_parallel |  |  |  | 50.0 ms | measured",
    ]
    assert list(data_or_model.list_remarks(comparisons)) == [
        f"not predicted (mlp, data; mlp, model): the bare run was {NO_PROBES_REASON}"
    ]
    assert list_answers(comparisons) == [
        "mlp on 2 devices: model won at 8; not sure who won: one repeat, measure.repeats=3 decides"
    ]
    unmeasured = compare(bare_run(8, probed=False), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, None))
    assert list_answers(unmeasured) == ["mlp on 2 devices: neither predicted nor measured both ways"]


def test_the_answer_names_the_batch_from_which_on_data_parallelism_wins():
    comparisons = compare(*make_pairs())
    (text,) = list_answers(comparisons)
    assert "data should win at 64" in text and "model won at 8 and 64" in text
    crossing = comparisons[-1].data_wins_from("model")
    assert crossing is not None and f"data should be faster than model from {crossing:,.0f} on" in text
    remarks = list(data_or_model.list_remarks(comparisons))
    assert remarks[0] == "the kind that should win did, or is tied with it, in 1 of 2"
    assert remarks[1] == (
        "rates of mlp on 2 devices: 10.0 GFLOP/s on a device; 100 MB/s and 100 us a message on the link"
    )


def tied_runs(repeat):
    """Runs of equal means, whose repeats differ."""
    data_s, model_s = 0.1 + 0.001 * repeat, 0.102 - 0.001 * repeat
    runs = [ddp_run(8, data_s, repeat=repeat), make_parallel_run("model_parallel", 8, model_s, repeat=repeat)]
    for run in runs:
        run.run_id += str(repeat)
    return runs


def test_a_tie_is_shown():
    runs = [bare_run(8), *(run for repeat in range(3) for run in tied_runs(repeat))]
    comparisons = compare(*runs)
    places = [row.cells[-1].text for row in data_or_model.make_table(comparisons).rows]
    assert sorted(places) in (["measured", "predicted, tied"], ["predicted, measured", "tied"])
    assert "data and model tied at 8" in list_answers(comparisons)[0] and "won" not in list_answers(comparisons)[0]
