"""A small filesystem for the checkpoints of a run, which can be filled up and emptied again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

SIZE = 48 << 20
BLOCK = 1 << 20


class SmallDisk:
    """A tmpfs of its own at `folder`, which is made. Raises OSError where this user may not mount one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        if why := _mount(folder):
            folder.rmdir()
            raise OSError(why)
        self.path = folder / "checkpoints"
        self.path.mkdir()
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Take all space that is left."""
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for size in (BLOCK, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def empty(self) -> None:
        """Give the space back."""
        self._filler.unlink(missing_ok=True)

    def remove(self) -> None:
        """Unmount it, with all that is on it."""
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def _mount(folder: Path) -> str:
    """Mount it; "" when that is done, else the reason why it cannot be."""
    if os.geteuid() != 0:
        return "needs root, to mount a small tmpfs"
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "dps-chaos", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        return f"no tmpfs: {error}"
    return "" if made.returncode == 0 else f"no tmpfs: {' '.join(made.stderr.split())}"


def why_none() -> str:
    """Why there can be no small disk here; "" when there can be one."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            SmallDisk(Path(folder) / "tried").remove()
        except OSError as error:
            return str(error)
    return ""
