"""What docs/api documents can be imported as it is written there, whatever was imported before.

Each statement runs in an interpreter that has imported nothing of dps: a child of one that has loaded libraries alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.rules

ROOT = Path(__file__).parents[1]
API = ROOT / "docs" / "api"

FORKS = """
import os, sys, traceback
import numpy, numba
try:
    import torch
except ImportError:
    pass
for statement in sys.stdin.read().split("\\0"):
    if not (child := os.fork()):
        try:
            assert not [name for name in sys.modules if name.startswith("dps")]
            exec(statement, {})
        except ImportError as error:  # of an adapter, whose library is not installed
            extra = type(error).__name__ == "MissingExtra" or (error.name or "dps").partition(".")[0] != "dps"
            if not extra:
                print(statement, traceback.format_exc(limit=0), flush=True)
            os._exit(not extra)
        except BaseException:
            print(statement, traceback.format_exc(limit=0), flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""


def documented() -> Iterator[str]:
    """The names that the pages document: those that mkdocs shows, also by their headings, and those in the text."""
    for page in sorted(API.glob("*.md")):
        text = page.read_text()
        yield from re.findall(r"`(dps(?:\.\w+)+)`", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))
        for section in re.split(r"^## ", text, flags=re.M):
            under = re.match(r"dps\.\w+", section)  # as "dps.optim: schedules"
            for name, options in re.findall(r"^::: (\S+)\n((?:[ ]+.*\n)*)", section, re.M):
                yield name
                of_a_class = name.rpartition(".")[2][0].isupper()
                members = None if of_a_class else re.search(r"members: \[(\w.*)\]", options)
                shown = members[1].split(", ") if members else [name.rpartition(".")[2]]
                yield from (f"{under[0]}.{each}" for each in shown if under)
                yield from (f"{name}.{each}" for each in shown if members)
                yield from re.findall(r"heading: (dps\.[\w.]+)", options)


def statements(names: set[str]) -> Iterator[str]:
    """Imports of each module first, of its names in both forms, and by way of `dps`."""
    members = defaultdict[str, list[str]](list)
    for owner, _, name in sorted(name.rpartition(".") for name in names):
        members[owner].append(name)
    deep = [owner for owner in members if owner.count(".") > 1]
    yield "\n".join(f"from {owner} import {', '.join(members[owner])}" for owner in deep)
    for owner in sorted(members.keys() - set(deep)):
        used = "\n".join(f"{owner}.{name}" for name in members[owner])
        if owner in ALIASES:
            yield f"from dps import {owner[4:]}\nimport dps\n{used}"
        else:
            yield f"import {owner}\n{used}"
            yield f"from {owner} import {', '.join(members[owner])}"


ALIASES = {"dps.placement", "dps.partition", "dps.sim"}
"""Names of modules of other rooms, which `dps` knows: they cannot be imported as modules."""


def failed(wanted: list[str]) -> str:
    """What the statements that do not run say."""
    asked = "\0".join(wanted)
    run = subprocess.run(
        [sys.executable, "-c", FORKS], input=asked, capture_output=True, text=True, check=True, cwd=ROOT
    )
    return run.stdout


def test_every_name_of_the_api_pages_can_be_imported_as_it_is_written() -> None:
    names = set(documented())
    assert {"dps.optim.SGD", "dps.compress.TopK", "dps.Session", "dps.optim.MovingAverage", "dps.sim.Kill"} <= names
    assert not failed(list(statements(names)))


def test_a_statement_that_does_not_run_is_told() -> None:
    told = failed(["import dps.optim", "from dps.compress import TopKK"])
    assert told.startswith("from dps.compress import TopKK") and "ImportError" in told
