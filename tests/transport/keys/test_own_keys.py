"""Tasks on 127.0.0.1 that nobody gave keys have those of their user: they find each other, and nobody else gets in."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

import dps
from dps import cli, role
from dps.errors import NotAuthenticated
from dps.task.node import network_flags
from dps.transport.keys import files as own_keys
from dps.transport.keys.keyring import read
from dps.transport.message import ROLES
from dps.transport.sockets.handshake import mechanism
from tests.in_process import cluster

WAIT_S = 10.0


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of the user that this test is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def worker(state: Path) -> Iterator[dps.Server]:
    with cluster(transport="tcp") as (server,):
        yield server


def test_keys_are_made_on_first_use_for_this_user_only(state: Path) -> None:
    made = [""] * 4

    def first(n: int) -> None:
        made[n] = own_keys.folder()

    threads = [threading.Thread(target=first, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path = state / "dps" / "keys"
    assert set(made) == {str(path)} and [each.name for each in path.parent.iterdir()] == ["keys"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(f.stat().st_mode) for f in path.glob("*.key")} == {0o600}
    assert set(read(str(path)).pairs) == set(ROLES)


def test_tasks_and_commands_of_one_user_find_each_other_without_any_setting(
    worker: dps.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mechanism(f"tcp://{worker.target}") == "CURVE"
    with dps.Session(worker, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(1.0)) as session:
        assert session.push({"w": np.ones(3)}).accepted
        with dps.Session(worker.target, timeout=WAIT_S) as client:
            assert client.pull()["w"][0] == -1
        assert cli.main(["status", worker.target]) == 0
        assert "run epoch 1" in capsys.readouterr().out


def test_another_user_gets_no_connection(worker: dps.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with keys of its own nor with a plain socket."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    with pytest.raises(NotAuthenticated, match=r"has another key than the chief of .*; if it was started with --keys"):
        dps.Session(worker.target, timeout=WAIT_S)
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(f"tcp://{worker.target}")
        plain.send_multipart([b"header", b"frame"])
        assert not plain.poll(200)


def test_a_folder_that_others_may_read_is_refused(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.chmod(own_keys.folder(), 0o750)
    assert role.main(["--job", "ps", "--chief", "127.0.0.1:1"]) == 5
    said = capsys.readouterr().err
    assert "so other accounts could use it; chmod 700" in said and said.count("\n") == 1


def test_without_a_state_folder_that_can_be_written_a_task_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")  # root may write where modes say no
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    for arguments in (["--job", "chief"], ["--job", "ps", "--chief", "127.0.0.1:1"]):
        assert role.main(arguments) == 2
        said = capsys.readouterr().err
        assert f"cannot make this user's own keys in {tmp_path}/file/dps/keys" in said and said.count("\n") == 1
        assert "XDG_STATE_HOME" in said and "--keys DIR" in said
    with dps.Server.create_local_server() as local:  # over sockets in a private folder: no keys are needed
        assert local.target.startswith("ipc://")


def test_on_a_trusted_network_sockets_stay_plain_and_a_task_without_the_flag_is_told(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dps.Server(None, "chief", 0, bind="127.0.0.1:0", trusted_network=True) as chief:
        assert mechanism(f"tcp://{chief.address}") == "NULL" and not state.exists()
        with dps.Server(None, "ps", 0, chief=chief.address, trusted_network=True) as ps:
            ps.wait_joined(ps.runtime.now() + WAIT_S)
        with pytest.raises(NotAuthenticated, match=r"give both the same, or --trusted-network"):
            dps.Session(chief.address, timeout=WAIT_S)


def test_commands_that_start_tasks_name_no_folder_that_every_task_finds(state: Path) -> None:
    with dps.Server(None, "chief", 0, bind="127.0.0.1:0") as chief:
        assert network_flags(chief._node) == ""


def test_inproc_and_ipc_need_no_keys(state: Path, tmp_path: Path) -> None:
    for address in ("inproc://own", f"ipc://{tmp_path}/own"):
        with dps.Server(None, "chief", 0, bind=address) as chief:
            assert chief._node.keys is None
    assert not state.exists()
