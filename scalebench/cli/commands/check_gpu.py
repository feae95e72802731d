"""`scalebench check --gpu`: the first hour on a GPU machine. It writes one page that users can mail.

Each line of the page passes, fails, or is not possible here. The exit status is 1 where a line fails.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import psutil

from scalebench import __version__
from scalebench.cli.commands import check, doctor
from scalebench.cli.commands.arguments import CommandParser, count_verdicts
from scalebench.cli.commands.check import ContractResult
from scalebench.core import config_files
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_record, write_json
from scalebench.core.machine import gpus
from scalebench.core.machine.machine import count_usable_cores
from scalebench.core.process import build_python_command
from scalebench.report import markdown
from scalebench.strategies import registry
from scalebench.testing import gpu_truths as truths
from scalebench.testing.gpu_truths import try_truths
from scalebench.testing.gpu_worker import FAIL, NOT_POSSIBLE, PASS, Truth

TITLE = "# scalebench check --gpu"
NO_GPU = "no GPU"
LINES_FILE = "lines.json"  # of one process
NO_TIME = "no time is left; --minutes gives more"
STOPPED = "it was stopped at the end of the time; --minutes gives more"
ONE_DEVICE = ("device", "timer", "copy", "monitor", "memory", "profiler")
# By the first of its lines: all of them, and what is observed for them in a folder.
OBSERVATIONS: dict[str, tuple[tuple[str, ...], Callable[[Path], list[Truth]]]] = {
    names[0]: (names, observe)
    for names, observe in (
        (ONE_DEVICE, lambda folder: truths.observe_rank("bare_torch", 1, ONE_DEVICE, folder)),
        (("all_reduce",), lambda folder: truths.observe_rank("ddp", 2, ("all_reduce",), folder)),
        (("bare",), lambda folder: truths.observe_bare_and_ddp(folder)),
        (("one_gpu",), lambda folder: truths.observe_two_ranks_on_one_gpu(folder)),
    )
}
CONTRACT_BYTES = 3 * 2**30  # of a GPU's memory, and of the machine's, for the processes of one contract
FOLDER = re.compile(r"(?<![\w~./])/(?:[\w.@+-]+/)+(?=[\w.@+-])")  # of an absolute path: the file's name stays
PUBLIC_NAMES = {"root", "localhost", "127.0.0.1", "::1", "00:00:00:00:00:00"}


def main(page: Path, minutes: float) -> int:
    """Check, print each line as it ends, and write the page."""
    refuse_other_file(page)
    end_s = time.monotonic() + 60 * minutes
    report = io.StringIO()
    lines: list[Truth] = []
    with tempfile.TemporaryDirectory(prefix="scalebench-check-") as folder:
        for line in run_checks(Path(folder), report, lambda: end_s - time.monotonic()):
            lines.append(line)
            print(hide_private(f"{line.title}: {line.answer}"), flush=True)
            page.write_text(write_page(lines, report.getvalue()), encoding="utf-8")  # also if the next one never ends
    print(f"{summarize(lines)}\npage: {page}")
    return 1 if any(line.verdict == FAIL for line in lines) else 0


def refuse_other_file(page: Path) -> None:
    """Raise InputError where the page cannot be written, or would replace a file that is not such a page."""
    if not page.parent.is_dir():
        raise InputError(f"--page: {page.parent} is not a folder")
    if page.is_dir():
        raise InputError(f"--page: {page} is a folder; name a file")
    if page.exists() and not page.read_text(encoding="utf-8", errors="replace").startswith(TITLE):
        raise InputError(f"--page: {page} is not a page of this check, and would be replaced; name another file")


def run_checks(folder: Path, report: io.StringIO, seconds_left: Callable[[], float]) -> Iterator[Truth]:
    """Yield each line as it ends; the doctor's text goes to `report`."""
    yield from try_truths(("doctor",), partial(run_doctor, report))
    yield from try_truths(("program",), lambda: truths.observe_simulated_step(folder / "program"))
    count = len(gpus.read_gpu_room())
    for names in (ONE_DEVICE, ("all_reduce",), ("bare",)):  # alone, since they are about times
        if count < 1 + (names == ("all_reduce",)):
            yield from (Truth(name, NOT_POSSIBLE, "only one GPU" if count else NO_GPU) for name in names)
        else:
            run = partial(run_apart, names, names[:1], folder / names[0], seconds_left)
            yield from try_truths(names, run)
    yield from check_losses(list_cuda_strategies(), count, folder / "losses", seconds_left)


