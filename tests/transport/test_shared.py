"""Memory shared between processes: what a peer may do with it, and what it may not."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dps.errors import ProtocolError, Unavailable
from dps.transport import shared_memory as shared
from dps.transport.shared_memory import SharedMemory, attach

READ = """
import sys
from dps.transport.shared_memory import attach
array = attach([int(x) for x in sys.argv[1:]])
print(int(array.sum()), array.flags.writeable)
"""


def read_elsewhere(memory: SharedMemory) -> str:
    return subprocess.check_output([sys.executable, "-c", READ, *map(str, memory.name)], text=True).strip()


def test_another_process_reads_what_the_owner_wrote_and_cannot_write() -> None:
    memory = SharedMemory(10_000)
    memory.array[:] = 3
    assert read_elsewhere(memory) == "30000 False"


def test_what_the_owner_writes_later_is_seen() -> None:
    memory = SharedMemory(4096 * 3)
    seen = attach(memory.name)
    memory.array[-1] = 7
    assert seen[-1] == 7 and len(seen) == 4096 * 3


def test_its_size_and_seals_cannot_be_changed_and_nobody_else_can_map_it_to_write() -> None:
    memory = SharedMemory(8192)
    fd = memory.name[1]
    for nbytes in (4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, nbytes)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, 1033, 8)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 8192)


def test_memory_outlives_its_owners_end_for_those_who_have_it() -> None:
    memory = SharedMemory(4096)
    memory.array[0] = 5
    seen, name = attach(memory.name), memory.name
    del memory
    gc.collect()
    assert seen[0] == 5
    with pytest.raises(Unavailable):
        attach(name)


def test_a_number_that_was_given_to_another_file_is_not_mistaken_for_it() -> None:
    memory = SharedMemory(4096)
    pid, fd, inode, nbytes = memory.name
    for other in ([pid, fd, inode + 1, nbytes], [pid, 1 << 20, inode, nbytes], [1 << 30, fd, inode, nbytes]):
        with pytest.raises(Unavailable):
            attach(other)


def test_memory_of_another_size_than_it_is_said_to_have_is_refused() -> None:
    memory = SharedMemory(4096)
    pid, fd, inode, nbytes = memory.name
    for claimed in (nbytes * 2, nbytes - 1, 0):
        with pytest.raises(ProtocolError, match="4096 bytes"):
            attach([pid, fd, inode, claimed])


def test_a_file_that_could_be_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with path.open() as file, pytest.raises(Unavailable):  # it knows no seals
        attach([os.getpid(), file.fileno(), os.fstat(file.fileno()).st_ino, 4096])
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4096)
    with pytest.raises(ProtocolError, match="sealed"):
        attach([os.getpid(), unsealed, os.fstat(unsealed).st_ino, 4096])
    os.close(unsealed)


def test_a_pipe_is_refused_at_once() -> None:
    reading, writing = os.pipe()
    with pytest.raises(Unavailable):
        attach([os.getpid(), reading, os.fstat(reading).st_ino, 1])
    os.close(reading)
    os.close(writing)


def test_another_users_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory(4096)
    monkeypatch.setattr(shared.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Unavailable, match="not of this user"):
        attach(memory.name)


@pytest.mark.parametrize("name", [None, [], [1, 2, 3], [1, 2, 3, -4], [1, 2, 3, 4.0], "1,2,3,4", [True, 1, 1, 1]])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(ProtocolError, match="does not name"):
        attach(name)


def test_more_memory_than_there_is_is_one_clear_error() -> None:
    with pytest.raises(Unavailable, match="shared memory"):
        SharedMemory(1 << 50)


def test_empty_memory_is_memory() -> None:
    memory = SharedMemory(0)
    assert len(memory.array) == 0 and len(attach(memory.name)) == 0


def test_it_leaves_no_descriptor_and_no_file_behind() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    made = [SharedMemory(4096) for _ in range(20)]
    seen = [attach(memory.name) for memory in made]
    assert np.all([len(s) == 4096 for s in seen])
    del made, seen
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
