"""What a session tells of its loop's time: reading data, computing, moving values, waiting for others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ProtocolError
from dps.process.telemetry import TOLD_S
from dps.transport.current import runtime

PARAMS = {"w": np.zeros(4, np.float32)}
ONES = {"w": np.ones(4, np.float32)}
PAUSE_S = 0.03


@pytest.fixture
def session() -> Iterator[dps.Session]:
    with (
        dps.Server.create_local_server() as server,
        dps.Session(server, PARAMS, optimizer=dps.optim.SGD(0.1), timeout=20) as made,
    ):
        yield made


def pause(seconds: float = PAUSE_S) -> None:
    runtime().sleep(seconds)


def times(session: dps.Session) -> dict[str, Any]:
    """What the ps knows after a push that tells."""
    pause(1.1 * TOLD_S)
    session.push(ONES)
    found: dict[str, Any] = session.stats()["ps:0"]["sessions"]["worker:0"]["times"]
    return found


def lasting(count: int = 3) -> Iterator[np.ndarray[Any, Any]]:
    for _ in range(count):
        pause()
        yield np.ones(4, np.float32)


SOURCES: dict[str, Callable[[dps.Session], Any]] = {
    "a dataset": lambda session: dps.data.from_generator(lasting),
    "a dataset in batches, made ahead": lambda session: dps.data.from_generator(lasting).batch(1).prefetch(1),
    "any iterable": lambda session: session.reading(lasting()),
    "a dataset, said to be read": lambda session: session.reading(dps.data.from_generator(lasting)),
    "files whose examples are datasets": lambda session: dps.data.from_files(
        ["x"], lambda path: dps.data.from_generator(lasting)
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_reading_is_what_iterating_takes_and_computing_the_rest(session: dps.Session, source: str) -> None:
    before = times(session)
    for _ in SOURCES[source](session):
        pause(2 * PAUSE_S)
        session.push(ONES)
    after = times(session)
    read, computed = after["read_s"] - before["read_s"], after["computed_s"] - before["computed_s"]
    ahead = 2 * PAUSE_S if "ahead" in source else 0.0  # two were made while the loop computed
    assert 3 * PAUSE_S - ahead - 0.01 <= read < 3 * PAUSE_S + 0.5
    assert 6 * PAUSE_S + TOLD_S - 0.01 <= computed < 6 * PAUSE_S + TOLD_S + 0.5
    assert after["steps"] == before["steps"] + 4


def test_an_iterable_without_a_dataset_is_computing(session: dps.Session) -> None:
    before = times(session)
    for _ in lasting():
        session.push(ONES)
    after = times(session)
    assert after["read_s"] == before["read_s"] and after["computed_s"] - before["computed_s"] >= 3 * PAUSE_S


def test_what_a_background_thread_reads_is_not_the_loops(session: dps.Session) -> None:
    before, done = times(session), threading.Event()

    def read() -> None:
        list(dps.data.from_generator(lasting))
        done.set()

    threading.Thread(target=read).start()
    done.wait()
    assert times(session)["read_s"] == before["read_s"]


def test_a_hook_is_computing_and_not_moving(session: dps.Session) -> None:
    leads = list[bool]()

    class Slow(dps.Hook):
        def before_run(self, session: Any) -> None:
            pause()

        def after_run(self, session: Any, push: dps.Push, loss: Any) -> None:
            pause()
            leads.append(session.is_chief)  # a call of the session inside of another one

    before = times(session)
    session._hooks.hooks.append(Slow())
    for _ in range(3):
        session.push(ONES)
    after = times(session)
    assert after["computed_s"] - before["computed_s"] >= 6 * PAUSE_S and leads[:3] == [True] * 3


def test_all_together_are_the_time_since_the_session_joined(session: dps.Session) -> None:
    before, began = times(session), runtime().now()
    for _ in range(5):
        session.pull()
        pause()
        session.step(ONES)
    after, took = times(session), runtime().now() - began
    total = sum(after[kind] - before[kind] for kind in ("read_s", "computed_s", "moved_s", "waited_s"))
    assert 0.5 * took <= total <= took + 0.5
    assert after["moved_s"] > before["moved_s"] and after["waited_s"] == 0.0


def test_a_session_of_its_own_is_shown_and_no_other() -> None:
    with (
        dps.Server.create_local_server() as server,
        dps.Session(server, PARAMS, optimizer=dps.optim.SGD(0.1), timeout=20) as session,
        dps.Session(server.target, timeout=20) as other,
    ):
        assert times(session)["computed_s"] > 0
        assert "worker:0" not in other.stats()["ps:0"]["sessions"]


def test_pushes_tell_it_once_in_50_ms(session: dps.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[Any]()
    take = type(session._turns.times).take_told
    monkeypatch.setattr(type(session._turns.times), "take_told", lambda times: told.append(1) or take(times))
    began = runtime().now()
    for _ in range(50):
        session.push(ONES)
        session.step(ONES)
    assert len(told) <= 1 + (runtime().now() - began) / TOLD_S


def push_wrong_times(server: dps.Server, told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with dps.Session(server, PARAMS, optimizer=dps.optim.SGD(0.1), timeout=20) as session:
        before = times(session)
        monkeypatch.setattr(type(session._turns.times), "take_told", lambda times: told)
        pause(1.1 * TOLD_S)
        try:
            session.push(ONES)
        finally:
            found = session.stats()["ps:0"]
            assert found["sessions"]["worker:0"]["times"] == before and found["step"] == 1


@pytest.mark.parametrize("told", [[float("nan"), 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0], ["x"] * 4])
def test_a_push_with_times_that_are_none_is_refused_and_not_applied(
    told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        dps.Server.create_local_server() as server,
        pytest.raises(ProtocolError, match="four numbers of seconds"),
    ):
        push_wrong_times(server, told, monkeypatch)
