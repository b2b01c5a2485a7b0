"""What another account of this machine can see, for tests that run as root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

NOBODY = 65534


def seen_by_another(*paths: Path) -> list[str]:
    """The names of all files and folders below these that another account can read. Skips the test where this process
    cannot be another account."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another account")
    names = [str(path) for path in paths]
    command = ["find", *names, "-readable", "-print"]
    found = subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False, cwd="/"
    )
    return found.stdout.decode().splitlines()


def modes(*folders: Path) -> dict[str, str]:
    """The modes of all files and folders from these on that are not 700 and 600, by path."""
    found = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    wanted = {path: 0o700 if path.is_dir() else 0o600 for path in found}
    return {str(path): f"{mode:o}" for path in found if (mode := path.lstat().st_mode & 0o777) != wanted[path]}
