"""Checks lines of recipes, in a process of its own: `python -m tests.report.recipe_runner < lines.json`.

Standard input is {name: code}. Prints a line for each that is wrong. Each is run in a child of its own, for
TensorFlow's devices can be set up once in a process.
"""

import json
import os
import sys
import traceback

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


def run_code(code):
    """Run the code and return its traceback; None if it ran and the model learnt."""
    kind = "tensorflow" if "tensorflow" in code else "torch"
    parts = [kind, "pytorch_lightning"] if "pytorch_lightning" in code else [kind]
    space = {}
    # TensorFlow's devices come before anything that starts its runtime, such as data.
    before, build, after = code.partition("strategy = ") if kind == "tensorflow" else ("", "", code)
    try:
        for lines in (before, *(SETUP_CODE[part] for part in parts), build + after, CHECK_CODE[kind]):
            exec(lines, space)
    except BaseException:
        return traceback.format_exc(limit=-3)
    return None


def main():
    cases = json.load(sys.stdin)
    for name, code in cases.items():
        child = os.fork()
        if child == 0:
            if problem := run_code(code):
                print(f"{name}: {problem}", flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            print(f"{name} did not run", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
