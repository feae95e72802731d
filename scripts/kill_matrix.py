"""`python -m scripts.kill_matrix FOLDER` makes mutants of scalebench, and notes in FOLDER which tests kill which.

A test may go when everything that it kills is killed by one that stays:
`python -m scripts.kill_matrix FOLDER --may-go tests/report/html tests/report/test_figures.py` starts nothing, and says
of each test there whether that is so. A test that comes from a corrected defect stays, whatever this says.

    --rooms analysis,core/stats  rooms, folders or files to mutate; 60 % of the mutants are in analysis, measure, config
                             and runner
    --mutants 400 --seed 1   how many, and which; the same seed draws the same ones
    --tests tests/analysis   tests to judge, else those of the rooms; -m takes markers: "not slow and not real"
    --csv FILE               also write a short table: each mutant, how many tests kill it, and three of these;
                             tests/kill_matrix.csv is the one of the last run

coverage.json says which tests run which line. Tests that share a fixture share its lines, and processes that a test
starts count for it, unless they were killed. Then each mutant's tests run in forks of one process that has collected
all tests, where live functions have the code of the mutant; the file is changed, too, for processes that these start.
A test that does not end kills; one that fails without a mutant is left out. mutants.jsonl has a row for each mutant.
Of the tests that run its line cheap ones of each file come first, for 10 s (--seconds) or up to 40 of them, and as many
again where it survives; `untried` counts the rest. The checkout stays as it is: all happens in a copy, in a process
namespace of its own where the system permits one. Started again with the same FOLDER, this goes on where it was; with
other tests or after a change of the code take another one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import gc
import hashlib
import io
import json
import os
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import _lru_cache_wrapper
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

import coverage
import hypothesis
import psutil
import pytest

from scripts.mutants import Mutant, find_mutants, pair_code

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("analysis", "measure", "config", "runner", "core", "report", "sweeps", "workloads", "cli")
WEIGHTED, WEIGHT = ROOMS[:4], 0.6
MAX_TESTS = 40  # of one mutant, and as many again where it survives
MIN_LIMIT_S = 30.0  # of a test, and five times what it takes
STDERR = os.dup(2)  # pytest captures the other
# A mutant may send a signal anywhere. The shell is the process there that adopts orphans and waits for them.
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", '"$@"; exit $?', "sh")
# What the processes that tests start have for their coverage: the copy is on their PYTHONPATH.
CHILD_COVERAGE = """
import atexit, json, os, time
if "PYTEST_CURRENT_TEST" in os.environ:
    import coverage
    found = coverage.Coverage(data_file=None, config_file=False, include=[{include!r}])
    def save():
        found.stop()
        data, name = found.get_data(), f"{folder}/{{os.getpid()}}-{{time.time_ns()}}"
        with open(name, "w") as file:
            json.dump({{path: data.lines(path) for path in data.measured_files()}}, file)
        os.rename(name, name + ".json")
    def save_and_exit(status, exit=os._exit):
        save()
        exit(status)
    atexit.register(save)
    os._exit = save_and_exit
    found.start()
