"""Memory that is prefaulted before it is used."""

from __future__ import annotations

import os
import resource
import struct
from typing import Any

import numpy as np
import pytest

from dps.kernels import prefault as kernels
from dps.ps.store import ahead
from dps.ps.store.ahead import AHEAD_NBYTES, HUGE_NBYTES, PAGE_NBYTES, MemoryAhead

needs_linux = pytest.mark.skipif(not ahead.can_prefault(), reason="the system does not prefault memory")


def prefaulted(*ranges: tuple[int, int]) -> int:
    """Prefault ranges, an address and a number of bytes each, here. How many calls were refused."""
    reading, writing = os.pipe()
    with open(reading, "rb", 0), open(writing, "wb", 0) as requests:
        for some in ranges:
            requests.write(struct.pack("qq", *some))
        requests.close()
        return kernels.prefault_ranges(np.int32(reading), np.zeros(2, np.int64))


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


@needs_linux
def test_prefaulted_pages_keep_their_contents_and_are_there() -> None:
    memory = np.zeros(3 * HUGE_NBYTES, np.uint8)
    memory[::PAGE_NBYTES][:100] = 7
    address: int = memory.ctypes.data
    assert prefaulted((address, HUGE_NBYTES), (address + HUGE_NBYTES, 2 * HUGE_NBYTES)) == 0
    before = faults()
    memory[PAGE_NBYTES:-PAGE_NBYTES:PAGE_NBYTES] += 1
    assert faults() - before < 10
    assert memory[0] == 7 and (memory[PAGE_NBYTES : 100 * PAGE_NBYTES : PAGE_NBYTES] == 8).all()
    assert (memory[100 * PAGE_NBYTES : -PAGE_NBYTES : PAGE_NBYTES] == 1).all() and memory.sum() == 7 + 99 * 7 + 1534


@needs_linux
def test_ranges_that_are_no_memory_and_parts_of_pages_do_no_harm() -> None:
    assert prefaulted((1 << 46, PAGE_NBYTES)) == 1
    page = np.zeros(PAGE_NBYTES // 2, np.uint8)
    assert prefaulted((page.ctypes.data, page.nbytes), (0, 0)) == 0


class Asked:
    """Stands for the thread: the ranges that it would prefault, from the beginning of an array on."""

    def __init__(self, monkeypatch: Any, memory: Any) -> None:
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(writing, False)
        monkeypatch.setattr(ahead, "can_prefault", lambda: True)
        monkeypatch.setattr(ahead, "_requests", lambda process: writing)
        self._address: int = memory.ctypes.data

    def ranges(self) -> list[tuple[int, int]]:
        try:
            came = os.read(self._reading, 1 << 20)
        except BlockingIOError:
            return []
        return [(at - self._address, at - self._address + n) for at, n in struct.iter_unpack("qq", came)]


def test_rows_are_asked_for_once_each_and_before_they_are_used(monkeypatch: Any) -> None:
    memory = np.zeros((50_000, 256), np.float32)
    asked, rows = Asked(monkeypatch, memory), MemoryAhead(memory)
    end = 0
    for used in range(0, 50_001, 100):
        rows.use_rows(used)
        for start, stop in asked.ranges():
            assert start == end and (stop - start >= HUGE_NBYTES or stop == memory.nbytes)
            end = stop
        assert end > min(memory.nbytes, used * 1024 + AHEAD_NBYTES) - HUGE_NBYTES
    assert end == memory.nbytes
    rows.use_rows(3)
    assert asked.ranges() == []


def test_a_small_array_is_left_alone_and_a_full_pipe_waits_for_nobody(monkeypatch: Any) -> None:
    small, large = np.zeros(100, np.int64), np.zeros((1 << 20, 16), np.int64)
    asked = Asked(monkeypatch, large)
    assert not MemoryAhead(small).prepare(800) and asked.ranges() == []
    for rows in [MemoryAhead(large) for _ in range(70)]:
        assert all(rows.prepare(end) for end in range(HUGE_NBYTES, large.nbytes + 1, HUGE_NBYTES))
    assert len(asked.ranges()) == 4096
