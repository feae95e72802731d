"""Guards around every test: environment unchanged, no child process left, nothing written outside tmp_path."""

import contextlib
import gc
import importlib.util
import os
import re
import subprocess
import sys
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from scalebench.runner.launchers import local
from tests.builders.warm_program import WarmSession
from tests.cluster.cluster import cluster as cluster  # for tests with the marker `cluster`
from tests.nvml_stand_in import nvml_library as nvml_library  # a fixture for every test

ROOT = Path(__file__).resolve().parents[1]
WATCHED = (ROOT, ROOT / "conf", ROOT / "multirun", ROOT / "scalebench", ROOT / "tests")
# `make test` asks for few examples, `make test-all` for the usual hundred. No example has a limit: machines are busy.
settings.register_profile("few", max_examples=40, deadline=None)
settings.register_profile("usual", deadline=None)
settings.load_profile("few")
# Before any fixture: TensorFlow's kernels for images with channels first are oneDNN's, which it takes by itself on some
# processors only.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
# A collection walks through all objects of the frameworks; as often as usual, they take a fifth of the time.
gc.set_threshold(100_000, 20, 20)
WARM_RANKS = pytest.StashKey[WarmSession]()
COLD = ("cold", "faults", "truth")  # markers of tests whose programs and ranks are new processes, as in a run
HAS_HOROVOD = importlib.util.find_spec("horovod") is not None
IGNORED = {".pytest_cache", ".hypothesis", "__pycache__", ".ruff_cache", ".mypy_cache"}


ALLOWED_SKIPS = (ROOT / "tests/allowed_skips.txt").read_text().splitlines()  # its comments match no reason


def pytest_addoption(parser):
    parser.addoption("--skips-fail", action="store_true", help="skips fail but for tests/allowed_skips.txt")
    parser.addoption("--cold", action="store_true", help="start all programs and ranks as new processes, as users do")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("real") and "horovod" in item.nodeid.lower():  # of its file, class or parameters
            item.add_marker("horovod")


def pytest_runtest_setup(item):
    if not HAS_HOROVOD and item.get_closest_marker("horovod"):
        pytest.skip("Horovod is not installed; make horovod")
    packages = [str(name) for marker in item.iter_markers("extra") for name in marker.args]
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed; make extras")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.skipped and item.config.getoption("skips_fail") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not any(re.fullmatch(allowed, reason) for allowed in ALLOWED_SKIPS):
            report.outcome, report.longrepr = "failed", f"skipped, and not in tests/allowed_skips.txt: {reason}"
    return report


def pytest_collection_finish(session):
    session.config.stash[WARM_RANKS] = WarmSession()  # by now test files have set what they set in the environment
    gc.freeze()  # collections need not look at what the frameworks have made when they were imported
    # TensorFlow's log would keep a stream of pytest's, and close it where a run sets up the log as Hydra does.
    with contextlib.suppress(ImportError):
        from absl import logging

        logging.get_absl_handler().python_handler.stream = sys.__stderr__


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    """End what forks ranks; after all that pytest prints, say where Horovod was missing."""
    if WARM_RANKS in session.config.stash:
        session.config.stash[WARM_RANKS].close()
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = [] if reporter is None or HAS_HOROVOD else reporter.stats.get("skipped", [])
    if count := sum("horovod" in str(report.longrepr).lower() for report in skipped):
        reporter.write_line(f"Horovod is not installed, and {count} tests were skipped: make horovod builds it")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Fork the programs that a test starts and the ranks that it launches, unless it is about how they start or what
    they use."""
    if item.config.getoption("--cold") or any(item.get_closest_marker(name) for name in COLD):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "start_program", item.config.stash[WARM_RANKS].start_program)
        patch.setattr(subprocess, "Popen", item.config.stash[WARM_RANKS].popen)
        return (yield)


@pytest.fixture(scope="session")
def warm_ranks(request):
    """Return what forks ranks in this session, whose processes no test has to end."""
    return request.config.stash[WARM_RANKS]


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory, request):
    """Return the data set cache of the session, so that data are not generated for each test. What Horovod can do, as
    the import of each framework shows, is kept for other sessions by the digest of its build."""
    folder = tmp_path_factory.mktemp("data_cache")
    if (cache := getattr(request.config, "cache", None)) is not None:
        (folder / "horovod").symlink_to(cache.mkdir("horovod"))
    return folder


@pytest.fixture
def no_child_left(request):
    before = list_descendants()
    yield
    before |= request.config.stash[WARM_RANKS].pids
    left = [psutil.Process(pid) for pid in list_descendants() - before if psutil.pid_exists(pid)]
    commands = [process.as_dict(["cmdline"])["cmdline"] or ["?"] for process in left if process.is_running()]
    names = [" ".join(command[:4]) for command in commands]
    for process in left:
        process.kill()
    assert not names, f"the test left processes: {names}"


@pytest.fixture(scope="session", autouse=True)
def one_resource_tracker():
    """Start the tracker before any test: multiprocessing keeps it as long as the interpreter, so no test left it."""
    resource_tracker.ensure_running()


@pytest.fixture(autouse=True)
def guards(no_child_left):
    """Are set up before monkeypatch, so that they check again after it has undone the changes of a test."""
    environment, names = os.environ._data.copy(), _list_names()  # a tenth of the time that dict(os.environ) takes
    yield
    changed = {name for name, _ in environment.items() ^ os.environ._data.items()} - {b"PYTEST_CURRENT_TEST"}
    assert not changed, f"the test changed environment variables: {sorted(changed)}"
    new = _list_names() - names
    assert not new, f"the test wrote outside tmp_path: {sorted(str(folder / name) for folder, name in new)}"


@pytest.fixture(autouse=True)
def in_tmp_path(guards, tmp_path, data_cache, monkeypatch):
    """Run each test in tmp_path, with the data cache of the session and without the plugins of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEBENCH_CACHE", str(data_cache))
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def list_descendants():
    """Return the processes below this one as the kernel lists them: psutil reads all of /proc, 70 times as long."""
    found = set()
    parents = [os.getpid()]
    while parents:
        threads = f"/proc/{parents.pop()}/task"
        with contextlib.suppress(OSError):  # a process or thread that has just ended
            for thread in os.listdir(threads):
                with contextlib.suppress(OSError), open(f"{threads}/{thread}/children", "rb", 0) as file:
                    parents += (new := [int(pid) for pid in file.read().split()])
                    found.update(new)
    return found


def _list_names():
    """Return names only, since this is called twice per test for thousands of tests."""
    return {(folder, name) for folder in WATCHED for name in os.listdir(folder) if name not in IGNORED}
