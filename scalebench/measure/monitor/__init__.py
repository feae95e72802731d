"""The monitor: a process that samples devices, processes and the machine during a run, and the figures from its
samples.

`python -m scalebench.measure.monitor FOLDER [NODE]` (__main__.py, with the samplers) writes one time series;
monitor_process.py starts and ends it; time_series.py, summary.py and flags.py make the monitor's part of a run's record
of it.
"""
