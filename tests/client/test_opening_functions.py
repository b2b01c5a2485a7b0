"""What a program has done when a session opens: first values that are made where they are needed, and ready checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError, HookError
from tests.hooks.loops import EXACT
from tests.in_process import cluster, on_all

PARAMS = {"hidden": {"w": np.zeros(2), "b": np.zeros(1)}}


def opened(server: Any, **settings: Any) -> dps.Session:
    return dps.Session(server, PARAMS, optimizer=dps.optim.SGD(1.0), **settings)


def test_first_values_are_made_once_in_one_session_and_all_see_them() -> None:
    made: list[int] = []

    def work(server: dps.Server) -> Any:
        def init(params: Any) -> Any:
            assert params is PARAMS
            made.append(server.task)
            return {"hidden": {"w": np.array([3.0, 4.0])}}

        with opened(server, init_fn=init) as session:
            return session.pull()["hidden"]

    with cluster(ps=2, workers=3) as servers:
        for found in on_all(servers, work):
            assert found["w"].tolist() == [3, 4] and found["b"].tolist() == [0]
    assert len(made) == 1


def test_a_run_that_is_restored_has_no_use_for_first_values(tmp_path: Path) -> None:
    def init(params: Any) -> Any:
        calls.append(1)
        return {"hidden": {"w": np.full(2, 7.0), "b": np.ones(1)}}

    for calls, wanted in (([], 1), ([], 0)):
        with cluster() as (server,), opened(server, init_fn=init, checkpoint_dir=str(tmp_path)) as session:
            assert session.pull()["hidden"]["w"].tolist() == [7, 7]
        assert len(calls) == wanted


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "init_fn returned None, wanted first values in the nesting of params"),
        ({"hidden": {"v": np.ones(2)}}, "init_fn returned 'hidden/v', which is no variable"),
        ({"hidden": {"w": np.ones(3)}}, "init_fn returned float64 (3,) for hidden/w, the variable is float64 (2,)"),
        ({"hidden": {"w": np.ones(2, np.float32)}}, "init_fn returned float32 (2,) for hidden/w"),
        ({"hidden": {"w": "text"}}, "init_fn returned values that cannot be used"),
        (OSError("no such\nfile"), "init_fn raised OSError: no such file"),
    ],
)
def test_what_is_no_first_value_is_told_in_one_line_and_the_next_session_brings_its_own(made: Any, words: str) -> None:
    def init(params: Any) -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    with cluster(workers=2) as servers:
        with pytest.raises(HookError) as told:
            opened(servers[0], init_fn=init)
        assert f"worker:0: {words}" in str(told.value) and "\n" not in str(told.value)
        with opened(servers[1]) as session:
            assert session.pull()["hidden"]["w"].tolist() == [0, 0]


class Notes(dps.Hook):
    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def after_create_session(self, session: Any) -> None:
        self.notes.append("hook")


def test_local_init_then_ready_then_hooks_and_local_init_again_after_a_rollback(tmp_path: Path) -> None:
    notes: list[str] = []

    def ready(session: dps.Session) -> Any:
        notes.append("ready?")
        return True

    functions: dict[str, Any] = {"local_init_fn": lambda s: notes.append(f"local {s.global_step}"), "ready_fn": ready}
    settings: dict[str, Any] = {"hooks": [Notes(notes)], "checkpoint_dir": str(tmp_path), **functions}
    with cluster() as (server,), opened(server, **settings) as session:
        assert notes == ["local 0", "ready?", "hook"]
        session.push({"hidden": {"w": np.ones(2)}})
        session.restore()
    assert notes[3:] == ["local 0"]


@pytest.mark.parametrize("answers", [[False, False, True], ["w", ""], [["w", "b"], []], [("w",), ()]])
def test_a_session_opens_when_it_is_ready(answers: list[Any]) -> None:
    left = list(answers)

    def work(server: Any) -> float:
        with opened(server, ready_fn=lambda session: left.pop(0)) as session:
            now: float = session.runtime.now()
            return now

    run = dps.simulate(work, workers=1, **EXACT)
    assert run.errors == {} and left == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (False, "ready_fn says that the session is not ready"),
        ("the table is empty", "ready_fn: the table is empty"),
        (["a", "b"], "ready_fn says that these are not ready: a, b"),
    ],
)
def test_a_session_that_is_never_ready_says_what_is_missing(answer: Any, words: str) -> None:
    def work(server: Any) -> None:
        opened(server, ready_fn=lambda session: answer, timeout=7)

    told = dps.simulate(work, workers=1, **EXACT).errors["worker:0"]
    assert "DeadlineExceeded" in told and f"worker:0 waited 7 s: {words}" in told and "\n" not in told


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"init_fn": 3}, "init_fn: got 3, wanted a function"),
        ({"local_init_fn": "f"}, "local_init_fn: got 'f', wanted a function"),
        ({"ready_fn": []}, r"ready_fn: got \[\], wanted a function"),
        ({"params": None, "init_fn": dict}, "init_fn: a session without params is a reader"),
    ],
)
def test_what_is_no_function_is_told_before_anybody_is_asked(settings: Any, words: str) -> None:
    params = settings.pop("params", PARAMS)
    with pytest.raises(ConfigError, match=words) as told:
        dps.Session("127.0.0.1:1", params, optimizer=dps.optim.SGD(1.0), **settings)
    assert "\n" not in str(told.value)


def test_a_ready_check_that_says_nothing_is_told_what_to_return() -> None:
    with cluster() as (server,), pytest.raises(ConfigError, match="ready_fn returned None, wanted True, or what is"):
        opened(server, ready_fn=lambda session: None)
