"""The strategy whose loop is a user's program: the program runs in the main thread, the session in another, and only
one of the two at a time.

The session hands a loop to the program. The program's hooks report each of its steps to that loop; when the loop is
over the program stands still in its own step until the next loop comes, or until the process ends.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

from scalebench.core.errors import InputError
from scalebench.core.probe_record import Profile
from scalebench.core.process import RANK_ADDRESSES
from scalebench.core.result import ScriptRecord
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import Loop, LossPart, NotMeasured, Strategy, WrongGroup, never_measured
from scalebench.strategies.rank_channel import Late, RankChannel
from scalebench.strategies.script import arguments, listeners
from scalebench.strategies.script.batches import remark_same
from scalebench.strategies.script.keras_hooks import KerasHooks
from scalebench.strategies.script.start import AfterImport, read_started_program, run_as_main
from scalebench.strategies.script.torch_hooks import SAVING, Hooks, wrap
from scalebench.workloads.source import Source

STEP_LIMIT_S = 60.0  # that ranks wait for each other at the same step
LEAVE_LIMIT_S = 5.0  # that rank 0, which may hold what the others need, waits for their end
LOOK_INTERVAL_S = 5.0  # between looks at a program that has the word
LIBRARIES = (
    "torch",
    "pytorch_lightning",
    "lightning",
    "transformers",
    "accelerate",
    "deepspeed",
    "horovod",
    "keras",
    "tensorflow",
)
ENDED = "had ended by itself before that was measured"


class ProgramEnded(InputError):
    """The program came to its end before enough was measured."""


class Script(Strategy):
    """A user's program. Its steps are those of its optimizer, or the batches that it draws."""

    has_program = True

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        script = spec.config.script
        self.name, self.step_kind = spec.config.model.name, script.step
        listeners.append(self._on_call)
        self.hooks = Hooks(self)
        self._share: int | None = None  # this rank's of the samples of a step that the config says
        if (samples := spec.declared_samples) is not None:
            self._share = len(range(rank, samples, spec.processes))
        self.keras = KerasHooks(self.hooks)
        self.steps = 0
        self._channel: RankChannel | None = None
        self._limit_s = script.first_step_s  # of the next broadcast
        self._loops: SimpleQueue[Loop] = SimpleQueue()  # from the session's thread to the program's
        self._answers: SimpleQueue[BaseException | None] = SimpleQueue()  # back: the loop is over, or what has failed
        self._ended: BaseException | None = None
        self._loop: Loop | None = None  # that counts the steps now
        self._batches: Iterator[Any] = iter(())
        self._profiled: Any = None  # the steps of the profiler's one session
        self._first: Any = None  # of the loop's batches, which stand for those that the program draws
        self._has_first = False

    # In the session's thread.
    def setup(self) -> None:
        if self.spec.processes > 1:
            # A port of its own on the host of rank 0, where the program uses MASTER_PORT.
            port = int(os.environ[RANK_ADDRESSES].rpartition(":")[2])
            self._channel = RankChannel(self.place.rank, self.spec.processes, port)
            os.register_at_fork(after_in_child=self._channel.close)
        self._wait_for_answer()
        self._check_group()

    def feed(self, source: Source) -> Iterable[int]:
        """Yield numbers that stand for the batches that the program draws."""
        return itertools.count(1)

    def train(self, loop: Loop) -> None:
        if self.has_ended:
            raise self.not_measured(ENDED)
        self._loops.put(loop)
        with suppress(ProgramEnded):  # the session decides whether that was enough
            self._wait_for_answer()

    def explain_early_end(self, steps: int) -> Exception:
        return self._ended if isinstance(self._ended, Exception) else super().explain_early_end(steps)

    def step(self, batch: Any) -> LossPart | None:
        raise NotImplementedError("the program steps by itself")

    def _wait_for_answer(self) -> None:
        """Wait until the program's steps have ended the loop, or at first for its first step; raise what has failed."""
        started_s, seen = time.monotonic(), (-1, -1)
        while True:
            try:
                failure = self._answers.get(timeout=LOOK_INTERVAL_S)
                break
            except Empty:
                pass
            now = self.steps, self.hooks.draws
            if now[0] == seen[0] and (now != seen or not self.steps):
                self.sign_of_life()  # it evaluates, or loads what it needs
            seen = now
            if not self.steps and time.monotonic() - started_s > self.spec.config.script.first_step_s:
                raise InputError(self._explain_no_step())
        if failure is not None:
            raise failure

    def _explain_no_step(self) -> str:
        limit_s, drawn = self.spec.config.script.first_step_s, self.hooks.all_batches
        line = f"no optimizer step was seen in {limit_s:g} s (script.first_step_s)"
        if drawn:
            return f"{line}, although {drawn} batches were drawn: with script.step=batch each batch is a step"
        if not {"torch", "keras"} & sys.modules.keys():
            return (
                f"{line}, and {self.name} imports neither torch nor keras, whose steps are seen: "
                "have it call scalebench.step(samples=n) after each step"
            )
        if multiprocessing.active_children():
            return (
                f"{line}: {self.name} has started processes by multiprocessing, whose steps are not "
                "seen: have it call their function itself, with RANK and WORLD_SIZE of the environment, or use mp.spawn"
            )
        return f"{line}, and no batch was drawn: does {self.name} train, and in this process?"

    def _check_group(self) -> None:
        """Raise WrongGroup unless the program's processes train together."""
        devices = self.keras.replicas if self.spec.processes == 1 else self.spec.gpus
        if self.keras.is_used and devices != self.spec.gpus:
            raise WrongGroup(
                f"{self.name} trains {self.keras.replicas} replicas of its model in each process, and "
                f"gpus={self.spec.gpus}: does it take @gpus as an argument?"
            )
        processes, group = self.spec.processes, self.hooks.group()
        if processes == 1 or self.hooks.torch is None:
            return
        if group is None:
            raise WrongGroup(
                f"{self.name} formed no group of {processes} processes: these are {processes} independent trainings; "
                "it ignores WORLD_SIZE, or needs an argument for that"
            )
        if group[1] != processes:
            raise WrongGroup(f"{self.name} formed a group of {group[1]} processes, and was started as {processes}")

    def begin_phase(self, name: str) -> None:
        """Choose the leading optimizer when the warm-up has shown all of them. The same on every rank."""
        if name == "measure" and self.hooks.calls:
            self.hooks.follow(int(self.broadcast(float(self.hooks.choose_leader()))))

    def synchronize(self) -> None:
        torch = self.hooks.torch
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        elif self.keras.is_used and self.spec.device == "cuda":
            from scalebench.strategies.tensorflow import devices

            devices.synchronize()

    def broadcast(self, value: float) -> float:
        if self._channel is None:
            return value
        try:
            value = self._channel.broadcast(value, self._limit_s)
        except Late as late:
            raise InputError(
                f"{late} did not come to step {self.steps} within {self._limit_s:g} s: ranks take different numbers of "
                "steps (uneven data?)"
            ) from None
        except (EOFError, OSError) as error:
            raise WrongGroup(f"another rank of {self.name} has ended after step {self.steps} of this one") from error
        self._limit_s = STEP_LIMIT_S
        return value

    def evaluate(self, source: Source) -> dict[str, float]:
        return {}

    def close(self) -> None:
        if self._channel is not None:
            self._channel.wait_for_others(LEAVE_LIMIT_S)

    # In the program's thread.
    def run_program(self) -> None:
        """Run the program, as Python itself would."""
        started = read_started_program()  # by a command of the user's, which has set its folder
        script, folder = self.spec.config.script, Path(sys.argv[1]).absolute()
        if started is None:
            started = arguments.render_command(self.spec, folder)
            os.chdir(arguments.script_folder(script))
        hooks = self.hooks

        def install_stateful_loader(module: Any) -> None:  # which has a __next__ of its own
            iterator = module._StatefulBaseDataLoaderIter
            iterator.__next__ = hooks.wrap_draw(iterator.__next__)

        actions: dict[str, Callable[[Any], None]] = {
            "torch": hooks.install,
            "safetensors.torch": lambda module: hooks.note_pauses(module, "save_file", SAVING),
            "torchdata.stateful_dataloader.stateful_dataloader": install_stateful_loader,
            # It steps its optimizer once per group of parameters: the engine's update is the step.
            "deepspeed.runtime.engine": lambda module: wrap(
                module.DeepSpeedEngine, "_take_model_step", hooks.before_step, hooks.after_step
            ),
            "keras": self.keras.install,
            "tensorflow": self.keras.install_tensorflow,
        }
        if script.command is None and self.spec.processes > 1:
            actions["horovod"] = self._prepare_horovod
        sys.meta_path.insert(0, AfterImport(actions))
        failure = run_as_main(*started, log=folder / rank_log_name(self.place.rank))
        if failure is None:
            more = "more epochs, or a larger subset" if self.steps else "no optimizer step was seen"
            failure = ProgramEnded(
                f"{self.name} ended by itself after {self.steps} steps, and measuring needs more: {more}"
            )
        self._ended, self.has_ended = failure, True
        self._answers.put(failure)

    def _prepare_horovod(self, package: ModuleType) -> None:
        from scalebench.strategies.horovod.group import prepare_program

        prepare_program(self.spec, self.place.rank)

    def _on_call(self, samples: int) -> None:
        """End a step where the program says so itself, by scalebench.step: from then on nothing else ends one."""
        self.step_kind = "call"
        self.hooks.samples = samples or self.hooks.samples
        self.hooks.all_batches += bool(samples)
        self.on_step()

    def on_step(self) -> None:
        """Count one step of the program; it stands still in here while the session has the word."""
        hooks = self.hooks
        self.steps += 1
        part = LossPart(
            None, hooks.samples if self._share is None else self._share, " ".join(hooks.pauses), hooks.data_s
        )
        hooks.draws_batches = hooks.batches > 0
        hooks.samples = hooks.batches = 0
        hooks.data_s = 0.0
        hooks.pauses.clear()
        if self._loop is None:  # the very first step, whose beginning was not seen
            return self._stand_still()
        try:
            is_over = self._loop.done(part)
            if not is_over:
                return self._advance()
        except BaseException as error:
            traceback.print_exc()
            return self._stand_still(error)
        return self._stand_still()

    def _stand_still(self, failure: BaseException | None = None) -> None:
        """Tell the session that its loop is over, or what has failed, and wait for the next one."""
        self._loop, self.hooks.replays = None, False
        self._answers.put(failure)
        self._loop = self._loops.get()
        self._batches, self._has_first = iter(self._loop), False
        try:
            self._advance()
        except BaseException as error:
            traceback.print_exc()
            self._stand_still(error)

    def _advance(self) -> None:
        """Take the loop's next batch: where it is its first one again, the program gets its last batch again."""
        batch = next(self._batches, None)
        self.hooks.replays = self._has_first and batch is not None and batch == self._first
        if not self._has_first:
            self._first, self._has_first = batch, True

    # Probes, in the session's thread while the program stands still.
    def not_measured(self, reason: str) -> NotMeasured:
        return NotMeasured(f"{self.name} {reason}")

    def set_gradient_sync(self, on: bool) -> None:
        if not self.hooks.set_gradient_sync(on):
            shards = self.hooks.shards()
            raise self.not_measured(
                f"trains with {shards}, whose steps cannot be taken without their exchange"
                if shards
                else "has no wrapper whose synchronization can be switched off: that of DDP and Horovod can"
            )

    def why_new_batches(self) -> str | None:
        if self.keras.model is not None:
            return f"{self.name} fits with Keras, which draws its samples within a step"
        if not self.hooks.all_batches:
            return f"{self.name} draws its samples from no DataLoader"
        return f"{self.name} changes its batches in place" if self.hooks.changes_batches() else None

    def message_sizes(self) -> list[int]:
        return self.hooks.bucket_bytes()

    partial_step = never_measured("takes its steps as a whole")
    copy_batch = never_measured("copies its batches by itself")

    def run_isolated_sync(self, sizes: list[int]) -> None:
        if not self.hooks.wrappers():
            raise self.not_measured("exchanges gradients only within its steps")
        self.hooks.all_reduce_buckets(sizes)

    def profile(self, steps: int, trace: Path | None) -> Profile:
        seen = self._profile_steps(steps, trace)
        if not seen.sees_kernels:
            raise self.not_measured("ran on a GPU of which the profiler saw no kernel")
        profile: Profile = seen.profile
        return profile

    def _profile_steps(self, steps: int = 0, trace: Path | None = None) -> Any:
        """Return the one session of the profiler, with at least so many steps as backend and settings need."""
        if self.hooks.torch is None:
            raise self.not_measured("has not imported torch, whose profiler this is")
        from scalebench.strategies.torch import profiling

        if self._profiled is None:
            steps, cuda = steps or profiling.OBSERVED_STEPS, self.spec.device == "cuda"
            with self.hooks.deferring():
                self._profiled = profiling.profile_steps(self.train, self.synchronize, 0, steps, cuda, trace)
        return self._profiled

    def backend_used(self) -> str | None:
        if self.spec.gpus > 1 and self.keras.is_used:
            return type(self.keras.strategy).__name__
        if self.spec.gpus == 1 or self.hooks.torch is None or self.has_ended:
            return None
        if self.hooks.horovods():  # which PyTorch's profiler does not see
            horovod = sys.modules["horovod.torch"]
            built = {"nccl": self.spec.device == "cuda" and horovod.nccl_built(), "mpi": horovod.mpi_enabled()}
            return next((name for name, is_used in built.items() if is_used), "gloo")
        from scalebench.strategies.torch.profiling import identify_backend

        backend = identify_backend(self._profile_steps().names)
        return backend or ("in one process" if self.spec.processes == 1 else None)

    def settings_used(self) -> dict[str, str]:
        if self.hooks.torch is None or (self.has_ended and self._profiled is None):
            return {}
        from scalebench.strategies.torch.profiling import identify_settings

        seen = self._profile_steps()
        return identify_settings(seen.names, seen.calls, seen.sees_kernels)

    def peak_memory_bytes(self) -> list[int | None]:
        return self._read_memory("max_memory_allocated")

    def reserved_memory_bytes(self) -> list[int | None]:
        return self._read_memory("max_memory_reserved")

    def _read_memory(self, function: str) -> list[int | None]:
        torch = self.hooks.torch
        if torch is None or self.spec.device == "cpu" or not torch.cuda.is_initialized():
            return [None for _ in self.place.devices]
        devices = sorted({p.device.index for p in self.hooks.parameters() if p.device.type == "cuda"})
        peaks: list[int | None] = [int(getattr(torch.cuda, function)(device)) for device in devices]
        return peaks if len(peaks) == len(self.place.devices) else [None for _ in self.place.devices]

    def learning_rate(self) -> float | None:
        return None

    def num_params(self) -> int | None:
        of_torch = sum(int(getattr(p, "ds_numel", p.numel())) for p in self.hooks.parameters())
        return of_torch or self.keras.count_parameters()

    def model_remarks(self) -> dict[str, str]:
        """Return what makes figures of this program mean something else than it seems."""
        if self._channel is None or not self.steps:
            return {}
        own = float(sum(number * place for place, number in enumerate(self.hooks.checksums, 1)))
        advice = (
            f"of {self.name} trained on the same samples: there is no DistributedSampler, or these are parts of one "
            "model (then set script.samples_per_step)"
        )
        return remark_same(own, self.broadcast, self.place.rank, advice)

    def script_record(self) -> ScriptRecord:
        """Return what was seen of the program."""
        hooks = self.hooks
        leader = hooks.optimizers[hooks.leader]() if hooks.leader is not None else None
        kinds = ["DistributedDataParallel"] * bool(hooks.wrappers()) + ["Horovod"] * bool(hooks.horovods())
        return ScriptRecord(
            steps=self.steps, step_kind=self.step_kind, batches=hooks.all_batches, draws=hooks.draws,
            tokens=hooks.tokens or None,
            leader=None if leader is None else type(leader).__name__, optimizers=len(hooks.calls),
            wrappers=kinds + [each for each in [hooks.shards()] if each],
            hooks_s=hooks.hooks_s / self.steps if self.steps else None,
            libraries=[name for name in LIBRARIES if name in sys.modules],
        )  # fmt: skip

    def versions(self) -> dict[str, str]:
        loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in LIBRARIES}
        return {name: str(version) for name, version in loaded.items() if version is not None}
