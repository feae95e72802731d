"""`python -m scalebench [hydra overrides]`: the Hydra entry. Layer 4."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from scalebench import configs, on_cluster, registry, sweep_values
from scalebench.config_errors import FORESEEN, explain
from scalebench.configs import conf_dir
from scalebench.launchers import watch
from scalebench.report.console import Console
from scalebench.spec import Config, InputError
from scalebench.task import AsSweep, SweepSession

LAUNCHER = "hydra_plugins.scalebench.ScalebenchLauncher"
STAND_INS = {"dataset": {"size": 10**9}}  # for YAML files of plugins: enough for any batch, since nobody makes them
_told: set[str] = set()  # warnings, in this process
_stand_ins: set[tuple[str, str]] = set()  # in Hydra's store


def main(arguments: list[str]) -> int:
    """Run what the command line says. The exit status: 0 ok or unsupported, 1 a run failed, 2 bad input."""
    session = SweepSession(arguments)
    try:
        with tempfile.TemporaryDirectory() as nowhere, _environment(), _terminate_as_interrupt():
            switches, overrides = split(arguments)
            if _is_dry(overrides):  # Hydra makes its folders before it asks us
                overrides += [f"hydra.run.dir={nowhere}", f"hydra.sweep.dir={nowhere}"]
            register()
            try:
                _hydra_main(session, [*switches, *overrides])
            except AsSweep:
                _hydra_main(session, as_sweep(switches, overrides))
            return session.finish()
    except FORESEEN as error:
        return _refuse(session, explain(error, arguments))
    except OSError as error:
        return _refuse(
            session,
            f"{error.filename or 'output folder'}: {error.strerror or error}; "
            "choose another hydra.run.dir or hydra.sweep.dir",
        )
    except Exception as error:
        if session.done or os.environ.get("SCALEBENCH_TRACEBACK"):
            raise
        return _refuse(session, explain(error, arguments))
    except SystemExit as end:  # how callbacks and Hydra's own switches leave
        return int(end.code or 0)
    except on_cluster.LeftQueued as left:
        return _stop(session, str(left))
    except KeyboardInterrupt:
        return _stop(session, "cancelled")
    finally:
        session.release()


def register() -> None:
    """Make the spine, our launcher and what plugins bring known to Hydra. What is wrong with a plugin and fails no run
    is told here, once."""
    for line in configs.found().warnings:
        if line not in _told:
            _told.add(line)
            Console().error(line)
    sweep_values.register()
    store = ConfigStore.instance()
    spine = OmegaConf.structured(Config)
    # Places for keys that nobody foresees here: Hydra would ask for a + before them.
    for keys in (spine.hardware.environment, spine.model.options, spine.dataset.options):
        OmegaConf.set_struct(keys, False)
    store.store(name="spine", node=spine, provider="scalebench")
    for group, name in _stand_ins - registry.without_yaml():
        store.repo[group].pop(f"{name}.yaml")
        _stand_ins.discard((group, name))
    for group, name in registry.without_yaml():  # so that the run composes, and fails by itself
        node = {"name": name, **STAND_INS.get(group, {})}
        store.store(group=group, name=name, node=node, provider="scalebench")
        _stand_ins.add((group, name))
    store.store(group="hydra/launcher", name="scalebench", node={"_target_": LAUNCHER}, provider="scalebench")
    namespace = str(Path(__file__).with_name("hydra_namespace"))
    if namespace not in sys.path:
        sys.path.append(namespace)


def compose(overrides: Sequence[str]) -> DictConfig:
    """The config of one run, composed as the command line would. For tests and for plugins' tests."""
    register()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"), _environment():
        return hydra.compose("config", list(overrides))


def _hydra_main(session: SweepSession, arguments: list[str]) -> None:
    before = sys.argv
    sys.argv = ["scalebench", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(session.run_one)()
    finally:
        sys.argv = before


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """(Hydra's switches, overrides): argparse itself wants all overrides on one side. InputError for a wrong switch."""

    def refuse(message: str) -> NoReturn:
        raise InputError(f"{message}; --hydra-help tells of the switches")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    overrides = parser.parse_intermixed_args(words).overrides
    switches = list(words)
    for word in overrides:
        switches.remove(word)
    return switches, overrides


def as_sweep(switches: list[str], overrides: list[str]) -> list[str]:
    """The words of one run as those of a sweep: its folder becomes the sweep's."""
    kept = [word for word in switches if word not in ("--run", "-r")]
    words = [word for word in overrides if not word.startswith("hydra.mode=")]
    if not any(word.startswith("hydra.sweep.dir=") for word in words):
        words = [re.sub(r"^hydra\.run\.dir=", "hydra.sweep.dir=", word) for word in words]
    return [*kept, "--multirun", *words]


def _is_dry(overrides: list[str]) -> bool:
    values = [word.partition("=")[2] for word in overrides if re.match(r"\+{0,2}dry_run=", word)]
    return bool(values) and re.fullmatch(r"\W*(true|yes|on|y|1)\W*", values[-1], re.IGNORECASE) is not None


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Hydra raises what it would print and exit for, so that it can be said in one line."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: no process left, and a row that says cancelled."""

    def interrupt(number: int, frame: Any) -> None:
        if number == signal.SIGTERM:
            on_cluster.terminated.set()
        watch.cancelled.set()
        raise KeyboardInterrupt

    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    heard = [sign for sign, handler in before.items() if handler != signal.SIG_IGN]  # nohup keeps its word
    watch.cancelled.clear()
    on_cluster.terminated.clear()
    try:
        for sign in heard:
            signal.signal(sign, interrupt)
        yield
    finally:
        watch.cancelled.clear()
        for sign in heard:
            signal.signal(sign, before[sign])


def _stop(session: SweepSession, line: str) -> int:
    """Report what there is of a sweep; a second Ctrl-C ends that, too."""
    session.console.error(line)
    with contextlib.suppress(InputError, OSError, KeyboardInterrupt):
        session.stop()
    return 1


def _refuse(session: SweepSession, line: str) -> int:
    session.drop_unused_folder()
    session.console.error(line)
    return 2
