"""The distributions in plugins/: each declares what it imports; installed beside the built wheel, its own tests pass.

The environments are fresh but for large packages, torch and TensorFlow among them, which are those that these tests
run with: nothing is downloaded but what a plugin needs and is not there, and without that its test is skipped.
"""

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import PackageNotFoundError, version

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT
from tests.install.test_wheel import OK_ROW

PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
QUICK = [
    "measure=quick",
    "measure.min_s=0",
    "measure.max_s=0.5",
    "measure.probe_s=0.1",
    "measure.repeats=1",
    "dataset.size=1000",
]
LIMIT_S = 1800.0
TRIALS = ["hydra.sweeper.n_trials=2", "train.stop.seconds=1", "train.batch_per_device=100"]
# For each plugin: a sweep, how many of its runs are ok (with the baselines that it adds), and the strategies to check.
SHOWS = {
    "scalebench-jax": (["--multirun", "strategy=jax_data_parallel,ddp_gloo,mirrored", "gpus=1,2"], 9,
     ["jax_data_parallel"]),
    "scalebench-compression": (["--multirun", "strategy=ddp_gloo,ddp_topk", "gpus=2"], 9, ["ddp_topk"]),
    "scalebench-search": (["sweep=lr_search", "strategy=simulated", "gpus=1", *TRIALS], 2, []),
}  # fmt: skip


def project(folder):
    with (folder / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file)["project"])


def names(requirements):
    return {Requirement(one).name.replace("-", "_").lower() for one in requirements}


def imported(path):
    """Top-level names of what a file imports, wherever in it."""
    actual = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            actual |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            actual.add(node.module or "")
    return {name.partition(".")[0] for name in actual}


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_it_declares_what_it_imports(folder):
    """Or brings it with scalebench itself."""
    own = {path.name for path in (folder / "src").iterdir()}
    declared = names(project(folder)["dependencies"])
    assert "scalebench_train" in declared  # the distribution; the index has another one called scalebench
    expected = declared | names(project(ROOT)["dependencies"]) | own | {"hydra", "scalebench"}
    files = list((folder / "src").rglob("*.py"))
    wanted = set().union(*map(imported, files)) - sys.stdlib_module_names
    assert files and wanted <= expected, sorted(wanted - expected)


def test_each_has_something_to_show():
    assert {folder.name for folder in PLUGINS} == set(SHOWS)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Of scalebench itself."""
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


def built(folder, into):
    """The wheel that a folder's own pyproject.toml makes of it."""
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(into), str(folder)], into)
    (made,) = into.glob("*.whl")
    return made


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_it_passes_its_own_tests_where_it_is_installed(folder, wheel, tmp_path):
    python = installed(folder, wheel, tmp_path)
    scalebench = [python, "-m", "scalebench"]
    away = tmp_path / "away"
    away.mkdir()
    assert folder.name in run([*scalebench, "plugins"], away)
    # Its tests alone: what they import of it is what was installed.
    shutil.copy(folder / "pyproject.toml", away)
    shutil.copytree(folder / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    where = "import sys, importlib.util as u; print(u.find_spec(sys.argv[1]).origin)"
    assert str(tmp_path) in run([python, "-c", where, folder.name.replace("-", "_")], away)
    run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], away)

    sweep, rows, checked = SHOWS[folder.name]
    table = run([*scalebench, *sweep, *QUICK], away)
    assert len(OK_ROW.findall(table)) == rows, table
    for name in checked:
        run([*scalebench, "check", name], away)


def installed(folder, wheel, tmp_path):
    """Python of a new environment with scalebench and that plugin, behind which is this one. Skips where something
    that the plugin needs is in neither and cannot be had."""
    environment, its = tmp_path / "env", built(folder, tmp_path)
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    # Behind: what the new one has of its own comes first. Links and .pth files in there are not followed.
    site = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "behind.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    run([*pip, "--no-deps", "--ignore-installed", str(wheel)], tmp_path)
    wanted = f"{its}[test]" if "test" in project(folder).get("optional-dependencies", {}) else str(its)
    done = attempt([*pip, wanted], tmp_path)
    if done.returncode != 0 and not all(map(is_here, project(folder)["dependencies"])):
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


def run(command, folder):
    """What it printed."""
    done = attempt(command, folder)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def attempt(command, folder):
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "SCALEBENCH_PLUGINS")
    environment = {key: value for key, value in os.environ.items() if key not in ours} | {"COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
