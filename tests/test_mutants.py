"""Mutants of scripts/mutants.py: which there are, and that the code of one fits the live functions of the module."""

import runpy

from scripts.mutants import find_mutants, pair_code

TEXT = b'''
"""A module."""
LIMIT = 3


def outer(values: list[int], limit: int = LIMIT) -> list[int]:
    """Return what is under the limit."""

    def is_small(value: int) -> bool:
        return value < limit

    values.sort()
    if not values or is_small(len(values)):
        return [value for value in values if is_small(value)]
    return []
'''
CHANGES = [
    "return value < limit -> None", "value < limit -> <=", "values.sort() -> no call", "not values -> without not",
    "not values or is_small(len(values)) -> and", "if not values or is_small(len(values)) -> if not",
    "return [value for value in values if is_small(value)] -> None", "if is_small(value) -> if not",
    "return [] -> None",
]  # fmt: skip


def find(change):
    return next(mutant for mutant in find_mutants(TEXT) if mutant.change == change)


def test_mutants_are_in_the_bodies_of_functions():
    assert sorted(mutant.change for mutant in find_mutants(TEXT)) == sorted(CHANGES)


def test_each_mutant_changes_the_code_of_one_function_and_of_those_around_it():
    for mutant in find_mutants(TEXT):
        names = {old.co_qualname for old in pair_code(TEXT, mutant.apply(TEXT), "a.py")}
        assert "outer" in names and names <= {
            "<module>",
            "outer",
            "outer.<locals>.is_small",
            "outer.<locals>.<listcomp>",
        }


def test_a_live_function_becomes_the_mutant(tmp_path):
    (tmp_path / "a.py").write_bytes(TEXT)
    outer = runpy.run_path("a.py")["outer"]
    assert outer([3, 1]) == [1]
    outer.__code__ = pair_code(TEXT, find("value < limit -> <=").apply(TEXT), "a.py")[outer.__code__]
    assert outer([3, 1]) == [1, 3]
