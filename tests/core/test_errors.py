"""Foreign exceptions in one line."""

import pytest

from scalebench.core.errors import describe_exception

FRAMES = """Traceback (most recent call last):
  File "worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "data.py", line 51, in __getitem__
    raise ValueError("label 7 is missing")
"""
IN_WORKER = f"Caught ValueError in DataLoader worker process 0.\nOriginal {FRAMES}ValueError: label 7 is missing"
WITHIN_ANOTHER = f"Caught ValueError in pin memory thread for device 0.\nOriginal {FRAMES}ValueError: {IN_WORKER}"
REPLICA = f"Caught KeyError in replica 1 on device 1.\nOriginal {FRAMES}KeyError: 'a'\n"
SPAWNED = f"\n\n-- Process 0 terminated with the following error:\n{FRAMES}ValueError: two\nlines\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError(IN_WORKER), "in DataLoader worker process 0: ValueError: label 7 is missing"),
        (ValueError(WITHIN_ANOTHER), "in DataLoader worker process 0: ValueError: label 7 is missing"),
        (RuntimeError(REPLICA), "in replica 1 on device 1: KeyError: 'a'"),
        (RuntimeError(SPAWNED), "ValueError: two lines"),
        (RuntimeError(FRAMES[:-60]), f"RuntimeError: {' '.join(FRAMES[:-60].split())}"),
        (RuntimeError("Traceback (most recent call last): no"), "RuntimeError: Traceback (most recent call last): no"),
        (ValueError("a\nb"), "ValueError: a b"),
        (ImportError("no module"), "no module"),
        (KeyError(), "KeyError"),
    ],
)
def test_an_exception_of_another_process_is_described_by_its_own_last_line(error, line):
    assert describe_exception(error) == line
