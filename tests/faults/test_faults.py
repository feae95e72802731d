"""Rows of the table of faults: a sample with every kind of victim and every phase; the other rows are slow."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tests.faults.__main__ import PAGE, replace_table
from tests.faults.harness import missing_requirement, run_row
from tests.faults.table import FAULTS, PHASES, Row, covering_sample, planned_rows

ROWS = planned_rows()
SAMPLE = covering_sample(ROWS)
AT_ONCE = 4  # rows mostly wait
NO_ROW = SimpleNamespace(params={})


def _marks(row):
    is_real = row.family.is_real or row.launcher == "by_hand"
    return [pytest.mark.real] * is_real + [pytest.mark.slow] * (row not in SAMPLE)


@pytest.fixture
def no_child_left():
    """Replaces the guard of the other tests: rows run beside each other, and each looks for its own processes."""


class RowRunner:
    """Runs the selected rows in their order, some of them at once."""

    def __init__(self, rows, scratch, cache):
        self._rows, self._scratch, self._cache = rows, scratch, cache
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._outcomes = {}

    def outcome(self, row):
        """Return the outcome of a row, and start the next ones."""
        begin = self._rows.index(row)
        for number, other in enumerate(self._rows[begin : begin + AT_ONCE], begin):
            if other not in self._outcomes and missing_requirement(other) is None:
                self._outcomes[other] = self._pool.submit(run_row, other, self._scratch / str(number), self._cache)
        return self._outcomes[row].result()

    def close(self):
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def runner(request, tmp_path_factory, data_cache):
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    rows = [getattr(test, "callspec", NO_ROW).params.get("row") for test in tests]
    runner = RowRunner([row for row in rows if isinstance(row, Row)], tmp_path_factory.mktemp("faults"), data_cache)
    yield runner
    runner.close()


@pytest.mark.parametrize("row", [pytest.param(row, marks=_marks(row), id=str(row)) for row in ROWS])
def test_the_run_ends_as_expected(row, runner):
    if (reason := missing_requirement(row)) is not None:
        pytest.skip(reason)
    outcome = runner.outcome(row)
    assert not outcome.problems, "\n".join(outcome.problems)


def test_the_sample_has_each_kind_once():
    assert {row.fault.victim for row in SAMPLE} == {fault.victim for fault in FAULTS}
    assert {row.phase for row in SAMPLE} == set(PHASES) and len(SAMPLE) <= 15
    assert {row.launcher for row in SAMPLE} == {"local", "mpi"} and len(set(ROWS)) == len(ROWS)


def test_the_page_says_what_the_rows_expect():
    """`python -m tests.faults --page` writes it."""
    assert replace_table(PAGE.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8")
