from __future__ import annotations

import pytest

from dps.checkpoint import folder_name, parse_folder_name, shard_file_name, tensor_name
from dps.checkpoint.files import join


def test_a_checkpoint_folder_is_named_after_step_and_epoch() -> None:
    assert folder_name(120, 3) == "step-000000000120-epoch-000003"
    assert folder_name(120, 3, revision=2) == "step-000000000120-epoch-000003-values-000002"
    assert shard_file_name(0, 2) == "shard-00000-of-00002.safetensors"


@pytest.mark.parametrize(("step", "epoch"), [(0, 0), (120, 3), (10**12, 10**6), (5 * 10**13, 7)])
def test_a_folder_name_gives_epoch_and_step_back(step: int, epoch: int) -> None:
    assert parse_folder_name(folder_name(step, epoch)) == (epoch, step)
    assert parse_folder_name(folder_name(step, epoch, revision=7)) == (epoch, step)
    names = [folder_name(step, epoch, revision) for revision in (0, 1, 12)]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "name",
    [
        "", "journal.json", "step-12-epoch-3", "step-000000000120-epoch-000003.old", "x-step-000000000120-epoch-000003",
        "step-000000000120-epoch-000003\n", "step-0000000000120-epoch-000003", "step-00000000012٣-epoch-000003",
        "step-000000000120-epoch-000003-values-000000", "step-000000000120-epoch-000003-values-1",
    ],
)  # fmt: skip
def test_a_name_that_dps_would_not_write_is_foreign(name: str) -> None:
    assert parse_folder_name(name) is None


def test_tensors_are_named_after_variable_part_and_slot() -> None:
    assert tensor_name("hidden/w", 0, 1) == "hidden/w"
    assert tensor_name("hidden/w", 0, 1, "a") == "hidden/w@a"
    assert tensor_name("table", 2, 3) == "table/part_2"
    assert tensor_name("table", 2, 3, "m") == "table/part_2@m"


def test_joining_leaves_the_scheme_of_a_url_alone() -> None:
    assert join("s3://bucket/run", "journal.json") == "s3://bucket/run/journal.json"
    assert join("run/", "journal.json") == "run/journal.json"
