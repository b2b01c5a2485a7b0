"""Two processes prove to each other that each can read the other's memory: by words in it that only a reader knows.

Who reads this process's memory is on this machine and of this user, so it could read all other memory of this user
without dps. Only then what it names is opened. Otherwise a peer elsewhere could name memory of a process here.

A word is never sent. A proof is the digest of the word that was read and of the name of the reader's own memory, so
whoever is told a proof can neither show it for another memory nor learn the word from it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dps.errors import DpsError, Unavailable
from dps.telemetry import log
from dps.transport.endpoint import Memory, Runtime
from dps.transport.wire import Array

try:
    from _blake2 import blake2s  # as `random` does: hashlib loads OpenSSL
except ImportError:
    from hashlib import blake2s

MARK = b"dps probes this."
"""How memory begins that may be asked for. No other memory is read for a peer that has proven nothing."""
ASKER, ASKED = slice(16, 32), slice(32, 48)
"""The words of who asks and of who is asked. They differ, so that nobody asks a process for its own proof."""
NBYTES = 48


def marked(runtime: Runtime) -> Memory | None:
    """New shared memory with words that nobody can guess; None if memory cannot be shared."""
    try:
        memory = runtime.share(NBYTES)
    except Unavailable as error:
        log.debug("%s", error)
        return None
    memory.array[:] = np.frombuffer(MARK + runtime.secret() + runtime.secret(), np.uint8)
    return memory


def expected(memory: Memory, whose: slice, reader: list[int]) -> bytes:
    """The proof of a process that has read this memory, and whose own memory has the name `reader`."""
    return _digest(memory.array[whose].tobytes(), reader)


def attach(runtime: Runtime, name: list[int], near: Callable[[], bool]) -> Array:
    """As `Runtime.attach`, for a peer that has proven to be here (`near`). Raises Unavailable for others."""
    if not near():
        raise Unavailable("got the name of memory from a process that has not proven to be on this machine")
    return runtime.attach(name)


def proof(runtime: Runtime, name: list[int], whose: slice, own: list[int]) -> bytes:
    """The proof that this process, whose own memory has the name `own`, reads the memory that a peer names; b"" if it
    cannot, and for memory that was not made to be asked for."""
    try:
        memory = runtime.attach(name)
    except DpsError:
        return b""
    marked = len(memory) == NBYTES and memory[: len(MARK)].tobytes() == MARK
    return _digest(memory[whose].tobytes(), own) if marked else b""


def _digest(word: bytes, reader: list[int]) -> bytes:
    return blake2s(str(list(reader)).encode(), key=word, digest_size=16).digest()
