"""Checks lines of recipes, in a process of its own: `python -m tests.report.recipe_runner < lines.json`.

Standard input is {name: [code, whether to run it]}. Prints a line for each that is wrong. Each is run in a child of
its own, for TensorFlow's devices can be set up once in a process.
"""

import ast
import importlib
import inspect
import json
import os
import sys
import traceback
import types

SETUP_CODE = {
    "torch": """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = torch.nn.functional.mse_loss
batches = [(torch.ones(4, 3), torch.ones(4, 1))] * 40
""",
    "pytorch_lightning": """
import pytorch_lightning
class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, batch_idx):
        return loss(self.model(batch[0]), batch[1])
    def configure_optimizers(self):
        return optimizer
module = Module()
batches = torch.utils.data.DataLoader([(torch.ones(3), torch.ones(1))] * 160, batch_size=4)
""",
    "tensorflow": """
import tensorflow, keras
def build_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
def make_optimizer():
    return keras.optimizers.SGD(0.1)
def loss(targets, outputs):
    return tensorflow.reduce_mean((targets - outputs) ** 2)
samples = tensorflow.data.Dataset.from_tensors((tensorflow.ones((3,)), tensorflow.ones((1,)))).repeat(160)
batches = samples.batch(4)
""",
}
CHECK_CODE = {
    "torch": "after = float(loss(model(torch.ones(4, 3)), torch.ones(4, 1)))\nassert after < 1e-3, after",
    "tensorflow": "after = float(loss(tensorflow.ones((4, 1)), model(tensorflow.ones((4, 3)))))\n"
    "assert after < 1e-3, after",
}


def list_unknown_names(code):
    """List the names of modules, and the keywords of calls, that the installed frameworks do not have."""
    tree, names, problems = ast.parse(code), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
                name = alias.name if alias.asname else alias.name.split(".")[0]
                names[alias.asname or name] = importlib.import_module(name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.name] = getattr(importlib.import_module(node.module or ""), alias.name)
    for node in ast.walk(tree):
        try:
            target = _look_up(node.func if isinstance(node, ast.Call) else node, names)
        except AttributeError as error:
            problems.append(f"line {getattr(node, 'lineno', 0)}: {error}")
            continue
        if isinstance(node, ast.Call) and target is not None:
            problems += [f"{ast.unparse(node.func)} takes no {word}" for word in _unknown_keywords(target, node)]
    return problems


def _look_up(node, names):
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = _look_up(node.value, names)
    return getattr(owner, node.attr) if isinstance(owner, (types.ModuleType, type)) else None


def _unknown_keywords(target, node):
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:  # a function written in C has no signature
        return []
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return []
    return [word.arg for word in node.keywords if word.arg is not None and word.arg not in parameters]


def run_code(code):
    """Run the code and return its traceback; None if it ran and the model learnt."""
    kind = "tensorflow" if "tensorflow" in code else "torch"
    parts = [kind, "pytorch_lightning"] if "pytorch_lightning" in code else [kind]
    space = {}
    # TensorFlow's devices, and its group of workers, come before anything that starts its runtime, such as data.
    before, code = _split_code(code) if kind == "tensorflow" else ("", code)
    try:
        for lines in (before, *(SETUP_CODE[part] for part in parts), code, CHECK_CODE[kind]):
            exec(lines, space)
    except BaseException:
        return traceback.format_exc(limit=-3)
    return None


def _split_code(code):
    """Split the code at the statement that builds the model."""
    lines = code.split("\n")
    first = next(node.lineno - 1 for node in ast.parse(code).body if "build_model" in ast.unparse(node))
    return "\n".join(lines[:first]), "\n".join(lines[first:])


def main():
    cases = json.load(sys.stdin)
    for name, (code, runs) in cases.items():
        for problem_line in list_unknown_names(code):
            print(f"{name}: {problem_line}", flush=True)
        if not runs:
            continue
        child = os.fork()
        if child == 0:
            problem = run_code(code)
            if problem is not None:
                print(f"{name}: {problem}", flush=True)
            os._exit(0 if problem is None else 1)
        if os.waitpid(child, 0)[1] != 0:
            print(f"{name} did not run", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
