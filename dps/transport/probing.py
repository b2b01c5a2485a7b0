"""Checks that two processes can read each other's memory, by a token that only that memory holds."""

from __future__ import annotations

import numpy as np

from dps.transport.endpoint import Memory, Runtime

TOKEN_NBYTES = 16


def marked(runtime: Runtime) -> Memory:
    """New shared memory with random bytes in it. Raises Unavailable if memory cannot be shared."""
    memory = runtime.share(TOKEN_NBYTES)
    memory.array[:] = np.frombuffer(runtime.random.randbytes(TOKEN_NBYTES), np.uint8)
    return memory


def starts_with(runtime: Runtime, name: list[int], token: bytes) -> bool:
    """Whether the memory that a peer names holds its token. Raises Unavailable if the memory cannot be read."""
    return len(token) == TOKEN_NBYTES and runtime.attach(name)[:TOKEN_NBYTES].tobytes() == token
