"""Shared memory between processes of one user on one machine: sealed memfds that peers open through /proc.

Only its owner can write to such memory, and nobody can change its size. So a peer can neither make this process read
beyond the end nor change the contents. There is no file: the memory is freed when its last user has ended, even by a
kill.
"""

from __future__ import annotations

import os
import stat
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dps.errors import DpsError, ProtocolError, Unavailable
from dps.process.telemetry import log
from dps.transport.endpoint import Memory, Runtime
from dps.transport.wire import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
else:
    Bytes = np.ndarray

_ADD_SEALS, _GET_SEALS = 1033, 1034
_NO_MORE_SEALS, _NO_SHRINKING, _NO_GROWING, _ONLY_THE_OWNER_WRITES = 1, 2, 4, 16
_POPULATE_WRITE = 23


class SharedMemory:
    """`nbytes` zero bytes that this process owns. A peer needs `name` to `attach` them."""

    def __init__(self, nbytes: int) -> None:
        """Allocates all memory at once. Raises Unavailable if the system has no such memory, or not enough."""
        if not hasattr(os, "memfd_create"):
            raise Unavailable(f"{sys.platform} has no memory that can be shared without a name; sockets are used")
        try:
            fd = os.memfd_create("dps", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise Unavailable(f"no memory can be shared: {error.strerror}; sockets are used") from None
        try:
            self.array = _taken(fd, max(1, nbytes))[:nbytes]
            _seal(fd)
            self.name = [os.getpid(), fd, os.fstat(fd).st_ino, nbytes]
        except OSError as error:
            os.close(fd)
            raise Unavailable(
                f"cannot get {nbytes} bytes of shared memory: {error.strerror}; free some memory"
            ) from None
        weakref.finalize(self, os.close, fd)


def _taken(fd: int, nbytes: int) -> Bytes:
    """The memory behind a descriptor, fully allocated, in huge pages if the system grants them."""
    import mmap

    os.ftruncate(fd, nbytes)
    memory = mmap.mmap(fd, nbytes)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(_POPULATE_WRITE)
    except (OSError, ValueError, AttributeError):
        pass
    os.posix_fallocate(fd, 0, nbytes)
    return np.frombuffer(memory, np.uint8)


def _seal(fd: int) -> None:
    import fcntl

    sizes = _NO_SHRINKING | _NO_GROWING
    try:
        fcntl.fcntl(fd, _ADD_SEALS, sizes | _ONLY_THE_OWNER_WRITES | _NO_MORE_SEALS)
    except OSError:  # Linux before 5.1
        fcntl.fcntl(fd, _ADD_SEALS, sizes | _NO_MORE_SEALS)


def attach(name: object) -> Bytes:
    """The memory that another process (or this one) calls `name`, read-only.

    Raises Unavailable if the memory is gone or belongs to another machine, network namespace or user, and
    ProtocolError if the name is malformed or the memory could change its size.
    """
    import fcntl
    import mmap

    if not (isinstance(name, list) and len(name) == 4 and all(type(part) is int and part >= 0 for part in name)):
        raise ProtocolError(f"{name!r:.100} does not name shared memory; wanted four whole numbers")
    pid, number, inode, nbytes = name
    try:
        if os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino:
            raise Unavailable(f"process {pid} is in another network namespace; sockets are used, as between machines")
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise Unavailable(f"the memory of process {pid} cannot be reached from here: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if found.st_ino != inode or found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            raise Unavailable(f"process {pid} here is not the one whose memory was meant, or not of this user")
        sealed = fcntl.fcntl(fd, _GET_SEALS) & (_NO_SHRINKING | _NO_GROWING) == _NO_SHRINKING | _NO_GROWING
        if not sealed or found.st_size != max(1, nbytes):
            raise ProtocolError(f"got memory of {found.st_size} bytes of process {pid}, wanted {nbytes}, sealed")
        memory = mmap.mmap(fd, max(1, nbytes), mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as error:
        raise Unavailable(f"the memory of process {pid} cannot be used: {error.strerror}") from None
    finally:
        os.close(fd)
    return np.frombuffer(memory, np.uint8)[:nbytes]


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


def attach_proven(runtime: Runtime, name: list[int], near: Callable[[], bool]) -> Array:
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
