"""result.json: read back as it was written, and refused in one line that says the way out."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from scalebench.core.errors import InputError
from scalebench.core.result import SCHEMA_VERSION, STATUSES, Result, read_result, write_result
from scalebench.core.run_folder import RESULT_FILE
from tests.builders.runs import rank, record


def refusal(path: Path) -> str:
    """The one line in which a file is refused."""
    with pytest.raises(InputError) as caught:
        read_result(path)
    line = str(caught.value)
    assert str(path) in line and "\n" not in line
    return line


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, Any]:
    """The plain content of a good result.json."""
    return json.loads(write_result(record(), tmp_path).read_text())


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / RESULT_FILE
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    "result",
    [
        record(),
        record(gpus=3, lockstep=False, flags=["oversubscribed"]),
        record(status="failed", block_s=None),
        record(ranks=[rank(0, [0.1], block_losses=[None], peak_memory_bytes=[None, 5], metrics={"mse": 0.25})]),
        *(record(status=status, block_s=None) for status in STATUSES[2:]),
    ],
)
def test_a_result_reads_back_equal(result: Result, tmp_path: Path) -> None:
    path = write_result(result, tmp_path)
    assert path == tmp_path / RESULT_FILE
    assert read_result(path) == result


def test_a_file_cut_short_anywhere_is_refused(tree: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(tree)
    for length in (1, 2, len(text) // 3, len(text) // 2, len(text) - 1):
        assert "is no whole JSON file" in refusal(written(tmp_path, text[:length]))


@pytest.mark.parametrize("text", ["", "\n", "null", "[]", "3", '"text"', "{}", "\x00"])
def test_what_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    assert "run it again" in refusal(written(tmp_path, text))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / RESULT_FILE
    path.write_bytes(b"\xff\xfe\x00")
    assert "is no whole JSON file" in refusal(path)


@pytest.mark.parametrize(
    ("version", "way_out"),
    [
        (SCHEMA_VERSION - 1, "run it again"),
        (SCHEMA_VERSION + 1, "update scalebench"),
        (None, "run it again"),
        ("2", "run it again"),
    ],
)
def test_another_schema_version_says_what_to_do(
    version: Any, way_out: str, tree: dict[str, Any], tmp_path: Path
) -> None:
    line = refusal(written(tmp_path, tree | {"schema_version": version}))
    assert f"has schema version {version}, this scalebench reads {SCHEMA_VERSION}; {way_out}" in line


def test_a_record_without_a_version_is_an_older_one(tree: dict[str, Any], tmp_path: Path) -> None:
    del tree["schema_version"]
    assert "schema version None" in refusal(written(tmp_path, tree))


def test_the_version_true_is_no_version(tree: dict[str, Any], tmp_path: Path) -> None:
    assert "schema_version should be int, not bool" in refusal(written(tmp_path, tree | {"schema_version": True}))


def test_a_status_of_its_own_is_refused(tree: dict[str, Any], tmp_path: Path) -> None:
    line = refusal(written(tmp_path, tree | {"status": "fine"}))
    assert "status 'fine' is none of ok, failed, oom, timeout, unsupported, cancelled" in line


@pytest.mark.parametrize(
    ("keys", "value", "what"),
    [
        (["run_id"], 3, "run_id should be str, not int"),
        (["workload", "train_samples"], "many", "workload.train_samples should be int, not str"),
        (["ranks", 0, "block_s", 1], "0.1", "ranks[0].block_s[1] should be float, not str"),
        (["machine", "cpus"], None, "machine.cpus should be int, not null"),
        (["flags"], "none", "flags should be a list, not str"),
    ],
)
def test_a_wrong_type_is_named(keys: list[Any], value: Any, what: str, tree: dict[str, Any], tmp_path: Path) -> None:
    owner: Any = tree
    for key in keys[:-1]:
        owner = owner[key]
    owner[keys[-1]] = value
    assert f"{what}; run it again" in refusal(written(tmp_path, tree))


def test_fields_of_a_later_scalebench_are_passed_over(tree: dict[str, Any], tmp_path: Path) -> None:
    before = read_result(tmp_path / RESULT_FILE)
    tree["later"] = 1
    tree["ranks"][0]["later"] = {"deep": [1]}
    tree["machine"]["later"] = None
    assert read_result(written(tmp_path, tree)) == before


def test_nullable_fields_of_ranks_may_be_left_out(tree: dict[str, Any], tmp_path: Path) -> None:
    del tree["ranks"][0]["cpu_s"]
    del tree["quality"]["final_loss"]
    assert read_result(written(tmp_path, tree)).ranks[0].cpu_s is None


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "No such file or directory" in refusal(tmp_path / RESULT_FILE)
    (tmp_path / RESULT_FILE).mkdir()
    assert "Is a directory" in refusal(tmp_path / RESULT_FILE)


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_result(record(ranks=[rank(0, [float("nan")])]), tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["write_text", "replace"])
def test_a_full_disk_leaves_no_half_file(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        if call == "write_text":
            args[0].write_bytes(b"{")  # as much as there was room for
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path if call == "write_text" else os, call, full)
        with pytest.raises(OSError, match="No space left on device"):
            write_result(record(), tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_keeps_the_result_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_result(record(run_id="first"), tmp_path)

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError):
            write_result(record(run_id="second"), tmp_path)
    assert read_result(tmp_path / RESULT_FILE).run_id == "first"
    assert os.listdir(tmp_path) == [RESULT_FILE]


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    """Baselines are chosen by it."""
    path = write_result(record(started_at="yesterday"), tmp_path)
    with pytest.raises(InputError, match="is no valid record: Invalid isoformat string: 'yesterday'"):
        read_result(path)
