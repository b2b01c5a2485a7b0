"""Damages files of a disk in memory, as a failing disk may."""

from __future__ import annotations

import posixpath

from dps.checkpoint.memory import MemoryStorage


def truncate(storage: MemoryStorage, path: str, n: int) -> None:
    """Cut a file to its first `n` bytes."""
    storage._files[posixpath.normpath(path)] = bytes(storage.read(path)[:n])


def corrupt(storage: MemoryStorage, path: str, offset: int) -> None:
    """Flip all bits of one byte."""
    data = bytearray(storage.read(path))
    data[offset] ^= 0xFF
    storage._files[posixpath.normpath(path)] = bytes(data)
