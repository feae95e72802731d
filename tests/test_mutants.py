"""Mutants of scripts/mutants.py: one of each kind of place, in bodies of functions only."""

from scripts.mutants import find_mutants

TEXT = '''
LIMIT = 3

def outer(values: list[int], limit: int = LIMIT) -> list[int]:
    """Return what is under the limit."""
    values.sort()
    if not values or limit == 0:
        return [value - 1 for value in values if value < limit]
    return True if values else None
'''
CHANGES = {
    "values.sort() -> pass", "return True if values else None -> return None", "limit == 0 -> limit != 0",
    "if not values or limit == 0: return [value - 1 for v -> if not (not values or limit == 0): return [value - 1",
    "not values or limit == 0 -> not values and limit == 0", "True if values else None -> None if values else True",
    "return [value - 1 for value in values if value < lim -> return None", "not values -> values", "True -> False",
    "0 -> 1", "value - 1 -> value + 1", "value < limit -> value <= limit", "1 -> 2",
}  # fmt: skip


def test_mutants_are_in_the_bodies_of_functions():
    mutants = find_mutants(TEXT)
    assert {mutant.change for mutant in mutants} == CHANGES
    (one,) = [mutant for mutant in mutants if mutant.change == "value < limit -> value <= limit"]
    assert one.line == 8 and "value <= limit" in one.text and "limit == 0" in one.text
