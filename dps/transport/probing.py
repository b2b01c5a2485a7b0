"""Checks that two processes can read each other's memory, by a token that only that memory holds."""

from __future__ import annotations

import numpy as np

from dps.transport.endpoint import Memory, Runtime

TOKEN_NBYTES = 16


def marked(runtime: Runtime) -> Memory:
    """New shared memory with random bytes in it. Raises Unavailable where none can be shared."""
    memory = runtime.share(TOKEN_NBYTES)
    memory.array[:] = np.frombuffer(runtime.random.randbytes(TOKEN_NBYTES), np.uint8)
    return memory


def starts_with(runtime: Runtime, name: list[int], token: bytes) -> bool:
    """Whether the memory that a peer names is really its own: Unavailable where nothing can be reached."""
    return len(token) == TOKEN_NBYTES and runtime.attach(name)[:TOKEN_NBYTES].tobytes() == token
