"""The disk that all processes of a world share, its faults, and each process's access to it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from random import Random
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from dps.checkpoint.storage import Claim, Storage
from dps.errors import ProtocolError, Unavailable
from dps.transport.sim.scheduler import Scheduler, TaskGroup


class DiskFaults:
    """Makes a disk slow or full for a while. `MemoryStorage` calls it before each write."""

    def __init__(self, scheduler: Scheduler, before: Callable[[str, int], None] | None) -> None:
        self._slow: list[float] = []
        self._full = 0
        self._scheduler = scheduler
        self.before = before
        """The storage's former callback, which is called first."""

    def set_slow(self, write_s: float, on: bool) -> None:
        """Begin or end a period in which a write takes `write_s` virtual seconds. Of several the longest counts."""
        if on:
            self._slow.append(write_s)
        else:
            self._slow.remove(write_s)

    def set_full(self, on: bool) -> None:
        """Begin or end a period in which the disk is full."""
        self._full += 1 if on else -1

    def __call__(self, path: str, nbytes: int) -> None:
        """Wait, or raise OSError(ENOSPC). A write outside all tasks never waits."""
        if self.before is not None:
            self.before(path, nbytes)
        if self._slow and not self._scheduler.between_tasks:
            self._scheduler.pass_time(self._scheduler.task(), max(self._slow))
        if self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


class ProcessDisk:
    """One process's access to the world's storage. Once the process has ended, every call raises GreenletExit."""

    def __init__(self, storage: Storage, owner: TaskGroup) -> None:
        self._storage = storage
        self._owner = owner
        self._claims: list[Claim] = []

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> int:
        """As Storage.write."""
        return self._reached().write(path, chunks)

    def append(self, path: str, data: bytes) -> None:
        """As Storage.append."""
        self._reached().append(path, data)

    def read(self, path: str) -> bytes | memoryview:
        """As Storage.read."""
        return self._reached().read(path)

    def read_range(self, path: str, offset: int, n: int) -> bytes | memoryview:
        """As Storage.read_range."""
        return self._reached().read_range(path, offset, n)

    def exists(self, path: str) -> bool:
        """As Storage.exists."""
        return self._reached().exists(path)

    def size(self, path: str) -> int:
        """As Storage.size."""
        return self._reached().size(path)

    def names(self, folder: str) -> list[str]:
        """As Storage.names."""
        return self._reached().names(folder)

    def remove_tree(self, path: str) -> None:
        """As Storage.remove_tree."""
        self._reached().remove_tree(path)

    def check_writable(self, folder: str) -> None:
        """As Storage.check_writable."""
        self._reached().check_writable(folder)

    def close(self, folder: str, made: Iterable[str]) -> str:
        """As Storage.close."""
        return self._reached().close(folder, made)

    def claim(self, path: str) -> Claim | None:
        """As Storage.claim."""
        claim = self._reached().claim(path)
        if claim is not None:
            self._claims.append(claim)
        return claim

    def process_ended(self) -> None:
        """Release the process's claims, as the operating system does."""
        claims, self._claims = self._claims, []
        for claim in claims:
            claim.drop()

    def _reached(self) -> Storage:
        self._owner.check()
        return self._storage


class SimMemory:
    """As `dps.transport.shared_memory.SharedMemory`."""

    def __init__(self, owner: TaskGroup, name: list[int], nbytes: int) -> None:
        self.owner, self.name = owner, name
        self.array: npt.NDArray[np.uint8] = np.zeros(nbytes, np.uint8)


class SimulatedMemory:
    """The shared memory of one world. `shares` False: every process is on its own machine."""

    def __init__(self, shares: bool, faults: float = 0.0, seed: int | str = 0) -> None:
        """`faults`: the probability that memory cannot be had, or not be reached."""
        self.shares, self._faults, self._random = shares, faults, Random(f"{seed}/memory")
        self._made = 0
        self._memories: WeakValueDictionary[int, SimMemory] = WeakValueDictionary()

    def share(self, owner: TaskGroup, nbytes: int) -> SimMemory:
        """New memory of a process. Raises Unavailable if memory is not shared."""
        if not self.shares:
            raise Unavailable("the simulated machines share no memory")
        self._fail("no memory is left")
        self._made += 1
        memory = SimMemory(owner, [0, 0, self._made, nbytes], nbytes)
        self._memories[self._made] = memory
        return memory

    def attach(self, name: object) -> npt.NDArray[np.uint8]:
        """As `dps.transport.shared_memory.attach`; the memory of a process that has ended cannot be attached."""
        if not (isinstance(name, list) and len(name) == 4 and all(type(part) is int for part in name)):
            raise ProtocolError(f"{name!r:.100} does not name shared memory")
        self._fail("no file can be opened")
        memory = self._memories.get(name[2])
        if memory is None or not memory.owner.alive or memory.name != name:
            raise Unavailable(f"there is no memory {name}")
        view = memory.array.view()
        view.flags.writeable = False
        return view

    def _fail(self, reason: str) -> None:
        if self._faults and self._random.random() < self._faults:
            raise Unavailable(f"simulated fault: {reason}")
