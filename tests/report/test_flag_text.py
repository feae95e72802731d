"""Remarks on rows, and texts of flags."""

import ast
import re
from pathlib import Path

import pytest

from scalebench.analysis.verdicts import read_flags
from scalebench.report.flag_text import describe_row


def row(**changes):
    """A row on two devices whose baselines are two other runs, clearly faster than either."""
    usual = {"run_id": "me", "baseline_bare_id": "bare", "baseline_self_id": "self"}
    ratios = {f"speedup_{kind}_{end}": value for kind in ("bare", "self") for end, value in (("low", 1.5), ("high", 2))}
    return {**usual, **ratios, "flags": None, "steady": True, **changes}


BARE, SELF = "no difference from bare resolved", "no difference from one device resolved"
NOISY = {"speedup_bare_low": 0.9, "speedup_bare_high": 1.1, "speedup_self_low": 0.9, "speedup_self_high": 1.1}


@pytest.mark.parametrize(("changes", "remarks"), [
    *(({"speedup_bare_low": low, "speedup_bare_high": high}, [BARE] * is_reported)
      for low, high, is_reported in ((1.0, 1.1, True), (1.0001, 1.1, False), (0.9, 1.0, True), (0.9, 0.9999, False),
                                     (0.5, None, True), (1.5, None, False), (None, None, False))),
    (NOISY, [BARE, SELF]),
    ({**NOISY, "baseline_self_id": "bare"}, [BARE]),  # one run is both
    ({**NOISY, "baseline_self_id": "me"}, [BARE]),  # its own self baseline, on one device
    ({**NOISY, "baseline_bare_id": None}, [SELF]),
])  # fmt: skip
def test_a_difference_is_not_resolved_where_the_interval_holds_one(changes, remarks):
    """An upper limit that the data cannot give is null; nothing differs from itself, or from what is missing."""
    assert describe_row(row(**changes)) == remarks


ROOT = Path(__file__).parents[2]
# The modules and functions that set flags; other literals in these modules are not flags.
FLAG_MODULES = (
    "analysis/throughput", "core/stats/steady_state", "config/resolve", "measure/monitor/flags", "measure/nodes",
    "runner/collect",
)  # fmt: skip
FLAG_FUNCTIONS = re.compile(r"\w*(flags|find_unsteadiness|_drift|resolve|machines_part)")


def flag_literals():
    """Collect the literals of lists, keys and appended values in functions that set flags."""
    literals = set()
    for name in FLAG_MODULES:
        tree = ast.parse((ROOT / "scalebench" / f"{name}.py").read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        functions = [function for function in functions if FLAG_FUNCTIONS.fullmatch(function.name)]
        assert functions, f"{name} has no function that sets flags"
        for node in (node for function in functions for node in ast.walk(function)):
            parts = (
                [inner for element in node.elts for inner in ast.walk(element)] if isinstance(node, ast.List) else []
            )
            parts += node.keys if isinstance(node, ast.Dict) else []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                parts += node.args
            literals |= {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return {name for name in literals if re.fullmatch(r"[a-z_0-9]+", name)}


def test_a_remark_is_the_first_sentence_of_the_advice_also_where_that_names_a_key():
    (remark,) = describe_row(row(flags="samples_unknown"), explains=True)
    assert remark.endswith("it has steps that draw from no DataLoader: script.samples_per_step says them")


def test_every_flag_of_the_code_has_a_condition_and_advice():
    in_code = flag_literals()
    expected = "oversubscribed gpu_lost drifts warmup_left superlinear no_interval mfu_above_1"
    assert set(expected.split()) <= in_code
    texts = read_flags()
    assert in_code <= set(texts) and all(each.keys() - {"doubt"} == {"advice", "raised"} for each in texts.values())
