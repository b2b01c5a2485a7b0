"""Values that come with a push's result: read where the ps wrote them, and asked for where they do not come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps.client.cargo import About, CargoMemory, RunCargo
from dps.client.transfers import PullTransfer, PushTransfer
from dps.messages.sessions import APPLIED, DROPPED, REFUSED, Pull, Pushed, PushStatus, Values
from tests.client.peers import Memory, Wire, peer, take
from tests.client.test_transfers import pieces_of, run_of, small

LENT = [8, 3, [[1, 2]]]


def there() -> Memory:
    return Memory(run_of(small(), 0, 100)[:32])


def step(memory: Memory) -> tuple[Wire, PushTransfer, PullTransfer]:
    wire, layout = Wire(), small().layouts[0]
    to = peer(wire, layout, memory)
    private = CargoMemory(wire.runtime, Memory(on=False), 64)  # type: ignore[arg-type]
    push = PushTransfer(RunCargo(to, About(1, 4, 0, 0, 0, True, 1), private))
    push.begin()
    pull = PullTransfer(to, Pull(1, 0, 4, 0, -1, [], shared=True), take, behind=push)
    pull.begin()
    return wire, push, pull


def pushed(status: str = APPLIED, lent: Any = ()) -> Pushed:
    return Pushed(4, status, 3, 0, 8, "", list(lent))


@pytest.mark.parametrize("status", [APPLIED, DROPPED])
def test_values_that_come_with_a_result_are_read_and_given_back_and_no_pull_is_sent(status: str) -> None:
    memory = there()
    wire, push, pull = step(memory)
    assert len(wire.sent) == 1 and memory.reading == {1}
    wire.answer(pushed(status, LENT))
    assert push.complete and pull.complete and len(wire.sent) == 1
    assert (pull.counter, pull.step) == (8, 3) and isinstance(pull.values, np.ndarray)
    np.testing.assert_array_equal(pull.values[:32], memory.values)
    assert memory.released == [1] and not memory.reading


def test_a_result_without_values_is_followed_by_a_pull() -> None:
    memory = there()
    wire, push, pull = step(memory)
    assert push.resend_message() == PushStatus(1, 4)  # as after a result that was lost
    wire.answer(pushed())
    assert push.complete and not pull.complete
    assert wire.sent[1:] == [Pull(1, 0, 4, 0, -1, [], shared=True)] and memory.reading == {2}
    for piece in pieces_of(small(), 0, run_of(small(), 0, 7), 9, 1000):
        wire.requests.feed_answer(2, piece, 0.0)
    assert pull.complete and pull.counter == 9 and not memory.reading


def test_values_that_cannot_be_read_are_asked_for_over_the_socket() -> None:
    memory = Memory()
    wire, _, pull = step(memory)
    wire.answer(pushed(lent=LENT))
    assert not pull.complete and not memory.on
    assert wire.sent[1:] == [Pull(1, 0, 4, 0, -1, [], shared=False)] and not memory.reading
    values = run_of(small(), 0, 7)[:32]
    wire.requests.feed_answer(2, Values(1, 9, 3, values.nbytes, [0], 1, arrays=(values,)), 0.0)
    assert pull.complete


def test_a_refused_push_asks_for_nothing() -> None:
    wire, push, pull = step(there())
    wire.answer(pushed(REFUSED))
    assert push.complete and not pull.complete and len(wire.sent) == 1


def test_who_gives_up_waiting_gives_the_values_of_a_late_result_back() -> None:
    memory = there()
    wire, push, pull = step(memory)
    pull.drop()
    assert memory.released == [1] and not memory.reading
    wire.answer(pushed(lent=LENT))
    assert push.complete and not pull.complete and pull.values is None
