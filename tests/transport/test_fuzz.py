"""Random changes of recorded messages: what decodes them returns messages or raises ProtocolError, and nothing else.

`DPS_FUZZ_S` says for how many seconds, and `DPS_FUZZ_SEED` with which seed; `make fuzz` runs it for an hour, each time
with another seed. `make test` takes 3 s of it, `make examples` 30 s. What fails is printed, and belongs into `FOUND`.
"""

from __future__ import annotations

import ast
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from dps.errors import DpsError, ProtocolError
from dps.training.update_modes import from_wire
from dps.transport.dtypes import dtype_of
from dps.transport.sockets.datagrams import _parts
from dps.transport.sockets.frames import MAX_FRAMES
from dps.transport.wire import BUNDLE, Envelope, decode, peek, unbundle
from dps.variables.plan import Plan
from tests.transport.mutating import datagrams, mutated, recorded, recorded_plan

BUDGET_S = float(os.environ.get("DPS_FUZZ_S", "3"))
SEED = int(os.environ.get("DPS_FUZZ_SEED", "1"))
SLOW_S = 5.0
"""No message of some KB may take so long."""
ROOT = Path(__file__).parents[2]

FOUND = [
    b"\x91" * 20_000, b"\x98\x01\x3e" + b"\x91" * 2000, b"\x98" + b"\xdd\xff\xff\xff\xff" * 8, bytes([BUNDLE]),
    b"\xc0\x01", bytes([BUNDLE]) + b"\xff\xff" + bytes(100), b"\x98\x01\x0a\x07\xa1w\x03\xa2ps\xd6\xff\0\0\0\0\x90",
    b"\xde\xff\xff",
]  # fmt: skip
"""Headers that were or could have been too much for somebody."""


def take(header: bytes, frames: list[bytes]) -> None:
    """As a node takes a delivery apart."""
    views = [memoryview(frame) for frame in frames]
    try:
        for each, own in unbundle(header, views):
            found = decode(each, own)
            assert isinstance(found, Envelope) and type(found.request) is int and type(found.actor) is str
    except ProtocolError:
        pass
    known = peek(header)
    assert known is None or (type(known[0]) is int and type(known[1]) is str)


def plan(data: bytes) -> None:
    """As the chief and a ps read the plan of a message."""
    try:
        read = msgpack.unpackb(data, strict_map_key=False)
    except Exception:  # then the header was refused
        return
    if isinstance(read, dict):
        try:
            Plan.from_wire(read)
        except DpsError:
            pass
        try:
            from_wire(read)
        except DpsError:
            pass


def datagram(data: bytes) -> None:
    parts = _parts(memoryview(data), len(data))
    assert parts is None or (parts[0] and len(parts) <= MAX_FRAMES)


def checked(call: Callable[[], None], data: object) -> None:
    began = time.monotonic()
    try:
        call()
    except BaseException:
        print(f"seed {SEED}: {data!r:.4000}")
        raise
    assert time.monotonic() - began < SLOW_S, f"seed {SEED}: {data!r:.4000}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # numpy, of dtypes that it knows and dps refuses
@pytest.mark.parametrize(
    ("budget_s", "more"),
    [
        pytest.param(BUDGET_S, 0, id="short"),
        pytest.param(30.0, 1, id="long", marks=[pytest.mark.nightly, pytest.mark.timeout(120)]),
    ],
)
def test_changed_messages_are_decoded_or_refused(budget_s: float, more: int) -> None:
    seed = SEED + more
    rng, found, one_plan = random.Random(seed), recorded(), recorded_plan()
    headers = [header for header, _ in found]
    end, count = time.monotonic() + budget_s, 0
    while time.monotonic() < end:
        header, frames = rng.choice(found)
        changed = mutated(rng, header, headers)
        some = frames if rng.random() < 0.8 else [mutated(rng, frame, headers) for frame in frames]
        checked(lambda changed=changed, some=some: take(changed, some), (changed, some))  # type: ignore[misc]
        if count % 4 == 0:
            data = mutated(rng, one_plan, headers)
            checked(lambda data=data: plan(data), data)  # type: ignore[misc]
            whole = datagrams(rng, found)
            assert _parts(memoryview(whole), len(whole)) is not None
            data = mutated(rng, whole, headers)
            checked(lambda data=data: datagram(data), data)  # type: ignore[misc]
        count += 1
    print(f"seed {seed}: {count} messages")
    assert count > 100


