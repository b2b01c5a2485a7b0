"""A chief and a ps whose hosts have a checkpoint folder each under one path: the error says what each of them sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.checkpoint import folder as folder_of
from dps.ps import server
from dps.ps.serving import saving
from tests.in_process import cluster


def session(of: dps.Server, folder: Path) -> dps.Session:
    params = {"w": np.zeros(4, np.float32)}
    return dps.Session(of, params, optimizer=dps.optim.SGD(1.0), checkpoint_dir=str(folder), hooks=[], timeout=10.0)


def test_a_shard_that_the_chief_does_not_see_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = saving.write_runs

    def on_its_host(storage: Any, folder: str, *about: Any) -> Any:
        return write(storage, folder.replace("/chief/", "/ps/"), *about)

    monkeypatch.setattr(saving, "write_runs", on_its_host)
    with (
        cluster(1, 1) as (worker,),
        pytest.raises(dps.CheckpointError, match="shard 0 of 1 is not here, at the chief,.*has to be one folder"),
        session(worker, tmp_path / "chief"),
    ):
        pass
    assert list((tmp_path / "ps").rglob("shard-*")) and not list((tmp_path / "chief").rglob("shard-*"))


def test_a_ps_that_does_not_see_what_is_to_be_restored_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(1, 1) as (worker,), session(worker, tmp_path / "chief") as s:
        s.save()

    def on_its_host(storage: Any, folder: str, *about: Any) -> Any:
        return folder_of.load_told(storage, folder.removesuffix("chief") + "ps", *about)

    monkeypatch.setattr(server, "load_told", on_its_host)
    with (
        cluster(1, 1) as (worker,),
        pytest.raises(dps.DpsError, match=r"the chief has \S+ in \S+, ps:0 has not: .*has to be one folder"),
        session(worker, tmp_path / "chief"),
    ):
        pass
