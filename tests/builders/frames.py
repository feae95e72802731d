"""Frames of records in memory."""

from scalebench.analysis.columns import FRAME_COLUMNS, make_frame
from scalebench.analysis.repeats import Configurations
from scalebench.analysis.rows import summarize_run


def frame_of_results(results, folders):
    """Return the frame of `survey`, in the order of the records."""
    runs = [summarize_run(result, folder) for result, folder in zip(results, folders, strict=True)]
    return make_frame(Configurations(runs).rows, FRAME_COLUMNS)


def pool_results(results, folders):
    """Return the frame of `pooled`."""
    runs = [summarize_run(result, folder) for result, folder in zip(results, folders, strict=True)]
    return Configurations(runs).make_frame()
