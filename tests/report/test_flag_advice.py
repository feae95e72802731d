"""Every flag that there is comes with what it means."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from scalebench.report import flag_text

ROOT = Path(__file__).parents[2]
# Where flags are given, and the functions that do; what else they hold in quotes is no flag.
GIVING = ("analysis", "steady", "resolve", "measure/monitor/guards", "measure/attended")
FUNCTIONS = re.compile(r"_?(flags|unsteady|unsteadiness|superlinear|resolve)")


def given() -> set[str]:
    """Literals of lists and of keys, and what is appended, in functions that give flags."""
    found = set()
    for name in GIVING:
        tree = ast.parse((ROOT / "scalebench" / f"{name}.py").read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        functions = [function for function in functions if FUNCTIONS.fullmatch(function.name)]
        assert functions, f"{name}: where are they now?"
        for node in (node for function in functions for node in ast.walk(function)):
            parts: list[ast.expr | None] = []
            if isinstance(node, ast.List):
                parts = [inner for one in node.elts for inner in ast.walk(one) if isinstance(inner, ast.expr)]
            elif isinstance(node, ast.Dict):
                parts = list(node.keys)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                parts = list(node.args)
            found |= {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return {name for name in found if re.fullmatch(r"[a-z_]+", name)}


def test_every_flag_of_the_code_and_of_the_docs_has_advice() -> None:
    in_code = given()
    assert {"oversubscribed", "gpu_lost", "drifts", "warmup_left", "superlinear", "no_interval"} <= in_code
    assert in_code <= set(flag_text.ADVICE)
    table = (ROOT / "docs" / "record.md").read_text().partition("| flag | means |")[2].partition("\n\n")[0]
    in_docs = {
        name
        for line in table.splitlines()
        for name in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")
    }
    assert "swapping" in in_docs and in_docs | {flag_text.NOT_STEADY} == set(flag_text.ADVICE)


def test_advice_is_sentences() -> None:
    for flag, said in flag_text.ADVICE.items():
        assert said[0].isupper() and said.endswith(".") and "  " not in said and "_ " not in said, flag
    assert "does not know this flag" in flag_text.get_advice("of_tomorrow")
    assert flag_text.format_flag("busy_machine") == "busy machine"
