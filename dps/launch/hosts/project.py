"""Copies a project's folder to another machine: packs it here, in pieces, and unpacks it there."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator

from dps.errors import ConfigError

LEFT_OUT = (".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")
"""Names of folders that are not copied."""
LARGEST = 256 << 20
"""Bytes of a project that is copied."""
PIECE = 256 << 10


def pack(folder: str, archive: str, besides: str = "") -> None:
    """Write the files of a folder, but for `besides` and what is LEFT_OUT, into an archive. Raises ConfigError if they
    are more than LARGEST."""
    total, without = 0, os.path.realpath(besides) if besides else ""

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal total
        name = os.path.basename(entry.name)
        if entry.isdir() and (name in LEFT_OUT or os.path.realpath(os.path.join(folder, entry.name)) == without):
            return None
        if not (entry.isfile() or entry.isdir() or entry.issym()):
            return None
        total += entry.size
        if total > LARGEST:
            raise ConfigError(
                f"sync: {folder} has more than {LARGEST >> 20} MB; wanted a project's own files; keep data elsewhere, "
                "or leave sync out and use a folder that all hosts see"
            )
        return entry

    with tarfile.open(archive, "w:gz", compresslevel=1) as made:
        made.add(folder, ".", filter=wanted)


def pieces(archive: str) -> Iterator[tuple[bytes, bool]]:
    """The bytes of an archive in pieces, and whether each is the last."""
    left = os.path.getsize(archive)
    with open(archive, "rb") as file:
        while data := file.read(PIECE):
            left -= len(data)
            yield data, left == 0


class ProjectUnpacker:
    """Takes the pieces of an archive, and unpacks it into a new folder, `path`."""

    def __init__(self, path: str) -> None:
        self.path, self._archive = path, f"{path}.tar.gz"
        self._file = open(self._archive, "wb")  # noqa: SIM115

    def add(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> None:
        """Unpack. Nothing outside of the folder is written."""
        self._file.close()
        shutil.rmtree(self.path, ignore_errors=True)
        os.mkdir(self.path, 0o700)
        with tarfile.open(self._archive) as archive:
            archive.extractall(self.path, filter="tar")
        os.unlink(self._archive)
