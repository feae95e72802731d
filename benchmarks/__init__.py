"""What scalebench itself costs. `python -m benchmarks [NAME...]`; each prints ratios with their spread.

Machines are noisy: what is compared runs side by side in one go, in turns, and no test asserts a time.
"""
