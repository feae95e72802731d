"""Text for people: figures, unknown names with the nearest candidate or all of them, foreign exceptions in one line."""

import math

from scalebench.core import units
from scalebench.core.errors import describe_exception, nearest_name, nearest_names, unknown_name_message
from scalebench.core.stats.estimates import Estimate


def test_figures_with_units():
    for estimate, text in (
        ((1.35e-3, 1.2e-3, 1.51e-3), "1.35 ms [1.20, 1.51]"),
        ((9.9e-3, 9.7e-3, 10.1e-3), "9.9 ms [9.7, 10.1]"),
        ((3e-7, -4.1e-5, 4.16e-5), "0.3 us [-41.0, 41.6]"),
        ((-1e-9, -2e-3, 2e-3), "0.00 ms [-2.00, 2.00]"),
        ((1234.5, 1200.0, 1269.0), "1,234 s [1,200, 1,269]"),
        ((0.5, 0.5, 0.5), "500 ms"),
        ((0.9996, 0.9996, 0.9996), "1.00 s"),
        ((0.9994, 0.9994, 0.9994), "999 ms"),
        ((2e-9, 1e-9, math.inf), "2.00 ns"),
        ((0.0, 0.0, 0.0), "0.00 s"),
        ((1e-12, 1e-12, 1e-12), "0.00 ns"),
    ):
        assert units.format_seconds(Estimate(*estimate)) == text
    assert units.format_seconds(0.00135) == "1.35 ms"
    assert units.format_rate(Estimate(1234.4, 1200.0, 1270.0), "samples/s") == "1,234 samples/s [1,200, 1,270]"
    assert units.format_rate(Estimate(12.34, 12.0, math.inf), "samples/s") == "12.3 samples/s"
    sizes = {0: "0 B", 999: "999 B", 1000: "1.00 kB", 999_960: "1.00 MB", 123456789: "123 MB", 2.5e12: "2.50 TB"}
    assert {count: units.format_bytes(count) for count in sizes} == sizes
    assert [units.format_percent(value) for value in (0.1234, -0.0001, 1.5)] == ["12.3 %", "0.0 %", "150.0 %"]
    shares = [units.format_percent(Estimate(0.93, 0.91, 0.949), 0), units.format_percent(Estimate(0.5, 0.4))]
    assert shares == ["93 % [91, 95]", "50.0 %"]
    assert units.format_ratio(Estimate(1.857, 1.82, 1.9)) == "1.86 [1.82, 1.90]"
    assert [units.format_number(value) for value in (0.5, 12.34, 1410.2)] == ["0.50", "12.3", "1,410"]


NAMES = ["mirrored", "ddp", "ddp_gloo"]


def test_a_near_name_is_suggested_or_all_are_listed_in_order():
    nearest = {"mirorred": "mirrored", "dpd": "ddp", "ddp_glo": "ddp_gloo", "zzz": None, "": None}
    assert {name: nearest_name(name, NAMES) for name in nearest} == nearest
    assert unknown_name_message("strategy", "mirorred", NAMES) == "no strategy 'mirorred'; did you mean 'mirrored'?"
    assert unknown_name_message("verb", "zzz", iter(NAMES)) == "no verb 'zzz'; known: ddp, ddp_gloo, mirrored"
    assert unknown_name_message("option", "x", []) == "no option 'x'; known: none"
    names = ["ddp_gloo", "resnet152", "resnet50", "resnet101", "model", "y2"]
    stand_for = {
        "ddp": ["ddp_gloo"],  # those that continue it
        "resnet18": ["resnet50", "resnet101", "resnet152"],  # those of another number
        "resnet": ["resnet50", "resnet101", "resnet152"],
        "RESNET50": ["resnet50"],
        "nodes": [],  # as far from "model" as one word can be from another
        "x1": [],
    }
    assert {name: nearest_names(name, names) for name in stand_for} == stand_for


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


def test_an_exception_of_another_process_is_described_by_its_own_last_line():
    for error, line in (
        (ValueError(IN_WORKER), "in DataLoader worker process 0: ValueError: label 7 is missing"),
        (ValueError(WITHIN_ANOTHER), "in DataLoader worker process 0: ValueError: label 7 is missing"),
        (RuntimeError(REPLICA), "in replica 1 on device 1: KeyError: 'a'"),
        (RuntimeError(SPAWNED), "ValueError: two lines"),
        (RuntimeError(FRAMES[:-60]), f"RuntimeError: {' '.join(FRAMES[:-60].split())}"),
        (RuntimeError("Traceback (most recent call last): no"), "RuntimeError: Traceback (most recent call last): no"),
        (ValueError("a\nb"), "ValueError: a b"),
        (ImportError("no module"), "no module"),
        (KeyError(), "KeyError"),
    ):
        assert describe_exception(error) == line
