"""Rules for the usual causes of lost efficiency: the part, the facts that a rule needs, its condition, and three texts
that are filled in with facts. docs/explain/attribution.md lists causes and remedies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scalebench.core.stats.estimate_arithmetic import combine

Facts = dict[str, Any]  # by name, with the unit at its end; None was not measured
LAUNCHING = 0.5  # of a small step that does not depend on its batch: from here on launching dominates
ALWAYS_SLOWEST = 0.8  # of the steps in which one device is the slowest


@dataclass(frozen=True)
class Rule:
    """When a part has a usual cause: the facts that must be known, a condition, and texts with facts in braces."""

    part: str
    needs: str
    when: Callable[[Facts], bool]
    cause: str
    remedy: str
    evidence: str


RULES = (
    # Source: thesis (P. Orlob, "Parallelization of GPUs based on Horovod"): the epoch shortens sharply up to a batch of
    # 700 and levels off there; at 75 the GPUs are hardly used.
    Rule("batch", "constant_share", lambda f: f["constant_share"] >= LAUNCHING,
         "a step takes nearly as long with a small batch as with a large one: launching it costs more than computing",
         "Try a larger train.global_batch with the learning rate scaled to it, or train.compile=default or graphs, "
         "which start fewer kernels; fewer devices lose less",
         "on one bare device {small} samples take {small_s}, {large} take {large_s}: {constant_share} of the smaller "
         "step does not depend on its batch"),
    # Source: thesis, as above ("bigger matrices, efficiently parallelized on GPUs").
    Rule("batch", "local_sample_s",
         lambda f: (f["constant_share"] or 0.0) < LAUNCHING and f["local_sample_s"] >= 1.05 * f["full_sample_s"],
         "a device computes a sample more slowly in a small batch, which fills it less",
         "Try a larger train.global_batch with the learning rate scaled to it, or weak scaling",
         "forward and backward take {local_sample_s} per sample with the local batch, {full_sample_s} with the full "
         "one"),
    # Source: thesis (Horovod costs 17 % on one GPU); Lightning's Trainer took about 20 % of the materials CNN at a
    # batch of 75 where this program was written.
    Rule("wrapper", "", lambda f: len(f["names"]) == 1 and f["points"] >= 0.1,
         "{work} at each step, however small its batch{limit}",
         "Try {fewer_hooks}a larger train.batch_per_device: the overhead does not grow with the batch",
         "{overhead_s} in a step of {samples} samples on one device, which takes {ideal_s} without it{kernels}"),
    # Source: PyTorch's and Horovod's guides (threads x processes no more than cores); the flag is that of placement.
    Rule("contention", "quota", lambda f: f["is_oversubscribed"],
         "a quota, as that of a container, gives them the time of {quota} CPUs, however many cores there are",
         "Try fewer devices, or a higher limit of CPU time (docker --cpus, limits.cpu of a pod)",
         "{many} with the time of {quota} CPUs on each node of {node_cores} cores{flagged}"),
    Rule("contention", "", lambda f: f["is_oversubscribed"] and f["quota"] is None,
         "there are more threads or devices than cores, so that they take turns on them",
         "Try fewer devices on a node, or a smaller hardware.cpus_per_device", "{many} on {cores} cores{flagged}"),
    # Source: McCalpin 1995, "Memory bandwidth and machine balance in current high performance computers" (STREAM).
    Rule("contention", "together_s alone_s",
         lambda f: f["device"] == "cpu" and not f["is_oversubscribed"] and f["together_s"] >= 1.05 * f["alone_s"],
         "workers on one machine share its memory's bandwidth, its caches and the heat of its processors",
         "Try fewer workers on a machine, more machines, or hardware.bind=numa if it is not set",
         "forward and backward take {together_s} here, {alone_s} on one device alone"),
    # Source: keras-multi-gpu's measurements (memory clocks 5 % lower, up to 15 % less throughput).
    Rule("contention", "", lambda f: f["has_alone"] and (f["is_slower_clock"] or f["is_throttled"]),
         "devices run at lower clocks together than one does alone: a limit of power or of heat",
         "Look at power limit and cooling (scalebench doctor)", "{clocks}"),
    # Source: Mohan et al. 2021, "Analyzing and mitigating data stalls in DNN training" (hosts with too few cores).
    Rule("contention", "cpu_share", lambda f: f["device"] == "cuda" and f["cpu_share"] >= 0.9,
         "the cores that start the GPUs' work are busy themselves",
         "Try more cores a device (hardware.cpus_per_device) or a feed that costs none (dataset.feed=device)",
         "{cpu_share} of the cores of the run are in use"),
    # Source: tf.data's guide ("Better performance with the tf.data API": prefetching overlaps loading with training);
    # Murray et al. 2021, "tf.data: a machine learning data processing framework".
    Rule("data", "together_s", lambda f: f["reason"] == "decoding",
         "pictures are decoded more slowly than the devices train",
         "Try more cores a device (hardware.cpus_per_device) with as many dataset.workers, or dataset=imagenet",
         "{together_s} a step{beside}{read}"),
    Rule("data", "together_s", lambda f: f["reason"] == "company",
         "several devices load more slowly than one: they share the cores that do it",
         "Try dataset.feed=device{queue}", "{together_s} a step{beside}{lazy}"),
    Rule("data", "together_s", lambda f: f["reason"] == "no prefetch", "each batch is drawn while its device waits",
         "Try dataset.feed=device{queue}", "{together_s} a step{beside}{lazy}"),
    # Source: keras-multi-gpu's measurements (three of six like GPUs slower, at lower memory clocks).
    Rule("imbalance", "slowest_share", lambda f: f["slowest_share"] >= ALWAYS_SLOWEST,
         "one device is slower than the others, which wait for it at each step",
         "Compare the devices one by one (sweep=each_device), and leave a slow one out (hardware.device_ids)",
         "device {slowest} is the slowest in {slowest_share} of the steps: {slowest_s} by itself, the median device "
         "{median_s}"),
    # Source: Petrini, Kerbyson and Pakin 2003, "The case of the missing supercomputer performance"; Hoefler, Schneider
    # and Lumsdaine 2010, "Characterizing the influence of system noise on large-scale applications by simulation": the
    # slowest of many takes longer than their mean at each step.
    Rule("imbalance", "slowest_share", lambda f: f["slowest_share"] < ALWAYS_SLOWEST,
         "each time another device is the slowest: interruptions or uneven work rather than a slow device",
         "Look at what else runs there; a larger batch synchronizes less often, and evens out",
         "no device is the slowest in more than {slowest_share} of the steps{others}"),
    # Source: keras-multi-gpu's measurements (memory clocks of 1683 and 1772 MHz, 15 % less throughput).
    Rule("imbalance", "flags", lambda f: True, "devices run at different clocks",
         "Set the same application clocks on all, and look at power limits and cooling (scalebench doctor)",
         "flagged {flags}{clocks}"),
    # Source: Georges, Buytaert and Eeckhout 2007, "Statistically rigorous Java performance evaluation" (a machine's
    # state differs between measurements); flags of docs/reference/results.md.
    Rule("drift", "meanings", lambda f: True, "the probes came after the timed blocks, and meanwhile {meanings}",
         "Measure on a quiet machine, with measure.repeats=3", "{evidence}"),
    # Source: Li et al. 2020, "PyTorch Distributed: experiences on accelerating data parallel training" (buckets are
    # synchronized while the rest of the backward pass runs).
    Rule("communication", "exposed isolated messages",
         lambda f: f["messages"] == 1 and f["transfer_s"] >= 0.8 * f["isolated_s"],
         "all gradients travel in one message when the backward pass is over, so that nothing overlaps",
         "Try smaller messages{lower}", "1 message of {sum_bytes}, {transfer_s} exposed, {isolated_s} in isolation"),
    # Source: Rashidi et al. 2021, "Enabling compute-communication overlap in distributed deep learning training
    # platforms" (both compete for cores and memory bandwidth).
    Rule("communication", "exposed isolated wait",
         lambda f: combine({"exposed": 1.0, "wait": -1.0, "isolated": -1.0}, f).low > 0,
         "gradient synchronization costs more within training than in isolation: both use the same cores or the same "
         "memory",
         "Try fewer threads (hardware.cpus_per_device), or a backend that does not use the cores of the model",
         "{transfer_s} of the step without the imbalance, {isolated_s} in isolation"),
    # Source: Li et al. 2020, as above (only the backward pass hides synchronization); thesis (fewer of them an epoch
    # with larger batches).
    Rule("communication", "exposed isolated backward",
         lambda f: combine({"isolated": 1.0, "backward": -1.0}, f).low > 0,
         "gradient synchronization takes longer than the backward pass that it could overlap with",
         "Try a larger train.batch_per_device: the pass grows with it, the messages do not, and an epoch has fewer",
         "{isolated_s} in isolation, a backward pass of {backward_s}"),
    # Source: Hockney 1994, "The communication challenge for MPP" (t = latency + bytes / bandwidth); Sergeev and Del
    # Balso 2018, "Horovod: fast and easy distributed deep learning in TensorFlow" (tensor fusion).
    Rule("communication", "exposed isolated messages", lambda f: f["mean_bytes"] <= 256e3,
         "messages are so small that their latency takes longer than their bytes",
         "{fewer} larger train.batch_per_device, with fewer synchronizations an epoch",
         "{messages} {noun} of {mean_bytes}, {each_s} each in isolation"),
    # Source: Hockney 1994, as above; Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
    # workstations" (a ring moves 2 (N - 1) / N of the bytes over each link).
    Rule("communication", "exposed isolated messages", lambda f: f["mean_bytes"] >= 1e6 and f["isolated_s"] > 0,
         "large messages saturate the links between devices",
         "Try {compress}a larger train.batch_per_device, or a faster link between them (sweep=placement, "
         "sweep=transport)",
         "{sum_bytes} in {messages} take {isolated_s} in isolation, {ring_bytes}/s on each link of a ring"),
    # Source: parallel-strategies-benchmark-tensorflow2 (P. Schubert): four and eight 2080 Ti, NCCL slower than
    # ReductionToOneDevice on the CPU; its author suspected the missing NVLink.
    Rule("communication", "rival", lambda f: True,
         "NCCL has no direct link between these GPUs and goes through host memory, where the CPU could reduce at once",
         "Try strategy={rival}; sweep=transport measures each way between the GPUs", "{rival} {rates}; {links}"),
    # Source: thesis (with NCCL utilisation jumps when a second node is used, without a trace in power or speedup).
    Rule("communication", "usage", lambda f: True,
         "the backend waits for other devices within a kernel, which utilization counts as work",
         "Do not read utilization here but imbalance and exposed synchronization; compare another backend", "{usage}"),
)  # fmt: skip