"""


class Coverage:
    """A plugin of pytest that notes which tests run a line, and writes coverage.json."""

    def __init__(self, out: Path, children: Path) -> None:
        self._out, self._children = out, children
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=[f"{ROOT}/scalebench/*"])
        self._context = ""
        self._tests: list[str] = []
        self._seconds: list[float] = []
        self._lines: dict[str, dict[int, set[int]]] = collections.defaultdict(lambda: collections.defaultdict(set))
        self._users: dict[str, set[int]] = collections.defaultdict(set)  # numbers of tests by fixture
        self._caches: list[Any] = []

    def pytest_collection_finish(self) -> None:
        cached = [each for each in gc.get_objects() if type(each) is _lru_cache_wrapper]
        self._caches = [each for each in cached if each.__module__.startswith("scalebench")]
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        for cache in self._caches:
            cache.cache_clear()  # else only the first test to fill it would run its lines
        number, begin = len(self._tests), time.monotonic()
        self._tests.append(item.nodeid)
        self._switch(str(number))
        try:
            return (yield)
        finally:
            self._switch("")
            self._seconds.append(round(time.monotonic() - begin, 3))
            for fixtures in getattr(item, "_fixtureinfo").name2fixturedefs.values():  # noqa: B009
                for fixture in fixtures:
                    self._users[f"fixture {id(fixture)}"].add(number)
            for path in self._children.glob("*.json"):
                for file, lines in json.loads(path.read_text()).items():
                    for line in lines:
                        self._lines[file][line].add(number)
                path.unlink()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Count the lines of a fixture that several tests share for all of them, not for the first alone."""
        before = self._context
        if fixturedef.scope != "function":
            self._switch(f"fixture {id(fixturedef)}")
        try:
            return (yield)
        finally:
            self._switch(before)

    def _switch(self, context: str) -> None:
        if context != self._context:
            self._coverage.switch_context(context)
            self._context = context

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._coverage.stop()
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        data = self._coverage.get_data()
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in filter(None, contexts):
                    self._lines[file][line] |= self._users[context] if " " in context else {int(context)}
        sets: dict[tuple[int, ...], int] = {}
        lines = {
            str(Path(file).relative_to(ROOT)): {
                line: sets.setdefault(tuple(sorted(tests)), len(sets)) for line, tests in sorted(of_file.items())
            }
            for file, of_file in sorted(self._lines.items())
            if file.endswith(".py") and Path(file).is_file()  # templates are compiled, too
        }
        found = {"tests": self._tests, "seconds": self._seconds, "sets": list(sets), "lines": lines}
        write_json(self._out / "coverage.json", found | {"digests": {file: digest(ROOT / file) for file in lines}})


