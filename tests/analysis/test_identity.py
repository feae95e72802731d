"""Keys by which runs are matched: they exist in the config or frame, so that no renamed one is forgotten."""

import dataclasses

import pytest

from scalebench.analysis import identity
from scalebench.analysis.collectives import COLLECTIVE_COLUMNS
from scalebench.analysis.columns import FRAME_COLUMNS
from scalebench.core.spec import Config
from tests.builders.runs import record

CONFIG = dataclasses.asdict(Config())


@pytest.mark.parametrize(
    ("keys", "tree"),
    [
        (identity.UNTRAINED_KEYS, CONFIG),
        (identity.DATASET_PATH_KEYS, CONFIG["dataset"]),
        ((*identity.QUEUE_KEYS, *identity.PLACEMENT_KEYS), CONFIG["hardware"]),
        (identity.BATCH_KEYS, CONFIG["train"]),
        (identity.MODEL_KEYS, CONFIG["model"]),
        *((keys, CONFIG[group]) for group, keys in identity.SAMPLE_KEYS.items()),
        ((*identity.CURVE_COLUMNS, *identity.COLUMN_DEFAULTS, *identity.MEMORY_COLUMNS), FRAME_COLUMNS),
        ((*identity.PARALLELISM_COLUMNS, *identity.SIZE_COLUMNS), FRAME_COLUMNS),
        (identity.OPERATION_COLUMNS, COLLECTIVE_COLUMNS),
    ],
)
def test_keys_and_columns_exist(keys, tree):
    assert [key for key in keys if key not in tree] == []


def test_ignored_facts_are_keys_or_groups_of_the_config():
    groups = {group: keys for group, keys in CONFIG.items() if isinstance(keys, dict)}
    keys = {*CONFIG, *(f"{group}.{key}" for group in groups for key in groups[group])}
    assert [key for key in identity.IGNORED_FACTS if key not in keys] == []
    assert set(identity.HIDDEN_FACTS) < set(identity.IGNORED_FACTS)


def test_runs_that_differ_only_in_their_batch_share_the_key_without_it():
    small, large = record(), record()
    large.spec["train"]["batch_per_device"] = 2 * small.spec["train"]["batch_per_device"]
    assert identity.comparison_key(small, True) != identity.comparison_key(large, True)
    keys = {identity.comparison_key(identity.without_batch(result), True) for result in (small, large)}
    assert len(keys) == 1 and "batch_per_device" in small.spec["train"]
