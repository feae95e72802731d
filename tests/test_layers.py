"""The house: imports point downwards only, frameworks stay in their adapters, Hydra and pandas where they belong."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    "spec train_spec results records merged_trace suggest stats "
    "student steady horovod_build hosts slurm_spec folder_lock sweep_record machine_kind machine gpus nvml gpu_links "
    "fingerprint system_files cgroups processors nccl_log memory_limit api",
    "figures baselines columns rows reading given "
    "linear rungs local_batch missing_rungs ladders attributing causes "
    "plugin_api "
    "strategy plugins registry configs workloads frame analysis pooling agreement crossover transfers probed curves "
    "slopes ranking published budget record_facts ratio_tests pairing key_values comparison_words unpaired "
    "comparison baseline_store staged trained training_id time_to_target "
    "batch_curves batch_knee batch_or_devices footprint "
    "parallel_choice link_rate measured_rates planned_stages data_or_model",
    "training_plan slurm launchers measure adapters resolve placing obstacles binding worker_environment",
    "outlook run max_batch worker plugin_probe collect cluster batch report testing.checks "
    "testing.model_checks testing.mapping",
    "__main__ cli search_path hydra_launcher hydra_namespace jobs task on_cluster config_errors sweep_values "
    "verbs sweeping testing",
]
LAYER_OF = {f"scalebench.{name}": number for number, names in enumerate(LAYERS) for name in names.split()}
# `scalebench.load` is there on first use; what it loads is the one import that the package itself makes.
LAYER_OF["scalebench"] = LAYER_OF["scalebench.frame"]
FRAMEWORKS = {
    "torch": "torch horovod",
    "pytorch_lightning": "torch horovod",
    "tensorflow": "tensorflow horovod",
    "keras": "tensorflow horovod",
    "horovod": "horovod",
}


@dataclass(frozen=True)
class Import:
    source: str
    target: str
    at_top: bool  # runs when the module is imported

    def __str__(self) -> str:
        return f"{self.source} imports {self.target}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "scalebench").rglob("*.py"))}


def imports_of(source: str, tree: ast.AST, at_top: bool = True) -> list[Import]:
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found += [Import(source, alias.name, at_top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{source}: relative imports hide where they point"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [Import(source, name if name in MODULES else node.module, at_top) for name in names]
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found += imports_of(source, node, False)
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            found += imports_of(source, node, at_top and not function)
    return found


IMPORTS = [found for name, path in MODULES.items() for found in imports_of(name, ast.parse(path.read_text()))]
OURS = [found for found in IMPORTS if found.target.split(".")[0] == "scalebench"]


def layer(module: str) -> int | None:
    """The layer of the longest listed name that `module` is or lies below."""
    parts = module.split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 1, -1))
    return LAYER_OF.get(module, next((LAYER_OF[name] for name in names if name in LAYER_OF), None))


def below(module: str, *packages: str) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def test_the_walk_sees_the_imports() -> None:
    assert Import("scalebench.cli", "scalebench.task", True) in OURS
    assert Import("scalebench.__main__", "scalebench.cli", False) in OURS
    assert Import("scalebench.frame", "pandas", False) in IMPORTS
    assert len(MODULES) > 40 and len(OURS) > 100


def test_every_module_belongs_to_a_layer() -> None:
    assert [name for name in MODULES if layer(name) is None] == []


def test_imports_point_to_the_same_or_a_lower_layer() -> None:
    upward = [str(i) for i in OURS if (layer(i.target) or 0) > (layer(i.source) or 0) and i.target != "scalebench"]
    assert upward == []


def test_no_module_waits_for_itself() -> None:
    graph = {name: {i.target for i in OURS if i.at_top and i.source == name} for name in MODULES}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the cycle


def test_hydra_is_known_in_layer_4_only() -> None:
    wrong = [str(i) for i in IMPORTS if below(i.target, "hydra", "hydra_plugins") and layer(i.source) != 4]
    assert wrong == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_is_imported_in_its_adapters_only(framework: str) -> None:
    homes = [f"scalebench.adapters.{name}" for name in FRAMEWORKS[framework].split()]
    assert [str(i) for i in IMPORTS if below(i.target, framework) and not below(i.source, *homes)] == []


def test_adapters_are_reached_through_the_registry_only() -> None:
    framework_free = {"scalebench.adapters.simulated"}
    reached = [i for i in OURS if below(i.target, "scalebench.adapters") and i.target not in framework_free]
    assert [str(i) for i in reached if not below(i.source, "scalebench.adapters")] == []


@pytest.mark.parametrize("heavy", ["pandas", "pyarrow", "scipy", "pynvml", "rich", "omegaconf"])
def test_layers_0_and_1_import_heavy_libraries_where_they_are_used(heavy: str) -> None:
    assert [str(i) for i in IMPORTS if below(i.target, heavy) and i.at_top and (layer(i.source) or 0) <= 1] == []


def loaded_after(code: str, *packages: str) -> list[str]:
    """Which of `packages` are loaded in a fresh interpreter after `code`, whose own output is let go."""
    ask = f"import sys\n{code}\nprint('LOADED', *sorted({set(packages)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()[-1].split()[1:]


def test_the_probe_sees_what_is_loaded() -> None:
    assert loaded_after("import json", "json", "torch") == ["json"]


def test_help_waits_for_nothing_heavy() -> None:
    code = "from scalebench.__main__ import main\nassert main(['--help']) == 0"
    assert loaded_after(code, "hydra", "omegaconf", "numpy", "pandas", "rich", "torch") == []


def test_the_parent_composes_and_resolves_without_a_framework() -> None:
    code = (
        "from scalebench import cli, jobs, resolve\n"
        "spec = resolve.resolve(compose_config(['strategy=ddp', 'gpus=2']))\n"
        "assert spec.processes == 2"
    )
    assert loaded_after(code, *FRAMEWORKS, "hydra", "pandas") == ["hydra"]


def test_listing_strategies_loads_no_framework() -> None:
    code = "from scalebench.__main__ import main\nassert main(['strategies']) == 0"
    assert loaded_after(code, *FRAMEWORKS, "hydra", "pandas") == []


WORKER = """
from pathlib import Path
from scalebench.compose import compose_config
from scalebench import cli, jobs, resolve, spec
words = ["strategy=simulated", "gpus=1", "measure=quick", "measure.min_s=0", "measure.max_s=0.05", "dataset.size=1000"]
words += ["measure.probes=false"]
spec.write_spec(resolve.resolve(compose_config(words)), Path("."))
"""


def test_a_worker_loads_neither_hydra_nor_pandas() -> None:
    """One whole rank, in an interpreter of its own that is then asked what it loaded."""
    loaded_after(WORKER)
    code = "import os\nos.environ['RANK'] = '0'\nfrom scalebench import worker\nassert worker.main(['.']) == 0"
    assert loaded_after(code, *FRAMEWORKS, "hydra", "omegaconf", "pandas", "rich", "numpy") == ["numpy"]
    assert Path("rank0.json").exists()
