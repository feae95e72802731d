"""What a run used of processors, memory, GPUs, network and disks, in words. Layer 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scalebench.report.units import figure, share, size
from scalebench.results import Monitor, RankRecord, Result

Part = tuple[str, Callable[[Any], str]]  # field of the monitor, its words


def said(template: str, of: Callable[[float], str]) -> Callable[[Any], str]:
    return lambda value: template.format(of(value))


# Row -> its parts, of which those that were not measured are left out.
ROWS: dict[str, list[Part]] = {
    "processor cores": [
        ("cpu_util_mean", said("{} of those the run may use were busy", share)),
        ("cpu_util_ours_mean", said("{} with the run's processes", share)),
        ("cpu_cores_others_mean", said("other programs took {} cores' worth", figure)),
    ],
    "memory at most": [
        ("rss_bytes_max", said("{}, all ranks together", size)),
        ("rss_anon_bytes_max", said("{} without mapped files", size)),
        ("memory_available_bytes_min", said("{} of the machine were left", size)),
    ],
    "swapped": [
        ("swap_in_bytes", said("{} in", size)),
        ("swap_out_bytes", said("{} out", size)),
    ],
    "GPUs": [
        ("gpu_util_mean", said("busy {} of the time", share)),
        ("gpu_power_w_mean", said("{} W, all together", figure)),
        ("energy_j", said("{} J", figure)),
        ("gpu_temperature_c_max", said("{} degrees C at most", figure)),
    ],
    "GPU clocks": [
        ("sm_clock_mhz_mean", said("cores {} MHz", figure)),
        ("sm_clock_mhz_min", said("at least {}", figure)),
        ("mem_clock_mhz_mean", said("memory {} MHz", figure)),
        ("mem_clock_mhz_min", said("at least {}", figure)),
        ("throttle_reasons", lambda names: f"held back by {' '.join(names)}" if names else "held back by nothing"),
    ],
    "network": [
        ("net_sent_bytes_per_s", said("{}/s sent", size)),
        ("net_received_bytes_per_s", said("{}/s received", size)),
        ("loopback_bytes_per_s", said("{}/s within the machine", size)),
        ("infiniband_sent_bytes_per_s", said("{}/s sent over InfiniBand", size)),
        ("infiniband_received_bytes_per_s", said("{}/s received over InfiniBand", size)),
    ],
    "disks": [
        ("disk_read_bytes_per_s", said("{}/s read", size)),
        ("disk_written_bytes_per_s", said("{}/s written", size)),
    ],
}


def rows(result: Result) -> list[tuple[str, str]]:
    """(what, how much) for all that was measured: by the monitor while blocks were timed, by each rank of itself."""
    found = [(name, _parts(result.monitor, parts)) for name, parts in ROWS.items()]
    found += [("memory of a rank at most", _of_ranks(result.ranks)), ("state of a device", _state(result))]
    return [(name, text) for name, text in found if text]


def _parts(monitor: Monitor, parts: list[Part]) -> str:
    values = [(getattr(monitor, name), words) for name, words in parts]
    return ", ".join(words(value) for value, words in values if value is not None)


def _of_ranks(ranks: list[RankRecord]) -> str:
    """The largest of the ranks' own peaks; of one that is not known of all ranks nothing is said."""
    peaks: list[tuple[list[int | None], str]] = [
        ([rank.rss_peak_bytes for rank in ranks], ""),
        ([rank.rss_anon_peak_bytes for rank in ranks], " without mapped files"),
        ([peak for rank in ranks for peak in rank.peak_memory_bytes], " on a device"),
    ]
    known = [([peak for peak in found if peak is not None], found, words) for found, words in peaks]
    return ", ".join(f"{size(max(own))}{words}" for own, found, words in known if own and len(own) == len(found))


def _state(result: Result) -> str:
    """Of the fullest device; nothing where one of them cannot tell."""
    found = [state for rank in result.ranks for state in rank.state_bytes]
    known = [state for state in found if state is not None]
    if len(known) < len(found) or not all(rank.state_bytes for rank in result.ranks):
        return ""
    parameters = result.workload.model_params
    each = f", {max(known) / parameters:.1f} B a parameter" if parameters else ""
    return f"{size(max(known))} of weights, gradients and optimizer's state{each}"
