"""Observes steps, batches, pauses and gradient synchronization of a program that trains with PyTorch.

PyTorch's own hooks around Optimizer.step say where a step ends; loaders, wrappers and savers are wrapped. Everything is
installed when the program imports the library, since it may set variables before. On the way of each step there is only
a counter and two readings of the clock.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from time import perf_counter, thread_time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from scalebench.core.errors import InputError
from scalebench.strategies.script import batches

if TYPE_CHECKING:
    from scalebench.strategies.script.program import Script

MIN_LEADER_CALLS, MAX_CALLS_RATIO = 3, 50  # of an optimizer that may lead, against the one that steps most often
CHECKED_BATCHES = 3  # whose checksums tell whether ranks train on the same samples
NO_STEPS = 10**9  # passes of Horovod between two exchanges, where there is to be none
EPOCH, EVALUATION, SAVING = "epoch", "evaluation", "saving"


def wrap(
    owner: Any, name: str, before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None
) -> None:
    """Have calls of a function of a module or a class call these, too, with its positional arguments."""
    function = getattr(owner, name)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args)
        result = function(*args, **kwargs)
        if after is not None:
            after(*args)
        return result

    setattr(owner, name, wrapped)


class Hooks:
    """The hooks of one process, and what they have seen. `script` is told of each step."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.torch: Any = None
        self.calls: dict[int, int] = {}  # of each optimizer's outermost step, by its id, in order of appearance
        self.optimizers: dict[int, weakref.ref[Any]] = {}  # by the same keys
        self.leader: int | None = None
        self.wrapped: list[weakref.ref[Any]] = []  # DistributedDataParallel
        self.samples = self.batches = self.tokens = 0  # since the last step; tokens in all
        self.all_batches = self.draws = 0  # for training, and in all
        self.draws_batches = False  # in its last step
        self.data_s = self.hooks_s = 0.0
        self.pauses: list[str] = []  # since the last step
        self.replays = False  # the next batches are the last one again
        self.checksums: list[int] = []
        self.defers = False  # a step ends before the next draw, rather than within the optimizer's step
        self._is_pending = False  # a step has been made whose end is deferred
        self._depth = 0
        self._last: Any = None
        self._last_versions: list[int] = []
        self._buffers: list[Any] = []  # of the size of gradients
        self._without_sync: list[Any] = []  # optimizers of Horovod that exchange nothing now

    def install(self, torch: Any) -> None:
        """Install the hooks of PyTorch itself."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self.torch = torch
        register_optimizer_step_pre_hook(torch._disable_dynamo(lambda optimizer, *step: self.before_step(optimizer)))
        register_optimizer_step_post_hook(torch._disable_dynamo(lambda optimizer, *step: self.after_step(optimizer)))
        loader: Any = torch.utils.data.dataloader
        loader._BaseDataLoaderIter.__next__ = self.wrap_draw(loader._BaseDataLoaderIter.__next__)
        self.note_pauses(loader.DataLoader, "__iter__", EPOCH)
        self.note_pauses(torch, "save", SAVING)
        self.note_pauses(torch.nn.Module, "eval", EVALUATION, lambda module: module.training)
        ddp = torch.nn.parallel.DistributedDataParallel
        wrap(ddp, "__init__", after=lambda wrapper, *args: self.wrapped.append(weakref.ref(wrapper)))
        torch.multiprocessing.spawn = torch.multiprocessing.start_processes = self._run_spawned

    # The optimizer.
    def before_step(self, optimizer: Any, *args: Any) -> None:
        self._depth += 1

    def after_step(self, optimizer: Any, *args: Any) -> None:
        begin_s = thread_time()  # which other programs on the core do not prolong
        self._depth -= 1
        if self._depth > 0:  # a step within another one: of ZeRO, Horovod, DeepSpeed
            return
        self._depth, key = 0, id(optimizer)
        for each in self._without_sync:
            each._handles.clear()
        if key not in self.calls:
            self.calls[key] = 0
            self.optimizers[key] = weakref.ref(optimizer)
        self.calls[key] += 1
        if self.leader is None:
            self.leader = key
        is_step = key == self.leader
        self.hooks_s += thread_time() - begin_s
        if is_step and self.script.step_kind == "optimizer":
            if self.defers:
                self._is_pending = True
            else:
                self.script.on_step()

    @contextlib.contextmanager
    def deferring(self) -> Iterator[None]:
        """Let steps end before the next draw in this context. PyTorch marks a call of an optimizer for its profiler,
        which breaks where the profiler is stopped within one."""
        handle = None
        if not self.draws_batches:  # it may train on batches that it keeps: before the next forward pass
            register = self.torch.nn.modules.module.register_module_forward_pre_hook
            handle = register(lambda *call: self._end_pending_step())
        self.defers = True
        try:
            yield
        finally:
            self.defers = False
            if handle is not None:
                handle.remove()

    def _end_pending_step(self) -> None:
        if self._is_pending:
            self._is_pending = False
            self.script.on_step()

    def choose_leader(self) -> int:
        """Return the place of the optimizer that steps least often of those that step regularly, in order of
        appearance: with several of them its steps are whole iterations."""
        keys, most = list(self.calls), max(self.calls.values())
        regular = [
            key for key in keys if self.calls[key] >= MIN_LEADER_CALLS and MAX_CALLS_RATIO * self.calls[key] >= most
        ]
        least = min(regular, key=lambda key: self.calls[key], default=None)
        # The leader has just stepped, and the others of this iteration may not have.
        keeps = least is None or self.leader is None or self.calls[least] >= self.calls[self.leader] - 1
        return keys.index(self.leader if keeps else least)  # type: ignore[arg-type]

    def follow(self, place: int) -> None:
        """Have the steps of this optimizer be the steps."""
        keys = list(self.calls)
        self.leader = keys[place] if place < len(keys) else self.leader

    def _living_optimizers(self) -> list[Any]:
        return [optimizer for each in self.optimizers.values() if (optimizer := each()) is not None]

    def parameters(self) -> list[Any]:
        """Return the parameters of all optimizers, each once."""
        seen: dict[int, Any] = {}
        for optimizer in self._living_optimizers():
            if hasattr(optimizer, "param_groups"):
                seen |= {id(p): p for group in optimizer.param_groups for p in group["params"]}
            elif hasattr(optimizer, "module"):  # an engine of DeepSpeed
                seen |= {id(p): p for p in optimizer.module.parameters()}
        return list(seen.values())

    # Batches and pauses.
    def wrap_draw(self, draw: Callable[[Any], Any]) -> Callable[[Any], Any]:
        torch = self.torch or sys.modules["torch"]

        @wraps(draw)
        def draw_batch(iterator: Any) -> Any:
            self._end_pending_step()
            self.draws += 1
            self._depth = 0  # no step is open here: one that raised is forgotten
            trains = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            if trains and self.batches and self.script.step_kind == "batch":
                self.script.on_step()
            begin_s = perf_counter()
            if self.replays and trains and self._last is not None:
                self._count(self._last)
                return batches.copy_containers(self._last)
            try:
                batch = draw(iterator)
            except StopIteration:
                self.pauses.append(EPOCH)
                raise
            self.data_s += perf_counter() - begin_s
            begin_s = thread_time()
            if not trains:
                self.pauses.append(EVALUATION)
                return batch
            self._count(batch)
            if len(self.checksums) < CHECKED_BATCHES:
                self.checksums.append(batches.checksum(batch))
            self._last, self._last_versions = batches.copy_containers(batch), batches.versions(batch)
            self.hooks_s += thread_time() - begin_s
            return batch

        return draw_batch

    def _count(self, batch: Any) -> None:
        self.samples += batches.count_samples(batch)
        self.tokens += batches.count_tokens(batch) or 0
        self.batches += 1
        self.all_batches += 1

    def changes_batches(self) -> bool:
        """Return whether the last step has changed its batch in place, so that it cannot be used again."""
        return self._last is not None and batches.versions(self._last) != self._last_versions

    def note_pauses(self, owner: Any, name: str, kind: str, matters: Callable[..., bool] = lambda *first: True) -> None:
        """Count each call of a function as a pause of this kind, where its first argument `matters`."""
        wrap(owner, name, before=lambda *args: self.pauses.extend([kind] * matters(*args[:1])))

    # Gradient synchronization.
    def wrappers(self) -> list[Any]:
        """Return the DistributedDataParallel modules that are alive."""
        return [module for each in self.wrapped if (module := each()) is not None]

    def horovods(self) -> list[Any]:
        """Return the optimizers of Horovod that are alive."""
        return [each for each in self._living_optimizers() if hasattr(each, "_allreduce_delay")]

    def set_gradient_sync(self, on: bool) -> bool:
        """Switch synchronization off or on where that is possible; return whether it is."""
        horovods = self.horovods()
        for module in self.wrappers():
            module.require_backward_grad_sync = on
        for each in horovods:
            if not hasattr(each, "_scalebench_passes"):
                each._scalebench_passes = each.backward_passes_per_step
            each.set_backward_passes_per_step(each._scalebench_passes if on else NO_STEPS)
            each._should_synchronize = on
        self._without_sync = [] if on else horovods
        return bool(self.wrappers() or horovods)

    def bucket_bytes(self) -> list[int]:
        """Return the bytes of each bucket of the wrappers' gradients; empty: not known."""
        sizes = []
        for module in self.wrappers():
            facts = module._get_ddp_logging_data()
            text = facts.get("rebuilt_bucket_sizes") or facts.get("bucket_sizes") or ""
            sizes += [int(size) for size in str(text).split(",") if size.strip().isdigit()]
        return sizes

    def all_reduce_buckets(self, sizes: list[int]) -> None:
        """All-reduce buffers of these bytes at once in the group of the first wrapper, as it does with its buckets."""
        wrapper = self.wrappers()[0]
        device = next(wrapper.parameters()).device
        if device.type == "cuda":
            self.torch.cuda.set_device(device)  # of this thread
        if sizes != [4 * buffer.numel() for buffer in self._buffers]:
            self._buffers = [self.torch.zeros(size // 4, device=device) for size in sizes]
        all_reduce = self.torch.distributed.all_reduce
        works = [all_reduce(buffer, group=wrapper.process_group, async_op=True) for buffer in self._buffers]
        for work in works:
            work.wait()

    def group(self) -> tuple[int, int] | None:
        """Return (rank, size) of the group that the program has formed; None where it has formed none."""
        distributed = getattr(self.torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        horovod = sys.modules.get("horovod.torch")
        if horovod is not None and horovod.is_initialized():
            return horovod.rank(), horovod.size()
        return None

    def shards(self) -> str | None:
        """Return what exchanges parts of the weights within a step, so that it cannot be left out; None: nothing."""
        names = {type(parameter.data).__name__ for parameter in self.parameters()}
        if "DTensor" in names:
            return "FSDP2 or tensor parallelism"
        return "DeepSpeed" if any("DeepSpeed" in type(each).__name__ for each in self._living_optimizers()) else None

    def _run_spawned(
        self,
        function: Callable[..., Any],
        args: Any = (),
        nprocs: int = 1,
        join: bool = True,
        *more: Any,
        **options: Any,
    ) -> Any:
        """Stand for mp.spawn and mp.start_processes: run the function as the process that this rank is."""
        rank, processes = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        if nprocs != processes:
            raise InputError(
                f"{self.script.name} starts {nprocs} processes by torch.multiprocessing, and {processes} run here "
                "by scalebench: pass it their number, as with script.args.gpus=@gpus_per_node"
            )
        function(rank, *args)
        return None if join else SimpleNamespace(join=lambda *limits, **named_limits: True)
