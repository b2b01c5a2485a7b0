"""What dps starts itself on one machine: other accounts cannot reach it, without any setting."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.transport import private_folders as private

CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


def folder_of(address: str) -> Path:
    assert address.startswith("ipc://"), address
    return Path(address.removeprefix("ipc://")).parent


def test_a_local_server_talks_in_a_folder_that_only_its_user_may_enter() -> None:
    with dps.Server.create_local_server() as server:
        folder = folder_of(server.target)
        assert folder_of(server.address) == folder and stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
        with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(1.0)) as session:
            session.push({"w": np.ones(3)})
            with dps.Session(server.target) as reader:  # a node of its own, in the same folder
                assert folder_of(reader._server.address) == folder and reader.pull()["w"][0] == -1
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another account")
def test_another_account_gets_no_connection() -> None:
    with dps.Server.create_local_server() as server:
        address = server.target.removeprefix("ipc://")
        own = subprocess.run([sys.executable, "-c", CONNECT, address], capture_output=True, text=True, check=False)
        assert own.returncode == 0, own.stderr
        python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
        other = subprocess.run(
            [python, "-c", CONNECT, address], capture_output=True, text=True, check=False, user=65534, cwd="/"
        )
        assert other.returncode != 0 and "PermissionError" in other.stderr


def test_a_folder_whose_path_is_too_long_for_sockets_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("x" * 90)))
    made = private.private_folder()
    try:
        assert Path(made).parent.parent == Path("/tmp")
        Path(made, "left").write_text("by a process that was killed")
    finally:
        private.remove(made)
    assert not Path(made).exists()
    monkeypatch.setattr(os, "mkdir", lambda *args: (_ for _ in ()).throw(PermissionError()))
    with pytest.raises(ConfigError, match="set TMPDIR to a folder that only you may write"):
        private.private_folder()


def test_a_folder_in_which_others_may_rename_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folders have long paths
    try:
        below = shared / "b"
        below.mkdir()
        for folder in (shared, below):
            monkeypatch.setenv("TMPDIR", str(folder))
            for mode, used in ((0o777, False), (0o775, False), (0o1777, True), (0o755, True)):
                shared.chmod(mode)
                made = Path(private.private_folder())
                assert (made.parent.parent == folder) == used, oct(mode)
                private.remove(str(made))
    finally:
        shutil.rmtree(shared)
