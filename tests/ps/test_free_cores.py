"""How many cores are free: what /proc/loadavg says, and systems that do not say it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dps.ps.store import thread_pool as module
from dps.ps.store.thread_pool import free_cores, running


@pytest.fixture(autouse=True)
def nothing_is_known_yet() -> Iterator[None]:
    module._loadavg.cache_clear()
    yield
    module._loadavg.cache_clear()


def test_tasks_that_run_stand_before_the_slash() -> None:
    assert running(b"0.20 0.18 0.12 3/80 11206\n") == 3
    assert running(b"12.01 9.00 7.77 117/4321 99999\n") == 117


def test_free_cores_are_those_of_this_process_less_the_tasks_that_run_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "loadavg"
    said.write_text("0.00 0.00 0.00 1/80 11206\n")
    monkeypatch.setattr(module, "LOADAVG", str(said))
    monkeypatch.setattr(module, "cores", lambda: 4)
    free = free_cores()
    assert free is not None and free() == 3
    said.write_text("0.00 0.00 0.00 6/80 11206\n")
    assert free() == -2
    module._loadavg.cache_clear()
    again = free_cores()
    assert again is not None and again() == -2


@pytest.mark.parametrize("text", ["0.00 0.00 0.00 0/0 0\n", "", "0.00\n", "a b c d/e f\n"])
def test_a_file_that_does_not_count_this_thread_is_not_believed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loadavg").write_text(text)
    monkeypatch.setattr(module, "LOADAVG", str(tmp_path / "loadavg"))
    assert free_cores() is None


def test_where_there_is_no_such_file_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOADAVG", str(tmp_path / "nothing"))
    assert free_cores() is None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/loadavg is Linux's")
def test_on_linux_the_thread_that_asks_is_one_of_those_that_run() -> None:
    free = free_cores()
    assert free is not None and free() < len(os.sched_getaffinity(0))
