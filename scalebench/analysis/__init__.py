"""Analysis: from the records of runs to figures: speedups, curves, rankings, attribution, comparison and prediction."""
