"""Rows of the table of faults: a sample with every kind of victim and every phase; the other rows are slow. And faults
of ranks that are forked, by which each of them is tried in no time."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.runner.parent import run_spec
from tests.builders.runs import find_run_processes, in_parallel, simulated_spec
from tests.faults.__main__ import PAGE, replace_table
from tests.faults.harness import Outcome, judge, missing_requirement, run_row
from tests.faults.table import (
    BY_NAME,
    END,
    EVALUATING,
    FAULTS,
    MEASURING,
    PHASES,
    SETUP,
    Family,
    Row,
    covering_sample,
    planned_rows,
)

ROWS = planned_rows()
SAMPLE = covering_sample(ROWS)
AT_ONCE = 4  # rows mostly wait
NO_ROW = SimpleNamespace(params={})


def _marks(row):
    return [pytest.mark.real] * row.family.is_real + [pytest.mark.slow] * (row not in SAMPLE)


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
    """`python -m tests.faults` writes it."""
    assert replace_table(PAGE.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8")


OF_A_RANK = ("raise", "exit", "kill", "stop", "hang", "oom", "unsupported")
FORKED = [  # fault, phase, rank that fails, ranks
    *((name, MEASURING, 1, 2) for name in OF_A_RANK),
    *(("raise", phase, rank, 2) for phase, rank in ((SETUP, 0), (MEASURING, 0), (EVALUATING, 1), (END, 0))),
    *(("kill", phase, 0, 2) for phase in (SETUP, END)),
    ("raise", MEASURING, 0, 1), ("raise", MEASURING, 2, 3), ("hang", END, 1, 2),
]  # fmt: skip
OF_SIMULATED = {SETUP: "setup", MEASURING: "step", EVALUATING: "evaluate", END: "close"}


def run_forked(row, folder):
    """Return the result and what is wrong with it, of a run in this process whose rank fails as its options say."""
    options = {"fault": row.fault.name, "fault_phase": OF_SIMULATED[row.phase], "fault_rank": row.rank, "fault_step": 8}
    spec = simulated_spec(row.family.processes, options=options, measure={"hang_s": row.hang_s})
    result, outcome = run_spec(spec, folder), Outcome(exit_code=row.expected.exit_code)
    judge(row, SimpleNamespace(folder=folder, read_row=lambda: read_result(folder / RESULT_FILE)), outcome, "")
    return result, outcome.problems


def test_a_forked_rank_that_goes_wrong(tmp_path):
    rows = [Row(BY_NAME[name], phase, Family("simulated", *ranks), "local") for name, phase, *ranks in FORKED]
    done = in_parallel(lambda row: run_forked(row, tmp_path / str(rows.index(row))), rows)
    assert {str(row): problems for row, (_, problems) in done.items() if problems} == {}
    for number, (row, (result, _)) in enumerate(done.items()):
        assert not find_run_processes(tmp_path / str(number)), row
        assert read_result(tmp_path / str(number) / RESULT_FILE) == result
        is_late = row.phase in (EVALUATING, END)
        assert ("probe_failed" in result.flags) == is_late, row
        assert row.rank not in [rank.rank for rank in result.ranks if rank.status == "ok" and not rank.probe_failures]
        if (row.fault.name, row.phase) != ("hang", MEASURING):  # which of several waiting ranks hangs cannot be told
            assert result.log == f"rank{row.rank}.log", row
        assert row.fault.name != "stop" or result.reason.endswith(f"; rank {row.rank} is stopped")
