"""result.json: read back as written, or refused with the way out; its JSON Schema; curves of several ranks."""

import copy
import dataclasses
import errno
import functools
import json
import operator
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from scalebench.core import result as results
from scalebench.core.errors import InputError
from scalebench.core.run_folder import RESULT_FILE
from scalebench.runner.collect import merge_curves
from scalebench.runner.parent import run_spec
from tests.builders.frames import frame_of_results
from tests.builders.runs import rank, record, simulated_spec
from tests.report.section_blocks import show_table


def refusal(path):
    with pytest.raises(InputError) as caught:
        results.read_result(path)
    line = str(caught.value)
    assert str(path) in line and "\n" not in line
    return line


@pytest.fixture
def tree(tmp_path):
    return json.loads(results.write_result(record(), tmp_path).read_text())


def written(tmp_path, content):
    path = tmp_path / RESULT_FILE
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_result_reads_back_equal_but_for_passwords_and_half_characters(tree, tmp_path):
    spoilt = [rank(0, [0.1], block_losses=[None], peak_memory_bytes=[None, 5], metrics={"mse": 0.25})]
    of_gpus = record(gpus=3, independent=True, flags=["oversubscribed"])
    others = [record(status=status, block_s=None) for status in results.STATUSES[1:]]
    for result in (record(), of_gpus, record(ranks=spoilt), *others):
        path = results.write_result(result, tmp_path)
        assert path == tmp_path / RESULT_FILE
        assert results.read_result(path) == result
    del tree["ranks"][0]["cpu_s"]  # nullable fields of ranks may be left out
    del tree["quality"]["final_loss"]
    tree["machine"]["later"] = None  # an unknown field is ignored
    assert results.read_result(written(tmp_path, tree)).ranks[0].cpu_s is None
    # os.fsdecode makes half a character of each byte of a name of a file that is not UTF-8.
    spec = {"hardware": {"environment": {"DATABASE_URL": "postgres://u:p@h/\udcff"}}}
    path = results.write_result(record(spec=spec, reason="no https://me:pw@host"), tmp_path)
    again = results.read_result(path)
    assert again.spec["hardware"]["environment"] == {"DATABASE_URL": "postgres://***@h/?"}
    assert again.reason == "no https://***@host" and "pw" not in path.read_text()


