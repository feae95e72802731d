"""The tables of the studies: every row says where it is from, and names are ours."""

import pytest

from scalebench.analysis import published
from scalebench.core.config_files import list_options
from scalebench.core.errors import InputError

STUDIES = published.list_studies()
ALL = published.load_published(STUDIES)
ROWS = [{name: None if str(cell) == "<NA>" else cell for name, cell in row.items()} for row in ALL.to_dict("records")]


def test_every_row_has_a_source_and_a_figure():
    for row in ROWS:
        assert row["source"] and row["table"]
        assert any(row[name] is not None for name in published.PUBLISHED_FIGURES) != (row["remark"] == "error")
        assert (row["value"] is None) == (row["quantity"] is None)
        assert set((row["derived"] or "").split()) <= set(published.PUBLISHED_COLUMNS)


def test_names_are_those_of_scalebench_and_hardware_is_explained():
    failed = [row for row in ROWS if row["remark"] == "error"]
    assert [(row["strategy"], row["gpus"]) for row in failed] == [("kuza55_ps_cpu", 6), ("kuza55_ps_gpu", 6)] * 2
    for group in ("model", "dataset", "strategy"):
        assert {row[group] for row in ROWS if row[group]} <= set(list_options(group))
    for row in ROWS:
        assert row["hardware"] is None or row["hardware"] in published.load_study(row["study"]).machines


def test_an_unknown_study_and_none():
    with pytest.raises(InputError, match="did you mean 'keras_multi_gpu'"):
        published.load_published(["keras_multigpu"])
    assert published.load_published([]).empty and len(published.load_published(["thesis", "thesis"])) == 24
