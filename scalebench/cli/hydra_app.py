"""`python -m scalebench [hydra overrides]`: the entry point of runs and sweeps.

A command line is composed, checked and run here, by Hydra's rules. Hydra itself is called for its own switches, such as
`--cfg job`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from scalebench.config import compose
from scalebench.config.error_messages import EXPECTED_ERRORS, explain_bare_word, explain_error, explain_switch
from scalebench.config.resolve import resolve
from scalebench.config.script import split_fixed_arguments
from scalebench.core import process
from scalebench.core.config_files import conf_dir
from scalebench.core.errors import InputError
from scalebench.core.spec import RunSpec
from scalebench.core.sweep_file import refuse_foreign_sweep_folder
from scalebench.sweeps.plan import check_size

if TYPE_CHECKING:
    from scalebench.sweeps.task import SweepSession

BASIC_SWEEPER = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"
LAUNCHER = "hydra_plugins.scalebench.ScalebenchLauncher"
NO_BATCHES = (
    "hydra.sweeper.max_batch_size divides a sweep, which scalebench plans and measures as a whole; leave it out"
)
_printed_warnings: set[str] = set()  # of this process


def main(arguments: list[str]) -> int:
    """Run what the command line describes. Return 2 for bad input, else the status of its runs
    (`plan.compute_exit_status`): 1 where one failed, or where none could be done."""
    try:
        return run(arguments)[0]
    except InputError as error:
        process.print_error(str(error))
        return 2
    except KeyboardInterrupt:
        return 1


def run(arguments: Sequence[str], shows_tables: bool = True, is_single: bool = False) -> tuple[int, Path | None]:
    """Run what the arguments describe. Return the status of the runs, and their folder. `is_single`: several repeats,
    which make a sweep, are refused.

    Raises InputError where nothing was started, and KeyboardInterrupt when the finished runs of a cancelled sweep have
    been reported.
    """
    session: SweepSession | None = None
    with process.interrupt_at_signals(), _own_hydra():
        try:
            options = read_arguments(list(arguments))
            for line in compose.register_with_hydra():  # about plugins, which make no run fail
                if line not in _printed_warnings:
                    _printed_warnings.add(line)
                    process.print_error(line)
            shows = options.cfg or options.info or options.help or options.hydra_help or options.shell_completion
            if shows or options.resolve or (options.run and options.multirun):  # or switches that contradict each other
                return _call_hydra(options), None
            loader, config, spec = _compose(options, is_single)
            for key in ("callbacks", "job.chdir", "job.env_set", "sweep.subdir"):
                if OmegaConf.select(config.hydra, key):
                    raise InputError(f"hydra.{key} has no effect on runs of scalebench; leave it out")
            from scalebench.sweeps.task import SweepSession  # whose import takes longer than a refusal

            session = SweepSession(arguments, config, loader, shows_tables)
            if spec is None:
                _run_sweep(session, loader, config)
            else:
                session.run_single(spec)
            return session.finish(), session.folder
        except KeyboardInterrupt as interrupt:
            is_sweep = session is not None and session.sweep is not None
            way_out = "; the same command with resume=true does the rest" if is_sweep else ""
            _stop(session, str(interrupt) or f"cancelled{way_out}")
            raise
        except Exception as error:
            is_expected = isinstance(error, (*EXPECTED_ERRORS, OSError))
            has_started = session is not None and session.folder is not None
            if not is_expected and (has_started or os.environ.get("SCALEBENCH_TRACEBACK")):
                raise
            line = explain_error(error, list(arguments))
            if session is None or not has_started:
                raise InputError(line) from None
            line = process.describe_error(error) if isinstance(error, OSError) else line
            way_out = "" if session.sweep is None else "; the sweep ends here, and resume=true does the rest"
            _stop(session, f"{line}{way_out}")
            return 1, session.folder
        finally:
            if session is not None:
                session.release()


def _compose(options: argparse.Namespace, is_single: bool) -> tuple[compose.Loader, DictConfig, RunSpec | None]:
    """Compose what the options describe. Return it with its loader, and the checked spec of a single run; None for a
    sweep."""
    loader = compose.open_loader(options.overrides, options.config_path, options.config_dir)
    compose_line = partial(loader.load_command_line, options.config_name or "config")
    words = options.overrides
    folders = [word.partition("=")[2] for word in words if word.startswith("hydra.run.dir=")]
    if folders and not options.multirun and not any(word.startswith("hydra.sweep.dir=") for word in words):
        words = [*words, f"hydra.sweep.dir={folders[-1]}"]  # for a run with repeats, which is a sweep
    config = compose_line(words, options.multirun)
    if config.hydra.mode == RunMode.MULTIRUN:
        if is_single:
            raise InputError("several values, or sweep=NAME, are a sweep: call scalebench.sweep instead of run")
        return loader, config, None
    spec = resolve(compose.to_config(config))
    if spec.repeats == 1:
        return loader, config, spec
    if is_single:
        raise InputError(
            'measure.repeats makes a sweep of a run: scalebench.sweep({"strategy": ["ddp"]}, ...), or '
            'measure={"repeats": 1}'
        )
    return loader, compose_line(words, True), None


def _run_sweep(session: SweepSession, loader: compose.Loader, config: DictConfig) -> None:
    """Do the sweep of a composed command line, or show its plan. Raise InputError or a composition error where a run or
    a folder is refused; nothing was started then."""
    from scalebench.sweeps.task import FOREIGN_LAUNCHER

    if config.hydra.launcher._target_ != LAUNCHER:
        raise InputError(FOREIGN_LAUNCHER)
    if not config.dry_run:
        refuse_foreign_sweep_folder(Path(str(config.hydra.sweep.dir)))
    sweeper = config.hydra.sweeper
    if sweeper._target_ != BASIC_SWEEPER:
        context = HydraContext(config_loader=loader, callbacks=Callbacks(config))
        other = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=session, config=config)
        other.sweep(arguments=list(config.hydra.overrides.task))
        return
    if sweeper.get("max_batch_size") is not None:
        raise InputError(NO_BATCHES)
    # Hydra's basic sweeper lists all runs at once, which is done here.
    words = [f"{key}={value}" for key, value in (sweeper.params or {}).items()] + config.hydra.overrides.task
    overrides = OverridesParser.create(loader).parse_overrides(words)
    check_size(overrides)
    (runs,) = BasicSweeper.split_arguments(overrides, None)
    session.run_batch(runs, first=0, is_whole=True)


@contextlib.contextmanager
def _own_hydra() -> Iterator[None]:
    """Have a Hydra of our own in the block; that of a caller, or of a module that it imports, is unchanged."""
    hydra_state, config = GlobalHydra.instance(), HydraConfig.instance()
    before = hydra_state.hydra, config.cfg
    hydra_state.hydra = config.cfg = None
    try:
        yield
    finally:
        hydra_state.hydra, config.cfg = before


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the values of Hydra's switches, and as `overrides` the other arguments; both may be in any order. Raise
    InputError for a wrong switch."""

    def refuse(message: str) -> NoReturn:
        raise InputError(
            explain_switch(message, arguments, [name for a in parser._actions for name in a.option_strings])
        )

    arguments, fixed = split_fixed_arguments(arguments)
    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    options = parser.parse_intermixed_args(arguments)
    if options.experimental_rerun is not None:
        raise InputError(
            "--experimental-rerun is refused: its file may hold any code; give the arguments of the run again"
        )
    for override in options.overrides:
        if "=" not in override and not override.startswith("~"):
            raise InputError(explain_bare_word(override, arguments))
    options.switches = list(arguments)
    for override in options.overrides:
        options.switches.remove(override)
    if fixed:
        words = (compose.quote(word.replace("${", "\\${")) for word in fixed)
        options.overrides.append(f"script.fixed=[{','.join(words)}]")
    options.overrides = compose.accept_words(options.overrides)
    return options


def _call_hydra(options: argparse.Namespace) -> int:
    """Have Hydra answer its own switches, and return its exit status."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["scalebench", *options.switches, *options.overrides]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # it raises its errors, which become one line
    try:
        hydra.main(version_base=compose.HYDRA_VERSION, config_path=str(conf_dir()), config_name="config")(main)()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = argv
        del os.environ["HYDRA_FULL_ERROR"]
        if full_error is not None:
            os.environ["HYDRA_FULL_ERROR"] = full_error
    return 0


def _stop(session: SweepSession | None, line: str) -> None:
    """Report the finished runs of a sweep, which a second Ctrl-C interrupts."""
    process.print_error(line)
    with contextlib.suppress(InputError, OSError, KeyboardInterrupt):
        if session is not None:
            session.stop()
