"""A session serves one thread at a time: a second one that comes meanwhile is told so, one that comes later is not."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dps
from tests.in_process import cluster

ONES = {"w": np.ones(2)}


class Standing(dps.Hook):
    """Holds up the thread that pushes, inside of its push."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()

    def after_run(self, session: dps.Session, push: dps.Push, loss: Any) -> None:
        assert session.pull()["w"][0] < 0  # a hook may call its session, in the same thread
        self.inside.set()
        assert self.go_on.wait(60)


@pytest.fixture
def opened() -> Iterator[tuple[dps.Session, Standing]]:
    hook = Standing()
    with dps.Server.create_local_server() as server:
        session = dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), hooks=[hook])
        yield session, hook
        hook.go_on.set()
        session.close()


def pushing(session: dps.Session, hook: Standing) -> threading.Thread:
    """A thread that is inside of a push when this returns."""
    hook.inside.clear()
    thread = threading.Thread(target=session.push, args=(ONES,), name="trainer")
    thread.start()
    assert hook.inside.wait(60)
    return thread


CALLS: dict[str, Callable[[dps.Session], Any]] = {
    "pull": lambda session: session.pull(),
    "pull_async": lambda session: session.pull_async(),
    "push": lambda session: session.push(ONES),
    "push_async": lambda session: session.push_async(ONES),
    "step": lambda session: session.step(ONES),
    "lookup": lambda session: session.lookup("w", [0]),
    "lookup_async": lambda session: session.lookup_async("w", [0]),
    "gradients": lambda session: session.gradients(),
    "save": lambda session: session.save(),
    "restore": lambda session: session.restore(),
    "stats": lambda session: session.stats(),
    "is_chief": lambda session: session.is_chief,
    "view": lambda session: session.view().__enter__(),
    "step_in_place": lambda session: session.step_in_place(ONES).__enter__(),
    "close": lambda session: session.close(),
}


def test_a_call_while_another_thread_is_in_one_names_both(opened: tuple[dps.Session, Standing]) -> None:
    session, hook = opened
    reply, values = session.pull_async(), session.prefetch()
    thread = pushing(session, hook)
    calls = {
        **CALLS, "result": lambda _: reply.result(), "done": lambda _: reply.done(), "prefetch": lambda _: next(values)
    }  # fmt: skip
    for name, call in calls.items():
        with pytest.raises(RuntimeError, match=rf"MainThread called {name}\(\) while trainer is in \w+\(\)") as told:
            call(session)
        assert str(told.value).startswith("worker:0: ") and "a session of its own" in str(told.value)
    hook.go_on.set()
    thread.join()
    assert reply.result()["w"].tolist() == [0, 0]
    assert session.pull()["w"].tolist() == [-1, -1]  # the push was not disturbed


def test_a_session_may_be_handed_over(opened: tuple[dps.Session, Standing]) -> None:
    session, hook = opened
    hook.go_on.set()
    for _ in range(2):
        pushing(session, hook).join()
        session.push(ONES)
    with session.view() as values:
        assert values["w"].tolist() == [-4, -4]


def test_what_a_view_lends_is_read_while_its_session_goes_on(opened: tuple[dps.Session, Standing]) -> None:
    session, hook = opened
    hook.go_on.set()
    with session.view() as values:
        session.push(ONES)
        assert values["w"].tolist() == [0, 0]
    assert next(iter(session.prefetch()))["w"].tolist() == [-1, -1]


def session_of(server: dps.Server) -> dps.Session:
    return dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0))


@pytest.mark.parametrize("transport", ["tcp", "inproc"])
def test_a_session_does_nothing_in_a_process_that_was_forked_from_its_own(transport: str) -> None:
    """Both pushed under the same numbers, and a ps took the later ones for pushes that it had applied: pushes that were
    told as accepted were lost."""
    with cluster(transport=transport) as (server,), session_of(server) as s:
        s.push({"w": -np.ones(2)})
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the threads that the child does not have
            child = os.fork()
        if child == 0:
            told = b"nothing was told"
            try:
                s.push({"w": -np.ones(2)})
            except RuntimeError as error:
                told = str(error).encode()
                s.close()  # says nothing to the run
            finally:
                os.write(write, told)
                os._exit(0)
        os.waitpid(child, 0)
        told = os.read(read, 1000).decode()
        assert f"process {child}, which was forked from process {os.getpid()}" in told and "push()" in told
        for _ in range(3):
            assert s.push({"w": -np.ones(2)}).accepted
        assert s.pull()["w"].tolist() == [4.0, 4.0]
