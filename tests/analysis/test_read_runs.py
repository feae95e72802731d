"""Reading folders of results: readable files become rows, each of the others is listed with a reason."""

import json
import os
from pathlib import Path

import pytest

from scalebench.analysis.load import load, pooled, survey
from scalebench.analysis.read_runs import find_results, summarize_files
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_json
from scalebench.core.run_folder import RESULT_FILE
from tests.builders import sweeps


@pytest.fixture
def sweep(tmp_path):
    sweeps.sweep(tmp_path / "sweep", ("bare_torch", "ddp_gloo"), (1, 2))
    return tmp_path / "sweep"


def replace_text(old, new):
    return lambda file: file.write_text(file.read_text().replace(old, new, 1))


def in_place_of(make):
    return lambda file: (file.unlink(), make(file))


def in_tree(change):
    def spoil(file):
        tree = read_json(file)
        change(tree)
        file.write_text(json.dumps(tree))

    return spoil


FAST = {"block_s": [1e-310], "block_samples": [10]}
ONE_BLOCK = {"name": "all_reduce", "size_bytes": 8, "repeats": 1, "block_s": [0.1]}
NO_JSON, FOREIGN = "is not a complete JSON file", "holds what no run leaves"
# What makes a good result.json one that cannot be read, and the reason.
SPOILT = {
    "half written": (lambda file: file.write_text(file.read_text()[:5000]), NO_JSON),
    "empty": (lambda file: file.write_text(""), NO_JSON),
    "no text": (lambda file: file.write_bytes(b"\xff\xfe" + os.urandom(100)), NO_JSON),
    "deep": (lambda file: file.write_text("[" * 200_000), NO_JSON),
    "later schema": (in_tree(lambda tree: tree.update(schema_version=99)),
                     "has schema version 99, this scalebench reads 2; update scalebench"),
    "wrong type": (in_tree(lambda tree: tree["ranks"][0]["block_s"].append("fast")),
                   "ranks[0].block_s[32]: Expected `float`, got `str`"),
    "infinite": (replace_text('"block_s": [\n', '"block_s": [\n1e999,'), FOREIGN),
    "huge": (replace_text('"block_s": [\n', f'"block_s": [\n1{"0" * 400},'),
             "ranks[0].block_s[0]: Number out of range"),
    "foreign spec": (in_tree(lambda tree: tree.update(spec={"hardware": [], "measure": {"target": 0.1}})), FOREIGN),
    "one block": (in_tree(lambda tree: [rank["probes"].update(collectives=[ONE_BLOCK]) for rank in tree["ranks"]]),
                  "(ValueError: an interval needs at least 2 blocks, not 1)"),
    "no devices": (in_tree(lambda tree: tree["scale"].update(gpus=0)), "(ValueError: 0 devices)"),
    "large count": (in_tree(lambda tree: tree["workload"].update(model_params=10**30)), "model_params is 1000"),
    "broken count": (in_tree(lambda tree: tree["spec"]["train"].update(base_batch=10.5)), "base_batch is 10.5"),
    "no text in a text": (in_tree(lambda tree: tree["spec"]["train"].update(optimizer=["sgd"])), "optimizer is ['"),
    "no count": (in_tree(lambda tree: tree["spec"]["hardware"].update(gpus_per_node="4")), "gpus_per_node: Expected "),
    "too fast": (in_tree(lambda tree: [rank.update(FAST) for rank in tree["ranks"]]), "(ValueError: not an estimate"),
    "loop": (in_place_of(lambda file: file.symlink_to(file)), "Too many levels of symbolic links"),
    "dangling": (in_place_of(lambda file: file.symlink_to(file.with_name("nowhere"))), "No such file or directory"),
    "folder": (in_place_of(Path.mkdir), "Is a directory"),
    "pipe": (in_place_of(os.mkfifo), "is not a plain file"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "reason"), SPOILT.values(), ids=list(SPOILT))
def test_an_unreadable_file_is_listed_and_left_out(spoil, reason, sweep):
    bad = sweep / "1" / RESULT_FILE
    before = survey(sweep)
    spoil(bad)
    surveyed = survey(sweep)
    ((path, line),) = surveyed.unreadable
    assert path == bad and reason in line and str(bad.parent) in line and "\n" not in line
    assert list(surveyed.frame["run_id"]) == [name for name in before.frame["run_id"] if name != "ddp_gloo-1-0"]
    assert len(surveyed.pooled) == len(before.pooled) - 1 == 2
    for strict in (load, pooled):  # these are for figures that are gone on with
        with pytest.raises(InputError) as caught:
            strict(sweep)
        assert str(caught.value) == line


def test_runs_below_a_folder_of_that_name_are_read(sweep):
    (sweep / "1").rename(sweep / "moved")
    (sweep / RESULT_FILE).mkdir()
    (sweep / "moved").rename(sweep / RESULT_FILE / "1")
    surveyed = survey(sweep)
    assert len(surveyed.frame) == 3 and [path for path, _ in surveyed.unreadable] == [sweep / RESULT_FILE]


def test_no_readable_file_is_an_input_error(sweep, tmp_path):
    for file in find_results([sweep]):
        file.write_text("")
    with pytest.raises(InputError, match=r"^not one of 3 files of results can be read; the first: .*0/result\.json"):
        survey(sweep)
    with pytest.raises(InputError, match=r"^\S*1/result\.json "):
        survey(sweep / "1")


def test_a_folder_without_permission_is_listed_as_unreadable(sweep, monkeypatch):
    """Also where root runs the tests."""
    closed, listed = sweep / "1", os.scandir

    def scandir(path="."):
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    line = f"{closed}: Permission denied"
    surveyed = survey(sweep)
    assert surveyed.unreadable == [(closed, line)] and len(surveyed.frame) == 2
    for strict in (find_results, load):
        with pytest.raises(InputError) as caught:
            strict([sweep])
        assert str(caught.value) == line
    with pytest.raises(InputError, match="Permission denied"):
        survey(closed)


def test_circular_links_are_not_followed(sweep):
    (sweep / "again").symlink_to(sweep)
    (sweep / "1" / "up").symlink_to("..")
    assert len(find_results([sweep])) == 3
    assert len(find_results([sweep, sweep / "again", sweep / "again" / "1"])) == 3, "each run once, by whatever name"


def test_files_are_read_in_order_and_the_first_error_is_raised(sweep):
    files = find_results([sweep])
    assert [run.cells["path"] for run in summarize_files(files)] == [str(file.parent) for file in files]
    for number in (2, 1):
        files[number].write_text("")
    with pytest.raises(InputError, match=r"1/result\.json"):
        summarize_files(files)
