"""What devices, processes and the machine did during a run: a process of its own that samples, and what is made of it.

`python -m scalebench.measure.monitor FOLDER [NODE]` (sampling) leaves one series; keeper.py starts and ends it,
series.py, summary.py and guards.py make figures and flags of it, record.py the part of a run's record. Layer 2.
"""
