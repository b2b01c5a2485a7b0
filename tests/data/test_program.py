"""What a dataset task serves: all of what its program names, its shard, or the part that a function makes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import dps
from dps.data.serving import load_part

PROGRAM = """
import sys
import numpy as np
import dps

whole = dps.data.from_arrays(np.arange(6))

def all_of_it():
    return whole

def part(task, tasks):
    return dps.data.from_arrays(np.arange(6)[task::tasks] * 10)

def from_there():
    return whole, {"from": {"epoch": 2, "at": {}}, "finished": []}

def by_arguments(scale=1):
    return dps.data.from_arrays(np.arange(3) * int(sys.argv[1]))

number = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "feeds_of_a_test.py").write_text(PROGRAM)
    return str(tmp_path / "feeds_of_a_test.py")


def served(program: str, tasks: int | None = None, *arguments: str, **environ: Any) -> tuple[list[int], Any, Any]:
    made = load_part(program, arguments, {f"DPS_{name.upper()}": str(value) for name, value in environ.items()}, tasks)
    return [int(number) for number in made.dataset], made.position, made.tasks


def test_a_task_that_is_alone_serves_everything(file: str) -> None:
    assert served(f"{file}:all_of_it")[0] == [0, 1, 2, 3, 4, 5]
    assert served(f"{file}:part", 1) == ([0, 10, 20, 30, 40, 50], None, 1)
    assert served(f"{file}:whole") == ([0, 1, 2, 3, 4, 5], None, None)
    assert served(f"{file}:by_arguments", None, "7")[0] == [0, 7, 14]


def test_each_of_several_tasks_serves_its_part(file: str) -> None:
    assert served(f"{file}:whole", 2, task=1) == ([1, 3, 5], None, 2)
    assert served(f"{file}:all_of_it", 3, task=0) == ([0, 3], None, 3)
    assert served(f"{file}:part", 3, task=2) == ([20, 50], None, 3)
    sparse = json.dumps({"dataset": {"1": "a:1", "4": "b:1"}, "chief": ["c:1"]})
    assert served(f"{file}:whole", None, task=4, cluster=sparse) == ([1, 3, 5], None, 2)
    assert served(f"{file}:whole", None, task=1, cluster=sparse)[0] == [0, 2, 4]


def test_a_program_may_say_where_its_dataset_begins(file: str) -> None:
    assert served(f"{file}:from_there")[1] == {"from": {"epoch": 2, "at": {}}, "finished": []}


@pytest.mark.parametrize(
    ("tasks", "environ", "words"),
    [
        (2, {}, "dataset: got no --task of 2 dataset tasks, wanted 0 to 1"),
        (2, {"task": 2}, "dataset: got --task 2 of 2 dataset tasks, wanted 0 to 1"),
        (1, {"task": 1}, "dataset: got --task 1 of 1 dataset tasks, wanted 0 to 0"),
    ],
)
def test_a_number_that_is_none_of_them_is_told(file: str, tasks: int, environ: Any, words: str) -> None:
    with pytest.raises(dps.ConfigError, match=words):
        served(f"{file}:whole", tasks, **environ)


def test_what_is_no_dataset_is_told(file: str) -> None:
    with pytest.raises(
        dps.ConfigError,
        match="feeds_of_a_test.py:number: got 3, wanted a dps.data.Dataset, or a function that returns one",
    ):
        served(f"{file}:number")
    with pytest.raises(dps.ConfigError) as told:
        served(f"{file}:nothing")
    assert str(told.value) == (
        f"{file}:nothing: feeds_of_a_test.py has no 'nothing'; it has whole, all_of_it, part, from_there, "
        "by_arguments; wanted a dps.data.Dataset, or a function that returns one"
    )
    with pytest.raises(dps.ConfigError, match="got --program feed.py, wanted --program FILE:NAME"):
        served("feed.py")