def test_another_file_is_refused_with_the_way_out(tree, tmp_path):
    path, text = tmp_path / RESULT_FILE, json.dumps(tree)
    path.unlink()
    assert "No such file or directory" in refusal(path)
    for length in (1, 2, len(text) // 3, len(text) // 2, len(text) - 1):
        assert "is not a complete JSON file" in refusal(written(tmp_path, text[:length]))
    path.write_bytes(b"\xff\xfe\x00")  # no text
    assert "is not a complete JSON file" in refusal(path)
    for other in ("", "\n", "null", "[]", "3", '"text"', "{}", "\x00"):
        assert "run it again" in refusal(written(tmp_path, other))
    for version in (results.SCHEMA_VERSION - 1, results.SCHEMA_VERSION + 1, None, "2", True):
        line = refusal(written(tmp_path, tree | {"schema_version": version}))
        way_out = "update scalebench" if version == results.SCHEMA_VERSION + 1 else "run it again"
        assert f"has schema version {version}, this scalebench reads {results.SCHEMA_VERSION}; {way_out}" in line
    older = {key: value for key, value in tree.items() if key != "schema_version"}
    assert "schema version None" in refusal(written(tmp_path, older))
    line = refusal(written(tmp_path, tree | {"status": "fine"}))
    assert (
        "status: Expected `str` matching regex '^(ok|failed|oom|timeout|unsupported|cancelled)$'; run it again" in line
    )
    line = refusal(written(tmp_path, tree | {"started_at": "yesterday"}))  # by which baselines are chosen
    assert "is not a valid record: Invalid isoformat string: 'yesterday'" in line
    line = refusal(written(tmp_path, tree | {"machine": tree["machine"] | {"cpus": None}}))
    assert "machine.cpus: Expected `int`, got `null`; run it again" in line
    tree["ranks"][0]["block_s"][1] = "0.1"
    assert "ranks[0].block_s[1]: Expected `float`, got `str`; run it again" in refusal(written(tmp_path, tree))
    path.unlink()
    path.mkdir()
    assert "Is a directory" in refusal(path)


@pytest.mark.parametrize("call", ["write_text", "replace"])
def test_a_full_disk_keeps_the_earlier_result(call, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        if call == "write_text":
            args[0].write_bytes(b"{")  # as much as there was room for
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    results.write_result(record(run_id="first"), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path if call == "write_text" else os, call, fail)
        with pytest.raises(OSError, match="No space left on device"):
            results.write_result(record(run_id="second"), tmp_path)
    assert results.read_result(tmp_path / RESULT_FILE).run_id == "first" and os.listdir(tmp_path) == [RESULT_FILE]


def point(step=10, train_s=1.0, loss=0.5, n=10, **changes):
    return msgspec.structs.replace(results.CurvePoint(step, 1.0, 100, train_s, 1e-3, loss, n), **changes)


def test_errors_reach_a_target_from_above_and_accuracies_from_below():
    cases = {
        ("mse", 0.1, 0.2): True, ("mse", 0.2, 0.2): True, ("mse", 0.3, 0.2): False, ("cross_entropy", 0.1, 0.2): True,
        ("accuracy", 0.9, 0.8): True, ("accuracy", 0.8, 0.8): True, ("accuracy", 0.7, 0.8): False,
        ("top5_accuracy", 0.9, 0.8): True,
    }  # fmt: skip
    assert {case: results.reaches_target(*case) for case in cases} == cases
    curve = [point(step, metrics={"mse": mse}) for step, mse in ((1, 0.9), (2, 0.1), (3, 0.05), (4, 0.7))]
    first = results.first_point_at_target([point(0), *curve], "mse", 0.2)
    assert first.step == 2, "points without the metric are ignored"
    assert results.first_point_at_target(curve, "mse", 0.01) is None
    assert results.first_point_at_target([], "mse", 1.0) is None


def test_merged_points_have_the_seconds_of_the_slowest_rank_and_mean_losses():
    """A rank that failed earlier left fewer points; in a pipeline only the last stage has a loss."""
    first = [point(train_s=1.0, loss=0.5, n=30, evaluate_s=0.1, at_s=5.0, metrics={"mse": 0.3})]
    second = [point(train_s=1.5, loss=0.9, n=10, evaluate_s=0.05, at_s=6.0, metrics={"mse": 0.3})]
    (merged,) = merge_curves([first, second])
    assert (merged.train_s, merged.evaluate_s, merged.loss_samples) == (1.5, 0.1, 40)
    assert merged.loss == pytest.approx(0.6)
    assert (merged.at_s, merged.metrics) == (5.0, {"mse": 0.3})
    (merged,) = merge_curves([[point(loss=None, n=0)], [point(loss=0.9, n=10)]])
    assert (merged.loss, merged.loss_samples) == (0.9, 10)
    (merged,) = merge_curves([[point(loss=None, n=0)]])
    assert (merged.loss, merged.loss_samples) == (None, 0)
    assert [p.step for p in merge_curves([[point(1), point(2)], [point(1)]])] == [1]
    assert merge_curves([[point(1)], []]) == [] and merge_curves([]) == []


VALIDATOR = Draft202012Validator(results.result_schema())
FULL = record(
    gpus=2,
    ranks=[
        rank(k, [0.1, 0.2], metrics={"mse": 0.1}, marks_s={"setup": 1.0}, versions={"torch": "2"}, affinity=[k])
        for k in range(2)
    ],
)
# jsonschema accepts 1.0 as an integer and the reader does not, so no such value is among these.
VALUES = [None, True, 7, 0.5, "text", [], {}, [1], ["a"], {"k": 0.5}, {"k": "v"}, -1]
TREE = msgspec.to_builtins(FULL)


def paths(tree, prefix=()):
    """Return every place of a JSON tree but those below `spec`, whose content is free."""
    items = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    places = [prefix] if prefix else []
    for key, value in items:
        places += paths(value, (*prefix, key)) if key != "spec" else [(*prefix, key)]
    return places


def test_the_schema_has_every_field():
    schema = results.result_schema()
    Draft202012Validator.check_schema(schema)
    assert list(schema["properties"]) == [f.name for f in dataclasses.fields(results.Result)]
    assert schema["properties"]["workload"] == {"$ref": "#/$defs/Workload"}
    assert schema["$defs"]["RankRecord"]["required"] == ["rank", "hostname", "pid"]
    assert schema["$defs"]["Phases"]["properties"]["wall_s"]["anyOf"] == [{"type": "number"}, {"type": "null"}]


@pytest.mark.parametrize("options", [{}, {"fault": "raise", "fault_rank": 1}])
def test_a_real_result_is_valid(options, tmp_path):
    run_spec(simulated_spec(gpus=2, options=options), tmp_path / "run")
    tree = json.loads((tmp_path / "run" / RESULT_FILE).read_text())
    VALIDATOR.validate(tree)
    assert tree["status"] == ("failed" if options else "ok")
    assert set(tree) == set(results.result_schema()["properties"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(paths(TREE)), drop=st.booleans(), value=st.sampled_from(VALUES))
@example(path=("status",), drop=False, value="text")
@example(path=("ranks", 0, "status"), drop=False, value="text")
@example(path=("scale", "gpus"), drop=False, value=-1)
@example(path=("ranks", 0, "pid"), drop=False, value=True)
@example(path=("machine", "memory_bytes"), drop=True, value=None)
def test_reader_and_schema_agree(path, drop, value, tmp_path):
    assume(path != ("started_at",) or value != "text")  # JSON Schema does not check formats of texts
    tree = copy.deepcopy(TREE)
    owner = functools.reduce(operator.getitem, path[:-1], tree)
    if drop:
        del owner[path[-1]]
    else:
        owner[path[-1]] = copy.deepcopy(value)
    file = written(tmp_path, tree)
    try:
        result = results.read_result(file)
    except InputError as error:
        assert "\n" not in str(error)
        assert not VALIDATOR.is_valid(tree), f"only the reader refuses it: {error}"
        return
    assert VALIDATOR.is_valid(tree), f"only the schema refuses it: {VALIDATOR.iter_errors(tree)}"
    if path[0] == "spec":
        return
    try:  # a valid record can be shown, or is refused for its content
        table = frame_of_results([result], [tmp_path])
    except InputError as error:
        assert "\n" not in str(error) and value == -1
        return
    assert "strategy" in show_table(table)
