"""The committed JSON Schema: generated from the dataclasses, and in agreement with the reader."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from scalebench.analysis.load import frame_of_results
from scalebench.core.errors import InputError
from scalebench.core.result import SCHEMA_PATH, Result, read_result, result_schema
from scalebench.core.run_folder import RESULT_FILE
from scalebench.report.terminal import make_configurations
from scalebench.runner.parent import run_spec
from tests.builders.runs import rank, record, simulated_spec

VALIDATOR = Draft202012Validator(json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))
FULL = record(
    gpus=2,
    ranks=[
        rank(k, [0.1, 0.2], metrics={"mse": 0.1}, marks_s={"setup": 1.0}, versions={"torch": "2"}, affinity=[k])
        for k in range(2)
    ],
)
TREE: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(FULL)))
# Free content, which a schema does not check.
FREE = {"spec"}
# jsonschema accepts 1.0 as an integer and the reader does not, so no such value is among these.
VALUES = [None, True, 7, 0.5, "text", [], {}, [1], ["a"], {"k": 0.5}, {"k": "v"}, -1]


def paths(tree: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place of a JSON tree but those below free content."""
    items = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    places = [prefix] if prefix else []
    for key, value in items:
        places += paths(value, (*prefix, key)) if key not in FREE else [(*prefix, key)]
    return places


def test_the_committed_schema_is_the_generated_one() -> None:
    text = SCHEMA_PATH.read_text(encoding="utf-8")
    assert text == json.dumps(result_schema(), indent=1) + "\n", "run python -m scalebench.core.result"


def test_the_schema_is_a_valid_one() -> None:
    Draft202012Validator.check_schema(result_schema())


def test_every_field_is_in_the_schema() -> None:
    schema = result_schema()
    assert list(schema["properties"]) == [f.name for f in dataclasses.fields(Result)]
    assert schema["properties"]["workload"] == {"$ref": "#/$defs/Workload"}
    assert schema["$defs"]["RankRecord"]["required"] == ["rank", "hostname", "pid"]
    assert schema["$defs"]["Phases"]["properties"]["wall_s"]["anyOf"] == [{"type": "number"}, {"type": "null"}]


@pytest.mark.parametrize("options", [{}, {"fault": "raise", "fault_rank": 1}])
def test_a_real_result_is_valid(options: dict[str, Any], tmp_path: Path) -> None:
    run_spec(simulated_spec(gpus=2, options=options), tmp_path / "run")
    tree = json.loads((tmp_path / "run" / RESULT_FILE).read_text())
    VALIDATOR.validate(tree)
    assert tree["status"] == ("failed" if options else "ok")
    assert set(tree) == set(result_schema()["properties"])


def mutated(path: tuple[Any, ...], drop: bool, value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(TREE)
    owner: Any = tree
    for key in path[:-1]:
        owner = owner[key]
    if drop:
        del owner[path[-1]]
    else:
        owner[path[-1]] = copy.deepcopy(value)
    return tree


def test_the_unmutated_record_is_valid(tmp_path: Path) -> None:
    VALIDATOR.validate(TREE)
    (tmp_path / RESULT_FILE).write_text(json.dumps(TREE))
    assert read_result(tmp_path / RESULT_FILE) == FULL


def test_the_status_of_a_rank_is_checked(tmp_path: Path) -> None:
    tree = mutated(("ranks", 0, "status"), False, "text")
    assert not VALIDATOR.is_valid(tree)
    (tmp_path / RESULT_FILE).write_text(json.dumps(tree))
    with pytest.raises(InputError):
        read_result(tmp_path / RESULT_FILE)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(path=st.sampled_from(paths(TREE)), drop=st.booleans(), value=st.sampled_from(VALUES))
@example(path=("status",), drop=False, value="text")
@example(path=("scale", "gpus"), drop=False, value=-1)
@example(path=("ranks", 0, "pid"), drop=False, value=True)
@example(path=("machine", "memory_bytes"), drop=True, value=None)
def test_reader_and_schema_agree(path: tuple[Any, ...], drop: bool, value: Any, tmp_path: Path) -> None:
    assume(path != ("started_at",) or value != "text")  # JSON Schema does not check formats of texts
    tree = mutated(path, drop, value)
    file = tmp_path / RESULT_FILE
    file.write_text(json.dumps(tree))
    try:
        result = read_result(file)
    except InputError as error:
        assert "\n" not in str(error)
        assert not VALIDATOR.is_valid(tree), f"only the reader refuses it: {error}"
        return
    assert VALIDATOR.is_valid(tree), f"only the schema refuses it: {VALIDATOR.iter_errors(tree)}"
    if path[0] in FREE:
        return
    try:  # a valid record can be shown, or is refused for its content
        table = frame_of_results([result], [tmp_path])
    except InputError as error:
        assert "\n" not in str(error) and value == -1
        return
    assert make_configurations(table).row_count == 1
