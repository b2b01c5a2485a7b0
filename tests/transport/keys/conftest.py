"""Folders of keys, and endpoints that use them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dps.transport.endpoint import Endpoint
from dps.transport.keys import files as key_files
from dps.transport.keys import keyring as keys
from dps.transport.keys import zap
from dps.transport.keys.keyring import credentials
from dps.transport.runtime import RealRuntime
from dps.transport.sockets import handshake

Make = Callable[..., Endpoint]
LATE_S = 0.5


@pytest.fixture(scope="module")
def made_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made") / "keys"
    key_files.new(str(made))
    return made


@pytest.fixture
def folder(made_keys: Path, tmp_path: Path) -> str:
    """A folder of keys of the test's own."""
    return str(shutil.copytree(made_keys, tmp_path / "keys"))


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes endpoints with the keys of a role in a folder, "" for none."""
    monkeypatch.setattr(zap, "LOOK_S", 0.05)
    monkeypatch.setattr(keys, "LATE_S", LATE_S)
    monkeypatch.setattr(handshake, "AGAIN_S", 0.1)
    runtime = RealRuntime()
    made: list[Endpoint] = []

    def endpoint(folder: str, role: str, bind: str | None = None) -> Endpoint:
        made.append(runtime.endpoint(bind, credentials(folder, role) if folder else None))
        return made[-1]

    yield endpoint
    for each in made:
        each.close(0.0)
    runtime._at_exit()