def run_doctor(report: io.StringIO) -> list[Truth]:
    """Write what the doctor prints to `report`."""
    parser = CommandParser()
    doctor.add_arguments(parser)
    with contextlib.redirect_stdout(report):
        doctor.main(parser.read([]))
    if (problem := gpus.find_nvml_problem()) is not None:
        return [Truth("doctor", FAIL, problem)]
    return [Truth("doctor", PASS, f"{gpus.count_gpus()} GPUs; its findings are below")]


def list_cuda_strategies() -> list[str]:
    """List the strategies whose YAML names CUDA, PyTorch's first. `script` has no
    training of its own, and PyTorch's with backend auto take NCCL, so that those of that name say nothing more."""
    files = config_files.list_options("strategy")
    names = [name for name in registry.strategy_entries() if name in files and name != "script"]
    autos = {f"{name}_nccl" for name in ("ddp", "fsdp", "lightning_ddp", "lightning_fsdp")}
    configs = {name: config_files.read_strategy_config(name) for name in names if name not in autos}
    names = [name for name, config in configs.items() if "cuda" in (config["devices"] or [])]
    return sorted(names, key=lambda name: configs[name]["framework"] != "torch")


def check_losses(
    strategies: Sequence[str], count: int, folder: Path, seconds_left: Callable[[], float]
) -> Iterator[Truth]:
    """Yield a line for two ranks on one GPU, and for the contract of each strategy on two GPUs, or on one. They compare
    losses, not times: as many run at once as cores and memory take, each in a process, which ends with the time."""
    folder.mkdir()
    if not count:
        yield Truth("one_gpu", NOT_POSSIBLE, NO_GPU)
        yield Truth(f"contracts of {len(strategies)} strategies", NOT_POSSIBLE, NO_GPU)
        return
    free_bytes = min((room.free_bytes or 0 for room in gpus.read_gpu_room()), default=0)
    free_bytes = min(free_bytes, psutil.virtual_memory().available)
    at_once = max(1, min(count_usable_cores(), free_bytes // CONTRACT_BYTES))
    runs = {"one_gpu": ["one_gpu"]}
    for strategy in strategies:
        limit = config_files.read_strategy_config(strategy)["max_gpus"] or 2
        runs[f"contract of {strategy}"] = [strategy, f"gpus={min(count, 2, limit)}"]
    with ThreadPoolExecutor(at_once) as pool:
        running = []
        for name, words in runs.items():
            run = partial(run_apart, (name,), words, folder / words[0], seconds_left)
            running.append(pool.submit(try_truths, (name,), run))
        for ended in as_completed(running):
            yield from ended.result()


def run_apart(
    names: Sequence[str], words: Sequence[str], folder: Path, seconds_left: Callable[[], float]
) -> list[Truth]:
    """Run write_lines in a process of its own, which ends with the time; neither pytest nor Hydra is made for
    threads. `names` are those of its lines."""
    if seconds_left() <= 0:
        return [Truth(name, NOT_POSSIBLE, NO_TIME) for name in names]
    folder.mkdir()
    command = build_python_command("-m", f"{__package__}.{Path(__file__).stem}", str(folder), *words)
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True) as process,
    ):
        try:
            process.wait(timeout=max(0.0, seconds_left()))
        except subprocess.TimeoutExpired:
            return [Truth(name, NOT_POSSIBLE, STOPPED) for name in names]
        finally:
            with contextlib.suppress(ProcessLookupError):  # its ranks end with it
                os.killpg(process.pid, signal.SIGKILL)
    if not (folder / LINES_FILE).exists():
        raise RuntimeError((folder / "log").read_text(errors="replace") or f"exit status {process.returncode}")
    return read_record(folder / LINES_FILE, list[Truth])