class Killing:
    """A plugin of pytest that runs the tests of each mutant in forks, instead of all tests in this process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._coverage = json.loads((options.out / "coverage.json").read_text())
        self._names: list[str] = self._coverage["tests"]
        self._seconds: list[float] = self._coverage["seconds"]
        self._items: dict[int, pytest.Item] = {}
        self._failed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._items = {number: items[name] for number, name in enumerate(self._names) if name in items}
        functions = collections.defaultdict(list)
        gc.unfreeze()  # tests/conftest.py freezes what is imported, and get_objects does not return that
        for each in gc.get_objects():
            if type(each) is FunctionType:
                functions[each.__code__.co_filename].append(each)
        table = self._options.out / "mutants.jsonl"
        done = {identify(row) for row in read_rows(table)}
        drawn = draw_mutants(self._options, self._coverage)
        first = [spread_over_files(each[2], self._names, self._seconds)[: 2 * MAX_TESTS] for each in drawn]
        passing = self._find_passing({test for tests in first for test in tests})
        for number, (path, mutant, covering) in enumerate(drawn, 1):
            row = {"file": path, **mutant._asdict(), "digest": self._coverage["digests"][path]}
            tests = spread_over_files([test for test in covering if test in passing], self._names, self._seconds)
            if tests and identify(row) not in done:
                begin = time.monotonic()
                passed = self._try(ROOT / path, mutant, tests, functions[str(ROOT / path)], number)
                row["killers"] = sorted(self._names[test] for test in passed if not passed[test])
                row |= {"tried": [self._names[test] for test in passed], "untried": len(covering) - len(passed)}
                with table.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                say(f"{number}/{len(drawn)} {path}:{mutant.line} {mutant.change}: {len(row['killers'])} of "
                    f"{len(passed)} tests kill it, {time.monotonic() - begin:.1f} s")  # fmt: skip
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    def _find_passing(self, tests: Iterable[int]) -> set[int]:
        """Return the tests that pass in a fork without a mutant; from now on their seconds are those of that."""
        path = self._options.out / "passing.json"
        known: dict[str, float | None] = json.loads(path.read_text()) if path.exists() else {}
        files = collections.defaultdict(list)
        for test in sorted(tests):
            if test in self._items and self._names[test] not in known:
                files[self._names[test].split("::")[0]].append(test)
        for number, (file, of_file) in enumerate(files.items(), 1):
            outcomes = self._run_in_forks(of_file)
            new = {self._names[test]: seconds if passed else None for test, (passed, seconds) in outcomes.items()}
            write_json(path, known := known | new)
            failed = [name for name, seconds in new.items() if seconds is None]
            say(f"without a mutant {number}/{len(files)}: {file}" + (f"; left out: {failed}" if failed else ""))
        for test in self._items:
            self._seconds[test] = known.get(self._names[test]) or self._seconds[test]
        return {test for test in self._items if known.get(self._names[test]) is not None}

    def _try(
        self, path: Path, mutant: Mutant, tests: list[int], functions: list[FunctionType], number: int
    ) -> dict[int, bool]:
        """Return for each test that ran whether it passed. Where all do, more than the first ones run."""
        text, times = path.read_bytes(), path.stat()
        mutated = mutant.apply(text)
        codes = pair_code(text, mutated, str(path))
        passed: dict[int, bool] = {}
        path.write_bytes(mutated)
        os.utime(path, (times.st_atime, 2_000_000_000 + number))  # no compiled file of another mutant is taken for it
        try:
            for start in (0, MAX_TESTS):
                batch, left_s = [], self._options.seconds
                for test in tests[start : start + MAX_TESTS]:
                    if left_s > 0:
                        batch.append(test)
                        left_s -= self._seconds[test]
                passed |= {test: ok for test, (ok, _) in self._run_in_forks(sorted(batch), functions, codes).items()}
                if len(passed) < start + MAX_TESTS or not all(passed.values()):
                    break
        finally:
            path.write_bytes(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return passed

    def _run_in_forks(
        self,
        tests: list[int],
        functions: Iterable[FunctionType] = (),
        codes: Mapping[CodeType, CodeType] = {},
    ) -> dict[int, tuple[bool, float]]:
        """Return whether tests pass and their seconds. What ends its fork or does not end fails; two follow."""
        outcomes: dict[int, tuple[bool, float]] = {}
        for _ in range(3):
            left = [test for test in tests if test not in outcomes]
            if not left:
                break
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                self._run_in_this_process(left, write, functions, codes)
            os.close(write)
            current = left[0]
            with os.fdopen(read, "rb", buffering=0) as answers:
                for line in read_lines(answers, lambda: MIN_LIMIT_S + 5 * self._seconds[current]):  # noqa: B023
                    current, *outcome = json.loads(line)
                    if outcome:
                        outcomes[current] = (outcome[0], outcome[1])
            outcomes.setdefault(current, (False, 0.0))
            end_descendants(self._options.contained)
        return outcomes

    def _run_in_this_process(
        self, tests: list[int], write: int, functions: Iterable[FunctionType], codes: Mapping[CodeType, CodeType]
    ) -> NoReturn:
        try:
            os.setsid()
            for function in functions:
                function.__code__ = codes.get(function.__code__, function.__code__)
            items = [self._items[test] for test in tests]
            items[0].config.pluginmanager.unregister(name="terminalreporter")
            for test, item, following in zip(tests, items, [*items[1:], None], strict=True):
                os.write(write, json.dumps([test]).encode() + b"\n")
                self._failed, begin = False, time.monotonic()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                outcome = [test, not self._failed, round(time.monotonic() - begin, 3)]
                os.write(write, json.dumps(outcome).encode() + b"\n")
        finally:
            os._exit(0)


def draw_mutants(options: argparse.Namespace, coverage: dict[str, Any]) -> list[tuple[str, Mutant, set[int]]]:
    """Return files, mutants and the tests that run their lines: kinds are drawn as often as each other, places once."""
    draw = random.Random(options.seed)
    pools: dict[bool, dict[str, list[tuple[str, Mutant, set[int]]]]] = {True: {}, False: {}}
    for path, lines in coverage["lines"].items():
        room = path.split("/")[1]
        if any(Path(path).is_relative_to(f"scalebench/{part}") for part in options.rooms):
            if digest(ROOT / path) != coverage["digests"][path]:
                say(f"{path} is left out: it is not as it was when coverage.json was made")
                continue
            tests = {int(line): coverage["sets"][number] for line, number in lines.items()}
            for mutant in find_mutants((ROOT / path).read_bytes()):
                covering = {
                    test for line in range(mutant.lines[0], mutant.lines[1] + 1) for test in tests.get(line, ())
                }
                if covering:
                    pools[room in WEIGHTED].setdefault(mutant.kind, []).append((path, mutant, covering))
    drawn: dict[tuple[str, int], tuple[str, Mutant, set[int]]] = {}
    while len(drawn) < options.mutants and any(pools.values()):
        pool = pools[(draw.random() < WEIGHT and bool(pools[True])) or not pools[False]]
        kind = draw.choice(sorted(pool))
        path, mutant, covering = pool[kind].pop(draw.randrange(len(pool[kind])))
        if not pool[kind]:
            del pool[kind]
        drawn.setdefault((path, mutant.line), (path, mutant, covering))
    return list(drawn.values())


def spread_over_files(tests: Iterable[int], names: Sequence[str], seconds: Sequence[float]) -> list[int]:
    """Return the tests with cheap ones first, but few of a file before those of other files."""
    earlier: collections.Counter[str] = collections.Counter()  # tests of each file
    ranks = []
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        file = names[test].split("::")[0]
        earlier[file] += 1
        ranks.append((earlier[file] * (seconds[test] + 0.05), test))
    return [test for _, test in sorted(ranks)]


def read_lines(answers: io.FileIO, find_limit_s: Callable[[], float]) -> Iterator[bytes]:
    """Yield lines until the other end is closed, or nothing comes for too long."""
    rest = b""
    while select.select([answers], [], [], find_limit_s())[0] and (data := answers.read(65536)):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def end_descendants(contained: bool) -> None:
    """End all that forks have left; of a process namespace all but this process and its first one."""
    ancestor = psutil.Process(1 if contained and os.getppid() == 1 else os.getpid())
    for process in ancestor.children(recursive=True):
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def run_step(options: argparse.Namespace, folder: Path) -> int:
    """Run pytest in the copy of the tree that this file is in, with the plugin of one step."""
    settings = hypothesis.settings
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # a failure is enough, it need not be a small one
    settings.register_profile("kill", max_examples=40, deadline=None, database=None, derandomize=True, phases=phases)
    arguments = [*options.tests, "-m", options.markers, "-qq", "--basetemp", str(folder / "t"), "--tb=short"]
    arguments += ["--assert=plain", "-p", "no:cacheprovider", "--hypothesis-profile=kill"]
    plugin = Killing(options) if options.step == "kill" else Coverage(options.out, folder / "children")
    return pytest.main(arguments, plugins=[plugin])


def run_steps(options: argparse.Namespace) -> None:
    """Run the steps that are not done in a copy of the tree."""
    options.out.mkdir(parents=True, exist_ok=True)
    for room in options.rooms:
        if not (ROOT / "scalebench" / room).exists():
            sys.exit(f"--rooms: no scalebench/{room}; it takes what lies below scalebench, such as analysis/rows.py")
    with tempfile.TemporaryDirectory(prefix="km") as name:
        folder = Path(name).resolve()
        copy = folder / "tree"
        (folder / "children").mkdir()
        tracked = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
        )
        for file in tracked.stdout.splitlines():
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / file).is_file():
                shutil.copy2(ROOT / file, copy / file)
        contained = subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0
        command = [*(NAMESPACE if contained else ()), sys.executable, "-m", "scripts.kill_matrix", str(options.out)]
        command += [f"--rooms={','.join(options.rooms)}", f"--tests={','.join(options.tests)}", f"-m={options.markers}"]
        command += [f"--mutants={options.mutants}", f"--seed={options.seed}", f"--seconds={options.seconds}"]
        command += [*(["--contained"] if contained else [])]
        environment = {**os.environ, "PYTHONPATH": str(copy), "HOME": str(folder)}
        site = copy / "sitecustomize.py"
        if not (options.out / "coverage.json").exists():
            site.write_text(CHILD_COVERAGE.format(include=f"{copy}/scalebench/*", folder=folder / "children"))
            subprocess.run([*command, "--step=cover"], cwd=copy, env=environment)  # tests may fail
            site.unlink()
        if not (options.out / "coverage.json").exists():
            sys.exit("the tests did not run to their end: see above")
        subprocess.run([*command, "--step=kill"], cwd=copy, env=environment, check=True)


def print_summary(rows: Sequence[dict[str, Any]]) -> None:
    rooms = collections.defaultdict(list)
    for row in rows:
        rooms[row["file"].split("/")[1]].append(row)
    print("survivors, each a hole of the tests or a change without effect:")
    for row in sorted(rows, key=lambda row: (row["file"], row["line"])):
        if not row["killers"]:
            source = (ROOT / row["file"]).read_text().splitlines()[row["line"] - 1].strip()
            print(f"  {row['file']}:{row['line']} {row['change']}; {len(row['tried'])} tests; {source}")
    print(f"{'room':12}{'mutants':>8}{'killed':>8}{'survived':>10}")
    for room, of_room in [*rooms.items(), ("all", rows)]:
        killed = sum(bool(row["killers"]) for row in of_room)
        print(f"{room:12}{len(of_room):8}{killed:8}{len(of_room) - killed:10}")


def print_may_go(rows: Sequence[dict[str, Any]], paths: Sequence[str], names: Iterable[str]) -> None:
    """Print what of these files may go together, and the fewest tests of them that kill what no other file's kill."""
    inside = re.compile("|".join(rf"{re.escape(path.rstrip('/'))}(/|::|$)" for path in paths))
    tests = {name.split("[")[0] for name in names if inside.match(name)}
    kills: dict[str, set[int]] = {test: set() for test in tests}
    outside: set[int] = set()  # numbers of mutants that others kill
    tried = {name.split("[")[0] for row in rows for name in row["tried"]}
    for number, row in enumerate(rows):
        for name in row["killers"]:
            if inside.match(name):
                kills[name.split("[")[0]].add(number)
            else:
                outside.add(number)
    needed = {test: killed - outside for test, killed in kills.items()}
    left, few = set().union(*needed.values()), []
    while left:
        few.append(max(sorted(needed), key=lambda test: len(needed[test] & left)))
        left -= needed[few[-1]]
    groups = {
        "no mutant was tried on": tests - tried,
        "may go, kill nothing": {test for test in tests & tried if not kills[test]},
        "may go, others kill the same": {test for test in tests if kills[test] and not needed[test]},
        "may go while those below stay": {test for test in tests if needed[test] and test not in few},
        "stay": set(few),
    }
    for title, of_group in groups.items():
        print(f"{title}: {len(of_group)}")
        for test in sorted(of_group):
            print(f"  {test}: {len(kills[test])} killed, {len(needed[test])} by no other file")


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write one line for each mutant, with three of its killers."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["place", "change", "tried", "killers", "three"])
        for row in sorted(rows, key=lambda row: (row["file"], row["line"])):
            killers = dict.fromkeys(name.removeprefix("tests/").split("[")[0] for name in row["killers"])
            place = f"{row['file'].removeprefix('scalebench/')}:{row['line']}"
            writer.writerow([place, row["change"], len(row["tried"]), len(row["killers"]), " ".join([*killers][:3])])


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def identify(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("file", "digest", "kind", "start", "new"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def write_json(path: Path, content: object) -> None:
    path.with_suffix(".new").write_text(json.dumps(content))
    path.with_suffix(".new").rename(path)


def say(line: str) -> None:
    os.write(STDERR, f"{line}\n".encode())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=lambda text: Path(text).resolve(), metavar="FOLDER")
    parser.add_argument("--rooms", type=lambda text: text.split(","), default=list(ROOMS))
    parser.add_argument("--tests", type=lambda text: text.split(","))
    parser.add_argument("-m", dest="markers", default="not slow and not real")
    parser.add_argument("--mutants", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--may-go", nargs="+", metavar="PATH")
    parser.add_argument("--step", choices=["cover", "kill"], help=argparse.SUPPRESS)  # in the copy
    parser.add_argument("--contained", action="store_true", help=argparse.SUPPRESS)  # in a process namespace
    options = parser.parse_args(arguments)
    options.tests = options.tests or [f"tests/{room}" for room in options.rooms]
    if options.step:
        return run_step(options, ROOT.parent)
    if not options.may_go:
        run_steps(options)
    rows = read_rows(options.out / "mutants.jsonl")
    if options.may_go:
        print_may_go(rows, options.may_go, json.loads((options.out / "coverage.json").read_text())["tests"])
    else:
        print_summary(rows)
    if options.csv:
        write_csv(options.csv, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
