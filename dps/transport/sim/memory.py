"""Shared memory of a simulated machine. Like a memfd, it exists while any process has it open."""

from __future__ import annotations

from random import Random
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from dps.errors import ProtocolError, Unavailable
from dps.transport.sim.scheduler import Group


class SimMemory:
    """As `dps.transport.shared.SharedMemory`."""

    def __init__(self, owner: Group, name: list[int], nbytes: int) -> None:
        self.owner, self.name = owner, name
        self.array: npt.NDArray[np.uint8] = np.zeros(nbytes, np.uint8)


class Machine:
    """The shared memory of one world. `shares` False: every process is on its own machine."""

    def __init__(self, shares: bool, faults: float = 0.0, seed: int | str = 0) -> None:
        """`faults`: the probability that memory cannot be had, or not be reached."""
        self.shares, self._faults, self._random = shares, faults, Random(f"{seed}/memory")
        self._made = 0
        self._memories: WeakValueDictionary[int, SimMemory] = WeakValueDictionary()

    def share(self, owner: Group, nbytes: int) -> SimMemory:
        """New memory of a process. Raises Unavailable if memory is not shared."""
        if not self.shares:
            raise Unavailable("the simulated machines share no memory")
        self._fail("no memory is left")
        self._made += 1
        memory = SimMemory(owner, [0, 0, self._made, nbytes], nbytes)
        self._memories[self._made] = memory
        return memory

    def attach(self, name: object) -> npt.NDArray[np.uint8]:
        """As `dps.transport.shared.attach`; the memory of a process that has ended cannot be attached."""
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