@pytest.mark.parametrize("header", FOUND, ids=range(len(FOUND)))
def test_what_was_found_once_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        _ = [decode(each, own) for each, own in unbundle(header, [])]
    take(header, [])


# -- no way to code -----------------------------------------------------------------------------------------------

RUNS_CODE = {"eval", "exec", "compile", "__import__", "import_module", "exec_module", "run_path", "run_module"}
UNPICKLES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
NAMED = {
    "dps/process/functions.py": {"cloudpickle"},  # writes a notebook's function for processes of its own LocalCluster
    "dps/launch/clusters/worker.py": {"cloudpickle"},  # reads it, from the private pipe of its parent process
    "dps/monitor/doctor.py": {"cloudpickle"},  # shows its version
}
"""The files that name what unpickles, as an import by name would (decision 46)."""
ALLOWED = {
    "dps/process/record.py": "makes a constructor of the fields that a class in dps declares",
    "dps/__init__.py": "the names that dps exports",
    "dps/torch/__init__.py": "the extra torch",
    "dps/kernels/jit.py": "kernels that dps writes around the rule of an optimizer class, and around statements in dps",
    "dps/process/lazy_imports.py": "the names that its packages export",
    "dps/role.py": "modules of dps, ahead of their use",
    "dps/cli.py": "modules of dps, and the extra shtab",
    "dps/hooks/event_file.py": "the extra tensorboardX",
    "dps/checkpoint/shard.py": "the extra ml_dtypes",
    "dps/cluster/resolve.py": "the engine that a flag names, of a list in dps",
    "dps/process/functions.py": "the programs and functions that flags name; with the extra cloudpickle it only writes",
    "dps/launch/__init__.py": "the names that it exports",
    "dps/launch/engines/__init__.py": "the engine that a flag or a run names, of a list in dps",
    "dps/launch/engines/ray.py": "the extra ray",
    "dps/launch/hosts/ray_actors.py": "the extra ray",
    "dps/launch/programs/program.py": "the program that a flag names",
    "dps/launch/commands/runs.py": "the extra pyyaml",
    "dps/launch/experiment/nodes.py": "the extra pyyaml",
    "dps/launch/clusters/progress.py": "the extra tqdm",
    "dps/launch/runs/usage.py": "the extra nvidia-ml-py",
    "dps/launch/runs/table.py": "the extra rich",
    "dps/launch/clusters/worker.py": "what the program that started this process gave it through a private pipe",
}
"""The files that may run code by a name, and which. No name comes from a message."""


def calls(tree: ast.AST) -> set[str]:
    """What of RUNS_CODE a file calls, as a name or as a function of a module; methods of other things are others."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            named = node.func
            owner = getattr(getattr(named, "value", None), "id", "")
            if isinstance(named, ast.Name) and named.id in RUNS_CODE:
                found.add(named.id)
            elif isinstance(named, ast.Attribute) and named.attr in RUNS_CODE - {"compile"} and owner != "re":
                found.add(named.attr)
    return found


def names_of_picklers(tree: ast.AST) -> set[str]:
    """What of UNPICKLES stands in a file as a text, as import_module and __import__ take it under any name."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {text.partition(".")[0] for text in texts} & UNPICKLES


@pytest.mark.parametrize(
    "line", ['importlib.import_module("pickle")', 'load("cloudpickle").loads(b"")', '__import__("dill._dill")']
)
def test_an_import_by_name_of_what_unpickles_is_seen(line: str) -> None:
    assert names_of_picklers(ast.parse(line))


def imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.slow
def test_a_message_has_no_way_to_code() -> None:
    there, named = set(), {}
    for path in sorted((ROOT / "dps").rglob("*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        tree = ast.parse(text)
        assert not imports(tree) & UNPICKLES, f"{name} unpickles"
        assert "allow_pickle=True" not in text, f"{name} has numpy unpickle"
        if calls(tree):
            there.add(name)
        if by_name := names_of_picklers(tree):
            named[name] = by_name
    assert there == set(ALLOWED), "see ALLOWED"
    assert named == NAMED, "see NAMED"
    readers = {path.name for path in (ROOT / "dps").rglob("*.py") if 'cloudpickle").loads' in path.read_text()}
    assert readers == {"worker.py"}


def test_a_dtype_that_numpy_reads_as_python_is_refused() -> None:
    with pytest.raises(TypeError, match="not understood"):
        dtype_of(", ,4f")
