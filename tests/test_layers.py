"""The house: twelve rooms that import downwards only; frameworks, Hydra and pandas stay where they belong."""

import ast
import graphlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    "core",
    "workloads cluster",
    "strategies analysis",
    "measure config",
    "runner report",
    "testing sweeps",
    "cli",
]
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms.split()}
TOP_FILES = {"__init__.py", "__main__.py", "plugin_api.py", "py.typed"}  # above all rooms
FRAMEWORKS = {
    "torch": "torch horovod accelerate deepspeed script",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "pytorch_lightning": "torch horovod script",
    "tensorflow": "tensorflow horovod script",
    "keras": "tensorflow horovod script",
    "horovod": "horovod",
}
HYDRA_PLACES = ("config.compose", "config.error_messages", "sweeps", "cli")


@dataclass(frozen=True)
class Import:
    source: str
    target: str
    at_top: bool  # runs when the module is imported

    def __str__(self):
        return f"{self.source} imports {self.target}"


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "scalebench").rglob("*.py"))}


def imports_in(source, tree, at_top=True):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(source, alias.name, at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{source}: relative imports hide where they point"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (Import(source, name if name in MODULES else node.module, at_top) for name in names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imports_in(source, node, False)
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_in(source, node, at_top and not function)


IMPORTS = [line for name, path in MODULES.items() for line in imports_in(name, ast.parse(path.read_text()))]
INTERNAL = [line for line in IMPORTS if line.target.split(".")[0] == "scalebench"]


def room(module):
    """The room of a module, or "" for the files at the top of the package."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYER_OF else ""


def below(module, *packages):
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def is_upward(line):
    """Whether an import leads to another room of the same or a higher layer. The files at the top stand above all."""
    source, target = room(line.source), room(line.target)
    if source == target or source == "":
        return False
    return target == "" or LAYER_OF[target] >= LAYER_OF[source]


def test_the_package_has_twelve_rooms_and_five_files():
    entries = [path for path in (ROOT / "scalebench").iterdir() if path.name != "__pycache__"]
    assert {path.name for path in entries if path.is_dir()} == set(LAYER_OF)
    assert {path.name for path in entries if path.is_file()} == TOP_FILES


def test_imports_are_collected():
    assert Import("scalebench.cli.hydra_app", "scalebench.config.resolve", True) in INTERNAL
    assert Import("scalebench.__main__", "scalebench.cli.hydra_app", False) in INTERNAL
    assert Import("scalebench.analysis.load", "pandas", False) in IMPORTS
    assert is_upward(Import("scalebench.core.spec", "scalebench.report.tables", False))
    assert is_upward(Import("scalebench.workloads.source", "scalebench.cluster.submit", False))


def test_a_room_imports_only_from_lower_layers():
    # scalebench itself is only its version to the rooms; its functions are loaded on first use
    assert [str(line) for line in INTERNAL if is_upward(line) and line.target != "scalebench"] == []


def test_no_module_is_imported_in_a_circle():
    graph = {name: {line.target for line in INTERNAL if line.at_top and line.source == name} for name in MODULES}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the cycle


def test_hydra_is_imported_where_configs_are_composed_and_sweeps_run():
    places = [f"scalebench.{place}" for place in HYDRA_PLACES]
    hydra = [line for line in IMPORTS if below(line.target, "hydra", "hydra_plugins")]
    assert [str(line) for line in hydra if not below(line.source, *places)] == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_is_imported_in_its_own_strategies_only(framework):
    homes = [f"scalebench.strategies.{name}" for name in FRAMEWORKS[framework].split()]
    lines = [i for i in IMPORTS if below(i.target, framework) and not below(i.source, *homes)]
    assert [str(line) for line in lines] == []


def test_framework_folders_are_reached_through_the_registry_only():
    names = ("torch", "tensorflow", "horovod", "accelerate", "deepspeed")
    folders = [f"scalebench.strategies.{name}" for name in names]
    reached = [line for line in INTERNAL if below(line.target, *folders)]
    # The steps of a user's program, which has imported torch, are observed as those of scalebench's own.
    allowed = (*folders, "scalebench.strategies.script.program")
    assert [str(line) for line in reached if not below(line.source, *allowed)] == []


@pytest.mark.parametrize("heavy", ["pandas", "pyarrow", "scipy", "pynvml", "rich", "omegaconf"])
def test_low_rooms_import_heavy_libraries_where_they_are_used(heavy):
    low = [line for line in IMPORTS if room(line.source) and LAYER_OF[room(line.source)] <= LAYER_OF["analysis"]]
    assert [str(line) for line in low if below(line.target, heavy) and line.at_top] == []


def loaded_after(code, *packages):
    """Which of `packages` a fresh interpreter has loaded after `code`; the code's own output is discarded."""
    report = f"import sys\n{code}\nprint('LOADED', *sorted({set(packages)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.splitlines()[-1].split()[1:]


def test_loaded_packages_are_reported():
    assert loaded_after("import json", "json", "torch") == ["json"]


def test_help_loads_nothing_heavy():
    code = "from scalebench.__main__ import main\nassert main(['--help']) == 0"
    assert loaded_after(code, "hydra", "omegaconf", "numpy", "pandas", "rich", "torch") == []


def test_the_package_itself_loads_nothing_heavy():
    code = "import scalebench\nassert callable(scalebench.run)"
    heavy = ("hydra", "omegaconf", "numpy", "pandas", "rich", "plotly", "IPython", *FRAMEWORKS)
    assert loaded_after(code, *heavy) == []


def test_the_api_for_plugins_loads_no_framework():
    assert loaded_after("import scalebench.plugin_api", *FRAMEWORKS, "hydra", "pandas") == []


def test_the_parent_composes_and_resolves_without_a_framework():
    code = (
        "from scalebench.config import compose, resolve\n"
        "spec = resolve.resolve(compose.to_config(compose.compose(['strategy=ddp', 'gpus=2'])))\n"
        "assert spec.processes == 2"
    )
    assert loaded_after(code, *FRAMEWORKS, "hydra", "pandas") == ["hydra"]


def test_listing_strategies_loads_no_framework():
    code = "from scalebench.__main__ import main\nassert main(['list', 'strategies']) == 0"
    assert loaded_after(code, *FRAMEWORKS, "hydra", "pandas") == []


WRITE_SPEC = """
from pathlib import Path
from scalebench.config import compose, resolve
from scalebench.core import spec
overrides = ["strategy=simulated", "gpus=1", "measure=quick", "measure.min_s=0", "measure.max_s=0.05"]
overrides += ["dataset.size=1000", "measure.probes=false"]
spec.write_spec(resolve.resolve(compose.to_config(compose.compose(overrides))), Path("."))
"""


def test_a_worker_loads_neither_hydra_nor_pandas():
    """Run one rank from beginning to end in a fresh interpreter, then look at what it loaded."""
    loaded_after(WRITE_SPEC)
    code = "import os\nos.environ['RANK'] = '0'\nfrom scalebench.runner import worker\nassert worker.main(['.']) == 0"
    assert loaded_after(code, *FRAMEWORKS, "hydra", "omegaconf", "pandas", "rich", "numpy") == ["numpy"]
    assert Path("rank0.json").exists()
