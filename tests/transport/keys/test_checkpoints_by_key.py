"""Where a chief writes checkpoints for sessions, by who may join its run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import dps
from dps.errors import CheckpointError
from dps.process import config

TRAINER = """
import sys
import numpy as np, dps
with dps.Server.from_env() as server, dps.Session(
    server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(1.0), timeout=30, checkpoint_dir=sys.argv[1]
) as session:
    session.push({"w": np.ones(3)})
    print("saved", session.save())
"""


@contextmanager
def run(**chief: object) -> Iterator[dps.Server]:
    """A chief with these settings and a ps; yields a worker."""
    with ExitStack() as stack:
        leads = stack.enter_context(dps.Server(None, "chief", 0, bind="127.0.0.1:0", ps=1, owned=True, **chief))  # type: ignore[arg-type]
        own = {"chief": leads.address, **{name: chief[name] for name in ("keys", "trusted_network") if name in chief}}
        stack.enter_context(dps.Server(None, "ps", 0, **own))  # type: ignore[arg-type]
        yield stack.enter_context(dps.Server(None, "worker", 0, **own))  # type: ignore[arg-type]
        leads.stop()  # first: it tells the others


def saves(server: dps.Server, folder: Path) -> str:
    optimizer, params = dps.optim.SGD(1.0), {"w": np.zeros(3)}
    with dps.Session(server, params, optimizer=optimizer, checkpoint_dir=folder, timeout=30) as session:
        return session.save()


def test_with_keys_of_others_the_chief_writes_only_below_the_folder_that_it_was_given(
    folder: str, tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    with run(keys=folder, checkpoint_root=tmp_path / "root") as server:
        with pytest.raises(CheckpointError, match=rf"asks for checkpoints in .*, which is not below {tmp_path}/root"):
            saves(server, tmp_path / "other")
        assert not (tmp_path / "other").exists()
        assert saves(server, tmp_path / "root" / "run") and (tmp_path / "root" / "run" / "journal.json").exists()


@pytest.mark.parametrize("others", ["keys", "trusted_network"])
def test_where_others_may_join_and_no_folder_was_given_nothing_is_written(
    folder: str, tmp_path: Path, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run(**{others: folder if others == "keys" else True}) as server:
        with pytest.raises(
            CheckpointError, match=r"others may join this run .* start it with --checkpoint-root FOLDER"
        ):
            saves(server, tmp_path / "other")
        assert not (tmp_path / "other").exists()
    monkeypatch.setattr(config.launched, "is_set", lambda: True)
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "output"))
    with run(**{others: folder if others == "keys" else True}) as server:
        with pytest.raises(
            CheckpointError, match=rf"not below {tmp_path}/output, .* \(under dps launch it is OUTPUT_DIR\)"
        ):
            saves(server, tmp_path / "other")
        assert saves(server, tmp_path / "output")


def test_where_nobody_else_may_join_every_folder_will_do_unless_a_root_was_given(tmp_path: Path) -> None:
    with run() as server:  # with this user's own keys
        assert saves(server, tmp_path / "any")
    with dps.Server.create_local_server() as server:
        assert saves(server, tmp_path / "other")
    with run(checkpoint_root=tmp_path / "root") as server, pytest.raises(CheckpointError, match="not below"):
        saves(server, tmp_path / "any")


def test_where_a_worker_hosts_the_chief_its_program_gives_the_folder(folder: str, tmp_path: Path) -> None:
    here = {"ps": [f"ipc://{tmp_path}/ps"], "worker": [f"ipc://{tmp_path}/{n}" for n in range(2)]}
    with ExitStack() as stack:
        host, other, ps = (
            stack.enter_context(dps.Server(here, job, task, keys=folder))
            for job, task in (("worker", 0), ("worker", 1), ("ps", 0))
        )
        early = threading.Thread(target=saves, args=(other, tmp_path / "run"))
        early.start()
        assert saves(host, tmp_path / "run") and ps
        early.join(30)
        assert not early.is_alive() and (tmp_path / "run" / "journal.json").exists()


@pytest.mark.slow
def test_dps_launch_with_keys_writes_below_output_dir_only(folder: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    environ = {**os.environ, "DPS_RUNS": str(tmp_path / "runs"), "OUTPUT_DIR": str(tmp_path / "output")}
    command = [sys.executable, "-m", "dps.cli", "launch", "--keys", folder, "train.py", "--"]

    def launched(*more: str) -> tuple[int, str]:
        done = subprocess.run(
            [*command, *more], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        return done.returncode, done.stdout + done.stderr

    code, said = launched(str(tmp_path / "output"))
    assert code == 0 and "saved step-" in said
    code, said = launched(str(tmp_path / "other"))
    assert code == 2 and f"not below {tmp_path}/output, the folder for checkpoints of this run" in said
    assert not (tmp_path / "other").exists()
    command[4:4] = ["--checkpoint-root", str(tmp_path)]
    code, said = launched(str(tmp_path / "other"))
    assert code == 0 and "saved step-" in said
