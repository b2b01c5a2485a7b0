"""Without its library an adapter says in one line which extra installs it."""

from __future__ import annotations

import subprocess
import sys

import dps


def without(library: str, *lines: str) -> subprocess.CompletedProcess[str]:
    """A process in which no import finds the library."""
    hides = [
        "import importlib.machinery, sys",
        "find = importlib.machinery.PathFinder.find_spec",
        f"hide = lambda name, *more: None if name.partition('.')[0] == {library!r} else find(name, *more)",
        "importlib.machinery.PathFinder.find_spec = hide",
    ]
    command = [sys.executable, "-c", "\n".join([*hides, *lines])]
    return subprocess.run(command, check=False, text=True, capture_output=True)


def test_each_import_of_dps_torch_names_the_extra() -> None:
    for line in ("import dps.torch", "import dps; dps.torch", "from dps import torch"):
        done = without("torch", line)
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 1 and last.startswith("dps.errors.MissingExtra: ") and "dps[torch]" in last


def test_all_other_names_of_dps_need_no_library() -> None:
    done = without("torch", "from dps import *", "import dps", "assert 'torch' in dir(dps)", "print('imported')")
    assert done.stdout == "imported\n", done.stderr
    assert "torch" not in dps.__all__
