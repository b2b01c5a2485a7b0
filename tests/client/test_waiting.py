"""What a session announces when it has joined again: how many steps are lost, and whether that is certain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dps
from dps.client.membership import Membership
from dps.client.waiting import Loss, Waiter
from tests.client.test_at_once import session
from tests.in_process import cluster


def opened(epoch: int, step: int, reached: int, certain: bool = True) -> Any:
    return SimpleNamespace(epoch=epoch, step=step, reached=reached, certain=certain, incarnation=1, kept=[])


def taking_part(epoch: int) -> Membership:
    membership = Membership().next(opened(epoch, 0, 0), 0)
    membership.begin()
    return membership


@pytest.mark.parametrize(
    ("epoch", "restored", "reached", "certain", "told", "says"),
    [
        (4, 7, 12, True, (True, Loss(5, True)), "5 steps lost"),
        (4, 7, 30, True, (True, Loss(23, True)), "23 steps lost"),
        (4, 11, 0, False, (True, Loss(1, False)), "at least 1 step lost"),
        (3, 7, 12, True, (True, Loss(5, False)), "at least 5 steps lost"),  # a number that was used twice hides no loss
        (3, 12, 12, True, (False, Loss(0, False)), "at least 0 steps lost"),  # it was given up, and came back
    ],
)
def test_lost_steps_are_announced_whatever_the_number_of_the_epoch(
    epoch: int, restored: int, reached: int, certain: bool, told: tuple[bool, Loss], says: str
) -> None:
    heard: list[tuple[bool, Loss]] = []
    runtime = SimpleNamespace(record=lambda *_, **__: None)
    connection: Any = SimpleNamespace(membership=taking_part(3), home=SimpleNamespace(runtime=runtime))

    def join(deadline: float) -> None:
        connection.membership = connection.membership.next(opened(epoch, restored, reached, certain), 12)
        connection.steps = SimpleNamespace(step=restored)

    connection.joining = SimpleNamespace(join=join)
    Waiter(connection, 60.0, lambda *news: partial(heard.append, news)).recover(0.0)
    assert heard == [told] and str(heard[0][1]) == says


def test_after_ctrl_c_before_the_pushes_are_given_up_the_session_joins_again_as_if_it_had_not_joined() -> None:
    heard: list[Any] = []
    runtime = SimpleNamespace(record=lambda *_, **__: None)
    connection: Any = SimpleNamespace(membership=taking_part(3), home=SimpleNamespace(runtime=runtime))
    epochs = iter((4, 5))

    def join(deadline: float) -> None:
        connection.membership = connection.membership.next(opened(next(epochs), 7, 12), 12)
        connection.steps = SimpleNamespace(step=7)

    def rejoined(*news: Any) -> Any:
        if connection.membership.epoch == 4:
            raise KeyboardInterrupt
        return partial(heard.append, news)

    connection.joining = SimpleNamespace(join=join)
    waiter = Waiter(connection, 60.0, rejoined)
    with pytest.raises(KeyboardInterrupt):
        waiter.recover(0.0)
    assert not connection.membership.entered and not connection.membership.runs
    waiter.recover(0.0)
    assert connection.membership.epoch == 5 and connection.membership.runs and connection.membership.left == (3, 12)
    assert heard == [(True, Loss(5, False))]


def test_what_was_lost_in_an_epoch_counts_until_the_session_takes_part_again() -> None:
    passed = taking_part(3).next(opened(4, 7, 30), 12)
    membership = passed.next(opened(5, 7, 9), 7)
    assert (membership.left, membership.reached, membership.certain) == ((3, 12), 30, False)


def test_what_was_lost_before_a_session_took_part_is_not_counted_again() -> None:
    passed = taking_part(3).next(opened(3, 7, 30), 12)  # given up, and let in again; 30 is of run epoch 2
    membership = passed.next(opened(4, 7, 14), 7)
    assert (membership.left, membership.reached) == ((3, 12), 14)


@pytest.mark.parametrize("timeout", [float("nan"), "5", True])
def test_a_timeout_that_is_no_number_of_seconds_is_told(timeout: Any) -> None:
    """At NaN no wait ended, and a queue asked again at once, each time with a line in the log."""
    with cluster(1, 1) as (server,), session(server) as s:
        queue = dps.data.queue(server, "empty", capacity=1)
        calls: list[Callable[[], Any]] = [
            lambda: s.pull(["w"], timeout=timeout), lambda: s.lookup("w", [1], timeout=timeout),
            lambda: queue.get(timeout=timeout), lambda: server.join(timeout=timeout),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(ValueError, match="timeout: got .*, wanted seconds"):
                call()


def prefetching(server: Any, error: type[BaseException]) -> list[str]:
    """What the calls say after one that an error has ended."""
    told: list[str] = []
    with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0)) as session:
        ahead, found = session.prefetch(), session._training._finish

        def fail(*_: Any) -> Any:
            raise error("broken")

        next(ahead)
        session._training._finish = fail  # type: ignore[method-assign]
        for _ in range(3):
            try:
                next(ahead)
            except BaseException as raised:
                told.append(f"{type(raised).__name__}: {raised}")
        session._training._finish = found  # type: ignore[method-assign]
        assert next(session.prefetch())["w"].tolist() == [0, 0]
        session.request_stop()
        assert list(session.prefetch()) == []
    return told


def test_an_error_is_no_end_of_prefetched_values() -> None:
    """The next turn ended the loop, as if the session were to stop."""
    run = dps.simulate(prefetching, dps.DeadlineExceeded)
    assert run.results == [["DeadlineExceeded: broken"] * 3], run.errors
    run = dps.simulate(prefetching, KeyboardInterrupt)
    ended = "RuntimeError: prefetch: KeyboardInterrupt has ended these values; begin others with session.prefetch()"
    assert run.results == [["KeyboardInterrupt: broken", ended, ended]], run.errors