def write_lines(folder: Path, subject: str, *words: str) -> None:
    """Check what OBSERVATIONS has by this name, or the contract of a strategy with these overrides, and write the
    lines."""
    if subject in OBSERVATIONS:
        names, observe = OBSERVATIONS[subject]
        lines = try_truths(names, lambda: observe(folder / subject))
    else:
        (folder / "contract").mkdir()
        cases = check.list_contracts(check.CheckSubject("strategy", subject, words, False))
        results = check.run_contracts(cases, folder / "contract")
        lines = [judge_contract(", ".join([f"contract of {subject}", *words]), results)]
    write_json(folder / LINES_FILE, lines)


def judge_contract(name: str, results: Iterable[ContractResult]) -> Truth:
    """Sum up a contract: it fails with any of its tests, and is not possible where none of them could run."""
    results = list(results)
    failed = [result for result in results if result.verdict == check.FAILS]
    skipped = [result for result in results if result.verdict == check.SKIPPED]
    if failed:
        text = f"{len(failed)} of {len(results)} do not hold, first '{failed[0].test}': {failed[0].reason}"
        return Truth(name, FAIL, text, detail=failed[0].detail)
    if not check.has_run(results):
        return Truth(name, NOT_POSSIBLE, skipped[0].reason if skipped else "no test could run")
    return Truth(name, PASS, f"{len(results) - len(skipped)} hold, {len(skipped)} skipped")


def summarize(lines: Sequence[Truth]) -> str:
    """Count the verdicts."""
    return count_verdicts(lines, {verdict: verdict for verdict in (PASS, FAIL, NOT_POSSIBLE)})


def write_page(lines: Sequence[Truth], report: str) -> str:
    """Return the page in Markdown, without what is private."""
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    head = f"scalebench {__version__}, Python {platform.python_version()}, {now}: {summarize(lines)}."
    cells = [[text.replace("\\", "\\\\").replace("|", "\\|") for text in (line.title, line.answer)] for line in lines]
    table = markdown.make_table(["check", "result"], cells, [False, False])
    parts = [TITLE, head, table, "## Doctor", markdown.fence(report.strip("\n"), "text")]
    for line in lines:
        if line.verdict == FAIL and line.detail:
            parts += [f"## Failure: {line.title}", markdown.fence(line.detail, "text")]
    return hide_private("\n\n".join(parts) + "\n")


def hide_private(text: str, names: Mapping[str, str] | None = None) -> str:
    """Return text without names of this user and this host, its addresses, and the folders of absolute paths.

    `names` are texts to replace, each with what stands for it; None: those of this user on this host.
    """
    for private, public in (list_private_names() if names is None else names).items():
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(private)}(?![A-Za-z0-9])", public, text)
    return FOLDER.sub("", text)


def list_private_names() -> dict[str, str]:
    """Return names and addresses of this user and this host, and what stands for each, the longest first."""
    host = socket.gethostname()
    names = {os.path.expanduser("~"): "HOME", host: "HOST", host.partition(".")[0]: "HOST"}
    with contextlib.suppress(OSError, KeyError):  # a user without an entry, as in some containers
        names[getpass.getuser()] = "USER"
    with contextlib.suppress(OSError):
        every = [address.address for addresses in psutil.net_if_addrs().values() for address in addresses]
        names |= {address.partition("%")[0]: "ADDRESS" for address in every}
    kept = {name: public for name, public in names.items() if len(name) > 2 and name not in PUBLIC_NAMES}
    return dict(sorted(kept.items(), key=lambda item: -len(item[0])))


if __name__ == "__main__":
    write_lines(Path(sys.argv[1]), *sys.argv[2:])
