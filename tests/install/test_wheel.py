"""The distributions: their metadata, and their wheels in fresh environments, where the same commands do the same.

Those of plugins have large packages, torch and TensorFlow among them, of the environment that these tests run with.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import PackageNotFoundError, version

import pytest
from packaging.requirements import Requirement

import scalebench
from tests.conftest import ROOT

PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
OK_ROW = re.compile(r"^\d+ .*\bok\b", re.MULTILINE)  # of the table that ends a run or a sweep
QUICK = (
    "measure=quick measure.min_s=0 measure.max_s=0.5 measure.probe_s=0.1 measure.repeats=1 dataset.size=1000".split()
)
TRIALS = ["hydra.sweeper.n_trials=2", "train.stop.seconds=1", "train.batch_per_device=100"]
# For each plugin: a sweep, how many of its runs are ok (with the baselines that it adds), and the strategies to check.
SHOWS = {
    "scalebench-jax": (["--multirun", "strategy=jax_data_parallel,ddp_gloo,mirrored", "gpus=1,2"], 9,
     ["jax_data_parallel"]),
    "scalebench-compression": (["--multirun", "strategy=ddp_gloo,ddp_topk", "gpus=2"], 5, ["ddp_topk"]),
    "scalebench-search": (["sweep=lr_search", "strategy=simulated", "gpus=1", *TRIALS], 2, []),
}  # fmt: skip
FRAMEWORKS = {"torch", "pytorch-lightning", "accelerate", "deepspeed", "tensorflow", "keras", "horovod"}
TEST_TOOLS = {"pytest", "pytest-xdist", "hypothesis", "selenium", "jsonschema", "ruff", "mypy", "mkdocs-material"}


def read_project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


PROJECT = read_project(ROOT)


def names(requirements):
    return {Requirement(one).name.replace("-", "_").lower() for one in requirements}


def run(command, folder, status=0):
    done = attempt(command, folder)
    assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def attempt(command, folder):
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "SCALEBENCH_PLUGINS")
    environment = {key: value for key, value in os.environ.items() if key not in ours} | {"COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)


def build(folder, into):
    into.mkdir(exist_ok=True)
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(into), str(folder)], into)
    (made,) = into.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


def test_base_brings_no_framework_and_no_test_tool():
    base = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert "numpy" in base and not base & (FRAMEWORKS | TEST_TOOLS)
    torch = {Requirement(line).name for line in PROJECT["optional-dependencies"]["torch"]}
    assert torch == {"torch", "pytorch-lightning"}
    assert f"\nversion: {scalebench.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_hint_names_an_extra_of_the_distribution():
    """A hint with another name would have pip install another project of the index."""
    sources = [path for path in (ROOT / "scalebench").rglob("*") if path.suffix in (".py", ".jinja", ".sh", ".yaml")]
    hints = {hint for path in sources for hint in re.findall(r"([\w-]+)\[(\w+)\]'?\"", path.read_text())}
    extras = {extra for name, extra in hints if name == PROJECT["name"]}
    assert extras >= {"torch", "tensorflow", "images", "figures", "testing"}
    assert extras <= PROJECT["optional-dependencies"].keys()
    assert "scalebench" not in {name for name, _ in hints}


def test_plugins_declare_what_they_import():
    """Or bring it with scalebench itself."""
    assert {folder.name for folder in PLUGINS} == set(SHOWS)
    for folder in PLUGINS:
        own = {path.name for path in (folder / "src").iterdir()}
        declared = names(read_project(folder)["dependencies"])
        assert "scalebench_train" in declared  # the distribution; the index has another one called scalebench
        imported = set()
        for path in (folder / "src").rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    imported.add(node.module.partition(".")[0])
        expected = declared | names(PROJECT["dependencies"]) | own | {"hydra", "scalebench"}
        assert imported and imported - sys.stdlib_module_names <= expected, folder.name


@pytest.mark.slow
@pytest.mark.real
def test_wheel_in_a_fresh_environment(wheel, tmp_path):
    away = tmp_path / "away from home"
    away.mkdir()
    venv.create(tmp_path / "env", with_pip=True)
    python, script = (str(tmp_path / "env" / "bin" / name) for name in ("python", "scalebench"))
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    run([python, "-m", "pip", "install", "--quiet", *constraints, f"{wheel}[torch]"], away)

    assert "ddp_gloo" in run([script, "list", "strategies"], away)
    find_conf = [python, "-c", "import scalebench.core.config_files as c; print(c.conf_dir())"]
    assert "site-packages" in run(find_conf, away)
    (scripts,) = (tmp_path / "env").glob("lib/*/site-packages/scalebench/cli/commands/install")
    assert {path.name for path in scripts.glob("*.sh") if os.access(path, os.X_OK)} >= {"horovod.sh", "horovod_cxx.sh"}
    assert "scalebench install horovod" in run([script, "doctor"], away)
    program = [python, "-m", "scalebench"]
    assert "ok" in run([*program, "strategy=ddp_gloo", "gpus=2", "hydra.run.dir=out", *QUICK], away)
    for name in ("spec.json", "rank0.json", "rank1.json", "rank0.log", "rank1.log", "result.json"):
        assert (away / "out" / name).exists(), name
    shown = run([python, "-c", "import scalebench; print(scalebench.load('out').T.to_string())"], away)
    assert "gloo" in shown and "throughput_samples_per_s" in shown
    table = run([*program, "--multirun", "strategy=ddp_gloo,lightning_ddp_gloo", "gpus=1,2", *QUICK], away)
    assert len(OK_ROW.findall(table)) == 5, table  # four, and the bare baseline
    line = run([*program, "strategy=horovod_nccl", "hardware=alpha", "hardware.slurm.bin=/no/such/folder"], away, 1)
    assert "horovod" in line and "use hardware=local" in line
    assert "did you mean 'mirrored'?" in run([*program, "strategy=mirorred"], away, status=2)
    # With the checkout as the working directory its own files are taken.
    assert str(ROOT / "conf") in run(find_conf, ROOT)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_a_plugin_passes_its_own_tests_where_it_is_installed(folder, wheel, tmp_path):
    python = install(folder, wheel, tmp_path)
    program = [python, "-m", "scalebench"]
    away = tmp_path / "away"
    away.mkdir()
    # A plugin of the environment behind may be listed as broken: its .pth file is not followed.
    rows = [line for line in attempt([*program, "plugins"], away).stdout.splitlines() if folder.name in line]
    assert rows and all(" ok" in row for row in rows)
    # Its tests alone: what they import of it is what was installed.
    shutil.copy(folder / "pyproject.toml", away)
    shutil.copytree(folder / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    where = "import sys, importlib.util as u; print(u.find_spec(sys.argv[1]).origin)"
    assert str(tmp_path) in run([python, "-c", where, folder.name.replace("-", "_")], away)
    run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], away)

    sweep, rows, checked = SHOWS[folder.name]
    table = run([*program, *sweep, *QUICK], away)
    assert len(OK_ROW.findall(table)) == rows, table
    for name in checked:
        run([*program, "check", name], away)


def install(folder, wheel, tmp_path):
    """Return the Python of a new environment with scalebench and that plugin, behind which is this one. Skip where
    something that the plugin needs is in neither and cannot be had."""
    environment, its = tmp_path / "env", build(folder, tmp_path / "its")
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    # Behind: what the new one has of its own comes first. Links and .pth files in there are not followed.
    site = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "behind.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    run([*pip, "--no-deps", "--ignore-installed", str(wheel)], tmp_path)
    project = read_project(folder)
    wanted = f"{its}[test]" if "test" in project.get("optional-dependencies", {}) else str(its)
    done = attempt([*pip, wanted], tmp_path)
    if done.returncode != 0 and not all(map(is_here, project["dependencies"])):
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        pytest.skip(f"pip cannot get what {folder.name} needs: {' '.join(reasons)}")
    assert done.returncode == 0, done.stderr
    return python


def is_here(requirement):
    one = Requirement(requirement)
    try:
        return one.specifier.contains(version(one.name), prereleases=True)
    except PackageNotFoundError:
        return False
