"""Two processes that train as a worker and a ps do, with nothing of dps but its kernels: the floor of `overhead.py`.

The other process has the values in shared memory, three buffers in turn. A step is one datagram there, a look for NaN
in the gradient, SGD to the next buffer, and one datagram back. Nothing is checked, numbered, sent again or recorded.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import warnings
from typing import Any

import numpy as np

from dps.kernels import cpu
from dps.kernels.optimizers import BoundOptimizer
from dps.training.optimizers import SGD

BUFFERS = 3
REQUEST_NBYTES = 128
"""Of a datagram: about as many as a small push of dps has."""
WAIT_MS = 10_000


class BarePair:
    """This process and its ps, which ends with `close` or with this process. `gradient` and `values[n]` are memory of
    both, float32, shape (elements,)."""

    def __init__(self, values: Any, rate: float) -> None:
        """`values`: the first ones."""
        self.values = [_shared(values.size) for _ in range(BUFFERS)]
        self.gradient = _shared(values.size)
        self.values[0][...] = values
        self._optimizer = BoundOptimizer(SGD(rate), np.float32)
        self._apply(0)  # compiles
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poll = select.poll()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child uses nothing of theirs
            child = os.fork()
        if child == 0:
            self._socket.close()
            try:
                self._serve(other)
            finally:
                os._exit(0)
        other.close()
        self._poll.register(self._socket, select.POLLIN)

    def step(self) -> Any:
        """Have `gradient` applied; the new values, which stay as they are until the next but one step. Blocks."""
        self._socket.send(bytes(REQUEST_NBYTES))
        if not self._poll.poll(WAIT_MS):
            raise TimeoutError(f"the other process has not answered within {WAIT_MS / 1000:.0f} s")
        answer = self._socket.recv(REQUEST_NBYTES)
        if not answer:
            raise ConnectionError("the other process has ended; what it raised is above")
        return self.values[answer[0]]

    def close(self) -> None:
        """End the other process."""
        self._socket.close()

    def _serve(self, asked: socket.socket) -> None:
        current = 0
        self._poll.register(asked, select.POLLIN)
        while self._poll.poll() and asked.recv(REQUEST_NBYTES):
            current = self._apply(current)
            asked.send(bytes([current]).ljust(REQUEST_NBYTES))

    def _apply(self, current: int) -> int:
        """One update, to the next buffer, whose number is returned."""
        after = (current + 1) % BUFFERS
        if not cpu.all_finite(self.gradient):
            raise ValueError("the gradient is not finite")
        self._optimizer.apply(self.values[after], self.values[current], [], (self.gradient,), 0, 1, 0, 1.0)
        return after


def _shared(elements: int) -> Any:
    return np.frombuffer(mmap.mmap(-1, max(1, 4 * elements)), np.float32, elements)
