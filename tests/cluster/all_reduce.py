"""A rank of an all-reduce over Gloo: run by srun on two nodes. Rank 0 prints one JSON object of seconds."""

import datetime
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

PAUSE_S = 0.02  # in which the bucket of the link fills: 128 KiB take 1 ms at 1 Gbit/s


def isolated_s(count, times):
    """Median of all-reduces each of which finds the link at rest."""
    values, seconds = torch.ones(count), []
    for _ in range(times):
        dist.barrier()
        time.sleep(PAUSE_S)
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(values)
        seconds.append(time.perf_counter() - begin)
        values.fill_(1.0)
    return statistics.median(seconds)


def in_a_row_s(count, times):
    """Mean of all-reduces that follow each other without a gap."""
    values = torch.zeros(count)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(values)
    return (time.perf_counter() - begin) / times


def main():
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=limit)
    large, small = (int(word) // 4 for word in sys.argv[1:3])
    isolated_s(1, 3), isolated_s(small, 3)
    found = {
        "empty_s": isolated_s(1, 25),
        "small_s": isolated_s(small, 25),
        "small_in_a_row_s": in_a_row_s(small, 100),
        "large_s": isolated_s(large, 3),
    }
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
