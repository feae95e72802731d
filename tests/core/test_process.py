"""What the kernel says of a process."""

import os

import pytest

from scalebench.core.process import read_process_stat


def test_cpu_seconds_are_those_of_the_program_and_of_the_kernel():
    while os.times().system < 0.3:
        os.listdir("/proc")
    stat, times = read_process_stat(os.getpid()), os.times()
    assert stat is not None and stat.parent == os.getppid()
    assert stat.cpu_s == pytest.approx(times.user + times.system, abs=0.2)
    assert read_process_stat(2**22 + 1) is None  # above the largest number of a process
