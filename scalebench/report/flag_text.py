"""Flags, intervals and cells of the frame as text: what a flag of a row means, and what to do about it.

docs/reference/results.md says what raises each flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scalebench.analysis.verdicts import DOUBTS

if TYPE_CHECKING:
    import pandas as pd

    from scalebench.analysis.scaling_curves import Curve

UNSTEADY = ("warmup_left", "drifts")  # flags that say why a series is not steady
NOT_STEADY = "not_steady"  # stands for a series that is unsteady while no flag says why

ADVICE = {
    "over_in_warmup": (
        "The training stopped before the pace of its steps had settled, so there is no throughput. Its "
        "curve stands; a later train.stop, or a smaller measure.warmup_steps, gives both."
    ),
    "oversubscribed": (
        "More threads than cores, or than a quota of CPU time allows: ranks wait for each other's cores, which is no "
        "property of the strategy. Use fewer devices, a machine with more cores, or a higher quota."
    ),
    "unsupported_gpus": (
        "It ran on the CPU: this machine has AMD GPUs, by /dev/kfd or by PyTorch's build, and scalebench supports "
        "NVIDIA's only. hardware=cpu says that CPU workers are what you want."
    ),
    "hidden_gpus": (
        "It ran on the CPU: CUDA_VISIBLE_DEVICES hides the GPUs of this machine. hardware=cpu says that CPU workers "
        "are what you want."
    ),
    "shared_gpu": (
        "Two of its processes drove the same GPU, so its figures are of fewer GPUs. Each process must see all GPUs of "
        "its node, or one of its own: look at CUDA_VISIBLE_DEVICES, and at --gpus-per-task and --gpu-bind of SLURM."
    ),
    "untrained_tensors": (
        "The module holds or uses tensors that its training does not change: parameters to which the first batch gave "
        "no gradient (other batches may), or layers that are no part of it. `scalebench show --details` names them."
    ),
    "probe_failed": (
        "Something failed after the measurement, while parts of a step were timed: the throughput stands, and what is "
        "empty was not measured. `scalebench show --details` has the error; the log of the rank has all of it."
    ),
    "precision_differs": (
        "Its steps computed in another precision (precision_used) than train.precision requests, so that others, which "
        "did not, are trainings of another kind, and no verdict rests on it. Mostly the network sets its own (a policy "
        "of Keras, a cast): set train.precision, and leave it out of the network."
    ),
    "approximate": (
        "Its steps are not those of the baseline on the same samples, as the strategy's YAML declares (approximate), "
        "so its speed is that of a different training. Compare what it reaches, too: train.stop.target."
    ),
    "one_unit": (
        "The strategy gathers all weights of a module of yours at once, as one unit: units, unit_mb and "
        "reshard_after_forward have no effect, nothing overlaps, and its memory is not that of sharded layers."
    ),
    "hooks_left_out": (
        "Its LightningModule overrides hooks of a step that Lightning's loop alone calls (show --details names them): "
        "its figures are without that work. Compare it with rows that leave them out, too, not with lightning_*."
    ),
    "loader_left_out": (
        "The train_dataloader of its LightningModule was not used: its samples are those of `dataset`, and the time "
        "that a loader takes is not in its figures."
    ),
    "samples_cut": (
        "The function of its data set has more samples than dataset.size, and the first ones were taken: an epoch is "
        "one of these. Raise dataset.size to train on all."
    ),
    "slow_reading": (
        "It trains faster than one process has read its Dataset into the cache (read_samples_per_s), so that a loader "
        "may hold the training down, and no figure says how far: steps read the cache."
    ),
    "threads_changed": (
        "The model's file changed the number of threads within an operation while it trained, so that ranks share "
        "cores that they should have for themselves. Leave out torch.set_num_threads; hardware.cpus_per_device sets it."
    ),
    "one_hot_targets": (
        "The loss is mse, since the targets are floats, and they look like classes, with one 1 in each row. For "
        "cross_entropy and accuracy, have the function return the classes' numbers: targets.argmax(1)."
    ),
    "open_port": (
        "Its processes listened on all interfaces of the machine while it ran, so that others could reach them: "
        "TensorFlow's servers read and write files for everybody. docs/guides/cluster.md says where that is not needed."
    ),
    "not_in_turns": (
        "It was measured by itself while the others of its sweep took turns: it did not fit beside them, or its "
        "processes could not be stopped. Compare it only as far as its interval over repeats allows."
    ),
    "foreign_process": (
        "Another program computed on a GPU of the run: its figures are of a shared GPU. End that program "
        "(nvidia-smi names it), and run again."
    ),
    "busy_machine": (
        "Other programs used the cores meanwhile, and what is measured may be slower for it. Run again when "
        "the machine is quiet, or with measure.repeats=3 to see how much it matters."
    ),
    "hot_at_start": (
        "A GPU was already near the temperature at which it slows itself down. Let the machine cool first "
        "(measure.cool_down_s), and look at its air flow."
    ),
    "quota_used_up": (
        "Its quota of CPU time, as that of a container, was used up while it was measured, and all its threads were "
        "stopped. Use fewer devices or workers, or a higher limit (docker --cpus, limits.cpu of a pod)."
    ),
    "throttled": (
        "Something held a GPU's clocks back while it was measured (throttle_reasons): power limit, heat or "
        "brake. Compare clocks and power of the runs, or set one lower clock for all (nvidia-smi -lgc)."
    ),
    "unequal_clocks": (
        "The GPUs ran at different clocks, and the slowest sets the pace of all. Set one clock for all "
        "(nvidia-smi -lgc), or choose GPUs of one kind with hardware.device_ids."
    ),
    "swapping": (
        "The machine moved memory to or from disk while it was measured. Use smaller batches or fewer "
        "workers, or end what else needs memory."
    ),
    "memory_full": (
        "A GPU's memory was full: torch's allocator gave back its cache and tried again, which takes time in the steps "
        "(allocator_retries). Use a batch that is a little smaller for the best rate."
    ),
    "gpu_lost": (
        "A GPU fell off the bus: its figures end there. Look into the kernel's log (dmesg, Xid), and have the "
        "card checked."
    ),
    "unequal_nodes": (
        "The nodes are of different kinds, and the slowest sets the pace of all. Take nodes of one kind "
        "(hardware.slurm.constraint, hardware.hosts)."
    ),
    "clocks_differ": (
        "The clocks of the nodes are more than 0.1 s apart. No figure suffers, for each is of one clock, but times "
        "in their logs and files do not compare. Have them kept by NTP or chrony."
    ),
    "no_interval": (
        "There is no interval, so nothing says how sure the figure is: too few blocks. "
        "Measure longer (measure.max_s), or with measure.repeats=3."
    ),
    "repeats_differ": (
        "The fastest of its repeats is more than 1.1 times as fast as the slowest: the dots of the charts show each. "
        "Limits of a few repeats miss a program that has two speeds; more repeats show both (measure.repeats=10)."
    ),
    "target_missed": (
        "The interval is wider than requested (measure.target). Measure longer (measure.max_s), or on a "
        "quieter machine."
    ),
    "warmup_left": (
        "The first measured blocks were still warm-up, and are left out of the figures. A longer warm-up "
        "(measure.warmup_max_s) takes them out beforehand."
    ),
    "drifts": (
        "The speed changed while it was measured, so that one figure does not describe it. Look at the clocks "
        "and temperatures of the run, and measure longer (measure.min_s)."
    ),
    "superlinear": (
        "More than N times as fast on N devices. Ask why before believing it: caches that now suffice, or a "
        "baseline that was slow for another reason."
    ),
    "superlinear_on_cpu": (
        "More than N times as fast as one worker on N workers, which share the processors that there are: an error of "
        "the measurement, and no verdict rests on it. Mostly the baseline shared its cores with another run; measure "
        "both again, one run at a time."
    ),
    "superlinear_within_noise": (
        "More than N times as fast on N devices, but the interval holds N times too: take it for linear."
    ),
    "host_limited": (
        "The host is the limit: for more than half of a step its GPUs wait for kernels that the host has not started "
        "(host_wait_share). A larger batch, or train.compile=true, which starts fewer kernels, helps."
    ),
    "mfu_above_1": (
        "Its model FLOPs utilization is above 1: the card runs above the vendor's boost clock, or precision_used "
        "or the counted FLOPs are wrong. Compare sm_clock_mhz_mean with the card's data sheet."
    ),
    "no_tensor_cores": (
        "It computed in float32, and its GPUs have tensor cores, with which steps are several times as fast, "
        "so that communication takes a larger share and scaling is worse. train.precision=tf32 (from Ampere on), "
        "bfloat16 or float16 uses them."
    ),
    "same_batches": (
        "Ranks trained on the same samples: the program has no DistributedSampler, or each rank draws the same. Parts "
        "of one model do, too: then script.samples_per_step says how many samples a step has."
    ),
    "other_scaling": (
        "Its samples do not grow with the devices as `scaling` declares, so that its speedup compares other steps: set "
        "scaling=strong where the batch of all devices is kept, or give each device a batch."
    ),
    "hooks_cost": (
        "scalebench's own hooks took more than 1 % of its steps, which are very short: the rate is that much too low."
    ),
    "samples_unknown": "No samples were seen, since it draws from no DataLoader: script.samples_per_step says them.",
    NOT_STEADY: "Its series is not steady, so that one figure does not describe it. Measure longer (measure.min_s).",
}

# What raises each flag, for docs/reference/results.md.
RAISED_WHEN = {
    "over_in_warmup": "a training reached its stop within warm-up: no throughput",
    "oversubscribed": "more threads than cores",
    "unsupported_gpus": "AMD GPUs were there and the run took the CPU, since only NVIDIA's are supported",
    "hidden_gpus": "CUDA_VISIBLE_DEVICES hid the GPUs and the run took the CPU",
    "shared_gpu": "two processes drove the same GPU, by the UUIDs that they recorded",
    "untrained_tensors": "a user's module has parameters that the first batch gives no gradient, or uses tensors that "
    "are none of its parameters",
    "probe_failed": "something failed after the measurement: throughput stands, what is empty was not measured",
    "precision_differs": "`precision_used` is not `precision`, or lacks it; no verdict rests on the row",
    "approximate": "the strategy's YAML says that its steps are not the baseline's on the same samples",
    "one_unit": "a module of the user's is one unit of FSDP, whatever the options units and unit_mb say",
    "hooks_left_out": "a LightningModule overrides hooks of a step, and the strategy is none of Lightning's",
    "loader_left_out": "a LightningModule has a train_dataloader, and samples are those of `dataset`",
    "samples_cut": "a data set's function has more samples than dataset.size, of which the first ones were taken",
    "slow_reading": "the throughput is above read_samples_per_s, at which one process has read a user's Dataset",
    "threads_changed": "threads within an operation, at the end of the measurement, are not those of the run",
    "one_hot_targets": "`auto` took mse for a function's targets that are floats with one 1 in each row",
    "open_port": "its processes listened on all interfaces: TensorFlow's servers, or MPI",
    "not_in_turns": "the other runs of its sweep took turns; it did not fit beside them, or could not be stopped",
    "foreign_process": "another program computed on one of its GPUs, before or while it was measured",
    "busy_machine": "other programs used more than 0.1 of a core plus 0.01 per core of the run; in turns only where "
    "fewer than 8 undisturbed rounds are left",
    "hot_at_start": "before the first step a GPU was within 5 degrees of slowing itself down, or did so",
    "quota_used_up": "in more than 1 % of its periods the CPU quota, as that of a container, was used up "
    "(`nr_throttled` in cpu.stat)",
    "throttled": "in more than 5 % of the samples a GPU's clocks were held back, but not by clocks that somebody chose",
    "unequal_clocks": "mean, or highest possible, SM or memory clocks of the GPUs differ by more than 2 %",
    "swapping": "the machine moved more than 1 MiB to or from swap",
    "memory_full": "torch's allocator found a GPU's memory full, gave back its cache and tried again, also in warm-up",
    "gpu_lost": "a GPU fell off the bus (NVML)",
    "unequal_nodes": "processor, memory, cores or GPUs differ between the nodes",
    "clocks_differ": "clocks of two nodes are more than 0.1 s apart",
    "no_interval": "fewer than five blocks",
    "repeats_differ": "pooled: the fastest repeat is more than 1.1 times as fast as the slowest",
    "target_missed": "the interval is wider than measure.target (of one of n repeats: sqrt(n) times that)",
    "warmup_left": "the first blocks were still warm-up, moved the mean by more than measure.target, and are left out",
    "drifts": "the level of the blocks changes by more than measure.target",
    "superlinear": "efficiency above 1, and so is its interval",
    "superlinear_on_cpu": "likewise on CPU workers, which share their processors: an error of the measurement",
    "superlinear_within_noise": "efficiency above 1; its interval contains 1",
    "host_limited": "host_wait_share is at least 0.5",
    "mfu_above_1": "mfu is above 1, which no card can reach at its nominal clock",
    "no_tensor_cores": "precision_used is float32 on a busy GPU with tensor cores more than 2.5 times as fast as that",
    "same_batches": "ranks of a user's program drew the same first batches",
    "other_scaling": "samples per step of a user's program do not grow with the devices as `scaling` says",
    "hooks_cost": "scalebench's hooks took more than 1 % of a step of a user's program",
    "samples_unknown": "a user's program drew from no DataLoader: no samples/s",
    NOT_STEADY: "unsteady for a reason that no other flag names",
}


def format_flag(flag: str) -> str:
    """Return a flag as tables show it."""
    return flag.replace("_", " ")


def get_advice(flag: str) -> str:
    """Return a sentence or two about a flag; a general one if a later version of scalebench raised it."""
    return ADVICE.get(
        flag, "This version of scalebench does not know this flag: the reference of the one that ran it does."
    )


def list_flags(flags: str, unsteady: bool) -> list[str]:
    """Split the flags of a row, and add NOT_STEADY if its series is unsteady and no flag says why."""
    names = flags.split()
    return [*names, NOT_STEADY] if unsteady and not set(names) & set(UNSTEADY) else names


def describe_row(row: dict[str, Any], explains: bool = False) -> list[str]:
    """Return the remarks on a successful row: its flags, an unsteady series, unresolved differences. With `explains`,
    flags are followed by their meaning.

    A difference from a baseline is unresolved if the 95 % interval of the speedup contains 1, its limits included. No
    remark is made on a row that is its own baseline, twice if one run is both baselines, or without an interval.
    """
    flags = list_flags(to_text(row["flags"]), to_text(row["steady"]) == "False")
    remarks = [_explain_flag(flag) if explains else format_flag(flag) for flag in flags]
    bare_id, self_id, run_id = (to_text(row[name]) for name in ("baseline_bare_id", "baseline_self_id", "run_id"))
    if bare_id not in ("", run_id) and _contains_1(row, "speedup_bare"):
        remarks.append("no difference from bare resolved")
    if self_id not in ("", run_id, bare_id) and _contains_1(row, "speedup_self"):
        remarks.append("no difference from one device resolved")
    return remarks


def _explain_flag(flag: str) -> str:
    """Return `drifts: its level changed while it was measured`."""
    name, meaning = format_flag(flag), DOUBTS.get(flag) or ADVICE.get(flag, "").partition(".")[0]
    meaning = meaning[:1].lower() + meaning[1:]
    return f"{name}: {meaning}" if meaning and not meaning.startswith(name) else meaning or name


def _contains_1(row: dict[str, Any], name: str) -> bool:
    """Return whether there is an interval with 1 in it; an upper limit that the data cannot supply is null."""
    low, high = to_number(row[f"{name}_low"]), to_number(row[f"{name}_high"])
    return low is not None and low <= 1 and (high is None or high >= 1)


def describe_intervals(frame: pd.DataFrame) -> str:
    """Say what the intervals of these rows are taken over; empty if there are none."""
    repeats = get_repeat_counts(frame)
    over = frame["interval_over"]
    parts = []
    if (over == "repeats").any():
        fewest, most = repeats[over == "repeats"].min(), repeats[over == "repeats"].max()
        parts.append(f"over {fewest} repeats" if fewest == most else f"over {fewest} to {most} repeats")
    if (over == "blocks").any():
        parts.append("over blocks of one repeat: they miss what differs between repeats (measure.repeats=3 shows it)")
    return f"intervals: 95 %, {'; '.join(parts)}" if parts else ""


def describe_curve_intervals(curves: Sequence[Curve]) -> str:
    """Say what the intervals of these curves are taken over; empty if there are none."""
    import pandas as pd

    columns = ["interval_over", "repeats", "status"]
    rows = [{name: row[name] for name in columns} for curve in curves for row in curve.rows]
    return describe_intervals(pd.DataFrame(rows, columns=columns))


def get_repeat_counts(frame: pd.DataFrame) -> pd.Series[Any]:
    """Return the number of repeats behind each row; 1 in a frame of single runs."""
    import pandas as pd

    return frame["repeats"] if "repeats" in frame else pd.Series(1, index=frame.index)


def to_number(value: Any) -> float | None:
    """Return a cell of the frame as a float, None for null."""
    return None if to_text(value) == "" else float(value)


def to_text(value: Any) -> str:
    """Return a cell of the frame as text, empty for null."""
    return "" if value is None or str(value) in ("<NA>", "nan") else str(value)
